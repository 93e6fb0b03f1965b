#pragma once
// 64-bit mixing for tables in memory and a 128-bit fingerprint for program text and cache files.
// Neither is cryptographic: every table that uses a hash also compares the full key.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tpu {

/// Folds `value` into `seed`; multiply-xorshift after MurmurHash3's finaliser constants.
inline uint64_t mix(uint64_t seed, uint64_t value) {
  seed ^= value * 0x9e3779b97f4a7c15ULL;
  seed = (seed ^ (seed >> 32)) * 0xd6e8feb86659fd93ULL;
  return seed ^ (seed >> 29);
}

/// `hash` as a table in memory files an entry under it. All of it, unless TORCH_TPU_HASH_BITS keeps less: with 0
/// bits everything collides, and only the comparison of the full key keeps entries apart. Tests run models that way.
uint64_t table_hash(uint64_t hash);

/// Hash of a run of words.
inline uint64_t hash_words(const uint64_t* words, size_t count, uint64_t seed = 0) {
  for (size_t i = 0; i < count; ++i) seed = mix(seed, words[i]);
  return mix(seed, count);
}

struct Fingerprint {
  uint64_t high = 0;
  uint64_t low = 0;
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// Two independently seeded 64-bit hashes of `text`.
Fingerprint fingerprint(std::string_view text);

/// 32 lower-case hexadecimal digits.
std::string to_hex(const Fingerprint& value);

}  // namespace tpu
