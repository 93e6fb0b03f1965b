#pragma once
// When a recording is launched. Modes differ in nothing else: debug and strict launch every node (debug
// also waits for it), fused lets nodes gather until something needs a value, a limit is reached, or the
// recording starts to repeat itself.

#include <array>
#include <cstdint>
#include <string>

#include "graph/program.h"

namespace tpu::graph {

enum class Mode : uint8_t { kDebug, kStrict, kFused };

Mode mode();
void set_mode(Mode mode);
Mode parse_mode(const std::string& text);  // throws Error{kValue}
std::string to_string(Mode mode);

/// While one lives on a thread, strict launches that thread's nodes together at the end: the parts of one
/// decomposed operator are one program, as any other operator is. Without effect for device -1.
class OperatorScope {
 public:
  explicit OperatorScope(int device);
  ~OperatorScope();
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

 private:
  const int device_;
};

/// Watches the nodes of one recording. Not thread-safe: guarded by the recorder's lock.
class FlushPolicy {
 public:
  static constexpr size_t kMaxNodes = 4096;
  /// From here on a recording is cut where its last nodes hash to a certain value. Such places are few and lie at the
  /// same nodes of every iteration, wherever a recording began: the pieces of a long step are soon all known.
  static constexpr size_t kLongNodes = 1024;
  /// A repetition is cut only when the repeated part has at least this many nodes: shorter programs cost
  /// more to launch than they save.
  static constexpr size_t kMinRepeated = 128;

  /// Called after a node was appended: nullptr to go on, else why to launch now.
  const char* after_append(const Recording& recording);
  /// Called when the recording was launched, for whatever reason.
  void reset();

 private:
  bool cuts_long(const Recording& recording) const;

  static constexpr size_t kSlots = 4096;
  struct Seen {
    uint64_t plan = 0;
    uint64_t position = 0;
  };
  std::array<Seen, kSlots> seen_{};         // where a plan was last, by plan id
  std::array<uint64_t, kSlots> history_{};  // plan ids by position
  uint64_t position_ = 0;                   // of the next node, counted from the start of the process
  uint64_t begin_ = 0;                      // nodes before this one are not looked at
  size_t period_ = 0;
  size_t repeated_ = 0;  // nodes in a row that are the same as `period_` nodes before
  bool goes_on_ = false;
};

}  // namespace tpu::graph
