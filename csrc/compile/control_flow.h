#pragma once
// torch.cond, while_loop, scan and map whose functions were captured: one node, whatever it will compute.

#include <memory>
#include <string>
#include <vector>

#include "compile/captured_call.h"

namespace tpu::compile {

/// A function of such an operator. It was captured with fixed sizes, writes to no argument, and makes all of its
/// results, each in memory of its own, dense. It draws random numbers only as the body of a scan.
using Part = std::shared_ptr<const CapturedCall>;

/// What `on_true` gives for the operands where `predicate`, a bool of one element, is true, else what `on_false` gives.
/// Both give results of the same sizes, strides and dtypes.
std::vector<at::Tensor> branch(const at::Tensor& predicate, const Part& on_true, const Part& on_false,
                               at::TensorList operands);

/// The carried tensors, replaced by what `body` makes of them as long as `condition`, which gives a 0-d bool, is true
/// of them. Both take the carried tensors, then the others; `body` gives tensors like the carried ones.
std::vector<at::Tensor> while_loop(const Part& condition, const Part& body, at::TensorList carried,
                                   at::TensorList others);

/// `body` for each slice along dim 0 of `sliced`, at least one tensor. It takes the carried tensors, a slice of each
/// sliced one, then the others, and gives new carried ones, then slices of results. Returns the last carried tensors,
/// then the results, whose first dim is the one of `sliced`. `name` is for messages.
std::vector<at::Tensor> scan(const std::string& name, const Part& body, at::TensorList carried, at::TensorList sliced,
                             at::TensorList others);

/// Throws: what this thread captures cannot be captured, for `reason`. Nothing where it captures nothing.
void refuse_capture(const std::string& reason);

}  // namespace tpu::compile
