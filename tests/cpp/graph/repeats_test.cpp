#include "graph/repeats.h"

#include <gtest/gtest.h>

namespace tpu::graph {
namespace {

std::vector<uint64_t> layer(size_t size, uint64_t first) {
  std::vector<uint64_t> kinds;
  for (size_t i = 0; i < size; ++i) kinds.push_back(first + i);
  return kinds;
}

std::vector<uint64_t> joined(std::initializer_list<std::vector<uint64_t>> pieces) {
  std::vector<uint64_t> kinds;
  for (const auto& piece : pieces) kinds.insert(kinds.end(), piece.begin(), piece.end());
  return kinds;
}

TEST(Repeats, LayersBetweenOtherNodes) {
  const auto a = layer(12, 100), head = layer(5, 900), tail = layer(7, 800);
  EXPECT_EQ(find_repeats(joined({head, a, a, a, a, tail})), (std::vector<Repeat>{{5, 12, 4}}));
}

TEST(Repeats, ForwardAndBackward) {
  const auto a = layer(12, 100), b = layer(20, 200), loss = layer(3, 900);
  EXPECT_EQ(find_repeats(joined({a, a, a, loss, b, b, b})), (std::vector<Repeat>{{0, 12, 3}, {39, 20, 3}}));
}

TEST(Repeats, OperatorsThatOccurMoreThanOnceInALayer) {
  auto a = layer(14, 100);
  a[3] = a[0];
  a[11] = a[0];
  EXPECT_EQ(find_repeats(joined({a, a, a})), (std::vector<Repeat>{{0, 14, 3}}));
}

TEST(Repeats, WhatIsShortOrSeldomIsNone) {
  const auto few = layer(kLeastPeriod - 1, 100), a = layer(12, 100);
  EXPECT_TRUE(find_repeats(joined({few, few})).empty());
  EXPECT_TRUE(find_repeats(joined({a, a})).empty());
  EXPECT_TRUE(find_repeats(layer(50, 1)).empty());
  EXPECT_TRUE(find_repeats({}).empty());
}

TEST(Repeats, ShortPeriodsAreTakenSeveralAtATime) {
  const auto few = layer(4, 100);
  const auto repeats = find_repeats(joined({few, few, few, few, few, few, few, few, few}));
  EXPECT_EQ(repeats, (std::vector<Repeat>{{0, 12, 3}}));
}

TEST(Repeats, EqualNodesOnly) {
  EXPECT_EQ(find_repeats(std::vector<uint64_t>(35, 7)), (std::vector<Repeat>{{0, 10, 3}}));
}

}  // namespace
}  // namespace tpu::graph
