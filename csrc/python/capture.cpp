#include "python/capture.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <thread>

#include "base/error.h"
#include "compile/captured_call.h"
#include "compile/control_flow.h"
#include "compile/loaded_program.h"
#include "compile/slot_graph.h"

namespace tpu::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

/// A capture ends when Python says so, on the thread that began it, not when the garbage collector comes by.
class CaptureHandle {
 public:
  CaptureHandle(int device, bool fixed_sizes)
      : thread_(std::this_thread::get_id()),
        capture_(std::make_unique<compile::GraphCapture>(static_cast<c10::DeviceIndex>(device), fixed_sizes)) {}

  void set_sizes(const std::vector<std::pair<int64_t, int64_t>>& sizes_and_bounds) {
    open().set_sizes(sizes_and_bounds);
  }
  at::Tensor argument(const at::Tensor& like, uint64_t changing) {
    return open().argument(like.sizes(), like.strides(), like.scalar_type(), changing);
  }
  std::shared_ptr<const compile::CapturedCall> finish(const std::vector<at::Tensor>& results, bool again) {
    return open().finish(results, again);
  }
  std::string blocked() const { return capture_ != nullptr ? capture_->blocked() : ""; }
  void close() {
    if (capture_ != nullptr) open();
    capture_.reset();
  }

 private:
  compile::GraphCapture& open() {
    if (capture_ == nullptr) throw Error(Code::kInvalidArgument, "this capture has ended");
    if (thread_ != std::this_thread::get_id()) {
      throw Error(Code::kInvalidArgument, "a capture belongs to the thread that began it");
    }
    return *capture_;
  }

  const std::thread::id thread_;
  std::unique_ptr<compile::GraphCapture> capture_;
};

// Kinds of checks as files name them: by the exception that they become (base/error.h).
constexpr std::pair<Code, const char*> kCheckKinds[] = {
    {Code::kIndex, "IndexError"},
    {Code::kValue, "ValueError"},
    {Code::kType, "TypeError"},
    {Code::kNotImplemented, "NotImplementedError"},
    {Code::kLinearAlgebra, "LinAlgError"},
    {Code::kInvalidArgument, "RuntimeError"},
};

std::string check_kind(Code code) {
  for (const auto& [known, name] : kCheckKinds) {
    if (known == code) return name;
  }
  return "RuntimeError";
}

Code check_code(const std::string& kind) {
  for (const auto& [code, name] : kCheckKinds) {
    if (kind == name) return code;
  }
  throw Error(Code::kValue, "a program's check has the unknown kind '" + kind + "'");
}

using Check = std::tuple<std::string, std::string, std::string>;      // kind, operator, message
using TensorForm = std::pair<std::vector<int64_t>, c10::ScalarType>;  // sizes, dtype

std::pair<std::string, std::vector<Check>> program_of(const compile::CapturedCall& call, const std::string& platform,
                                                      bool locations) {
  graph::ProgramText program = call.program(platform, locations);
  std::vector<Check> checks;
  for (graph::ProgramCheck& check : program.checks) {
    checks.emplace_back(check_kind(check.code), std::move(check.name), std::move(check.message));
  }
  return {std::move(program.text), std::move(checks)};
}

std::shared_ptr<const compile::CapturedCall> load_program(
    std::string name, std::string text, const std::vector<TensorForm>& parameters,
    const std::vector<TensorForm>& results, std::vector<int64_t> written, std::vector<uint64_t> random_blocks,
    const std::vector<Check>& checks, int device, std::string executable_file) {
  compile::LoadedForm form{std::move(name),    std::move(text),          {}, {},
                           std::move(written), std::move(random_blocks), {}, std::move(executable_file)};
  for (const auto& [sizes, dtype] : parameters) form.parameters.push_back({sizes, dtype});
  for (const auto& [sizes, dtype] : results) form.results.push_back({sizes, dtype});
  for (const auto& [kind, name, message] : checks) form.checks.push_back({check_code(kind), name, message});
  return compile::load_program(std::move(form), static_cast<c10::DeviceIndex>(device));
}

}  // namespace

