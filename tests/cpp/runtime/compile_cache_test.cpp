// From text to executable on the fake plugin: shared, compared in full, served from disk, failures kept apart.

#include "runtime/compile_cache.h"

#include <thread>

#include "pjrt/c_api.h"
#include "pjrt/fake_plugin.h"

namespace tpu::runtime {
namespace {

using pjrt::contains;
using pjrt::error_of;

class CompileCacheTest : public pjrt::FakePluginTest {
 protected:
  void SetUp() override { open(); }
  // The base looks for objects that were not released, and a worker lets go of its program a little late.
  void TearDown() override {
    for (const CompileCache* made : caches_) {
      while (made->busy()) std::this_thread::yield();
    }
    FakePluginTest::TearDown();
  }
  // Its worker threads are never joined, hence leaked as in a process.
  CompileCache& cache(const std::string& directory = "") {
    caches_.push_back(new CompileCache(*client_, directory, int64_t{1} << 20, 2));
    return *caches_.back();
  }
  static CompileRequest request(const std::string& text) { return {text, "label", "file.py:1", "a test"}; }

  const pjrt::ScopedDirectory directory_;
  std::vector<CompileCache*> caches_;
};

// A word that, put after `other_first`, leads mix() to where `first`, `second` lead it from `seed`.
uint64_t colliding(uint64_t seed, uint64_t first, uint64_t second, uint64_t other_first) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15ULL;
  uint64_t inverse = kFactor;  // Newton's iteration modulo 2^64
  for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
  return (mix(seed, first) ^ mix(seed, other_first) ^ second * kFactor) * inverse;
}

// Two texts whose hashes in the table are equal.
std::pair<std::string, std::string> colliding_texts() {
  const auto text = [](uint64_t first, uint64_t second) {
    std::string bytes(16, '\0');
    std::memcpy(bytes.data(), &first, 8);
    std::memcpy(bytes.data() + 8, &second, 8);
    return bytes + "outputs=1";
  };
  constexpr uint64_t kSeed = 0x243f6a8885a308d3ULL;  // of fingerprint(); the test says so when it has changed
  return {text(1, 2), text(3, colliding(kSeed, 1, 2, 3))};
}

TEST_F(CompileCacheTest, EqualTextsShareOneExecutable) {
  CompileCache& shared = cache();
  const ProgramHandle first = shared.get(request("outputs=2"));
  EXPECT_EQ(shared.get(request("outputs=2")), first);
  EXPECT_EQ(first->wait().output_count(), 2U);
  EXPECT_EQ(shared.stats().compiled, 1);
  EXPECT_EQ(shared.stats().memory_hits, 1);
}

TEST_F(CompileCacheTest, CollidingTextsGetTheirOwnExecutables) {
  const auto [one, other] = colliding_texts();
  ASSERT_NE(one, other);
  ASSERT_EQ(fingerprint(one).high, fingerprint(other).high);
  CompileCache& colliding = cache();
  const ProgramHandle first = colliding.get(request(one));
  const ProgramHandle second = colliding.get(request(other));
  EXPECT_NE(first, second);
  first->wait();
  second->wait();
  EXPECT_EQ(colliding.get(request(one)), first);
  EXPECT_EQ(colliding.get(request(other)), second);
  EXPECT_EQ(colliding.stats().compiled, 2);
}

TEST_F(CompileCacheTest, SecondCacheFindsItOnDisk) {
  const std::string folder = directory_.path().string();
  cache(folder).get(request("outputs=3"))->wait();
  CompileCache& second = cache(folder);
  EXPECT_EQ(second.get(request("outputs=3"))->wait().output_count(), 3U);
  EXPECT_EQ(second.stats().disk_hits, 1);
  EXPECT_EQ(second.stats().compiled, 0);
}

TEST_F(CompileCacheTest, FailureIsKeptWithItsProgram) {
  {
    const std::lock_guard lock(control_->mutex);
    control_->refused_program = "bad";
  }
  CompileCache& failing = cache(directory_.path().string());
  const ProgramHandle bad = failing.get(request("bad outputs=1"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(contains(error_of([&] { bad->wait(); }).what(), "the program holds bad"));
  }
  failing.get(request("good outputs=1"))->wait();
  EXPECT_EQ(failing.stats().failed, 1);
  EXPECT_EQ(failing.stats().compiled, 1);
}

TEST_F(CompileCacheTest, DiscardedProgramsAreReleased) {
  CompileCache& dropping = cache();
  std::vector<std::shared_ptr<const void>> holders;
  for (int i = 0; i < 300; ++i) {
    ProgramHandle program = dropping.get(request("program " + std::to_string(i)));
    program->wait();
    holders.push_back(std::move(program));
  }
  EXPECT_EQ(control_->loaded_executables, 300);
  dropping.discard(std::move(holders));
  while (dropping.busy()) std::this_thread::yield();
  EXPECT_EQ(control_->loaded_executables, 0);
  EXPECT_EQ(dropping.stats().programs, 0);
}

}  // namespace
}  // namespace tpu::runtime
