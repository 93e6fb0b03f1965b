#include "graph/window.h"

#include <algorithm>

#include "base/error.h"

namespace tpu::graph {
namespace hlo = stablehlo;
namespace {

// ---- dtype reinterpretation ------------------------------------------------------------------------
// bitcast_convert refuses i1 and complex, so both go through integers of the same width.

DType unsigned_of_width(size_t bytes) {
  switch (bytes) {
    case 1:
      return DType::kU8;
    case 2:
      return DType::kU16;
    case 4:
      return DType::kU32;
    default:
      return DType::kU64;
  }
}

// Flat value of unsigned integers with the same bits; complex gives two words per element.
Value to_words(Value x) {
  const int64_t numel = x.type().numel();
  Value flat = hlo::reshape(x, {numel});
  if (x.dtype() == DType::kBool) return hlo::convert(flat, DType::kU8);
  if (is_complex(x.dtype())) {
    const Value re = hlo::reshape(hlo::real(flat), {numel, 1});
    const Value im = hlo::reshape(hlo::imag(flat), {numel, 1});
    const Value pairs[] = {re, im};
    flat = hlo::reshape(hlo::concatenate(pairs, 1), {2 * numel});
  }
  return hlo::bitcast_convert(flat, unsigned_of_width(byte_size(flat.dtype())));
}

Value resize_words(Value words, size_t bytes) {
  const size_t from = byte_size(words.dtype());
  if (from == bytes) return words;
  const int64_t numel = words.type().numel();
  const DType target = unsigned_of_width(bytes);
  if (from > bytes) {
    const Value split = hlo::bitcast_convert(words, target);  // adds a dim
    return hlo::reshape(split, {split.type().numel()});
  }
  const auto ratio = static_cast<int64_t>(bytes / from);
  return hlo::bitcast_convert(hlo::reshape(words, {numel / ratio, ratio}), target);
}

Value from_words(Value words, DType dtype) {
  if (dtype == DType::kBool) {
    const Value bytes = resize_words(words, 1);
    return hlo::compare(bytes, words.builder().constant(int64_t{0}, bytes.type()), hlo::Compare::kNe);
  }
  if (is_complex(dtype)) {
    const DType part = real_type(dtype);
    const Value parts = hlo::bitcast_convert(resize_words(words, byte_size(part)), part);
    const int64_t numel = parts.type().numel() / 2;
    const Value pairs = hlo::reshape(parts, {numel, 2});
    const Value re = hlo::reshape(hlo::slice(pairs, {0, 0}, {numel, 1}, {1, 1}), {numel});
    const Value im = hlo::reshape(hlo::slice(pairs, {0, 1}, {numel, 2}, {1, 1}), {numel});
    return hlo::complex(re, im);
  }
  return hlo::bitcast_convert(resize_words(words, byte_size(dtype)), dtype);
}

Value start_value(hlo::Builder& builder, int64_t value) { return builder.constant(value, {DType::kS64, {}}); }

}  // namespace

Value reinterpret_flat(Value x, DType dtype) {
  if (x.dtype() == dtype) return hlo::reshape(x, {x.type().numel()});
  const auto bytes = static_cast<int64_t>(x.type().bytes());
  const auto unit = static_cast<int64_t>(byte_size(dtype));
  Value words = to_words(x);
  if (bytes % unit != 0) {  // a storage whose tail is no whole element: the tail is out of reach
    words = resize_words(words, 1);
    words = hlo::slice(words, {0}, {bytes / unit * unit}, {1});
  }
  return from_words(words, dtype);
}

Value reinterpret_back(Value x, const TensorType& type, Value old) {
  if (x.dtype() == type.dtype) return hlo::reshape(x, type.dims);
  Value words = to_words(x);
  const auto bytes = static_cast<int64_t>(type.bytes());
  const auto reached = static_cast<int64_t>(x.type().bytes());
  if (reached < bytes) {
    const Value parts[] = {resize_words(words, 1), hlo::slice(resize_words(to_words(old), 1), {reached}, {bytes}, {1})};
    words = hlo::concatenate(parts, 0);
  }
  return hlo::reshape(from_words(words, type.dtype), type.dims);
}

// ---- analysis ----------------------------------------------------------------------------------------

Layout Layout::make(const TensorType& base, const Window& window, int64_t offset, bool force_gather) {
  Layout layout;
  layout.base_ = base;
  layout.window_ = window;
  layout.typed_base_ = base;
  // As bytes: a write must leave those around it that are neither 0 nor 1.
  const DType dtype = window.dtype == DType::kBool && base.dtype != DType::kBool ? DType::kU8 : window.dtype;
  if (base.dtype != dtype) {
    layout.typed_base_ = {dtype, {static_cast<int64_t>(base.bytes() / byte_size(dtype))}};
  }
  const int64_t numel = product(window.sizes);
  const bool same = base.dtype == window.dtype && offset == 0 && window.sizes == base.dims &&
                    (numel == 0 || window.strides == contiguous_strides(base.dims));
  if (same || numel == 0) {
    // An empty window reads nothing: the base's own elements are never touched.
    layout.kind_ = same ? Kind::kIdentity : Kind::kGather;
    layout.covers_base_ = same || base.numel() == 0;
    return layout;
  }
  layout.kind_ = Kind::kDigits;
  const auto fits = [&] { return layout.starts(offset).has_value(); };
  const bool mapped = (layout.map_to_dims(layout.typed_base_.dims) && fits()) || (layout.map_to_flat() && fits());
  if (force_gather || !mapped) {
    layout.digits_.clear();
    layout.kind_ = Kind::kGather;
    return layout;
  }
  layout.finish_digits();
  return layout;
}

bool SizeBounds::is_almost_known(int64_t size) const {
  constexpr int64_t kFew = 2;
  for (int64_t more = size + 1; more <= size + kFew && 2 * size > more; ++more) {
    if (is_known(more)) return true;
  }
  return false;
}

int64_t SizeBounds::raise(int64_t size, int64_t least) {
  const auto found =
      std::find_if(bounds_.begin(), bounds_.end(), [&](const auto& entry) { return entry.first == size; });
  if (found == bounds_.end()) {
    bounds_.emplace_back(size, least);
    return least;
  }
  stale_ |= least > found->second;
  found->second = std::max(found->second, least);
  return found->second;
}

std::optional<Layout> Layout::make_bounded(const TensorType& base, const Bounds* bounds, const Window& window,
                                           int64_t offset, uint64_t* changing, SizeBounds& sizes) {
  if (bounds == nullptr && *changing == 0) return make(base, window, offset, false);
  if (base.dtype != window.dtype || product(window.sizes) == 0) return std::nullopt;
  Layout layout;
  layout.kind_ = Kind::kDigits;
  layout.base_ = layout.typed_base_ = base;
  layout.window_ = window;
  // A step over a row of a changing size is no constant: rows are gathered then.
  const auto varies = [&](const Digit& digit) { return digit.changing && sizes.is_known(digit.step); };
  const auto fits = [&] {
    return layout.place_bounds(bounds) && layout.starts(offset).has_value() &&
           std::none_of(layout.digits_.begin(), layout.digits_.end(), varies);
  };
  const bool mapped = (layout.map_to_dims(base.dims) && fits()) || (layout.map_to_flat() && fits());
  for (size_t i = 0; i < window.sizes.size(); ++i) {
    if (window.sizes[i] <= 1) *changing &= ~(uint64_t{1} << i);
  }
  if (!mapped) {
    layout.digits_.clear();
    if (!layout.make_rows(bounds, changing, sizes) || !layout.starts(offset)) return std::nullopt;
    return layout;
  }
  for (Digit& digit : layout.digits_) {
    if (digit.axis < 0) continue;
    const uint64_t bit = uint64_t{1} << digit.axis;
    // All but a few of a changing number: most likely that changes as well. A wrong guess costs a mask or a compile.
    if (digit.changing && 2 * digit.count > digit.size) *changing |= bit;
    const bool of_base = digit.changing;
    digit.changing = (*changing & bit) != 0;
    if (digit.changing) digit.taken = sizes.raise(digit.count, of_base ? digit.stored : sizes.bound(digit.count));
  }
  for (size_t i = 0; i < window.sizes.size(); ++i) {
    if ((*changing >> i & 1) != 0) layout.window_.sizes[i] = sizes.raise(window.sizes[i], sizes.bound(window.sizes[i]));
  }
  if (bounds != nullptr) layout.base_.dims = layout.typed_base_.dims = bounds->stored;
  layout.finish_digits();
  return layout;
}

// The largest number of elements that stand together at the end of the base and of the window, none of them along a
// dim that changes.
int64_t Layout::common_row(uint64_t changing_base, uint64_t changing) const {
  std::vector<int64_t> runs{1};
  for (size_t i = base_.dims.size(); i-- > 0 && (changing_base >> i & 1) == 0;)
    runs.push_back(runs.back() * base_.dims[i]);
  int64_t row = 1, run = 1;
  for (size_t i = order_.size(); i-- > 0;) {
    const auto dim = static_cast<size_t>(order_[i]);
    if (window_.sizes[dim] == 1) continue;
    if (window_.strides[dim] != run || (changing >> dim & 1) != 0) break;
    run *= window_.sizes[dim];
    if (std::find(runs.begin(), runs.end(), run) != runs.end()) row = run;
  }
  return row;
}

// Whether the size of a dim of the window changes with a dim of the base: because the one consists of the other, and of
// more, or because it is a part of it and as long as such parts were elsewhere.
bool Layout::follows_base(size_t dim, uint64_t changing_base, const SizeBounds& sizes) const {
  const int64_t first = window_.strides[dim], end = first * window_.sizes[dim];
  if (window_.sizes[dim] <= 1 || first == 0) return false;
  const Dims strides = contiguous_strides(base_.dims);
  for (size_t i = 0; i < strides.size(); ++i) {
    const int64_t base_end = strides[i] * base_.dims[i];
    if ((changing_base >> i & 1) == 0 || end <= strides[i] || base_end <= first) continue;
    const bool contained = first <= strides[i] && base_end <= end;
    if (contained || sizes.is_known(window_.sizes[dim]) || sizes.is_almost_known(window_.sizes[dim])) return true;
  }
  return false;
}

bool Layout::make_rows(const Bounds* bounds, uint64_t* changing, SizeBounds& sizes) {
  kind_ = Kind::kRows;
  // The dims as they lie in memory: a transposed matrix has the rows of the other.
  order_ = iota(window_.sizes.size());
  const auto distance = [&](int64_t dim) {
    const auto at = static_cast<size_t>(dim);
    return window_.sizes[at] == 1 || window_.strides[at] == 0 ? INT64_MAX : window_.strides[at];
  };
  std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) { return distance(a) > distance(b); });
  const uint64_t changing_base = bounds != nullptr ? bounds->dims : 0;
  row_ = common_row(changing_base, *changing);
  int64_t run = 1;
  size_t outer_base = base_.dims.size(), outer = order_.size();
  while (run < row_) run *= base_.dims[--outer_base];
  run = 1;
  while (run < row_) run *= window_.sizes[static_cast<size_t>(order_[--outer])];
  for (size_t i = 0; i < outer; ++i) {
    const auto dim = static_cast<size_t>(order_[i]);
    const uint64_t bit = uint64_t{1} << dim;
    const int64_t stride = window_.sizes[dim] == 1 ? 0 : window_.strides[dim];
    if (stride % row_ != 0) return false;
    if (follows_base(dim, changing_base, sizes)) *changing |= bit;
    axes_.push_back({dim, stride / row_, (*changing & bit) != 0});
  }
  for (const Axis& axis : axes_) {
    const int64_t size = window_.sizes[axis.dim];
    if (axis.changing) window_.sizes[axis.dim] = sizes.raise(size, sizes.bound(size));
  }
  outer_base_ = Dims(base_.dims.begin(), base_.dims.begin() + static_cast<ptrdiff_t>(outer_base));
  if (bounds != nullptr) base_.dims = typed_base_.dims = bounds->stored;
  return true;
}

