#pragma once
// Finds what repeats in a sequence of nodes: the layers of a model, their backward passes, the parameters of an
// optimizer.

#include <cstdint>
#include <span>
#include <vector>

namespace tpu::graph {

/// `count` stretches of `period` nodes each, one after the other from node `first` on, of which nodes at the same place
/// are of one kind.
struct Repeat {
  uint32_t first = 0, period = 0, count = 0;
  friend bool operator==(const Repeat&, const Repeat&) = default;
};

/// Shorter stretches, and fewer of them, are not worth a function of their own.
inline constexpr uint32_t kLeastPeriod = 10, kLeastCount = 3;

/// Disjoint repeats in the order in which they occur, each of the shortest period that there is at its place.
std::vector<Repeat> find_repeats(std::span<const uint64_t> kinds);

}  // namespace tpu::graph
