// check_xla_flags(): tries XLA_FLAGS in a forked child, because XLA ends the process on a bad one.

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>

#include "base/env.h"
#include "base/hash.h"
#include "base/log.h"
#include "runtime/provider.h"

namespace tpu::runtime {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char kFlags[] = "XLA_FLAGS";
constexpr std::chrono::seconds kPatience{60};
constexpr int kSurvived = 0;     // the child's exit status: the flags are good
constexpr int kOtherError = 77;  // ... an error of another kind, which the parent will meet by itself

constexpr char kSmallProgram[] =
    "module @probe { func.func public @main(%x: tensor<1xf32>) -> tensor<1xf32> {\n"
    "  %0 = stablehlo.add %x, %x : tensor<1xf32>\n"
    "  return %0 : tensor<1xf32> } }";

// What the child left behind.
struct Outcome {
  bool finished = false;  // false: it was killed after kPatience
  int status = 0;         // as waitpid() gives it
  std::string output;     // its stderr
};

[[noreturn]] void run_child(const PluginChoice& choice, int output) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  dup2(output, STDERR_FILENO);
  if (const int nowhere = open("/dev/null", O_WRONLY); nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
  unsetenv("TF_CPP_MIN_LOG_LEVEL");  // the message that names the flag may be below the level of the parent
  int status = kOtherError;
  try {
    const auto client = pjrt::Client::create(pjrt::Plugin::load(choice.path), choice.options, kPatience);
    client->compile(kSmallProgram, {});
    status = kSurvived;
  } catch (...) {
    // Anything that is an error and not the end of the process is not about flags.
  }
  _exit(status);
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
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const pid_t child = fork();
  if (child == 0) run_child(choice, ends[1]);
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return std::nullopt;
  }
  Outcome outcome;
  outcome.finished = read_all(ends[0], Clock::now() + kPatience, outcome.output);
  close(ends[0]);
  if (!outcome.finished) kill(child, SIGKILL);
  while (waitpid(child, &outcome.status, 0) < 0 && errno == EINTR) {
  }
  return outcome;
}

// The line that speaks of a flag, without the log prefix "F0000 00:00:00 1 file.cc:1] "; else the first line.
std::string complaint(const std::string& output) {
  std::istringstream lines(output);
  std::string first;
  for (std::string line; std::getline(lines, line);) {
    if (const size_t end = line.find("] "); end != std::string::npos) line.erase(0, end + 2);
    if (first.empty()) first = line;
    if (line.find("flag") != std::string::npos) return line;
  }
  return first.empty() ? "(it wrote nothing)" : first;
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
  if (!flags) return;
  // Once it is loaded the flags have been read, and a fork would copy its locks without its threads.
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
    const bool exited = WIFEXITED(outcome->status);
    if (exited && WEXITSTATUS(outcome->status) == kOtherError) return;
    const bool good = exited && WEXITSTATUS(outcome->status) == kSurvived;
    verdict = good ? "" : complaint(outcome->output);
    if (!key.empty()) write_verdict(key, *verdict);
  }
  if (!verdict->empty()) refuse(*flags, choice, *verdict);
}

}  // namespace tpu::runtime
