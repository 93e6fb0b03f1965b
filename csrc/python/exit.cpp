#include "python/exit.h"

#include <Python.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

#include "base/waiting.h"
#include "graph/recorder.h"
#include "python/user_frame.h"
#include "runtime/context.h"

namespace tpu::python {
namespace {

using Clock = WaitWord::Clock;
using runtime::Context;

// drain() has waited before; this is for what was launched since, by other exit handlers and destructors.
constexpr std::chrono::milliseconds kLastPatience{100};

bool busy() {
  if (pjrt::Client::creations_running() > 0) return true;
  if (!Context::initialized()) return false;
  Context& context = Context::get();
  for (int i = 0; i < context.devices(); ++i) {
    if (!context.queue(i).idle()) return true;
  }
  return context.cache().busy();
}

// True when neither our threads nor the plugin's have work left.
bool settle(Clock::time_point deadline) {
  if (Context::in_bad_fork()) return false;  // a copy of the parent's state that no thread will ever change
  const WaitWord never;
  while (busy()) {
    if (Clock::now() >= deadline) return false;
    never.wait_until(0, std::min(deadline, Clock::now() + std::chrono::milliseconds(1)));
  }
  if (!Context::initialized()) return true;
  // The queues are empty, but what they launched may still run on the plugin's threads.
  for (int i = 0; i < Context::get().devices(); ++i) {
    const auto done = std::make_shared<WaitWord>();
    graph::Recorder::of(i).when_launched_done([done] { done->publish(1); });
    if (!done->wait_until(0, deadline)) return false;
  }
  return true;
}

// Runs first among the handlers of exit(), since it is registered last. What _exit() passes over are the static
// destructors and C exit handlers of all libraries; Python's have run.
void leave(int status, void*) {
  try {
    if (settle(Clock::now() + kLastPatience)) return;
  } catch (const std::exception&) {
    // No rest was reached.
  }
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
  _exit(status);
}

// The last thing that Python does. From here on nothing may call into it.
void after_python() {
  set_interrupt_check(nullptr);
  on_exit(&leave, nullptr);
}

}  // namespace

void install_exit_handler() {
  // Python keeps 32 of these. Without one, the handler runs later than some destructors of the plugin.
  if (Py_AtExit(&after_python) != 0) on_exit(&leave, nullptr);
}

bool drain(double seconds) {
  forsake_python();
  return settle(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
}

}  // namespace tpu::python
