#include "aten/dispatch.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/resize.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "aten/call_site.h"
#include "aten/changing_sizes.h"
#include "aten/fallback.h"
#include "base/hash.h"
#include "device/errors.h"
#include "device/generator.h"
#include "device/storage.h"
#include "graph/recorder.h"
#include "graph/slot_capture.h"

namespace tpu::aten {
namespace {

// A scalar that changed this often is not worth a program per value (see docs/architecture.md, scalars).
constexpr size_t kSpecialisedValues = 2;

bool same(const lowering::Scalar& a, const lowering::Scalar& b) {
  return a.kind == b.kind && a.i == b.i && std::bit_cast<uint64_t>(a.z.real()) == std::bit_cast<uint64_t>(b.z.real()) &&
         std::bit_cast<uint64_t>(a.z.imag()) == std::bit_cast<uint64_t>(b.z.imag());
}

bool same_values(const PlanTable::Scalars& known, const Signature& signature) {
  for (size_t i = 0; i < known.size(); ++i) {
    if (!signature.scalars[i].runtime && !same(known[i], signature.scalars[i].value)) return false;
  }
  return true;
}

// Complex numbers have no run-time form, so their values always select a plan.
bool can_be_dynamic(const Signature& signature) {
  for (const ScalarUse& use : signature.scalars) {
    if (use.value.kind == lowering::Scalar::Kind::kComplex) return false;
  }
  return true;
}

uint64_t word_of(const lowering::Scalar& value) {
  return value.is_integral() ? static_cast<uint64_t>(value.i) : std::bit_cast<uint64_t>(value.z.real());
}

}  // namespace

PlanTable::Entry* PlanTable::find(uint64_t hash, const Signature& signature) {
  auto [first, last] = entries_.equal_range(hash);
  for (; first != last; ++first) {
    const std::vector<uint64_t>& key = first->second->key;
    if (key.size() == signature.key.size() && std::equal(key.begin(), key.end(), signature.key.begin())) {
      return first->second.get();
    }
  }
  return nullptr;
}

namespace {

// Parts of larger tensors, and tensors that are joined, are where sizes come into being (aten/changing_sizes.h).
bool note_changing_sizes(const Operator& op, Signature& signature) {
  bool any = signature.bounded;
  if (bounded_sizes() == BoundedSizes::kOff) return any;
  const Location location = capture_location();
  for (size_t i = 0; i < signature.tensors.size(); ++i) {
    TensorUse& use = signature.tensors[i];
    const TensorType& base = use.value->type();
    const bool part = !use.identity && !use.gather && use.tensor->numel() < base.numel();
    const bool joined = use.identity && op.row->name == "cat";
    if (use.value->bounds() == nullptr && (part || joined)) {
      const uint64_t kind = mix(reinterpret_cast<uint64_t>(&op), i << 8 | signature.tensors.size());
      use.changing = changing_dims(size_site(location, kind), use.tensor->sizes());
    }
    for (int64_t dim = 0; dim < use.tensor->dim(); ++dim) {
      const uint64_t bit = uint64_t{1} << dim;
      const int64_t size = use.tensor->size(dim);
      if (use.tensor->stride(dim) == 0 && size > 1) {
        use.changing = was_changed_to(size) ? use.changing | bit : use.changing & ~bit;
      } else if ((use.changing & bit) != 0) {
        changed_to(size);
      }
    }
    any |= use.changing != 0;
  }
  return any;
}

}  // namespace

// Numbers of calls whose sizes change are constants at first, as those of other calls are, unless they are such sizes.
bool PlanTable::numbers_change(const Signature& signature) {
  if (signature.scalars.empty() || !can_be_dynamic(signature)) return false;
  const graph::Capture* const capture = graph::Capture::current();
  const bool size = capture != nullptr && capture->knows_sizes() &&
                    std::any_of(signature.scalars.begin(), signature.scalars.end(), [](const ScalarUse& use) {
                      return use.value.kind == lowering::Scalar::Kind::kInt && was_changed_to(use.value.i);
                    });
  if (size) return true;
  auto& seen = bounded_scalars_[size_site(capture_location(), signature.scalars.size())];
  Scalars now;
  for (const ScalarUse& use : signature.scalars) now.push_back(use.value);
  const bool known =
      std::any_of(seen.begin(), seen.end(), [&](const Scalars& each) { return same_values(each, signature); });
  if (!known && seen.size() <= kSpecialisedValues) seen.push_back(std::move(now));
  return seen.size() > kSpecialisedValues;
}

PlanTable::Found PlanTable::get_bounded(const Operator& op, const Signature& signature,
                                        at::ArrayRef<c10::IValue> arguments, uint64_t hash, bool dynamic) {
  {
    std::lock_guard lock(mutex_);
    dynamic |= numbers_change(signature);
  }
  std::shared_ptr<const PlannedCall> call = build_bounded_plan(op, signature, arguments, dynamic, shared_);
  if (call == nullptr) return {};
  BoundedEntry entry{{signature.key.begin(), signature.key.end()}, {}, dynamic, call};
  for (const ScalarUse& use : signature.scalars) entry.scalars.push_back(use.value);
  std::lock_guard lock(mutex_);
  if (bounded_.size() >= kBoundedEntries) bounded_.clear();
  bounded_.emplace(hash, std::move(entry));
  return {.plan = call.get(), .held = call};
}

// A function that is captured at every call, such as a training step, must not be compiled again because a learning
// rate changed. Broken numbers are operands of it from the start; whole ones, which are mostly part of its formulas,
// once they have changed from one capture to the next.
bool PlanTable::likely_to_vary(const Operator& op, const Signature& signature) {
  const graph::SlotCapture* const capture = graph::SlotCapture::current();
  if (capture == nullptr || capture->origin() == 0 || op.row->constant_pays) return false;
  return std::any_of(signature.scalars.begin(), signature.scalars.end(), [](const ScalarUse& use) {
    const double number = use.value.z.real();
    return !use.fixed && use.value.kind == lowering::Scalar::Kind::kDouble && number != std::trunc(number);
  });
}

bool PlanTable::varies(const Entry& entry) {
  const graph::SlotCapture* const capture = graph::SlotCapture::current();
  if (capture == nullptr || capture->origin() == 0) return false;
  return std::any_of(entry.variants.begin(), entry.variants.end(), [&](const Variant& variant) {
    return variant.origin == capture->origin() && variant.capture != capture->number();
  });
}

PlanTable::Found PlanTable::get(const Operator& op, Signature& signature, at::ArrayRef<c10::IValue> arguments) {
  const uint64_t hash = signature.hash();
  bool dynamic = !signature.scalars.empty() && likely_to_vary(op, signature);
  {
    std::lock_guard lock(mutex_);
    if (const Entry* entry = find(hash, signature)) {
      if (entry->refused) return {.refused = true};
      if (entry->resize) return {.resize = entry->resize};
      for (const Variant& variant : entry->variants) {
        if (!dynamic && same_values(variant.scalars, signature)) return {.plan = variant.plan.get()};
      }
      if (entry->dynamic != nullptr) return {.plan = entry->dynamic.get()};
      dynamic |= entry->variants.size() >= kSpecialisedValues || varies(*entry);
    }
    auto [first, last] = bounded_.equal_range(hash);
    for (; first != last; ++first) {
      const BoundedEntry& entry = first->second;
      const bool same = std::equal(entry.key.begin(), entry.key.end(), signature.key.begin(), signature.key.end()) &&
                        (entry.dynamic || same_values(entry.scalars, signature));
      if (same) return {.plan = entry.call.get(), .held = entry.call};
    }
  }
  if (note_changing_sizes(op, signature)) {
    Found found = get_bounded(op, signature, arguments, hash, dynamic && can_be_dynamic(signature));
    if (found.plan != nullptr) return found;
  }
  dynamic = dynamic && can_be_dynamic(signature);
  // Built without the lock: meta kernels may be Python.
  std::variant<std::unique_ptr<PlannedCall>, ResizeOut> built;
  bool refused = false;
  try {
    built = build_plan(op, signature, arguments, dynamic);
  } catch (const Error& error) {
    if (error.code() != Code::kNotImplemented) throw;
    refused = true;
  }
  std::lock_guard lock(mutex_);
  Entry* entry = find(hash, signature);
  if (entry == nullptr) {
    auto made = std::make_unique<Entry>();
    made->key.assign(signature.key.begin(), signature.key.end());
    entry = entries_.emplace(hash, std::move(made))->second.get();
  }
  if (refused) {
    // Of several values of one signature perhaps only this one is refused: then nothing is remembered.
    entry->refused = entry->variants.empty() && signature.scalars.empty();
    return {.refused = true};
  }
  if (auto* resize = std::get_if<ResizeOut>(&built)) {
    entry->resize = *resize;
    return {.resize = *resize};
  }
  auto& plan = std::get<std::unique_ptr<PlannedCall>>(built);
  if (dynamic) {
    if (entry->dynamic == nullptr) entry->dynamic = std::move(plan);
    return {.plan = entry->dynamic.get()};
  }
  Variant variant;
  for (const ScalarUse& use : signature.scalars) variant.scalars.push_back(use.value);
  if (const graph::SlotCapture* const capture = graph::SlotCapture::current()) {
    variant.origin = capture->origin();
    variant.capture = capture->number();
  }
  variant.plan = std::move(plan);
  entry->variants.push_back(std::move(variant));
  return {.plan = entry->variants.back().plan.get()};
}

void RowKernel::operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t count = handle.schema().arguments().size();
  device::translate([&] {
    thread_local Signature signature;
    uint64_t gather = 0;
    if (op_.factory) resize_factory_output(torch::jit::last(*stack, count));
    if (op_.form == Form::kOut && op_.row->separate_out) refuse_shared_output(torch::jit::last(*stack, count));
    // Each out tensor may be resized once, each tensor may fall back to its general window once.
    for (size_t attempt = 0;; ++attempt) {
      TORCH_INTERNAL_ASSERT(attempt <= 64, "the plan of ", op_.name, " does not settle");
      const at::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, count);
      signature.parse(op_, arguments, gather);
      if (signature.marked) {
        signature.tensors.clear();
        run_resolved(handle, keys, stack);
        return;
      }
      const PlanTable::Found found = plans_.get(op_, signature, arguments);
      if (found.refused) {
        signature.tensors.clear();  // its values must not outlive this call
        run_without_row(handle, keys, stack);
        return;
      }
      if (found.resize) {
        const at::Tensor out = arguments[op_.written[found.resize->out]].toTensor();
        const Dims &sizes = found.resize->sizes, &strides = found.resize->strides;
        resize_output(out, {sizes.data(), sizes.size()});
        if (strides != Dims(out.strides())) {
          out.as_strided_({sizes.data(), sizes.size()}, {strides.data(), strides.size()});
        }
        continue;
      }
      // A window may lie where the plan's layout does not reach: then its general form serves.
      bool fits = true;
      for (const PlannedCall::WindowUse& window : found.plan->windows) {
        if (window.layout.starts(signature.tensors[window.use].tensor->storage_offset())) continue;
        gather |= uint64_t{1} << window.use;
        fits = false;
      }
      if (!fits) continue;
      if (!op_.written.empty()) refuse_partial_overlap(signature, arguments);
      launch(*found.plan, signature, stack);
      return;
    }
  });
}

