#include "runtime/worker_pool.h"

#include <thread>

namespace tpu::runtime {

void WorkerPool::submit(std::function<void()> job) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  if (idle_ == 0 && started_ < threads_) {
    ++started_;
    std::thread([this] { loop(); }).detach();
  } else {
    work_.notify_one();
  }
}

bool WorkerPool::busy() const {
  std::lock_guard lock(mutex_);
  return !jobs_.empty() || idle_ < started_;
}

void WorkerPool::loop() {
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      ++idle_;
      work_.wait(lock, [this] { return !jobs_.empty(); });
      --idle_;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace tpu::runtime
