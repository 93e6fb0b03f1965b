// Operators whose result size depends on data. Each waits for the device once, to learn the size; the rest
// are ordinary nodes whose capacity is a power of two, so that the number of programs grows like the
// logarithm of the size.

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/library.h>

#include <bit>

#include "aten/dispatch.h"
#include "aten/fallback.h"
#include "aten/internal_ops.h"
#include "aten/registration.h"

namespace tpu::aten {
namespace {

int64_t capacity_for(int64_t count) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))); }

at::Tensor as_mask(const at::Tensor& x) { return x.scalar_type() == at::kBool ? x : x.ne(0); }

/// Positions of the true elements, [count, rank].
at::Tensor positions(const at::Tensor& mask) {
  const auto count = mask.sum().item<int64_t>();
  if (count == 0) return at::empty({0, mask.dim()}, mask.options().dtype(at::kLong));
  return nonzero_padded(mask, capacity_for(count)).narrow(0, 0, count);
}

at::Tensor nonzero_of(const at::Tensor& self) { return positions(as_mask(self)); }

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type ", out.scalar_type());
  const at::Tensor result = nonzero_of(self);
  resize_output(out, result.sizes());
  return out.copy_(result);
}

at::Tensor select_masked(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool || mask.scalar_type() == at::kByte,
              "masked_select: expected BoolTensor or ByteTensor for mask");
  const auto expanded = at::broadcast_tensors({self, mask});
  const at::Tensor index = positions(as_mask(expanded[1]).reshape({-1}));
  return expanded[0].reshape({-1}).index_select(0, index.reshape({-1}));
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  const at::Tensor result = select_masked(self, mask);
  resize_output(out, result.sizes());
  return out.copy_(result);
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Cannot compare two tensors on different devices. Got: ", self.device(),
              " and ", other.device());
  if (self.sizes() != other.sizes()) return false;
  return self.numel() == 0 || self.eq(other).all().item<bool>();
}

// ---- indexing: masks become positions, indices on the CPU move to the device

using Indices = c10::List<std::optional<at::Tensor>>;

Indices integer_indices(const at::Tensor& self, const Indices& indices) {
  Indices result;
  int64_t axis = 0;
  for (const std::optional<at::Tensor>& index : indices) {
    if (!index || !index->defined()) {
      result.push_back(std::nullopt);
      ++axis;
      continue;
    }
    if (index->scalar_type() != at::kBool && index->scalar_type() != at::kByte) {
      TORCH_CHECK_INDEX(index->scalar_type() == at::kLong || index->scalar_type() == at::kInt,
                        "tensors used as indices must be long, int, byte or bool tensors");
      result.push_back(index->device() == self.device() ? *index : index->to(self.device()));
      ++axis;
      continue;
    }
    for (int64_t j = 0; j < index->dim(); ++j) {
      TORCH_CHECK_INDEX(axis + j < self.dim() && index->size(j) == self.size(axis + j), "The shape of the mask ",
                        index->sizes(), " at index ", j, " does not match the shape of the indexed tensor ",
                        self.sizes(), " at index ", axis + j);
    }
    const at::Tensor where = positions(as_mask(index->to(self.device())));
    if (index->dim() == 0) {
      // A 0-d mask keeps everything or nothing, along a new leading dim; PyTorch's front end adds that dim.
      result.push_back(where.select(1, 0));
    }
    for (int64_t j = 0; j < index->dim(); ++j) result.push_back(where.select(1, j));
    axis += index->dim();
  }
  return result;
}

bool has_mask(const Indices& indices) {
  for (const std::optional<at::Tensor>& index : indices) {
    if (index && index->defined() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte))
      return true;
  }
  return false;
}

int64_t given(const Indices& indices) {
  int64_t count = 0;
  for (const std::optional<at::Tensor>& index : indices) count += index && index->defined() ? 1 : 0;
  return count;
}

void run_row(const char* name, torch::jit::Stack& stack) {
  RowKernel& kernel = row_kernel(name);
  kernel(kernel.op().handle, c10::DispatchKeySet(), &stack);
}