// Finds the digit of each changing dim of the base.
bool Layout::place_bounds(const Bounds* bounds) {
  for (Digit& digit : digits_) {
    digit.stored = digit.size;
    digit.taken = digit.count;
  }
  if (bounds == nullptr) return true;
  const Dims strides = contiguous_strides(base_.dims);
  for (size_t dim = 0; dim < base_.dims.size(); ++dim) {
    if ((bounds->dims >> dim & 1) == 0) continue;
    const auto digit = std::find_if(digits_.begin(), digits_.end(), [&](const Digit& d) {
      return d.stride == strides[dim] && d.size == base_.dims[dim];
    });
    if (digit == digits_.end()) return false;
    digit->stored = bounds->stored[dim];
    digit->changing = true;
  }
  return true;
}

bool Layout::writes_part() const {
  if (std::any_of(axes_.begin(), axes_.end(), [](const Axis& axis) { return axis.changing; })) return true;
  return std::any_of(digits_.begin(), digits_.end(),
                     [](const Digit& d) { return !d.full() && d.changing && d.axis >= 0; });
}

void Layout::append_key(std::vector<uint64_t>& key) const {
  const auto add = [&](int64_t word) { key.push_back(static_cast<uint64_t>(word)); };
  const auto add_all = [&](const Dims& dims) {
    add(static_cast<int64_t>(dims.size()));
    for (int64_t dim : dims) add(dim);
  };
  add(static_cast<int64_t>(kind_) | static_cast<int64_t>(window_.dtype) << 8 | static_cast<int64_t>(base_.dtype) << 16 |
      int64_t{covers_base_} << 24);
  add_all(base_.dims);
  add_all(window_.sizes);
  if (kind_ == Kind::kGather) add_all(window_.strides);
  add(row_);
  add(static_cast<int64_t>(outer_base_.size()));
  add_all(order_);
  for (const Axis& axis : axes_) add(axis.changing);
  add(static_cast<int64_t>(digits_.size()));
  for (const Digit& digit : digits_) {
    add(digit.stored);
    add(digit.taken);
    add(digit.step | int64_t{digit.axis + 1} << 40 | int64_t{digit.full()} << 60 | int64_t{digit.changing} << 61);
  }
}

