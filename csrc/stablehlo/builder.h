#pragma once
// A typed builder for StableHLO programs. A Value knows its builder, so operations are free functions in
// ops.h: `add(x, y)`. Types and shapes are checked as the program is built (Error{kInternal} names the
// operation and its operands); the result is text, which is what every PJRT plugin takes and the compile
// cache hashes.
//
// One Builder makes one module with one function `main`. Regions (the body of a reduce, a while) are built
// by callbacks. Equal constants at function level are emitted once. Not thread-safe; cheap to construct.

#include <complex>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/tensor_type.h"

namespace tpu::stablehlo {

class Builder;

/// An SSA value. Copies are cheap; valid while its builder lives.
class Value {
 public:
  Value() = default;
  bool defined() const { return builder_ != nullptr; }
  Builder& builder() const { return *builder_; }
  uint32_t id() const { return id_; }
  const TensorType& type() const;
  DType dtype() const { return type().dtype; }
  const Dims& dims() const { return type().dims; }
  size_t rank() const { return type().dims.size(); }
  int64_t dim(size_t axis) const { return type().dims[axis]; }

 private:
  friend class Builder;
  Value(Builder* builder, uint32_t id) : builder_(builder), id_(id) {}
  Builder* builder_ = nullptr;
  uint32_t id_ = 0;
};

/// Builds a region from its block arguments and returns what the region yields.
using Region = std::function<std::vector<Value>(std::span<const Value> arguments)>;

class Builder {
 public:
  explicit Builder(std::string module_name = "program");
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  /// The next argument of `main`. `aliased_output`, if not negative, is emitted as tf.aliasing_output.
  Value parameter(const TensorType& type, int aliased_output = -1);
  void set_aliased_output(size_t parameter, int output);

  /// Splat constants: one literal, whatever the size. Values are converted to the element type exactly
  /// (inf and NaN as bit patterns; an integer outside the type's range is Error{kInternal}).
  Value constant(double value, const TensorType& type);
  Value constant(int64_t value, const TensorType& type);
  Value constant(std::complex<double> value, const TensorType& type);
  /// Dense integer literal, one entry per element in row-major order.
  Value constant(std::span<const int64_t> values, const TensorType& type);
  /// Dense floating-point literal.
  Value constant(std::span<const double> values, const TensorType& type);

  /// Appends `op_text` as an operation with `results` results; used by ops.h. `text` is everything to the
  /// right of `=`; the result names are added here.
  std::vector<Value> emit(std::string text, std::span<const TensorType> results);
  Value emit_one(std::string text, const TensorType& result);
  /// Text of a region in generic form: `({ ^bb0(%a: ...): ... stablehlo.return ... })`.
  std::string region(std::span<const TensorType> arguments, const Region& body,
                     const char* terminator = "stablehlo.return");

  /// The module's text with `results` as main's results. The builder must not be used afterwards.
  std::string finish(std::span<const Value> results);

  /// Precision of dot_general and convolution on float32 and wider operands: 0 DEFAULT, 1 HIGH, 2 HIGHEST
  /// (the initial setting: float32 means float32). Narrower floats always use DEFAULT.
  void set_dot_precision(int precision);
  int dot_precision() const { return dot_precision_; }

  /// Operations carry locations: what they are part of, and the line of the user's program, which compilers hand on to
  /// what they make of them. Not by default: a compile cache must not tell programs apart by them.
  void enable_locations() { locations_enabled_ = true; }
  bool locations_enabled() const { return locations_enabled_; }
  /// The location of operations from now on. `line` is "file.py:12", or empty.
  void set_location(const std::string& name, const std::string& line);

  /// What `transposed` is the transpose of, with its axes: lowerings that have a choice can read the original.
  struct Transpose {
    Value operand;
    Dims axes;
  };
  void note_transpose(Value transposed, Transpose from);
  const Transpose* find_transpose(Value transposed) const;

  /// Reference valid as long as the builder.
  const TensorType& type_of(uint32_t id) const { return types_[id]; }
  size_t parameter_count() const { return parameters_.size(); }

 private:
  struct Parameter {
    uint32_t id;
    int aliased_output;
  };
  Value constant_text(std::string literal, const TensorType& type);
  uint32_t new_value(const TensorType& type);
  void line(const std::string& text);

  std::string module_name_;
  std::deque<TensorType> types_;  // by value id; a deque, so that references from type_of() stay valid
  std::vector<Parameter> parameters_;
  std::string body_;  // text of the innermost open block
  int depth_ = 0;     // number of open regions
  int dot_precision_ = 2;
  bool locations_enabled_ = false;
  std::string location_;                                // what follows an operation, if anything
  std::unordered_map<std::string, size_t> locations_;   // by text, with the number of its alias
  std::unordered_map<uint32_t, Transpose> transposes_;  // by id of the result
  std::unordered_map<std::string, Value> constants_;    // of the innermost open block
};

/// "%12", as it stands in the text.
std::string ref(Value value);
/// "tensor<2x3xf32>"
std::string mlir_type(const TensorType& type);

}  // namespace tpu::stablehlo
