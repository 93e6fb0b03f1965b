#include "aten/plan_builder.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <bit>

#include "aten/argument_checks.h"
#include "aten/changing_sizes.h"
#include "base/error.h"
#include "base/hash.h"
#include "device/dtypes.h"
#include "device/storage.h"
#include "graph/capture.h"

namespace tpu::aten {
namespace {

using device::to_dtype;
using graph::Slot;

/// Operators whose kernels give an out tensor that they resize the strides of a new result, matrices column by column,
/// while their meta kernels, in Python, make it contiguous.
bool resizes_like_result(std::string_view row) {
  constexpr std::string_view kOthers[] = {"geqrf", "ormqr", "triangular_solve", "cholesky_inverse"};
  return row.starts_with("linalg_") || row.starts_with("_linalg_") || std::ranges::find(kOthers, row) != end(kOthers);
}

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
    check_arguments(op_, arguments_, meta_.promoted);
    if (op_.form == Form::kOut) {
      if (auto resize = wrong_out_size()) return *resize;
    }
    for (uint32_t use : written_uses()) at::assert_no_internal_overlap(*signature_.tensors[use].tensor);
    plan_->id = graph::next_plan_id();
    fill_plan();
    try {
      check_lowering();
    } catch (const stablehlo::OperandError& error) {
      refuse(error);
    }
    keep_windows();
    call_->plan = plan_.release();
    return std::move(call_);
  }

  void fill_plan() {
    graph::Plan& plan = *plan_;
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
  }

