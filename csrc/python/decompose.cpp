#include "python/decompose.h"

#include <ATen/ScalarOps.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <memory>
#include <unordered_map>

#include "aten/fallback.h"

namespace tpu::python {
namespace {

namespace py = pybind11;

// REQUIRES: the GIL. None for operators without a decomposition.
py::object& lookup(const c10::OperatorHandle& op) {
  static auto* const cache = new std::unordered_map<c10::OperatorName, py::object>;
  const auto found = cache->find(op.operator_name());
  if (found != cache->end()) return found->second;
  py::object function = py::module_::import("torch_tpu._internal.decompositions")
                            .attr("lookup")(op.operator_name().name, op.operator_name().overload_name);
  return cache->emplace(op.operator_name(), std::move(function)).first->second;
}

void push_results(const c10::FunctionSchema& schema, const py::object& result, torch::jit::Stack* stack) {
  const auto& returns = schema.returns();
  if (returns.empty()) return;
  if (returns.size() == 1) {
    stack->push_back(torch::jit::toIValue(result, returns[0].type()));
    return;
  }
  const auto results = py::cast<py::sequence>(result);
  for (size_t i = 0; i < returns.size(); ++i) {
    stack->push_back(torch::jit::toIValue(py::object(results[i]), returns[i].type()));
  }
}

bool is_of(const c10::TypePtr& type, c10::TypeKind kind) {
  const auto optional = type->cast<c10::OptionalType>();
  return (optional ? optional->getElementType() : type)->kind() == kind;
}

// The dispatcher carries dtypes, layouts and memory formats as integers; Python code expects its own objects.
py::object python_value(const c10::Argument& argument, const c10::IValue& value) {
  if (value.isInt()) {
    const auto object = [](PyObject* borrowed) { return py::reinterpret_borrow<py::object>(borrowed); };
    const c10::TypePtr& type = argument.real_type();
    if (is_of(type, c10::TypeKind::ScalarTypeType)) {
      return object(reinterpret_cast<PyObject*>(torch::getTHPDtype(value.toScalarType())));
    }
    if (is_of(type, c10::TypeKind::LayoutType)) {
      return object(reinterpret_cast<PyObject*>(torch::getTHPLayout(value.toLayout())));
    }
    if (is_of(type, c10::TypeKind::MemoryFormatType))
      return object(torch::utils::getTHPMemoryFormat(value.toMemoryFormat()));
  }
  return torch::jit::toPyObject(value);
}

// All arguments as the schema lists them. A number where a tensor is expected is PyTorch's wrapped number.
torch::jit::Stack arguments_of(const c10::FunctionSchema& schema, const py::tuple& args, const py::dict& kwargs) {
  torch::jit::Stack stack;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    py::object given;
    if (i < args.size()) {
      given = args[i];
    } else if (kwargs.contains(argument.name())) {
      given = kwargs[argument.name().c_str()];
    } else {
      stack.push_back(argument.default_value().value_or(c10::IValue()));
      continue;
    }
    if (is_of(argument.type(), c10::TypeKind::TensorType) && !given.is_none() && !THPVariable_Check(given.ptr())) {
      const at::Scalar number = torch::jit::toIValue(given, c10::NumberType::get()).toScalar();
      at::Tensor wrapped = c10::scalar_to_tensor(number);
      wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
      stack.emplace_back(std::move(wrapped));
    } else {
      stack.push_back(torch::jit::toIValue(given, argument.type()));
    }
  }
  return stack;
}

/// What the Python tracer tells: torch_tpu._internal.decompositions.Tracer calls `step`. Python may keep it longer
/// than the recorder lives; then it does nothing.
struct TapeHandle {
  aten::TapeRecorder* recorder;

  void step(const std::string& name, const std::string& overload, const py::tuple& args, const py::dict& kwargs,
            const py::object& result) const {
    if (recorder == nullptr) return;
    const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
    torch::jit::Stack results;
    push_results(op.schema(), result, &results);
    recorder->step(op, arguments_of(op.schema(), args, kwargs), results);
  }
  void give_up() const {
    if (recorder != nullptr) recorder->give_up();
  }
};

/// One traced run. An exception that strikes while Python enters or leaves the tracer (an interrupt, a recursion too
/// deep) can leave its mode behind, which would then see every operator of this thread.
class Tracing {
 public:
  explicit Tracing(aten::TapeRecorder* recorder)
      : handle_(std::make_shared<TapeHandle>(TapeHandle{recorder})), modes_(c10::impl::TorchDispatchModeTLS::stack_len()) {}
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;
  ~Tracing() {
    handle_->recorder = nullptr;
    while (c10::impl::TorchDispatchModeTLS::stack_len() > modes_) c10::impl::TorchDispatchModeTLS::pop_stack();
  }
  const std::shared_ptr<TapeHandle>& handle() const { return handle_; }

 private:
  const std::shared_ptr<TapeHandle> handle_;
  const int64_t modes_;
};

bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack, aten::TapeRecorder* tape) {
  py::gil_scoped_acquire gil;
  py::object& function = lookup(op);
  if (function.is_none()) return false;
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  py::list positional;
  py::dict named;
  const auto arguments = torch::jit::last(*stack, count);
  for (size_t i = 0; i < count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    py::object value = python_value(argument, arguments[i]);
    if (argument.kwarg_only()) {
      named[argument.name().c_str()] = value;
    } else {
      positional.append(value);
    }
  }
  py::object result;
  if (tape == nullptr) {
    result = function(*positional, **named);
  } else {
    static const auto* const traced =
        new py::object(py::module_::import("torch_tpu._internal.decompositions").attr("run_traced"));
    const Tracing tracing(tape);
    result = (*traced)(tracing.handle(), function, positional, named);
  }
  if (result.ptr() == Py_NotImplemented) return false;
  torch::jit::drop(*stack, count);
  push_results(schema, result, stack);
  return true;
}

}  // namespace

void bind_decomposer(py::module_& m) {
  py::class_<TapeHandle, std::shared_ptr<TapeHandle>>(m, "Tape").def("step", &TapeHandle::step).def("give_up", &TapeHandle::give_up);
  m.def("tape_stats", [] {
    const aten::TapeStats stats = aten::tape_stats();
    return std::map<std::string, int64_t>{{"tapes", stats.tapes}, {"replays", stats.replays}};
  });
  aten::set_decomposer(&run);
}

}  // namespace tpu::python