// Each window dim lies along one dim of the base, perhaps with a step, or several share it, as heads and their
// features.
bool Layout::map_to_dims(const Dims& dims) {
  digits_.clear();
  const Dims strides = contiguous_strides(dims);
  const std::vector<size_t> axes = moving_axes();
  size_t placed = 0;
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    const int64_t unit = strides[dim], extent = unit * dims[dim];
    std::vector<size_t> within;
    std::copy_if(axes.begin(), axes.end(), std::back_inserter(within),
                 [&](size_t axis) { return window_.strides[axis] >= unit && window_.strides[axis] < extent; });
    placed += within.size();
    if (within.size() > 1) {
      if (!map_to_radix(within, extent, unit)) return false;
      continue;
    }
    Digit digit{dims[dim], unit, 1, 1, -1};
    if (!within.empty()) {
      digit.axis = static_cast<int>(within[0]);
      digit.count = window_.sizes[within[0]];
      digit.step = window_.strides[within[0]] / unit;
      if (window_.strides[within[0]] % unit != 0 || digit.extent() > digit.size) return false;
    }
    digits_.push_back(digit);
  }
  return placed == axes.size();
}

// The strides of these dims of the window, each dividing the one before, are the radix of what is between two strides
// of the base.
bool Layout::map_to_radix(std::span<const size_t> axes, int64_t extent, int64_t unit) {
  for (size_t axis : axes) {
    const int64_t stride = window_.strides[axis];
    if (extent % stride != 0 || window_.sizes[axis] > extent / stride) return false;
    digits_.push_back({extent / stride, stride, window_.sizes[axis], 1, static_cast<int>(axis)});
    extent = stride;
  }
  if (extent > unit) digits_.push_back({extent / unit, unit, 1, 1, -1});
  return true;
}