// The same call with conjugate and negative marks turned into elements; a marked tensor that is written gets
// its result copied back through the mark.
void RowKernel::run_resolved(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t count = handle.schema().arguments().size();
  const size_t first = stack->size() - count;
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = (*stack)[first + i];
    const auto resolve = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !(tensor.is_conj() || tensor.is_neg())) return tensor;
      const bool is_written = std::find(op_.written.begin(), op_.written.end(), i) != op_.written.end();
      if (is_written) at::assert_no_internal_overlap(tensor);
      at::Tensor plain = at::has_internal_overlap(tensor) == at::MemOverlap::No
                             ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options())
                             : at::empty_like(tensor, tensor.options(), at::MemoryFormat::Preserve);
      plain.copy_(tensor);
      if (is_written) written.emplace_back(tensor, plain);
      return plain;
    };
    if (value.isTensor()) {
      value = resolve(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(resolve(tensor));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(resolve(*tensor)) : std::nullopt);
      }
      value = list;
    }
  }
  (*this)(handle, keys, stack);
  for (const auto& [marked, plain] : written) {
    marked.copy_(plain);
    for (c10::IValue& result : *stack) {
      if (result.isTensor() && result.toTensor().is_same(plain)) result = marked;
    }
  }
}

// Plans do not know the numbers' values, so the size is settled on every call.
void RowKernel::resize_factory_output(at::ArrayRef<c10::IValue> arguments) const {
  const Metadata meta = compute_metadata(op_, arguments);
  const at::Tensor& out = arguments[op_.written[0]].toTensor();
  if (out.sizes() != meta.written[0].sizes()) resize_output(out, meta.written[0].sizes());
  bound_factory_output(out);
}

