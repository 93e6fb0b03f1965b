#pragma once
// The one table of operators: name -> lowering and rules. Strict, fused, compiled and ahead-of-time
// execution all use it. Each family file exports its rows; table.cpp lists the families.
// In-place and out= forms are derived from the schema, so a row names the functional form only
// ("add.Tensor", "relu" for the default overload), or an in-place form where none is functional
// ("normal_", "_fused_adamw_"): then the lowering returns the new values of the mutated arguments, in schema
// order, followed by the other results.

#include <span>
#include <string_view>
#include <vector>

#include "lowering/op_call.h"

namespace tpu::lowering {

using Function = std::vector<Value> (*)(const OpCall&);

struct Row {
  std::string_view name;  // without "aten::"; default overload without suffix
  Function lower = nullptr;
  /// Bit i: argument i (a Scalar, float or 0-d CPU tensor) selects code and is always part of the key.
  uint32_t static_args = 0;
  /// Bit i: argument i (a float or Scalar) is always a run-time operand, e.g. a learning rate.
  uint32_t runtime_args = 0;
  /// Set for operators that draw random numbers: how many 32-bit numbers are consumed for results of
  /// `numel` elements is up to 4 * ceil(numel / 4) * this factor.
  uint32_t random_factor = 0;
  /// A result worth materialising: on plugins where big fusions lose, a barrier follows.
  bool heavy = false;
  /// Bit i: only the sizes and dtype of tensor argument i matter, not its elements (the self of a fill): the
  /// lowering sees zeros and the call does not depend on what was there.
  uint32_t unread_args = 0;
  /// PyTorch refuses an out= that shares memory with an input, as its kernels do not read in the order they write.
  bool separate_out = false;
  /// PyTorch refuses an out= of another dtype than the result's, and converts for other operators.
  bool exact_out = false;
  /// A number that is a constant of the program makes it much faster, whatever the number: exponents.
  bool constant_pays = false;
};

/// All rows of all families.
std::span<const Row> table();
/// The row named `name`, or nullptr.
const Row* find(std::string_view name);

// One function per family file.
std::span<const Row> elementwise_rows();
std::span<const Row> reduction_rows();
std::span<const Row> normalization_rows();
std::span<const Row> linear_algebra_rows();
std::span<const Row> attention_rows();
std::span<const Row> convolution_rows();
std::span<const Row> pooling_rows();
std::span<const Row> interpolation_rows();
std::span<const Row> indexing_rows();
std::span<const Row> sorting_rows();
std::span<const Row> shape_rows();
std::span<const Row> padding_rows();
std::span<const Row> creation_rows();
std::span<const Row> random_rows();
std::span<const Row> optimizer_rows();
std::span<const Row> loss_rows();
std::span<const Row> activation_rows();
std::span<const Row> fft_rows();

}  // namespace tpu::lowering
