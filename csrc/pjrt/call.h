#pragma once
// The one way into a plugin. call<&PJRT_Api::Entry>(api, args) checks that the plugin has the entry, calls it
// and throws the plugin's error; try_call returns the error instead, for destructors and callbacks.
// make_args<Args>() gives zeroed arguments with struct_size set. Only csrc/pjrt/*.cpp include this file.

#include <optional>
#include <string>

#include "base/error.h"
#include "pjrt/c_api.h"
#include "pjrt/client.h"

namespace tpu::pjrt {

/// Zeroed `Args` with struct_size set.
template <typename Args>
Args make_args() {
  static_assert(PJRT_kStructSize<Args> != 0);
  Args args{};
  args.struct_size = PJRT_kStructSize<Args>;
  return args;
}

/// Offset of `Entry` in the function table: folded to a constant.
template <auto Entry>
size_t entry_offset() {
  static constexpr PJRT_Api kLayout{};
  return static_cast<size_t>(reinterpret_cast<const char*>(&(kLayout.*Entry)) -
                             reinterpret_cast<const char*>(&kLayout));
}

/// True if the entry at `offset` lies within the plugin's own table. A plugin older than our header has a
/// shorter table, and what lies beyond it is not ours to read.
inline bool entry_within(const PJRT_Api* api, size_t offset) { return offset + sizeof(void*) <= api->struct_size; }

/// True if the plugin has `Entry`.
template <auto Entry>
bool has_entry(const PJRT_Api* api) {
  return entry_within(api, entry_offset<Entry>()) && api->*Entry != nullptr;
}

/// Name of the entry at `offset`: "PJRT_Buffer_Destroy".
const char* entry_name(size_t offset);

/// Error{kNotImplemented} naming the entry and the plugin's API version.
Error missing_entry(const PJRT_Api* api, size_t offset);

/// Turns a plugin's error into ours and frees it. `where` names the entry that failed.
Error take_error(const PJRT_Api* api, PJRT_Error* error, const char* where);

/// Calls an entry; the plugin's failure or the entry's absence is returned, not thrown.
template <auto Entry, typename Args>
std::optional<Error> try_call(const PJRT_Api* api, Args& args) {
  const size_t offset = entry_offset<Entry>();
  if (!has_entry<Entry>(api)) [[unlikely]]
    return missing_entry(api, offset);
  PJRT_Error* error = (api->*Entry)(&args);
  if (error != nullptr) [[unlikely]]
    return take_error(api, error, entry_name(offset));
  return std::nullopt;
}

/// Calls an entry; throws tpu::Error if it fails or is absent.
template <auto Entry, typename Args>
void call(const PJRT_Api* api, Args& args) {
  const size_t offset = entry_offset<Entry>();
  if (!has_entry<Entry>(api)) [[unlikely]]
    throw missing_entry(api, offset);
  PJRT_Error* error = (api->*Entry)(&args);
  if (error != nullptr) [[unlikely]]
    throw take_error(api, error, entry_name(offset));
}

/// For destructors: an error is written to the debug log, an absent entry means a leak. Never throws.
template <auto Entry, typename Args>
void call_in_destructor(const PJRT_Api* api, Args& args) noexcept;

/// Writes one line to the debug log; swallows every exception.
void log_failed_release(const char* entry, const Error& error) noexcept;

template <auto Entry, typename Args>
void call_in_destructor(const PJRT_Api* api, Args& args) noexcept {
  try {
    const std::optional<Error> error = try_call<Entry>(api, args);
    if (error) [[unlikely]]
      log_failed_release(entry_name(entry_offset<Entry>()), *error);
  } catch (...) {
    // Only an allocation while reporting can throw; there is nobody left to tell.
  }
}

/// First extension of `type` in the plugin's list; nullptr if there is none or it is shorter than `size`.
const PJRT_Extension_Base* find_extension(const PJRT_Api* api, uint32_t type, size_t size);

/// Options in the form that the C API takes. `options` must outlive the result.
std::vector<PJRT_NamedValue> named_values(const Options& options);

/// One attribute as text: lists of integers are joined with '.', which makes versions of them.
std::string to_text(const PJRT_NamedValue& value);

/// All attributes by name.
std::map<std::string, std::string> to_map(const PJRT_NamedValue* values, size_t count);

/// A program in the form that the C API takes. `text` must outlive the result.
PJRT_Program mlir_program(const std::string& text);

/// The bytes of a compiled program, which Client::deserialize takes.
std::string serialized(const PJRT_Api* api, PJRT_Executable* program);

/// The C API's element type of `dtype`.
uint32_t buffer_type(DType dtype);

}  // namespace tpu::pjrt
