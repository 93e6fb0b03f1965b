// Loading: files that are no plugin, plugins of the wrong version or shape, entries that are missing.

#include "fake_plugin.h"
#include "pjrt/c_api.h"

namespace tpu::pjrt {
namespace {

// A function table that ends right before `entry`.
std::string size_before(size_t offset) { return std::to_string(offset); }

TEST(PluginTest, MissingFileSaysWhatToInstall) {
  const Error error = error_of([] { Plugin::load("/nonexistent/plugin.so"); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "/nonexistent/plugin.so")) << error.what();
  EXPECT_TRUE(contains(error.what(), "pip install")) << error.what();
}

TEST(PluginTest, FileThatIsNoLibrary) {
  const ScopedDirectory directory;
  const std::string path = (directory.path() / "plugin.so").string();
  std::filesystem::copy_file("/proc/self/cmdline", path);
  const Error error = error_of([&] { Plugin::load(path); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), path)) << error.what();
}

TEST(PluginTest, LibraryThatIsNoPlugin) {
  Dl_info info{};  // of the library under test
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(&Plugin::load), &info), 0);
  const Error error = error_of([&] { Plugin::load(info.dli_fname); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "GetPjrtApi")) << error.what();
}

TEST(PluginTest, NullApi) {
  const Error error = error_of([] { load_fake({{"FAKE_PJRT_NULL", "1"}}); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "returned nothing")) << error.what();
}

TEST(PluginTest, WrongMajorVersion) {
  const Error error = error_of([] { load_fake({{"FAKE_PJRT_MAJOR", "1"}}); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "C API 1.")) << error.what();
}

TEST(PluginTest, MinorVersionBelowTheFloor) {
  const Error error = error_of([] { load_fake({{"FAKE_PJRT_MINOR", "80"}}); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "0.80")) << error.what();
  EXPECT_EQ(load_fake({{"FAKE_PJRT_MINOR", "81"}})->minor_version(), 81);
}

TEST(PluginTest, NewerMinorVersionIsAccepted) {
  const auto plugin = load_fake({{"FAKE_PJRT_MINOR", "999"}, {"FAKE_PJRT_STRUCT_SIZE", "4096"}});
  EXPECT_EQ(plugin->minor_version(), 999);
}

TEST(PluginTest, TableShorterThanItsHeader) {
  const Error error = error_of([] { load_fake({{"FAKE_PJRT_STRUCT_SIZE", "24"}}); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "24 bytes")) << error.what();
}

TEST(PluginTest, TableThatEndsBeforeARequiredEntry) {
  const size_t offset = offsetof(PJRT_Api, PJRT_LoadedExecutable_Execute);
  // The offset itself lies within the table in the second case, but not the whole pointer.
  for (const size_t size : {offset, offset + 4}) {
    const Error error = error_of([&] { load_fake({{"FAKE_PJRT_STRUCT_SIZE", size_before(size)}}); });
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_TRUE(contains(error.what(), "PJRT_LoadedExecutable_Execute")) << error.what();
  }
}

TEST(PluginTest, RequiredEntryThatIsNull) {
  const Error error = error_of([] { load_fake({{"FAKE_PJRT_MISSING", "PJRT_Client_Compile"}}); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "PJRT_Client_Compile")) << error.what();
}

TEST(PluginTest, FileIsLoadedOnce) {
  const auto first = Plugin::load(TPU_FAKE_PJRT);
  const std::filesystem::path path(TPU_FAKE_PJRT);
  EXPECT_EQ(Plugin::load((path.parent_path() / "." / path.filename()).string()), first);
}

TEST(PluginTest, Attributes) {
  const auto plugin = load_fake({});
  EXPECT_EQ(plugin->major_version(), PJRT_API_MAJOR);
  EXPECT_EQ(plugin->minor_version(), PJRT_API_MINOR);
  const std::map<std::string, std::string> expected = {{"maker", "tests"}, {"stablehlo_current_version", "1.2.3"}};
  EXPECT_EQ(plugin->attributes(), expected);
}

TEST(PluginTest, AttributesAreOptional) {
  EXPECT_TRUE(load_fake({{"FAKE_PJRT_MISSING", "PJRT_Plugin_Attributes"}})->attributes().empty());
}

class OldPluginTest : public FakePluginTest {};

TEST_F(OldPluginTest, WorksWithoutOptionalEntries) {
  open({{"FAKE_PJRT_MISSING",
         "PJRT_Buffer_IsOnCpu,PJRT_DeviceDescription_Attributes,PJRT_Client_PlatformVersion,PJRT_Plugin_Attributes"}});
  EXPECT_TRUE(client_->devices()[0].attributes().empty());
  EXPECT_EQ(client_->platform_version(), "");
  const Buffer buffer = upload({1, 2});
  std::vector<float> values(2);
  buffer.copy_to_host(values.data(), 8);  // by the plugin's copy, since it cannot say where its memory is
  EXPECT_EQ(values, (std::vector<float>{1, 2}));
  EXPECT_EQ(control_->host_copies, 1);
}

TEST_F(OldPluginTest, EntryBeyondTheTableIsAnError) {
  // Everything before topologies is there, and the memory behind the table is not ours to read.
  open({{"FAKE_PJRT_STRUCT_SIZE", size_before(offsetof(PJRT_Api, PJRT_TopologyDescription_Create))}});
  const Error error = error_of([&] { Topology::create(plugin_, "fake:1x1", {}); });
  EXPECT_EQ(error.code(), Code::kNotImplemented);
  EXPECT_TRUE(contains(error.what(), "PJRT_TopologyDescription_Create")) << error.what();
}

TEST_F(OldPluginTest, MissingEntryNamesItselfAndTheVersion) {
  open({{"FAKE_PJRT_MISSING", "PJRT_Executable_Serialize"}, {"FAKE_PJRT_MINOR", "90"}});
  const auto executable = client_->compile("module", {});
  const Error error = error_of([&] { executable->serialize(); });
  EXPECT_EQ(error.code(), Code::kNotImplemented);
  EXPECT_TRUE(contains(error.what(), "C API 0.90")) << error.what();
  EXPECT_TRUE(contains(error.what(), "PJRT_Executable_Serialize")) << error.what();
}

}  // namespace
}  // namespace tpu::pjrt
