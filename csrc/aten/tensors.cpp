// Factories and metadata: tensors without data, views, set_ and resize_. None of them records a node, except
// a resize_ that grows a storage with contents.

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <algorithm>

#include "aten/changing_sizes.h"
#include "device/device.h"
#include "device/dtypes.h"
#include "device/errors.h"
#include "device/storage.h"
#include "graph/capture.h"
#include "graph/window.h"
#include "runtime/context.h"

namespace tpu::aten {
namespace {

// What empty_like() is asked for a tensor whose sizes change: the new one is to be stored in the same way.
struct Model {
  Dims sizes, bounds;
  uint64_t changing = 0;
};
thread_local const Model* model = nullptr;

std::optional<Model> model_of(const at::Tensor& tensor) {
  if (!tensor.device().is_privateuseone() || !tensor.has_storage()) return std::nullopt;
  // Fake tensors, which tracing makes, say that they are on the device.
  if (!tensor.storage().device().is_privateuseone()) return std::nullopt;
  const runtime::ValueRef value = device::slot_of(tensor).load();
  if (value->bounds() == nullptr) return std::nullopt;
  Model made{Dims(tensor.sizes()), {}, 0};
  graph::SizeBounds sizes(&changing_bound);
  const auto layout = graph::Layout::make_bounded(value->type(), value->bounds(),
                                                  {value->type().dtype, made.sizes, Dims(tensor.strides())},
                                                  tensor.storage_offset(), &made.changing, sizes);
  if (!layout || made.changing == 0) return std::nullopt;
  made.bounds = layout->read_sizes();
  return made;
}

// How the base of a new tensor is stored, null where its sizes do not change. `order` as device::memory_order.
// `by_size`: where no line of the user's can be watched, sizes that others changed to count as changing.
std::unique_ptr<const Bounds> bounds_of_new(const TensorType& base, c10::IntArrayRef sizes, const Dims& order,
                                            uint64_t site, bool by_size) {
  const bool modelled = model != nullptr && Dims(sizes) == model->sizes;
  if (!modelled && bounded_sizes() == BoundedSizes::kOff) return nullptr;
  const uint64_t seen = modelled || by_size ? 0 : changing_dims(site, {base.dims.data(), base.dims.size()});
  Bounds bounds{base.dims, 0};
  for (size_t i = 0; i < order.size(); ++i) {
    const auto dim = static_cast<size_t>(order[i]);
    const bool changes = modelled ? (model->changing >> dim & 1) != 0
                                  : (seen >> i & 1) != 0 || (by_size && was_changed_to(base.dims[i]));
    if (!changes) continue;
    bounds.dims |= uint64_t{1} << i;
    bounds.stored[i] = modelled ? model->bounds[dim] : stored_size(base.dims[i]);
    changed_to(base.dims[i]);
  }
  return bounds.dims != 0 ? std::make_unique<const Bounds>(std::move(bounds)) : nullptr;
}

at::Tensor make_empty(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                      std::optional<c10::Device> chosen) {
  return device::translate([&] {
    const c10::ScalarType type = c10::dtype_or_default(dtype);
    const c10::DeviceIndex index = chosen && chosen->has_index() ? chosen->index() : device::current_device();
    runtime::Context& context = runtime::Context::get();
    TORCH_CHECK(index < context.devices(), "tpu:", static_cast<int>(index), ": invalid device ordinal, ",
                context.devices() == 1 ? "there is 1 device" : c10::str("there are ", context.devices(), " devices"));
    const DType element = device::to_dtype(type);
    TensorType base{element, {}};
    size_t bytes;
    const auto order = device::memory_order(sizes, strides);
    if (order) {
      for (int64_t dim : *order) base.dims.push_back(sizes[dim]);
      bytes = base.bytes();
    } else {  // gaps or overlaps: a flat base that the strides reach into
      bytes = at::detail::computeStorageNbytes(sizes, strides, byte_size(element));
      base.dims = {static_cast<int64_t>(bytes / byte_size(element))};
    }
    const bool dense = order && !order->empty();
    const Location location = dense ? capture_location() : Location();
    const uint64_t site = size_site(location, static_cast<uint64_t>(element) << 8 | sizes.size());
    const graph::Capture* const capture = graph::Capture::current();
    // A graph is captured but once for a size, and a backward pass is no line of the user's.
    const bool by_size = (capture != nullptr && capture->bounded()) || location.code == nullptr;
    auto bounds = dense ? bounds_of_new(base, sizes, *order, site, by_size) : nullptr;
    const bool exact = bounds == nullptr;
    at::Tensor made = device::make_tensor(device::undefined_value(std::move(base), index, std::move(bounds)), sizes,
                                          strides, type, index);
    if (dense && exact && !by_size) made_at(site, made);
    return made;
  });
}

/// Memory that nothing was written to reads as zeros. torch.utils.deterministic.fill_uninitialized_memory asks for NaN
/// and the largest integers instead, which show such reads.
bool fills_empty() {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

at::Tensor filled_if_asked(at::Tensor made) {
  if (fills_empty()) at::native::fill_empty_deterministic_(made);
  return made;
}

at::Tensor empty_memory_format(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> chosen,
                               std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::Layout::Strided, "tensors of layout ",
                              c10::layout_or_default(layout), " are not supported on the tpu device yet");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  for (int64_t size : sizes) {
    TORCH_CHECK(size >= 0, "Trying to create tensor with negative dimension ", size, ": ", sizes);
  }
  const Dims contiguous = tpu::contiguous_strides(sizes);
  std::vector<int64_t> strides(contiguous.begin(), contiguous.end());
  const c10::MemoryFormat wanted = format.value_or(c10::MemoryFormat::Contiguous);
  if (wanted == c10::MemoryFormat::ChannelsLast) {
    TORCH_CHECK(sizes.size() == 4, "required rank 4 tensor to use channels_last format");
    const auto wanted_strides = c10::get_channels_last_strides_2d(sizes);
    strides.assign(wanted_strides.begin(), wanted_strides.end());
  } else if (wanted == c10::MemoryFormat::ChannelsLast3d) {
    TORCH_CHECK(sizes.size() == 5, "required rank 5 tensor to use channels_last_3d format");
    const auto wanted_strides = c10::get_channels_last_strides_3d(sizes);
    strides.assign(wanted_strides.begin(), wanted_strides.end());
  } else {
    TORCH_CHECK(wanted == c10::MemoryFormat::Contiguous, "unsupported memory format ", wanted);
  }
  return filled_if_asked(make_empty(sizes, strides, dtype, chosen));
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device> chosen,
                         std::optional<bool> pin_memory) {
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(sizes.size() == strides.size(), "dimensionality of sizes (", sizes.size(),
              ") must match dimensionality of strides (", strides.size(), ")");
  for (int64_t size : sizes) {
    TORCH_CHECK(size >= 0, "Trying to create tensor with negative dimension ", size, ": ", sizes);
  }
  return filled_if_asked(make_empty(sizes, strides, dtype, chosen));
}

at::Tensor empty_like(const at::Tensor& self, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                      std::optional<c10::Device> chosen, std::optional<bool> pin_memory,
                      std::optional<c10::MemoryFormat> format) {
  const std::optional<Model> like = model_of(self);
  const Model* const before = std::exchange(model, like ? &*like : nullptr);
  struct Restore {
    const Model* to;
    ~Restore() { model = to; }
  } restore{before};
  return at::native::empty_like(self, dtype, layout, chosen, pin_memory, format);
}

// A tensor of zeros without storage, which autograd uses for tangents that are zero.
at::Tensor efficient_zero_tensor(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                                 std::optional<c10::Layout>, std::optional<c10::Device> chosen, std::optional<bool>) {
  const c10::DeviceIndex index = chosen && chosen->has_index() ? chosen->index() : device::current_device();
  at::native::ZeroTensorAllocator allocator(c10::Device(c10::DeviceType::PrivateUse1, index));
  const c10::DispatchKeySet keys{c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor};
  return at::detail::empty_generic(sizes, &allocator, keys, c10::dtype_or_default(dtype), std::nullopt);
}

// ---- set_ and resize_

void set_geometry(const at::Tensor& self, c10::IntArrayRef sizes, c10::OptionalIntArrayRef strides, int64_t offset) {
  const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  const Dims contiguous = tpu::contiguous_strides(sizes);
  const c10::IntArrayRef chosen = strides ? *strides : c10::IntArrayRef(contiguous.data(), contiguous.size());
  const size_t needed = empty ? 0 : at::detail::computeStorageNbytes(sizes, chosen, self.itemsize(), offset);
  // First, since it may be refused.
  if (needed > self.storage().nbytes()) device::resize_storage(self.storage(), needed);
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_offset(offset);
  if (strides) {
    impl.set_sizes_and_strides(sizes, *strides);
  } else {
    impl.set_sizes_contiguous(sizes);
  }
}

at::Tensor& set_source_storage_offset(at::Tensor& self, at::Storage source, c10::SymInt offset,
                                      c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const auto strides = C10_AS_INTARRAYREF_SLOW(stride);
  const int64_t start = offset.guard_int(__FILE__, __LINE__);
  at::native::checkSetStorage(self, std::move(source), start, sizes, strides);
  set_geometry(self, sizes, stride.data() != nullptr ? c10::OptionalIntArrayRef(strides) : std::nullopt, start);
  return self;
}

constexpr int64_t kOne = 1;

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  const auto numel = static_cast<int64_t>(source.nbytes() / self.itemsize());
  at::native::checkSetStorage(self, std::move(source), int64_t{0}, c10::IntArrayRef(numel), c10::IntArrayRef(kOne));
  set_geometry(self, {numel}, std::nullopt, 0);
  return self;
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  at::native::checkSetStorage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
  set_geometry(self, source.sizes(), source.strides(), source.storage_offset());
  return self;
}

at::Tensor& set_nothing(at::Tensor& self) {
  const c10::DeviceIndex index = self.device().index();
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(
      device::make_storage(device::undefined_value({device::to_dtype(self.scalar_type()), {0}}, index), 0, index));
  set_geometry(self, {0}, std::nullopt, 0);
  return self;
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<c10::MemoryFormat> format) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  for (int64_t each : sizes) {
    TORCH_CHECK(each >= 0, "Trying to create tensor with negative dimension ", each, ": ", sizes);
  }
  const size_t before = self.storage().nbytes();
  if (self.sizes() != sizes) set_geometry(self, sizes, std::nullopt, self.storage_offset());
  if (fills_empty()) at::native::fill_resize_deterministic_(self, static_cast<int64_t>(before));
  if (format) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

void record_stream(at::Tensor&, c10::Stream) {}  // a value lives as long as anything queued needs it

/// Whether both tensors are the same window of one storage.
bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.is_alias_of(other) && self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
         self.strides() == other.strides();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("is_set_to", &is_set_to);
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("empty_like", &empty_like);
  m.impl("_efficientzerotensor", &efficient_zero_tensor);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("set_.source_Storage_storage_offset", &set_source_storage_offset);
  m.impl("set_.source_Storage", &set_source_storage);
  m.impl("set_.source_Tensor", &set_source_tensor);
  m.impl("set_", &set_nothing);
  m.impl("resize_", &resize);
  m.impl("record_stream", &record_stream);
}

}  // namespace
}  // namespace tpu::aten
