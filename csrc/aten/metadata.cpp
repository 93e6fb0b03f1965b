#include "aten/metadata.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ScalarOps.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "aten/result_strides.h"

namespace tpu::aten {
namespace {

// Makes the twins of a call's tensors, in the order of its arguments.
class Twins {
 public:
  explicit Twins(std::span<const Dims> sizes) : sizes_(sizes) {}

  at::Tensor make(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_privateuseone()) return tensor;  // 0-d CPU tensors stay
    if (sizes_.empty()) {
      return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    }
    const Dims& sizes = sizes_[next_++];
    if (sizes == Dims(tensor.sizes())) {
      return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    }
    const Dims strides = dense_strides({sizes.data(), sizes.size()}, outermost_first(tensor.strides()));
    return at::detail::empty_strided_meta({sizes.data(), sizes.size()}, {strides.data(), strides.size()},
                                          tensor.scalar_type());
  }

 private:
  const std::span<const Dims> sizes_;
  size_t next_ = 0;
};

c10::IValue meta_twin(const c10::IValue& value, ArgKind kind, Twins& twins) {
  if (kind == ArgKind::kTensor && value.isTensor()) return twins.make(value.toTensor());
  if (kind != ArgKind::kTensorList || !value.isList()) return value;
  const auto elements = value.toListRef();
  c10::impl::GenericList list(value.toList().elementType());
  for (const c10::IValue& element : elements) {
    list.push_back(element.isNone() ? element : c10::IValue(twins.make(element.toTensor())));
  }
  return list;
}

// The same call on meta tensors. Kept apart from the twins it makes for written arguments.
torch::jit::Stack meta_arguments(const Operator& op, at::ArrayRef<c10::IValue> arguments, size_t count,
                                 std::span<const Dims> sizes) {
  torch::jit::Stack stack;
  Twins twins(sizes);
  for (size_t i = 0; i < count; ++i) {
    stack.push_back(meta_twin(arguments[i], i < op.kinds.size() ? op.kinds[i] : ArgKind::kTensor, twins));
  }
  return stack;
}

// Device arguments must say "meta" when the meta kernel makes its result.
void point_at_meta(torch::jit::Stack& stack) {
  for (c10::IValue& value : stack) {
    if (value.isDevice()) value = c10::Device(c10::DeviceType::Meta);
  }
}

bool is_bool(const c10::IValue& value) {
  return value.isBool() ||
         (value.isTensor() && value.toTensor().defined() && value.toTensor().scalar_type() == at::kBool);
}

// PyTorch has no meta kernel for some operators, and for these one that tells other things than the CPU's: it knows
// only CUDA's dtypes or strides, makes a channels-last result contiguous, or makes int64 of bool ** bool. Then the CPU
// kernel is run on zeros.
bool has_unsuitable_meta(const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  const std::string& name = handle.operator_name().name;
  return name == "aten::_grouped_mm" || name == "aten::max_unpool2d" || name == "aten::nonzero_static" ||
         (name == "aten::pow" && is_bool(stack[0]) && is_bool(stack[1]));
}

c10::IValue zeros_on_cpu(const c10::IValue& value) {
  const auto zeros = [](const at::Tensor& meta) {
    if (!meta.defined() || !meta.is_meta()) return meta;
    at::Tensor made = at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(at::kCPU));
    return made.zero_();
  };
  if (value.isTensor()) return zeros(value.toTensor());
  if (value.isDevice()) return c10::Device(c10::DeviceType::CPU);
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(zeros(tensor));
  return list;
}

c10::IValue meta_of_cpu(const c10::IValue& value) {
  const auto meta = [](const at::Tensor& made) {
    if (!made.defined()) return made;
    return at::Tensor(at::detail::empty_strided_meta(made.sizes(), made.strides(), made.scalar_type()));
  };
  if (value.isTensor()) return meta(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(meta(tensor));
  return list;
}

void run_on_zeros(const c10::OperatorHandle& handle, torch::jit::Stack& stack) {
  for (c10::IValue& value : stack) value = zeros_on_cpu(value);
  handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (c10::IValue& value : stack) value = meta_of_cpu(value);
}

void run_meta(const c10::OperatorHandle& handle, torch::jit::Stack& stack) {
  if (has_unsuitable_meta(handle, stack)) {
    run_on_zeros(handle, stack);
    return;
  }
  point_at_meta(stack);
  const torch::jit::Stack arguments = stack;
  bool use_zeros = false;
  try {
    handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const c10::NotImplementedError&) {
    use_zeros = true;
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception&) {
    // A Python meta function that fails by itself (the mean of an empty loss divides by 0) instead of refusing.
    use_zeros = true;
  }
  if (use_zeros) {
    stack = arguments;
    for (c10::IValue& value : stack) {
      if (value.isGenerator()) value = c10::IValue();
    }
    run_on_zeros(handle, stack);
  }
}

void flatten(const c10::IValue& value, std::vector<at::Tensor>& into) {
  if (value.isTensor()) {
    into.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) into.push_back(tensor);
  } else if (value.isNone()) {
    into.emplace_back();
  }
}

