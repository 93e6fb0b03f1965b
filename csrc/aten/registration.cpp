// Registers every row of the table, and the fallback for what has none.

#include <torch/library.h>

#include <unordered_set>

#include "aten/dispatch.h"
#include "aten/fallback.h"

namespace tpu::aten {
namespace {

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  run_without_row(op, keys, stack);
}

// Kernels written by hand (tensors.cpp, copies.cpp, ...) come before a row for the same overload.
bool written_by_hand(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace

void register_rows() {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (Operator& op : operators_of_table()) {
    if (written_by_hand(op.handle)) continue;
    const std::string name = op.handle.operator_name().name.substr(6) +
                             (op.handle.operator_name().overload_name.empty()
                                  ? ""
                                  : "." + op.handle.operator_name().overload_name);
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RowKernel>(std::move(op))));
  }
}

}  // namespace tpu::aten
