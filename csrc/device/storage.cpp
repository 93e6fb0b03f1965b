#include "device/storage.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

#include "device/device.h"
#include "device/dtypes.h"
#include "device/errors.h"
#include "graph/capture.h"
#include "graph/recorder.h"
#include "lowering/helpers.h"
#include "runtime/memory_stats.h"

namespace tpu::device {
using runtime::StorageSlot;
using runtime::Value;
using runtime::ValueRef;

namespace {

void delete_slot(void* context) { static_cast<StorageSlot*>(context)->disown(); }

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex device = current_device();
    ValueRef value = undefined_value({DType::kU8, {static_cast<int64_t>(bytes)}}, device);
    return wrap(std::move(value), bytes, device);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "the memory of a tpu storage has no address; use Tensor.copy_()");
  }

  bool initialized() override { return runtime::Context::initialized(); }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}           // nothing is cached above the plugin's allocator
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // values are kept alive by what uses them
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const runtime::MemoryStats& stats = runtime::memory_stats(device);
    c10::CachingDeviceAllocator::DeviceStats result;
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    for (auto* bytes :
         {&result.allocated_bytes, &result.active_bytes, &result.reserved_bytes, &result.requested_bytes}) {
      auto& stat = (*bytes)[all];
      stat.current = stats.current();
      stat.peak = stats.peak();
      stat.allocated = stats.allocated();
      stat.freed = stats.freed();
    }
    result.allocation[all].allocated = stats.allocations();
    result.num_ooms = stats.out_of_memory();
    return result;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { runtime::memory_stats(device).reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex device) override { runtime::memory_stats(device).reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return translate([&] {
      const size_t total = total_memory(device);
      const auto used = static_cast<size_t>(std::max<int64_t>(0, runtime::memory_stats(device).current()));
      return std::pair{total > used ? total - used : 0, total};
    });
  }

  static c10::DataPtr wrap(ValueRef value, size_t bytes, c10::DeviceIndex device) {
    const uint64_t address = runtime::reserve_address(bytes);
    auto* slot = new StorageSlot(std::move(value), address);
    return {reinterpret_cast<void*>(address), slot, &delete_slot, c10::Device(c10::DeviceType::PrivateUse1, device)};
  }
};

Allocator& allocator() {
  static auto* const instance = new Allocator;
  return *instance;
}

[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &allocator());
  return true;
}();

// ---- changing a storage's size: old bytes, then zeros, as one node

std::vector<lowering::Value> lower_resize(const lowering::OpCall& call) {
  namespace hlo = stablehlo;
  const TensorType& wanted = call.result_type(0);
  lowering::Value old = call.tensor(0);
  const int64_t keep = std::min(old.dim(0), wanted.dims[0]);
  old = hlo::slice(old, {0}, {keep}, {1});
  return {hlo::pad(old, lowering::scalar(call.builder(), 0.0, wanted.dtype), {0}, {wanted.dims[0] - keep}, {0})};
}

const lowering::Row kResizeRow{.name = "resize_", .lower = lower_resize};

}  // namespace

ValueRef undefined_value(TensorType type, c10::DeviceIndex device, std::unique_ptr<const Bounds> bounds) {
  return ValueRef(new Value(std::move(type), device, Value::State::kUndefined, std::move(bounds)));
}

c10::Storage make_storage(ValueRef value, size_t bytes, c10::DeviceIndex device) {
  return {c10::Storage::use_byte_size_t(), bytes, Allocator::wrap(std::move(value), bytes, device), &allocator(),
          /*resizable=*/true};
}

StorageSlot& slot_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get_deleter() == &delete_slot) return *static_cast<StorageSlot*>(data.get_context());
  StorageSlot* slot = storage.device_type() == c10::DeviceType::PrivateUse1
                          ? StorageSlot::find(reinterpret_cast<uint64_t>(data.get()))
                          : nullptr;
  TORCH_CHECK(
      slot != nullptr, "expected a storage of the tpu device, got one on ", storage.device(),
      storage.device_type() == c10::DeviceType::PrivateUse1 ? " whose memory is not the device's or was released" : "");
  return *slot;
}

std::optional<Dims> memory_order(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  Dims order = iota(sizes.size());
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    // Size-1 dims keep their place among equals: their stride says nothing.
    if (sizes[a] == 1 || sizes[b] == 1) return strides[a] > strides[b];
    return strides[a] > strides[b];
  });
  int64_t expected = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const int64_t dim = order[i];
    if (sizes[dim] == 0) return iota(sizes.size());
    if (sizes[dim] == 1) continue;
    if (strides[dim] != expected) return std::nullopt;
    expected *= sizes[dim];
  }
  return order;
}

namespace {

at::Tensor tensor_over(c10::Storage storage, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

}  // namespace

at::Tensor make_tensor(ValueRef value, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       c10::DeviceIndex device) {
  const size_t bytes = value->type().bytes();
  return tensor_over(make_storage(std::move(value), bytes, device), sizes, strides, dtype);
}

at::Tensor make_tensor(size_t bytes, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       c10::DeviceIndex device) {
  return tensor_over(make_storage(ValueRef(), bytes, device), sizes, strides, dtype);
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl.resizable(), "Trying to resize storage that is not resizable");
  if (impl.nbytes() == bytes) return;
  const auto device = impl.device().index();
  StorageSlot& slot = slot_of(impl);
  if (const graph::Capture* const capture = graph::Capture::current()) {
    translate([&] { capture->refuse_to_resize(slot); });
  }
  const ValueRef old = slot.load();
  // Elements stay elements of the old dtype when the new size is a whole number of them.
  const size_t unit = bytes % byte_size(old->type().dtype) == 0 ? byte_size(old->type().dtype) : 1;
  const TensorType type{unit == 1 ? DType::kU8 : old->type().dtype, {static_cast<int64_t>(bytes / unit)}};
  const bool fresh = old->state() == Value::State::kUndefined || old->type().bytes() == 0 || bytes == 0;
  if (fresh) {
    slot.store(undefined_value(type, device));
  } else {
    const TensorType flat{type.dtype, {static_cast<int64_t>(old->type().bytes() / unit)}};
    auto* plan = new graph::Plan;  // plans live as long as the process; sizes of storages seldom change
    plan->id = graph::next_plan_id();
    plan->row = &kResizeRow;
    plan->name = "resize_";
    plan->inputs = {old->type()};
    const graph::Window window{flat.dtype, flat.dims, {1}};
    plan->args = {graph::TensorRef{0, graph::Layout::make(old->type(), window, 0, false), 0, {}, 0, {}, 0}};
    plan->slots.assign(std::get<graph::TensorRef>(plan->args[0]).layout.start_count(), graph::Slot::kInt);
    plan->results = {type};
    plan->promoted = type.dtype;
    plan->outputs = {{type, 0, {0}, std::nullopt, {}, std::nullopt}};
    const std::vector<uint64_t> words(plan->slots.size(), 0);
    StorageSlot* target[] = {&slot};
    translate([&] { graph::Recorder::of(device).record(*plan, {old}, words, target, capture_location()); });
  }
  impl.set_nbytes(bytes);
}

}  // namespace tpu::device
