#include "base/hash.h"

namespace tpu {
namespace {

uint64_t hash_text(std::string_view text, uint64_t seed) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    seed = mix(seed, word);
  }
  uint64_t tail = 0;
  if (i < text.size()) std::memcpy(&tail, text.data() + i, text.size() - i);
  return mix(mix(seed, tail), text.size());
}

}  // namespace

Fingerprint fingerprint(std::string_view text) {
  return {hash_text(text, 0x243f6a8885a308d3ULL), hash_text(text, 0x13198a2e03707344ULL)};
}

std::string to_hex(const Fingerprint& value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint64_t word : {value.high, value.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(word >> shift) & 15];
  }
  return text;
}

}  // namespace tpu
