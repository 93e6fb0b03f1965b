#include "stablehlo/programs.h"

#include "stablehlo/ops.h"

namespace tpu::stablehlo {
namespace {

constexpr DType F32 = DType::kF32, S32 = DType::kS32, I1 = DType::kBool;

std::string finish(Builder& b, std::vector<Value> results) { return b.finish(results); }
std::vector<Value> one(Value v) { return {v}; }
std::vector<Value> sum_body(std::span<const Value> a) { return {add(a[0], a[1])}; }

std::string elementwise() {
  Builder b;
  const Value x = b.parameter({F32, {2, 3}}), y = b.parameter({F32, {2, 3}});
  const Value sum = add(x, y);
  return finish(b, {select(compare(sum, y, Compare::kLt), tanh(sum), y)});
}

std::string equal_constants() {
  Builder b;
  const Value x = b.parameter({F32, {4}});
  const Value two = b.constant(2.0, x.type()), again = b.constant(int64_t{2}, x.type());
  return finish(b, {add(multiply(x, two), again)});
}

std::string every_unary() {
  Builder b;
  std::vector<Value> r;
  const Value x = b.parameter({F32, {4}}), i = b.parameter({S32, {4}}), z = b.parameter({DType::kC64, {4}});
  for (auto f : {abs,
                 cbrt,
                 ceil,
                 cosine,
                 exponential,
                 exponential_minus_one,
                 floor,
                 imag,
                 is_finite,
                 log,
                 log_plus_one,
                 logistic,
                 negate,
                 real,
                 round_nearest_even,
                 round_nearest_afz,
                 rsqrt,
                 sign,
                 sine,
                 sqrt,
                 tan,
                 tanh,
                 erf,
                 erfc,
                 erf_inv,
                 lgamma,
                 digamma}) {
    r.push_back(f(x));
  }
  for (auto f : {abs, cosine, exponential, imag, log, negate, real, rsqrt, sign, sine, sqrt, tanh}) r.push_back(f(z));
  for (auto f : {count_leading_zeros, popcnt, logical_not, negate, sign, abs}) r.push_back(f(i));
  return finish(b, r);
}

std::string every_binary() {
  Builder b;
  std::vector<Value> r;
  const Value x = b.parameter({F32, {4}}), i = b.parameter({S32, {4}}), p = b.parameter({I1, {4}});
  for (auto f : {add, subtract, multiply, divide, remainder, maximum, minimum, power, stablehlo::atan2})
    r.push_back(f(x, x));
  for (auto f : {bit_and, bit_or, bit_xor, shift_left, shift_right_arithmetic, shift_right_logical})
    r.push_back(f(i, i));
  for (auto f : {add, multiply, maximum, minimum, bit_and, bit_or, bit_xor}) r.push_back(f(p, p));
  for (int k = 0; k < 6; ++k) {
    r.push_back(compare(x, x, static_cast<Compare>(k)));
    r.push_back(compare(x, x, static_cast<Compare>(k), true));
    r.push_back(compare(i, i, static_cast<Compare>(k)));
    r.push_back(compare(p, p, static_cast<Compare>(k)));
  }
  r.push_back(complex(x, x));
  r.push_back(reduce_precision(x, 8, 7));
  const Value zero = b.constant(0.0, {F32, {}}), unit = b.constant(1.0, {F32, {}});
  r.push_back(clamp(zero, x, unit));
  return finish(b, r);
}

std::string every_conversion() {
  Builder b;
  std::vector<Value> r;
  const Value x = b.parameter({F32, {2, 2}});
  for (int k = 0; k < kDTypeCount; ++k) {
    const Value other = convert(x, static_cast<DType>(k));
    r.push_back(other);
    r.push_back(convert(other, F32));
  }
  const Value bytes = bitcast_convert(x, DType::kU8);
  r.push_back(bytes);
  r.push_back(bitcast_convert(bytes, F32));
  return finish(b, r);
}

std::string every_constant() {
  Builder b;
  std::vector<Value> r;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (int k = 0; k < kDTypeCount; ++k) {
    const auto dtype = static_cast<DType>(k);
    r.push_back(b.constant(int64_t{1}, {dtype, {2, 2}}));
    r.push_back(b.constant(int64_t{1}, {dtype, {0, 2}}));
    if (is_integral_or_bool(dtype)) {
      r.push_back(b.constant(std::vector<int64_t>{1, 0, 1, 1, 0, 1}, {dtype, {2, 3}}));
    } else {
      r.push_back(b.constant(std::vector<double>{1, 0.1, -0.0, kInfinity, -kInfinity, std::nan("")}, {dtype, {2, 3}}));
    }
    if (is_complex(dtype)) r.push_back(b.constant(std::complex<double>(0.1, -kInfinity), {dtype, {2}}));
    const int reducers = is_integral_or_bool(dtype) ? 6 : is_complex(dtype) ? 2 : 4;
    for (int reducer = 0; reducer < reducers; ++reducer) r.push_back(neutral(b, static_cast<Reducer>(reducer), dtype));
  }
  return finish(b, r);
}

std::string shapes() {
  Builder b;
  const Value x = b.parameter({F32, {4, 6}}), s = b.parameter({S32, {}});
  const Value zero = b.constant(0.0, {F32, {}});
  const Value starts[] = {s, s};
  const Value part = dynamic_slice(x, starts, {2, 2});
  const Value parts[] = {part, part};
  return finish(b, {broadcast_in_dim(x, {2, 4, 6}, {1, 2}), reshape(x, {24}), transpose(x, {1, 0}),
                    slice(x, {1, 0}, {4, 6}, {2, 3}), dynamic_update_slice(x, part, starts), concatenate(parts, 1),
                    pad(x, zero, {1, -1}, {0, 2}, {0, 1}), reverse(x, {1}), iota(b, {DType::kS64, {3, 4}}, 1)});
}

std::string nothing_to_do() {
  Builder b;
  const Value x = b.parameter({F32, {4, 6}});
  const Value zero = b.constant(0.0, {F32, {}});
  return finish(
      b, {broadcast_in_dim(reshape(x, {4, 6}), {4, 6}, {0, 1}), transpose(x, {0, 1}), slice(x, {0, 0}, {4, 6}, {1, 1}),
          concatenate({&x, 1}, 0), pad(x, zero, {0, 0}, {0, 0}, {0, 0}), reverse(x, {}), convert(x, F32)});
}

std::string gather_rows() {
  Builder b;
  const Value x = b.parameter({F32, {4, 6}}), i = b.parameter({S32, {5}});
  GatherDims dims;
  dims.offset_dims = {1};
  dims.collapsed_slice_dims = {0};
  dims.start_index_map = {0};
  dims.index_vector_dim = 1;
  return finish(b, {gather(x, i, dims, {1, 6})});
}

std::string scatter_rows() {
  Builder b;
  const Value x = b.parameter({F32, {4, 6}}), i = b.parameter({S32, {5}}), u = b.parameter({F32, {5, 6}});
  ScatterDims dims;
  dims.update_window_dims = {1};
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  return finish(b, {scatter(x, i, u, dims, sum_body)});
}

std::string batched_gather_scatter() {
  Builder b;
  const Value x = b.parameter({F32, {4, 6}}), i = b.parameter({S32, {4, 6, 1}});
  GatherDims from;
  from.collapsed_slice_dims = {1};
  from.operand_batching_dims = {0};
  from.start_indices_batching_dims = {0};
  from.start_index_map = {1};
  from.index_vector_dim = 2;
  ScatterDims to;
  to.inserted_window_dims = {1};
  to.input_batching_dims = {0};
  to.scatter_indices_batching_dims = {0};
  to.scatter_dims_to_operand_dims = {1};
  to.index_vector_dim = 2;
  const Value taken = gather(x, i, from, {1, 1});
  return finish(b, {scatter(x, i, taken, to, [](std::span<const Value> a) { return one(a[1]); }, false, true)});
}

std::string plain_reduce() {
  Builder b;
  const Value x = b.parameter({F32, {4, 6}});
  return finish(b, {reduce(x, Reducer::kMaximum, {1})});
}

std::string argmax() {
  Builder b;
  const Value x = b.parameter({F32, {4, 6}}), i = b.parameter({S32, {4, 6}});
  const Value inputs[] = {x, i};
  const Value init[] = {neutral(b, Reducer::kMaximum, F32), b.constant(int64_t{0}, {S32, {}})};
  return finish(b, reduce(inputs, init, {1}, [](std::span<const Value> a) {
                  const Value keep = compare(a[0], a[2], Compare::kGe);
                  return std::vector<Value>{select(keep, a[0], a[2]), select(keep, a[1], a[3])};
                }));
}

std::string windows() {
  Builder b;
  const Value x = b.parameter({F32, {4, 6}});
  const Value low = neutral(b, Reducer::kMaximum, F32), zero = b.constant(0.0, {F32, {}});
  Window window;
  window.sizes = {2, 2};
  window.strides = {2, 2};
  const Value top =
      reduce_window({&x, 1}, {&low, 1}, window, [](std::span<const Value> a) { return one(maximum(a[0], a[1])); })[0];
  const auto greater = [](std::span<const Value> a) { return one(compare(a[0], a[1], Compare::kGe)); };
  return finish(b, {top, select_and_scatter(x, top, zero, window, greater, sum_body)});
}

std::string sort_pairs() {
  Builder b;
  const Value x = b.parameter({F32, {4, 6}}), i = b.parameter({S32, {4, 6}});
  const Value inputs[] = {x, i};
  return finish(
      b, sort(inputs, 1, true, [](std::span<const Value> a) { return one(compare(a[0], a[1], Compare::kLt, true)); }));
}

std::string products() {
  Builder b;
  const Value x = b.parameter({F32, {4, 6}}), h = b.parameter({DType::kBF16, {4, 6}});
  const Value plain = dot_general(x, x, {{}, {}, {1}, {1}}, F32);
  const Value narrow = dot_general(h, h, {{0}, {0}, {1}, {1}}, F32);
  b.set_dot_precision(0);
  return finish(b, {plain, narrow, dot_general(x, x, {{}, {}, {0}, {0}}, F32)});
}

std::string convolutions() {
  Builder b;
  const Value x = b.parameter({F32, {2, 4, 8, 8}}), kernel = b.parameter({F32, {6, 2, 3, 3}});
  ConvolutionDims dims;
  dims.input_spatial = dims.kernel_spatial = dims.output_spatial = {2, 3};
  ConvolutionWindow window;
  window.pad_low = window.pad_high = {1, 1};
  window.reversal = {true, false};
  const Value flat = b.parameter({F32, {3, 5}}), weight = b.parameter({F32, {7, 5}});
  return finish(b, {convolution(x, kernel, dims, window, 2, 1, F32), convolution(flat, weight, {}, {}, 1, 1, F32)});
}

std::string matrices() {
  Builder b;
  const Value m = b.parameter({F32, {3, 4, 4}});
  const Value l = cholesky(m, true);
  const Value spectrum = fft(m, FftKind::kRfft, {4, 4});
  return finish(
      b, {triangular_solve(l, m, true, true, false, Transpose::kTranspose), fft(spectrum, FftKind::kIrfft, {4, 4}),
          fft(spectrum, FftKind::kFft, {3}), fft(spectrum, FftKind::kIfft, {3})});
}

std::string loop() {
  Builder b;
  const Value n = b.parameter({S32, {}}), x = b.parameter({F32, {2}});
  const Value init[] = {n, x};
  const auto limit = [&] { return b.constant(int64_t{5}, {S32, {}}); };
  return finish(b, while_loop(
                       init, [&](std::span<const Value> a) { return one(compare(a[0], limit(), Compare::kLt)); },
                       [&](std::span<const Value> a) {
                         return std::vector<Value>{add(a[0], b.constant(int64_t{1}, {S32, {}})), add(a[1], x)};
                       }));
}

std::string branches() {
  Builder b;
  const Value n = b.parameter({S32, {}}), x = b.parameter({F32, {2}});
  const TensorType type = x.type();
  const Region negated = [&](std::span<const Value>) { return one(negate(x)); };
  const Region same = [&](std::span<const Value>) { return one(x); };
  const Region both[] = {negated, same};
  const Value chosen = if_else(compare(n, n, Compare::kEq), negated, same, {&type, 1})[0];
  return finish(b, {chosen, case_of(n, both, {&type, 1})[0]});
}

std::string barrier() {
  Builder b;
  const Value values[] = {b.parameter({F32, {2}}), b.parameter({S32, {}})};
  return finish(b, optimization_barrier(values));
}

std::string empty() {
  Builder b;
  return finish(b, {});
}

}  // namespace

const std::vector<Program>& programs() {
  static const std::vector<Program> list = {
      {"elementwise", elementwise, R"(
%2 = stablehlo.add %0, %1 : tensor<2x3xf32>
%3 = stablehlo.compare LT, %2, %1, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
%4 = stablehlo.tanh %2 : tensor<2x3xf32>
%5 = stablehlo.select %3, %4, %1 : tensor<2x3xi1>, tensor<2x3xf32>
return %5 : tensor<2x3xf32>
)"},
      {"equal_constants", equal_constants, R"(
%1 = stablehlo.constant dense<2.0> : tensor<4xf32>
%2 = stablehlo.multiply %0, %1 : tensor<4xf32>
%3 = stablehlo.add %2, %1 : tensor<4xf32>
return %3 : tensor<4xf32>
)"},
      {"every_unary", every_unary, ""},
      {"every_binary", every_binary, ""},
      {"every_conversion", every_conversion, ""},
      {"every_constant", every_constant, ""},
      {"shapes", shapes, R"(
%2 = stablehlo.constant dense<0.0> : tensor<f32>
%3 = "stablehlo.dynamic_slice"(%0, %1, %1) {slice_sizes = array<i64: 2, 2>} : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
%4 = stablehlo.broadcast_in_dim %0, dims = [1, 2] : (tensor<4x6xf32>) -> tensor<2x4x6xf32>
%5 = stablehlo.reshape %0 : (tensor<4x6xf32>) -> tensor<24xf32>
%6 = stablehlo.transpose %0, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
%7 = "stablehlo.slice"(%0) {start_indices = array<i64: 1, 0>, limit_indices = array<i64: 4, 6>, strides = array<i64: 2, 3>} : (tensor<4x6xf32>) -> tensor<2x2xf32>
%8 = "stablehlo.dynamic_update_slice"(%0, %3, %1, %1) : (tensor<4x6xf32>, tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
%9 = "stablehlo.concatenate"(%3, %3) {dimension = 1 : i64} : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x4xf32>
%10 = "stablehlo.pad"(%0, %2) {edge_padding_low = array<i64: 1, -1>, edge_padding_high = array<i64: 0, 2>, interior_padding = array<i64: 0, 1>} : (tensor<4x6xf32>, tensor<f32>) -> tensor<5x12xf32>
%11 = "stablehlo.reverse"(%0) {dimensions = array<i64: 1>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
%12 = stablehlo.iota dim = 1 : tensor<3x4xi64>
return %4, %5, %6, %7, %8, %9, %10, %11, %12 : tensor<2x4x6xf32>, tensor<24xf32>, tensor<6x4xf32>, tensor<2x2xf32>, tensor<4x6xf32>, tensor<2x4xf32>, tensor<5x12xf32>, tensor<4x6xf32>, tensor<3x4xi64>
)"},
      {"nothing_to_do", nothing_to_do, R"(
return %0, %0, %0, %0, %0, %0, %0 : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
)"},
      {"gather_rows", gather_rows, R"(
%2 = "stablehlo.gather"(%0, %1) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 6>, indices_are_sorted = false} : (tensor<4x6xf32>, tensor<5xi32>) -> tensor<5x6xf32>
return %2 : tensor<5x6xf32>
)"},
      {"scatter_rows", scatter_rows, R"(
%6 = "stablehlo.scatter"(%0, %1, %2) ({
^bb0(%3: tensor<f32>, %4: tensor<f32>):
  %5 = stablehlo.add %3, %4 : tensor<f32>
  stablehlo.return %5 : tensor<f32>
}) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false} : (tensor<4x6xf32>, tensor<5xi32>, tensor<5x6xf32>) -> tensor<4x6xf32>
return %6 : tensor<4x6xf32>
)"},
      {"batched_gather_scatter", batched_gather_scatter, ""},
      {"plain_reduce", plain_reduce, R"(
%1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
%2 = stablehlo.reduce(%0 init: %1) applies stablehlo.maximum across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
return %2 : tensor<4xf32>
)"},
      {"argmax", argmax, R"(
%2 = stablehlo.constant dense<0xFF800000> : tensor<f32>
%3 = stablehlo.constant dense<0> : tensor<i32>
%11, %12 = "stablehlo.reduce"(%0, %1, %2, %3) ({
^bb0(%4: tensor<f32>, %5: tensor<i32>, %6: tensor<f32>, %7: tensor<i32>):
  %8 = stablehlo.compare GE, %4, %6, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %9 = stablehlo.select %8, %4, %6 : tensor<i1>, tensor<f32>
  %10 = stablehlo.select %8, %5, %7 : tensor<i1>, tensor<i32>
  stablehlo.return %9, %10 : tensor<f32>, tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<4x6xi32>, tensor<f32>, tensor<i32>) -> (tensor<4xf32>, tensor<4xi32>)
return %11, %12 : tensor<4xf32>, tensor<4xi32>
)"},
      {"windows", windows, ""},
      {"sort_pairs", sort_pairs, R"(
%7, %8 = "stablehlo.sort"(%0, %1) ({
^bb0(%2: tensor<f32>, %3: tensor<f32>, %4: tensor<i32>, %5: tensor<i32>):
  %6 = stablehlo.compare LT, %2, %3, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
  stablehlo.return %6 : tensor<i1>
}) {dimension = 1 : i64, is_stable = true} : (tensor<4x6xf32>, tensor<4x6xi32>) -> (tensor<4x6xf32>, tensor<4x6xi32>)
return %7, %8 : tensor<4x6xf32>, tensor<4x6xi32>
)"},
      {"products", products, R"(
%2 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
%3 = stablehlo.dot_general %1, %1, batching_dims = [0] x [0], contracting_dims = [1] x [1] : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4xf32>
%4 = stablehlo.dot_general %0, %0, contracting_dims = [0] x [0] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
return %2, %3, %4 : tensor<4x4xf32>, tensor<4xf32>, tensor<6x6xf32>
)"},
      {"convolutions", convolutions, ""},
      {"matrices", matrices, ""},
      {"loop", loop, R"(
%11, %12 = "stablehlo.while"(%0, %1) ({
^bb0(%2: tensor<i32>, %3: tensor<2xf32>):
  %4 = stablehlo.constant dense<5> : tensor<i32>
  %5 = stablehlo.compare LT, %2, %4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %5 : tensor<i1>
}, {
^bb0(%6: tensor<i32>, %7: tensor<2xf32>):
  %8 = stablehlo.constant dense<1> : tensor<i32>
  %9 = stablehlo.add %6, %8 : tensor<i32>
  %10 = stablehlo.add %7, %1 : tensor<2xf32>
  stablehlo.return %9, %10 : tensor<i32>, tensor<2xf32>
}) : (tensor<i32>, tensor<2xf32>) -> (tensor<i32>, tensor<2xf32>)
return %11, %12 : tensor<i32>, tensor<2xf32>
)"},
      {"branches", branches, ""},
      {"barrier", barrier, R"(
%2, %3 = "stablehlo.optimization_barrier"(%0, %1) : (tensor<2xf32>, tensor<i32>) -> (tensor<2xf32>, tensor<i32>)
return %2, %3 : tensor<2xf32>, tensor<i32>
)"},
      {"empty", empty, R"(
return
)"},
  };
  return list;
}

}  // namespace tpu::stablehlo
