// Waiting for a word: woken in time, bounded, and left when the interrupt check throws.

#include "base/waiting.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace tpu {
namespace {

using std::chrono::seconds;

TEST(WaitWordTest, WokenByPublish) {
  WaitWord word;
  int written = 0;
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    written = 1;
    word.publish(7);
  });
  word.wait_while(0);
  EXPECT_EQ(word.load(), 7U);
  EXPECT_EQ(written, 1);
  writer.join();
}

TEST(WaitWordTest, NoWakeUpIsLost) {
  WaitWord there, back;
  constexpr uint32_t kRounds = 3000;
  std::thread other([&] {
    for (uint32_t i = 0; i < kRounds; ++i) {
      there.wait_while(i);
      back.publish(i + 1);
    }
  });
  // A lost wake-up costs the sleeper a whole slice: with many lost this would take minutes.
  const auto start = WaitWord::Clock::now();
  for (uint32_t i = 0; i < kRounds; ++i) {
    there.publish(i + 1);
    back.wait_while(i);
  }
  other.join();
  EXPECT_LT(WaitWord::Clock::now() - start, seconds(50));
}

TEST(WaitWordTest, TimeOut) {
  const WaitWord word(3);
  EXPECT_TRUE(word.wait_until(4, WaitWord::Clock::now()));
  EXPECT_FALSE(word.wait_until(3, WaitWord::Clock::now() + std::chrono::milliseconds(120)));
}

struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

TEST(WaitWordTest, TheMainThreadIsInterrupted) {
  EXPECT_FALSE(interruptible());
  set_interrupt_check([] { throw Interrupted(); });
  EXPECT_TRUE(interruptible());
  const WaitWord word;
  EXPECT_THROW(word.wait_while(0), Interrupted);
  std::thread([&] {
    EXPECT_FALSE(interruptible());
    EXPECT_FALSE(word.wait_until(0, WaitWord::Clock::now() + std::chrono::milliseconds(120)));
  }).join();
  set_interrupt_check(nullptr);
}

}  // namespace
}  // namespace tpu
