#include "lowering/helpers.h"

namespace tpu::lowering {

namespace hlo = stablehlo;

Value broadcast_to(Value x, const Dims& sizes) {
  if (x.dims() == sizes) return x;
  ensure(x.rank() <= sizes.size(), "broadcast_to: the operand has more dims than the result");
  // Dims that expand from 1 are dropped first: compilers treat that form as a plain broadcast.
  Dims kept, axes;
  const size_t added = sizes.size() - x.rank();
  for (size_t i = 0; i < x.rank(); ++i) {
    if (x.dim(i) == 1 && sizes[added + i] != 1) continue;
    kept.push_back(x.dim(i));
    axes.push_back(static_cast<int64_t>(added + i));
  }
  return hlo::broadcast_in_dim(hlo::reshape(x, kept), sizes, axes);
}

Value elementwise_operand(const OpCall& call, size_t i, DType dtype) {
  return broadcast_to(call.operand(i, dtype), call.result_type(0).dims);
}

Value full_like(Value like, double value) { return like.builder().constant(value, like.type()); }
Value scalar(Builder& builder, double value, DType dtype) { return builder.constant(value, TensorType{dtype, {}}); }
Value scalar(Builder& builder, int64_t value, DType dtype) { return builder.constant(value, TensorType{dtype, {}}); }

int64_t wrap_axis(int64_t axis, size_t rank) {
  const auto count = static_cast<int64_t>(std::max<size_t>(rank, 1));
  if (axis < -count || axis >= count) {
    throw Error(Code::kIndex, "Dimension out of range (expected to be in range of [" + std::to_string(-count) + ", " +
                                  std::to_string(count - 1) + "], but got " + std::to_string(axis) + ")");
  }
  return axis < 0 ? axis + count : axis;
}

Dims wrap_axes(const Dims& axes, size_t rank) {
  if (axes.empty() || rank == 0) return tpu::iota(rank);
  Dims wrapped;
  for (int64_t axis : axes) wrapped.push_back(wrap_axis(axis, rank));
  std::sort(wrapped.begin(), wrapped.end());
  return wrapped;
}

Value reduce_axes(Value x, hlo::Reducer reducer, const Dims& axes, bool keep) {
  const Value reduced = hlo::reduce(x, reducer, axes);
  if (!keep) return reduced;
  Dims sizes = x.dims();
  for (int64_t axis : axes) sizes[static_cast<size_t>(axis)] = 1;
  return hlo::reshape(reduced, sizes);
}

Value broadcast_over(Value reduced, const Dims& sizes, const Dims& axes) {
  Dims kept;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto axis = static_cast<int64_t>(i);
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) kept.push_back(axis);
  }
  return hlo::broadcast_in_dim(reduced, sizes, kept);
}

Value sum_to(Value x, const Dims& sizes) {
  if (x.dims() == sizes) return x;
  ensure(sizes.size() <= x.rank(), "sum_to: the target has more dims than the operand");
  const size_t added = x.rank() - sizes.size();
  Dims axes;
  for (size_t i = 0; i < x.rank(); ++i) {
    if (i < added || (sizes[i - added] == 1 && x.dim(i) != 1)) axes.push_back(static_cast<int64_t>(i));
  }
  return hlo::reshape(hlo::reduce(x, hlo::Reducer::kAdd, axes), sizes);
}

Value unsqueeze(Value x, int64_t axis) {
  Dims sizes = x.dims();
  sizes.insert(static_cast<size_t>(wrap_axis(axis, x.rank() + 1)), 1);
  return hlo::reshape(x, sizes);
}

Value squeeze(Value x, int64_t axis) {
  if (x.rank() == 0) return x;
  const auto at = static_cast<size_t>(wrap_axis(axis, x.rank()));
  if (x.dim(at) != 1) return x;
  Dims sizes = x.dims();
  sizes.erase(at);
  return hlo::reshape(x, sizes);
}

Value take_along(Value x, Value index) {
  if (index.type().numel() == 0) return broadcast_to(scalar(x.builder(), 0.0, x.dtype()), index.dims());
  hlo::GatherDims dims;
  dims.operand_batching_dims = {0};
  dims.start_indices_batching_dims = {0};
  dims.collapsed_slice_dims = {1};
  dims.start_index_map = {1};
  dims.index_vector_dim = 2;
  return hlo::gather(x, index, dims, {1, 1});
}

Value at_least_1d(Value x) { return x.rank() == 0 ? hlo::reshape(x, {1}) : x; }

Value is_nan(Value x) {
  if (is_complex(x.dtype())) return hlo::bit_or(is_nan(hlo::real(x)), is_nan(hlo::imag(x)));
  return hlo::compare(x, x, hlo::Compare::kNe);  // integers: constant false, which the compiler sees
}

Value divide_exactly(Value a, Value b) {
  if (!is_floating(a.dtype())) return hlo::divide(a, b);
  // NaN / NaN is NaN as NaN / b is, and the divisor is no broadcast any more.
  return hlo::divide(a, hlo::select(is_nan(a), a, b));
}

Value convert_like_torch(Value x, DType dtype) {
  const DType from = x.dtype();
  if (from == dtype) return x;
  if (dtype == DType::kBool) {
    return hlo::compare(x, x.builder().constant(int64_t{0}, x.type()), hlo::Compare::kNe);
  }
  if (is_complex(from) && !is_complex(dtype)) return convert_like_torch(hlo::real(x), dtype);
  if (is_complex(dtype) && !is_complex(from)) {
    const Value re = hlo::convert(x, real_type(dtype));
    return hlo::complex(re, full_like(re, 0));
  }
  if (dtype == DType::kF8E4M3FN && is_floating(from) && from != DType::kF8E4M3FNUZ) {
    // PyTorch saturates, StableHLO gives NaN; clamp keeps NaN.
    const auto bound = [&](double value) { return scalar(x.builder(), value, from); };
    return hlo::convert(hlo::clamp(bound(-448), x, bound(448)), dtype);
  }
  if (is_floating(from) && is_integer(dtype) && byte_size(dtype) < 8 && dtype != DType::kS32) {
    // PyTorch truncates to a wide integer and keeps the low bits; StableHLO would saturate.
    return hlo::convert(hlo::convert(x, dtype == DType::kU32 ? DType::kS64 : DType::kS32), dtype);
  }
  return hlo::convert(x, dtype);
}

}  // namespace tpu::lowering
