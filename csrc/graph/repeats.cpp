#include "graph/repeats.h"

#include <unordered_map>
#include <utility>

namespace tpu::graph {

std::vector<Repeat> find_repeats(std::span<const uint64_t> kinds) {
  // A model has few operators of one kind within a layer: the period is one of the first distances between equals.
  constexpr int kTries = 16;
  const auto size = static_cast<uint32_t>(kinds.size());
  std::vector<uint32_t> next(size, size);  // the next node of the same kind
  std::unordered_map<uint64_t, uint32_t> last;
  for (uint32_t i = size; i-- > 0;) {
    const auto [place, first] = last.try_emplace(kinds[i], i);
    if (!first) next[i] = std::exchange(place->second, i);
  }
  std::vector<Repeat> repeats;
  for (uint32_t i = 0; i < size;) {
    Repeat found;
    int tries = 0;
    for (uint32_t j = next[i]; j < size && tries < kTries && found.count == 0; j = next[j]) {
      const uint32_t period = j - i;
      if (period < kLeastPeriod) continue;
      ++tries;
      uint32_t equal = 0;
      while (j + equal < size && kinds[i + equal] == kinds[j + equal]) ++equal;
      const uint32_t count = equal / period + 1;
      if (count >= kLeastCount) found = {i, period, count};
    }
    if (found.count != 0) repeats.push_back(found);
    i += found.count != 0 ? found.period * found.count : 1;
  }
  return repeats;
}

}  // namespace tpu::graph
