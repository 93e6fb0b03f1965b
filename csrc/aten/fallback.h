#pragma once
// What happens to an operator call that no row serves: PyTorch's decomposition into operators that have
// rows; failing that the host, which warns once per operator, is counted, and can be forbidden.

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <map>
#include <string>

#include "aten/tape.h"

namespace tpu::aten {

enum class HostFallback { kWarn, kError, kSilent };

HostFallback host_fallback_mode();
void set_host_fallback_mode(HostFallback mode);
HostFallback parse_host_fallback(const std::string& text);  // Error{kValue}
std::string to_string(HostFallback mode);

/// Operators that ran on the host so far, as "aten::name.overload", and how often.
std::map<std::string, int64_t> host_fallbacks();
void reset_host_fallbacks();

/// Installed by the Python layer: runs the operator by a Python decomposition if there is one, telling `tape`
/// (which may be null) what it does. Returns false (and leaves the stack alone) if there is none.
using Decomposer = std::function<bool(const c10::OperatorHandle& op, torch::jit::Stack* stack, TapeRecorder* tape)>;
void set_decomposer(Decomposer decomposer);

/// Raises: for operators on sparse, quantized and nested tensors, which have dispatch keys of their own.
void refuse_layout(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

void run_without_row(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
/// The host alone, for kernels of ours that have no other way.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Resizes an out= tensor as PyTorch does: silently when it is empty, else with its deprecation warning.
void resize_output(const at::Tensor& out, c10::IntArrayRef sizes);

}  // namespace tpu::aten
