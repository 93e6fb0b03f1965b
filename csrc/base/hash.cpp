#include "base/hash.h"

#include "base/env.h"
#include "base/error.h"

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

// 64 bits or more: everything.
uint64_t kept_bits() {
  const int64_t bits = env::integer(env::kHashBits, 64);
  if (bits < 0) throw Error(Code::kValue, std::string(env::kHashBits) + " must not be negative");
  return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
}

}  // namespace

uint64_t table_hash(uint64_t hash) {
  static const uint64_t mask = kept_bits();
  return hash & mask;
}

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
