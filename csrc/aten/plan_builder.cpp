#include "aten/plan_builder.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>

#include "base/error.h"
#include "device/dtypes.h"
#include "device/storage.h"

namespace tpu::aten {
namespace {

using device::to_dtype;
using graph::Slot;

TensorType type_of(const at::Tensor& tensor) { return {to_dtype(tensor.scalar_type()), Dims(tensor.sizes())}; }

class PlanBuilder {
 public:
  PlanBuilder(const Operator& op, const Signature& signature, at::ArrayRef<c10::IValue> arguments, bool dynamic)
      : op_(op),
        signature_(signature),
        arguments_(arguments),
        dynamic_(dynamic),
        input_of_use_(signature.tensors.size()) {}

  std::variant<std::unique_ptr<PlannedCall>, ResizeOut> build() {
    meta_ = compute_metadata(op_, arguments_);
    if (op_.form == Form::kOut) {
      if (auto resize = wrong_out_size()) return *resize;
    }
    for (uint32_t use : written_uses()) at::assert_no_internal_overlap(*signature_.tensors[use].tensor);
    graph::Plan& plan = call_->plan;
    plan.id = graph::next_plan_id();
    plan.row = op_.row;
    if (op_.row->heavy) plan.dot_precision = dot_precision();
    plan.name = op_.name;
    result_types();
    plan.promoted = meta_.promoted == c10::ScalarType::Undefined
                        ? (plan.results.empty() ? DType::kF32 : plan.results[0].dtype)
                        : to_dtype(meta_.promoted);
    for (size_t i = 0; i < op_.kinds.size(); ++i) plan.args.push_back(argument(i));
    if (op_.row->random_factor > 0) take_random();
    outputs();
    check_lowering();
    return std::move(call_);
  }

 private:
  std::optional<ResizeOut> wrong_out_size() const {
    for (size_t k = 0; k < meta_.written.size(); ++k) {
      const at::Tensor& given = arguments_[op_.written[k]].toTensor();
      const at::Tensor& result = op_.functional == op_.handle ? meta_.written[k] : meta_.results[k];
      if (given.sizes() == result.sizes()) continue;
      // The out= form's own meta kernel has resized its twin.
      const at::Tensor& twin = meta_.written[k];
      const Dims sizes(result.sizes());
      return ResizeOut{k, sizes, twin.sizes() == result.sizes() ? Dims(twin.strides()) : contiguous_strides(sizes)};
    }
    return std::nullopt;
  }

  // What torch.set_float32_matmul_precision allows; part of the signatures of heavy rows. XLA's HIGH takes three
  // products of bfloat16 on a TPU, DEFAULT one, which is what "medium" allows.
  static int dot_precision() {
    switch (at::globalContext().float32MatmulPrecision()) {
      case at::Float32MatmulPrecision::HIGHEST:
        return 2;
      case at::Float32MatmulPrecision::HIGH:
        return 1;
      case at::Float32MatmulPrecision::MEDIUM:
        return 0;
    }
    return 2;
  }

  // Written tensors of mutating rows come first among the results, except for native_batch_norm's.
  bool updates_last() const { return op_.row->name == "native_batch_norm"; }

  void result_types() {
    auto& results = call_->plan.results;
    const auto add = [&](const std::vector<at::Tensor>& tensors) {
      for (const at::Tensor& tensor : tensors) results.push_back(tensor.defined() ? type_of(tensor) : TensorType{});
    };
    if (op_.form == Form::kMutating && !updates_last()) add(meta_.written);
    add(meta_.results);
    if (op_.form == Form::kMutating && updates_last()) add(meta_.written);
  }

  // ---- arguments

  graph::ArgTemplate argument(size_t i) {
    const c10::IValue& value = arguments_[i];
    const ArgKind kind = op_.kinds[i];
    if (kind == ArgKind::kGenerator || kind == ArgKind::kIgnored || value.isNone()) return lowering::None{};
    switch (kind) {
      case ArgKind::kTensor:
        return tensor(value.toTensor(), (op_.row->unread_args >> i & 1) != 0);
      case ArgKind::kTensorList:
        return tensor_list(value);
      case ArgKind::kScalar:
        return scalar();
      case ArgKind::kScalarList: {
        std::vector<graph::ScalarRef> list;
        for (size_t k = value.toListRef().size(); k > 0; --k) list.push_back(scalar());
        return list;
      }
      case ArgKind::kFloat:
        if ((op_.row->runtime_args >> i & 1) != 0) return scalar();
        return value.toDouble();
      case ArgKind::kInt:
        return value.toInt();
      case ArgKind::kBool:
        return value.toBool();
      case ArgKind::kDType:
        return to_dtype(value.toScalarType());
      case ArgKind::kIntList:
        return Dims(std::span<const int64_t>(value.toIntVector()));
      case ArgKind::kFloatList:
        return value.toDoubleVector();
      case ArgKind::kBoolList: {
        std::vector<bool> list;
        for (bool element : value.toBoolList()) list.push_back(element);
        return list;
      }
      case ArgKind::kString:
        return value.toStringRef();
      default:
        return lowering::None{};
    }
  }

