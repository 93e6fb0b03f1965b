#pragma once
// Executables in files: the entries of the cache on disk, and what torch_tpu.export puts beside a program. A file holds
// the whole key that its executable was made for, so that one for another program, plugin or device is not taken for
// it. docs/cache.md has the format.

#include <optional>
#include <string>

#include "pjrt/client.h"

namespace tpu::runtime {

/// What an executable depends on besides the program's text: the plugin's build, the kind of device, how the engine
/// compiles for its platform, and settings of the environment that change code. A client and a topology of the same
/// device have the same.
std::string executable_environment(const pjrt::Plugin& plugin, const std::string& platform,
                                   const std::string& device_kind);

/// The key of a program in an environment.
std::string executable_key(const std::string& environment, const std::string& text);

/// Error{kInvalidArgument}: the file cannot be written.
void write_executable(const std::string& path, const std::string& key, const std::string& executable);

/// Nothing where there is no file, or one with another key. Error{kInvalidArgument}: the file is damaged.
std::optional<std::string> read_executable(const std::string& path, const std::string& key);

}  // namespace tpu::runtime
