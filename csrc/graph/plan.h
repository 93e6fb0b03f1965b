#pragma once
// Plan: everything about one operator call that its signature fixes. Made once per signature, immutable
// afterwards, never freed (plans are small and programs refer to them), shared by all threads.
//
// A plan says how each argument is made (a window of an input value, a known or a run-time scalar, a plain
// attribute), what the lowering is, and what becomes of the results (a new base array, or a window written
// into an input's base). What varies between calls with one signature, the start of each window and the
// run-time scalars, are the node's `words`, in the order of `slots`.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/location.h"
#include "graph/window.h"
#include "lowering/bounded.h"
#include "lowering/op_call.h"
#include "lowering/table.h"

namespace tpu::graph {

/// Type of one run-time word: an s64, or the bits of a double that the program takes as f32 or f64.
enum class Slot : uint8_t { kInt, kFloat, kDouble };

struct TensorRef {
  uint32_t input = 0;
  Layout layout;
  uint32_t first_slot = 0;  // layout.start_count() int slots
  /// Dims whose present size is a run-time word (lowering/bounded.h).
  struct Present {
    uint32_t dim = 0;
    uint32_t slot = 0;
    friend bool operator==(const Present&, const Present&) = default;
  };
  std::vector<Present> present;
  uint64_t filled = 0;  // bit per dim: what stands behind the present end is replaced
  lowering::Fill fill = lowering::Fill::kZero;
  int64_t fill_number = 0;
};

struct ScalarRef {
  DType dtype = DType::kS64;
  std::optional<lowering::Scalar> known;
  uint32_t slot = 0;  // when not known
};

/// A tensor of which only the type matters: the lowering sees zeros.
struct UnreadTensor {
  TensorType type;
};

using ArgTemplate = std::variant<lowering::None, TensorRef, UnreadTensor, ScalarRef,
                                 std::vector<std::optional<TensorRef>>, std::vector<ScalarRef>, bool, int64_t, double,
                                 Dims, std::vector<double>, std::vector<bool>, std::string, DType>;

struct OutputTemplate {
  TensorType base;      // of the new value
  uint32_t result = 0;  // result of the lowering that it comes from
  Dims order;           // new base: dim i of the base is dim order[i] of the result
  /// Set when the result is written into a window of an existing base.
  struct Replace {
    std::optional<uint32_t> input;  // the old base; none when every element is replaced
    std::optional<uint32_t> after;  // earlier output that is the old base: two windows of one storage are written
    Layout layout;
    uint32_t first_slot = 0;
    DType dtype = DType::kF32;  // of the window: the result is converted to it
    Dims sizes;
    std::vector<TensorRef::Present> present;  // where the layout writes a part
  };
  std::optional<Replace> replace;
  /// For tests: what stands behind the present end is overwritten with numbers that would show.
  std::vector<TensorRef::Present> poisoned;
  /// Input whose memory the output may take over although it is no window of it (results of captured graphs).
  std::optional<uint32_t> takes_over;
};

struct CapturedBody;
struct ControlFlow;

struct Plan {
  uint64_t id = 0;
  const lowering::Row* row = nullptr;
  std::string name;  // as the user called it: "add_.Tensor"
  std::vector<TensorType> inputs;
  std::vector<ArgTemplate> args;
  std::vector<TensorType> results;
  DType promoted = DType::kF32;
  int dot_precision = 2;  // as Builder::set_dot_precision takes it
  std::vector<Slot> slots;
  /// Lowered for stored sizes (base/tensor_type.h, Bounds): `inputs`, `results` and `outputs` have these.
  bool bounded = false;
  std::optional<uint32_t> random_slot;  // seed and offset, two int slots
  std::vector<OutputTemplate> outputs;
  /// Set for a captured graph (capture.h), which has no row: the nodes that make the outputs.
  std::shared_ptr<const CapturedBody> body;
  /// Set for an operator whose parts are captured graphs (control_flow.h); it has no row either.
  std::shared_ptr<const ControlFlow> control_flow;
};

/// How programs are laid out for one kind of plugin.
struct LayoutPolicy {
  /// Put an optimization barrier after what rows marked heavy compute: XLA:CPU's large fusions recompute. Before it is
  /// brought into the layout of an output, so that the next reader can undo that.
  bool barrier_after_heavy = false;
  /// The same after nodes with float16 results: LLVM, compiling for XLA:CPU, takes float32 → float16 → float32 within
  /// one loop for nothing, so that fused programs would round less often than strict ones.
  bool barrier_after_float16 = false;
  /// Look for what the Neuron compiler refuses before it does (stablehlo/neuron_limits.h).
  bool neuron_limits = false;
};

/// For a platform named as PJRT does: "cpu", "tpu", "cuda".
LayoutPolicy layout_policy(const std::string& platform);

/// The program inputs of one node, in a builder.
struct NodeValues {
  std::span<const Value> inputs;
  std::span<const Value> words;  // one 0-d value per slot
};

struct LoweredNode {
  std::vector<Value> outputs;
  struct Check {
    Value bad;
    Code code = Code::kIndex;
    std::string message;
    /// Of a node within a captured graph; otherwise the node's own are meant.
    std::string name;
    Location location;
  };
  std::vector<Check> checks;
};

/// Emits the plan's program text into `builder`. `alone`: the program has no other node. Throws Error if the lowering
/// disagrees with the metadata.
LoweredNode lower(const Plan& plan, stablehlo::Builder& builder, const NodeValues& values, const LayoutPolicy& policy,
                  bool alone = false);

uint64_t next_plan_id();

/// Everything about a plan but its id and name, as words: plans of one row with equal keys give the same program.
std::vector<uint64_t> content_key(const Plan& plan);

/// What a row's rule may look at: attributes are as in a call, tensors and numbers that are not known are left out.
lowering::Arg attribute_of(const ArgTemplate& argument);

}  // namespace tpu::graph