// A range that a line goes on making in new lengths is stored as other new tensors are.
void RowKernel::bound_factory_output(const at::Tensor& out) const {
  if (lowering::bounded_rule(op_.row->name) == nullptr || out.dim() != 1 || !out.device().is_privateuseone()) return;
  runtime::StorageSlot& slot = device::slot_of(out);
  const runtime::ValueRef value = slot.load();
  const bool fresh = value->state() == runtime::Value::State::kUndefined && value->bounds() == nullptr &&
                     value->type().rank() == 1 && value->type().dims[0] == out.size(0);
  if (!fresh) return;
  const uint64_t site = size_site(capture_location(), reinterpret_cast<uint64_t>(&op_));
  const graph::Capture* const capture = graph::Capture::current();
  const bool by_size = capture != nullptr && capture->bounded();
  const bool changes = by_size ? was_changed_to(out.size(0)) : changing_dims(site, out.sizes()) != 0;
  if (!changes) {
    if (!by_size) made_at(site, out);
    return;
  }
  changed_to(out.size(0));
  auto bounds = std::make_unique<const Bounds>(Bounds{{stored_size(out.size(0))}, 1});
  slot.store(device::undefined_value(value->type(), out.device().index(), std::move(bounds)));
}

// A write here replaces a whole value, so any overlap would be well defined. PyTorch's kernels refuse it, or give what
// the order of their loops makes of it.
void RowKernel::refuse_partial_overlap(const Signature& signature, at::ArrayRef<c10::IValue> arguments) const {
  for (size_t i : op_.written) {
    if (!arguments[i].isTensor()) continue;
    const at::Tensor& written = arguments[i].toTensor();
    if (!written.defined()) continue;
    for (const TensorUse& use : signature.tensors) {
      if (use.tensor->is_same(written) || !use.tensor->is_alias_of(written)) continue;
      at::assert_no_partial_overlap(written, *use.tensor);
    }
  }
}

