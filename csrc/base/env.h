#pragma once
// Every environment variable the project reads, declared once. Values are read when asked for the first
// time and kept, except where a setter in Python changes them later. docs/environment.md explains each.

#include <cstdint>
#include <optional>
#include <string>

namespace tpu::env {

/// Value of variable `name`; nullopt when unset or empty.
std::optional<std::string> text(const char* name);
/// True for 1/true/on/yes, false for 0/false/off/no; `fallback` when unset. Throws Error{kValue} otherwise.
bool flag(const char* name, bool fallback);
/// Throws Error{kValue} when the text is not an integer.
int64_t integer(const char* name, int64_t fallback);

inline constexpr char kPlugin[] = "TORCH_TPU_PJRT_PLUGIN";                 // path or provider name
inline constexpr char kNumDevices[] = "TORCH_TPU_NUM_DEVICES";             // CPU plugin only
inline constexpr char kInitTimeout[] = "TORCH_TPU_INIT_TIMEOUT";           // seconds for creating the client
inline constexpr char kEagerMode[] = "TORCH_TPU_EAGER_MODE";               // debug | strict | fused
inline constexpr char kHostFallback[] = "TORCH_TPU_HOST_FALLBACK";         // warn | error | silent
inline constexpr char kCacheDir[] = "TORCH_TPU_CACHE_DIR";                 // empty: default under the user's cache
inline constexpr char kCache[] = "TORCH_TPU_CACHE";                        // 0 turns the disk cache off
inline constexpr char kCacheSizeMb[] = "TORCH_TPU_CACHE_SIZE_MB";          // bound of the disk cache
inline constexpr char kProgramMemoryMb[] = "TORCH_TPU_PROGRAM_MEMORY_MB";  // bound of compiled programs in memory
inline constexpr char kBoundedSizes[] = "TORCH_TPU_BOUNDED_SIZES";         // off | auto | always
inline constexpr char kCompileGuard[] = "TORCH_TPU_COMPILE_GUARD";         // allow | log | error
inline constexpr char kCompileThreads[] = "TORCH_TPU_COMPILE_THREADS";
inline constexpr char kDebug[] = "TORCH_TPU_DEBUG";         // 1..5, see base/log.h
inline constexpr char kDumpDir[] = "TORCH_TPU_DUMP_DIR";    // writes each program's text there
inline constexpr char kHashBits[] = "TORCH_TPU_HASH_BITS";  // keep so few bits of table hashes; for tests
inline constexpr char kProbing[] = "TORCH_TPU_PROBING";     // set by the engine for tpu_probe, not by people

}  // namespace tpu::env
