#pragma once
// Signature: one operator call taken apart. Parsing fills a key of 64-bit words (everything static about
// the call) and, beside it, what varies: the values of the tensors, window offsets, scalars.
// Parsing happens on every call, so it allocates nothing at usual sizes.

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "aten/operator.h"
#include "runtime/value.h"

namespace tpu::aten {

/// A tensor argument on the device, in the order the arguments list them.
struct TensorUse {
  const at::Tensor* tensor;
  runtime::ValueRef value;
  bool identity;          // the tensor is its storage's whole base
  bool gather;            // its usual layout does not fit at this offset
  uint64_t changing = 0;  // bit per dim whose size may be another in the next call although its base's is not
};

/// A number: a Scalar argument, a float argument that the row takes at run time, or a 0-d CPU tensor.
struct ScalarUse {
  lowering::Scalar value;
  c10::ScalarType dtype;
  bool runtime;  // always a run-time operand
  bool fixed;    // always part of the key
};

struct Signature {
  c10::SmallVector<uint64_t, 64> key;
  c10::SmallVector<TensorUse, 6> tensors;
  c10::SmallVector<ScalarUse, 4> scalars;
  c10::DeviceIndex device = -1;
  /// Some tensor is stored in a larger array.
  bool bounded = false;
  /// Some tensor carries a conjugate or negative mark: PyTorch hands those to products unresolved.
  bool marked = false;

  /// Reads `arguments` (those of the row first, then out arguments). Raises on tensors of other devices.
  /// `gather` has a bit for each tensor use that must use the general window form.
  void parse(const Operator& op, at::ArrayRef<c10::IValue> arguments, uint64_t gather);
  uint64_t hash() const;

 private:
  void add_sharing();
};

/// 0-d CPU tensors take part in calls as numbers.
bool is_number(const at::Tensor& tensor);
lowering::Scalar to_scalar(const c10::Scalar& value);
lowering::Scalar number_of(const at::Tensor& tensor);

}  // namespace tpu::aten
