#include "python/decompose.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/jit/python/pybind_utils.h>

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

bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  py::gil_scoped_acquire gil;
  py::object& function = lookup(op);
  if (function.is_none()) return false;
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  py::list positional;
  py::dict named;
  const auto arguments = torch::jit::last(*stack, count);
  for (size_t i = 0; i < count; ++i) {
    py::object value = torch::jit::toPyObject(arguments[i]);
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.kwarg_only()) {
      named[argument.name().c_str()] = value;
    } else {
      positional.append(value);
    }
  }
  const py::object result = function(*positional, **named);
  if (result.ptr() == Py_NotImplemented) return false;
  torch::jit::drop(*stack, count);
  push_results(schema, result, stack);
  return true;
}

}  // namespace

void install_decomposer() { aten::set_decomposer(&run); }

}  // namespace tpu::python
