// Operators whose result size depends on data. Each waits for the device once, to learn the size; the rest
// are ordinary nodes whose capacity is a power of two, so that the number of programs grows like the
// logarithm of the size. Results are the leading part of what was computed.

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "aten/dispatch.h"
#include "aten/fallback.h"
#include "aten/internal_ops.h"
#include "aten/registration.h"

namespace tpu::aten {
namespace {

int64_t capacity_for(int64_t count) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))); }

at::Tensor as_mask(const at::Tensor& x) { return x.scalar_type() == at::kBool ? x : x.ne(0); }

/// Where a mask is true.
struct Positions {
  at::Tensor padded;  // int64 [capacity, rank]: `count` positions in row-major order, then the first one again
  at::Tensor total;   // the count, on the device
  int64_t count = 0;

  at::Tensor exact() const { return padded.narrow(0, 0, count); }
};

/// Waits once for all masks together.
std::vector<Positions> positions(at::ArrayRef<at::Tensor> masks) {
  std::vector<at::Tensor> totals;
  for (const at::Tensor& mask : masks) totals.push_back(mask.sum());
  std::vector<Positions> result;
  if (masks.empty()) return result;
  const at::Tensor counts = totals.size() == 1 ? totals[0].cpu().reshape({1}) : at::stack(totals).cpu();
  for (size_t i = 0; i < masks.size(); ++i) {
    const int64_t count = counts.const_data_ptr<int64_t>()[i];
    const auto options = masks[i].options().dtype(at::kLong);
    result.push_back(
        {count == 0 ? at::empty({0, masks[i].dim()}, options) : nonzero_padded(masks[i], capacity_for(count)),
         totals[i], count});
  }
  return result;
}

Positions positions(const at::Tensor& mask) { return positions(at::ArrayRef<at::Tensor>(mask))[0]; }

/// [count, rank], stored column by column as on the CPU and CUDA: a column is an index tensor of its own.
at::Tensor nonzero_of(const at::Tensor& self) {
  const at::Tensor mask = as_mask(self);
  const auto count = mask.sum().item<int64_t>();
  const auto options = mask.options().dtype(at::kLong);
  const at::Tensor columns = count == 0 ? at::empty({0}, options) : nonzero_columns(mask, capacity_for(count));
  return columns.as_strided({count, mask.dim()}, {1, count});
}

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type ", out.scalar_type());
  const at::Tensor result = nonzero_of(self);
  if (out.sizes() != result.sizes()) {
    resize_output(out, result.sizes());
    out.as_strided_(result.sizes(), result.strides());
  }
  return out.copy_(result);
}

at::Tensor select_masked(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool || mask.scalar_type() == at::kByte,
              "masked_select: expected BoolTensor or ByteTensor for mask");
  const auto expanded = at::broadcast_tensors({self, mask});
  const Positions found = positions(as_mask(expanded[1]).reshape({-1}));
  return expanded[0].reshape({-1}).index_select(0, found.padded.reshape({-1})).narrow(0, 0, found.count);
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

bool is_mask(const at::Tensor& index) { return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte; }

/// The masks among the indices, on the device of `self`. IndexError if one does not fit.
std::vector<at::Tensor> masks_of(const at::Tensor& self, const Indices& indices) {
  std::vector<at::Tensor> masks;
  int64_t axis = 0;
  for (const std::optional<at::Tensor>& index : indices) {
    if (!index || !index->defined() || !is_mask(*index)) {
      ++axis;
      continue;
    }
    for (int64_t j = 0; j < index->dim(); ++j) {
      TORCH_CHECK_INDEX(axis + j < self.dim() && index->size(j) == self.size(axis + j), "The shape of the mask ",
                        index->sizes(), " at index ", j, " does not match the shape of the indexed tensor ",
                        self.sizes(), " at index ", axis + j);
    }
    axis += index->dim();
    masks.push_back(as_mask(index->to(self.device())));
  }
  return masks;
}

/// Indices with positions in place of masks. A count means that they are padded: of what they pick, so much counts.
struct Picked {
  Indices indices;
  std::optional<int64_t> count;
};

/// Padding is of use where one mask says how many elements are picked: beside it, numbers only.
bool may_pad(const Indices& indices, const std::vector<Positions>& found) {
  if (found.size() != 1 || found[0].count == 0) return false;
  for (const std::optional<at::Tensor>& index : indices) {
    if (!index || !index->defined()) continue;
    if (is_mask(*index) ? index->dim() == 0 : index->dim() > 1 || index->numel() != 1) return false;
  }
  return true;
}

