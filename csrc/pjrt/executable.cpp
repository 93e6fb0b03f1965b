#include <array>
#include <utility>

#include "pjrt/call.h"

namespace tpu::pjrt {
namespace {

// Releases the PJRT_Executable that a loaded one hands out.
class Program {
 public:
  Program(const PJRT_Api* api, PJRT_LoadedExecutable* loaded) : api_(api) {
    auto args = make_args<PJRT_LoadedExecutable_GetExecutable_Args>();
    args.loaded_executable = loaded;
    call<&PJRT_Api::PJRT_LoadedExecutable_GetExecutable>(api, args);
    program_ = args.executable;
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    auto args = make_args<PJRT_Executable_Destroy_Args>();
    args.executable = program_;
    call_in_destructor<&PJRT_Api::PJRT_Executable_Destroy>(api_, args);
  }
  PJRT_Executable* raw() const { return program_; }

 private:
  const PJRT_Api* api_;
  PJRT_Executable* program_ = nullptr;
};

void destroy(const PJRT_Api* api, PJRT_LoadedExecutable* executable) noexcept {
  auto args = make_args<PJRT_LoadedExecutable_Destroy_Args>();
  args.executable = executable;
  call_in_destructor<&PJRT_Api::PJRT_LoadedExecutable_Destroy>(api, args);
}

size_t count_outputs(const PJRT_Api* api, PJRT_LoadedExecutable* executable) {
  const Program program(api, executable);
  auto args = make_args<PJRT_Executable_NumOutputs_Args>();
  args.executable = program.raw();
  call<&PJRT_Api::PJRT_Executable_NumOutputs>(api, args);
  return args.num_outputs;
}

}  // namespace

std::string serialized(const PJRT_Api* api, PJRT_Executable* program) {
  auto args = make_args<PJRT_Executable_Serialize_Args>();
  args.executable = program;
  call<&PJRT_Api::PJRT_Executable_Serialize>(api, args);
  // The bytes live until the deleter runs, so it must run even when the copy throws.
  const auto release = [&args](PJRT_SerializedExecutable* bytes) {
    if (args.serialized_executable_deleter != nullptr) args.serialized_executable_deleter(bytes);
  };
  const std::unique_ptr<PJRT_SerializedExecutable, decltype(release)> owner(args.serialized_executable, release);
  return std::string(args.serialized_bytes, args.serialized_bytes_size);
}

Executable::Executable(const PJRT_Api* api, PJRT_LoadedExecutable* executable) : api_(api), executable_(executable) {
  try {
    output_count_ = count_outputs(api, executable);
  } catch (...) {
    destroy(api, executable);  // the destructor does not run when a constructor throws
    throw;
  }
}

Executable::~Executable() { destroy(api_, executable_); }

ExecuteResult Executable::execute(std::span<PJRT_Buffer* const> inputs, std::span<const int64_t> keep,
                                  const Device* device, bool want_event) const {
  constexpr size_t kInline = 16;  // outputs of nearly every program outside captured graphs
  std::array<PJRT_Buffer*, kInline> few;
  std::unique_ptr<PJRT_Buffer*[]> many;
  if (output_count_ > kInline) many = std::make_unique_for_overwrite<PJRT_Buffer*[]>(output_count_);
  PJRT_Buffer** const outputs = many ? many.get() : few.data();
  PJRT_Buffer* const* const arguments = inputs.data();
  PJRT_Event* done = nullptr;

  auto options = make_args<PJRT_ExecuteOptions>();
  options.non_donatable_input_indices = keep.data();
  options.num_non_donatable_input_indices = keep.size();
  auto args = make_args<PJRT_LoadedExecutable_Execute_Args>();
  args.executable = executable_;
  args.options = &options;
  args.argument_lists = &arguments;
  args.num_devices = 1;
  args.num_args = inputs.size();
  args.output_lists = &outputs;
  args.device_complete_events = want_event ? &done : nullptr;
  args.execute_device = device != nullptr ? device->raw() : nullptr;

  ExecuteResult result;
  result.outputs.reserve(output_count_);  // before the call: nothing may throw while outputs are unowned
  call<&PJRT_Api::PJRT_LoadedExecutable_Execute>(api_, args);
  for (size_t i = 0; i < output_count_; ++i) result.outputs.emplace_back(api_, outputs[i]);
  result.done = Event(api_, done);
  return result;
}

std::string Executable::serialize() const { return serialized(api_, Program(api_, executable_).raw()); }

size_t Executable::generated_code_bytes() const {
  const Program program(api_, executable_);
  auto args = make_args<PJRT_Executable_SizeOfGeneratedCodeInBytes_Args>();
  args.executable = program.raw();
  call<&PJRT_Api::PJRT_Executable_SizeOfGeneratedCodeInBytes>(api_, args);
  return args.size_in_bytes > 0 ? static_cast<size_t>(args.size_in_bytes) : 0;
}

}  // namespace tpu::pjrt
