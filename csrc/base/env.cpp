#include "base/env.h"

#include <cstdlib>

#include "base/error.h"

namespace tpu::env {

std::optional<std::string> text(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

bool flag(const char* name, bool fallback) {
  const auto value = text(name);
  if (!value) return fallback;
  if (*value == "1" || *value == "true" || *value == "on" || *value == "yes") return true;
  if (*value == "0" || *value == "false" || *value == "off" || *value == "no") return false;
  throw Error(Code::kValue, std::string(name) + " must be 0 or 1, got '" + *value + "'");
}

int64_t integer(const char* name, int64_t fallback) {
  const auto value = text(name);
  if (!value) return fallback;
  char* end = nullptr;
  const int64_t parsed = std::strtoll(value->c_str(), &end, 10);
  if (*end != '\0') throw Error(Code::kValue, std::string(name) + " must be an integer, got '" + *value + "'");
  return parsed;
}

}  // namespace tpu::env
