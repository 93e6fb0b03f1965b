// torch.accelerator.Graph on this device. Torch 2.13 is the first to have it.

#if __has_include(<ATen/core/GraphImplInterface.h>)

#include <ATen/core/GraphImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <fstream>

#include "compile/slot_graph.h"

namespace at {
namespace {

using tpu::compile::ReplayGraph;

/// A capture is of the calling thread, in all modes. Memory is the plugin's: a pool is a name.
class GraphImpl final : public GraphImplInterface {
 public:
  explicit GraphImpl(const GraphImplArgs& args) : keep_graph_(args.keep_graph) {}

  void capture_begin(MempoolId_t pool, GraphCaptureMode) override {
    graph_.capture_begin();
    static std::atomic<uint64_t> next{1};
    pool_ = pool == MempoolId_t{0, 0} ? MempoolId_t{0, next++} : pool;
  }
  void capture_end() override { graph_.capture_end(); }
  void instantiate() override {
    TORCH_CHECK(graph_.captured(), "instantiate() of a graph without a successful capture");
    TORCH_CHECK(keep_graph_, "instantiate() is for graphs made with keep_graph=True");
  }
  void replay() override { graph_.replay(); }
  void reset() override { graph_.reset(); }
  MempoolId_t pool() const override {
    TORCH_CHECK(graph_.captured(), "pool() of a graph without a successful capture");
    return pool_;
  }
  void enable_debug_mode() override { debug_ = true; }
  void debug_dump(const std::string& path) override {
    TORCH_CHECK(graph_.captured(), "debug_dump() of a graph without a successful capture");
    if (!debug_ && !keep_graph_) {
      TORCH_WARN("debug_dump() does nothing before enable_debug_mode()");
      return;
    }
    std::ofstream file(path);
    file << graph_.text(/*locations=*/true);
    file.close();
    TORCH_CHECK(file.good(), "debug_dump(): ", path, " cannot be written");
  }

 private:
  const bool keep_graph_;
  bool debug_ = false;
  MempoolId_t pool_{0, 0};
  ReplayGraph graph_;
};

C10_REGISTER_CLASS(GraphImplRegistry, TPU, GraphImpl)

}  // namespace
}  // namespace at

#endif
