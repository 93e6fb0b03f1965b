#pragma once
// A typed builder for StableHLO programs. A Value knows its builder, so operations are free functions in
// ops.h: `add(x, y)`. Types and shapes are checked as the program is built (OperandError names the
// operation and its operands); the result is text, which is what every PJRT plugin takes and the compile
// cache hashes.
//
// One Builder makes one module with a function `main`, and others that it calls. Regions (the body of a reduce, a
// while) and functions are built by callbacks. Not thread-safe; cheap to construct.
//
// Programs come out lean, so that lowerings need not take care: an operation that stands in the same block already is
// not emitted again, chains of operations that only move elements become one (ops.h), and what no result needs is left
// out.

#include <complex>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/tensor_type.h"

namespace tpu::stablehlo {

class Builder;

/// An operation does not take its operands: a lowering was given what it was not written for.
class OperandError : public Error {
 public:
  OperandError(const std::string& message, bool about_dtypes)
      : Error(Code::kInternal, message), about_dtypes_(about_dtypes) {}
  /// Because of their dtypes, whatever their sizes are.
  bool about_dtypes() const { return about_dtypes_; }

 private:
  bool about_dtypes_;
};

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

  /// Appends an operation; used by ops.h. `text` is everything to the right of `=`; the result names are added here.
  std::vector<Value> emit(std::string text, std::span<const TensorType> results);
  /// The same for one result of a pure operation, which may stand in the block already.
  Value emit_one(std::string text, const TensorType& result);
  /// Text of a region in generic form: `({ ^bb0(%a: ...): ... stablehlo.return ... })`.
  std::string region(std::span<const TensorType> arguments, const Region& body,
                     const char* terminator = "stablehlo.return");

  /// A function of the module. Its body knows its arguments only.
  struct Function {
    std::string name;
    std::vector<TensorType> results;
  };
  /// REQUIRES: not within a region.
  Function function(std::span<const TensorType> arguments, const Region& body);
  std::vector<Value> call(const Function& function, std::span<const Value> operands);
  bool in_region() const { return depth_ != 0; }

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

  /// How an operation that only moves or converts elements made a value.
  struct Origin {
    enum class Op : uint8_t { kReshape, kTranspose, kBroadcast, kConvert, kBitcast } op;
    Value operand;
    Dims axes;  // as the operation has them
  };
  void note_origin(Value made, Origin origin);
  /// Null if another operation made it.
  const Origin* find_origin(Value made, Origin::Op op) const;
  /// A constant of other sizes whose elements are those of `x`; undefined unless `x` is a constant with equal elements.
  Value resized_constant(Value x, const Dims& sizes);

  /// Reference valid as long as the builder.
  const TensorType& type_of(uint32_t id) const { return types_[id]; }
  size_t parameter_count() const { return parameters_.size(); }

 private:
  struct Parameter {
    uint32_t id;
    int aliased_output;
  };
  /// An operation of the outermost block, in `body_` up to `end`.
  struct Operation {
    size_t end;
    uint32_t first_result;
    uint32_t results;
  };
  Value splat(std::string literal, const TensorType& type);
  Value constant_text(const std::string& literal, const TensorType& type);
  uint32_t new_value(const TensorType& type);
  void line(const std::string& text);
  void note_operation(std::span<const Value> results);
  std::string needed(std::span<const Value> results) const;
  std::string function_text(const std::string& visibility_and_name, const std::string& arguments,
                            std::span<const Value> results) const;

  std::string module_name_;
  std::deque<TensorType> types_;  // by value id; a deque, so that references from type_of() stay valid
  std::vector<Parameter> parameters_;
  std::string body_;       // text of the innermost open block
  std::string functions_;  // besides main
  size_t function_count_ = 0;
  int depth_ = 0;  // number of open regions
  int dot_precision_ = 2;
  bool locations_enabled_ = false;
  std::string location_;                               // what follows an operation, if anything
  std::unordered_map<std::string, size_t> locations_;  // by text, with the number of its alias
  std::unordered_map<uint32_t, Origin> origins_;       // by id of the result
  std::unordered_map<uint32_t, std::string> splats_;   // literals of the elements of constants
  std::unordered_map<std::string, Value> known_;       // operations of the innermost open block
  std::vector<Operation> operations_;
};

/// "%12", as it stands in the text.
std::string ref(Value value);
/// "tensor<2x3xf32>"
std::string mlir_type(const TensorType& type);

}  // namespace tpu::stablehlo
