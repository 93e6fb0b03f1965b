// check_xla_flags(): tries XLA_FLAGS in a process of its own, because XLA ends the process on a bad one.

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/env.h"
#include "base/hash.h"
#include "base/log.h"
#include "runtime/provider.h"

namespace tpu::runtime {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char kFlags[] = "XLA_FLAGS";
constexpr int kPatience = 60;  // seconds, unless TORCH_TPU_INIT_TIMEOUT is set
// XLA leaves with the same exit status as a tpu_probe that reports an error, so that one is told by its output.
constexpr char kReportedError[] = "error\t";

// What the child left behind.
struct Outcome {
  bool finished = false;  // false: it was killed because it took too long
  int status = 0;         // as waitpid() gives it
  std::string output;     // what it wrote to stdout and stderr
};

// tpu_probe lies beside the library that holds this function. Empty if it is not there.
std::string probe_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&check_xla_flags), &info) == 0 || info.dli_fname == nullptr) return "";
  const fs::path path = fs::path(info.dli_fname).replace_filename("tpu_probe");
  return access(path.c_str(), X_OK) == 0 ? path.string() : "";
}

// Environment of tpu_probe: this process's, with the plugin settled, its messages shown (the one that names a flag
// may be below the usual level), and the mark that keeps it from starting another one.
std::vector<std::string> probe_environment(const PluginChoice& choice) {
  const std::pair<std::string, std::string> changes[] = {
      {env::kPlugin, choice.path}, {env::kProbing, "1"}, {"TF_CPP_MIN_LOG_LEVEL", "0"}};
  std::vector<std::string> variables;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view variable(*at);
    const bool changed = std::any_of(std::begin(changes), std::end(changes),
                                     [&](const auto& change) { return variable.starts_with(change.first + "="); });
    if (!changed) variables.emplace_back(variable);
  }
  for (const auto& [name, value] : changes) variables.push_back(name + "=" + value);
  return variables;
}

// The form that posix_spawn() takes.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// Starts `program` with stdout and stderr going to `output`; nullopt if that fails.
std::optional<pid_t> spawn(const std::string& program, std::vector<std::string> environment, int output) {
  std::vector<std::string> arguments = {program};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  pid_t child = 0;
  const int failed =
      posix_spawn(&child, program.c_str(), &actions, nullptr, pointers(arguments).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  return failed == 0 ? std::optional<pid_t>(child) : std::nullopt;
}

// Reads until the child closes its end; false if `deadline` passes first.
bool read_all(int input, Clock::time_point deadline, std::string& text) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd waiting{input, POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    char chunk[4096];
    const ssize_t count = read(input, chunk, sizeof(chunk));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    text.append(chunk, static_cast<size_t>(count));
  }
}