// The dims of the window whose elements are apart, by their strides, the largest first.
std::vector<size_t> Layout::moving_axes() const {
  std::vector<size_t> axes;
  for (size_t i = 0; i < window_.sizes.size(); ++i) {
    if (window_.sizes[i] != 1 && window_.strides[i] != 0) axes.push_back(i);
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [&](size_t a, size_t b) { return window_.strides[a] > window_.strides[b]; });
  return axes;
}

// The base as one dim.
bool Layout::map_to_flat() {
  digits_.clear();
  return map_to_radix(moving_axes(), typed_base_.numel(), 1);
}

void Layout::finish_digits() {
  for (Digit& digit : digits_) {
    if (digit.stored == 0) digit.stored = digit.size;
    if (digit.taken == 0) digit.taken = digit.count;
  }
  // Single positions next to each other are one digit: x[3] of [8, 4, 5] slices one of 8, not three dims.
  std::vector<Digit> merged;
  for (const Digit& digit : digits_) {
    const bool both_single =
        !merged.empty() && merged.back().axis < 0 && digit.axis < 0 && !digit.changing && !merged.back().changing;
    if (both_single) {
      merged.back().size *= digit.size;
      merged.back().stored *= digit.stored;
      merged.back().stride = digit.stride;
    } else if (digit.size > 1 || digit.axis >= 0) {
      merged.push_back(digit);
    }
  }
  digits_ = std::move(merged);
  const bool broadcast = [&] {
    for (size_t i = 0; i < window_.sizes.size(); ++i) {
      if (window_.strides[i] == 0 && window_.sizes[i] > 1) return true;
    }
    return false;
  }();
  covers_base_ = !broadcast && typed_base_.bytes() == base_.bytes() &&
                 std::all_of(digits_.begin(), digits_.end(), [](const Digit& d) { return d.full(); });
}

