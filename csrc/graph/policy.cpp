#include "graph/policy.h"

#include <atomic>

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

// A node as the next iteration of a loop would record it again: internal wires relative, parameters alike.
uint64_t shape_of(const Recording& recording, const NodeRecord& node) {
  uint64_t hash = node.plan->id;
  for (size_t i = 0; i < node.plan->inputs.size(); ++i) {
    const Wire& wire = recording.wires[node.first_wire + i];
    hash = mix(hash, wire.external ? ~uint64_t{0} : node.first_output - wire.index);
  }
  return hash;
}

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
  if (recording.nodes.size() >= kMaxNodes) return "node limit";
  const auto node = static_cast<uint32_t>(recording.nodes.size() - 1);
  const uint64_t hash = shape_of(recording, recording.nodes[node]);
  Seen& seen = seen_[hash % kSlots];
  const size_t period = seen.epoch == epoch_ && seen.hash == hash ? node - seen.node : 0;
  seen = {hash, node, epoch_};
  repeated_ = period != 0 && period == period_ ? repeated_ + 1 : 0;
  period_ = period;
  const bool whole = period != 0 && repeated_ >= std::max(period, kMinRepeated) && repeated_ % period == 0;
  return whole ? "repeated pattern" : nullptr;
}

void FlushPolicy::reset() {
  ++epoch_;
  period_ = repeated_ = 0;
}

}  // namespace tpu::graph
