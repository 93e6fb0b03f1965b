// Cumulative operators. One scan serves all: the running extreme's position is itself a running maximum.

#include "lowering/reduction.h"
#include "lowering/reduction_families.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::Reducer;

// One window per position that reaches back to the start. Compilers know this form and turn it into a
// blocked scan; on the CPU plugin that is 3 to 18 times faster than a chain of shifted adds, and compiles
// in half the time.
Value inclusive_scan(Value x, int64_t axis, Value neutral, const Combine& combine) {
  int64_t size = x.dim(axis);
  if (size <= 1 || x.type().numel() == 0) return x;
  stablehlo::Window window;
  window.sizes = Dims(x.rank(), 1);
  window.pad_low = Dims(x.rank(), 0);
  window.sizes[axis] = size;
  window.pad_low[axis] = size - 1;
  const Value inputs[] = {x}, init[] = {neutral};
  auto body = [&](std::span<const Value> v) -> std::vector<Value> { return {combine(v[0], v[1])}; };
  return reduce_window(inputs, init, window, body)[0];
}

namespace {

using Results = std::vector<Value>;

/// Scan of argument 0 along argument 1 in the accumulator of the result's dtype.
Value cumulative(const OpCall& call, Reducer reducer, const Combine& combine) {
  const TensorType& type = call.result_type();
  Value x = at_least_1d(accumulator_input(call.tensor(0), type.dtype));
  int64_t axis = wrap_axis(call.integer(1), x.rank());
  Value sums = inclusive_scan(x, axis, neutral(call.builder(), reducer, x.dtype()), combine);
  return reshape(convert(sums, type.dtype), type.dims);
}

Value plus(Value a, Value b) { return add(a, b); }
Value times(Value a, Value b) { return multiply(a, b); }

Results cumsum(const OpCall& call) { return {cumulative(call, Reducer::kAdd, plus)}; }
Results cumprod(const OpCall& call) { return {cumulative(call, Reducer::kMultiply, times)}; }

/// log(exp(a) + exp(b)) without overflow; NaN in either is NaN.
Value log_add_exp(Value a, Value b) {
  Value high = maximum(a, b);
  Value sum = add(high, log_plus_one(exponential(negate(abs(subtract(a, b))))));
  // Equal infinities would give inf - inf.
  Value infinite = compare(abs(high), full_like(high, INFINITY), Compare::kEq);
  return select(infinite, high, sum);
}

/// The same for complex numbers. The imaginary part is that of the larger argument, turned by less than a quarter of a
/// circle or half of one where they are equally large: it is not brought back into -pi ... pi.
Value log_add_exp_complex(Value a, Value b) {
  Value a_first = compare(real(a), real(b), Compare::kGe);
  Value high = select(a_first, a, b), low = select(a_first, b, a);
  Value turned = exponential(subtract(low, high));
  Value one = full_like(real(turned), 1), sum = complex(add(one, real(turned)), imag(turned));
  // log(1 + z), by log1p of |1 + z|^2 - 1, which does not cancel for small z.
  Value re = real(turned), im = imag(turned);
  Value excess = add(multiply(re, add(re, full_like(re, 2))), multiply(im, im));
  Value logarithm = complex(multiply(log_plus_one(excess), full_like(re, 0.5)), atan2(imag(sum), real(sum)));
  Value result = add(high, logarithm);
  // Nothing is added to -inf, whatever its imaginary part, and inf - inf would be NaN.
  Value same = compare(real(a), real(b), Compare::kEq);
  Value empty = compare(real(low), full_like(re, -INFINITY), Compare::kEq);
  Value infinite = bit_and(same, compare(abs(real(a)), full_like(re, INFINITY), Compare::kEq));
  Value direct = log(add(exponential(a), exponential(b)));
  return select(empty, high, select(infinite, direct, result));
}

/// One addition after the other along `axis`: where imaginary parts are carried on, their multiple of 2 pi depends on
/// the order of the additions.
Value sequential_scan(Value x, int64_t axis, const Combine& combine) {
  if (x.dim(axis) <= 1 || x.type().numel() == 0) return x;
  Builder& builder = x.builder();
  Dims sizes = x.dims();
  sizes[axis] = 1;
  Value zero = scalar(builder, int64_t{0}, DType::kS32), one = scalar(builder, int64_t{1}, DType::kS32);
  const auto starts = [&](Value at) {
    std::vector<Value> all(x.rank(), zero);
    all[static_cast<size_t>(axis)] = at;
    return all;
  };
  const std::vector<Value> init = {one, x};
  const auto goes_on = [&](std::span<const Value> s) -> Results {
    return {compare(s[0], scalar(builder, x.dim(axis), DType::kS32), Compare::kLt)};
  };
  const auto body = [&](std::span<const Value> s) -> Results {
    Value before = dynamic_slice(s[1], starts(subtract(s[0], one)), sizes);
    Value here = dynamic_slice(s[1], starts(s[0]), sizes);
    return {add(s[0], one), dynamic_update_slice(s[1], combine(here, before), starts(s[0]))};
  };
  return while_loop(init, goes_on, body)[1];
}

Results logcumsumexp(const OpCall& call) {
  const TensorType& type = call.result_type();
  if (is_complex(type.dtype)) {
    Value x = at_least_1d(call.tensor(0));
    // A term of 0 has no phase.
    Value lowest = full_like(real(x), -INFINITY);
    Value empty = compare(real(x), lowest, Compare::kEq);
    x = select(empty, complex(lowest, full_like(lowest, 0)), x);
    return {reshape(sequential_scan(x, wrap_axis(call.integer(1), x.rank()), log_add_exp_complex), type.dims)};
  }
  // PyTorch has no integer form.
  if (!is_floating(type.dtype)) {
    throw Error(Code::kNotImplemented, "logcumsumexp of " + std::string(torch_name(type.dtype)));
  }
  Value x = at_least_1d(accumulator_input(call.tensor(0), type.dtype));
  int64_t axis = wrap_axis(call.integer(1), x.rank());
  Value lowest = scalar(call.builder(), -INFINITY, x.dtype());
  Value sums = inclusive_scan(x, axis, lowest, log_add_exp);
  return {reshape(convert(sums, type.dtype), type.dims)};
}

/// cummax and cummin: (values, indices). The index is the last position that reached the running extreme,
/// so it is the running maximum of the positions where the input equals it (or is NaN).
template <Reducer kReducer>
Results cumulative_extreme(const OpCall& call) {
  Value x = at_least_1d(call.tensor(0));
  int64_t axis = wrap_axis(call.integer(1), x.rank());
  DType dtype = x.dtype();
  // Extremes of bool are those of 0 and 1.
  if (dtype == DType::kBool) x = convert(x, DType::kU8);
  auto combine = [](Value a, Value b) { return kReducer == Reducer::kMaximum ? maximum(a, b) : minimum(a, b); };
  Value values = inclusive_scan(x, axis, neutral(call.builder(), kReducer, x.dtype()), combine);
  Value reached = compare(x, values, Compare::kEq);
  if (is_floating(x.dtype())) reached = bit_or(reached, is_nan(x));
  Value position = positions(x, axis);
  Value marks = select(reached, position, full_like(position, 0.0));
  Value indices = inclusive_scan(marks, axis, scalar(call.builder(), int64_t{0}, marks.dtype()),
                                 [](Value a, Value b) { return maximum(a, b); });
  return {reshape(convert(values, dtype), call.result_type(0).dims),
          reshape(convert(indices, DType::kS64), call.result_type(1).dims)};
}

constexpr Row kRows[] = {
    {"cumsum", cumsum, 0, 0, 0, true},
    {"cumprod", cumprod, 0, 0, 0, true},
    {"logcumsumexp", logcumsumexp, 0, 0, 0, true},
    {"_logcumsumexp", logcumsumexp, 0, 0, 0, true},
    {"cummax", cumulative_extreme<Reducer::kMaximum>, 0, 0, 0, true},
    {"cummin", cumulative_extreme<Reducer::kMinimum>, 0, 0, 0, true},
};

}  // namespace

std::span<const Row> reduction_scan_rows() { return kRows; }

}  // namespace tpu::lowering
