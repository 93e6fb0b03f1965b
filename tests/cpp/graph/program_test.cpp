// The recorder's table of programs: found by the sequence itself, bounded by memory.

#include "graph/program.h"

#include <gtest/gtest.h>

namespace tpu::graph {
namespace {

Recording recording(std::vector<uint64_t> key, uint64_t hash) {
  Recording made;
  made.key = std::move(key);
  made.hash = hash;
  return made;
}

std::shared_ptr<Program> program(size_t memory) {
  auto made = std::make_shared<Program>();
  made->memory = memory;
  return made;
}

const OutputMask kOne{1}, kBoth{3};

TEST(ProgramCacheTest, CollidingHashesAreToldApart) {
  ProgramCache cache(1000);
  const auto first = program(1), second = program(1);
  cache.insert(recording({1, 2}, 7), kOne, first);
  EXPECT_EQ(cache.find(recording({1, 3}, 7), kOne).program, nullptr);
  EXPECT_FALSE(cache.find(recording({1, 3}, 7), kOne).known_body);
  cache.insert(recording({1, 3}, 7), kOne, second);
  EXPECT_EQ(cache.find(recording({1, 2}, 7), kOne).program, first);
  EXPECT_EQ(cache.find(recording({1, 3}, 7), kOne).program, second);
}

TEST(ProgramCacheTest, MoreOutputsServeToo) {
  ProgramCache cache(1000);
  const auto both = program(1);
  cache.insert(recording({1}, 1), kBoth, both);
  EXPECT_EQ(cache.find(recording({1}, 1), kOne).program, both);
  ProgramCache other(1000);
  other.insert(recording({1}, 1), kOne, both);
  const auto miss = other.find(recording({1}, 1), kBoth);
  EXPECT_EQ(miss.program, nullptr);
  EXPECT_TRUE(miss.known_body);
}

TEST(ProgramCacheTest, LeastRecentlyUsedMakeRoom) {
  ProgramCache cache(100);
  const auto a = program(40), b = program(40), c = program(40);
  // One hash for all: the right one of its entries must go.
  EXPECT_TRUE(cache.insert(recording({1}, 5), kOne, a).empty());
  EXPECT_TRUE(cache.insert(recording({2}, 5), kOne, b).empty());
  EXPECT_EQ(cache.find(recording({1}, 5), kOne).program, a);
  EXPECT_EQ(cache.insert(recording({3}, 5), kOne, c), (std::vector{b}));
  EXPECT_EQ(cache.find(recording({1}, 5), kOne).program, a);
  EXPECT_EQ(cache.find(recording({2}, 5), kOne).program, nullptr);
  EXPECT_EQ(cache.find(recording({3}, 5), kOne).program, c);
  EXPECT_EQ(cache.size(), 2U);
}

// The oldest is what a loop needs next: if it always went, a loop over one program too many would find none.
TEST(ProgramCacheTest, LoopsThatDoNotFitFindMostOfTheirPrograms) {
  constexpr uint64_t kFit = 100, kPrograms = 110, kRounds = 20;
  ProgramCache cache(kFit);
  uint64_t found = 0;
  for (uint64_t i = 0; i < kRounds * kPrograms; ++i) {
    const Recording next = recording({i % kPrograms}, i % kPrograms);
    if (cache.find(next, kOne).program != nullptr) {
      ++found;
    } else {
      cache.insert(next, kOne, program(1));
    }
    EXPECT_LE(cache.size(), kFit);
  }
  EXPECT_GT(found, kRounds * kPrograms / 2);
}

// Programs in use stay while others pass by once.
TEST(ProgramCacheTest, ProgramsInUseStay) {
  constexpr uint64_t kFit = 100, kInUse = 40;
  ProgramCache cache(kFit);
  for (uint64_t i = 0; i < kInUse; ++i) cache.insert(recording({i}, i), kOne, program(1));
  for (uint64_t round = 0; round < 100; ++round) {
    for (uint64_t i = 0; i < kInUse; ++i) EXPECT_NE(cache.find(recording({i}, i), kOne).program, nullptr);
    for (uint64_t k = 0; k < 10; ++k) {
      const uint64_t once = 1000 + 10 * round + k;
      cache.insert(recording({once}, once), kOne, program(1));
    }
  }
}

TEST(ProgramCacheTest, OneThatIsTooBigIsKeptUntilTheNext) {
  ProgramCache cache(100);
  const auto small = program(10), huge = program(1000);
  cache.insert(recording({1}, 1), kOne, small);
  EXPECT_EQ(cache.insert(recording({2}, 2), kOne, huge), (std::vector{small}));
  EXPECT_EQ(cache.find(recording({2}, 2), kOne).program, huge);
  EXPECT_EQ(cache.insert(recording({1}, 1), kOne, small), (std::vector{huge}));
  EXPECT_EQ(cache.size(), 1U);
}

TEST(ProgramCacheTest, Clear) {
  ProgramCache cache(100);
  cache.insert(recording({1}, 1), kOne, program(60));
  EXPECT_EQ(cache.clear().size(), 1U);
  EXPECT_EQ(cache.size(), 0U);
  EXPECT_EQ(cache.find(recording({1}, 1), kOne).program, nullptr);
  EXPECT_TRUE(cache.insert(recording({2}, 2), kOne, program(60)).empty());  // its bytes are free again
}

}  // namespace
}  // namespace tpu::graph
