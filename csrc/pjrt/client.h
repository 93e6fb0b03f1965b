#pragma once
// RAII over the PJRT C API: plugin, client, devices, buffers, executables, events.
//
// Every call goes through one path (call.h) that sets struct_size, checks that the loaded plugin has the
// entry (its offset lies within the plugin's own struct_size and is not null) and turns a PJRT_Error into
// tpu::Error with the plugin's own text. Handles own what they wrap and release it in their destructor,
// which never throws. All types are movable, none copyable. The API is thread-safe where the plugin is.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/tensor_type.h"

struct PJRT_Api;
struct PJRT_Buffer;
struct PJRT_Client;
struct PJRT_Device;
struct PJRT_DeviceDescription;
struct PJRT_Event;
struct PJRT_LoadedExecutable;
struct PJRT_TopologyDescription;
struct PJRT_Executable;

namespace tpu::pjrt {

using Option = std::variant<std::string, int64_t, std::vector<int64_t>, float, bool>;
using Options = std::map<std::string, Option>;

/// A loaded plugin. Kept loaded for the life of the process: plugins do not support unloading.
class Plugin {
 public:
  /// dlopens `path`, checks GetPjrtApi, the API's major version and the struct size, and initialises the
  /// plugin. Error{kUnavailable} says what is wrong with the file and what to install instead.
  static std::shared_ptr<const Plugin> load(const std::string& path);

  const PJRT_Api* api() const { return api_; }
  const std::string& path() const { return path_; }
  int major_version() const;
  int minor_version() const;
  /// Plugin attributes as text: "stablehlo_current_version" -> "1.16.1", ...
  const std::map<std::string, std::string>& attributes() const { return attributes_; }

 private:
  Plugin() = default;
  const PJRT_Api* api_ = nullptr;
  std::string path_;
  std::map<std::string, std::string> attributes_;
};

class Event {
 public:
  Event() = default;
  Event(const PJRT_Api* api, PJRT_Event* event) : api_(api), event_(event) {}
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();
  bool valid() const { return event_ != nullptr; }
  bool ready() const;
  /// Blocks; throws Error{kPlugin} (kOutOfMemory for RESOURCE_EXHAUSTED) if the event carries one. On the main
  /// thread the wait can be interrupted (base/waiting.h).
  void await() const;
  /// The same without interruption: for events that guard memory of the caller's.
  void await_to_the_end() const;
  /// `callback` gets the error, or nullopt on success. Called at once when ready, else on a plugin thread.
  void on_ready(std::function<void(std::optional<Error>)> callback) const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Event* event_ = nullptr;
};

class Device {
 public:
  Device(const PJRT_Api* api, PJRT_Device* device);
  PJRT_Device* raw() const { return device_; }
  int id() const { return id_; }
  int local_hardware_id() const { return local_hardware_id_; }
  const std::string& kind() const { return kind_; }  // "cpu", "TPU v5e"
  const std::string& debug_string() const { return debug_; }
  const std::map<std::string, std::string>& attributes() const { return attributes_; }

 private:
  PJRT_Device* device_;
  int id_ = 0;
  int local_hardware_id_ = 0;
  std::string kind_, debug_;
  std::map<std::string, std::string> attributes_;
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(const PJRT_Api* api, PJRT_Buffer* buffer) : api_(api), buffer_(buffer) {}
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  bool valid() const { return buffer_ != nullptr; }
  PJRT_Buffer* raw() const { return buffer_; }
  PJRT_Buffer* release();
  /// Blocks until the buffer is defined and copies it, dense row-major, to `destination`.
  void copy_to_host(void* destination, size_t bytes) const;
  /// Address of the device memory, for plugins whose memory the host can read (CPU); await ready first.
  void* unsafe_pointer() const;
  Event ready_event() const;
  size_t on_device_bytes() const;
  bool is_deleted() const;
  Buffer copy_to_device(const Device& device) const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Buffer* buffer_ = nullptr;
};

struct ExecuteResult {
  std::vector<Buffer> outputs;
  Event done;
};

class Executable {
 public:
  Executable(const PJRT_Api* api, PJRT_LoadedExecutable* executable);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  size_t output_count() const { return output_count_; }
  /// Enqueues on one device. Inputs whose index is in `keep` are not donated even where the program has an
  /// alias. With `want_event` false, `done` is not valid.
  ExecuteResult execute(std::span<PJRT_Buffer* const> inputs, std::span<const int64_t> keep, const Device* device,
                        bool want_event) const;
  std::string serialize() const;
  size_t generated_code_bytes() const;

