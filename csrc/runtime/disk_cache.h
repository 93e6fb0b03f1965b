#pragma once
// Compiled executables on disk, shared by processes. An entry is one file named after the fingerprint of
// its key; it stores the whole key, and a lookup compares it, so a hash collision or a file of another
// plugin version is a miss. Writes go to a temporary file and are renamed, so a reader never sees half an
// entry; a truncated or damaged one fails its checksum, is removed and counts as a miss. A directory that
// cannot be written is used read-only. The total size is bounded: the least recently used entries go first.
// docs/cache.md has the format. Thread-safe.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace tpu::runtime {

class DiskCache {
 public:
  /// `directory` empty: off. Created on the first store.
  DiskCache(std::string directory, int64_t limit_bytes);

  bool enabled() const { return !directory_.empty(); }
  const std::string& directory() const { return directory_; }
  /// Of an entry's file, without the folder and the ending.
  static std::string name_of(const std::string& key);
  std::optional<std::string> load(const std::string& key) const;
  /// Best effort: failures leave the cache as it was.
  void store(const std::string& key, const std::string& payload);

 private:
  std::string path_of(const std::string& key) const;
  void evict();

  const std::string directory_;
  const int64_t limit_bytes_;
  std::mutex mutex_;
  int64_t stored_since_eviction_ = -1;  // -1: directory not yet measured
};

}  // namespace tpu::runtime
