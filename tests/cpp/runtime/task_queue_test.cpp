// The queue's thread: order, a bounded length, rest.

#include "runtime/task_queue.h"

#include <gtest/gtest.h>

#include "base/waiting.h"

namespace tpu::runtime {
namespace {

struct Trace {
  std::vector<int> order;
  std::atomic<int> finished{0};
  WaitWord gate{1};
};

class Step final : public Task {
 public:
  Step(Trace& trace, int number) : trace_(trace), number_(number) {}
  void run() noexcept override {
    trace_.gate.wait_while(0);
    trace_.order.push_back(number_);
  }
  void finish() noexcept override {
    ++trace_.finished;
    delete this;
  }

 private:
  Trace& trace_;
  const int number_;
};

void wait_until_idle(const TaskQueue& queue) {
  while (!queue.idle()) std::this_thread::yield();
}

// Queues live as long as the process: their thread is never joined.
TEST(TaskQueueTest, RunsInOrderAndComesToRest) {
  auto& queue = *new TaskQueue(8);
  Trace trace;
  EXPECT_TRUE(queue.idle());
  for (int i = 0; i < 1000; ++i) {
    queue.wait_for_room();
    queue.push(new Step(trace, i));
  }
  wait_until_idle(queue);
  ASSERT_EQ(trace.order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(trace.order[static_cast<size_t>(i)], i);
  EXPECT_EQ(trace.finished, 1000);
}

TEST(TaskQueueTest, ProducersWaitWhileItIsFull) {
  auto& queue = *new TaskQueue(16);
  Trace trace;
  trace.gate.store(0);
  std::atomic<int> pushed{0};
  std::thread producer([&] {
    for (int i = 0; i < 100; ++i) {
      queue.wait_for_room();
      queue.push(new Step(trace, i));
      ++pushed;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LE(pushed, 17);  // one is being run
  EXPECT_FALSE(queue.idle());
  trace.gate.publish(1);
  producer.join();
  wait_until_idle(queue);
  EXPECT_EQ(trace.order.size(), 100U);
}

TEST(TaskQueueTest, PushesOfManyThreadsNeverOverrunTheRing) {
  auto& queue = *new TaskQueue(8);
  Trace trace;
  std::vector<std::thread> producers;
  for (int t = 0; t < 8; ++t) {
    producers.emplace_back([&queue, &trace] {
      for (int i = 0; i < 200; ++i) queue.push(new Step(trace, i));
    });
  }
  for (std::thread& producer : producers) producer.join();
  wait_until_idle(queue);
  EXPECT_EQ(trace.finished, 1600);
}

}  // namespace
}  // namespace tpu::runtime
