#pragma once
// One line on stderr for people who ask for it: TORCH_TPU_DEBUG=1 devices and compiles, 2 a line per
// execution, 3 graphs, 4 StableHLO text, 5 compiler output. Thread-safe; costs one load when off.

#include <string>

namespace tpu::log {

int level();
void set_level(int level);
inline bool enabled(int wanted) { return level() >= wanted; }
void line(const std::string& text);

}  // namespace tpu::log
