#include "aten/tape.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>

#include "base/hash.h"

namespace tpu::aten {
namespace {

// An operator that is called with ever new shapes is not worth more.
constexpr size_t kTapesPerOperator = 256;

constexpr int32_t kUnknown = -2;

struct Tapes {
  struct Entry {
    std::vector<uint64_t> key;
    std::shared_ptr<const Tape> tape;  // null: cannot be taped
  };
  std::unordered_multimap<uint64_t, Entry> entries;
};

std::mutex tapes_mutex;
std::unordered_map<c10::OperatorName, Tapes>& all_tapes() {
  static auto* const map = new std::unordered_map<c10::OperatorName, Tapes>;
  return *map;
}
std::atomic<int64_t> replays{0}, kept{0};

uint64_t table_hash(const TapeKey& key) { return tpu::table_hash(hash_words(key.words().data(), key.words().size())); }

// REQUIRES: tapes_mutex.
const Tapes::Entry* find_entry(const c10::OperatorHandle& op, const TapeKey& key) {
  const auto found = all_tapes().find(op.operator_name());
  if (found == all_tapes().end()) return nullptr;
  auto [first, last] = found->second.entries.equal_range(table_hash(key));
  for (; first != last; ++first) {
    if (first->second.key == key.words()) return &first->second;
  }
  return nullptr;
}

template <typename Use>
void for_each_tensor(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef()) use(element.isNone() ? at::Tensor() : element.toTensor());
  }
}

c10::IValue value_from(const TapeValues& values, const std::vector<at::Tensor>& known) {
  const auto tensor = [&](int32_t number) { return number < 0 ? at::Tensor() : known[static_cast<size_t>(number)]; };
  if (values.kind == TapeValues::Kind::kTensor) return tensor(values.numbers[0]);
  if (values.kind == TapeValues::Kind::kList) {
    c10::List<at::Tensor> list;
    for (int32_t number : values.numbers) list.push_back(tensor(number));
    return list;
  }
  c10::List<std::optional<at::Tensor>> list;
  for (int32_t number : values.numbers) {
    list.push_back(number < 0 ? std::nullopt : std::optional(tensor(number)));
  }
  return list;
}

bool holds_only_values(const c10::IValue& value) {
  if (value.isList()) {
    const auto list = value.toListRef();
    return std::all_of(list.begin(), list.end(), holds_only_values);
  }
  return value.isNone() || value.isScalar() || value.isString() || value.isDevice();
}

}  // namespace

// ---- recording ---------------------------------------------------------------------------------------

TapeRecorder::TapeRecorder(at::ArrayRef<c10::IValue> arguments) : tape_(std::make_shared<Tape>()) {
  // A tensor given twice is one value; the key tells such calls apart. Numbers follow replay()'s order.
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) { name(tensor); });
  }
  tape_->inputs = tape_->values;
}

int32_t TapeRecorder::name(const at::Tensor& tensor) {
  const auto number = static_cast<int32_t>(tape_->values++);
  if (!tensor.defined()) return number;
  alive_.push_back(tensor);
  return numbers_.emplace(tensor.unsafeGetTensorImpl(), number).first->second;
}

int32_t TapeRecorder::number_of(const at::Tensor& tensor) const {
  const auto found = numbers_.find(tensor.unsafeGetTensorImpl());
  return found == numbers_.end() ? kUnknown : found->second;
}

// Nothing for a tensor that the tape does not know.
std::optional<TapeValues> TapeRecorder::values_of(const c10::IValue& value) const {
  TapeValues values;
  values.kind = value.isTensor()               ? TapeValues::Kind::kTensor
                : value.isOptionalTensorList() ? TapeValues::Kind::kOptionalList
                                               : TapeValues::Kind::kList;
  for_each_tensor(
      value, [&](const at::Tensor& tensor) { values.numbers.push_back(tensor.defined() ? number_of(tensor) : -1); });
  if (std::find(values.numbers.begin(), values.numbers.end(), kUnknown) != values.numbers.end()) return std::nullopt;
  return values;
}

