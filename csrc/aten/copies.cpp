#include "aten/copies.h"

#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/neg.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "aten/changing_sizes.h"
#include "aten/dispatch.h"
#include "device/dtypes.h"
#include "device/errors.h"
#include "device/storage.h"
#include "graph/capture.h"
#include "graph/recorder.h"
#include "lowering/helpers.h"

namespace tpu::aten {
namespace {

using graph::Recorder;
using runtime::ValueRef;

// copy(self, src): src in self's dtype and sizes; self's elements are not read.
std::vector<lowering::Value> lower_copy(const lowering::OpCall& call) {
  const TensorType& type = call.result_type(0);
  return {lowering::broadcast_to(call.operand(1, type.dtype), type.dims)};
}

RowKernel& copy_kernel() {
  static const lowering::Row row{.name = "copy", .lower = lower_copy, .unread_args = 1};
  static auto* const kernel = [] {
    const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    return new RowKernel(Operator(handle, handle, &row, Form::kMutating));
  }();
  return *kernel;
}

void copy_on_device(const at::Tensor& source, const at::Tensor& destination) {
  static const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{destination, source, false};
  copy_kernel()(handle, c10::DispatchKeySet(), &stack);
}

/// Dims order of a tensor that fills its whole storage, or nullopt.
std::optional<Dims> fills_storage(const at::Tensor& tensor) {
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.itemsize();
  if (tensor.storage_offset() != 0 || bytes != tensor.storage().nbytes()) return std::nullopt;
  return device::memory_order(tensor.sizes(), tensor.strides());
}

// With `bounds`, into a larger array. What stands behind the end is 0, or in tests what would show in a result.
ValueRef upload(const at::Tensor& contiguous, c10::DeviceIndex device, std::unique_ptr<const Bounds> bounds = nullptr) {
  TensorType type{device::to_dtype(contiguous.scalar_type()), Dims(contiguous.sizes())};
  runtime::Context& context = runtime::Context::get();
  if (bounds == nullptr) {
    pjrt::Buffer buffer = context.client().buffer_from_host(contiguous.const_data_ptr(), type, context.device(device));
    return ValueRef(new runtime::Value(std::move(type), device, std::move(buffer)));
  }
  const Dims& sizes = bounds->stored;
  at::Tensor stored = at::empty({sizes.data(), sizes.size()}, contiguous.options());
  if (bounded_sizes() != BoundedSizes::kAlways) {
    stored.zero_();
  } else if (stored.is_floating_point() || stored.is_complex()) {
    stored.fill_(std::numeric_limits<double>::quiet_NaN());
  } else {
    stored.fill_(stored.scalar_type() == at::kBool ? 1 : 113);
  }
  copy_to_stored(type, sizes, contiguous.const_data_ptr(), stored.mutable_data_ptr());
  pjrt::Buffer buffer =
      context.client().buffer_from_host(stored.const_data_ptr(), {type.dtype, sizes}, context.device(device));
  return ValueRef(new runtime::Value(std::move(type), device, std::move(buffer), std::move(bounds)));
}

void host_to_device(const at::Tensor& source, const at::Tensor& destination) {
  const graph::Capture* const capture = graph::Capture::current();
  if (capture != nullptr) capture->refuse_host_data();
  const at::Tensor typed = source.to(destination.scalar_type()).expand(destination.sizes());
  const c10::DeviceIndex device = destination.device().index();
  const auto order = fills_storage(destination);
  // A capture must hear of every write to a tensor that it may know.
  if (order && (capture == nullptr || capture->may_store(device::slot_of(destination)))) {
    const at::Tensor in_order = typed.permute({order->data(), order->size()}).contiguous();
    runtime::StorageSlot& slot = device::slot_of(destination);
    const ValueRef old = slot.load();
    const bool same_form = old->type() == TensorType{device::to_dtype(in_order.scalar_type()), Dims(in_order.sizes())};
    slot.store(upload(in_order, device, same_form ? old->same_bounds() : nullptr));
    return;
  }
  copy_on_device(to_device(typed.contiguous(), device), destination);
}

// The host can read device memory: a view of the value's own bytes, valid while `value` is held. What is stored in a
// larger array is first moved together, into `room`.
at::Tensor borrow(const at::Tensor& tensor, const ValueRef& value, std::vector<char>& room) {
  value->buffer().ready_event().await();
  auto* base = static_cast<char*>(value->buffer().unsafe_pointer());
  if (const Bounds* const bounds = value->bounds()) {
    room.resize(value->type().bytes());
    copy_from_stored(value->type(), bounds->stored, base, room.data());
    base = room.data();
  }
  return at::from_blob(base + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()), tensor.sizes(),
                       tensor.strides(), at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU));
}

