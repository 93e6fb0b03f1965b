#include "compile/control_flow.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include "aten/call_site.h"
#include "device/dtypes.h"
#include "device/errors.h"
#include "device/storage.h"
#include "graph/control_flow.h"
#include "graph/recorder.h"

namespace tpu::compile {

using graph::ControlFlow;
using runtime::ValueRef;

/// Collects the node of a control flow and launches it.
class ControlFlowCall {
 public:
  ControlFlowCall(ControlFlow::Kind kind, std::vector<Part> parts) : parts_(std::move(parts)), like_(*parts_.back()) {
    flow_.kind = kind;
    for (const Part& part : parts_) {
      check(*part, kind);
      flow_.parts.push_back(graph::part_of(*part->function_.graph));
    }
  }

  /// The next argument, with the form of argument `number` of the last part.
  void argument(const at::Tensor& given, size_t number) {
    TORCH_CHECK(number < like_.arguments_.size(), "a part of a control flow takes ", like_.arguments_.size(),
                " arguments");
    like_.check(number, given);
    add(given, like_.arguments_[number]);
  }
  /// The next argument, with rows that have the form of argument `number` of the last part; or a 0-d bool.
  void argument(const at::Tensor& given) {
    TORCH_CHECK(given.device() == c10::Device(c10::DeviceType::PrivateUse1, like_.device_),
                "a tensor of a control flow is on ", given.device());
    CapturedCall::Argument form{{}, {}, given.scalar_type(), {}, {}, {}};
    form.sizes = given.sizes();
    const Dims strides = contiguous_strides(Dims(given.sizes()));
    form.strides.assign(strides.begin(), strides.end());
    form.base = {device::to_dtype(given.scalar_type()), Dims(given.sizes())};
    add(given, form);
  }
  void carries(size_t carried, size_t sliced = 0, int64_t length = 0) {
    flow_.carried = static_cast<uint32_t>(carried);
    flow_.sliced = static_cast<uint32_t>(sliced);
    flow_.length = length;
  }

  std::vector<at::Tensor> operator()(std::string name) {
    const graph::Plan& plan = graph::control_flow_plan(std::move(name), flow_, types_);
    const std::vector<uint64_t> words = draw(plan);
    for (const Part& part : parts_) {
      const std::vector<ValueRef>& constants = part->function_.constants;
      values_.insert(values_.end(), constants.begin(), constants.end());
    }
    std::vector<at::Tensor> results;
    std::vector<runtime::StorageSlot*> targets;
    for (size_t i = 0; i < plan.outputs.size(); ++i) {
      results.push_back(result(i, plan.outputs[i].base));
      targets.push_back(&device::slot_of(results.back()));
    }
    device::translate([&] {
      graph::Recorder::of(like_.device_).record(plan, std::move(values_), words, targets, aten::call_site());
    });
    return results;
  }

 private:
  static void check(const CapturedCall& part, ControlFlow::Kind kind) {
    for (size_t i = 0; i < part.results_.size(); ++i) {
      const CapturedCall::Result& result = part.results_[i];
      TORCH_CHECK(result.kind == CapturedCall::Result::Kind::kMade && result.source == i && result.offset == 0 &&
                      part.forms_[i].changing == 0,
                  "a part of a control flow does not make its result ", i);
    }
    for (const CapturedCall::Argument& argument : part.arguments_) {
      TORCH_CHECK(!argument.written, "a part of a control flow writes to an argument");
    }
    const std::vector<graph::DrawRandom>& draws = part.function_.draws;
    TORCH_CHECK(draws.empty() || kind == ControlFlow::Kind::kScan, "random numbers are drawn by a part of a branch");
    for (const graph::DrawRandom& draw : draws) {
      TORCH_CHECK(draw.stream->generator == draws[0].stream->generator, "a part of a scan draws from two generators");
    }
  }

  void add(const at::Tensor& given, const CapturedCall::Argument& form) {
    const at::Tensor fitting = like_.fitting(form, given);
    values_.push_back(device::slot_of(fitting).load());
    types_.push_back(form.base);
    held_.push_back(fitting);
    if (auto* const outer = graph::Capture::current()) outer->lies_in(values_.back(), device::slot_of(fitting));
  }

  std::vector<uint64_t> draw(const graph::Plan& plan) const {
    if (!plan.random_slot) return {};
    graph::DrawRandom all = parts_[0]->function_.draws[0];
    all.blocks = graph::random_blocks(flow_);
    if (auto* const outer = graph::Capture::current()) {
      outer->next_random({all});
      return {0, 0};
    }
    const graph::RandomDraw drawn = all();
    return {drawn.seed, drawn.offset};
  }

  at::Tensor result(size_t number, const TensorType& base) const {
    const CapturedCall::Result& form = like_.results_[number];
    std::vector<int64_t> sizes(form.sizes.begin(), form.sizes.end());
    std::vector<int64_t> strides(form.strides.begin(), form.strides.end());
    if (flow_.kind == ControlFlow::Kind::kScan && number >= flow_.carried) {
      sizes.insert(sizes.begin(), flow_.length);
      int64_t of_slice = 1;
      for (int64_t size : form.sizes) of_slice *= size;
      strides.insert(strides.begin(), of_slice);
    }
    return device::make_tensor(base.bytes(), sizes, strides, form.dtype, like_.device_);
  }

  const std::vector<Part> parts_;
  const CapturedCall& like_;
  ControlFlow flow_;
  std::vector<ValueRef> values_;
  std::vector<TensorType> types_;
  std::vector<at::Tensor> held_;
};

std::vector<at::Tensor> branch(const at::Tensor& predicate, const Part& on_true, const Part& on_false,
                               at::TensorList operands) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  ControlFlowCall call(ControlFlow::Kind::kBranch, {on_true, on_false});
  call.argument(predicate);
  for (size_t i = 0; i < operands.size(); ++i) call.argument(operands[i], i);
  return call("cond");
}

std::vector<at::Tensor> while_loop(const Part& condition, const Part& body, at::TensorList carried,
                                   at::TensorList others) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  ControlFlowCall call(ControlFlow::Kind::kWhile, {condition, body});
  size_t number = 0;
  for (const at::Tensor& tensor : carried) call.argument(tensor, number++);
  for (const at::Tensor& tensor : others) call.argument(tensor, number++);
  call.carries(carried.size());
  return call("while_loop");
}

std::vector<at::Tensor> scan(const std::string& name, const Part& body, at::TensorList carried, at::TensorList sliced,
                             at::TensorList others) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  TORCH_CHECK(!sliced.empty(), name, " of no tensors");
  ControlFlowCall call(ControlFlow::Kind::kScan, {body});
  const int64_t length = sliced[0].size(0);
  size_t number = 0;
  for (const at::Tensor& tensor : carried) call.argument(tensor, number++);
  for (const at::Tensor& tensor : sliced) {
    TORCH_CHECK(tensor.size(0) == length, name, " of tensors with ", length, " and ", tensor.size(0), " slices");
    call.argument(tensor);
    ++number;
  }
  for (const at::Tensor& tensor : others) call.argument(tensor, number++);
  call.carries(carried.size(), sliced.size(), length);
  return call(name);
}

void refuse_capture(const std::string& reason) {
  if (auto* const capture = graph::Capture::current()) device::translate([&] { capture->block(reason.c_str()); });
}

}  // namespace tpu::compile