Picked integer_indices(const at::Tensor& self, const Indices& indices, bool pad) {
  const std::vector<Positions> found = positions(masks_of(self, indices));
  Picked picked;
  if (pad && may_pad(indices, found)) picked.count = found[0].count;
  size_t next = 0;
  for (const std::optional<at::Tensor>& index : indices) {
    if (!index || !index->defined()) {
      picked.indices.push_back(std::nullopt);
      continue;
    }
    if (!is_mask(*index)) {
      TORCH_CHECK_INDEX(index->scalar_type() == at::kLong || index->scalar_type() == at::kInt,
                        "tensors used as indices must be long, int, byte or bool tensors");
      picked.indices.push_back(index->device() == self.device() ? *index : index->to(self.device()));
      continue;
    }
    const Positions& here = found[next++];
    const at::Tensor where = picked.count ? here.padded : here.exact();
    // A 0-d mask keeps everything or nothing, along a new leading dim; PyTorch's front end adds that dim.
    if (index->dim() == 0) picked.indices.push_back(where.select(1, 0));
    for (int64_t j = 0; j < index->dim(); ++j) picked.indices.push_back(where.select(1, j));
  }
  return picked;
}

/// Whether the dim that index tensors make comes first in the result: they begin there, or have a gap between them.
bool picks_leading(const Indices& indices) {
  int64_t runs = 0;
  bool inside = false;
  for (const std::optional<at::Tensor>& index : indices) {
    const bool given = index && index->defined();
    runs += given && !inside ? 1 : 0;
    inside = given;
  }
  return runs > 1 || (indices.size() > 0 && indices.get(0) && indices.get(0)->defined());
}

bool has_mask(const Indices& indices) {
  for (const std::optional<at::Tensor>& index : indices) {
    if (index && index->defined() && is_mask(*index)) return true;
  }
  return false;
}

bool has_only_masks(const Indices& indices) {
  for (const std::optional<at::Tensor>& index : indices) {
    if (index && index->defined() && !is_mask(*index)) return false;
  }
  return true;
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
  const Picked picked = integer_indices(self, indices, picks_leading(indices));
  torch::jit::Stack stack{self, picked.indices};
  run_row("index.Tensor", stack);
  return picked.count ? stack[0].toTensor().narrow(0, 0, *picked.count) : stack[0].toTensor();
}

torch::jit::Stack write_at(const char* row, const at::Tensor& self, const Indices& indices, const at::Tensor& values,
                           bool accumulate) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", indices.size(), ")");
  // A number of the host's for all that masks select is a masked_fill to PyTorch, which converts it.
  const bool fills = !accumulate && values.numel() == 1 && values.device().is_cpu() && has_only_masks(indices);
  const at::Tensor typed = fills ? values.to(self.scalar_type()) : values;
  TORCH_CHECK(self.scalar_type() == typed.scalar_type(),
              "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
              " for the destination and ", typed.scalar_type(), " for the source.");
  const at::Tensor here = typed.device() == self.device() || typed.dim() == 0 ? typed : typed.to(self.device());
  // A mask alone needs no positions: its size never matters.
  const bool keep_mask = has_mask(indices) && given(indices) == 1;
  Indices on_device;
  if (keep_mask) {
    const std::vector<at::Tensor> masks = masks_of(self, indices);
    for (const std::optional<at::Tensor>& each : indices) {
      on_device.push_back(each && each->defined() ? std::optional(masks[0]) : std::nullopt);
    }
  } else {
    // What is padded is written more than once, which is nothing new if it is always the same number.
    on_device = integer_indices(self, indices, here.numel() == 1 && !accumulate).indices;
  }
  torch::jit::Stack stack{self, on_device, here, accumulate};
  run_row(row, stack);
  return stack;
}

at::Tensor& put_(at::Tensor& self, const Indices& indices, const at::Tensor& values, bool accumulate) {
  write_at("index_put_", self, indices, values, accumulate);
  return self;
}