void TapeRecorder::step(const c10::OperatorHandle& op, torch::jit::Stack arguments, const torch::jit::Stack& results) {
  if (tape_ == nullptr) return;
  TapeStep step{op, {}, {}, {}, {}};
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& argument = arguments[i];
    if (argument.isTensor() && argument.toTensor().defined() &&
        argument.toTensor().unsafeGetTensorImpl()->is_wrapped_number() && number_of(argument.toTensor()) == kUnknown) {
      step.constants.push_back(std::move(argument));  // a Python number
    } else if (argument.isTensor() || argument.isTensorList() || argument.isOptionalTensorList()) {
      std::optional<TapeValues> values = values_of(argument);
      if (!values) return give_up();
      step.tensors.emplace_back(i, *std::move(values));
      step.constants.emplace_back();
    } else if (holds_only_values(argument)) {
      step.constants.push_back(std::move(argument));
    } else {
      return give_up();
    }
  }
  for (const c10::IValue& result : results) {
    if (!(result.isTensor() || result.isTensorList())) return give_up();  // a value that Python may branch on
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      // In-place operators return a tensor that has its number already; the replayed one is the same tensor.
      const int32_t number = tensor.defined() ? number_of(tensor) : -1;
      step.results.push_back(number == kUnknown ? name(tensor) : number);
    });
  }
  tape_->steps.push_back(std::move(step));
}

std::shared_ptr<const Tape> TapeRecorder::finish(at::ArrayRef<c10::IValue> results) {
  if (tape_ == nullptr) return nullptr;
  std::vector<char> needed(tape_->values, 0);
  const auto need = [&](const TapeValues& values) {
    for (int32_t number : values.numbers) {
      if (number >= 0) needed[static_cast<size_t>(number)] = 1;
    }
  };
  for (const c10::IValue& result : results) {
    if (!(result.isTensor() || result.isTensorList())) return nullptr;
    std::optional<TapeValues> values = values_of(result);
    if (!values) return nullptr;
    need(*values);
    tape_->results.push_back(*std::move(values));
  }
  // Values are let go after their last use, as Python would, so that their memory can be donated.
  for (auto step = tape_->steps.rbegin(); step != tape_->steps.rend(); ++step) {
    const auto last_use = [&](int32_t number) {
      if (number < 0 || needed[static_cast<size_t>(number)]) return;
      needed[static_cast<size_t>(number)] = 1;
      step->last_uses.push_back(number);
    };
    for (int32_t number : step->results) last_use(number);
    for (const auto& [position, values] : step->tensors)
      std::for_each(values.numbers.begin(), values.numbers.end(), last_use);
  }
  return tape_;
}

// ---- replaying ---------------------------------------------------------------------------------------

void replay(const Tape& tape, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  replays.fetch_add(1, std::memory_order_relaxed);
  std::vector<at::Tensor> values(tape.values);
  size_t next = 0;
  const size_t count = op.schema().arguments().size();
  for (const c10::IValue& argument : torch::jit::last(*stack, count)) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) { values[next++] = tensor; });
  }
  torch::jit::Stack call;
  for (const TapeStep& step : tape.steps) {
    call.assign(step.constants.begin(), step.constants.end());
    for (const auto& [position, sources] : step.tensors) call[position] = value_from(sources, values);
    step.op.callBoxed(&call);
    next = 0;
    for (const c10::IValue& result : call) {
      for_each_tensor(result, [&](const at::Tensor& tensor) {
        const int32_t number = step.results.at(next++);
        if (number >= 0) values[static_cast<size_t>(number)] = tensor;
      });
    }
    call.clear();
    for (int32_t number : step.last_uses) values[static_cast<size_t>(number)].reset();
  }
  torch::jit::drop(*stack, count);
  for (const TapeValues& result : tape.results) stack->push_back(value_from(result, values));
}

// ---- keys --------------------------------------------------------------------------------------------

TapeKey::TapeKey(at::ArrayRef<c10::IValue> arguments) {
  const at::Context& context = at::globalContext();
  words_.push_back(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) |
                   uint64_t{context.deterministicAlgorithms()} << 8 | uint64_t{c10::GradMode::is_enabled()} << 9 |
                   uint64_t{c10::InferenceMode::is_enabled()} << 10);
  for (const c10::IValue& argument : arguments) add(argument);
}

