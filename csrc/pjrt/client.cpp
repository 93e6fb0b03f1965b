#include "pjrt/client.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "base/waiting.h"
#include "pjrt/call.h"

namespace tpu::pjrt {
namespace {

void destroy(const PJRT_Api* api, PJRT_Client* client) noexcept {
  auto args = make_args<PJRT_Client_Destroy_Args>();
  args.client = client;
  call_in_destructor<&PJRT_Api::PJRT_Client_Destroy>(api, args);
}

std::atomic<int> running_creations{0};

// What the waiting thread and the creating thread share; the later of the two frees it.
struct Creation {
  std::shared_ptr<const Plugin> plugin;
  Options options;
  WaitWord finished;
  std::mutex mutex;
  bool abandoned = false;  // guarded by mutex: the waiter has given up
  PJRT_Client* client = nullptr;
  std::optional<Error> error;
};

void run_creation(const std::shared_ptr<Creation>& creation) noexcept {
  PJRT_Client* client = nullptr;
  std::optional<Error> error;
  try {
    const std::vector<PJRT_NamedValue> values = named_values(creation->options);
    auto args = make_args<PJRT_Client_Create_Args>();
    args.create_options = values.data();
    args.num_options = values.size();
    error = try_call<&PJRT_Api::PJRT_Client_Create>(creation->plugin->api(), args);
    client = args.client;
  } catch (const std::exception& exception) {
    error = Error(Code::kInternal, exception.what());
  }
  {
    const std::lock_guard lock(creation->mutex);
    if (creation->abandoned) {
      if (client != nullptr) destroy(creation->plugin->api(), client);
    } else {
      creation->client = client;
      creation->error = std::move(error);
      creation->finished.publish(1);
    }
  }
  running_creations.fetch_sub(1);
}

// True when the creating thread will hand over nothing any more.
bool abandon(Creation& creation) {
  const std::lock_guard lock(creation.mutex);
  if (creation.finished.load() == 1) return false;
  creation.abandoned = true;
  return true;
}

PJRT_Client* create_within(std::shared_ptr<const Plugin> plugin, const Options& options, std::chrono::seconds timeout) {
  auto creation = std::make_shared<Creation>();
  creation->plugin = std::move(plugin);
  creation->options = options;
  running_creations.fetch_add(1);
  std::thread([creation] { run_creation(creation); }).detach();

  const std::string& path = creation->plugin->path();
  bool finished = false;
  try {
    finished = creation->finished.wait_until(0, WaitWord::Clock::now() + timeout);
  } catch (...) {
    if (!abandon(*creation) && creation->client != nullptr) destroy(creation->plugin->api(), creation->client);
    throw;
  }
  if (!finished && abandon(*creation)) {
    throw Error(Code::kUnavailable, "the PJRT plugin " + path + " did not finish creating a client within " +
                                        std::to_string(timeout.count()) +
                                        " s; set TORCH_TPU_INIT_TIMEOUT to wait longer, or TORCH_TPU_PJRT_PLUGIN to "
                                        "choose another plugin");
  }
  if (creation->error) {
    throw Error(Code::kUnavailable,
                "the PJRT plugin " + path + " could not create a client: " + creation->error->what());
  }
  return creation->client;
}

PJRT_DeviceDescription* description_of(const PJRT_Api* api, PJRT_Device* device) {
  auto args = make_args<PJRT_Device_GetDescription_Args>();
  args.device = device;
  call<&PJRT_Api::PJRT_Device_GetDescription>(api, args);
  return args.device_description;
}

}  // namespace

Device::Device(const PJRT_Api* api, PJRT_Device* device) : device_(device) {
  PJRT_DeviceDescription* description = description_of(api, device);
  auto id = make_args<PJRT_DeviceDescription_Id_Args>();
  id.device_description = description;
  call<&PJRT_Api::PJRT_DeviceDescription_Id>(api, id);
  id_ = id.id;
  auto kind = make_args<PJRT_DeviceDescription_Kind_Args>();
  kind.device_description = description;
  call<&PJRT_Api::PJRT_DeviceDescription_Kind>(api, kind);
  kind_.assign(kind.device_kind, kind.device_kind_size);

  // The rest is for people to read: a plugin may leave any of it out.
  auto hardware = make_args<PJRT_Device_LocalHardwareId_Args>();
  hardware.device = device;
  if (!try_call<&PJRT_Api::PJRT_Device_LocalHardwareId>(api, hardware)) local_hardware_id_ = hardware.local_hardware_id;
  auto debug = make_args<PJRT_DeviceDescription_DebugString_Args>();
  debug.device_description = description;
  if (!try_call<&PJRT_Api::PJRT_DeviceDescription_DebugString>(api, debug)) {
    debug_.assign(debug.debug_string, debug.debug_string_size);
  }
  auto attributes = make_args<PJRT_DeviceDescription_Attributes_Args>();
  attributes.device_description = description;
  if (!try_call<&PJRT_Api::PJRT_DeviceDescription_Attributes>(api, attributes)) {
    attributes_ = to_map(attributes.attributes, attributes.num_attributes);
  }
}

std::unique_ptr<Client> Client::create(std::shared_ptr<const Plugin> plugin, const Options& options,
                                       std::chrono::seconds timeout) {
  std::unique_ptr<Client> client(new Client);
  client->plugin_ = plugin;
  client->client_ = create_within(plugin, options, timeout);
  const PJRT_Api* api = plugin->api();

  auto name = make_args<PJRT_Client_PlatformName_Args>();
  name.client = client->client_;
  call<&PJRT_Api::PJRT_Client_PlatformName>(api, name);
  client->platform_name_.assign(name.platform_name, name.platform_name_size);
  auto version = make_args<PJRT_Client_PlatformVersion_Args>();
  version.client = client->client_;
  if (!try_call<&PJRT_Api::PJRT_Client_PlatformVersion>(api, version)) {
    client->platform_version_.assign(version.platform_version, version.platform_version_size);
  }
  auto devices = make_args<PJRT_Client_AddressableDevices_Args>();
  devices.client = client->client_;
  call<&PJRT_Api::PJRT_Client_AddressableDevices>(api, devices);
  client->devices_.reserve(devices.num_addressable_devices);
  for (size_t i = 0; i < devices.num_addressable_devices; ++i) {
    client->devices_.emplace_back(api, devices.addressable_devices[i]);
  }
  return client;
}

int Client::creations_running() { return running_creations.load(); }

Client::~Client() {
  if (client_ != nullptr) destroy(api(), client_);
}

Buffer Client::buffer_from_host(const void* data, const TensorType& type, const Device& device) const {
  return buffer_from_host(data, type, {}, device);
}

Buffer Client::buffer_from_host(const void* data, const TensorType& type, std::span<const int64_t> byte_strides,
                                const Device& device) const {
  auto args = make_args<PJRT_Client_BufferFromHostBuffer_Args>();
  args.client = client_;
  args.data = data;
  args.type = buffer_type(type.dtype);
  args.dims = type.dims.data();
  args.num_dims = type.dims.size();
  args.byte_strides = byte_strides.empty() ? nullptr : byte_strides.data();
  args.num_byte_strides = byte_strides.size();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = device.raw();
  call<&PJRT_Api::PJRT_Client_BufferFromHostBuffer>(api(), args);
  Buffer buffer(api(), args.buffer);
  // These semantics promise that the data was read; the event only has to be released.
  const Event done(api(), args.done_with_host_buffer);
  return buffer;
}

std::unique_ptr<Executable> Client::compile(const std::string& stablehlo_text, const CompileOptions& options) const {
  const PJRT_Program program = mlir_program(stablehlo_text);
  const std::string encoded = options.encode();
  auto args = make_args<PJRT_Client_Compile_Args>();
  args.client = client_;
  args.program = &program;
  args.compile_options = encoded.data();
  args.compile_options_size = encoded.size();
  call<&PJRT_Api::PJRT_Client_Compile>(api(), args);
  return std::make_unique<Executable>(api(), args.executable);
}

std::unique_ptr<Executable> Client::deserialize(const std::string& bytes) const {
  auto args = make_args<PJRT_Executable_DeserializeAndLoad_Args>();
  args.client = client_;
  args.serialized_executable = bytes.data();
  args.serialized_executable_size = bytes.size();
  call<&PJRT_Api::PJRT_Executable_DeserializeAndLoad>(api(), args);
  return std::make_unique<Executable>(api(), args.loaded_executable);
}

}  // namespace tpu::pjrt
