#include <utility>

#include "base/log.h"
#include "base/waiting.h"
#include "pjrt/call.h"

namespace tpu::pjrt {
namespace {

// What a callback needs to turn the plugin's error into ours.
struct Waiter {
  const PJRT_Api* api;
  std::function<void(std::optional<Error>)> callback;
};

// Runs on a plugin thread: nothing may escape into foreign frames.
void run_waiter(PJRT_Error* error, void* user_arg) noexcept {
  std::unique_ptr<Waiter> waiter(static_cast<Waiter*>(user_arg));
  try {
    std::optional<Error> ours;
    if (error != nullptr) ours = take_error(waiter->api, error, "PJRT_Event_OnReady");
    waiter->callback(std::move(ours));
  } catch (const std::exception& exception) {
    log_failed_release("PJRT_Event_OnReady", Error(Code::kInternal, exception.what()));
  } catch (...) {
    log_failed_release("PJRT_Event_OnReady", Error(Code::kInternal, "a callback threw"));
  }
}

}  // namespace

Event::Event(Event&& other) noexcept : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  if (this == &other) return *this;
  Event old(std::move(*this));  // released at the end of this scope
  api_ = other.api_;
  event_ = std::exchange(other.event_, nullptr);
  return *this;
}

Event::~Event() {
  if (event_ == nullptr) return;
  auto args = make_args<PJRT_Event_Destroy_Args>();
  args.event = event_;
  call_in_destructor<&PJRT_Api::PJRT_Event_Destroy>(api_, args);
}

bool Event::ready() const {
  ensure(valid(), "ready() of an event that holds nothing");
  auto args = make_args<PJRT_Event_IsReady_Args>();
  args.event = event_;
  call<&PJRT_Api::PJRT_Event_IsReady>(api_, args);
  return args.is_ready;
}

void Event::await() const {
  ensure(valid(), "await() of an event that holds nothing");
  const bool can_ask = has_entry<&PJRT_Api::PJRT_Event_IsReady>(api_);
  if (interruptible() && can_ask && !ready()) {
    // The plugin's own wait cannot be left. What the callback touches outlives this call when it is.
    const auto done = std::make_shared<WaitWord>();
    on_ready([done](const std::optional<Error>&) { done->publish(1); });
    done->wait_while(0);
  }
  await_to_the_end();
}

void Event::await_to_the_end() const {
  ensure(valid(), "await() of an event that holds nothing");
  auto args = make_args<PJRT_Event_Await_Args>();
  args.event = event_;
  call<&PJRT_Api::PJRT_Event_Await>(api_, args);
}

void Event::on_ready(std::function<void(std::optional<Error>)> callback) const {
  ensure(valid(), "on_ready() of an event that holds nothing");
  auto waiter = std::make_unique<Waiter>(Waiter{api_, std::move(callback)});
  auto args = make_args<PJRT_Event_OnReady_Args>();
  args.event = event_;
  args.callback = run_waiter;
  args.user_arg = waiter.get();
  call<&PJRT_Api::PJRT_Event_OnReady>(api_, args);
  // The callback owns it now; when the call above throws, the plugin has not kept it.
  (void)waiter.release();
}

}  // namespace tpu::pjrt
