#pragma once
// A thread that runs tasks in the order they were pushed: one per device. Pushing is cheap while the thread
// is busy (no system call); the thread spins briefly before it sleeps. `drain` waits for everything pushed
// so far. Tasks must not throw. The queue bounds its length: push blocks when it is full.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace tpu::runtime {

class Task {
 public:
  virtual void run() noexcept = 0;
  /// Ends the task's life after it has run: deletes it or keeps it for reuse.
  virtual void finish() noexcept = 0;

 protected:
  ~Task() = default;
};

class TaskQueue {
 public:
  explicit TaskQueue(size_t capacity = 16384);

  /// Takes ownership; `task->finish()` is called after it has run.
  void push(Task* task);
  /// Blocks until every task pushed before the call has run.
  void drain();
  /// As drain, but gives up after `seconds`; true when everything ran.
  bool drain_for(double seconds);
  /// Number of the last pushed task; compare with finished().
  uint64_t pushed() const { return pushed_.load(std::memory_order_acquire); }
  uint64_t finished() const { return finished_.load(std::memory_order_acquire); }
  void wait_for(uint64_t number);

 private:
  void loop();

  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::vector<Task*> ring_;  // the task of number n is at n % capacity
  std::atomic<uint64_t> pushed_{0}, finished_{0};
  std::atomic<uint64_t> taken_{0};
  std::atomic<bool> sleeping_{false};
  std::atomic<int> waiters_{0};
  std::atomic<uint64_t> wanted_{0};
  std::thread thread_;
};

}  // namespace tpu::runtime