size_t Layout::start_count() const {
  if (kind_ == Kind::kIdentity || product(window_.sizes) == 0) return 0;
  if (kind_ == Kind::kGather) return 1;
  if (kind_ == Kind::kRows) return 1 + axes_.size() + outer_base_.size();
  return static_cast<size_t>(std::count_if(digits_.begin(), digits_.end(), [](const Digit& d) { return !d.full(); }));
}

std::optional<Dims> Layout::starts(int64_t offset) const {
  Dims result;
  if (kind_ == Kind::kIdentity || product(window_.sizes) == 0) {
    return result;
  }
  if (kind_ == Kind::kGather) {
    result.push_back(offset);
    return result;
  }
  if (kind_ == Kind::kRows) {
    if (offset % row_ != 0) return std::nullopt;
    result.push_back(offset / row_);
    for (const Axis& axis : axes_) result.push_back(axis.stride);
    for (int64_t size : outer_base_) result.push_back(size);
    return result;
  }
  int64_t rest = offset;
  for (const Digit& digit : digits_) {
    const int64_t start = rest / digit.stride;
    rest -= start * digit.stride;
    if (start + digit.extent() > digit.size) return std::nullopt;
    if (!digit.full()) result.push_back(start);
  }
  if (rest != 0) return std::nullopt;
  return result;
}

// ---- programs ----------------------------------------------------------------------------------------

Value Layout::to_digits(Value base) const {
  Value typed = base_.dtype == typed_base_.dtype ? base : reinterpret_flat(base, typed_base_.dtype);
  Dims dims;
  for (const Digit& digit : digits_) dims.push_back(digit.stored);
  return hlo::reshape(typed, dims);
}

