// Discrete Fourier transforms: _fft_c2c, _fft_r2c, _fft_c2r. StableHLO transforms up to three trailing dims, so
// the wanted dims are moved to the end and done three at a time.

#include <algorithm>
#include <cmath>

#include "lowering/helpers.h"
#include "lowering/table.h"

namespace tpu::lowering {

using stablehlo::FftKind;

namespace {

using Results = std::vector<Value>;

/// PyTorch's fft_norm_mode: none, by 1/sqrt(n), by 1/n.
double norm_factor(int64_t mode, int64_t count) {
  if (mode == 1) return 1 / std::sqrt(static_cast<double>(count));
  if (mode == 2) return 1 / static_cast<double>(count);
  return 1;
}

int64_t element_count(const Dims& sizes, const Dims& axes) {
  int64_t count = 1;
  for (const int64_t axis : axes) count *= sizes[static_cast<size_t>(axis)];
  return count;
}

/// Product with a real factor, in the type of `x`.
Value scaled(Value x, double factor) {
  if (factor == 1) return x;
  if (!is_complex(x.dtype())) return multiply(x, full_like(x, factor));
  return multiply(x, x.builder().constant(std::complex<double>(factor), x.type()));
}

/// Order of dims with `axes` last, and its inverse.
struct Order {
  Dims forward, backward;
};

Order axes_last(size_t rank, const Dims& axes) {
  Order order;
  for (int64_t i = 0; i < static_cast<int64_t>(rank); ++i) {
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) order.forward.push_back(i);
  }
  for (const int64_t axis : axes) order.forward.push_back(axis);
  order.backward.resize(rank);
  for (size_t i = 0; i < rank; ++i) order.backward[static_cast<size_t>(order.forward[i])] = static_cast<int64_t>(i);
  return order;
}

/// One transform over `axes` (up to three); `last` is the real length of the last of them.
Value transform(Value x, FftKind kind, const Dims& axes, int64_t last) {
  const Order order = axes_last(x.rank(), axes);
  Dims length;
  for (const int64_t axis : axes) length.push_back(x.dim(static_cast<size_t>(axis)));
  length.back() = last;
  return transpose(fft(transpose(x, order.forward), kind, length), order.backward);
}

/// Complex transform over any number of axes. StableHLO's inverse divides by the count: undone here, since
/// PyTorch chooses the factor itself.
Value complex_transform(Value x, const Dims& axes, bool forward) {
  for (size_t first = 0; first < axes.size(); first += 3) {
    const Dims some(axes.begin() + first, axes.begin() + std::min(first + 3, axes.size()));
    x = transform(x, forward ? FftKind::kFft : FftKind::kIfft, some, x.dim(static_cast<size_t>(some.back())));
  }
  return forward ? x : scaled(x, static_cast<double>(element_count(x.dims(), axes)));
}

Dims wrapped(const Dims& axes, size_t rank) {
  Dims result;
  for (const int64_t axis : axes) result.push_back(wrap_axis(axis, rank));
  return result;
}

Value empty_result(const OpCall& call) {
  return convert_like_torch(call.builder().constant(0.0, {DType::kF32, call.result_type().dims}),
                            call.result_type().dtype);
}

/// (self, dim, normalization, forward)
Results lower_c2c(const OpCall& call) {
  const Value x = call.tensor(0);
  const Dims axes = wrapped(call.ints(1), x.rank());
  if (x.type().numel() == 0) return {empty_result(call)};
  const double factor = norm_factor(call.integer(2), element_count(x.dims(), axes));
  return {scaled(complex_transform(x, axes, call.boolean(3)), factor)};
}

/// The whole spectrum of a real signal from its half: X[-k] = conj(X[k]) over all transformed axes.
Value mirrored_spectrum(Value half, const Dims& axes, int64_t full) {
  const int64_t last = axes.back();
  const int64_t kept = half.dim(static_cast<size_t>(last));
  if (full == kept) return half;
  // Entries 1 .. full - kept of the last axis, conjugated and reversed, follow the half.
  Dims start(half.rank(), 0), limit = half.dims();
  start[static_cast<size_t>(last)] = 1;
  limit[static_cast<size_t>(last)] = full - kept + 1;
  Value tail = slice(half, start, limit, Dims(half.rank(), 1));
  tail = stablehlo::complex(real(tail), negate(imag(tail)));
  tail = reverse(tail, {last});
  for (const int64_t axis : axes) {
    if (axis == last || half.dim(static_cast<size_t>(axis)) == 1) continue;
    // Index k goes to -k modulo the size: 0 stays, the others reverse.
    Dims head_limit = tail.dims(), rest_start(tail.rank(), 0);
    head_limit[static_cast<size_t>(axis)] = 1;
    rest_start[static_cast<size_t>(axis)] = 1;
    const Dims step(tail.rank(), 1);
    const Value head = slice(tail, Dims(tail.rank(), 0), head_limit, step);
    const Value rest = reverse(slice(tail, rest_start, tail.dims(), step), {axis});
    tail = concatenate(std::vector<Value>{head, rest}, axis);
  }
  return concatenate(std::vector<Value>{half, tail}, last);
}

/// (self, dim, normalization, onesided)
Results lower_r2c(const OpCall& call) {
  const Value x = call.tensor(0);
  const Dims axes = wrapped(call.ints(1), x.rank());
  if (call.result_type().numel() == 0) return {empty_result(call)};
  const int64_t full = x.dim(static_cast<size_t>(axes.back()));
  Value y = transform(x, FftKind::kRfft, {axes.back()}, full);
  y = complex_transform(y, Dims(axes.begin(), axes.end() - 1), true);
  if (!call.boolean(3)) y = mirrored_spectrum(y, axes, full);
  return {scaled(y, norm_factor(call.integer(2), element_count(x.dims(), axes)))};
}

/// (self, dim, normalization, last_dim_size)
Results lower_c2r(const OpCall& call) {
  Value x = call.tensor(0);
  const Dims axes = wrapped(call.ints(1), x.rank());
  if (call.result_type().numel() == 0) return {empty_result(call)};
  const int64_t full = call.integer(3);
  x = complex_transform(x, Dims(axes.begin(), axes.end() - 1), false);
  // Only as many entries as the real length needs are read.
  const auto last = static_cast<size_t>(axes.back());
  Dims limit = x.dims();
  limit[last] = full / 2 + 1;
  ensure(x.dim(last) >= limit[last], "_fft_c2r: the input is shorter than the half spectrum");
  x = slice(x, Dims(x.rank(), 0), limit, Dims(x.rank(), 1));
  const Value y = scaled(transform(x, FftKind::kIrfft, {axes.back()}, full), static_cast<double>(full));
  return {scaled(y, norm_factor(call.integer(2), element_count(y.dims(), axes)))};
}

const Row kRows[] = {
    {"_fft_c2c", lower_c2c},
    {"_fft_r2c", lower_r2c},
    {"_fft_c2r", lower_c2r},
};

}  // namespace

std::span<const Row> fft_rows() { return kRows; }

}  // namespace tpu::lowering
