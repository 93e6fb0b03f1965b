#include "compile/captured_call.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>

#include "aten/call_site.h"
#include "aten/changing_sizes.h"
#include "aten/result_strides.h"
#include "device/dtypes.h"
#include "device/errors.h"
#include "device/storage.h"
#include "graph/recorder.h"

namespace tpu::compile {

using runtime::ValueRef;

namespace {

at::TensorOptions options_of(c10::ScalarType dtype, c10::DeviceIndex device) {
  return at::TensorOptions().dtype(dtype).device(c10::Device(c10::DeviceType::PrivateUse1, device));
}

bool repeats_elements(at::IntArrayRef sizes, at::IntArrayRef strides) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] == 0 && sizes[i] > 1) return true;
  }
  return false;
}

// The strides of an argument's stand-in. It has neither gaps nor repeated elements: a call copies what has some.
Dims strides_without_gaps(at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (device::memory_order(sizes, strides)) return Dims(strides);
  if (repeats_elements(sizes, strides)) return contiguous_strides(Dims(sizes));
  return aten::dense_strides(sizes, aten::outermost_first(strides));
}

// How an argument is stored whose dims of `changing` change.
std::unique_ptr<const Bounds> bounds_of(const TensorType& base, const at::Tensor& tensor, uint64_t changing) {
  const auto order = device::memory_order(tensor.sizes(), tensor.strides());
  if (changing == 0 || !order || aten::bounded_sizes() == aten::BoundedSizes::kOff) return nullptr;
  Bounds bounds{base.dims, 0};
  for (size_t i = 0; i < order->size(); ++i) {
    if ((changing >> (*order)[i] & 1) == 0 || base.dims[i] <= 1) continue;
    bounds.dims |= uint64_t{1} << i;
    bounds.stored[i] = aten::stored_size(base.dims[i]);
    aten::changed_to(base.dims[i]);
  }
  return bounds.dims != 0 ? std::make_unique<const Bounds>(std::move(bounds)) : nullptr;
}

graph::OutputForm form_of(const runtime::Value& value) {
  return {value.type(), value.bounds() != nullptr ? value.bounds()->dims : 0};
}

}  // namespace

// ---- capturing ---------------------------------------------------------------------------------------

at::Tensor GraphCapture::argument(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype,
                                  uint64_t changing) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return device::translate([&] {
    const Dims stored = strides_without_gaps(sizes, strides);
    at::Tensor tensor = at::empty_strided(sizes, {stored.data(), stored.size()}, options_of(dtype, device_));
    runtime::StorageSlot& slot = device::slot_of(tensor);
    const TensorType type = slot.load()->type();
    ValueRef value = capture_.argument(type, bounds_of(type, tensor, changing));
    slot.store(value);
    arguments_.push_back({tensor, std::move(value)});
    return tensor;
  });
}

std::shared_ptr<const CapturedCall> GraphCapture::finish(at::TensorList results, bool again) {
  return device::translate([&] {
    auto call = std::make_shared<CapturedCall>();
    call->device_ = device_;
    std::vector<ValueRef> values;
    std::vector<const c10::StorageImpl*> storages;
    for (const at::Tensor& tensor : results) {
      CapturedCall::Result result;
      // A zero tensor, as formulas of gradients make them, has no storage.
      if (!tensor.defined() || !tensor.device().is_privateuseone() || tensor._is_zerotensor()) {
        result.constant = tensor;
        call->results_.push_back(std::move(result));
        continue;
      }
      result.sizes = tensor.sizes();
      result.strides = tensor.strides();
      result.offset = tensor.storage_offset();
      result.dtype = tensor.scalar_type();
      result.conj = tensor.is_conj();
      result.neg = tensor.is_neg();
      const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
      const auto argument = std::find_if(arguments_.begin(), arguments_.end(), [&](const Argument& a) {
        return a.tensor.storage().unsafeGetStorageImpl() == storage;
      });
      ValueRef value = device::slot_of(tensor).load();
      if (argument != arguments_.end()) {
        result.kind = CapturedCall::Result::Kind::kArgument;
        result.source = static_cast<size_t>(argument - arguments_.begin());
      } else if (capture_.made(*value)) {
        result.kind = CapturedCall::Result::Kind::kMade;
        const auto known = std::find(storages.begin(), storages.end(), storage);
        result.source = static_cast<size_t>(known - storages.begin());
        if (known == storages.end()) {
          storages.push_back(storage);
          call->storages_.push_back(value->type().bytes());
          call->forms_.push_back(form_of(*value));
          values.push_back(std::move(value));
        }
      } else if (value->state() == runtime::Value::State::kUndefined) {
        result.kind = CapturedCall::Result::Kind::kEmpty;
      } else {
        result.constant = tensor;
      }
      call->results_.push_back(std::move(result));
    }
    std::vector<int32_t> replaces(values.size(), -1);
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const at::Tensor& tensor = arguments_[i].tensor;
      ValueRef value = device::slot_of(tensor).load();
      CapturedCall::Argument argument{{}, {}, tensor.scalar_type(), arguments_[i].value->type(), {}, {}};
      argument.bounds = arguments_[i].value->same_bounds();
      argument.sizes = tensor.sizes();
      argument.strides = tensor.strides();
      if (!(value == arguments_[i].value)) {
        argument.written = values.size();
        call->forms_.push_back(form_of(*value));
        values.push_back(std::move(value));
        replaces.push_back(static_cast<int32_t>(i));
      }
      call->arguments_.push_back(std::move(argument));
    }
    call->function_ = capture_.finish(values, replaces, again);
    return std::shared_ptr<const CapturedCall>(std::move(call));
  });
}