void device_to_host(const at::Tensor& source, const at::Tensor& destination) {
  if (source.numel() == 0) return;
  const c10::DeviceIndex device = source.device().index();
  Recorder& recorder = Recorder::of(device);
  const ValueRef value = device::slot_of(source).load();
  if (runtime::Context::get().host_readable()) {
    recorder.wait(value);
    std::vector<char> room;
    destination.copy_(borrow(source, value, room));
    return;
  }
  const at::Tensor dense = fills_storage(source) ? source : source.clone(at::MemoryFormat::Contiguous);
  const at::Tensor host = at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(at::kCPU));
  recorder.read(device::slot_of(dense).load(), host.mutable_data_ptr());
  destination.copy_(host);
}

void device_to_device(const at::Tensor& source, const at::Tensor& destination) {
  runtime::Context& context = runtime::Context::get();
  const at::Tensor dense =
      fills_storage(source) && source.is_contiguous() ? source : source.clone(at::MemoryFormat::Contiguous);
  const ValueRef value = device::slot_of(dense).load();
  Recorder::of(source.device().index()).wait(value);
  const c10::DeviceIndex to = destination.device().index();
  pjrt::Buffer moved = value->buffer().copy_to_device(context.device(to));
  ValueRef here(new runtime::Value(value->type(), to, std::move(moved), value->same_bounds()));
  const at::Tensor arrived =
      device::make_tensor(std::move(here), dense.sizes(), dense.strides(), dense.scalar_type(), to);
  copy_on_device(arrived, destination);
}

}  // namespace

at::Tensor to_device(const at::Tensor& host, c10::DeviceIndex device) {
  const at::Tensor contiguous = host.contiguous();
  return device::make_tensor(upload(contiguous, device), contiguous.sizes(), contiguous.strides(),
                             contiguous.scalar_type(), device);
}

at::Tensor to_host(const at::Tensor& tensor) {
  at::Tensor result = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  result.copy_(tensor);
  return result;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& destination, bool) {
  return device::translate([&]() -> at::Tensor {
    if (destination.numel() == 0) return destination;
    // Conjugate and negative are marks on a view. Both sides are taken without them, and the elements are
    // changed where the marks differ.
    if (source.is_conj() || destination.is_conj()) {
      const at::Tensor plain = source.is_conj() ? source.conj() : source;
      const bool differ = source.is_conj() != destination.is_conj();
      copy_from(differ ? at::conj_physical(plain) : plain, destination.is_conj() ? destination.conj() : destination,
                false);
      return destination;
    }
    if (source.is_neg() || destination.is_neg()) {
      const at::Tensor plain = source.is_neg() ? source._neg_view() : source;
      const bool differ = source.is_neg() != destination.is_neg();
      copy_from(differ ? at::neg(plain) : plain, destination.is_neg() ? destination._neg_view() : destination, false);
      return destination;
    }
    const bool from_device = source.device().is_privateuseone();
    const bool to_device = destination.device().is_privateuseone();
    if (from_device && to_device) {
      if (source.device() == destination.device()) {
        copy_on_device(source, destination);
      } else {
        device_to_device(source, destination);
      }
    } else if (to_device) {
      TORCH_CHECK(source.device().is_cpu(), "cannot copy from ", source.device(), " to ", destination.device(),
                  "; move the tensor to the CPU first");
      host_to_device(source, destination);
    } else {
      TORCH_CHECK(destination.device().is_cpu(), "cannot copy from ", source.device(), " to ", destination.device(),
                  "; move the tensor to the CPU first");
      device_to_host(source, destination);
    }
    return destination;
  });
}

namespace {

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& destination) {
  if (destination.sizes() != source.sizes()) destination.resize_(source.sizes());
  return copy_from(source, destination, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) { return at::_local_scalar_dense(to_host(self.reshape({}))); }

// PyTorch's own calls the kernel of a device, of which it has none for ours.
at::Tensor& conjugate_in_place(at::Tensor& self) { return self.is_complex() ? self.copy_(self.conj()) : self; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("conj_physical_", &conjugate_in_place);
}

// The marks are compared in copy_from; the fallbacks of these keys would recurse into it.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace tpu::aten
