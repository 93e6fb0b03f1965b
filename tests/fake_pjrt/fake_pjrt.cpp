// A PJRT plugin that computes nothing and misbehaves on demand (control.h). A program's text says how many
// outputs it has ("outputs=3", default 1); output i is a copy of input i modulo the number of inputs. Inputs that
// the text marks as aliased are taken over by an execution, as real plugins do, unless they are kept. With
// FAKE_PJRT_ZEROS=1 it takes any program and data, and outputs are zeros of the types that the text gives them.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "objects.h"
#include "program_types.h"

namespace fake_pjrt {

namespace {

bool zeros() {
  static const bool wanted = std::getenv("FAKE_PJRT_ZEROS") != nullptr;
  return wanted;
}

int number(const char* variable, int fallback) {
  const char* text = std::getenv(variable);
  return text == nullptr ? fallback : std::atoi(text);
}

// "KEY=CODE:MESSAGE;..." of an environment variable.
std::map<std::string, Failure> failures_of(const char* variable) {
  std::map<std::string, Failure> failures;
  const char* text = std::getenv(variable);
  std::istringstream entries(text == nullptr ? "" : text);
  for (std::string entry; std::getline(entries, entry, ';');) {
    const size_t equals = entry.find('='), colon = entry.find(':');
    if (equals == std::string::npos || colon == std::string::npos) std::abort();  // a typing error in a test
    const int code = std::atoi(entry.substr(equals + 1).c_str());
    failures[entry.substr(0, equals)] = {static_cast<uint32_t>(code), entry.substr(colon + 1)};
  }
  return failures;
}

Control* make_control() {
  auto* const made = new Control;  // outlives objects that tests keep until exit
  made->failures = failures_of("FAKE_PJRT_FAIL");
  for (const auto& [key, failure] : failures_of("FAKE_PJRT_FAIL_EXECUTION")) made->refused[std::stoi(key)] = failure;
  for (const auto& [key, failure] : failures_of("FAKE_PJRT_LATE_EXECUTION")) made->late[std::stoi(key)] = failure;
  if (const char* text = std::getenv("FAKE_PJRT_FAIL_PROGRAM")) made->refused_program = text;
  made->create_delay_ms = number("FAKE_PJRT_CREATE_MS", 0);
  made->compile_delay_ms = number("FAKE_PJRT_COMPILE_MS", 0);
  made->event_delay_ms = number("FAKE_PJRT_EVENT_MS", 0);
  made->on_cpu = std::getenv("FAKE_PJRT_OFF_HOST") == nullptr;
  return made;
}

// Real plugins crash when their static destructors run beside their own threads.
struct Tripwire {
  ~Tripwire() {
    if (control().busy > 0) std::abort();
  }
} tripwire;

}  // namespace

Control& control() {
  static Control* const instance = make_control();
  return *instance;
}

void Promise::complete(const Failure& outcome) {
  std::vector<Waiter> waiting;
  {
    const std::lock_guard lock(mutex);
    done = true;
    failure = outcome;
    waiting.swap(waiters);
  }
  changed.notify_all();
  for (const Waiter& waiter : waiting) waiter(outcome);
}

std::shared_ptr<Promise> promise_after(int delay_ms, const Failure& failure) {
  auto promise = std::make_shared<Promise>();
  if (delay_ms == 0) {
    promise->complete(failure);
  } else {
    ++control().busy;
    std::thread([promise, delay_ms, failure] {
      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      --control().busy;  // before anybody can learn of it and let the process end
      promise->complete(failure);
    }).detach();
  }
  return promise;
}

namespace {

PJRT_Error* error_of(const Failure& failure) {
  return failure.code == 0 ? nullptr : new PJRT_Error(failure.code, failure.message);
}

const pid_t loaded_by = getpid();

// What every entry does first: refuse short arguments as real plugins do, then fail if told to. A plugin's locks and
// threads do not survive a fork, so no entry may be called in a child.
PJRT_Error* guard(const char* entry, size_t size, size_t wanted) {
  if (getpid() != loaded_by) std::abort();
  if (size < wanted) return new PJRT_Error(PJRT_Error_Code_INVALID_ARGUMENT, std::string(entry) + ": struct_size");
  const std::lock_guard lock(control().mutex);
  const auto found = control().failures.find(entry);
  return found == control().failures.end() ? nullptr : error_of(found->second);
}

void take_time(int milliseconds) {
  ++control().busy;
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  --control().busy;
}

// Parameters, in the order of their numbers, that the program marks as aliased with a result.
std::vector<bool> aliased_parameters(const std::string& program) {
  std::vector<bool> aliased;
  const size_t start = program.find("@main(");
  if (start == std::string::npos) return aliased;
  const size_t end = program.find(") ->", start);
  for (size_t at = program.find('%', start); at < end; at = program.find('%', at + 1)) {
    const size_t next = std::min(program.find('%', at + 1), end);
    aliased.push_back(program.substr(at, next - at).find("aliasing_output") != std::string::npos);
  }
  return aliased;
}

// 0 for a type that nobody gives it.
size_t element_bytes(uint32_t type) {
  if (type == PJRT_Buffer_Type_F32) return 4;
  if (!zeros()) return 0;
  switch (type) {
    case PJRT_Buffer_Type_C128:
      return 16;
    case PJRT_Buffer_Type_S64:
    case PJRT_Buffer_Type_U64:
    case PJRT_Buffer_Type_F64:
    case PJRT_Buffer_Type_C64:
      return 8;
    case PJRT_Buffer_Type_S32:
    case PJRT_Buffer_Type_U32:
      return 4;
    case PJRT_Buffer_Type_S16:
    case PJRT_Buffer_Type_U16:
    case PJRT_Buffer_Type_F16:
    case PJRT_Buffer_Type_BF16:
      return 2;
    default:
      return 1;
  }
}

size_t output_count(const std::string& program) {
  if (zeros()) return result_types(program).size();
  const size_t at = program.find("outputs=");
  return at == std::string::npos ? 1 : std::strtoul(program.c_str() + at + 8, nullptr, 10);
}

std::string text_of(const PJRT_NamedValue& value) {
  switch (value.type) {
    case PJRT_NamedValue_kString:
      return "s:" + std::string(value.string_value, value.value_size);
    case PJRT_NamedValue_kInt64:
      return "i:" + std::to_string(value.int64_value);
    case PJRT_NamedValue_kFloat:
      return "f:" + std::to_string(value.float_value);
    case PJRT_NamedValue_kBool:
      return value.bool_value ? "b:1" : "b:0";
    default: {
      std::string text = "l:";
      for (size_t i = 0; i < value.value_size; ++i) text += std::to_string(value.int64_array_value[i]) + ",";
      return text;
    }
  }
}

// --- errors (these three take no injected failures: they report them) ---

void error_destroy(PJRT_Error_Destroy_Args* args) { delete args->error; }

void error_message(PJRT_Error_Message_Args* args) {
  args->message = args->error->message.data();
  args->message_size = args->error->message.size();
}

PJRT_Error* error_code(PJRT_Error_GetCode_Args* args) {
  args->code = args->error->code;
  return nullptr;
}

// --- plugin ---

PJRT_Error* plugin_initialize(PJRT_Plugin_Initialize_Args&) { return nullptr; }

PJRT_Error* plugin_attributes(PJRT_Plugin_Attributes_Args& args) {
  static constexpr int64_t kVersion[] = {1, 2, 3};
  static PJRT_NamedValue values[2];
  values[0] = {};
  values[0].name = "stablehlo_current_version";
  values[0].name_size = std::strlen(values[0].name);
  values[0].type = PJRT_NamedValue_kInt64List;
  values[0].int64_array_value = kVersion;
  values[0].value_size = 3;
  values[1] = {};
  values[1].name = "maker";
  values[1].name_size = std::strlen(values[1].name);
  values[1].type = PJRT_NamedValue_kString;
  values[1].string_value = "tests";
  values[1].value_size = 5;
  args.attributes = values;
  args.num_attributes = 2;
  return nullptr;
}

// --- events ---

PJRT_Error* event_destroy(PJRT_Event_Destroy_Args& args) {
  delete args.event;
  return nullptr;
}

PJRT_Error* event_is_ready(PJRT_Event_IsReady_Args& args) {
  const std::lock_guard lock(args.event->promise->mutex);
  args.is_ready = args.event->promise->done;
  return nullptr;
}

PJRT_Error* event_await(PJRT_Event_Await_Args& args) {
  Promise& promise = *args.event->promise;
  std::unique_lock lock(promise.mutex);
  promise.changed.wait(lock, [&] { return promise.done; });
  return error_of(promise.failure);
}

PJRT_Error* event_on_ready(PJRT_Event_OnReady_Args& args) {
  const auto waiter = [callback = args.callback, user_arg = args.user_arg](const Failure& failure) {
    callback(error_of(failure), user_arg);
  };
  Promise& promise = *args.event->promise;
  std::unique_lock lock(promise.mutex);
  if (!promise.done) {
    promise.waiters.emplace_back(waiter);
    return nullptr;
  }
  const Failure failure = promise.failure;
  lock.unlock();
  waiter(failure);
  return nullptr;
}

// --- client and devices ---

PJRT_Error* client_create(PJRT_Client_Create_Args& args) {
  int delay = 0;
  {
    const std::lock_guard lock(control().mutex);
    control().create_options.clear();
    for (size_t i = 0; i < args.num_options; ++i) {
      const PJRT_NamedValue& value = args.create_options[i];
      control().create_options[std::string(value.name, value.name_size)] = text_of(value);
    }
    delay = control().create_delay_ms;
  }
  take_time(delay);
  auto client = std::make_unique<PJRT_Client>();
  for (int32_t id = 0; id < 2; ++id) {
    auto device = std::make_unique<PJRT_Device>();
    device->description = {id, "fake", "fake:" + std::to_string(id), {}};
    PJRT_NamedValue& cores = device->description.core_count;
    cores.name = "core_count";
    cores.name_size = std::strlen(cores.name);
    cores.type = PJRT_NamedValue_kInt64;
    cores.int64_value = 4;
    cores.value_size = 1;
    client->device_pointers.push_back(device.get());
    client->devices.push_back(std::move(device));
  }
  args.client = client.release();
  return nullptr;
}

PJRT_Error* client_destroy(PJRT_Client_Destroy_Args& args) {
  delete args.client;
  return nullptr;
}

PJRT_Error* client_platform_name(PJRT_Client_PlatformName_Args& args) {
  static const char* const given = std::getenv("FAKE_PJRT_PLATFORM");
  args.platform_name = given == nullptr ? "fake" : given;
  args.platform_name_size = std::strlen(args.platform_name);
  return nullptr;
}

PJRT_Error* client_platform_version(PJRT_Client_PlatformVersion_Args& args) {
  args.platform_version = "fake 1";
  args.platform_version_size = 6;
  return nullptr;
}

PJRT_Error* client_addressable_devices(PJRT_Client_AddressableDevices_Args& args) {
  args.addressable_devices = args.client->device_pointers.data();
  args.num_addressable_devices = args.client->device_pointers.size();
  return nullptr;
}

PJRT_Error* device_get_description(PJRT_Device_GetDescription_Args& args) {
  args.device_description = &args.device->description;
  return nullptr;
}

PJRT_Error* device_local_hardware_id(PJRT_Device_LocalHardwareId_Args& args) {
  args.local_hardware_id = 10 + args.device->description.id;
  return nullptr;
}

PJRT_Error* description_id(PJRT_DeviceDescription_Id_Args& args) {
  args.id = args.device_description->id;
  return nullptr;
}

PJRT_Error* description_kind(PJRT_DeviceDescription_Kind_Args& args) {
  args.device_kind = args.device_description->kind.data();
  args.device_kind_size = args.device_description->kind.size();
  return nullptr;
}

PJRT_Error* description_debug_string(PJRT_DeviceDescription_DebugString_Args& args) {
  args.debug_string = args.device_description->debug.data();
  args.debug_string_size = args.device_description->debug.size();
  return nullptr;
}

PJRT_Error* description_attributes(PJRT_DeviceDescription_Attributes_Args& args) {
  args.attributes = &args.device_description->core_count;
  args.num_attributes = 1;
  return nullptr;
}

// --- buffers ---

PJRT_Error* buffer_from_host(PJRT_Client_BufferFromHostBuffer_Args& args) {
  const size_t size_of_element = element_bytes(args.type);
  if (size_of_element == 0) {
    return new PJRT_Error(PJRT_Error_Code_UNIMPLEMENTED, "the fake plugin holds float32 only");
  }
  auto buffer = std::make_unique<PJRT_Buffer>();
  buffer->dims.assign(args.dims, args.dims + args.num_dims);
  size_t count = 1;
  for (const int64_t size : buffer->dims) count *= static_cast<size_t>(size);
  buffer->bytes.resize(count * size_of_element);
  std::vector<int64_t> index(args.num_dims, 0);
  for (size_t element = 0; element < count; ++element) {
    const char* source = static_cast<const char*>(args.data);
    if (args.num_byte_strides == 0) {
      source += element * size_of_element;
    } else {
      for (size_t axis = 0; axis < index.size(); ++axis) source += index[axis] * args.byte_strides[axis];
    }
    std::memcpy(buffer->bytes.data() + element * size_of_element, source, size_of_element);
    for (size_t axis = index.size(); axis-- > 0;) {
      if (++index[axis] < buffer->dims[axis]) break;
      index[axis] = 0;
    }
  }
  buffer->device = args.device;
  buffer->ready = promise_after(0, {});
  args.done_with_host_buffer = new PJRT_Event(buffer->ready);
  args.buffer = buffer.release();
  return nullptr;
}

PJRT_Error* buffer_destroy(PJRT_Buffer_Destroy_Args& args) {
  delete args.buffer;
  return nullptr;
}

PJRT_Error* buffer_dimensions(PJRT_Buffer_Dimensions_Args& args) {
  args.dims = args.buffer->dims.data();
  args.num_dims = args.buffer->dims.size();
  return nullptr;
}

PJRT_Error* buffer_on_device_size(PJRT_Buffer_OnDeviceSizeInBytes_Args& args) {
  args.on_device_size_in_bytes = args.buffer->bytes.size();
  return nullptr;
}

PJRT_Error* buffer_is_deleted(PJRT_Buffer_IsDeleted_Args& args) {
  args.is_deleted = args.buffer->donated;
  return nullptr;
}

PJRT_Error* buffer_is_on_cpu(PJRT_Buffer_IsOnCpu_Args& args) {
  const std::lock_guard lock(control().mutex);
  args.is_on_cpu = control().on_cpu;
  return nullptr;
}

PJRT_Error* buffer_unsafe_pointer(PJRT_Buffer_UnsafePointer_Args& args) {
  args.buffer_pointer = reinterpret_cast<size_t>(args.buffer->bytes.data());
  return nullptr;
}

PJRT_Error* buffer_ready_event(PJRT_Buffer_ReadyEvent_Args& args) {
  args.event = new PJRT_Event(args.buffer->ready);
  return nullptr;
}

PJRT_Error* buffer_copy_to_device(PJRT_Buffer_CopyToDevice_Args& args) {
  auto copy = std::make_unique<PJRT_Buffer>();
  copy->dims = args.buffer->dims;
  copy->bytes = args.buffer->bytes;
  copy->device = args.dst_device;
  copy->ready = promise_after(0, {});
  args.dst_buffer = copy.release();
  return nullptr;
}

PJRT_Error* buffer_to_host(PJRT_Buffer_ToHostBuffer_Args& args) {
  ++control().host_copies;
  {
    const std::lock_guard lock(control().mutex);
    control().host_layout.clear();
    if (args.host_layout != nullptr) {
      const auto& tiled = args.host_layout->tiled;
      control().host_layout.assign(tiled.minor_to_major, tiled.minor_to_major + tiled.minor_to_major_size);
    }
  }
  if (args.dst_size < args.src->bytes.size()) {
    return new PJRT_Error(PJRT_Error_Code_INVALID_ARGUMENT, "the destination is too small");
  }
  std::memcpy(args.dst, args.src->bytes.data(), args.src->bytes.size());
  args.event = new PJRT_Event(args.src->ready);
  return nullptr;
}

// --- programs ---

PJRT_Error* client_compile(PJRT_Client_Compile_Args& args) {
  int delay = 0;
  {
    const std::lock_guard lock(control().mutex);
    delay = control().compile_delay_ms;
  }
  take_time(delay);
  const std::lock_guard lock(control().mutex);
  control().program.assign(args.program->code, args.program->code_size);
  control().program_format.assign(args.program->format, args.program->format_size);
  control().compile_options.assign(args.compile_options, args.compile_options_size);
  if (!control().refused_program.empty() && control().program.find(control().refused_program) != std::string::npos) {
    return new PJRT_Error(PJRT_Error_Code_INVALID_ARGUMENT, "the program holds " + control().refused_program);
  }
  args.executable = new PJRT_LoadedExecutable(control().program);
  return nullptr;
}

PJRT_Error* deserialize(PJRT_Executable_DeserializeAndLoad_Args& args) {
  const std::string bytes(args.serialized_executable, args.serialized_executable_size);
  if (!bytes.starts_with("fake:")) return new PJRT_Error(PJRT_Error_Code_INVALID_ARGUMENT, "not one of ours");
  args.loaded_executable = new PJRT_LoadedExecutable(bytes.substr(5));
  return nullptr;
}

PJRT_Error* loaded_destroy(PJRT_LoadedExecutable_Destroy_Args& args) {
  delete args.executable;
  return nullptr;
}

PJRT_Error* loaded_get_executable(PJRT_LoadedExecutable_GetExecutable_Args& args) {
  args.executable = new PJRT_Executable(args.loaded_executable->program);
  return nullptr;
}

PJRT_Error* executable_destroy(PJRT_Executable_Destroy_Args& args) {
  delete args.executable;
  return nullptr;
}

PJRT_Error* executable_num_outputs(PJRT_Executable_NumOutputs_Args& args) {
  args.num_outputs = output_count(args.executable->program);
  return nullptr;
}

PJRT_Error* executable_code_size(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args& args) {
  args.size_in_bytes = 1234;
  return nullptr;
}

PJRT_Error* executable_serialize(PJRT_Executable_Serialize_Args& args) {
  args.serialized_executable = new PJRT_SerializedExecutable("fake:" + args.executable->program);
  args.serialized_bytes = args.serialized_executable->bytes.data();
  args.serialized_bytes_size = args.serialized_executable->bytes.size();
  args.serialized_executable_deleter = [](PJRT_SerializedExecutable* executable) { delete executable; };
  return nullptr;
}

PJRT_Error* execute(PJRT_LoadedExecutable_Execute_Args& args) {
  int delay = 0;
  Failure late;
  {
    const std::lock_guard lock(control().mutex);
    const int64_t* kept = args.options->non_donatable_input_indices;
    control().kept_inputs.assign(kept, kept + args.options->num_non_donatable_input_indices);
    control().execute_device = args.execute_device == nullptr ? -1 : args.execute_device->description.id;
    control().event_wanted = args.device_complete_events != nullptr;
    delay = control().event_delay_ms;
    late = control().late_failure;
    const int execution = ++control().executions;
    if (const auto found = control().refused.find(execution); found != control().refused.end()) {
      return error_of(found->second);
    }
    if (const auto found = control().late.find(execution); found != control().late.end()) late = found->second;
  }
  if (args.num_devices != 1) return new PJRT_Error(PJRT_Error_Code_INVALID_ARGUMENT, "one device only");
  for (size_t i = 0; i < args.num_args; ++i) {
    if (args.argument_lists[0][i]->donated) {
      return new PJRT_Error(PJRT_Error_Code_INVALID_ARGUMENT, "input " + std::to_string(i) + " was donated before");
    }
  }
  const std::vector<bool> aliased = aliased_parameters(args.executable->program);
  for (size_t i = 0; i < args.num_args && i < aliased.size(); ++i) {
    const int64_t* kept = args.options->non_donatable_input_indices;
    const int64_t* end = kept + args.options->num_non_donatable_input_indices;
    if (aliased[i] && std::find(kept, end, static_cast<int64_t>(i)) == end) args.argument_lists[0][i]->donated = true;
  }
  const std::shared_ptr<Promise> ready = promise_after(delay, late);
  const auto types = zeros() ? result_types(args.executable->program) : std::vector<ArrayType>();
  for (size_t i = 0; i < output_count(args.executable->program); ++i) {
    auto* output = new PJRT_Buffer;
    if (zeros()) {
      output->dims = types[i].dims;
      output->bytes.resize(types[i].bytes);
    } else if (args.num_args > 0) {
      const PJRT_Buffer& input = *args.argument_lists[0][i % args.num_args];
      output->dims = input.dims;
      output->bytes = input.bytes;
    }
    output->device = args.execute_device;
    output->ready = ready;
    args.output_lists[0][i] = output;
  }
  if (args.device_complete_events != nullptr) args.device_complete_events[0] = new PJRT_Event(ready);
  return nullptr;
}

// --- topologies ---

PJRT_Error* topology_create(PJRT_TopologyDescription_Create_Args& args) {
  if (std::string(args.topology_name, args.topology_name_size) != "fake:1x1") {
    return new PJRT_Error(PJRT_Error_Code_NOT_FOUND, "no such topology");
  }
  args.topology = new PJRT_TopologyDescription;
  return nullptr;
}

PJRT_Error* topology_destroy(PJRT_TopologyDescription_Destroy_Args& args) {
  delete args.topology;
  return nullptr;
}

PJRT_Error* topology_platform_name(PJRT_TopologyDescription_PlatformName_Args& args) {
  args.platform_name = "fake";
  args.platform_name_size = 4;
  return nullptr;
}

PJRT_Error* compile_for_topology(PJRT_Compile_Args& args) {
  args.executable = new PJRT_Executable(std::string(args.program->code, args.program->code_size));
  return nullptr;
}

// --- FFI ---

PJRT_Error* register_handler(PJRT_FFI_Register_Handler_Args* args) {
  if (PJRT_Error* error =
          guard("PJRT_FFI_Register_Handler", args->struct_size, PJRT_kStructSize<PJRT_FFI_Register_Handler_Args>)) {
    return error;
  }
  const std::lock_guard lock(control().mutex);
  control().ffi_targets.push_back(std::string(args->platform_name, args->platform_name_size) + ":" +
                                  std::string(args->target_name, args->target_name_size));
  return nullptr;
}

// --- the function table ---

template <typename Args, PJRT_Error* (*Function)(Args&), const char* const* Name>
PJRT_Error* guarded(Args* args) {
  if (PJRT_Error* error = guard(*Name, args->struct_size, PJRT_kStructSize<Args>)) return error;
  return Function(*args);
}

#define FAKE_ENTRY(NAME, FUNCTION)              \
  static const char* const NAME##_name = #NAME; \
  api.NAME = guarded<NAME##_Args, FUNCTION, &NAME##_name>

void fill(PJRT_Api& api) {
  api.PJRT_Error_Destroy = error_destroy;
  api.PJRT_Error_Message = error_message;
  api.PJRT_Error_GetCode = error_code;
  FAKE_ENTRY(PJRT_Plugin_Initialize, plugin_initialize);
  FAKE_ENTRY(PJRT_Plugin_Attributes, plugin_attributes);
  FAKE_ENTRY(PJRT_Event_Destroy, event_destroy);
  FAKE_ENTRY(PJRT_Event_IsReady, event_is_ready);
  FAKE_ENTRY(PJRT_Event_Await, event_await);
  FAKE_ENTRY(PJRT_Event_OnReady, event_on_ready);
  FAKE_ENTRY(PJRT_Client_Create, client_create);
  FAKE_ENTRY(PJRT_Client_Destroy, client_destroy);
  FAKE_ENTRY(PJRT_Client_PlatformName, client_platform_name);
  FAKE_ENTRY(PJRT_Client_PlatformVersion, client_platform_version);
  FAKE_ENTRY(PJRT_Client_AddressableDevices, client_addressable_devices);
  FAKE_ENTRY(PJRT_Client_Compile, client_compile);
  FAKE_ENTRY(PJRT_Client_BufferFromHostBuffer, buffer_from_host);
  FAKE_ENTRY(PJRT_Device_GetDescription, device_get_description);
  FAKE_ENTRY(PJRT_Device_LocalHardwareId, device_local_hardware_id);
  FAKE_ENTRY(PJRT_DeviceDescription_Id, description_id);
  FAKE_ENTRY(PJRT_DeviceDescription_Kind, description_kind);
  FAKE_ENTRY(PJRT_DeviceDescription_DebugString, description_debug_string);
  FAKE_ENTRY(PJRT_DeviceDescription_Attributes, description_attributes);
  FAKE_ENTRY(PJRT_Buffer_Destroy, buffer_destroy);
  FAKE_ENTRY(PJRT_Buffer_Dimensions, buffer_dimensions);
  FAKE_ENTRY(PJRT_Buffer_OnDeviceSizeInBytes, buffer_on_device_size);
  FAKE_ENTRY(PJRT_Buffer_IsDeleted, buffer_is_deleted);
  FAKE_ENTRY(PJRT_Buffer_IsOnCpu, buffer_is_on_cpu);
  FAKE_ENTRY(PJRT_Buffer_UnsafePointer, buffer_unsafe_pointer);
  FAKE_ENTRY(PJRT_Buffer_ReadyEvent, buffer_ready_event);
  FAKE_ENTRY(PJRT_Buffer_CopyToDevice, buffer_copy_to_device);
  FAKE_ENTRY(PJRT_Buffer_ToHostBuffer, buffer_to_host);
  FAKE_ENTRY(PJRT_Executable_Destroy, executable_destroy);
  FAKE_ENTRY(PJRT_Executable_NumOutputs, executable_num_outputs);
  FAKE_ENTRY(PJRT_Executable_SizeOfGeneratedCodeInBytes, executable_code_size);
  FAKE_ENTRY(PJRT_Executable_Serialize, executable_serialize);
  FAKE_ENTRY(PJRT_Executable_DeserializeAndLoad, deserialize);
  FAKE_ENTRY(PJRT_LoadedExecutable_Destroy, loaded_destroy);
  FAKE_ENTRY(PJRT_LoadedExecutable_GetExecutable, loaded_get_executable);
  FAKE_ENTRY(PJRT_LoadedExecutable_Execute, execute);
  FAKE_ENTRY(PJRT_TopologyDescription_Create, topology_create);
  FAKE_ENTRY(PJRT_TopologyDescription_Destroy, topology_destroy);
  FAKE_ENTRY(PJRT_TopologyDescription_PlatformName, topology_platform_name);
  FAKE_ENTRY(PJRT_Compile, compile_for_topology);
}

// Nulls the slots named in FAKE_PJRT_MISSING.
void remove_missing(PJRT_Api& api) {
  const char* text = std::getenv("FAKE_PJRT_MISSING");
  if (text == nullptr) return;
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    const auto* found = std::find(std::begin(PJRT_Api_kEntryNames), std::end(PJRT_Api_kEntryNames), name);
    if (found == std::end(PJRT_Api_kEntryNames)) std::abort();  // a typing error in a test
    const auto slot = static_cast<size_t>(found - std::begin(PJRT_Api_kEntryNames));
    std::memset(reinterpret_cast<char*>(&api) + PJRT_Api_kFirstEntry + slot * sizeof(void*), 0, sizeof(void*));
  }
}

const PJRT_Api* make_api() {
  if (std::getenv("FAKE_PJRT_NULL") != nullptr) return nullptr;
  static PJRT_FFI_Extension ffi{};
  ffi.base.struct_size = PJRT_kStructSize<PJRT_FFI_Extension>;
  ffi.base.type = PJRT_Extension_Type_FFI;
  ffi.register_handler = register_handler;
  // An extension before it that means nothing to us.
  static PJRT_Extension_Base other{sizeof(PJRT_Extension_Base), PJRT_Extension_Type_Example, &ffi.base};

  PJRT_Api api{};
  fill(api);
  remove_missing(api);
  api.struct_size = static_cast<size_t>(number("FAKE_PJRT_STRUCT_SIZE", static_cast<int>(sizeof(api))));
  api.extension_start = std::getenv("FAKE_PJRT_NO_FFI") != nullptr ? nullptr : &other;
  api.pjrt_api_version.struct_size = PJRT_kStructSize<PJRT_Api_Version>;
  api.pjrt_api_version.major_version = number("FAKE_PJRT_MAJOR", PJRT_API_MAJOR);
  api.pjrt_api_version.minor_version = number("FAKE_PJRT_MINOR", PJRT_API_MINOR);
  // Exactly as long as it says, so that the address sanitizer sees whoever reads beyond the end.
  void* memory = std::malloc(api.struct_size);
  std::memcpy(memory, &api, std::min(api.struct_size, sizeof(api)));
  return static_cast<const PJRT_Api*>(memory);
}

}  // namespace
}  // namespace fake_pjrt

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api* const api = fake_pjrt::make_api();
  return api;
}

extern "C" __attribute__((visibility("default"))) fake_pjrt::Control* fake_pjrt_control() {
  return &fake_pjrt::control();
}
