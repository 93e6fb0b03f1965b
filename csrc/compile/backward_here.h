#pragma once
// Backward passes run on threads of their own by default, which a capture of the calling thread would not see.

#include <c10/core/AutogradState.h>

namespace tpu::compile {

/// While it lives, backward passes of the thread that made it run on that thread.
class BackwardHere {
 public:
  BackwardHere() : on_other_threads_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~BackwardHere() { c10::AutogradState::get_tls_state().set_multithreading_enabled(on_other_threads_); }
  BackwardHere(const BackwardHere&) = delete;
  BackwardHere& operator=(const BackwardHere&) = delete;

 private:
  const bool on_other_threads_;
};

}  // namespace tpu::compile