void TapeKey::add(const c10::IValue& value) {
  enum Tag : uint64_t { kNone = 1, kInt, kDouble, kBool, kComplex, kText, kList, kDevice };
  const auto push = [&](Tag tag, uint64_t word) {
    words_.push_back(tag);
    words_.push_back(word);
  };
  if (value.isTensor()) {
    add_tensor(value.toTensor());
  } else if (value.isNone()) {
    words_.push_back(kNone);
  } else if (value.isInt()) {
    push(kInt, static_cast<uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    push(kDouble, std::bit_cast<uint64_t>(value.toDouble()));
  } else if (value.isBool()) {
    push(kBool, value.toBool());
  } else if (value.isComplexDouble()) {
    push(kComplex, std::bit_cast<uint64_t>(value.toComplexDouble().real()));
    words_.push_back(std::bit_cast<uint64_t>(value.toComplexDouble().imag()));
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    push(kText, text.size());
    for (char c : text) words_.push_back(static_cast<unsigned char>(c));
  } else if (value.isDevice()) {
    push(kDevice, static_cast<uint64_t>(value.toDevice().type()) << 8 | static_cast<uint8_t>(value.toDevice().index()));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    push(kList, list.size());
    for (const c10::IValue& element : list) add(element);
  } else {
    usable_ = false;
  }
}

void TapeKey::add_tensor(const at::Tensor& tensor) {
  constexpr uint64_t kTensor = 16;
  if (!tensor.defined()) {
    words_.push_back(kTensor << 56 | 1);
    return;
  }
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (tensor.layout() != c10::kStrided || impl.is_python_dispatch() || impl.has_symbolic_sizes_strides() ||
      !tensor.has_storage()) {
    usable_ = false;
    return;
  }
  const c10::Device device = tensor.device();
  if (device.is_privateuseone() && device_ < 0) device_ = device.index();
  // Which arguments share memory: a decomposition that writes may not see the difference, the operator does.
  const void* storage = impl.storage().unsafeGetStorageImpl();
  size_t first = 0;
  while (first < storages_.size() && storages_[first] != storage) ++first;
  storages_.push_back(storage);
  words_.push_back(kTensor << 56 | uint64_t{impl.is_conj()} << 48 | uint64_t{impl.is_neg()} << 49 |
                   uint64_t{impl.is_wrapped_number()} << 50 | uint64_t{tensor.requires_grad()} << 51 |
                   static_cast<uint64_t>(device.type()) << 40 | uint64_t{static_cast<uint8_t>(device.index())} << 32 |
                   static_cast<uint64_t>(tensor.scalar_type()) << 24 | impl.sizes().size());
  words_.push_back(first);
  words_.push_back(static_cast<uint64_t>(impl.storage_offset()));
  for (int64_t size : impl.sizes()) words_.push_back(static_cast<uint64_t>(size));
  for (int64_t stride : impl.strides()) words_.push_back(static_cast<uint64_t>(stride));
}

std::shared_ptr<const Tape> find_tape(const c10::OperatorHandle& op, const TapeKey& key) {
  if (!key.usable()) return nullptr;
  std::lock_guard lock(tapes_mutex);
  const Tapes::Entry* entry = find_entry(op, key);
  return entry == nullptr ? nullptr : entry->tape;
}

bool wants_tape(const c10::OperatorHandle& op, const TapeKey& key) {
  if (!key.usable()) return false;
  std::lock_guard lock(tapes_mutex);
  return find_entry(op, key) == nullptr && all_tapes()[op.operator_name()].entries.size() < kTapesPerOperator;
}

void keep_tape(const c10::OperatorHandle& op, const TapeKey& key, std::shared_ptr<const Tape> tape) {
  std::lock_guard lock(tapes_mutex);
  if (find_entry(op, key) != nullptr) return;
  kept.fetch_add(tape != nullptr, std::memory_order_relaxed);
  all_tapes()[op.operator_name()].entries.emplace(table_hash(key), Tapes::Entry{key.words(), std::move(tape)});
}

TapeStats tape_stats() { return {kept.load(), replays.load()}; }

}  // namespace tpu::aten
