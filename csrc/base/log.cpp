#include "base/log.h"

#include <atomic>
#include <cstdio>

#include "base/env.h"

namespace tpu::log {
namespace {

std::atomic<int>& stored_level() {
  static std::atomic<int> value{static_cast<int>(env::integer(env::kDebug, 0))};
  return value;
}

}  // namespace

int level() { return stored_level().load(std::memory_order_relaxed); }
void set_level(int level) { stored_level().store(level, std::memory_order_relaxed); }

void line(const std::string& text) {
  const std::string whole = "[torch_tpu] " + text + "\n";
  std::fwrite(whole.data(), 1, whole.size(), stderr);
}

}  // namespace tpu::log