at::Tensor take(const at::Tensor& self, const Indices& indices) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", indices.size(), ")");
  torch::jit::Stack stack{self, integer_indices(self, indices)};
  run_row("index.Tensor", stack);
  return stack[0].toTensor();
}

at::Tensor& put_(at::Tensor& self, const Indices& indices, const at::Tensor& values, bool accumulate) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", indices.size(), ")");
  TORCH_CHECK(self.scalar_type() == values.scalar_type(),
              "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
              " for the destination and ", values.scalar_type(), " for the source.");
  const at::Tensor here = values.device() == self.device() || values.dim() == 0 ? values : values.to(self.device());
  // A mask alone needs no positions: its size never matters.
  const bool keep_mask = has_mask(indices) && given(indices) == 1;
  Indices on_device;
  if (keep_mask) {
    for (const std::optional<at::Tensor>& each : indices) {
      on_device.push_back(each && each->defined() ? std::optional(as_mask(each->to(self.device()))) : std::nullopt);
    }
  } else {
    on_device = integer_indices(self, indices);
  }
  torch::jit::Stack stack{self, on_device, here, accumulate};
  run_row("index_put_", stack);
  return self;
}

at::Tensor& index_put_impl_(at::Tensor& self, const Indices& indices, const at::Tensor& values, bool accumulate, bool) {
  return put_(self, indices, values, accumulate);
}

// ---- unique

struct Unique {
  at::Tensor values, inverse, counts;
};

/// `first` marks where a new value starts in `sorted` (flat); `order` is the original place of each element.
Unique collect(const at::Tensor& sorted, const at::Tensor& first, const std::optional<at::Tensor>& order,
               c10::IntArrayRef shape, bool inverse, bool counts) {
  const at::Tensor starts = positions(first).select(1, 0);
  Unique result;
  result.values = sorted.index_select(0, starts);
  const auto options = sorted.options().dtype(at::kLong);
  if (inverse) {
    const at::Tensor group = first.to(at::kLong).cumsum(0).sub(1);
    result.inverse = (order ? at::empty_like(group).scatter(0, *order, group) : group).reshape(shape);
  } else {
    result.inverse = at::empty({0}, options);
  }
  if (counts) {
    const at::Tensor ends = at::cat({starts.narrow(0, 1, starts.numel() - 1), at::full({1}, first.numel(), options)});
    result.counts = ends.sub(starts);
  } else {
    result.counts = at::empty({0}, options);
  }
  return result;
}

at::Tensor starts_of_runs(const at::Tensor& rows) {
  const int64_t n = rows.size(0);
  at::Tensor differs = rows.narrow(0, 1, n - 1).ne(rows.narrow(0, 0, n - 1));
  if (differs.dim() > 1) differs = differs.reshape({n - 1, -1}).any(1);
  return at::cat({at::ones({1}, differs.options()), differs});
}

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

ThreeTensors empty_unique(const at::Tensor& self) {
  const auto options = self.options().dtype(at::kLong);
  return {at::empty({0}, self.options()), at::empty(self.sizes(), options), at::empty({0}, options)};
}

ThreeTensors unique2(const at::Tensor& self, bool, bool inverse, bool counts) {
  if (self.numel() == 0) return empty_unique(self);
  auto [sorted, order] = self.reshape({-1}).sort(/*stable=*/true, 0, /*descending=*/false);
  const Unique u = collect(sorted, starts_of_runs(sorted), order, self.sizes(), inverse, counts);
  return {u.values, u.inverse, u.counts};
}

std::tuple<at::Tensor, at::Tensor> unique(const at::Tensor& self, bool sorted, bool inverse) {
  const auto [values, places, counts] = unique2(self, sorted, inverse, /*counts=*/false);
  return {values, places};
}