  graph::ArgTemplate tensor(const at::Tensor& value, bool unread) {
    if (!value.defined()) return lowering::None{};
    if (!value.device().is_privateuseone()) return scalar();
    const uint32_t use = next_use_++;
    if (unread) return graph::UnreadTensor{type_of(value)};
    return read(use);
  }

  graph::ArgTemplate tensor_list(const c10::IValue& value) {
    std::vector<std::optional<graph::TensorRef>> list;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isNone() || !element.toTensor().defined()) {
        list.emplace_back();
        continue;
      }
      TORCH_CHECK(element.toTensor().device().is_privateuseone(),
                  "Expected all tensors to be on the same device, but found a CPU tensor in a list given to ",
                  op_.name);
      list.emplace_back(read(next_use_++));
    }
    return list;
  }

  graph::Layout layout_of(uint32_t use) const {
    const TensorUse& tensor = signature_.tensors[use];
    const TensorType& base = tensor.value->type();
    const Dims sizes(tensor.tensor->sizes());
    const Dims strides = tensor.identity ? contiguous_strides(sizes) : Dims(tensor.tensor->strides());
    return graph::Layout::make(base, {to_dtype(tensor.tensor->scalar_type()), sizes, strides},
                               tensor.tensor->storage_offset(), tensor.gather);
  }

  uint32_t input_of(uint32_t use) {
    if (!input_of_use_[use]) {
      input_of_use_[use] = static_cast<uint32_t>(call_->plan.inputs.size());
      call_->plan.inputs.push_back(signature_.tensors[use].value->type());
      call_->input_uses.push_back(use);
    }
    return *input_of_use_[use];
  }

  uint32_t add_slots(Slot slot, size_t count) {
    auto& slots = call_->plan.slots;
    const auto first = static_cast<uint32_t>(slots.size());
    slots.insert(slots.end(), count, slot);
    return first;
  }

  graph::TensorRef read(uint32_t use) {
    graph::TensorRef ref{input_of(use), layout_of(use), 0};
    ref.first_slot = add_slots(Slot::kInt, ref.layout.start_count());
    window_uses_.push_back({use, ref.layout, ref.first_slot});
    return ref;
  }

  graph::ScalarRef scalar() {
    const uint32_t index = next_scalar_++;
    const ScalarUse& use = signature_.scalars[index];
    graph::ScalarRef ref{to_dtype(use.dtype), std::nullopt, 0};
    const bool runtime = use.runtime || (dynamic_ && !use.fixed && use.value.kind != lowering::Scalar::Kind::kComplex);
    if (!runtime) {
      ref.known = use.value;
      return ref;
    }
    const bool wide = meets_wide_numbers();
    const Slot slot = use.value.is_integral() ? Slot::kInt : wide ? Slot::kDouble : Slot::kFloat;
    ref.slot = add_slots(slot, 1);
    call_->scalars.emplace_back(index, ref.slot);
    return ref;
  }

  // Whether a number has to arrive as float64: unless all that it meets is of at most float32's precision. The bounds
  // of an integer range are not.
  bool meets_wide_numbers() const {
    const auto wide = [](DType dtype) {
      return dtype == DType::kF64 || dtype == DType::kC128 || (!is_floating(dtype) && !is_complex(dtype));
    };
    const auto& results = call_->plan.results;
    if (!results.empty() && (results[0].dtype == DType::kF64 || results[0].dtype == DType::kC128)) return true;
    if (meta_.promoted != c10::ScalarType::Undefined) return wide(to_dtype(meta_.promoted));
    return results.empty() || wide(results[0].dtype);
  }

  void take_random() {
    call_->plan.random_slot = add_slots(Slot::kInt, 2);
    int64_t numel = 0;
    for (const TensorType& type : call_->plan.results) numel = std::max(numel, type.numel());
    call_->random_blocks = static_cast<uint64_t>((numel + 3) / 4) * op_.row->random_factor;
  }

  // ---- results

  void outputs() {
    auto& results = call_->plan.results;
    if (op_.form == Form::kFunctional) {
      for (size_t k = 0; k < results.size(); ++k) create(k, meta_.results[k]);
      return;
    }
    const std::vector<uint32_t> uses = written_uses();
    const size_t first_written = op_.form == Form::kMutating && updates_last() ? meta_.results.size() : 0;
    const size_t first_created = op_.form == Form::kMutating && !updates_last() ? uses.size() : 0;
    if (op_.form == Form::kMutating) {
      for (size_t k = 0; k < meta_.results.size(); ++k) create(first_created + k, meta_.results[k]);
      if (updates_last() && !arguments_[5].toBool()) return;  // native_batch_norm in evaluation
    }
    for (size_t k = 0; k < uses.size(); ++k) replace(first_written + k, uses[k]);
  }