void collect_tensors(const c10::IValue& value, ArgKind kind, std::vector<at::Tensor>& into) {
  if (kind == ArgKind::kTensor || kind == ArgKind::kTensorList) flatten(value, into);
}

/// Whether an argument says which elements of another are meant. Its dtype has no part in promotion, of which there is
/// none between uint16, uint32 or uint64 and the int64 of indices.
bool selects_elements(const c10::Argument& argument) {
  const std::string& name = argument.name();
  return name == "index" || name == "indices" || name == "mask" || name == "condition";
}

c10::ScalarType promote(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  at::native::ResultTypeState state{};
  bool any = false;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    // float8 takes part in no promotion: operators on it work dtype by dtype.
    if (c10::isFloat8Type(tensor.scalar_type())) return;
    state = at::native::update_result_type_state(tensor, state);
    any = true;
  };
  const auto add_number = [&](const c10::IValue& value) { add(at::native::wrapped_scalar_tensor(value.toScalar())); };
  for (size_t i = 0; i < op.kinds.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isNone() || selects_elements(op.handle.schema().arguments()[i])) continue;
    if (op.kinds[i] == ArgKind::kTensor) add(value.toTensor());
    if (op.kinds[i] == ArgKind::kScalar) add_number(value);
    if (op.kinds[i] == ArgKind::kTensorList || op.kinds[i] == ArgKind::kScalarList) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) add(element.toTensor());
        if (element.isScalar()) add_number(element);
      }
    }
  }
  return any ? at::native::result_type(state) : c10::ScalarType::Undefined;
}

void collect_written(const Operator& op, const torch::jit::Stack& arguments, std::vector<at::Tensor>& into) {
  for (size_t position : op.written) {
    collect_tensors(arguments[position], position < op.kinds.size() ? op.kinds[position] : ArgKind::kTensor, into);
  }
}

void check_castable(const Operator& op, const Metadata& meta) {
  for (size_t k = 0; k < std::min(meta.results.size(), meta.written.size()); ++k) {
    if (!meta.results[k].defined() || !meta.written[k].defined()) continue;
    const c10::ScalarType from = meta.results[k].scalar_type();
    const c10::ScalarType to = meta.written[k].scalar_type();
    TORCH_CHECK(from == to || !op.row->exact_out || op.form != Form::kOut, "Expected out tensor to have dtype ", from,
                ", but got ", to, " instead");
    TORCH_CHECK(c10::canCast(from, to), "result type ", from, " can't be cast to the desired output type ", to);
  }
}

}  // namespace

Metadata compute_metadata(const Operator& op, at::ArrayRef<c10::IValue> arguments, std::span<const Dims> sizes) {
  Metadata meta;
  meta.promoted = promote(op, arguments);
  const size_t row_arguments = op.kinds.size();

  if (op.form == Form::kMutating) {
    torch::jit::Stack stack = meta_arguments(op, arguments, row_arguments, sizes);
    collect_written(op, stack, meta.written);
    if (op.returned == 0) return meta;  // in-place only: results are as the arguments are
    run_meta(op.handle, stack);
    for (size_t i = 0; i < stack.size(); ++i) {
      if (op.handle.schema().returns()[i].alias_info() == nullptr) flatten(stack[i], meta.results);
    }
    return meta;
  }
  if (op.form != Form::kFunctional && op.functional == op.handle) {  // a factory: the out tensor tells all
    torch::jit::Stack stack = meta_arguments(op, arguments, arguments.size(), sizes);
    collect_written(op, stack, meta.written);
    if (sizes.empty()) run_meta(op.handle, stack);  // the numbers give the tensor's own size
    meta.results = meta.written;
    return meta;
  }
  torch::jit::Stack stack = meta_arguments(op, arguments, row_arguments, sizes);
  run_meta(op.functional, stack);
  for (const c10::IValue& value : stack) flatten(value, meta.results);
  set_result_strides(op, arguments, meta.results);
  if (op.form == Form::kFunctional) return meta;

  torch::jit::Stack written_form = meta_arguments(op, arguments, arguments.size(), sizes);
  collect_written(op, written_form, meta.written);
  check_castable(op, meta);
  // For the checks that only the written form makes: an in-place result must not broadcast self.
  run_meta(op.handle, written_form);
  return meta;
}

}  // namespace tpu::aten
