// The disk cache by itself: what is stored is found, and whatever is wrong with a file is a miss.

#include "runtime/disk_cache.h"

#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "base/hash.h"
#include "pjrt/fake_plugin.h"

namespace tpu::runtime {
namespace {

namespace fs = std::filesystem;

class DiskCacheTest : public testing::Test {
 protected:
  fs::path folder() const { return directory_.path() / "cache"; }
  DiskCache cache(int64_t limit = int64_t{1} << 20) const { return DiskCache(folder().string(), limit); }
  fs::path file_of(const std::string& key) const { return folder() / (to_hex(fingerprint(key)) + ".exe"); }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder())) found.push_back(entry.path());
    return found;
  }
  static std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const pjrt::ScopedDirectory directory_;
};

TEST_F(DiskCacheTest, StoredIsFound) {
  DiskCache first = cache();
  EXPECT_EQ(first.load("key"), std::nullopt);
  first.store("key", "payload");
  first.store("empty", "");
  EXPECT_EQ(cache().load("key"), "payload");
  EXPECT_EQ(cache().load("empty"), "");
  EXPECT_EQ(cache().load("other"), std::nullopt);
  EXPECT_EQ(files().size(), 2U);
}

TEST_F(DiskCacheTest, EveryFlippedBitAndEveryLengthIsAMiss) {
  cache().store("key", "payload");
  const std::string good = contents(file_of("key"));
  const auto try_with = [&](const std::string& bytes) {
    std::ofstream(file_of("key"), std::ios::binary) << bytes;
    return cache().load("key");
  };
  ASSERT_EQ(try_with(good), "payload");
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = good;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      ASSERT_EQ(try_with(damaged), std::nullopt) << "byte " << i << " bit " << bit;
    }
    ASSERT_EQ(try_with(good.substr(0, i)), std::nullopt) << "length " << i;
    EXPECT_FALSE(fs::exists(file_of("key")));  // so that the next process does not read it again
  }
  EXPECT_EQ(try_with(good + "x"), std::nullopt);
}

// Two keys with one fingerprint lead to one file name. A whole entry of another key is a miss, and stays.
TEST_F(DiskCacheTest, CollisionIsAMiss) {
  cache().store("key", "payload");
  fs::rename(file_of("key"), file_of("other"));
  EXPECT_EQ(cache().load("other"), std::nullopt);
  EXPECT_TRUE(fs::exists(file_of("other")));
  cache().store("other", "its own");
  EXPECT_EQ(cache().load("other"), "its own");
}

TEST_F(DiskCacheTest, FileInPlaceOfTheFolder) {
  std::ofstream(folder()) << "in the way";
  DiskCache blocked = cache();
  blocked.store("key", "payload");
  EXPECT_EQ(blocked.load("key"), std::nullopt);
  EXPECT_EQ(contents(folder()), "in the way");
}

// A limit on the size of files makes writes fail in the middle, as a full disk does.
TEST_F(DiskCacheTest, DiskThatIsFull) {
  DiskCache full = cache();
  full.store("before", "payload");
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  full.store("key", std::string(1 << 20, 'x'));
  EXPECT_EQ(full.load("before"), "payload");
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(full.load("key"), std::nullopt);
  EXPECT_EQ(files().size(), 1U);  // nothing half written stays
  full.store("key", "now there is room");
  EXPECT_EQ(full.load("key"), "now there is room");
}

TEST_F(DiskCacheTest, OldestGoFirst) {
  DiskCache bounded = cache(1000);
  const auto now = fs::file_time_type::clock::now();
  for (int i = 0; i < 9; ++i) {
    const std::string key = "key" + std::to_string(i);
    bounded.store(key, std::string(50, 'x'));
    fs::last_write_time(file_of(key), now - std::chrono::minutes(100 - i));
  }
  EXPECT_NE(bounded.load("key0"), std::nullopt);  // used now, hence the youngest
  bounded.store("big", std::string(400, 'x'));
  EXPECT_NE(bounded.load("big"), std::nullopt);
  EXPECT_NE(bounded.load("key0"), std::nullopt);
  EXPECT_EQ(bounded.load("key1"), std::nullopt);
  EXPECT_NE(bounded.load("key8"), std::nullopt);
}

TEST_F(DiskCacheTest, LeftoversOfKilledWritersGoAfterAnHour) {
  fs::create_directories(folder());
  const fs::path old = folder() / "a.exe.1.0.tmp", young = folder() / "a.exe.2.0.tmp", foreign = folder() / "a.txt";
  for (const fs::path& path : {old, young, foreign}) std::ofstream(path) << "half";
  const auto now = fs::file_time_type::clock::now();
  for (const fs::path& path : {old, foreign}) fs::last_write_time(path, now - std::chrono::hours(2));
  cache().store("key", "payload");
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young));
  EXPECT_TRUE(fs::exists(foreign));
}

TEST(DiskCacheOffTest, NothingIsStored) {
  DiskCache off("", 1000);
  off.store("key", "payload");
  EXPECT_EQ(off.load("key"), std::nullopt);
}

}  // namespace
}  // namespace tpu::runtime
