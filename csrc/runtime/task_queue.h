#pragma once
// A thread that runs tasks in the order they were pushed: one per device. Pushing is cheap while the thread
// is busy (no system call); the thread spins briefly before it sleeps. Tasks must not throw. The queue bounds
// its length: push blocks when it is full, and wait_for_room() does so where it can be interrupted.

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
  /// Returns at once unless the queue is nearly full; then blocks, interruptibly, until it is half empty.
  /// Producers call it before they take locks, so that push() need not block.
  void wait_for_room();
  /// True when everything that was pushed has run.
  bool idle() const { return finished_.load(std::memory_order_acquire) == pushed(); }

 private:
  uint64_t pushed() const { return pushed_.load(std::memory_order_acquire); }
  void loop();

  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::vector<Task*> ring_;  // the task of number n is at n % capacity
  std::atomic<uint64_t> pushed_{0}, finished_{0};
  std::atomic<uint64_t> taken_{0};
  std::atomic<bool> sleeping_{false};
  std::thread thread_;
};

}  // namespace tpu::runtime