void RowKernel::refuse_shared_output(at::ArrayRef<c10::IValue> arguments) const {
  for (size_t i : op_.written) {
    const at::Tensor& out = arguments[i].toTensor();
    at::assert_no_internal_overlap(out);
    for (size_t k = 0; k < op_.kinds.size(); ++k) {
      if (arguments[k].isTensor()) {
        at::assert_no_overlap(out, arguments[k].toTensor());
      } else if (arguments[k].isTensorList()) {
        for (const at::Tensor& input : arguments[k].toTensorVector()) at::assert_no_overlap(out, input);
      }
    }
  }
}

void RowKernel::launch(const PlannedCall& call, Signature& signature, torch::jit::Stack* stack) {
  const graph::Plan& plan = *call.plan;
  const size_t slots = plan.slots.size();
  c10::SmallVector<uint64_t, 16> words(slots, 0);
  for (const PlannedCall::WindowUse& window : call.windows) {
    const Dims starts = *window.layout.starts(signature.tensors[window.use].tensor->storage_offset());
    for (size_t i = 0; i < starts.size(); ++i) words[window.first_slot + i] = static_cast<uint64_t>(starts[i]);
  }
  for (const auto& [use, slot] : call.scalars) words[slot] = word_of(signature.scalars[use].value);
  for (const auto& [slot, size] : call.sizes) words[slot] = size;
  graph::Capture* const capture = graph::Capture::current();
  if (capture != nullptr) {
    for (int64_t size : call.changing) changed_to(size);
  }
  if (plan.random_slot) {
    const at::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, op_.handle.schema().arguments().size());
    at::Generator generator = device::default_generator(signature.device);
    for (size_t i = 0; i < op_.kinds.size(); ++i) {
      if (op_.kinds[i] == ArgKind::kGenerator && arguments[i].isGenerator()) generator = arguments[i].toGenerator();
    }
    auto* state = dynamic_cast<device::GeneratorImpl*>(generator.unsafeGetGeneratorImpl());
    TORCH_CHECK(state != nullptr, "Expected a '", c10::Device(c10::DeviceType::PrivateUse1, signature.device),
                "' generator device but found '", generator.device(), "'");
    if (capture != nullptr) {
      capture->next_random({{device::random_stream(generator), call.random_blocks}});
    } else {
      std::lock_guard lock(state->mutex_);
      const auto philox = state->take(call.random_blocks);
      words[*plan.random_slot] = philox.seed;
      words[*plan.random_slot + 1] = philox.offset;
    }
  }

  std::vector<at::Tensor> created;
  created.reserve(call.created.size());
  for (const auto& result : call.created) {
    if (!result) {
      created.emplace_back();
      continue;
    }
    created.push_back(device::make_tensor(result->bytes, {result->sizes.data(), result->sizes.size()},
                                          {result->strides.data(), result->strides.size()}, result->dtype,
                                          signature.device));
  }
  c10::SmallVector<runtime::StorageSlot*, 4> targets;
  for (int32_t target : call.targets) {
    targets.push_back(target >= 0 ? &device::slot_of(*signature.tensors[target].tensor)
                      : target == PlannedCall::kSuperseded
                          ? nullptr
                          : &device::slot_of(created[static_cast<size_t>(-1 - target)]));
  }

  std::vector<runtime::ValueRef> inputs;
  inputs.reserve(call.input_uses.size());
  for (uint32_t use : call.input_uses) {
    inputs.push_back(signature.tensors[use].value);
    if (capture != nullptr) capture->lies_in(inputs.back(), device::slot_of(*signature.tensors[use].tensor));
  }
  const c10::DeviceIndex device = signature.device;
  signature.tensors.clear();  // the recorder must hold the only references of ours
  graph::Recorder::of(device).record(plan, std::move(inputs), {words.data(), words.size()},
                                     {targets.data(), targets.size()}, call_site(), call.forms);
  push_results(call, std::move(created), stack);
}

void RowKernel::push_results(const PlannedCall&, std::vector<at::Tensor> created, torch::jit::Stack* stack) const {
  const auto& schema = op_.handle.schema();
  const size_t count = schema.arguments().size();
  torch::jit::Stack results;
  if (schema.returns().size() == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::ListType &&
      schema.returns()[0].alias_info() == nullptr) {
    results.emplace_back(std::move(created));
  } else {
    const at::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, count);
    size_t next_created = 0, next_written = 0;
    for (const c10::Argument& result : schema.returns()) {
      if (result.alias_info() != nullptr) {
        results.push_back(arguments[op_.written[next_written++]]);
      } else {
        results.emplace_back(std::move(created[next_created++]));
      }
    }
  }
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

}  // namespace tpu::aten
