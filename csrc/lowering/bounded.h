#pragma once
// Which rows are right on arrays that are larger than the tensors they hold (base/tensor_type.h, Bounds). A row is
// lowered for the stored sizes then, and what stands behind the present elements means nothing. Most rows never mix it
// with anything: elementwise ones, batch dims. Others do, and are right once it is replaced by a neutral number: zeros
// for a sum or a product of matrices, -inf for a maximum. The rest is not served: such calls have a program per size.

#include <cstdint>
#include <vector>

#include "lowering/op_call.h"
#include "lowering/table.h"

namespace tpu::lowering {

enum class Fill : uint8_t { kZero, kOne, kLowest, kHighest, kNumber };

/// One tensor argument.
struct BoundedArgument {
  Dims sizes;             // as stored
  uint64_t changing = 0;  // bit per dim
  DType dtype = DType::kF32;
  Dims present;  // of this call; a rule may refuse it for them, but what it asks for must not depend on them
  /// Set by the rule: dims whose elements behind the end are to be replaced, and by what.
  uint64_t filled = 0;
  Fill fill = Fill::kZero;
  int64_t number = 0;
  bool asked = false;  // the row wants to know the present sizes (OpCall::present_size)

  size_t rank() const { return sizes.size(); }
  bool changes(int64_t dim) const { return (changing >> dim & 1) != 0; }
};

class BoundedCall {
 public:
  /// `attributes` has a Value, undefined, where a tensor stands.
  BoundedCall(std::vector<Arg> attributes, std::vector<std::vector<BoundedArgument>> tensors)
      : attributes_(std::move(attributes)), tensors_(std::move(tensors)) {}

  /// Tensor argument `i`, or nullptr for None and numbers.
  BoundedArgument* tensor(size_t i);
  std::vector<BoundedArgument>& list(size_t i) { return tensors_[i]; }
  std::vector<std::vector<BoundedArgument>>& tensors() { return tensors_; }

  size_t size() const { return attributes_.size(); }
  bool is_none(size_t i) const { return std::holds_alternative<None>(attributes_[i]); }
  int64_t integer_or(size_t i, int64_t fallback) const;
  bool boolean_or(size_t i, bool fallback) const;
  double real_or(size_t i, double fallback) const;
  Dims ints_or(size_t i, Dims fallback) const;

  /// Asks for `fill` behind the end of all changing dims, or of those in `dims`.
  static void fill(BoundedArgument* argument, Fill fill, uint64_t dims = ~uint64_t{0});

 private:
  const std::vector<Arg> attributes_;
  std::vector<std::vector<BoundedArgument>> tensors_;
};

/// Says whether the call is right on stored sizes, and what has to be filled for it.
using BoundedRule = bool (*)(BoundedCall&);

/// The rule of a row, or nullptr where there is none.
BoundedRule bounded_rule(std::string_view row);

}  // namespace tpu::lowering
