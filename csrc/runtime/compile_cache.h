#pragma once
// From program text to executable: memory first, then disk, then the plugin's compiler on a worker thread.
// Identical requests share one compile. A request returns at once; the queue thread waits for the
// executable when it needs it. Programs live while someone holds their handle (graph/program_cache bounds
// how many). Thread-safe.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "pjrt/client.h"
#include "runtime/disk_cache.h"
#include "runtime/worker_pool.h"

namespace tpu::runtime {

/// What is compiled and why, for compile_stats(), the debug log and the dump folder.
struct CompileRequest {
  std::string text;      // StableHLO module
  std::string label;     // operators as the user called them, e.g. "mul.Tensor+add_.Tensor", cut where there are many
  std::string location;  // the user's file:line
  std::string reason;    // "new program", "new outputs", ...
  std::string
      operators;  // the rows that emitted it, all of them: "mul.Tensor add.Tensor"; none for text from elsewhere
  std::string executable_file = {};  // may hold what a compiler made of it (executable_file.h)
};

class CompiledProgram {
 public:
  /// Blocks until the compile has ended; throws its error.
  const pjrt::Executable& wait();
  bool done() const { return done_.load(std::memory_order_acquire); }

 private:
  friend class CompileCache;
  std::string text_;
  std::unique_ptr<pjrt::Executable> executable_;
  std::shared_ptr<const Error> error_;
  std::atomic<bool> done_{false};
};

using ProgramHandle = std::shared_ptr<CompiledProgram>;

struct CompileEvent {
  std::string label, location, reason;
  std::string source;  // "compiled", "disk" (the cache's) or "file" (the request's)
  double seconds = 0;
};

/// What happens when a program is needed that is not in memory: nothing, a line in the log, or an error where it is
/// needed. For programs that should run without compiling.
enum class CompileGuard : uint8_t { kAllow, kLog, kError };
CompileGuard compile_guard();
void set_compile_guard(CompileGuard guard);
CompileGuard parse_compile_guard(const std::string& text);  // throws Error{kValue}
std::string to_string(CompileGuard guard);

struct CompileStats {
  int64_t programs = 0;  // alive in memory
  int64_t memory_hits = 0;
  int64_t disk_hits = 0;
  int64_t file_hits = 0;  // executables that came with their program
  int64_t compiled = 0;   // all others
  int64_t failed = 0;
  double compile_seconds = 0;        // summed over compiles, which may overlap
  std::vector<CompileEvent> recent;  // the last kRecent misses of the memory cache, oldest first
};

/// Options that every program is compiled with, by the name of the plugin's platform ("cpu", "tpu").
pjrt::CompileOptions compile_options(const std::string& platform);

class CompileCache {
 public:
  static constexpr size_t kRecent = 1000;

  CompileCache(const pjrt::Client& client, std::string directory, int64_t limit_bytes, int threads);

  ProgramHandle get(CompileRequest request);
  /// What the compiler makes of a text, for a file. Compiles in the call, past memory and disk: XLA:CPU cannot write
  /// again what it has read.
  std::string executable_of(const std::string& text) const;
  const std::string& environment() const { return environment_; }
  CompileStats stats() const;
  void reset_stats();
  /// Drops what holds programs, on a worker thread, and now and then gives their memory back to the system.
  void discard(std::vector<std::shared_ptr<const void>> holders);
  /// The same in the call, and at once.
  static void discard_now(std::vector<std::shared_ptr<const void>> holders);
  /// True while a compile runs or waits for a thread.
  bool busy() const { return workers_.busy(); }
  const std::string& directory() const { return disk_.directory(); }
  /// Names of the entries on disk that this process read or wrote, sorted (disk_cache.h).
  std::vector<std::string> disk_entries() const;

 private:
  void build(const ProgramHandle& program, const CompileRequest& request);
  std::unique_ptr<pjrt::Executable> load_from_file(const CompileRequest& request) const;

  const pjrt::Client& client_;
  const pjrt::CompileOptions options_;
  const std::string environment_;  // executable_environment() of the client
  DiskCache disk_;
  WorkerPool workers_;
  std::atomic<size_t> discarded_{0};  // since memory was given back
  mutable std::mutex mutex_;
  std::unordered_multimap<uint64_t, std::weak_ptr<CompiledProgram>> programs_;
  size_t sweep_at_ = 256;  // dead entries are dropped when the map reaches this size
  CompileStats stats_;
  std::set<std::string> disk_entries_;
};

}  // namespace tpu::runtime
