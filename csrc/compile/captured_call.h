#pragma once
// Captured graphs of tensors: what torch.compile's backend makes of a graph once, and calls afterwards. Capturing runs
// the graph's operators through the ordinary dispatch on tensors that have no contents; graph/capture.h sets their
// nodes aside.

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "aten/changing_sizes.h"
#include "compile/backward_here.h"
#include "graph/capture.h"
#include "graph/recorder.h"

namespace tpu::compile {

struct LoadedForm;

/// A finished graph: tensors in, tensors out, one node for the recorder. Immutable; called by any thread.
class CapturedCall {
 public:
  /// `arguments` have the sizes, strides, dtypes and device of those that the graph was captured with. Raises TypeError
  /// or RuntimeError if not. Arguments that the graph wrote to are written.
  std::vector<at::Tensor> operator()(at::TensorList arguments) const;

  /// The program as StableHLO, for a platform named as PJRT does: "tpu", "cpu".
  graph::ProgramText program(const std::string& platform, bool locations) const;
  /// Where each parameter of that program comes from: the number of an argument, or -1 for the next of `constants`.
  const std::vector<int32_t>& parameters() const { return function_.graph->sources; }
  /// The tensors from outside that the graph uses.
  std::vector<at::Tensor> constants() const;
  /// Per random operator, by how much it moves the generator's offset.
  std::vector<uint64_t> random_blocks() const;
  /// Per result, which output of the program it is; -1 for one that the program does not make.
  std::vector<int64_t> results() const;
  /// The arguments that the graph wrote to. Their new values are the outputs after the results.
  std::vector<int64_t> written() const;

 private:
  friend class ControlFlowCall;
  friend class GraphCapture;
  friend std::shared_ptr<const CapturedCall> load_program(LoadedForm form, c10::DeviceIndex device);

  struct Argument {
    c10::SmallVector<int64_t, 5> sizes, strides;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    TensorType base;
    std::shared_ptr<const Bounds> bounds;
    std::optional<size_t> written;  // output of the plan that is its new value
  };
  struct Result {
    enum class Kind : uint8_t { kMade, kEmpty, kArgument, kConstant };
    Kind kind = Kind::kConstant;
    size_t source = 0;  // storage or argument
    c10::SmallVector<int64_t, 5> sizes, strides;
    int64_t offset = 0;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    bool conj = false, neg = false;  // what is stored is the conjugate, or the negative
    at::Tensor constant;
  };

  bool is_as_wanted(const Argument& wanted, const at::Tensor& given, const runtime::Value& value) const;
  at::Tensor dense_copy(const Argument& wanted, const at::Tensor& given) const;
  /// `given`, or a copy of it that is stored as wanted.
  at::Tensor fitting(const Argument& wanted, const at::Tensor& given) const;
  void check(size_t number, const at::Tensor& given) const;
  at::Tensor view(const Result& result, const at::Tensor& base) const;

  c10::DeviceIndex device_;
  graph::CapturedFunction function_;
  std::shared_ptr<graph::Program> loaded_;  // set where the text came from elsewhere and the plan has no body
  std::vector<Argument> arguments_;
  std::vector<size_t> storages_;          // bytes of each new storage; the first outputs of the plan
  std::vector<graph::OutputForm> forms_;  // of all outputs
  std::vector<Result> results_;
};

/// A capture in progress on the calling thread. Reading a value, and whatever else needs one, raises RuntimeError.
class GraphCapture {
 public:
  /// `fixed_sizes`: the graph's program takes and gives arrays of just the sizes that the tensors have.
  explicit GraphCapture(c10::DeviceIndex device, bool fixed_sizes = false) : device_(device), capture_(device) {
    if (fixed_sizes) fixed_sizes_.emplace();
  }

  /// The sizes of dims that change, with what they are stored in. Said before the arguments.
  void set_sizes(std::span<const std::pair<int64_t, int64_t>> sizes_and_bounds) {
    capture_.set_sizes(sizes_and_bounds);
  }
  /// A tensor that stands for the next argument. `changing` has a bit per dim whose size is another in other captures
  /// of the same graph: they share programs then.
  at::Tensor argument(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype, uint64_t changing);
  /// Ends the capture with the graph's results. Undefined tensors stay undefined. `again` as CallCapture::finish.
  std::shared_ptr<const CapturedCall> finish(at::TensorList results, bool again);
  /// Why something that was called could not be captured; empty while all could.
  const std::string& blocked() const { return capture_.blocked(); }

 private:
  const c10::DeviceIndex device_;
  const BackwardHere backward_here_;
  std::optional<aten::FixedSizes> fixed_sizes_;
  graph::CallCapture capture_;
  struct Argument {
    at::Tensor tensor;
    runtime::ValueRef value;
  };
  std::vector<Argument> arguments_;
};

}  // namespace tpu::compile
