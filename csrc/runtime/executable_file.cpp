#include "runtime/executable_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "runtime/compile_cache.h"

namespace tpu::runtime {
namespace {

constexpr char kMagic[8] = {'T', 'P', 'U', 'E', 'X', 'E', '0', '1'};

struct Header {
  char magic[8];
  uint64_t key_bytes;
  uint64_t payload_bytes;
  Fingerprint checksum;  // of key and payload together
};

Fingerprint checksum(const std::string& key, const std::string& payload) {
  const Fingerprint a = fingerprint(key);
  const Fingerprint b = fingerprint(payload);
  return {mix(a.high, b.high), mix(a.low, b.low)};
}

}  // namespace

std::string executable_environment(const pjrt::Plugin& plugin, const std::string& platform,
                                   const std::string& device_kind) {
  std::error_code failed;
  std::string text = "torch_tpu executable v2\nplatform " + platform + "\napi " +
                     std::to_string(plugin.major_version()) + "." + std::to_string(plugin.minor_version()) +
                     "\nplugin " + std::filesystem::path(plugin.path()).filename().string() + " " +
                     std::to_string(std::filesystem::file_size(plugin.path(), failed));
  for (const auto& [name, value] : plugin.attributes()) text += "\n" + name + "=" + value;
  text += "\nkind " + device_kind;
  for (const char* name : {"XLA_FLAGS", "LIBTPU_INIT_ARGS", "NEURON_CC_FLAGS"}) {
    if (auto value = env::text(name)) text += std::string("\n") + name + "=" + *value;
  }
  if (platform == "cpu") {
    // An executable for this processor's vector units does not run on an older one.
    text += "\ncpu " + std::to_string(std::thread::hardware_concurrency());
#if defined(__x86_64__)
    text += __builtin_cpu_supports("avx512f") ? " avx512" : __builtin_cpu_supports("avx2") ? " avx2" : " sse";
#endif
  }
  return text + "\noptions " + to_hex(fingerprint(compile_options(platform).encode()));
}

std::string executable_key(const std::string& environment, const std::string& text) {
  return environment + "\n" + text;
}

void write_executable(const std::string& path, const std::string& key, const std::string& executable) {
  std::ofstream file(path, std::ios::binary);
  Header header;
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.key_bytes = key.size();
  header.payload_bytes = executable.size();
  header.checksum = checksum(key, executable);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.write(key.data(), static_cast<std::streamsize>(key.size()));
  file.write(executable.data(), static_cast<std::streamsize>(executable.size()));
  file.close();
  if (!file) throw Error(Code::kInvalidArgument, path + " cannot be written");
}

std::optional<std::string> read_executable(const std::string& path, const std::string& key) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return std::nullopt;
  const auto damaged = [&] { return Error(Code::kInvalidArgument, path + " is no executable's file, or damaged"); };
  Header header;
  // Of the file that is open: another process may have replaced it by now.
  const auto size = static_cast<uint64_t>(std::max<std::streamoff>(0, file.tellg()));
  file.seekg(0);
  const bool whole = file.read(reinterpret_cast<char*>(&header), sizeof header) &&
                     std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 && header.key_bytes <= size &&
                     header.payload_bytes <= size && sizeof header + header.key_bytes + header.payload_bytes == size;
  if (!whole) throw damaged();
  std::string stored_key(header.key_bytes, '\0');
  std::string payload(header.payload_bytes, '\0');
  file.read(stored_key.data(), static_cast<std::streamsize>(stored_key.size()));
  file.read(payload.data(), static_cast<std::streamsize>(payload.size()));
  if (!file || !(checksum(stored_key, payload) == header.checksum)) throw damaged();
  if (stored_key != key) return std::nullopt;
  return payload;
}

}  // namespace tpu::runtime
