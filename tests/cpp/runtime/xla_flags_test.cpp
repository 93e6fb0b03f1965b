// XLA_FLAGS that would end the process are errors. Needs a real plugin (TPU_TEST_PLUGINS) and tpu_probe beside
// the library.

#include <dlfcn.h>

#include <fstream>

#include "pjrt/fake_plugin.h"
#include "runtime/provider.h"

namespace tpu::runtime {
namespace {

namespace fs = std::filesystem;
using pjrt::contains;
using pjrt::error_of;
using pjrt::ScopedDirectory;
using pjrt::ScopedEnvironment;

size_t count_files(const fs::path& directory) {
  size_t count = 0;
  if (!fs::exists(directory)) return 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) count += entry.is_regular_file() ? 1 : 0;
  return count;
}

class XlaFlagsTest : public testing::Test {
 protected:
  // A copy of the plugin by another name: the original may be loaded by other tests already. Its own name also
  // keeps verdicts of one test from another.
  void SetUp() override {
    const char* plugins = std::getenv("TPU_TEST_PLUGINS");
    if (plugins == nullptr || *plugins == '\0') GTEST_SKIP() << "TPU_TEST_PLUGINS names no plugin";
    Dl_info info{};
    ASSERT_NE(dladdr(reinterpret_cast<const void*>(&check_xla_flags), &info), 0);
    if (!fs::exists(fs::path(info.dli_fname).replace_filename("tpu_probe"))) {
      GTEST_SKIP() << "tpu_probe was not built beside the library";
    }
    const std::string text(plugins);
    const fs::path copy = directory_.path() / "plugin.so";
    fs::copy_file(text.substr(0, text.find(':')), copy);
    choice_ = {"custom", copy.string(), {{"cpu_device_count", int64_t{1}}}, "a test"};
  }
  fs::path cache() const { return directory_.path() / "cache"; }
  ScopedEnvironment with_flags(const std::string& flags) const {
    return ScopedEnvironment({{"XLA_FLAGS", flags}, {"TORCH_TPU_CACHE_DIR", cache().string()}});
  }

  ScopedDirectory directory_;
  PluginChoice choice_;
};

TEST_F(XlaFlagsTest, UnsetFlagsCostNothing) {
  const ScopedEnvironment environment = with_flags("");
  check_xla_flags(choice_);
  EXPECT_EQ(count_files(cache()), 0U);
}

TEST_F(XlaFlagsTest, GoodFlagsPassAndAreRemembered) {
  const ScopedEnvironment environment = with_flags("--xla_cpu_enable_fast_math=false");
  check_xla_flags(choice_);
  EXPECT_EQ(count_files(cache()), 1U);
  check_xla_flags(choice_);
  EXPECT_EQ(count_files(cache()), 1U);
}

TEST_F(XlaFlagsTest, UnknownFlagIsNamed) {
  const ScopedEnvironment environment = with_flags("--xla_no_such_flag=1");
  for (int attempt = 0; attempt < 2; ++attempt) {  // the second time from memory
    const Error error = error_of([&] { check_xla_flags(choice_); });
    EXPECT_EQ(error.code(), Code::kValue);
    EXPECT_TRUE(contains(error.what(), "Unknown flag")) << error.what();
    EXPECT_TRUE(contains(error.what(), "xla_no_such_flag")) << error.what();
  }
  EXPECT_EQ(count_files(cache()), 1U);
}

TEST_F(XlaFlagsTest, BadValueIsNamed) {
  const ScopedEnvironment environment = with_flags("--xla_cpu_enable_fast_math=banana");
  const Error error = error_of([&] { check_xla_flags(choice_); });
  EXPECT_EQ(error.code(), Code::kValue);
  EXPECT_TRUE(contains(error.what(), "banana")) << error.what();
}

// tpu_probe prepares its plugin like everyone else: without this each would start the next one.
TEST_F(XlaFlagsTest, ProbeStartsNoProbe) {
  const ScopedEnvironment environment = with_flags("--xla_no_such_flag=1");
  const ScopedEnvironment inside({{"TORCH_TPU_PROBING", "1"}});
  check_xla_flags(choice_);
  EXPECT_EQ(count_files(cache()), 0U);
}

TEST_F(XlaFlagsTest, ErrorsOfAnotherKindAreNotAboutFlags) {
  const ScopedEnvironment environment = with_flags("--xla_cpu_enable_fast_math=false");
  choice_.path = (directory_.path() / "missing.so").string();
  check_xla_flags(choice_);
  EXPECT_EQ(count_files(cache()), 0U);
}

TEST_F(XlaFlagsTest, CacheThatCannotBeWrittenIsNoError) {
  const std::string file = (directory_.path() / "file").string();
  std::ofstream(file) << "not a directory";
  const ScopedEnvironment environment(
      {{"XLA_FLAGS", "--xla_cpu_enable_fast_math=false"}, {"TORCH_TPU_CACHE_DIR", file}});
  check_xla_flags(choice_);
}

}  // namespace
}  // namespace tpu::runtime
