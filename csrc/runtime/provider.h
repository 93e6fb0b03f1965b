#pragma once
// Which PJRT plugin to use, where it lies and how its client is created. One table (provider.cpp) has a row
// per provider. The core knows nothing of Python, so the directories that hold installed packages are handed
// in. Nothing here loads a plugin into this process. Thread-safe, except for set_environment() and
// prepare_plugin(), which change the process's environment and therefore must run before other threads read it.

#include <filesystem>
#include <string>
#include <vector>

#include "pjrt/client.h"

namespace tpu::runtime {

struct PluginChoice {
  std::string provider;   // row of the table ("libtpu", "lammps-jax-pjrt-cpu"), or "custom"
  std::string path;       // the plugin's file
  pjrt::Options options;  // for Client::create
  std::string reason;     // why this one, for people: "TORCH_TPU_PJRT_PLUGIN is set"
};

/// Directories with installed packages (site-packages), first wins. Replaces the earlier list.
void set_plugin_search_path(std::vector<std::string> directories);

/// TORCH_TPU_PJRT_PLUGIN (a path, or a name that find_provider() takes) wins; else libtpu where a TPU is
/// present; else the Neuron plugin where a NeuronCore is present; else the newest CPU plugin installed.
/// Error{kUnavailable} says what to install; Error{kValue} for an unknown name or a bad
/// TORCH_TPU_NUM_DEVICES.
PluginChoice choose_plugin();

/// The plugin of one provider, or of the best one of a family ("cpu", "tpu", "neuron", "cuda").
/// Errors as in choose_plugin(). Ahead-of-time compilation asks for "libtpu" this way.
PluginChoice find_provider(const std::string& name);

/// Names that find_provider() takes: families first, then providers in order of preference.
std::vector<std::string> provider_names();

/// A device kind as plugins report it, in the name people use: "TPU v5 lite" -> "TPU v5e".
/// Kinds without an entry stay as they are.
std::string display_device_kind(const std::string& kind);

/// True if a TPU is attached. Looks at device files and PCI identifiers below `root`, never at the network.
bool tpu_present(const std::filesystem::path& root = "/");

/// True if a NeuronCore is attached.
bool neuron_present(const std::filesystem::path& root = "/");

/// Sets the environment variables that the plugin needs before it is loaded; those the user has set stay.
void set_environment(const PluginChoice& choice);

/// To be called once before the plugin is loaded to run programs: set_environment() and check_xla_flags().
void prepare_plugin(const PluginChoice& choice);

/// XLA ends the process on a flag it does not know. When XLA_FLAGS is set, tpu_probe (installed beside this
/// library) creates a client and runs a small program first; if it dies, this throws Error{kValue} with what
/// the plugin wrote. The verdict is remembered per plugin file and flags, in memory and in the cache
/// directory. Does nothing when the plugin is loaded already. Without tpu_probe, or if it does not answer in
/// a minute (TORCH_TPU_INIT_TIMEOUT seconds if set), the flags are used as they are.
void check_xla_flags(const PluginChoice& choice);

/// Where files of the compile cache and the verdicts on flags live; empty when the disk cache is off or
/// there is no home directory.
std::string cache_directory();

}  // namespace tpu::runtime
