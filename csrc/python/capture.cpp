#include "python/capture.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <thread>

#include "base/error.h"
#include "compile/captured_call.h"
#include "compile/slot_graph.h"

namespace tpu::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

/// A capture ends when Python says so, on the thread that began it, not when the garbage collector comes by.
class CaptureHandle {
 public:
  explicit CaptureHandle(int device)
      : thread_(std::this_thread::get_id()),
        capture_(std::make_unique<compile::GraphCapture>(static_cast<c10::DeviceIndex>(device))) {}

  at::Tensor argument(const at::Tensor& like, uint64_t changing) {
    return open().argument(like.sizes(), like.strides(), like.scalar_type(), changing);
  }
  std::shared_ptr<const compile::CapturedCall> finish(const std::vector<at::Tensor>& results) {
    return open().finish(results);
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

}  // namespace

void bind_capture(py::module_& m) {
  py::class_<CaptureHandle>(m, "GraphCapture")
      .def(py::init<int>(), py::arg("device"), NoGil())
      .def("argument", &CaptureHandle::argument, py::arg("like"), py::arg("changing") = 0)
      .def("finish", &CaptureHandle::finish, py::arg("results"))
      .def_property_readonly("blocked", &CaptureHandle::blocked)
      .def("close", &CaptureHandle::close);
  m.def("capturing", &compile::capturing);
  py::class_<compile::StepCapture>(m, "StepCapture")
      .def(py::init([](int device, uint64_t origin) {
             return std::make_unique<compile::StepCapture>(static_cast<c10::DeviceIndex>(device), origin);
           }),
           py::arg("device"), py::arg("origin"), NoGil())
      .def("launch", &compile::StepCapture::launch, NoGil())
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
      .def("text", &compile::CapturedCall::text, py::arg("platform"), py::arg("locations") = false, NoGil())
      .def_property_readonly("parameters", &compile::CapturedCall::parameters);
}

}  // namespace tpu::python
