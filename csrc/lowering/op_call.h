#pragma once
// OpCall: one operator call as its lowering sees it. Arguments stand in schema order; tensors have already
// been read through their windows, so a tensor is a StableHLO value of the tensor's own sizes. A lowering
// is a pure function `OpCall -> result values`; what it returns is converted to nothing and checked against
// the metadata that PyTorch's meta kernel gave (result_type), so a wrong dtype or shape is an error.
//
// Scalars (Python numbers, `Scalar` arguments, 0-d CPU tensors) come in two ways: known, when the plan was
// keyed on the value, or as a run-time operand. `operand` hides the difference; a lowering whose code
// depends on the value asks `known` first and must also work without, or its row says static_args.

#include <complex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "stablehlo/builder.h"

namespace tpu::lowering {

using stablehlo::Builder;
using stablehlo::Value;

/// A number of PyTorch: the kind decides type promotion, so it is kept beside the value.
struct Scalar {
  enum class Kind : uint8_t { kBool, kInt, kDouble, kComplex };
  Kind kind = Kind::kInt;
  int64_t i = 0;               // kBool, kInt
  std::complex<double> z = 0;  // kDouble (real part), kComplex
  double as_double() const { return kind <= Kind::kInt ? static_cast<double>(i) : z.real(); }
  int64_t as_int() const { return kind <= Kind::kInt ? i : static_cast<int64_t>(z.real()); }
  std::complex<double> as_complex() const {
    return kind <= Kind::kInt ? std::complex<double>(static_cast<double>(i)) : z;
  }
  bool is_integral() const { return kind <= Kind::kInt; }
};

/// A scalar argument: its own dtype (int64, float64, bool, complex128, or the 0-d tensor's) and either the
/// known value or a 0-d program operand of type `operand.dtype()`.
struct ScalarArg {
  DType dtype = DType::kS64;
  std::optional<Scalar> known;
  Value operand;
};

struct None {};

using Arg = std::variant<None, Value, ScalarArg, std::vector<std::optional<Value>>, std::vector<ScalarArg>, bool,
                         int64_t, double, Dims, std::vector<double>, std::vector<bool>, std::string, DType>;

/// Counter-based random state of one call: Philox4x32-10 key and first counter (0-d ui64 operands).
struct RandomState {
  Value seed;
  Value offset;
};

class OpCall {
 public:
  OpCall(Builder& builder, std::string_view name, std::vector<Arg> args, std::vector<TensorType> results,
         DType promoted)
      : builder_(builder), name_(name), args_(std::move(args)), results_(std::move(results)), promoted_(promoted) {}

  Builder& builder() const { return builder_; }
  std::string_view name() const { return name_; }
  size_t size() const { return args_.size(); }

  bool is_none(size_t i) const;
  /// True for Value and ScalarArg: an argument whose schema type is Tensor (or Scalar) and is given.
  bool has(size_t i) const { return !is_none(i); }

  /// Tensor argument `i` at its own dtype (a 0-d CPU tensor or wrapped number becomes a 0-d value).
  Value tensor(size_t i) const;
  std::optional<Value> optional_tensor(size_t i) const;
  /// Tensor or scalar argument `i` converted to `dtype`, not broadcast.
  Value operand(size_t i, DType dtype) const;
  /// The value of scalar argument `i` (or of a 0-d CPU tensor) when the plan knows it.
  std::optional<Scalar> known(size_t i) const;
  bool is_scalar(size_t i) const;
  /// Dtype of tensor or scalar argument `i`.
  DType dtype(size_t i) const;

  std::vector<Value> tensors(size_t i) const;
  std::vector<std::optional<Value>> optional_tensors(size_t i) const;
  size_t list_size(size_t i) const;
  /// Element `k` of a Scalar[] argument, converted to `dtype`.
  Value list_operand(size_t i, size_t k, DType dtype) const;

  bool boolean(size_t i) const;
  int64_t integer(size_t i) const;
  double real(size_t i) const;  // also accepts a known scalar
  Dims ints(size_t i) const;
  std::vector<double> reals(size_t i) const;
  std::vector<bool> booleans(size_t i) const;
  std::string string(size_t i) const;
  DType dtype_arg(size_t i) const;  // a `ScalarType` argument
  /// Like the getters above, with `fallback` for None.
  int64_t integer_or(size_t i, int64_t fallback) const { return is_none(i) ? fallback : integer(i); }
  double real_or(size_t i, double fallback) const { return is_none(i) ? fallback : real(i); }
  bool boolean_or(size_t i, bool fallback) const { return is_none(i) ? fallback : boolean(i); }
  Dims ints_or(size_t i, Dims fallback) const { return is_none(i) ? fallback : ints(i); }

  /// Metadata that PyTorch computed for result `k` of the functional form. A result that PyTorch leaves
  /// undefined (output_mask) has no entry set: `wants(k)` is false and the lowering returns Value().
  const TensorType& result_type(size_t k = 0) const { return results_.at(k); }
  size_t result_count() const { return results_.size(); }
  /// at::result_type over all tensor and scalar arguments: the dtype in which elementwise code computes.
  DType promoted() const { return promoted_; }

  /// The present size (s64, 0-d) of a dim of tensor argument `i`, element `k` of a list, where it is less than what the
  /// value has (lowering/bounded.h). Rows that do more than their rule's filling have to ask.
  std::optional<Value> present_size(size_t i, int64_t dim, size_t k = 0) const;
  /// How many elements argument `i` has along `axes`: a 0-d int64 where only the device knows.
  std::optional<Value> present_count(size_t i, std::span<const int64_t> axes) const;
  /// `x`, which has the sizes of argument `i`, with `rest` behind the present end of its dims.
  Value without_rest(size_t i, Value x, Value rest) const;
  struct PresentSize {
    size_t argument, element;
    int64_t dim;
    Value size;
  };
  void set_present_sizes(std::vector<PresentSize> sizes) { present_sizes_ = std::move(sizes); }

  const RandomState& random() const;
  void set_random(RandomState state) { random_ = state; }

  /// Records a device-side check: when `bad` (0-d i1) is true at run time, `message` is raised with the
  /// given code, naming the operator and the user's line, at the latest at the next synchronisation.
  void check(Value bad, Code code, std::string message) const;

  struct Check {
    Value bad;
    Code code;
    std::string message;
  };
  const std::vector<Check>& checks() const { return checks_; }

  /// Throws Error{kInternal}: argument `i` is not what the lowering asks for.
  [[noreturn]] void mismatch(size_t i, const char* wanted) const;

 private:
  Builder& builder_;
  std::string_view name_;
  std::vector<Arg> args_;
  std::vector<TensorType> results_;
  DType promoted_;
  std::optional<RandomState> random_;
  std::vector<PresentSize> present_sizes_;
  mutable std::vector<Check> checks_;
};

}  // namespace tpu::lowering
