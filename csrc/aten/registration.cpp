// Registers every row of the table, and the fallback for what has none.

#include "aten/registration.h"

#include <torch/library.h>

#include <unordered_map>

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

std::unordered_map<std::string, std::unique_ptr<RowKernel>>& kernels_behind_hand_written() {
  static auto* const map = new std::unordered_map<std::string, std::unique_ptr<RowKernel>>;
  return *map;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}

}  // namespace

void register_rows() {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (Operator& op : operators_of_table()) {
    const std::string name = op.name;
    if (written_by_hand(op.handle)) {
      kernels_behind_hand_written()[name] = std::make_unique<RowKernel>(std::move(op));
      continue;
    }
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RowKernel>(std::move(op))));
  }
}

RowKernel& row_kernel(const std::string& name) {
  const auto found = kernels_behind_hand_written().find(name);
  TORCH_INTERNAL_ASSERT(found != kernels_behind_hand_written().end(), "no row serves ", name);
  return *found->second;
}

}  // namespace tpu::aten
