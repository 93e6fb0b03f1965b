#include "runtime/value.h"

#include "runtime/context.h"
#include "runtime/memory_stats.h"

namespace tpu::runtime {

Value::Value(TensorType type, int device, pjrt::Buffer buffer, std::unique_ptr<const Bounds> bounds)
    : type_(std::move(type)),
      bounds_(std::move(bounds)),
      device_(device),
      state_(static_cast<uint32_t>(State::kReady)),
      buffer_(std::move(buffer)) {
  account(1);
}

Value::~Value() {
  if (!buffer_.valid()) return;
  account(-1);
  // In a forked child the plugin may hold locks that no thread will release: its memory goes with the process.
  if (Context::in_bad_fork()) buffer_.release();
}

void Value::account(int64_t sign) const {
  const size_t bytes = bounds_ ? stored_type().bytes() : type_.bytes();
  memory_stats(device_).add(sign * static_cast<int64_t>(bytes));
}

void Value::fulfill(pjrt::Buffer buffer) {
  buffer_ = std::move(buffer);
  account(1);
  state_.publish(static_cast<uint32_t>(State::kReady));
}

void Value::fail(std::shared_ptr<const Error> error) {
  error_ = std::move(error);
  state_.publish(static_cast<uint32_t>(State::kFailed));
}

void Value::wait() const {
  state_.wait_while(static_cast<uint32_t>(State::kLaunched));
  const State now = state();
  ensure(now != State::kPending && now != State::kCaptured, "waiting for a value that was not flushed");
  if (now == State::kFailed) throw *error_;
}

}  // namespace tpu::runtime
