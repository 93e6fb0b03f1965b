#pragma once
// What the Neuron compiler does not take of a program: found in the text that Builder::finish() printed, before a
// compile that may take minutes. After AWS's documentation of neuronx-cc ("NCC" error codes and the supported
// operators of the XLA front end), in the form of one rule for each kind of refusal.

#include <string>
#include <vector>

namespace tpu::stablehlo {

/// Reasons, without repeats, in alphabetical order; empty for a program that breaks none of the rules:
///   "64-bit constant"          an integer literal that does not fit into 32 bits
///   "64-bit shift" and so on   an arithmetic shift to the right of other than 32 bits
///   "complex", "float64"       types without an implementation
///   "conditional"              if, case
///   "data-dependent loop"      a while loop that is no count from one constant to another
///   "dilated window"           reduce_window with a base or window dilation
///   "integer power", "integer product", "integer scatter", "integer top-k"   exact only up to 24 bits, if at all
///   "random bits"              the compiler's own generator, other than its default
///   "sort comparator"          anything but one LE, GE, LT or GT of the keys
///   "variadic reduction"       reduce or reduce_window of several arrays at once
std::vector<std::string> neuron_refusals(const std::string& program);

}  // namespace tpu::stablehlo
