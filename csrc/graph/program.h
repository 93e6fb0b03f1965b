#pragma once
// Program: the executable form of a recorded sequence of nodes for one set of outputs that are still alive.
// ProgramCache finds it again by the sequence itself (plans and wiring, compared in full). A program whose
// outputs are a superset of the wanted ones serves as well: surplus outputs are dropped.

#include <cstdint>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/location.h"
#include "graph/plan.h"
#include "runtime/compile_cache.h"
#include "runtime/value.h"

namespace tpu::graph {

/// Where one input of a node comes from: a parameter of the recording or an output of an earlier node.
struct Wire {
  bool external = false;
  uint32_t index = 0;  // parameter number, or flat output number
};

struct NodeRecord {
  const Plan* plan = nullptr;
  Location location;
  uint32_t first_wire = 0;
  uint32_t first_word = 0;
  uint32_t first_output = 0;
};

/// A sequence of nodes that was recorded and not yet launched.
struct Recording {
  std::vector<NodeRecord> nodes;
  std::vector<Wire> wires;
  std::vector<uint64_t> words;
  std::vector<runtime::ValueRef> parameters;
  std::vector<runtime::ValueRef> outputs;  // of all nodes, flat
  std::vector<uint64_t> key;               // plan ids and wires: what a program depends on
  uint64_t hash = 0;                       // of key

  bool empty() const { return nodes.empty(); }
  void clear();
};

/// Types of a recording's words.
std::vector<Slot> slots_of(const Recording& recording);
/// The type in which programs take words of a slot.
DType slot_dtype(Slot slot);

/// Bit per flat output; what lies behind is not set.
using OutputMask = std::vector<uint64_t>;
bool test(const OutputMask& mask, size_t bit);

struct ProgramCheck {
  uint32_t node = 0;
  Code code = Code::kIndex;
  std::string message;
  /// Of a node within a captured graph; otherwise the node's own are meant.
  std::string name;
  Location location;
};

struct Program {
  std::vector<uint32_t> outputs;            // flat output number of each program result
  std::vector<ProgramCheck> checks;         // if any, one more result: an i1 per check
  std::vector<int64_t> aliased_parameters;  // donated when nobody else holds the value
  runtime::ProgramHandle executable;
  std::string label;
  size_t memory = 0;  // bytes of host memory that it takes, roughly
};

/// The nodes of a captured graph. Which words are operands of the graph's plan is known when it is captured; all others
/// are constants.
struct CapturedBody {
  Recording recording;            // holds no values
  std::vector<int32_t> operands;  // per word of the recording: the plan's word that it is, or -1
  uint32_t draws = 0;             // of random nodes: the first 2 * draws words of the plan
  std::vector<uint32_t> results;  // flat output of each output of the plan
};

/// Emits the nodes of a captured graph.
LoweredNode lower_body(const CapturedBody& body, stablehlo::Builder& builder, const NodeValues& values,
                       const LayoutPolicy& policy);

/// Emits text and requests the compile. Throws what a lowering throws, naming the node.
struct CapturedGraph;

struct ProgramText {
  std::string text;
  std::vector<ProgramCheck> checks;  // one per flag
};

/// The program of a captured graph alone, as text: a parameter for each input of its plan, then a vector for each type
/// of its words (of a CallCapture, the random nodes' seeds and offsets); the plan's outputs, then the checks' flags if
/// there are any. With `locations` operations carry the user's lines.
ProgramText captured_program(const CapturedGraph& graph, const LayoutPolicy& policy, bool locations);

std::shared_ptr<Program> build_program(const Recording& recording, const OutputMask& alive, const LayoutPolicy& policy,
                                       runtime::CompileCache& cache, std::string reason);

/// Keeps programs whose memory is at most `limit_bytes` together, among them always the newest. Room is made by one of
/// the half used longest ago, drawn at random: a loop over a few programs more than there is room for would find none
/// of them if the very oldest went, since that is the one it needs next.
class ProgramCache {
 public:
  explicit ProgramCache(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  struct Lookup {
    std::shared_ptr<Program> program;  // null on a miss
    bool known_body = false;           // the same nodes were seen with other outputs
  };
  Lookup find(const Recording& recording, const OutputMask& alive);
  /// Returns what had to make room: to be dropped without a lock, since that calls the plugin.
  std::vector<std::shared_ptr<Program>> insert(const Recording& recording, OutputMask alive,
                                               std::shared_ptr<Program> program);
  /// Empties the cache; returns what was in it.
  std::vector<std::shared_ptr<Program>> clear();
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t hash;
    std::vector<uint64_t> key;
    OutputMask alive;
    std::shared_ptr<Program> program;
  };
  using Entries = std::list<Entry>;  // most recently used first

  std::shared_ptr<Program> remove(Entries::iterator entry);
  Entries::iterator draw_old();

  const size_t limit_bytes_;
  size_t bytes_ = 0;
  Entries entries_;
  std::unordered_multimap<uint64_t, Entries::iterator> index_;
  std::minstd_rand random_;
};

}  // namespace tpu::graph