at::Tensor put(const at::Tensor& self, const Indices& indices, const at::Tensor& values, bool accumulate) {
  return write_at("index_put", self, indices, values, accumulate)[0].toTensor();
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
  const Positions found = positions(first);
  const at::Tensor starts = found.padded.select(1, 0);
  Unique result;
  result.values = sorted.index_select(0, starts).narrow(0, 0, found.count);
  const auto options = sorted.options().dtype(at::kLong);
  if (inverse) {
    const at::Tensor group = first.to(at::kLong).cumsum(0).sub(1);
    result.inverse = (order ? at::empty_like(group).scatter(0, *order, group) : group).reshape(shape);
  } else {
    result.inverse = at::empty({0}, options);
  }
  if (counts) {
    const at::Tensor end = at::full({1}, first.numel(), options);
    const at::Tensor padded = at::where(at::arange(starts.numel(), options).lt(found.total), starts, end);
    const at::Tensor ends = at::cat({padded.narrow(0, 1, starts.numel() - 1), end});
    result.counts = ends.sub(padded).narrow(0, 0, found.count);
  } else {
    result.counts = at::empty({0}, options);
  }
  return result;
}

at::Tensor starts_of_runs(const at::Tensor& rows) {
  const int64_t n = rows.size(0);
  at::Tensor differs = rows.narrow(0, 1, n - 1).ne(rows.narrow(0, 0, n - 1));
  if (differs.dim() > 1) differs = differs.reshape({n - 1, rows.numel() / n}).any(1);
  return at::cat({at::ones({1}, differs.options()), differs});
}

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

ThreeTensors empty_unique(const at::Tensor& self) {
  const auto options = self.options().dtype(at::kLong);
  return {at::empty({0}, self.options()), at::empty(self.sizes(), options), at::empty({0}, options)};
}

/// Of nothing there is a result if the dim of the rows is the one that is empty.
ThreeTensors unique_of_no_rows(const at::Tensor& self, int64_t dim) {
  const auto empty_dims = std::count(self.sizes().begin(), self.sizes().end(), 0);
  TORCH_CHECK(self.size(dim) == 0,
              "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
  TORCH_CHECK(empty_dims == 1, "Number of zero sized dimensions is more than one, so unique cannot be applied");
  const auto options = self.options().dtype(at::kLong);
  return {at::empty(self.sizes(), self.options()), at::empty({0}, options), at::empty({0}, options)};
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
  if (self.numel() == 0) return unique_of_no_rows(self, *dim);
  const at::Tensor rows = self.movedim(*dim, 0).contiguous();
  const Unique u = collect(rows, starts_of_runs(rows), std::nullopt, {rows.size(0)}, inverse, counts);
  return {u.values.movedim(0, *dim), u.inverse, u.counts};
}

ThreeTensors unique_dim(const at::Tensor& self, int64_t dim, bool, bool inverse, bool counts) {
  if (self.numel() == 0) return unique_of_no_rows(self, dim);
  const at::Tensor rows = self.movedim(dim, 0).contiguous();
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

/// Values of two int64 tensors of one element, for one wait.
std::pair<int64_t, int64_t> two_numbers(const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor both = at::stack({first, second}).cpu();
  return {both.const_data_ptr<int64_t>()[0], both.const_data_ptr<int64_t>()[1]};
}

at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<c10::SymInt> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "repeats has to be Long or Int tensor");
  if (repeats.numel() == 0) return at::empty_like(repeats);
  if (output_size) {
    torch::jit::Stack stack{repeats, output_size->guard_int(__FILE__, __LINE__)};
    run_row("repeat_interleave.Tensor", stack);
    return stack[0].toTensor();
  }
  const at::Tensor ends = repeats.cumsum(0);
  const auto [least, total] = two_numbers(repeats.min().to(at::kLong), ends.select(0, repeats.numel() - 1));
  TORCH_CHECK(least >= 0, "repeats can not be negative");
  const at::Tensor places = at::arange(capacity_for(total), ends.options());
  const at::Tensor runs = at::searchsorted(ends, places, /*out_int32=*/false, /*right=*/true);
  return runs.to(repeats.scalar_type()).narrow(0, 0, total);
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
  const auto [lowest, highest] = self.to(at::kLong).aminmax();
  const auto [low, high] = two_numbers(lowest, highest);
  TORCH_CHECK(low >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const int64_t bins = std::max(least, high + 1);
  const auto options = self.options().dtype(dtype);
  const at::Tensor source = weighted ? weights->to(dtype) : at::ones(self.sizes(), options);
  return at::zeros({capacity_for(bins)}, options).scatter_add(0, self.to(at::kLong), source).narrow(0, 0, bins);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", &nonzero_of);
  m.impl("nonzero.out", &nonzero_out);
  m.impl("masked_select", &select_masked);
  m.impl("masked_select.out", &masked_select_out);
  m.impl("equal", &equal);
  m.impl("index.Tensor", &take);
  m.impl("index_put", &put);
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