void bind_capture(py::module_& m) {
  py::class_<CaptureHandle>(m, "GraphCapture")
      .def(py::init<int, bool>(), py::arg("device"), py::arg("fixed_sizes") = false, NoGil())
      .def("set_sizes", &CaptureHandle::set_sizes, py::arg("sizes_and_bounds"))
      .def("argument", &CaptureHandle::argument, py::arg("like"), py::arg("changing") = 0)
      .def("finish", &CaptureHandle::finish, py::arg("results"), py::arg("again") = false)
      .def_property_readonly("blocked", &CaptureHandle::blocked)
      .def("close", &CaptureHandle::close);
  m.def("capturing", &compile::capturing);
  m.def("bound_of", &bound_of, py::arg("size"));
  py::class_<compile::StepCapture>(m, "StepCapture")
      .def(py::init([](int device, uint64_t origin) {
             return std::make_unique<compile::StepCapture>(static_cast<c10::DeviceIndex>(device), origin);
           }),
           py::arg("device"), py::arg("origin"), NoGil())
      .def("launch", &compile::StepCapture::launch, py::arg("lasting"), NoGil())
      .def("text", &compile::StepCapture::text, py::arg("locations") = false, NoGil());
  py::class_<compile::ReplayGraph>(m, "ReplayGraph")
      .def(py::init<>())
      .def("capture_begin", &compile::ReplayGraph::capture_begin, NoGil())
      .def("capture_end", &compile::ReplayGraph::capture_end, NoGil())
      .def("replay", &compile::ReplayGraph::replay, NoGil())
      .def("reset", &compile::ReplayGraph::reset, NoGil())
      .def("text", &compile::ReplayGraph::text, py::arg("locations") = false, NoGil())
      .def_property_readonly("captured", &compile::ReplayGraph::captured);
  py::class_<compile::CapturedCall, std::shared_ptr<compile::CapturedCall>>(m, "CapturedCall")
      .def(
          "__call__",
          [](const compile::CapturedCall& call, const std::vector<at::Tensor>& arguments) { return call(arguments); },
          py::arg("arguments"), NoGil())
      .def(
          "text",
          [](const compile::CapturedCall& call, const std::string& platform, bool locations) {
            return call.program(platform, locations).text;
          },
          py::arg("platform"), py::arg("locations") = false, NoGil())
      .def("program", &program_of, py::arg("platform"), py::arg("locations") = false, NoGil())
      .def_property_readonly("parameters", &compile::CapturedCall::parameters)
      .def_property_readonly("constants", &compile::CapturedCall::constants)
      .def_property_readonly("random_blocks", &compile::CapturedCall::random_blocks)
      .def_property_readonly("results", &compile::CapturedCall::results)
      .def_property_readonly("written", &compile::CapturedCall::written);
  // Lists of tensors come as vectors, which outlive the call.
  using Tensors = std::vector<at::Tensor>;
  using Part = std::shared_ptr<compile::CapturedCall>;
  m.def(
      "branch",
      [](const at::Tensor& predicate, const Part& on_true, const Part& on_false, const Tensors& operands) {
        return compile::branch(predicate, on_true, on_false, operands);
      },
      py::arg("predicate"), py::arg("on_true"), py::arg("on_false"), py::arg("operands"), NoGil());
  m.def(
      "while_loop",
      [](const Part& condition, const Part& body, const Tensors& carried, const Tensors& others) {
        return compile::while_loop(condition, body, carried, others);
      },
      py::arg("condition"), py::arg("body"), py::arg("carried"), py::arg("others"), NoGil());
  m.def(
      "scan",
      [](const std::string& name, const Part& body, const Tensors& carried, const Tensors& sliced,
         const Tensors& others) { return compile::scan(name, body, carried, sliced, others); },
      py::arg("name"), py::arg("body"), py::arg("carried"), py::arg("sliced"), py::arg("others"), NoGil());
  m.def("refuse_capture", &compile::refuse_capture, py::arg("reason"), NoGil());
  m.def("load_program", &load_program, py::arg("name"), py::arg("text"), py::arg("parameters"), py::arg("results"),
        py::arg("written"), py::arg("random_blocks"), py::arg("checks"), py::arg("device"),
        py::arg("executable_file") = "", NoGil());
}

}  // namespace tpu::python