  // Tensor uses of the written arguments, in argument order.
  std::vector<uint32_t> written_uses() const {
    std::vector<uint32_t> uses;
    uint32_t use = 0;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const ArgKind kind = i < op_.kinds.size() ? op_.kinds[i] : ArgKind::kTensor;
      if (kind != ArgKind::kTensor && kind != ArgKind::kTensorList) continue;
      std::vector<at::Tensor> tensors;
      if (arguments_[i].isTensor()) {
        tensors.push_back(arguments_[i].toTensor());
      } else if (arguments_[i].isList()) {
        for (const c10::IValue& element : arguments_[i].toListRef()) {
          if (element.isTensor()) tensors.push_back(element.toTensor());
        }
      }
      const bool written = std::find(op_.written.begin(), op_.written.end(), i) != op_.written.end();
      for (const at::Tensor& tensor : tensors) {
        if (!tensor.defined() || !tensor.device().is_privateuseone()) continue;
        if (written) uses.push_back(use);
        ++use;
      }
    }
    return uses;
  }

  void create(size_t result, const at::Tensor& meta) {
    if (!meta.defined()) {
      call_->created.emplace_back();
      return;
    }
    Dims strides(meta.strides());
    auto order = device::memory_order(meta.sizes(), meta.strides());
    if (!order) {  // PyTorch's kernels never return gaps or overlaps that mean something
      order = iota(static_cast<size_t>(meta.dim()));
      strides = tpu::contiguous_strides(Dims(meta.sizes()));
    }
    TensorType base{to_dtype(meta.scalar_type()), {}};
    for (int64_t dim : *order) base.dims.push_back(meta.size(dim));
    const size_t bytes = base.bytes();
    call_->targets.push_back(-1 - static_cast<int32_t>(call_->created.size()));
    call_->plan.outputs.push_back({std::move(base), static_cast<uint32_t>(result), *order, {}, {}});
    call_->created.push_back(PlannedCall::NewTensor{Dims(meta.sizes()), strides, meta.scalar_type(), bytes});
  }

  void replace(size_t result, uint32_t use) {
    const TensorUse& tensor = signature_.tensors[use];
    graph::OutputTemplate output{tensor.value->type(), static_cast<uint32_t>(result), {}, {}, {}};
    graph::OutputTemplate::Replace replace;
    replace.layout = layout_of(use);
    replace.dtype = to_dtype(tensor.tensor->scalar_type());
    replace.sizes = Dims(tensor.tensor->sizes());
    if (const auto earlier = written_before(use)) {
      replace.after = earlier;
      call_->targets[*earlier] = PlannedCall::kSuperseded;
    } else if (!replace.layout.covers_base() || input_of_use_[use]) {
      // A covering write of a value that the call reads anyway may take over its memory.
      replace.input = input_of(use);
    }
    replace.first_slot = add_slots(Slot::kInt, replace.layout.start_count());
    window_uses_.push_back({use, replace.layout, replace.first_slot});
    output.replace = std::move(replace);
    call_->targets.push_back(static_cast<int32_t>(use));
    call_->plan.outputs.push_back(std::move(output));
  }

  // The last output so far that is written to the storage of this tensor.
  std::optional<uint32_t> written_before(uint32_t use) const {
    const runtime::StorageSlot* slot = &device::slot_of(*signature_.tensors[use].tensor);
    for (size_t k = call_->targets.size(); k > 0; --k) {
      const int32_t target = call_->targets[k - 1];
      if (target >= 0 && &device::slot_of(*signature_.tensors[static_cast<size_t>(target)].tensor) == slot) {
        return static_cast<uint32_t>(k - 1);
      }
    }
    return std::nullopt;
  }

  // Emits the call once by itself, so that what the lowering refuses is raised here, at the user's call.
  void check_lowering() {
    const graph::Plan& plan = call_->plan;
    stablehlo::Builder builder;
    std::vector<stablehlo::Value> inputs, words;
    for (const TensorType& type : plan.inputs) inputs.push_back(builder.parameter(type));
    for (Slot slot : plan.slots) {
      const DType dtype = slot == Slot::kInt ? DType::kS64 : slot == Slot::kFloat ? DType::kF32 : DType::kF64;
      words.push_back(builder.parameter({dtype, {}}));
    }
    graph::lower(plan, builder, {inputs, words}, {});
    for (auto& window : window_uses_) {
      if (window.layout.start_count() > 0) call_->windows.push_back(std::move(window));
    }
  }

  const Operator& op_;
  const Signature& signature_;
  const at::ArrayRef<c10::IValue> arguments_;
  const bool dynamic_;
  Metadata meta_;
  std::unique_ptr<PlannedCall> call_ = std::make_unique<PlannedCall>();
  std::vector<std::optional<uint32_t>> input_of_use_;
  std::vector<PlannedCall::WindowUse> window_uses_;
  uint32_t next_use_ = 0;
  uint32_t next_scalar_ = 0;
};

}  // namespace

std::variant<std::unique_ptr<PlannedCall>, ResizeOut> build_plan(const Operator& op, const Signature& signature,
                                                                 at::ArrayRef<c10::IValue> arguments,
                                                                 bool dynamic_scalars) {
  return PlanBuilder(op, signature, arguments, dynamic_scalars).build();
}

}  // namespace tpu::aten
