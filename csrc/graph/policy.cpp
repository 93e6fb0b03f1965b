#include "graph/policy.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/env.h"
#include "graph/recorder.h"

namespace tpu::graph {
namespace {

std::atomic<Mode>& stored_mode() {
  static std::atomic<Mode> value = [] {
    const std::string text = env::text(env::kEagerMode).value_or("strict");
    try {
      return parse_mode(text);
    } catch (const Error& error) {
      throw Error(error.code(), std::string(env::kEagerMode) + ": " + error.what());
    }
  }();
  return value;
}

thread_local int open_scopes = 0;

}  // namespace

Mode mode() { return stored_mode().load(std::memory_order_relaxed); }
void set_mode(Mode mode) { stored_mode().store(mode, std::memory_order_relaxed); }

Mode parse_mode(const std::string& text) {
  if (text == "debug") return Mode::kDebug;
  if (text == "strict") return Mode::kStrict;
  if (text == "fused") return Mode::kFused;
  throw Error(Code::kValue, "eager mode must be 'debug', 'strict' or 'fused', got '" + text + "'");
}

std::string to_string(Mode mode) { return mode == Mode::kDebug ? "debug" : mode == Mode::kStrict ? "strict" : "fused"; }

OperatorScope::OperatorScope(int device) : device_(device) { open_scopes += device >= 0; }

OperatorScope::~OperatorScope() {
  if (device_ < 0 || --open_scopes > 0 || mode() != Mode::kStrict) return;
  try {
    Recorder::of(device_).flush("operator");
  } catch (const Error&) {
    // The outputs carry the error to whoever reads them.
  }
}

const char* FlushPolicy::after_append(const Recording& recording) {
  const bool gathers = mode() == Mode::kFused || (mode() == Mode::kStrict && open_scopes > 0);
  if (!gathers) return "operator";
  if (recording.nodes.size() >= kMaxNodes || cuts_long(recording)) return "node limit";
  // Plans alone tell a repetition. How nodes are wired need not repeat literally: a loop that reads a tensor from
  // before it has a longer way back every time. Programs are compared in full, so a wrong guess costs a compile at
  // most.
  const uint64_t plan = recording.nodes.back().plan->id;
  Seen& seen = seen_[plan % kSlots];
  if (period_ != 0 && history_[(position_ - period_) % kSlots] == plan) {
    ++repeated_;
  } else {
    const bool known = seen.plan == plan && seen.position >= begin_ && position_ - seen.position < kSlots;
    period_ = known ? position_ - seen.position : 0;
    repeated_ = 0;
  }
  history_[position_ % kSlots] = plan;
  seen = {plan, position_++};
  goes_on_ = period_ != 0 && repeated_ >= std::max(period_, kMinRepeated) && repeated_ % period_ == 0;
  return goes_on_ ? "repeated pattern" : nullptr;
}

bool FlushPolicy::cuts_long(const Recording& recording) const {
  constexpr size_t kWindow = 16;
  constexpr uint64_t kOneIn = 256;
  const size_t count = recording.nodes.size();
  if (count < kLongNodes) return false;
  uint64_t hash = 0;
  for (size_t i = count - kWindow; i < count; ++i) hash = mix(hash, recording.nodes[i].plan->id);
  return hash % kOneIn == 0;
}

void FlushPolicy::reset() {
  repeated_ = 0;
  // A loop that was cut at its period is cut there again, after as many nodes: the same program.
  if (std::exchange(goes_on_, false)) return;
  begin_ = position_;
  period_ = 0;
}

}  // namespace tpu::graph
