#include "runtime/disk_cache.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "runtime/executable_file.h"

namespace tpu::runtime {
namespace fs = std::filesystem;

DiskCache::DiskCache(std::string directory, int64_t limit_bytes)
    : directory_(std::move(directory)), limit_bytes_(limit_bytes) {}

std::string DiskCache::name_of(const std::string& key) { return to_hex(fingerprint(key)); }

std::string DiskCache::path_of(const std::string& key) const { return directory_ + "/" + name_of(key) + ".exe"; }

std::optional<std::string> DiskCache::load(const std::string& key) const {
  if (!enabled()) return std::nullopt;
  const std::string path = path_of(key);
  std::error_code ignored;
  try {
    auto payload = read_executable(path, key);
    if (payload) fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
    return payload;
  } catch (const Error&) {
    fs::remove(path, ignored);  // damaged
    return std::nullopt;
  }
}

void DiskCache::store(const std::string& key, const std::string& payload) {
  if (!enabled()) return;
  std::error_code failed;
  fs::create_directories(directory_, failed);
  if (failed) return;
  static std::atomic<uint64_t> serial{0};
  const std::string path = path_of(key);
  const std::string temporary = path + "." + std::to_string(getpid()) + "." + std::to_string(serial++) + ".tmp";
  try {
    write_executable(temporary, key, payload);
  } catch (const Error&) {
    fs::remove(temporary, failed);
    return;
  }
  fs::rename(temporary, path, failed);
  if (failed) {
    fs::remove(temporary, failed);
    return;
  }
  std::lock_guard lock(mutex_);
  if (stored_since_eviction_ >= 0) stored_since_eviction_ += static_cast<int64_t>(payload.size() + key.size());
  // Measuring the directory costs a scan, so it happens at the first store and then once per 5 % written.
  if (stored_since_eviction_ < 0 || stored_since_eviction_ > limit_bytes_ / 20) evict();
}

void DiskCache::evict() {
  struct File {
    fs::path path;
    fs::file_time_type time;
    int64_t size;
  };
  std::vector<File> files;
  int64_t total = 0;
  std::error_code failed;
  const auto now = fs::file_time_type::clock::now();
  for (const auto& entry : fs::directory_iterator(directory_, failed)) {
    const auto time = entry.last_write_time(failed);
    if (failed) continue;
    // A process that was killed while writing leaves its temporary file behind.
    if (entry.path().extension() == ".tmp") {
      if (now - time > std::chrono::hours(1)) fs::remove(entry.path(), failed);
      continue;
    }
    if (entry.path().extension() != ".exe") continue;
    const auto size = static_cast<int64_t>(entry.file_size(failed));
    if (failed) continue;
    files.push_back({entry.path(), time, size});
    total += size;
  }
  stored_since_eviction_ = 0;
  if (total <= limit_bytes_) return;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.time < b.time; });
  for (const File& file : files) {
    if (total <= limit_bytes_ * 9 / 10) break;
    if (fs::remove(file.path, failed)) total -= file.size;
  }
}

}  // namespace tpu::runtime
