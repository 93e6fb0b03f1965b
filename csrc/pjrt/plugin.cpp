#include <dlfcn.h>

#include <filesystem>
#include <mutex>

#include "base/log.h"
#include "pjrt/call.h"

namespace tpu::pjrt {
namespace {

using GetApi = const PJRT_Api* (*)();

// Oldest C API whose plugins were tried with this client.
constexpr int kMinimumMinor = 81;

constexpr char kInstallAdvice[] =
    "; install a plugin, for example: pip install --no-deps lammps-jax-pjrt-cpu, or: pip install "
    "fastatomstruct-xla-cpu, or set TORCH_TPU_PJRT_PLUGIN to the path of another one";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(Code::kUnavailable, "cannot use the PJRT plugin " + path + ": " + why + kInstallAdvice);
}

const PJRT_Api* open_api(const std::string& path) {
  if (!std::filesystem::exists(path)) refuse(path, "there is no such file");
  // Never closed: plugins start threads and register exit handlers.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    refuse(path, reason != nullptr ? reason : "it cannot be loaded");
  }
  const auto get_api = reinterpret_cast<GetApi>(dlsym(handle, "GetPjrtApi"));
  if (get_api == nullptr) refuse(path, "it does not export GetPjrtApi, so it is not a PJRT plugin");
  const PJRT_Api* api = get_api();
  if (api == nullptr) refuse(path, "GetPjrtApi returned nothing");
  return api;
}

// An entry without which nothing runs.
template <auto Entry>
void require(const PJRT_Api* api, const std::string& path) {
  if (!has_entry<Entry>(api)) refuse(path, missing_entry(api, entry_offset<Entry>()).what());
}

template <auto... Entries>
void require_all(const PJRT_Api* api, const std::string& path) {
  (require<Entries>(api, path), ...);
}

void check_api(const PJRT_Api* api, const std::string& path) {
  if (api->struct_size < PJRT_Api_kFirstEntry) {
    refuse(path, "its function table is only " + std::to_string(api->struct_size) + " bytes long");
  }
  const int major = api->pjrt_api_version.major_version;
  const int minor = api->pjrt_api_version.minor_version;
  if (major != PJRT_API_MAJOR || minor < kMinimumMinor) {
    refuse(path, "it implements PJRT C API " + std::to_string(major) + "." + std::to_string(minor) + ", and " +
                     std::to_string(PJRT_API_MAJOR) + "." + std::to_string(kMinimumMinor) +
                     " or a later minor version is needed");
  }
  using Api = PJRT_Api;
  require_all<&Api::PJRT_Error_Destroy, &Api::PJRT_Error_Message, &Api::PJRT_Error_GetCode,
              &Api::PJRT_Plugin_Initialize, &Api::PJRT_Event_Destroy, &Api::PJRT_Event_Await, &Api::PJRT_Event_OnReady,
              &Api::PJRT_Client_Create, &Api::PJRT_Client_Destroy, &Api::PJRT_Client_PlatformName,
              &Api::PJRT_Client_AddressableDevices, &Api::PJRT_Client_Compile, &Api::PJRT_Client_BufferFromHostBuffer,
              &Api::PJRT_Device_GetDescription, &Api::PJRT_DeviceDescription_Id, &Api::PJRT_DeviceDescription_Kind,
              &Api::PJRT_Executable_NumOutputs, &Api::PJRT_LoadedExecutable_GetExecutable,
              &Api::PJRT_LoadedExecutable_Destroy, &Api::PJRT_LoadedExecutable_Execute, &Api::PJRT_Buffer_Destroy,
              &Api::PJRT_Buffer_ToHostBuffer, &Api::PJRT_Buffer_ReadyEvent>(api, path);
}

std::map<std::string, std::string> read_attributes(const PJRT_Api* api) {
  // Optional: a plugin without attributes works.
  if (!has_entry<&PJRT_Api::PJRT_Plugin_Attributes>(api)) return {};
  auto args = make_args<PJRT_Plugin_Attributes_Args>();
  call<&PJRT_Api::PJRT_Plugin_Attributes>(api, args);
  return to_map(args.attributes, args.num_attributes);
}

}  // namespace

std::shared_ptr<const Plugin> Plugin::load(const std::string& path) {
  // A plugin must be initialised once in a process, so each file is loaded once. Leaked on purpose: handles
  // may be released after static destructors have run.
  static auto& mutex = *new std::mutex;
  static auto& loaded = *new std::map<std::string, std::shared_ptr<const Plugin>>;
  std::error_code ignored;
  const std::filesystem::path canonical = std::filesystem::canonical(path, ignored);
  const std::string key = ignored ? path : canonical.string();

  const std::lock_guard lock(mutex);
  if (const auto found = loaded.find(key); found != loaded.end()) return found->second;
  const PJRT_Api* api = open_api(path);
  check_api(api, path);
  auto initialize = make_args<PJRT_Plugin_Initialize_Args>();
  if (const auto error = try_call<&PJRT_Api::PJRT_Plugin_Initialize>(api, initialize)) refuse(path, error->what());

  std::shared_ptr<Plugin> plugin(new Plugin);
  plugin->api_ = api;
  plugin->path_ = path;
  plugin->attributes_ = read_attributes(api);
  loaded.emplace(key, plugin);
  if (log::enabled(1)) {
    log::line("pjrt: loaded " + path + ", C API " + std::to_string(plugin->major_version()) + "." +
              std::to_string(plugin->minor_version()));
  }
  return plugin;
}

int Plugin::major_version() const { return api_->pjrt_api_version.major_version; }

int Plugin::minor_version() const { return api_->pjrt_api_version.minor_version; }

}  // namespace tpu::pjrt
