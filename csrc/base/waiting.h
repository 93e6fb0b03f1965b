#pragma once
// A word in memory that threads wait for. The wait can be interrupted: a person who presses Ctrl-C while the
// device compiles for minutes gets the prompt back. The Python layer installs the check; without it waits
// just wait. Waking costs nothing while nobody sleeps. Thread-safe.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tpu {

/// `check` is called by the process's main thread every few hundredths of a second while it waits, and may
/// throw to end the wait.
void set_interrupt_check(void (*check)());
/// True on the main thread when a check is installed.
bool interruptible();

class WaitWord {
 public:
  using Clock = std::chrono::steady_clock;

  explicit WaitWord(uint32_t value = 0) : value_(value) {}
  WaitWord(const WaitWord&) = delete;
  WaitWord& operator=(const WaitWord&) = delete;

  uint32_t load() const { return value_.load(std::memory_order_acquire); }
  /// Wakes nobody: for values that no thread waits for.
  void store(uint32_t value) { value_.store(value, std::memory_order_release); }
  /// Wakes all that wait. What was written before is seen by them.
  void publish(uint32_t value);
  /// Blocks while the word is `value`. REQUIRES: no lock is held that the interrupt check may need.
  void wait_while(uint32_t value) const { wait_until(value, Clock::time_point::max()); }
  /// The same; false if `deadline` passes first.
  bool wait_until(uint32_t value, Clock::time_point deadline) const;

 private:
  std::atomic<uint32_t> value_;
};

}  // namespace tpu