 private:
  const PJRT_Api* api_;
  PJRT_LoadedExecutable* executable_;
  size_t output_count_ = 0;
};

struct CompileOptions {
  int replicas = 1;
  int partitions = 1;
  bool portable = true;  // compile_portable_executable: one compile for all devices
  std::map<std::string, std::variant<std::string, bool, int64_t, double>> overrides;
  /// CompileOptionsProto bytes. At least device_ordinal, replicas and partitions are always present:
  /// XLA aborts the process without them.
  std::string encode() const;
};

class Client {
 public:
  /// Throws Error{kUnavailable} if creation fails or takes longer than `timeout` (the plugin's thread is
  /// then abandoned: it cannot be cancelled). On the main thread the wait can be interrupted.
  static std::unique_ptr<Client> create(std::shared_ptr<const Plugin> plugin, const Options& options,
                                        std::chrono::seconds timeout);
  /// How many creations run at the moment, abandoned ones included.
  static int creations_running();
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const Plugin& plugin() const { return *plugin_; }
  const PJRT_Api* api() const { return plugin_->api(); }
  PJRT_Client* raw() const { return client_; }
  const std::string& platform_name() const { return platform_name_; }  // "cpu", "tpu", "cuda"
  const std::string& platform_version() const { return platform_version_; }
  std::span<const Device> devices() const { return devices_; }  // addressable

  /// Copies dense row-major `data`; the call returns after the copy.
  Buffer buffer_from_host(const void* data, const TensorType& type, const Device& device) const;
  /// Same with strides in bytes (0 and negative allowed).
  Buffer buffer_from_host(const void* data, const TensorType& type, std::span<const int64_t> byte_strides,
                          const Device& device) const;
  std::unique_ptr<Executable> compile(const std::string& stablehlo_text, const CompileOptions& options) const;
  std::unique_ptr<Executable> deserialize(const std::string& bytes) const;

 private:
  Client() = default;
  std::shared_ptr<const Plugin> plugin_;
  PJRT_Client* client_ = nullptr;
  std::string platform_name_, platform_version_;
  std::vector<Device> devices_;
};

/// What a compiler has made and no client has loaded: there are questions to ask of it.
class CompiledProgram {
 public:
  CompiledProgram(const PJRT_Api* api, PJRT_Executable* program) : api_(api), program_(program) {}
  ~CompiledProgram();
  CompiledProgram(const CompiledProgram&) = delete;
  CompiledProgram& operator=(const CompiledProgram&) = delete;
  /// Bytes on one device. `peak` counts arguments as well, and is 0 from plugins that do not say.
  struct Memory {
    int64_t arguments = 0, outputs = 0, aliased = 0, temporaries = 0, code = 0, peak = 0;
  };
  Memory memory() const;
  /// XLA's cost analysis by name: "flops", "bytes accessed", ...
  std::map<std::string, double> cost() const;
  struct Text {
    std::string format, bytes;  // format "hlo_with_config": a serialised HloModuleProtoWithConfig
  };
  Text optimized() const;
  std::string serialize() const;

 private:
  const PJRT_Api* api_;
  PJRT_Executable* program_;
};

/// Ahead-of-time compilation for a topology named like "v5e:2x2" (no hardware, no client).
class Topology {
 public:
  static std::unique_ptr<Topology> create(std::shared_ptr<const Plugin> plugin, const std::string& name,
                                          const Options& options);
  ~Topology();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  const Plugin& plugin() const { return *plugin_; }
  const std::string& platform_name() const { return platform_name_; }  // as Client's
  /// Throws Error{kPlugin} with the compiler's text if the program is refused.
  std::unique_ptr<CompiledProgram> compile(const std::string& stablehlo_text, const CompileOptions& options) const;
  /// One of them: they are all alike.
  struct Device {
    std::string kind;                               // "TPU v5 lite"
    std::map<std::string, std::string> attributes;  // "device_memory_bytes_limit" -> "16909336064", ...
  };
  Device device() const;
  size_t device_count() const;

 private:
  Topology() = default;
  std::span<PJRT_DeviceDescription* const> descriptions() const;
  std::shared_ptr<const Plugin> plugin_;
  PJRT_TopologyDescription* topology_ = nullptr;
  std::string platform_name_;
};

/// Registers an XLA FFI handler under `target` for `platform` ("Host", "CUDA").
/// Error{kNotImplemented} when the plugin has no FFI extension.
void register_ffi_handler(const Plugin& plugin, const std::string& target, void* handler, const std::string& platform);

}  // namespace tpu::pjrt