// ---- what a graph is -------------------------------------------------------------------------------------

graph::ProgramText CapturedCall::program(const std::string& platform, bool locations) const {
  return graph::captured_program(*function_.graph, graph::layout_policy(platform), locations);
}

std::vector<at::Tensor> CapturedCall::constants() const {
  std::vector<at::Tensor> tensors;
  for (const ValueRef& value : function_.constants) {
    const TensorType& type = value->type();
    const Dims strides = contiguous_strides(type.dims);
    tensors.push_back(device::make_tensor(value, {type.dims.data(), type.dims.size()}, {strides.data(), strides.size()},
                                          device::to_scalar_type(type.dtype), device_));
  }
  return tensors;
}

std::vector<uint64_t> CapturedCall::random_blocks() const {
  std::vector<uint64_t> blocks;
  for (const graph::DrawRandom& draw : function_.draws) blocks.push_back(draw.blocks);
  return blocks;
}

std::vector<int64_t> CapturedCall::results() const {
  std::vector<int64_t> outputs;
  for (const Result& result : results_) {
    outputs.push_back(result.kind == Result::Kind::kMade ? static_cast<int64_t>(result.source) : -1);
  }
  return outputs;
}

std::vector<int64_t> CapturedCall::written() const {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].written) numbers.push_back(static_cast<int64_t>(i));
  }
  return numbers;
}

// ---- calling -----------------------------------------------------------------------------------------

void CapturedCall::check(size_t number, const at::Tensor& given) const {
  const Argument& wanted = arguments_[number];
  TORCH_CHECK(given.device() == c10::Device(c10::DeviceType::PrivateUse1, device_), "argument ", number,
              " of a captured graph is on ", given.device(), ", the graph on tpu:", static_cast<int>(device_));
  TORCH_CHECK_TYPE(given.scalar_type() == wanted.dtype, "argument ", number, " of a captured graph has dtype ",
                   given.scalar_type(), " instead of ", wanted.dtype);
  TORCH_CHECK(given.sizes() == at::IntArrayRef(wanted.sizes), "argument ", number, " of a captured graph has sizes ",
              given.sizes(), " instead of ", at::IntArrayRef(wanted.sizes));
}

bool CapturedCall::is_as_wanted(const Argument& wanted, const at::Tensor& given, const runtime::Value& value) const {
  const TensorType stored = wanted.bounds ? TensorType{wanted.base.dtype, wanted.bounds->stored} : wanted.base;
  return given.storage_offset() == 0 && value.type() == wanted.base && value.stored_type() == stored &&
         given.strides() == at::IntArrayRef(wanted.strides) && !given.is_conj() && !given.is_neg();
}

at::Tensor CapturedCall::dense_copy(const Argument& wanted, const at::Tensor& given) const {
  const auto copied = [&](const at::Tensor& from, std::unique_ptr<const Bounds> bounds) {
    at::Tensor copy = device::make_tensor(device::undefined_value(wanted.base, device_, std::move(bounds)),
                                          wanted.sizes, wanted.strides, wanted.dtype, device_);
    copy.copy_(from);
    return copy;
  };
  if (wanted.bounds == nullptr) return copied(given, nullptr);
  at::Tensor copy = copied(given, std::make_unique<const Bounds>(*wanted.bounds));
  // What cannot be read by bounds, a window across several dims, is first copied by itself.
  if (is_as_wanted(wanted, copy, *device::slot_of(copy).load())) return copy;
  return copied(copied(given, nullptr), std::make_unique<const Bounds>(*wanted.bounds));
}

