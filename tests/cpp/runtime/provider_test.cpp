// Which plugin is chosen, and what is said when none can be. Packages and devices are empty files in a
// temporary directory: nothing is loaded.

#include "runtime/provider.h"

#include <fstream>

#include "pjrt/fake_plugin.h"

namespace tpu::runtime {
namespace {

namespace fs = std::filesystem;
using pjrt::contains;
using pjrt::error_of;
using pjrt::ScopedDirectory;
using pjrt::ScopedEnvironment;

void write_file(const fs::path& path, const std::string& text = "") {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

class ProviderTest : public testing::Test {
 protected:
  void SetUp() override { set_plugin_search_path({(root() / "one").string(), (root() / "two").string()}); }
  void TearDown() override { set_plugin_search_path({}); }
  const fs::path& root() const { return directory_.path(); }
  std::string install(const std::string& file) const {
    write_file(root() / "two" / file);
    return (root() / "two" / file).string();
  }

  ScopedDirectory directory_;
  // Unset for the tests, whatever the caller has.
  ScopedEnvironment environment_{{{"TORCH_TPU_PJRT_PLUGIN", ""}, {"TORCH_TPU_NUM_DEVICES", ""}}};
};

constexpr char kLammps[] = "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so";
constexpr char kFastatom[] = "fastatomstruct_xla_cpu/libpjrt_cpu.so";
constexpr char kOldest[] = "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so";

class CpuChoiceTest : public ProviderTest {
 protected:
  void SetUp() override {
    ProviderTest::SetUp();
    if (tpu_present() || neuron_present()) GTEST_SKIP() << "this machine has an accelerator, which goes first";
  }
};

TEST_F(CpuChoiceTest, NothingInstalledNamesTheCommands) {
  const Error error = error_of([] { choose_plugin(); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "pip install --no-deps lammps-jax-pjrt-cpu")) << error.what();
  EXPECT_TRUE(contains(error.what(), "pip install fastatomstruct-xla-cpu")) << error.what();
}

TEST_F(CpuChoiceTest, NewestInstalledPluginWins) {
  const std::string oldest = install(kOldest);
  EXPECT_EQ(choose_plugin().path, oldest);
  const std::string fastatom = install(kFastatom);
  EXPECT_EQ(choose_plugin().path, fastatom);
  const std::string lammps = install(kLammps);
  const PluginChoice choice = choose_plugin();
  EXPECT_EQ(choice.path, lammps);
  EXPECT_EQ(choice.provider, "lammps-jax-pjrt-cpu");
  EXPECT_EQ(choice.options, (pjrt::Options{{"cpu_device_count", int64_t{1}}}));
  EXPECT_FALSE(choice.reason.empty());
}

TEST_F(CpuChoiceTest, FirstDirectoryWins) {
  install(kLammps);
  write_file(root() / "one" / kLammps);
  EXPECT_EQ(choose_plugin().path, (root() / "one" / kLammps).string());
}

TEST_F(ProviderTest, NameOrFamilyInTheVariable) {
  install(kLammps);
  const std::string oldest = install(kOldest);
  const std::string tpu = install("libtpu/libtpu.so");
  {
    const ScopedEnvironment environment({{"TORCH_TPU_PJRT_PLUGIN", "xla-cpu-pjrt"}});
    EXPECT_EQ(choose_plugin().path, oldest);
  }
  {
    const ScopedEnvironment environment({{"TORCH_TPU_PJRT_PLUGIN", "cpu"}});
    EXPECT_EQ(choose_plugin().provider, "lammps-jax-pjrt-cpu");
  }
  const ScopedEnvironment environment({{"TORCH_TPU_PJRT_PLUGIN", "tpu"}});
  const PluginChoice choice = choose_plugin();
  EXPECT_EQ(choice.path, tpu);
  EXPECT_TRUE(choice.options.empty());
}

TEST_F(ProviderTest, NamedButNotInstalled) {
  const ScopedEnvironment environment({{"TORCH_TPU_PJRT_PLUGIN", "libtpu"}});
  const Error error = error_of([] { choose_plugin(); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "pip install libtpu")) << error.what();
}

TEST_F(ProviderTest, UnknownNameListsTheKnownOnes) {
  const ScopedEnvironment environment({{"TORCH_TPU_PJRT_PLUGIN", "libtpo"}});
  const Error error = error_of([] { choose_plugin(); });
  EXPECT_EQ(error.code(), Code::kValue);
  EXPECT_TRUE(contains(error.what(), "libtpo")) << error.what();
  for (const std::string& name : provider_names()) EXPECT_TRUE(contains(error.what(), name)) << error.what();
}

TEST_F(ProviderTest, PathInTheVariable) {
  const std::string custom = (root() / "my_plugin.so").string();
  write_file(custom);
  const ScopedEnvironment environment({{"TORCH_TPU_PJRT_PLUGIN", custom}, {"TORCH_TPU_NUM_DEVICES", "3"}});
  const PluginChoice choice = choose_plugin();
  EXPECT_EQ(choice.provider, "custom");
  EXPECT_EQ(choice.path, custom);
  EXPECT_TRUE(choice.options.empty());
  EXPECT_TRUE(contains(choice.reason, "TORCH_TPU_PJRT_PLUGIN"));
}

TEST_F(ProviderTest, PathOfAKnownFileGetsItsOptions) {
  const std::string copy = (root() / "elsewhere" / "libpjrt_cpu.so").string();
  write_file(copy);
  const ScopedEnvironment environment({{"TORCH_TPU_PJRT_PLUGIN", copy}, {"TORCH_TPU_NUM_DEVICES", "3"}});
  EXPECT_EQ(choose_plugin().options, (pjrt::Options{{"cpu_device_count", int64_t{3}}}));
}

TEST_F(ProviderTest, PathThatIsNoFile) {
  const ScopedEnvironment environment({{"TORCH_TPU_PJRT_PLUGIN", "/nonexistent/plugin.so"}});
  const Error error = error_of([] { choose_plugin(); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "/nonexistent/plugin.so")) << error.what();
}

TEST_F(ProviderTest, NumberOfDevicesIsChecked) {
  install(kLammps);
  for (const char* text : {"0", "-1", "two"}) {
    const ScopedEnvironment environment({{"TORCH_TPU_PJRT_PLUGIN", "cpu"}, {"TORCH_TPU_NUM_DEVICES", text}});
    const Error error = error_of([] { choose_plugin(); });
    EXPECT_EQ(error.code(), Code::kValue);
    EXPECT_TRUE(contains(error.what(), "TORCH_TPU_NUM_DEVICES")) << error.what();
  }
}

TEST_F(ProviderTest, GpuMemoryIsNotTakenAtOnce) {
  install("jax_plugins/xla_cuda13/xla_cuda_plugin.so");
  EXPECT_EQ(find_provider("cuda").options, (pjrt::Options{{"preallocate", false}}));
}

TEST(DeviceKindTest, Names) {
  EXPECT_EQ(display_device_kind("TPU v5 lite"), "TPU v5e");
  EXPECT_EQ(display_device_kind("TPU v6 lite"), "TPU v6e");
  EXPECT_EQ(display_device_kind("TPU v4"), "TPU v4");
  EXPECT_EQ(display_device_kind("something new"), "something new");
}

class HardwareTest : public ProviderTest {
 protected:
  void add_pci(const std::string& address, const std::string& vendor, const std::string& pci_class) const {
    write_file(root() / "sys/bus/pci/devices" / address / "vendor", vendor + "\n");
    write_file(root() / "sys/bus/pci/devices" / address / "class", pci_class + "\n");
  }
};

TEST_F(HardwareTest, EmptyMachine) {
  EXPECT_FALSE(tpu_present(root()));
  EXPECT_FALSE(neuron_present(root()));
}

TEST_F(HardwareTest, TpuThroughItsDriver) {
  add_pci("0000:00:04.0", "0x1ae0", "0x120000");
  EXPECT_FALSE(tpu_present(root()));  // no device file: the driver is not there
  write_file(root() / "dev/accel0");
  EXPECT_TRUE(tpu_present(root()));
}

TEST_F(HardwareTest, TpuThroughVfio) {
  add_pci("0000:00:04.0", "0x1ae0", "0xff0000");
  write_file(root() / "dev/vfio/vfio");  // the control file, present on every machine with the module
  EXPECT_FALSE(tpu_present(root()));
  write_file(root() / "dev/vfio/0");
  EXPECT_TRUE(tpu_present(root()));
}

TEST_F(HardwareTest, NetworkAndStorageOfGoogleAreNoTpu) {
  add_pci("0000:00:04.0", "0x1ae0", "0x020000");
  add_pci("0000:00:05.0", "0x1ae0", "0x010802");
  write_file(root() / "dev/vfio/0");
  EXPECT_FALSE(tpu_present(root()));
}

TEST_F(HardwareTest, AcceleratorsOfOthersAreNoTpu) {
  add_pci("0000:00:04.0", "0x8086", "0x120000");
  write_file(root() / "dev/accel0");
  EXPECT_FALSE(tpu_present(root()));
}

TEST_F(HardwareTest, Neuron) {
  write_file(root() / "dev/neuron_control");
  EXPECT_FALSE(neuron_present(root()));
  write_file(root() / "dev/neuron0");
  EXPECT_TRUE(neuron_present(root()));
}

}  // namespace
}  // namespace tpu::runtime
