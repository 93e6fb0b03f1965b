#include "runtime/provider.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/env.h"

namespace tpu::runtime {
namespace {

namespace fs = std::filesystem;

struct Provider {
  std::string_view name;     // usually the name of its package
  std::string_view family;   // "cpu", "tpu", "neuron", "cuda"
  std::string_view file;     // below a directory of packages
  std::string_view install;  // what to type
};

// In order of preference within a family: the CPU plugins from the newest XLA to the oldest.
constexpr Provider kProviders[] = {
    {"libtpu", "tpu", "libtpu/libtpu.so", "pip install libtpu"},
    {"libneuronxla", "neuron", "libneuronxla/libneuronpjrt.so",
     "pip install libneuronxla neuronx-cc, from the Neuron package index"},
    {"lammps-jax-pjrt-cpu", "cpu", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
     "pip install --no-deps lammps-jax-pjrt-cpu"},
    {"fastatomstruct-xla-cpu", "cpu", "fastatomstruct_xla_cpu/libpjrt_cpu.so", "pip install fastatomstruct-xla-cpu"},
    {"xla-cpu-pjrt", "cpu", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so", "pip install xla-cpu-pjrt"},
    {"jax-cuda13-pjrt", "cuda", "jax_plugins/xla_cuda13/xla_cuda_plugin.so", "pip install jax-cuda13-pjrt"},
    {"jax-cuda12-pjrt", "cuda", "jax_plugins/xla_cuda12/xla_cuda_plugin.so", "pip install jax-cuda12-pjrt"},
};

struct DeviceKind {
  std::string_view reported;
  std::string_view shown;
};

constexpr DeviceKind kDeviceKinds[] = {
    {"cpu", "XLA CPU"},    {"TPU v4 lite", "TPU v4i"}, {"TPU v5 lite", "TPU v5e"},
    {"TPU v5", "TPU v5p"}, {"TPU v6 lite", "TPU v6e"}, {"TPU7x", "TPU v7x"},
};

struct SearchPath {
  std::mutex mutex;
  std::vector<std::string> directories;
};

SearchPath& search_path() {
  static auto* const path = new SearchPath;
  return *path;
}

std::optional<std::string> locate(const Provider& provider) {
  SearchPath& path = search_path();
  const std::lock_guard lock(path.mutex);
  for (const std::string& directory : path.directories) {
    const fs::path file = fs::path(directory) / provider.file;
    std::error_code failed;
    if (fs::is_regular_file(file, failed)) return file.string();
  }
  return std::nullopt;
}

int64_t wanted_cpu_devices() {
  const int64_t count = env::integer(env::kNumDevices, 1);
  if (count < 1) {
    throw Error(Code::kValue, std::string(env::kNumDevices) + " must be at least 1, got " + std::to_string(count));
  }
  return count;
}

pjrt::Options create_options(std::string_view family) {
  if (family == "cpu") return {{"cpu_device_count", wanted_cpu_devices()}};
  // Otherwise three quarters of the GPU's memory are taken at once.
  if (family == "cuda") return {{"preallocate", false}};
  return {};
}

PluginChoice choice_of(const Provider& provider, std::string path, std::string reason) {
  return {std::string(provider.name), std::move(path), create_options(provider.family), std::move(reason)};
}

// Best installed plugin among the rows that match; nullopt if none is installed.
std::optional<PluginChoice> installed(std::string_view name_or_family, const std::string& reason) {
  for (const Provider& provider : kProviders) {
    if (provider.name != name_or_family && provider.family != name_or_family) continue;
    if (auto path = locate(provider)) return choice_of(provider, std::move(*path), reason);
  }
  return std::nullopt;
}

std::string install_commands(std::string_view name_or_family) {
  std::string text;
  for (const Provider& provider : kProviders) {
    if (provider.name != name_or_family && provider.family != name_or_family) continue;
    if (!text.empty()) text += ", or: ";
    text += provider.install;
  }
  return text;
}

bool known(std::string_view name_or_family) { return !install_commands(name_or_family).empty(); }

// A plugin given by path is one of the table's when its file is called the same.
PluginChoice choose_path(const std::string& path, const std::string& reason) {
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) {
    throw Error(Code::kUnavailable, std::string(env::kPlugin) + " names " + path + ", which is not a file; set it to " +
                                        "the path of a PJRT plugin or to one of its names, or unset it");
  }
  const std::string file = fs::path(path).filename().string();
  for (const Provider& provider : kProviders) {
    if (fs::path(provider.file).filename() == file) return choice_of(provider, path, reason);
  }
  return {"custom", path, {}, reason};
}

PluginChoice find_named(const std::string& name, const std::string& reason) {
  if (!known(name)) {
    std::string names;
    for (const std::string& candidate : provider_names()) names += (names.empty() ? "" : ", ") + candidate;
    throw Error(Code::kValue, "'" + name + "' is no PJRT plugin that is known here; known: " + names);
  }
  if (auto choice = installed(name, reason)) return std::move(*choice);
  throw Error(Code::kUnavailable, "the PJRT plugin '" + name + "' is not installed: " + install_commands(name));
}

// Hardware that is present and cannot be used is an error: running on the CPU instead would surprise.
PluginChoice for_hardware(const std::string& family, const std::string& what) {
  if (auto choice = installed(family, what + " is present")) return std::move(*choice);
  throw Error(Code::kUnavailable, what + " is present, but its PJRT plugin is not installed: " +
                                      install_commands(family) + "; to run on the CPU, set " + env::kPlugin + "=cpu");
}

// Google's PCI devices other than network and storage, which every virtual machine of theirs has.
bool is_accelerator_of_google(const fs::path& device) {
  const auto read = [&](const char* name) {
    std::string text;
    std::ifstream(device / name) >> text;
    return text;
  };
  if (read("vendor") != "0x1ae0") return false;
  const std::string pci_class = read("class");
  return !pci_class.starts_with("0x01") && !pci_class.starts_with("0x02");
}

std::vector<fs::path> children(const fs::path& directory) {
  std::vector<fs::path> paths;
  std::error_code failed;
  for (fs::directory_iterator it(directory, failed), end; !failed && it != end; it.increment(failed)) {
    paths.push_back(it->path());
  }
  return paths;
}

// True for "<prefix><digits>".
bool is_numbered(const fs::path& path, std::string_view prefix) {
  const std::string name = path.filename().string();
  return name.size() > prefix.size() && name.starts_with(prefix) &&
         std::all_of(name.begin() + static_cast<std::ptrdiff_t>(prefix.size()), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

bool has_numbered(const fs::path& directory, std::string_view prefix) {
  const auto paths = children(directory);
  return std::any_of(paths.begin(), paths.end(), [&](const fs::path& path) { return is_numbered(path, prefix); });
}

// Leaves what the user has set.
void set_variable(const char* name, const char* value) { setenv(name, value, /*overwrite=*/0); }

}  // namespace

void set_plugin_search_path(std::vector<std::string> directories) {
  SearchPath& path = search_path();
  const std::lock_guard lock(path.mutex);
  path.directories = std::move(directories);
}

PluginChoice find_provider(const std::string& name) { return find_named(name, "asked for by name"); }

PluginChoice choose_plugin() {
  if (const auto wanted = env::text(env::kPlugin)) {
    const std::string reason = std::string(env::kPlugin) + " is set";
    const bool is_path = wanted->find('/') != std::string::npos || wanted->ends_with(".so");
    return is_path ? choose_path(*wanted, reason) : find_named(*wanted, reason);
  }
  if (tpu_present()) return for_hardware("tpu", "a TPU");
  if (neuron_present()) return for_hardware("neuron", "a NeuronCore");
  if (auto choice = installed("cpu", "the newest CPU plugin installed")) return std::move(*choice);
  throw Error(Code::kUnavailable, "no PJRT plugin is installed. Install one: " + install_commands("cpu") + "; or set " +
                                      env::kPlugin + " to the path of a plugin");
}

std::vector<std::string> provider_names() {
  std::vector<std::string> names;
  const auto add = [&](std::string_view name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  };
  for (const Provider& provider : kProviders) add(provider.family);
  for (const Provider& provider : kProviders) add(provider.name);
  return names;
}

std::string display_device_kind(const std::string& kind) {
  for (const DeviceKind& entry : kDeviceKinds) {
    if (entry.reported == kind) return std::string(entry.shown);
  }
  return kind;
}

bool tpu_present(const fs::path& root) {
  const auto devices = children(root / "sys/bus/pci/devices");
  if (std::none_of(devices.begin(), devices.end(), is_accelerator_of_google)) return false;
  return has_numbered(root / "dev", "accel") || has_numbered(root / "dev/vfio", "");
}

bool neuron_present(const fs::path& root) { return has_numbered(root / "dev", "neuron"); }

void set_environment(const PluginChoice& choice) {
  constexpr int kCompilerOutput = 5;  // TORCH_TPU_DEBUG level that shows it
  // Every message that matters comes back as an error; 3 leaves fatal ones.
  if (env::integer(env::kDebug, 0) < kCompilerOutput) set_variable("TF_CPP_MIN_LOG_LEVEL", "3");
  if (choice.provider == "libtpu") {
    set_variable("ALLOW_MULTIPLE_LIBTPU_LOAD", "1");
    // Without a TPU the metadata server is not there either, and libtpu retries it for over a minute.
    if (!tpu_present()) set_variable("TPU_SKIP_MDS_QUERY", "1");
  }
}

void prepare_plugin(const PluginChoice& choice) {
  set_environment(choice);
  check_xla_flags(choice);
}

std::string cache_directory() {
  if (!env::flag(env::kCache, true)) return "";
  if (auto chosen = env::text(env::kCacheDir)) return *chosen;
  if (auto base = env::text("XDG_CACHE_HOME")) return *base + "/torch_tpu";
  if (auto home = env::text("HOME")) return *home + "/.cache/torch_tpu";
  return "";
}

}  // namespace tpu::runtime
