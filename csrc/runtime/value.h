#pragma once
// Value: one immutable array on a device. It starts undefined (allocated, never written) or pending (a
// recorded node will produce it), is launched when its program is queued, and ends ready (holds a PJRT
// buffer) or failed (holds the first error). Whoever writes to a storage makes a new Value and swaps it in,
// so a Value that someone holds never changes under them.
//
// Threads: state and buffer are published by the device's queue thread with release order and awaited with
// wait(). The fields under `recording` belong to the recorder of the device and are guarded by its lock.

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/pool.h"
#include "base/tensor_type.h"
#include "base/waiting.h"
#include "pjrt/client.h"
#include "runtime/ref.h"

namespace tpu::runtime {

class Value final : public RefCounted, public Pooled<Value> {
 public:
  /// kCaptured: stands for what a captured graph is given or makes, and never holds anything itself.
  enum class State : uint32_t { kUndefined, kPending, kLaunched, kReady, kFailed, kCaptured };

  Value(TensorType type, int device, State state, std::unique_ptr<const Bounds> bounds = nullptr)
      : type_(std::move(type)), bounds_(std::move(bounds)), device_(device), state_(static_cast<uint32_t>(state)) {}
  /// A value that is ready from the start.
  Value(TensorType type, int device, pjrt::Buffer buffer, std::unique_ptr<const Bounds> bounds = nullptr);
  ~Value();

  const TensorType& type() const { return type_; }
  /// Set where the buffer is larger than the type says, or would be for other sizes.
  const Bounds* bounds() const { return bounds_.get(); }
  /// A copy of them, for a value that is stored in the same way.
  std::unique_ptr<const Bounds> same_bounds() const {
    return bounds_ ? std::make_unique<const Bounds>(*bounds_) : nullptr;
  }
  /// Type of the buffer.
  TensorType stored_type() const { return bounds_ ? TensorType{type_.dtype, bounds_->stored} : type_; }
  int device() const { return device_; }
  State state() const { return static_cast<State>(state_.load()); }
  void set_state(State state) { state_.store(static_cast<uint32_t>(state)); }

  void fulfill(pjrt::Buffer buffer);
  void fail(std::shared_ptr<const Error> error);
  /// Blocks while launched, interruptibly; throws the value's error if it failed. REQUIRES: not pending.
  void wait() const;
  /// The first error, or nullptr. REQUIRES: state is kFailed.
  const std::shared_ptr<const Error>& error() const { return error_; }
  const pjrt::Buffer& buffer() const { return buffer_; }

  /// Where the value stands in the recording of its device; meaningful while `recording` equals the
  /// recorder's current number.
  struct Place {
    uint64_t recording = 0;
    uint32_t index = 0;   // parameter number, or node number when pending
    uint32_t output = 0;  // output number of that node
  };
  Place place;

 private:
  void account(int64_t sign) const;

  const TensorType type_;
  const std::unique_ptr<const Bounds> bounds_;
  const int device_;
  WaitWord state_;
  pjrt::Buffer buffer_;
  std::shared_ptr<const Error> error_;
};

using ValueRef = Ref<Value>;

}  // namespace tpu::runtime
