#pragma once
// Tapes: what a decomposition did, so that Python runs it once per signature. A tape lists the operators that
// the decomposition called and how their arguments hang together; replaying dispatches them again, so views,
// offsets and random numbers are those of the new call. What a tape cannot hold (a value read back to Python,
// a tensor from elsewhere) is not taped, and the decomposition goes on running in Python.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace tpu::aten {

/// Argument or result that is no constant: values by number, -1 for an undefined or missing tensor.
struct TapeValues {
  enum class Kind : uint8_t { kTensor, kList, kOptionalList };
  Kind kind;
  std::vector<int32_t> numbers;
};

struct TapeStep {
  c10::OperatorHandle op;
  std::vector<std::pair<size_t, TapeValues>> tensors;  // argument position -> values
  std::vector<c10::IValue> constants;                  // all arguments; None where `tensors` has an entry
  std::vector<int32_t> results;                        // numbers of the result tensors in order, lists flattened
  std::vector<int32_t> last_uses;                      // values that nothing after this step needs
};

/// Immutable once made; replayed by any thread.
struct Tape {
  size_t inputs = 0, values = 0;
  std::vector<TapeStep> steps;
  std::vector<TapeValues> results;  // one per return of the operator
};

/// Tapes the calls of one run of a decomposition. Not thread-safe.
class TapeRecorder {
 public:
  /// `arguments` are those of the operator that is decomposed.
  explicit TapeRecorder(at::ArrayRef<c10::IValue> arguments);

  /// A call that the decomposition made, with all its arguments, and what it returned.
  void step(const c10::OperatorHandle& op, torch::jit::Stack arguments, const torch::jit::Stack& results);
  /// The run did something that a tape does not hold.
  void give_up() { tape_ = nullptr; }
  /// The tape, or null. `results` are those of the operator.
  std::shared_ptr<const Tape> finish(at::ArrayRef<c10::IValue> results);

 private:
  std::optional<TapeValues> values_of(const c10::IValue& value) const;
  int32_t number_of(const at::Tensor& tensor) const;
  int32_t name(const at::Tensor& tensor);

  std::shared_ptr<Tape> tape_;
  std::vector<at::Tensor> alive_;  // keeps addresses from being used twice
  std::unordered_map<const at::TensorImpl*, int32_t> numbers_;
};

/// What the tapes of an operator are found by: everything about a call that Python code could branch on.
class TapeKey {
 public:
  explicit TapeKey(at::ArrayRef<c10::IValue> arguments);
  /// Some argument (a generator, a sparse tensor, ...) cannot be part of a key.
  bool usable() const { return usable_; }
  const std::vector<uint64_t>& words() const { return words_; }
  /// First device tensor among the arguments, or -1.
  c10::DeviceIndex device() const { return device_; }

 private:
  void add(const c10::IValue& value);
  void add_tensor(const at::Tensor& tensor);

  std::vector<uint64_t> words_;
  std::vector<const void*> storages_;
  c10::DeviceIndex device_ = -1;
  bool usable_ = true;
};

/// The tape of this call or null.
std::shared_ptr<const Tape> find_tape(const c10::OperatorHandle& op, const TapeKey& key);
/// Whether a tape would still be kept: operators whose calls never repeat are not taped for ever.
bool wants_tape(const c10::OperatorHandle& op, const TapeKey& key);
/// Keeps `tape`; null means that this signature cannot be taped.
void keep_tape(const c10::OperatorHandle& op, const TapeKey& key, std::shared_ptr<const Tape> tape);

/// Replaces the arguments on the stack by the results.
void replay(const Tape& tape, const c10::OperatorHandle& op, torch::jit::Stack* stack);

struct TapeStats {
  int64_t tapes = 0, replays = 0;
};
TapeStats tape_stats();

}  // namespace tpu::aten