Value Layout::from_digits(Value digits, Value old) const {
  if (base_.dtype == typed_base_.dtype) return hlo::reshape(digits, base_.dims);
  return reinterpret_back(hlo::reshape(digits, typed_base_.dims), base_, old);
}

std::vector<Value> Layout::full_starts(hlo::Builder& builder, std::span<const Value> starts) const {
  std::vector<Value> all;
  size_t next = 0;
  for (const Digit& digit : digits_) all.push_back(digit.full() ? start_value(builder, 0) : starts[next++]);
  return all;
}

// The digits of a base, with room behind each for what is taken: a slice that reached over the end would be moved.
Value Layout::with_room(Value digits) const {
  Dims none(digits_.size(), 0), high(digits_.size(), 0);
  for (size_t i = 0; i < digits_.size(); ++i) {
    const Digit& digit = digits_[i];
    if (digit.full()) {
      high[i] = std::max<int64_t>(0, digit.taken - digit.stored);
    } else if (digit.changing) {
      high[i] = digit.taken_extent() - 1;
    }
  }
  if (high == none) return digits;
  return hlo::pad(digits, digits.builder().constant(0.0, {typed_base_.dtype, {}}), none, high, none);
}

// Element numbers of the window within the flat base, shaped [numel, 1].
Value Layout::gather_indices(hlo::Builder& builder, std::span<const Value> starts) const {
  const TensorType type{DType::kS64, window_.sizes};
  Value index = hlo::broadcast_in_dim(starts[0], window_.sizes, {});
  for (size_t i = 0; i < window_.sizes.size(); ++i) {
    if (window_.sizes[i] == 1 || window_.strides[i] == 0) continue;
    const Value along = hlo::iota(builder, type, static_cast<int64_t>(i));
    index = hlo::add(index, hlo::multiply(along, builder.constant(window_.strides[i], type)));
  }
  return hlo::reshape(index, {product(window_.sizes), 1});
}

Value Layout::row_numbers(hlo::Builder& builder, std::span<const Value> starts) const {
  Dims sizes;
  for (const Axis& axis : axes_) sizes.push_back(window_.sizes[axis.dim]);
  const TensorType type{DType::kS64, sizes};
  const auto spread = [&](Value number) { return hlo::broadcast_in_dim(number, sizes, {}); };
  Value number = spread(starts[0]);
  for (size_t i = 0; i < axes_.size(); ++i) {
    number = hlo::add(number, hlo::multiply(hlo::iota(builder, type, static_cast<int64_t>(i)), spread(starts[1 + i])));
  }
  // From the row's number in an array of the present sizes to its place in the stored one.
  Value place = builder.constant(int64_t{0}, type);
  int64_t stride = 1;
  for (size_t i = outer_base_.size(); i-- > 0;) {
    const Value size = spread(starts[1 + axes_.size() + i]);
    const Value index = i > 0 ? hlo::remainder(number, size) : number;
    place = hlo::add(place, hlo::multiply(index, builder.constant(stride, type)));
    if (i > 0) number = hlo::divide(number, size);
    stride *= base_.dims[i];
  }
  return place;
}

Value Layout::read_rows(Value base, std::span<const Value> starts) const {
  const Value places = row_numbers(base.builder(), starts);
  const int64_t count = places.type().numel();
  const hlo::GatherDims dims{{1}, {0}, {}, {}, {0}, 1};
  const Value rows = hlo::reshape(base, {base.type().numel() / row_, row_});
  const Value taken = hlo::gather(rows, hlo::reshape(places, {count, 1}), dims, {1, row_});
  Dims sizes, place_of(order_.size(), 0);
  for (size_t i = 0; i < order_.size(); ++i) {
    sizes.push_back(window_.sizes[static_cast<size_t>(order_[i])]);
    place_of[static_cast<size_t>(order_[i])] = static_cast<int64_t>(i);
  }
  return hlo::transpose(hlo::reshape(taken, sizes), place_of);
}

