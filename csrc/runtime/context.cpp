#include "runtime/context.h"

#include <atomic>
#include <thread>

#include "base/env.h"
#include "base/log.h"
#include "runtime/memory_stats.h"

namespace tpu::runtime {
namespace {

std::mutex& context_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::atomic<Context*> context{nullptr};
std::atomic<bool> forked_child{false};

void refuse_forked_child() {
  if (!forked_child.load(std::memory_order_relaxed)) return;
  throw Error(Code::kUnavailable,
              "Cannot use the tpu device in a forked subprocess: its runtime threads do not exist there. Use the "
              "'spawn' start method of multiprocessing, or keep workers on the CPU.");
}

}  // namespace

Context::Context(PluginChoice choice) : choice_(std::move(choice)) {
  prepare_plugin(choice_);
  auto plugin = pjrt::Plugin::load(choice_.path);
  client_ = pjrt::Client::create(plugin, choice_.options, std::chrono::seconds(env::integer(env::kInitTimeout, 300)));
  if (client_->devices().empty()) {
    throw Error(Code::kUnavailable, "plugin " + choice_.path + " has no addressable device");
  }
  if (client_->devices().size() > kMaxDevices) throw Error(Code::kUnavailable, "more than 64 devices in a process");
  for (size_t i = 0; i < client_->devices().size(); ++i) queues_.push_back(std::make_unique<TaskQueue>());
  host_readable_ = client_->platform_name() == "cpu";
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  cache_ = std::make_unique<CompileCache>(*client_, cache_directory(), env::integer(env::kCacheSizeMb, 4096) << 20,
                                          static_cast<int>(env::integer(env::kCompileThreads, std::min(cores, 16))));
  if (log::enabled(1)) {
    log::line("plugin " + choice_.path + " (" + choice_.reason + "), " + std::to_string(devices()) + " x " +
              device(0).kind());
  }
}

Context& Context::get() {
  if (forked_child.load(std::memory_order_relaxed)) refuse_forked_child();
  if (Context* made = context.load(std::memory_order_acquire)) return *made;
  std::lock_guard lock(context_mutex());
  if (Context* made = context.load(std::memory_order_acquire)) return *made;
  static std::shared_ptr<const Error> lasting_failure;
  if (lasting_failure != nullptr) throw *lasting_failure;
  try {
    auto* made = new Context(choose_plugin());
    context.store(made, std::memory_order_release);
    return *made;
  } catch (const Error& error) {
    // A plugin that is missing may be installed and tried again; one that hung still hangs in its thread.
    if (std::string_view(error.what()).find("did not finish") != std::string_view::npos) {
      lasting_failure = std::make_shared<const Error>(error);
    }
    throw;
  }
}

bool Context::initialized() { return context.load(std::memory_order_acquire) != nullptr; }

bool Context::available() {
  if (initialized()) return true;
  try {
    choose_plugin();
    return true;
  } catch (const Error&) {
    return false;
  }
}

int Context::device_count() {
  if (initialized()) return get().devices();
  const PluginChoice choice = choose_plugin();
  if (auto option = choice.options.find("cpu_device_count"); option != choice.options.end()) {
    return static_cast<int>(std::get<int64_t>(option->second));
  }
  return get().devices();
}

void Context::mark_forked_child() {
  if (initialized()) forked_child.store(true, std::memory_order_relaxed);
}
bool Context::in_bad_fork() { return forked_child.load(std::memory_order_relaxed); }

}  // namespace tpu::runtime