at::Tensor CapturedCall::fitting(const Argument& wanted, const at::Tensor& given) const {
  return is_as_wanted(wanted, given, *device::slot_of(given).load()) ? given : dense_copy(wanted, given);
}

at::Tensor CapturedCall::view(const Result& result, const at::Tensor& base) const {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()),
                                                               c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                               c10::scalarTypeToTypeMeta(result.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes, result.strides, result.offset);
  tensor._set_conj(result.conj);
  tensor._set_neg(result.neg);
  return tensor;
}

std::vector<at::Tensor> CapturedCall::operator()(at::TensorList given) const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  TORCH_CHECK(given.size() == arguments_.size(), "a captured graph takes ", arguments_.size(), " arguments, got ",
              given.size());
  std::vector<at::Tensor> arguments(given.begin(), given.end());
  std::vector<ValueRef> values;
  for (size_t i = 0; i < arguments.size(); ++i) {
    check(i, arguments[i]);
    arguments[i] = fitting(arguments_[i], arguments[i]);
    values.push_back(device::slot_of(arguments[i]).load());
  }

  const graph::Plan& plan = function_.graph->plan;
  std::vector<at::Tensor> bases(storages_.size());
  for (const Result& result : results_) {
    if (result.kind != Result::Kind::kMade || bases[result.source].defined()) continue;
    bases[result.source] =
        device::make_tensor(storages_[result.source], result.sizes, result.strides, result.dtype, device_);
  }
  std::vector<runtime::StorageSlot*> targets;
  for (const at::Tensor& base : bases) targets.push_back(&device::slot_of(base));
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments_[i].written) targets.push_back(&device::slot_of(arguments[i]));
  }

  std::vector<uint64_t> words(plan.slots.size(), 0);
  graph::Capture* const outer = graph::Capture::current();
  if (outer != nullptr && loaded_ == nullptr) {
    outer->next_random(function_.draws);
    for (size_t i = 0; i < values.size(); ++i) outer->lies_in(values[i], device::slot_of(arguments[i]));
  } else {
    for (size_t i = 0; i < function_.draws.size(); ++i) {
      const graph::RandomDraw draw = function_.draws[i]();
      words[2 * i] = draw.seed;
      words[2 * i + 1] = draw.offset;
    }
  }
  std::copy(function_.words.begin(), function_.words.end(),
            words.end() - static_cast<ptrdiff_t>(function_.words.size()));
  std::vector<ValueRef> inputs;
  size_t next_constant = 0;
  for (int32_t source : function_.graph->sources) {
    inputs.push_back(source < 0 ? function_.constants[next_constant++] : values[static_cast<size_t>(source)]);
  }
  values.clear();  // the recorder must hold the only references of ours
  if (!targets.empty()) {
    device::translate([&] {
      graph::Recorder& recorder = graph::Recorder::of(device_);
      if (loaded_ != nullptr) {
        recorder.launch(loaded_, plan, std::move(inputs), words, targets, aten::call_site());
      } else {
        recorder.record(plan, std::move(inputs), words, targets, aten::call_site(), forms_);
      }
    });
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments_[i].written && !arguments[i].is_same(given[i])) given[i].copy_(arguments[i]);
  }

  std::vector<at::Tensor> results;
  for (const Result& result : results_) {
    switch (result.kind) {
      case Result::Kind::kConstant:
        results.push_back(result.constant);
        break;
      case Result::Kind::kEmpty:
        results.push_back(at::empty_strided(result.sizes, result.strides, options_of(result.dtype, device_)));
        break;
      case Result::Kind::kArgument: {
        const at::Tensor& argument = given[result.source];
        const Argument& form = arguments_[result.source];
        const bool whole = result.offset == 0 && result.sizes == form.sizes && result.strides == form.strides &&
                           result.dtype == form.dtype && !result.conj && !result.neg;
        results.push_back(whole ? argument : view(result, arguments[result.source]));
        break;
      }
      case Result::Kind::kMade:
        results.push_back(view(result, bases[result.source]));
        break;
    }
  }
  return results;
}

}  // namespace tpu::compile
