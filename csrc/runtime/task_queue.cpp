#include "runtime/task_queue.h"

#include <chrono>

namespace tpu::runtime {
namespace {

// The thread looks for work this many times before it sleeps: about 20 us, longer than the gap between two
// operator calls from Python, so that a stream of calls never pays for a wake-up.
constexpr int kSpins = 400;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

TaskQueue::TaskQueue(size_t capacity) : capacity_(capacity), thread_([this] { loop(); }) { thread_.detach(); }

void TaskQueue::push(std::unique_ptr<Task> task) {
  std::unique_lock lock(mutex_);
  if (tasks_.size() >= capacity_) {
    waiters_.fetch_add(1);
    done_.wait(lock, [this] { return tasks_.size() < capacity_; });
    waiters_.fetch_sub(1);
  }
  tasks_.push_back(std::move(task));
  pushed_.fetch_add(1, std::memory_order_release);
  if (sleeping_.load(std::memory_order_relaxed)) work_.notify_one();
}

void TaskQueue::wait_for(uint64_t number) {
  for (int i = 0; i < kSpins; ++i) {
    if (finished() >= number) return;
    pause_cpu();
  }
  std::unique_lock lock(mutex_);
  waiters_.fetch_add(1);
  done_.wait(lock, [&] { return finished() >= number; });
  waiters_.fetch_sub(1);
}

void TaskQueue::drain() { wait_for(pushed()); }

bool TaskQueue::drain_for(double seconds) {
  const uint64_t number = pushed();
  std::unique_lock lock(mutex_);
  waiters_.fetch_add(1);
  const bool all =
      done_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return finished() >= number; });
  waiters_.fetch_sub(1);
  return all;
}

void TaskQueue::loop() {
  for (;;) {
    for (int i = 0; i < kSpins && pushed() == finished(); ++i) pause_cpu();
    std::unique_ptr<Task> task;
    {
      std::unique_lock lock(mutex_);
      if (tasks_.empty()) {
        sleeping_.store(true, std::memory_order_relaxed);
        work_.wait(lock, [this] { return !tasks_.empty(); });
        sleeping_.store(false, std::memory_order_relaxed);
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task->run();
    task.reset();
    {
      // The lock orders this increment with a waiter's check, so that no wake-up is lost.
      std::lock_guard lock(mutex_);
      finished_.fetch_add(1, std::memory_order_release);
      if (waiters_.load(std::memory_order_relaxed) > 0) done_.notify_all();
    }
  }
}

}  // namespace tpu::runtime