// nullopt when no child can be made.
std::optional<Outcome> try_in_child(const PluginChoice& choice) {
  const std::string probe = probe_path();
  int ends[2];
  if (probe.empty() || pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const auto child = spawn(probe, probe_environment(choice), ends[1]);
  close(ends[1]);
  if (!child) {
    close(ends[0]);
    return std::nullopt;
  }
  const std::chrono::seconds patience(env::integer(env::kInitTimeout, kPatience));
  Outcome outcome;
  outcome.finished = read_all(ends[0], Clock::now() + patience, outcome.output);
  close(ends[0]);
  if (!outcome.finished) kill(*child, SIGKILL);
  while (waitpid(*child, &outcome.status, 0) < 0 && errno == EINTR) {
  }
  return outcome;
}

// True if tpu_probe lived to report an error: one that the parent will meet by itself, and not about flags.
bool reported_error(const std::string& output) {
  return output.starts_with(kReportedError) || output.find(std::string("\n") + kReportedError) != std::string::npos;
}

// The line that speaks of a flag, without the log prefix "F0000 00:00:00 1 file.cc:1] "; else the last line.
std::string complaint(const std::string& output) {
  std::istringstream lines(output);
  std::string last = "(it wrote nothing)";
  for (std::string line; std::getline(lines, line);) {
    if (const size_t end = line.find("] "); end != std::string::npos) line.erase(0, end + 2);
    if (line.find("flag") != std::string::npos) return line;
    if (!line.empty()) last = line;
  }
  return last;
}

// Text that changes whenever the verdict might. Empty: do not remember, the flags are in another file.
std::string verdict_key(const PluginChoice& choice, const std::string& flags) {
  if (!flags.starts_with("-")) return "";
  std::error_code failed;
  std::ostringstream key;
  key << "XLA_FLAGS verdict v1\n"
      << choice.path << '\n'
      << fs::file_size(choice.path, failed) << '\n'
      << fs::last_write_time(choice.path, failed).time_since_epoch().count() << '\n'
      << flags << '\n';
  return key.str();
}

// Verdicts by key: the complaint, empty for good flags.
struct Verdicts {
  std::mutex mutex;
  std::map<std::string, std::string> known;  // guarded by mutex
};

Verdicts& verdicts() {
  static auto* const instance = new Verdicts;
  return *instance;
}

fs::path verdict_file(const std::string& key) {
  const std::string directory = cache_directory();
  return directory.empty() ? fs::path() : fs::path(directory) / "xla_flags" / to_hex(fingerprint(key));
}

// The file holds the key, then the complaint; a file with another key is not ours.
std::optional<std::string> read_verdict(const std::string& key) {
  Verdicts& all = verdicts();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.known.find(key); found != all.known.end()) return found->second;
  const fs::path file = verdict_file(key);
  if (file.empty()) return std::nullopt;
  std::ostringstream stored;
  stored << std::ifstream(file, std::ios::binary).rdbuf();
  const std::string text = stored.str();
  if (!text.starts_with(key) || !text.ends_with('\n') || text.size() == key.size()) return std::nullopt;
  return all.known[key] = text.substr(key.size(), text.size() - key.size() - 1);
}

// Best effort: without a writable directory the next process asks a child again.
void write_verdict(const std::string& key, const std::string& verdict) {
  {
    Verdicts& all = verdicts();
    const std::lock_guard lock(all.mutex);
    all.known[key] = verdict;
  }
  const fs::path file = verdict_file(key);
  if (file.empty()) return;
  std::error_code failed;
  fs::create_directories(file.parent_path(), failed);
  const fs::path temporary = file.string() + "." + std::to_string(getpid());
  std::ofstream stream(temporary, std::ios::binary);
  stream << key << verdict << '\n';
  stream.close();
  if (stream) fs::rename(temporary, file, failed);
  if (!stream || failed) fs::remove(temporary, failed);
}

[[noreturn]] void refuse(const std::string& flags, const PluginChoice& choice, const std::string& verdict) {
  throw Error(Code::kValue, "the PJRT plugin " + choice.path + " would end this process because of XLA_FLAGS=\"" +
                                flags + "\": " + verdict + ". Correct or unset XLA_FLAGS.");
}

}  // namespace

void check_xla_flags(const PluginChoice& choice) {
  const auto flags = env::text(kFlags);
  if (!flags || env::flag(env::kProbing, false)) return;
  // Once it is loaded the flags have been read.
  if (void* loaded = dlopen(choice.path.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
    dlclose(loaded);
    return;
  }
  const std::string key = verdict_key(choice, *flags);
  std::optional<std::string> verdict;
  if (!key.empty()) verdict = read_verdict(key);
  if (!verdict) {
    const auto outcome = try_in_child(choice);
    if (!outcome || !outcome->finished) {
      if (log::enabled(1)) log::line("XLA_FLAGS could not be tried in a child process; they are used as they are");
      return;
    }
    // Killed from outside, for instance for want of memory: no verdict on the flags.
    if (WIFSIGNALED(outcome->status) && WTERMSIG(outcome->status) == SIGKILL) return;
    if (reported_error(outcome->output)) return;
    const bool good = WIFEXITED(outcome->status) && WEXITSTATUS(outcome->status) == 0;
    verdict = good ? "" : complaint(outcome->output);
    if (!key.empty()) write_verdict(key, *verdict);
  }
  if (!verdict->empty()) refuse(*flags, choice, *verdict);
}

}  // namespace tpu::runtime
