#include "pjrt/call.h"

#include <cstring>

#include "base/log.h"

namespace tpu::pjrt {
namespace {

Code code_of(uint32_t plugin_code) {
  switch (plugin_code) {
    case PJRT_Error_Code_RESOURCE_EXHAUSTED:
      return Code::kOutOfMemory;
    case PJRT_Error_Code_UNIMPLEMENTED:
      return Code::kNotImplemented;
    case PJRT_Error_Code_UNAVAILABLE:
      return Code::kUnavailable;
    default:
      return Code::kPlugin;
  }
}

const char* code_name(uint32_t plugin_code) {
  static constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  return plugin_code < std::size(kNames) ? kNames[plugin_code] : "UNKNOWN";
}

}  // namespace

const char* entry_name(size_t offset) {
  const size_t slot = (offset - PJRT_Api_kFirstEntry) / sizeof(void*);
  return slot < PJRT_Api_kEntryCount ? PJRT_Api_kEntryNames[slot] : "an unknown entry";
}

Error missing_entry(const PJRT_Api* api, size_t offset) {
  return Error(Code::kNotImplemented, "the PJRT plugin (C API " + std::to_string(api->pjrt_api_version.major_version) +
                                          "." + std::to_string(api->pjrt_api_version.minor_version) +
                                          ") does not implement " + entry_name(offset));
}

Error take_error(const PJRT_Api* api, PJRT_Error* error, const char* where) {
  std::string text = "(the plugin gave no message)";
  if (has_entry<&PJRT_Api::PJRT_Error_Message>(api)) {
    auto message = make_args<PJRT_Error_Message_Args>();
    message.error = error;
    api->PJRT_Error_Message(&message);
    text.assign(message.message, message.message_size);
  }
  uint32_t plugin_code = PJRT_Error_Code_UNKNOWN;
  if (has_entry<&PJRT_Api::PJRT_Error_GetCode>(api)) {
    auto code = make_args<PJRT_Error_GetCode_Args>();
    code.error = error;
    // An error about an error has no more to tell; it is freed below like any other.
    PJRT_Error* nested = api->PJRT_Error_GetCode(&code);
    if (nested == nullptr) plugin_code = static_cast<uint32_t>(code.code);
    if (nested != nullptr && has_entry<&PJRT_Api::PJRT_Error_Destroy>(api)) {
      auto destroy = make_args<PJRT_Error_Destroy_Args>();
      destroy.error = nested;
      api->PJRT_Error_Destroy(&destroy);
    }
  }
  if (has_entry<&PJRT_Api::PJRT_Error_Destroy>(api)) {
    auto destroy = make_args<PJRT_Error_Destroy_Args>();
    destroy.error = error;
    api->PJRT_Error_Destroy(&destroy);
  }
  return Error(code_of(plugin_code), std::string(where) + ": " + code_name(plugin_code) + ": " + text);
}

void log_failed_release(const char* entry, const Error& error) noexcept {
  try {
    if (log::enabled(1)) log::line(std::string("pjrt: ignored while releasing, ") + entry + ": " + error.what());
  } catch (...) {
    // Reporting is best effort.
  }
}

const PJRT_Extension_Base* find_extension(const PJRT_Api* api, uint32_t type, size_t size) {
  for (const PJRT_Extension_Base* at = api->extension_start; at != nullptr; at = at->next) {
    if (at->type == type) return at->struct_size >= size ? at : nullptr;
  }
  return nullptr;
}

std::vector<PJRT_NamedValue> named_values(const Options& options) {
  std::vector<PJRT_NamedValue> values;
  values.reserve(options.size());
  for (const auto& [name, option] : options) {
    auto value = make_args<PJRT_NamedValue>();
    value.name = name.data();
    value.name_size = name.size();
    value.value_size = 1;
    if (const auto* text = std::get_if<std::string>(&option)) {
      value.type = PJRT_NamedValue_kString;
      value.string_value = text->data();
      value.value_size = text->size();
    } else if (const auto* number = std::get_if<int64_t>(&option)) {
      value.type = PJRT_NamedValue_kInt64;
      value.int64_value = *number;
    } else if (const auto* list = std::get_if<std::vector<int64_t>>(&option)) {
      value.type = PJRT_NamedValue_kInt64List;
      value.int64_array_value = list->data();
      value.value_size = list->size();
    } else if (const auto* real = std::get_if<float>(&option)) {
      value.type = PJRT_NamedValue_kFloat;
      value.float_value = *real;
    } else {
      value.type = PJRT_NamedValue_kBool;
      value.bool_value = std::get<bool>(option);
    }
    values.push_back(value);
  }
  return values;
}

std::string to_text(const PJRT_NamedValue& value) {
  switch (value.type) {
    case PJRT_NamedValue_kString:
      return std::string(value.string_value, value.value_size);
    case PJRT_NamedValue_kInt64:
      return std::to_string(value.int64_value);
    case PJRT_NamedValue_kInt64List: {
      std::string text;
      for (size_t i = 0; i < value.value_size; ++i) {
        if (i > 0) text += '.';
        text += std::to_string(value.int64_array_value[i]);
      }
      return text;
    }
    case PJRT_NamedValue_kFloat:
      return std::to_string(value.float_value);
    case PJRT_NamedValue_kBool:
      return value.bool_value ? "true" : "false";
    default:
      return "";
  }
}

std::map<std::string, std::string> to_map(const PJRT_NamedValue* values, size_t count) {
  std::map<std::string, std::string> map;
  for (size_t i = 0; i < count; ++i) {
    map.emplace(std::string(values[i].name, values[i].name_size), to_text(values[i]));
  }
  return map;
}

PJRT_Program mlir_program(const std::string& text) {
  static constexpr char kFormat[] = "mlir";
  auto program = make_args<PJRT_Program>();
  // The field is mutable for calls that return a program; compiling only reads it.
  program.code = const_cast<char*>(text.data());
  program.code_size = text.size();
  program.format = kFormat;
  program.format_size = sizeof(kFormat) - 1;
  return program;
}

uint32_t buffer_type(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return PJRT_Buffer_Type_PRED;
    case DType::kS8:
      return PJRT_Buffer_Type_S8;
    case DType::kS16:
      return PJRT_Buffer_Type_S16;
    case DType::kS32:
      return PJRT_Buffer_Type_S32;
    case DType::kS64:
      return PJRT_Buffer_Type_S64;
    case DType::kU8:
      return PJRT_Buffer_Type_U8;
    case DType::kU16:
      return PJRT_Buffer_Type_U16;
    case DType::kU32:
      return PJRT_Buffer_Type_U32;
    case DType::kU64:
      return PJRT_Buffer_Type_U64;
    case DType::kF16:
      return PJRT_Buffer_Type_F16;
    case DType::kBF16:
      return PJRT_Buffer_Type_BF16;
    case DType::kF32:
      return PJRT_Buffer_Type_F32;
    case DType::kF64:
      return PJRT_Buffer_Type_F64;
    case DType::kC64:
      return PJRT_Buffer_Type_C64;
    case DType::kC128:
      return PJRT_Buffer_Type_C128;
    case DType::kF8E4M3FN:
      return PJRT_Buffer_Type_F8E4M3FN;
    case DType::kF8E5M2:
      return PJRT_Buffer_Type_F8E5M2;
    case DType::kF8E4M3FNUZ:
      return PJRT_Buffer_Type_F8E4M3FNUZ;
    case DType::kF8E5M2FNUZ:
      return PJRT_Buffer_Type_F8E5M2FNUZ;
  }
  throw Error(Code::kInternal, "no PJRT element type for this dtype");
}

}  // namespace tpu::pjrt
