#pragma once
// How a tensor (sizes, strides, offset in elements) lies over the base array of its storage, and the
// StableHLO that reads or writes it there. Only sizes and strides are static; where a window starts is a
// run-time operand, so indexing in a loop never compiles again.
//
// Three layouts, tried in this order:
//   identity  the window is the base
//   digits    the base, seen as a row-major array of some dims ("digits"), is sliced, transposed and
//             broadcast; covers slices, transposes, head splits, steps, expands
//   gather    anything else: element numbers are computed and gathered from the flat base
//   rows      the same over a base that is stored in a larger array: rows of elements that stand together in both are
//             gathered, with sizes and strides of the present call as operands

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/tensor_type.h"
#include "stablehlo/ops.h"

namespace tpu::graph {

using stablehlo::Value;

struct Window {
  DType dtype = DType::kF32;  // of the tensor; the base may have another (view(dtype))
  Dims sizes;
  Dims strides;
};

/// The bounds that the changing sizes of one call have: dims of equal size have to meet.
class SizeBounds {
 public:
  /// `known` gives the bounds of sizes that changing dims have elsewhere, and 0 for others: a window that splits a dim
  /// cannot tell which part changes.
  explicit SizeBounds(int64_t (*known)(int64_t) = nullptr) : known_(known) {}
  bool is_known(int64_t size) const { return known_ != nullptr && known_(size) != 0; }
  /// Whether `size` is a changing one without a few of its elements, as of x[:, :-1].
  bool is_almost_known(int64_t size) const;
  /// What a changing dim of `size` is stored in.
  int64_t bound(int64_t size) const { return is_known(size) ? known_(size) : bound_of(size); }
  /// The bound of `size`, at least `least`; dims of that size asked for before may have got less.
  int64_t raise(int64_t size, int64_t least);
  /// Whether some did, and has to be asked for again.
  bool take_stale() { return std::exchange(stale_, false); }

 private:
  int64_t (*known_)(int64_t);
  std::vector<std::pair<int64_t, int64_t>> bounds_;
  bool stale_ = false;
};

class Layout {
 public:
  enum class Kind : uint8_t { kIdentity, kDigits, kGather, kRows };

  /// Layout for `window` at `offset` over `base`. The result depends on the offset only through whether it
  /// fits (see starts); `force_gather` skips to the general form.
  static Layout make(const TensorType& base, const Window& window, int64_t offset, bool force_gather);

  /// The same over a base that is stored in a larger array: what read() and write() see has the stored sizes, so that
  /// it does not depend on the present ones. `changing` has a bit per dim of the window whose size may be another in
  /// the next call; it gets the bits of those dims that run along a changing dim of the base, or are a multiple of it,
  /// as where a view merges it with another one. nullopt where the elements are read as another dtype.
  static std::optional<Layout> make_bounded(const TensorType& base, const Bounds* bounds, const Window& window,
                                            int64_t offset, uint64_t* changing, SizeBounds& sizes);
  /// What read() gives: the bounds of changing dims.
  const Dims& read_sizes() const { return window_.sizes; }
  /// Whether write() has to be told how much of the window there is (`counts`).
  bool writes_part() const;
  /// Everything that read() and write() depend on, as words.
  void append_key(std::vector<uint64_t>& key) const;

  Kind kind() const { return kind_; }
  /// Number of run-time start operands: one per sliced digit, one for a gather.
  size_t start_count() const;
  /// Start operands for `offset`; nullopt when this layout does not fit there (use force_gather).
  std::optional<Dims> starts(int64_t offset) const;
  /// True when writing the window replaces every element of the base.
  bool covers_base() const { return covers_base_; }

  /// The window's elements as a value of the window's sizes and dtype. `starts` are 0-d values.
  Value read(Value base, std::span<const Value> starts) const;
  /// The base with the window's elements replaced by `value` (window's sizes and dtype). `base` may be
  /// undefined when the layout covers it.
  /// `counts`, where writes_part(): 0-d values, the present sizes of the window's dims; only those of changing dims are
  /// looked at.
  Value write(stablehlo::Builder& builder, Value base, Value value, std::span<const Value> starts,
              std::span<const Value> counts = {}) const;

 private:
  struct Digit {
    int64_t size = 1;    // of the base along this digit
    int64_t stride = 1;  // elements per step of the digit
    int64_t count = 1;   // elements the window takes
    int64_t step = 1;    // distance between them, in digit positions
    int axis = -1;       // the window's dim, or -1 for a single position
    int64_t stored = 0;  // like size and count, but of the arrays of a program: larger where sizes change
    int64_t taken = 0;
    bool changing = false;  // `taken` is a bound, not a count
    bool full() const { return count == size && step == 1; }
    int64_t extent() const { return (count - 1) * step + 1; }
    int64_t taken_extent() const { return (taken - 1) * step + 1; }
  };

  std::vector<size_t> moving_axes() const;
  bool map_to_dims(const Dims& dims);
  bool map_to_flat();
  bool map_to_radix(std::span<const size_t> axes, int64_t extent, int64_t unit);
  bool place_bounds(const Bounds* bounds);
  bool make_rows(const Bounds* bounds, uint64_t* changing, SizeBounds& sizes);
  int64_t common_row(uint64_t changing_base, uint64_t changing) const;
  bool follows_base(size_t dim, uint64_t changing_base, const SizeBounds& sizes) const;
  /// Row numbers in the stored base, one per row of the window.
  Value row_numbers(stablehlo::Builder& builder, std::span<const Value> starts) const;
  Value read_rows(Value base, std::span<const Value> starts) const;
  Value write_rows(stablehlo::Builder& builder, Value base, Value value, std::span<const Value> starts,
                   std::span<const Value> present) const;
  void finish_digits();
  Value to_digits(Value base) const;
  Value with_room(Value digits) const;
  Value to_stored(Value digits) const;
  Value written_part(stablehlo::Builder& builder, const Dims& sizes, std::span<const Value> present) const;
  Value from_digits(Value digits, Value old) const;
  Value gather_indices(stablehlo::Builder& builder, std::span<const Value> starts) const;
  std::vector<Value> full_starts(stablehlo::Builder& builder, std::span<const Value> starts) const;

  Kind kind_ = Kind::kIdentity;
  TensorType base_;        // as stored
  TensorType typed_base_;  // with the window's dtype (bool: bytes, unless stored as bool): flat when the dtypes differ
  Window window_;
  std::vector<Digit> digits_;
  // Of kRows: the dims of the window as they lie in memory; how many elements a row has; the dims before the rows, of
  // the window as it is now and of the base.
  Dims order_;
  struct Axis {
    size_t dim = 0;      // of the window
    int64_t stride = 0;  // in rows
    bool changing = false;
  };
  int64_t row_ = 1;
  std::vector<Axis> axes_;
  Dims outer_base_;
  bool covers_base_ = false;
};

/// Same bits as `x`, read as `dtype`, flat. bool counts as a byte that is 0 or 1; complex as (real, imag).
Value reinterpret_flat(Value x, DType dtype);
/// Inverse: flat `x` written back as a value of type `type`. Bytes that `x` does not reach, behind its last whole
/// element, are those of `old`, which may be undefined where there are none.
Value reinterpret_back(Value x, const TensorType& type, Value old);

}  // namespace tpu::graph