ThreeTensors unique_consecutive(const at::Tensor& self, bool inverse, bool counts, std::optional<int64_t> dim) {
  if (self.numel() == 0 && !dim) return empty_unique(self);
  if (!dim) {
    const at::Tensor flat = self.reshape({-1});
    const Unique u = collect(flat, starts_of_runs(flat), std::nullopt, self.sizes(), inverse, counts);
    return {u.values, u.inverse, u.counts};
  }
  const at::Tensor rows = self.movedim(*dim, 0).contiguous();
  TORCH_CHECK(rows.size(0) > 0 && rows.numel() > 0,
              "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
  const Unique u = collect(rows, starts_of_runs(rows), std::nullopt, {rows.size(0)}, inverse, counts);
  return {u.values.movedim(0, *dim), u.inverse, u.counts};
}

ThreeTensors unique_dim(const at::Tensor& self, int64_t dim, bool, bool inverse, bool counts) {
  const at::Tensor rows = self.movedim(dim, 0).contiguous();
  TORCH_CHECK(rows.size(0) > 0 && rows.numel() > 0,
              "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
  const at::Tensor flat = rows.reshape({rows.size(0), -1});
  // Lexicographic order: stable sorts from the last column to the first.
  at::Tensor order = at::arange(rows.size(0), rows.options().dtype(at::kLong));
  for (int64_t column = flat.size(1) - 1; column >= 0; --column) {
    const at::Tensor keys = flat.select(1, column).index_select(0, order);
    order = order.index_select(0, std::get<1>(keys.sort(/*stable=*/true, 0, /*descending=*/false)));
  }
  const at::Tensor sorted = rows.index_select(0, order);
  const Unique u = collect(sorted, starts_of_runs(sorted), order, {rows.size(0)}, inverse, counts);
  return {u.values.movedim(0, dim), u.inverse, u.counts};
}

// ---- counts

at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<c10::SymInt> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "repeats has to be Long or Int tensor");
  if (repeats.numel() == 0) return at::empty_like(repeats);
  TORCH_CHECK(repeats.ge(0).all().item<bool>(), "repeats can not be negative");
  const at::Tensor ends = repeats.cumsum(0);
  const int64_t total =
      output_size ? output_size->guard_int(__FILE__, __LINE__) : ends.select(0, repeats.numel() - 1).item<int64_t>();
  const at::Tensor places = at::arange(total, ends.options());
  return at::searchsorted(ends, places, /*out_int32=*/false, /*right=*/true).to(repeats.scalar_type());
}

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights, c10::SymInt minimum) {
  const int64_t least = minimum.guard_int(__FILE__, __LINE__);
  TORCH_CHECK(least >= 0, "minlength should be >= 0");
  TORCH_CHECK(self.dim() == 1 && at::isIntegralType(self.scalar_type(), false),
              "bincount only supports 1-d non-negative integral inputs.");
  const bool weighted = weights && weights->defined();
  TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->size(0) == self.size(0)),
              "weights should be 1-d and have the same length as input");
  const auto dtype = !weighted ? at::kLong : weights->scalar_type() == at::kFloat ? at::kFloat : at::kDouble;
  if (self.numel() == 0) return at::zeros({least}, self.options().dtype(at::kLong));
  auto [low, high] = self.to(at::kLong).aminmax();
  TORCH_CHECK(low.item<int64_t>() >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const int64_t bins = std::max(least, high.item<int64_t>() + 1);
  const auto options = self.options().dtype(dtype);
  const at::Tensor source = weighted ? weights->to(dtype) : at::ones(self.sizes(), options);
  return at::zeros({bins}, options).scatter_add(0, self.to(at::kLong), source);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", &nonzero_of);
  m.impl("nonzero.out", &nonzero_out);
  m.impl("masked_select", &select_masked);
  m.impl("masked_select.out", &masked_select_out);
  m.impl("equal", &equal);
  m.impl("index.Tensor", &take);
  m.impl("index_put_", &put_);
  m.impl("_index_put_impl_", &index_put_impl_);
  m.impl("_unique", &unique);
  m.impl("_unique2", &unique2);
  m.impl("unique_consecutive", &unique_consecutive);
  m.impl("unique_dim", &unique_dim);
  m.impl("repeat_interleave.Tensor", &repeat_interleave);
  m.impl("bincount", &bincount);
}

}  // namespace
}  // namespace tpu::aten
