#include "runtime/value.h"

#include "runtime/memory_stats.h"

namespace tpu::runtime {

Value::Value(TensorType type, int device, pjrt::Buffer buffer)
    : type_(std::move(type)), device_(device), state_(State::kReady), buffer_(std::move(buffer)) {
  account(1);
}

Value::~Value() {
  if (buffer_.valid()) account(-1);
}

void Value::account(int64_t sign) const { memory_stats(device_).add(sign * static_cast<int64_t>(type_.bytes())); }

void Value::fulfill(pjrt::Buffer buffer) {
  buffer_ = std::move(buffer);
  account(1);
  set_state(State::kReady);
  state_.notify_all();
}

void Value::fail(std::shared_ptr<const Error> error) {
  error_ = std::move(error);
  set_state(State::kFailed);
  state_.notify_all();
}

void Value::wait() const {
  State now = state();
  while (now == State::kLaunched) {
    state_.wait(now, std::memory_order_acquire);
    now = state();
  }
  ensure(now != State::kPending, "waiting for a value that was not flushed");
  if (now == State::kFailed) throw *error_;
}

}  // namespace tpu::runtime
