#include "aten/fallback.h"

#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "base/env.h"
#include "base/location.h"
#include "device/errors.h"
#include "graph/policy.h"

namespace tpu::aten {
namespace {

std::mutex counter_mutex;
std::map<std::string, int64_t>& counters() {
  static auto* const map = new std::map<std::string, int64_t>;
  return *map;
}

Decomposer& decomposer() {
  static auto* const function = new Decomposer;
  return *function;
}

std::atomic<HostFallback>& stored_mode() {
  static std::atomic<HostFallback> mode = [] {
    const std::string text = env::text(env::kHostFallback).value_or("warn");
    try {
      return parse_host_fallback(text);
    } catch (const Error& error) {
      throw Error(error.code(), std::string(env::kHostFallback) + ": " + error.what());
    }
  }();
  return mode;
}

// Operators that this thread decomposes at the moment. One that arrives at itself has no decomposition: PyTorch's
// functional form of a structured operator makes empty tensors and calls the out= form, which we make of the
// functional form.
thread_local std::vector<c10::OperatorName> decomposing;

class Decomposing {
 public:
  explicit Decomposing(const c10::OperatorName& name) { decomposing.push_back(name); }
  Decomposing(const Decomposing&) = delete;
  Decomposing& operator=(const Decomposing&) = delete;
  ~Decomposing() { decomposing.pop_back(); }
};

bool run_decomposed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::OperatorName& name = op.operator_name();
  if (std::find(decomposing.begin(), decomposing.end(), name) != decomposing.end()) return false;
  const Decomposing in_progress(name);
  const TapeKey key(torch::jit::last(*stack, op.schema().arguments().size()));
  const graph::OperatorScope scope(key.device());
  if (const std::shared_ptr<const Tape> tape = find_tape(op, key)) {
    replay(*tape, op, stack);
    return true;
  }
  if (!wants_tape(op, key)) return decomposer()(op, stack, nullptr);
  TapeRecorder recorder(torch::jit::last(*stack, op.schema().arguments().size()));
  if (!decomposer()(op, stack, &recorder)) return false;
  const size_t results = op.schema().returns().size();
  keep_tape(op, key, recorder.finish(torch::jit::last(*stack, results)));
  return true;
}

std::string full_name(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// Operators that make tensors which no device of ours stores: their results could not come back from the host.
struct Unstored {
  const char* prefix;
  const char* what;
};
constexpr Unstored kUnstored[] = {
    {"aten::_to_sparse", "a sparse tensor"},
    {"aten::_spdiags", "a sparse tensor"},
    {"aten::quantize_per_", "a quantized tensor"},
    {"aten::_make_per_", "a quantized tensor"},
    {"aten::_empty_affine_quantized", "a quantized tensor"},
    {"aten::_empty_per_channel_affine_quantized", "a quantized tensor"},
    {"aten::_nested_from_padded", "a nested tensor"},
    {"aten::_nested_tensor_from_mask", "a nested tensor"},
    {"aten::_nested_view_from_buffer", "a nested tensor"},
    {"aten::to_mkldnn", "an MKLDNN tensor"},
};

std::string called_at() {
  const std::string where = describe(capture_location());
  return where.empty() ? "" : " (called at " + where + ")";
}

void refuse_unstored(const std::string& name) {
  for (const Unstored& kind : kUnstored) {
    TORCH_CHECK_NOT_IMPLEMENTED(!name.starts_with(kind.prefix), "The operator '", name, "' makes ", kind.what,
                                called_at(),
                                ". The tpu device stores dense tensors only: keep the tensor dense, or "
                                "make the other one on the CPU, of x.cpu().");
  }
}

}  // namespace

HostFallback host_fallback_mode() { return stored_mode().load(); }
void set_host_fallback_mode(HostFallback mode) { stored_mode().store(mode); }

HostFallback parse_host_fallback(const std::string& text) {
  if (text == "warn") return HostFallback::kWarn;
  if (text == "error") return HostFallback::kError;
  if (text == "silent") return HostFallback::kSilent;
  throw Error(Code::kValue, "host fallback mode must be 'warn', 'error' or 'silent', got '" + text + "'");
}

std::string to_string(HostFallback mode) {
  return mode == HostFallback::kWarn ? "warn" : mode == HostFallback::kError ? "error" : "silent";
}

std::map<std::string, int64_t> host_fallbacks() {
  std::lock_guard lock(counter_mutex);
  return counters();
}

void reset_host_fallbacks() {
  std::lock_guard lock(counter_mutex);
  counters().clear();
}

void set_decomposer(Decomposer function) { decomposer() = std::move(function); }

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = full_name(op);
  refuse_unstored(name);
  const HostFallback mode = device::translate([] { return host_fallback_mode(); });
  const std::string where = describe(capture_location());
  TORCH_CHECK_NOT_IMPLEMENTED(
      mode != HostFallback::kError, "The operator '", name, "' is not implemented for the tpu device",
      where.empty() ? "" : " (called at ", where, where.empty() ? "" : ")",
      ", and TORCH_TPU_HOST_FALLBACK=error forbids running it on the host. Set TORCH_TPU_HOST_FALLBACK=warn to allow "
      "that, at the cost of copies to and from the host.");
  {
    std::lock_guard lock(counter_mutex);
    const bool first = ++counters()[name] == 1;
    if (first && mode == HostFallback::kWarn) {
      TORCH_WARN("The operator '", name, "' is not implemented for the tpu device and runs on the host",
                 where.empty() ? "" : ", first at ", where,
                 ". This copies its tensors and waits for the device; torch_tpu.host_fallbacks() counts such calls.");
    }
  }
  at::native::cpu_fallback(op, stack);
}

void refuse_layout(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack*) {
  const bool quantized = keys.has(c10::DispatchKey::Quantized);
  const bool nested = keys.has(c10::DispatchKey::NestedTensor);
  TORCH_CHECK_NOT_IMPLEMENTED(false, "The operator '", full_name(op), "' got a ",
                              quantized ? "quantized"
                              : nested  ? "nested"
                                        : "sparse",
                              " tensor on the tpu device", called_at(),
                              ", which computes with dense ones only: use x.to_dense() or "
                              "x.dequantize() on the CPU first, or compute it there, with x.cpu().");
}

void run_without_row(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (decomposer() && run_decomposed(op, stack)) return;
  run_on_host(op, stack);
}

void resize_output(const at::Tensor& out, c10::IntArrayRef sizes) { at::native::resize_output(out, sizes); }

}  // namespace tpu::aten
