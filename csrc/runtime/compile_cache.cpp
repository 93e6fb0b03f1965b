#include "runtime/compile_cache.h"

#include <malloc.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/env.h"
#include "base/log.h"
#include "runtime/executable_file.h"

namespace tpu::runtime {
namespace {

constexpr size_t kTrimAfter = 256;  // programs, so some 100 MB

// One file for each program, ending in a comment for each combination of operators that asked for it. Operators may
// share a program, so the request counts and not the compile; the folder may be that of several processes.
void dump_program(const CompileRequest& request) {
  static const auto directory = env::text(env::kDumpDir);
  if (!directory) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::error_code failed;
  std::filesystem::create_directories(*directory, failed);
  const std::string path = *directory + "/" + to_hex(fingerprint(request.text)) + ".mlir";
  const std::string comment = "// operators: " + request.operators;
  std::stringstream there;
  there << std::ifstream(path).rdbuf();
  const std::string text = there.str();
  if (!text.starts_with(request.text)) {
    std::ofstream(path) << request.text << comment << " at " << request.location << '\n';
  } else if (text.find(comment + " at ", request.text.size()) == std::string::npos) {
    std::ofstream(path, std::ios::app) << comment << " at " << request.location << '\n';
  }
}

// A program too large for the device's memory is the caller's; any other refusal is mostly for a dtype.
Error refusal(const Error& error, const CompileRequest& request, const std::string& platform) {
  if (error.code() == Code::kOutOfMemory) return error;
  const std::string compiler = "the compiler of the platform '" + platform + "'";
  if (request.operators.empty()) return {error.code(), compiler + " does not take this program: " + error.what()};
  return {error.code(), compiler + " does not take this operator with these dtypes: " + error.what() +
                            ". Convert its arguments to a dtype that it takes (docs/operators.md), such as "
                            "torch.float32, or compute it on the CPU: x.cpu()"};
}

}  // namespace

const pjrt::Executable& CompiledProgram::wait() {
  done_.wait(false, std::memory_order_acquire);
  if (error_ != nullptr) throw *error_;
  return *executable_;
}

// float32 stays float32 between fused operations, and min/max pass NaN on: XLA's defaults trade both away.
pjrt::CompileOptions compile_options(const std::string& platform) {
  pjrt::CompileOptions options;
  const bool xla = platform == "cpu" || platform == "cuda";
  if (xla) options.overrides["xla_allow_excess_precision"] = false;
  if (platform == "cpu") options.overrides["xla_cpu_enable_fast_min_max"] = false;
  return options;
}

CompileCache::CompileCache(const pjrt::Client& client, std::string directory, int64_t limit_bytes, int threads)
    : client_(client),
      options_(compile_options(client.platform_name())),
      environment_(executable_environment(client.plugin(), client.platform_name(),
                                          client.devices().empty() ? "" : client.devices()[0].kind())),
      disk_(std::move(directory), limit_bytes),
      workers_(threads) {}

namespace {

std::atomic<int> chosen_guard{-1};

void apply_guard(const CompileRequest& request) {
  const CompileGuard guard = compile_guard();
  if (guard == CompileGuard::kAllow) return;
  const std::string what = request.label + (request.location.empty() ? "" : " at " + request.location);
  if (guard == CompileGuard::kError) {
    throw Error(Code::kInvalidArgument,
                what + " has to be compiled, which torch_tpu.compile_guard('error') forbids (" + request.reason + ")");
  }
  log::line("compile guard: " + what + " (" + request.reason + ")");
}

}  // namespace

CompileGuard compile_guard() {
  int guard = chosen_guard.load(std::memory_order_relaxed);
  if (guard < 0) {
    guard = static_cast<int>(parse_compile_guard(env::text(env::kCompileGuard).value_or("allow")));
    chosen_guard.store(guard);
  }
  return static_cast<CompileGuard>(guard);
}

void set_compile_guard(CompileGuard guard) { chosen_guard.store(static_cast<int>(guard)); }

CompileGuard parse_compile_guard(const std::string& text) {
  if (text == "allow") return CompileGuard::kAllow;
  if (text == "log") return CompileGuard::kLog;
  if (text == "error") return CompileGuard::kError;
  throw Error(Code::kValue, "the compile guard may be 'allow', 'log' or 'error', got '" + text + "'");
}

std::string to_string(CompileGuard guard) {
  return guard == CompileGuard::kAllow ? "allow" : guard == CompileGuard::kLog ? "log" : "error";
}

ProgramHandle CompileCache::get(CompileRequest request) {
  dump_program(request);
  const uint64_t hash = table_hash(fingerprint(request.text).high);
  ProgramHandle program;
  {
    std::lock_guard lock(mutex_);
    auto [first, last] = programs_.equal_range(hash);
    for (; first != last; ++first) {
      if (auto found = first->second.lock(); found != nullptr && found->text_ == request.text) {
        ++stats_.memory_hits;
        return found;
      }
    }
    apply_guard(request);
    if (programs_.size() >= sweep_at_) {
      std::erase_if(programs_, [](const auto& entry) { return entry.second.expired(); });
      sweep_at_ = std::max<size_t>(256, 2 * programs_.size());
    }
    program = std::make_shared<CompiledProgram>();
    program->text_ = request.text;
    programs_.emplace(hash, program);
  }
  workers_.submit([this, program, request = std::move(request)] { build(program, request); });
  return program;
}

std::string CompileCache::executable_of(const std::string& text) const {
  return client_.compile(text, options_)->serialize();
}

void CompileCache::discard(std::vector<std::shared_ptr<const void>> holders) {
  workers_.submit([this, holders = std::move(holders)]() mutable {
    discarded_ += holders.size();
    if (discarded_ < kTrimAfter) return holders.clear();
    discarded_ = 0;
    discard_now(std::move(holders));
  });
}

void CompileCache::discard_now(std::vector<std::shared_ptr<const void>> holders) {
  holders.clear();
  // Their blocks lie scattered among those of other programs, so that malloc alone keeps nearly all the pages.
  malloc_trim(0);
}

std::unique_ptr<pjrt::Executable> CompileCache::load_from_file(const CompileRequest& request) const {
  if (request.executable_file.empty()) return nullptr;
  std::string reason = "it is for another program, plugin or device";
  try {
    const auto bytes = read_executable(request.executable_file, executable_key(environment_, request.text));
    if (bytes) return client_.deserialize(*bytes);
  } catch (const Error& error) {
    reason = error.what();
  }
  if (log::enabled(1)) log::line(request.executable_file + " is not used: " + reason);
  return nullptr;
}

void CompileCache::build(const ProgramHandle& program, const CompileRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  CompileEvent event{request.label, request.location, request.reason, "compiled", 0};
  // The platform's version is known where there is a client.
  const std::string key = executable_key(environment_ + "\n" + client_.platform_version(), request.text);
  bool on_disk = false;
  try {
    if (log::enabled(4)) log::line(request.text);
    if (auto payload = disk_.load(key)) {
      try {
        program->executable_ = client_.deserialize(*payload);
        event.source = "disk";
        on_disk = true;
      } catch (const Error&) {
        // An entry that this plugin cannot load is a miss; storing the new one replaces it.
      }
    }
    if (program->executable_ == nullptr && (program->executable_ = load_from_file(request)) != nullptr) {
      event.source = "file";
    }
    if (program->executable_ == nullptr) {
      program->executable_ = client_.compile(request.text, options_);
      if (disk_.enabled()) {
        try {
          disk_.store(key, program->executable_->serialize());
          on_disk = true;
        } catch (const Error&) {
          // Some plugins cannot serialise some programs: they are then compiled in each process.
        }
      }
    }
  } catch (const Error& error) {
    program->error_ = std::make_shared<const Error>(refusal(error, request, client_.platform_name()));
  } catch (const std::exception& error) {
    program->error_ = std::make_shared<const Error>(Code::kInternal, error.what());
  }
  event.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (log::enabled(1)) {
    log::line((program->error_ ? "compile failed: " : event.source + ": ") + event.label + " at " + event.location +
              " (" + event.reason + ", " + std::to_string(event.seconds * 1e3) + " ms)");
  }
  {
    std::lock_guard lock(mutex_);
    if (on_disk) disk_entries_.insert(DiskCache::name_of(key));
    if (program->error_ != nullptr) {
      ++stats_.failed;
    } else if (event.source == "disk") {
      ++stats_.disk_hits;
    } else if (event.source == "file") {
      ++stats_.file_hits;
    } else {
      ++stats_.compiled;
      stats_.compile_seconds += event.seconds;
    }
    if (stats_.recent.size() >= kRecent)
      stats_.recent.erase(stats_.recent.begin(), stats_.recent.begin() + kRecent / 2);
    stats_.recent.push_back(std::move(event));
  }
  program->done_.store(true, std::memory_order_release);
  program->done_.notify_all();
}

CompileStats CompileCache::stats() const {
  std::lock_guard lock(mutex_);
  CompileStats result = stats_;
  for (const auto& [hash, program] : programs_) result.programs += program.expired() ? 0 : 1;
  return result;
}

std::vector<std::string> CompileCache::disk_entries() const {
  std::lock_guard lock(mutex_);
  return {disk_entries_.begin(), disk_entries_.end()};
}

void CompileCache::reset_stats() {
  std::lock_guard lock(mutex_);
  stats_ = CompileStats{};
}

}  // namespace tpu::runtime
