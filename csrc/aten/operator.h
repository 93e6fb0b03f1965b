#pragma once
// Operator: one overload as PyTorch dispatches it to us, analysed once when it is registered: which row
// lowers it, what kind each argument has, which arguments it writes. In-place, out= and functional forms of
// a row differ only here.

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

#include "lowering/table.h"

namespace tpu::aten {

enum class ArgKind : uint8_t {
  kTensor,      // Tensor or Tensor?
  kTensorList,  // Tensor[] or Tensor?[]
  kScalar,      // Scalar or Scalar?
  kScalarList,
  kFloat,  // float or float?
  kInt,    // int, SymInt, or optional of them
  kBool,
  kIntList,
  kFloatList,
  kBoolList,
  kString,
  kDType,  // ScalarType
  kGenerator,
  kIgnored,  // Device, Layout, MemoryFormat, pin_memory: settled by the metadata
};

enum class Form : uint8_t { kFunctional, kInplace, kOut, kMutating };

struct Operator {
  c10::OperatorHandle handle;
  /// Overload that the row names; its meta kernel gives the result types. Same as handle for kFunctional
  /// and kMutating.
  c10::OperatorHandle functional;
  const lowering::Row* row;
  Form form;
  std::string name;             // "add_.Tensor"
  std::vector<ArgKind> kinds;   // of the row's arguments (out arguments follow them and are not listed)
  std::vector<size_t> written;  // argument positions that are written, in the order of results
  size_t returned = 0;          // results that are new tensors (kFunctional, kMutating)
  bool has_generator = false;
  bool writes_several = false;  // perhaps windows of one storage
  /// Makes its result from numbers alone (arange, linspace): they also decide the size of the out tensor.
  bool factory = false;

  Operator(c10::OperatorHandle handle, c10::OperatorHandle functional, const lowering::Row* row, Form form);
};

/// Every overload that the row table serves: the named form and the in-place and out= forms found from the
/// schemas. Throws Error{kInternal} for a row that names no operator.
std::vector<Operator> operators_of_table();

}  // namespace tpu::aten