  /// Like build(), for the bounds of sizes that change. With `by_size`, all dims that are as long as a changing one
  /// count as changing: of tensors that are of one size but meet others.
  std::unique_ptr<PlannedCall> build_bounded(SharedPlans& shared, bool by_size) {
    const lowering::BoundedRule rule = lowering::bounded_rule(op_.row->name);
    if (rule == nullptr || op_.writes_several) return nullptr;
    meta_ = compute_metadata(op_, arguments_);
    check_arguments(op_, arguments_, meta_.promoted);
    if (op_.form == Form::kOut && wrong_out_size()) return nullptr;
    for (uint32_t use : written_uses()) at::assert_no_internal_overlap(*signature_.tensors[use].tensor);
    if (!bound_windows(false)) return nullptr;
    if (by_size && !bound_windows(true)) return nullptr;
    if (!bound_metadata()) return nullptr;
    graph::Plan& plan = *plan_;
    plan.bounded = true;
    fill_plan();
    if (misfit_ || !apply(rule)) return nullptr;
    call_->plan = shared.get(graph::content_key(plan), [&] {
      plan.id = graph::next_plan_id();
      check_lowering();
      return std::move(plan_);
    });
    keep_windows();
    for (size_t i = 0; i < changing_.size(); ++i) {
      const at::Tensor& tensor = *signature_.tensors[i].tensor;
      for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
        if ((changing_[i] >> dim & 1) != 0) call_->changing.push_back(tensor.size(dim));
      }
    }
    std::vector<int64_t>& sizes = call_->changing;
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    for (int64_t size : sizes) changed_to(size);
    return std::move(call_);
  }

 private:
  std::optional<ResizeOut> wrong_out_size() const {
    for (size_t k = 0; k < meta_.written.size(); ++k) {
      const at::Tensor& given = arguments_[op_.written[k]].toTensor();
      const at::Tensor& result = op_.functional == op_.handle ? meta_.written[k] : meta_.results[k];
      if (given.sizes() == result.sizes()) continue;
      const Dims sizes(result.sizes());
      if (resizes_like_result(op_.row->name)) return ResizeOut{k, sizes, Dims(result.strides())};
      // The out= form's own meta kernel has resized its twin.
      const at::Tensor& twin = meta_.written[k];
      return ResizeOut{k, sizes, twin.sizes() == result.sizes() ? Dims(twin.strides()) : contiguous_strides(sizes)};
    }
    return std::nullopt;
  }

  // ---- bounds

  // Metadata for the sizes that the program has, and for others, to see which of the results' follow.
  struct Bounded {
    std::vector<graph::Layout> layouts;  // by tensor use
    Metadata meta, probe;
  };

  bool bound_windows(bool by_size) {
    const auto& uses = signature_.tensors;
    std::vector<uint64_t> wanted;
    for (size_t i = 0; i < uses.size(); ++i) wanted.push_back(uses[i].changing | (by_size ? of_changing_size(i) : 0));
    changing_.assign(uses.size(), 0);
    Bounded bounded;
    graph::SizeBounds sizes(&changing_bound);
    do {
      bounded.layouts.clear();
      for (size_t i = 0; i < uses.size(); ++i) {
        auto layout = bounded_layout(uses[i], wanted[i], &changing_[i], sizes);
        if (!layout) return false;
        bounded.layouts.push_back(std::move(*layout));
      }
    } while (sizes.take_stale());
    // A part of a changing tensor, such as its last row, may itself be of one size.
    const bool any =
        signature_.bounded || std::any_of(changing_.begin(), changing_.end(), [](uint64_t dims) { return dims != 0; });
    if (!any) return false;
    bounded_ = std::move(bounded);
    return true;
  }

  bool bound_metadata() {
    Bounded& bounded = *bounded_;
    std::vector<Dims> own, others;
    for (size_t i = 0; i < bounded.layouts.size(); ++i) {
      own.push_back(bounded.layouts[i].read_sizes());
      others.push_back(own.back());
      for (size_t dim = 0; dim < own.back().size(); ++dim) {
        if ((changing_[i] >> dim & 1) != 0) others.back()[dim] *= 2;
      }
    }
    try {
      bounded.meta = compute_metadata(op_, arguments_, own);
      bounded.probe = compute_metadata(op_, arguments_, others);
    } catch (const c10::Error&) {  // sizes that do not fit together
      return false;
    }
    return true;
  }

  static std::optional<graph::Layout> bounded_layout(const TensorUse& use, uint64_t wanted, uint64_t* changing,
                                                     graph::SizeBounds& sizes) {
    const at::Tensor& tensor = *use.tensor;
    if (tensor.dim() > 32 || use.gather) return std::nullopt;
    *changing = wanted;
    const Dims own(tensor.sizes());
    const Dims strides = use.identity ? contiguous_strides(own) : Dims(tensor.strides());
    return graph::Layout::make_bounded(use.value->type(), use.value->bounds(),
                                       {to_dtype(tensor.scalar_type()), own, strides}, tensor.storage_offset(),
                                       changing, sizes);
  }

  // The dims of a tensor that are as long as some dim that was found to change.
  uint64_t of_changing_size(size_t use) const {
    const auto changes = [&](int64_t size) {
      for (size_t i = 0; i < changing_.size(); ++i) {
        const at::Tensor& tensor = *signature_.tensors[i].tensor;
        for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
          if ((changing_[i] >> dim & 1) != 0 && tensor.size(dim) == size) return true;
        }
      }
      return false;
    };
    uint64_t dims = 0;
    const at::Tensor& tensor = *signature_.tensors[use].tensor;
    for (int64_t dim = 0; dim < std::min<int64_t>(tensor.dim(), 32); ++dim) {
      if (changes(tensor.size(dim))) dims |= uint64_t{1} << dim;
    }
    return dims;
  }

  const Metadata& program_meta() const { return bounded_ ? bounded_->meta : meta_; }

  // The rule's say, then words for the sizes that it, or the row, needs.
  bool apply(lowering::BoundedRule rule) {
    std::vector<lowering::Arg> attributes;
    std::vector<std::vector<lowering::BoundedArgument>> tensors;
    uint32_t use = 0;
    std::vector<std::vector<uint32_t>> uses;
    for (graph::ArgTemplate& argument : plan_->args) {
      attributes.push_back(graph::attribute_of(argument));
      tensors.emplace_back();
      uses.emplace_back();
      const auto add = [&] {
        const Dims& sizes = bounded_->layouts[use].read_sizes();
        const at::Tensor& tensor = *signature_.tensors[use].tensor;
        tensors.back().push_back({sizes, changing_[use], to_dtype(tensor.scalar_type()), Dims(tensor.sizes())});
        uses.back().push_back(use++);
      };
      if (std::holds_alternative<graph::TensorRef>(argument) || std::holds_alternative<graph::UnreadTensor>(argument)) {
        add();
      } else if (const auto* list = std::get_if<std::vector<std::optional<graph::TensorRef>>>(&argument)) {
        for (const auto& element : *list) {
          if (element) {
            add();
          } else {
            tensors.back().emplace_back();
            uses.back().push_back(0);
          }
        }
      }
    }
    lowering::BoundedCall call(std::move(attributes), std::move(tensors));
    if (!rule(call)) return false;
    for (size_t i = 0; i < plan_->args.size(); ++i) {
      for (size_t k = 0; k < uses[i].size(); ++k) {
        graph::TensorRef* ref = std::get_if<graph::TensorRef>(&plan_->args[i]);
        if (auto* list = std::get_if<std::vector<std::optional<graph::TensorRef>>>(&plan_->args[i])) {
          ref = (*list)[k] ? &*(*list)[k] : nullptr;
        }
        if (ref == nullptr) continue;
        const lowering::BoundedArgument& argument = call.tensors()[i][k];
        ref->filled = argument.filled;
        ref->fill = argument.fill;
        ref->fill_number = argument.number;
        const uint64_t wanted = argument.asked ? argument.changing : argument.filled;
        ref->present = present_sizes(wanted, Dims(signature_.tensors[uses[i][k]].tensor->sizes()));
      }
    }
    return true;
  }

  // Words that tell the sizes of these dims.
  std::vector<graph::TensorRef::Present> present_sizes(uint64_t dims, const Dims& sizes) {
    std::vector<graph::TensorRef::Present> present;
    for (uint32_t dim = 0; dim < sizes.size(); ++dim) {
      if ((dims >> dim & 1) == 0) continue;
      const uint32_t slot = add_slots(Slot::kInt, 1);
      present.push_back({dim, slot});
      call_->sizes.emplace_back(slot, static_cast<uint64_t>(sizes[dim]));
    }
    return present;
  }

  // Joined tensors have a sum of bounds, and are stored in one bound again. What outgrows it goes on growing, most
  // likely, and gets room for that, as vectors do.
  static int64_t joined_bound(int64_t sum, int64_t own) {
    const graph::Capture* const capture = graph::Capture::current();
    if (capture != nullptr && capture->knows_sizes() && was_changed_to(own)) return changing_bound(own);
    const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(sum)));
    return own <= below ? below : bound_of(2 * own);
  }

  // The base of a new result for the bounds of its sizes; `base` has its own.
  void bound_output(graph::OutputTemplate& output, size_t created, const Dims& order) {
    const Dims sizes(bounded_->meta.results[created].sizes()), others(bounded_->probe.results[created].sizes());
    const Dims own(meta_.results[created].sizes());
    graph::OutputForm form{output.base, 0};
    bool fits = sizes.size() == own.size() && others.size() == own.size();
    for (size_t i = 0; fits && i < order.size(); ++i) {
      const auto dim = static_cast<size_t>(order[i]);
      const bool changes = others[dim] != sizes[dim];
      fits = changes ? sizes[dim] >= own[dim] && own[dim] > 0 : sizes[dim] == own[dim];
      if (!changes) continue;
      form.changing |= uint64_t{1} << i;
      output.base.dims[i] = joined_bound(sizes[dim], own[dim]);
    }
    misfit_ |= !fits;
    if (fits && bounded_sizes() == BoundedSizes::kAlways) {
      output.poisoned = present_sizes(form.changing, form.type.dims);
    }
    call_->forms.push_back(std::move(form));
  }

  // ---- types

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
    auto& results = plan_->results;
    const auto add = [&](const std::vector<at::Tensor>& tensors) {
      for (const at::Tensor& tensor : tensors) results.push_back(tensor.defined() ? type_of(tensor) : TensorType{});
    };
    const Metadata& meta = program_meta();
    if (op_.form == Form::kMutating && !updates_last()) add(meta.written);
    add(meta.results);
    if (op_.form == Form::kMutating && updates_last()) add(meta.written);
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
    if (unread) {
      TensorType type = type_of(value);
      if (bounded_) type.dims = bounded_->layouts[use].read_sizes();
      return graph::UnreadTensor{std::move(type)};
    }
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
    if (bounded_) return bounded_->layouts[use];
    const TensorUse& tensor = signature_.tensors[use];
    const TensorType& base = tensor.value->type();
    const Dims sizes(tensor.tensor->sizes());
    const Dims strides = tensor.identity ? contiguous_strides(sizes) : Dims(tensor.tensor->strides());
    return graph::Layout::make(base, {to_dtype(tensor.tensor->scalar_type()), sizes, strides},
                               tensor.tensor->storage_offset(), tensor.gather);
  }

  uint32_t input_of(uint32_t use) {
    if (!input_of_use_[use]) {
      input_of_use_[use] = static_cast<uint32_t>(plan_->inputs.size());
      const runtime::Value& value = *signature_.tensors[use].value;
      plan_->inputs.push_back(bounded_ ? value.stored_type() : value.type());
      call_->input_uses.push_back(use);
    }
    return *input_of_use_[use];
  }

  uint32_t add_slots(Slot slot, size_t count) {
    auto& slots = plan_->slots;
    const auto first = static_cast<uint32_t>(slots.size());
    slots.insert(slots.end(), count, slot);
    return first;
  }

  graph::TensorRef read(uint32_t use) {
    graph::TensorRef ref{input_of(use), layout_of(use), 0, {}, 0, {}, 0};
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
    const auto& results = plan_->results;
    if (!results.empty() && (results[0].dtype == DType::kF64 || results[0].dtype == DType::kC128)) return true;
    if (meta_.promoted != c10::ScalarType::Undefined) return wide(to_dtype(meta_.promoted));
    return results.empty() || wide(results[0].dtype);
  }

  void take_random() {
    plan_->random_slot = add_slots(Slot::kInt, 2);
    int64_t numel = 0;
    const auto count = [&](const std::vector<at::Tensor>& tensors) {
      for (const at::Tensor& tensor : tensors) numel = std::max(numel, tensor.defined() ? tensor.numel() : 0);
    };
    count(meta_.results);
    count(meta_.written);
    call_->random_blocks = static_cast<uint64_t>((numel + 3) / 4) * op_.row->random_factor;
  }

  // ---- results

  void outputs() {
    auto& results = plan_->results;
    if (op_.form == Form::kFunctional) {
      for (size_t k = 0; k < results.size(); ++k) create(k, k);
      return;
    }
    const std::vector<uint32_t> uses = written_uses();
    const size_t first_written = op_.form == Form::kMutating && updates_last() ? meta_.results.size() : 0;
    const size_t first_created = op_.form == Form::kMutating && !updates_last() ? uses.size() : 0;
    if (op_.form == Form::kMutating) {
      for (size_t k = 0; k < meta_.results.size(); ++k) create(first_created + k, k);
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

  // Result `result` of the lowering, `created` among those that are new tensors.
  void create(size_t result, size_t created) {
    const at::Tensor& meta = meta_.results[created];
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
    graph::OutputTemplate output{std::move(base), static_cast<uint32_t>(result), *order, {}, {}, {}};
    if (bounded_) bound_output(output, created, *order);
    plan_->outputs.push_back(std::move(output));
    call_->created.push_back(PlannedCall::NewTensor{Dims(meta.sizes()), strides, meta.scalar_type(), bytes});
  }

  void replace(size_t result, uint32_t use) {
    const TensorUse& tensor = signature_.tensors[use];
    graph::OutputTemplate output{tensor.value->type(), static_cast<uint32_t>(result), {}, {}, {}, {}};
    if (bounded_) {
      const Bounds* const bounds = tensor.value->bounds();
      call_->forms.push_back({tensor.value->type(), bounds ? bounds->dims : 0});
      output.base = tensor.value->stored_type();
    }
    graph::OutputTemplate::Replace replace;
    replace.layout = layout_of(use);
    replace.dtype = to_dtype(tensor.tensor->scalar_type());
    replace.sizes = Dims(tensor.tensor->sizes());
    if (bounded_) {
      replace.sizes = replace.layout.read_sizes();
      if (replace.layout.writes_part()) {
        replace.present = present_sizes(changing_[use], Dims(tensor.tensor->sizes()));
      }
    }
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
    plan_->outputs.push_back(std::move(output));
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
    const graph::Plan& plan = *plan_;
    stablehlo::Builder builder;
    std::vector<stablehlo::Value> inputs, words;
    for (const TensorType& type : plan.inputs) inputs.push_back(builder.parameter(type));
    for (Slot slot : plan.slots) {
      const DType dtype = slot == Slot::kInt ? DType::kS64 : slot == Slot::kFloat ? DType::kF32 : DType::kF64;
      words.push_back(builder.parameter({dtype, {}}));
    }
    graph::lower(plan, builder, {inputs, words}, {});
  }

  /// Raises what PyTorch's kernels raise for arguments that they were not written for. The host's have none either, so
  /// that there is no falling back to them.
  [[noreturn]] void refuse(const stablehlo::OperandError& error) const {
    std::string forms;
    bool one_dtype = !signature_.tensors.empty();
    for (const TensorUse& use : signature_.tensors) {
      one_dtype = one_dtype && use.tensor->scalar_type() == signature_.tensors[0].tensor->scalar_type();
      forms += (forms.empty() ? "" : ", ") + to_string(type_of(*use.tensor));
    }
    TORCH_CHECK_NOT_IMPLEMENTED(!error.about_dtypes() || !one_dtype, "\"", op_.name, "\" not implemented for '",
                                signature_.tensors[0].tensor->scalar_type(), "'");
    TORCH_CHECK(false, op_.name, ": the ", error.about_dtypes() ? "dtypes" : "sizes",
                " of its arguments do not fit each other: ", forms);
  }

  void keep_windows() {
    for (auto& window : window_uses_) {
      if (window.layout.start_count() > 0) call_->windows.push_back(std::move(window));
    }
  }

  const Operator& op_;
  const Signature& signature_;
  const at::ArrayRef<c10::IValue> arguments_;
  const bool dynamic_;
  Metadata meta_;
  std::optional<Bounded> bounded_;
  std::vector<uint64_t> changing_;  // by tensor use: bit per dim
  bool misfit_ = false;             // some result's size does not follow from the arguments' bounds
  std::unique_ptr<PlannedCall> call_ = std::make_unique<PlannedCall>();
  std::unique_ptr<graph::Plan> plan_ = std::make_unique<graph::Plan>();
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

std::unique_ptr<PlannedCall> build_bounded_plan(const Operator& op, const Signature& signature,
                                                at::ArrayRef<c10::IValue> arguments, bool dynamic_scalars,
                                                SharedPlans& shared) {
  for (bool by_size : {false, true}) {
    try {
      auto call = PlanBuilder(op, signature, arguments, dynamic_scalars).build_bounded(shared, by_size);
      if (call != nullptr) return call;
    } catch (const Error&) {
      // The lowering does not get along with these sizes. What is wrong with the call itself is found again without
      // bounds.
    }
  }
  return nullptr;
}

const graph::Plan* SharedPlans::get(const std::vector<uint64_t>& key,
                                    const std::function<std::unique_ptr<graph::Plan>()>& make) {
  const uint64_t hash = table_hash(hash_words(key.data(), key.size()));
  const auto find = [&]() -> const graph::Plan* {
    auto [first, last] = plans_.equal_range(hash);
    for (; first != last; ++first) {
      if (first->second.first == key) return first->second.second;
    }
    return nullptr;
  };
  {
    std::lock_guard lock(mutex_);
    if (const graph::Plan* known = find()) return known;
  }
  std::unique_ptr<graph::Plan> made = make();
  std::lock_guard lock(mutex_);
  if (const graph::Plan* known = find()) return known;
  return plans_.emplace(hash, std::pair{key, made.release()})->second.second;
}

}  // namespace tpu::aten
