#pragma once
// A few threads that run independent jobs (compiles). Threads start with the first job and are never
// joined: a compile cannot be interrupted, and the process must be able to exit while one runs.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace tpu::runtime {

class WorkerPool {
 public:
  explicit WorkerPool(int threads) : threads_(threads) {}
  void submit(std::function<void()> job);
  /// True while jobs run or wait.
  bool busy() const;

 private:
  void loop();

  const int threads_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::function<void()>> jobs_;
  int started_ = 0;
  int idle_ = 0;
};

}  // namespace tpu::runtime