Value Layout::write_rows(hlo::Builder& builder, Value base, Value value, std::span<const Value> starts,
                         std::span<const Value> present) const {
  Value places = row_numbers(builder, starts);
  const int64_t count = places.type().numel(), rows = base.type().numel() / row_;
  // Behind the present end: a place that there is not, to which a scatter writes nothing.
  const Value nowhere = builder.constant(rows, places.type());
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (!axes_[i].changing) continue;
    const Value end = hlo::broadcast_in_dim(present[axes_[i].dim], places.dims(), {});
    const Value index = hlo::iota(builder, places.type(), static_cast<int64_t>(i));
    places = hlo::select(hlo::compare(index, end, hlo::Compare::kLt), places, nowhere);
  }
  const hlo::ScatterDims dims{{1}, {0}, {}, {}, {0}, 1};
  const auto replace = [](std::span<const Value> a) { return std::vector<Value>{a[1]}; };
  const Value updated = hlo::scatter(hlo::reshape(base, {rows, row_}), hlo::reshape(places, {count, 1}),
                                     hlo::reshape(hlo::transpose(value, order_), {count, row_}), dims, replace);
  return hlo::reshape(updated, base_.dims);
}

Value Layout::read(Value base, std::span<const Value> starts) const {
  hlo::Builder& builder = base.builder();
  if (kind_ == Kind::kIdentity) return base;
  const int64_t numel = product(window_.sizes);
  if (numel == 0) return builder.constant(0.0, {window_.dtype, window_.sizes});
  if (kind_ == Kind::kRows) return read_rows(base, starts);
  if (kind_ == Kind::kGather) {
    const Value flat = reinterpret_flat(base, typed_base_.dtype);
    const hlo::GatherDims dims{{}, {0}, {}, {}, {0}, 1};
    const Value taken = hlo::gather(flat, gather_indices(builder, starts), dims, {1});
    return hlo::reshape(hlo::convert(taken, window_.dtype), window_.sizes);
  }
  Value value = to_digits(base);
  if (!std::all_of(digits_.begin(), digits_.end(), [](const Digit& d) { return d.full() && d.taken == d.stored; })) {
    value = with_room(value);
    Dims extents, counts, steps, zeros;
    for (const Digit& digit : digits_) {
      extents.push_back(digit.taken_extent());
      steps.push_back(digit.step);
      zeros.push_back(0);
    }
    value = hlo::dynamic_slice(value, full_starts(builder, starts), extents);
    if (std::any_of(digits_.begin(), digits_.end(), [](const Digit& d) { return d.step > 1; })) {
      value = hlo::slice(value, zeros, extents, steps);
    }
  }
  value = hlo::convert(value, window_.dtype);
  // Drop single positions, order the rest as the window's dims, then add broadcast and size-1 dims.
  Dims kept_sizes, axes_of_kept;
  for (const Digit& digit : digits_) {
    if (digit.axis < 0) continue;
    kept_sizes.push_back(digit.taken);
    axes_of_kept.push_back(digit.axis);
  }
  value = hlo::reshape(value, kept_sizes);
  Dims order = iota(axes_of_kept.size());
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return axes_of_kept[static_cast<size_t>(a)] < axes_of_kept[static_cast<size_t>(b)];
  });
  value = hlo::transpose(value, order);
  std::sort(axes_of_kept.begin(), axes_of_kept.end());
  if (product(value.dims()) == numel) return hlo::reshape(value, window_.sizes);
  return hlo::broadcast_in_dim(value, window_.sizes, axes_of_kept);
}

// Cuts off or adds what the stored array has less or more.
Value Layout::to_stored(Value digits) const {
  Dims stored, none(digits_.size(), 0), ones(digits_.size(), 1), high(digits_.size(), 0);
  for (size_t i = 0; i < digits_.size(); ++i) {
    stored.push_back(digits_[i].stored);
    high[i] = std::max<int64_t>(0, stored[i] - digits.dim(i));
  }
  if (digits.dims() == stored) return digits;
  if (high != none) {
    digits = hlo::pad(digits, digits.builder().constant(0.0, {typed_base_.dtype, {}}), none, high, none);
  }
  return hlo::slice(digits, none, stored, ones);
}

// i1 of `sizes`, by digit: which elements of a written window there are.
Value Layout::written_part(hlo::Builder& builder, const Dims& sizes, std::span<const Value> present) const {
  Value mask = builder.constant(int64_t{1}, {DType::kBool, sizes});
  for (size_t i = 0; i < digits_.size(); ++i) {
    const Digit& digit = digits_[i];
    if (digit.full() || !digit.changing || digit.axis < 0) continue;
    const Value count = hlo::broadcast_in_dim(present[static_cast<size_t>(digit.axis)], sizes, {});
    const Value position = hlo::iota(builder, {DType::kS64, sizes}, static_cast<int64_t>(i));
    mask = hlo::bit_and(mask, hlo::compare(position, count, hlo::Compare::kLt));
  }
  return mask;
}

Value Layout::write(hlo::Builder& builder, Value base, Value value, std::span<const Value> starts,
                    std::span<const Value> present) const {
  if (kind_ == Kind::kIdentity) return value;
  const int64_t numel = product(window_.sizes);
  if (numel == 0) {
    if (base.defined()) return base;
    return builder.constant(0.0, base_);
  }
  value = hlo::convert(value, typed_base_.dtype);
  if (kind_ == Kind::kRows) return write_rows(builder, base, value, starts, present);
  if (kind_ == Kind::kGather) {
    const Value flat = reinterpret_flat(base, typed_base_.dtype);
    const hlo::ScatterDims dims{{}, {0}, {}, {}, {0}, 1};
    const auto replace = [](std::span<const Value> a) { return std::vector<Value>{a[1]}; };
    const Value updated =
        hlo::scatter(flat, gather_indices(builder, starts), hlo::reshape(value, {numel}), dims, replace);
    return reinterpret_back(updated, base_, base);
  }
  Dims kept_axes, counts, extents, interior;
  for (const Digit& digit : digits_) {
    if (digit.axis >= 0) kept_axes.push_back(digit.axis);
    counts.push_back(digit.taken);
    extents.push_back(digit.taken_extent());
    interior.push_back(digit.step - 1);
  }
  // From the window's order back to the digits' order.
  Dims sorted = kept_axes;
  std::sort(sorted.begin(), sorted.end());
  Dims kept_sizes, order;
  for (int64_t axis : sorted) kept_sizes.push_back(window_.sizes[static_cast<size_t>(axis)]);
  for (int64_t axis : kept_axes) order.push_back(std::find(sorted.begin(), sorted.end(), axis) - sorted.begin());
  value = hlo::reshape(hlo::transpose(hlo::reshape(value, kept_sizes), order), counts);
  if (covers_base_) return from_digits(to_stored(value), base);

  const Value digits = with_room(to_digits(base));
  const std::vector<Value> at = full_starts(builder, starts);
  const auto put = [&](Value part) {
    return from_digits(to_stored(hlo::dynamic_update_slice(digits, part, at)), base);
  };
  if (extents == counts && !writes_part()) return put(value);
  // Between steps, and behind the present end, what was there is kept.
  const Dims none(counts.size(), 0);
  const Value old = hlo::dynamic_slice(digits, at, extents);
  const Value zero = builder.constant(0.0, {typed_base_.dtype, {}});
  const Value spread = hlo::pad(value, zero, none, none, interior);
  const Value mask = hlo::pad(written_part(builder, counts, present), builder.constant(int64_t{0}, {DType::kBool, {}}),
                              none, none, interior);
  return put(hlo::select(mask, spread, old));
}

}  // namespace tpu::graph
