#pragma once
// The types that a module's text gives its main function: for text from a file, which need not fit what else is known
// of it.

#include <string_view>
#include <vector>

#include "base/tensor_type.h"

namespace tpu::stablehlo {

struct ProgramTypes {
  std::vector<TensorType> parameters, results;

  friend bool operator==(const ProgramTypes&, const ProgramTypes&) = default;
};

/// Reads the first line of `main`, as Builder::finish prints it. Error{kValue} where there is none.
ProgramTypes program_types(std::string_view text);

/// "(float32[2, 3], int64[]) -> (float32[])", for messages.
std::string to_string(const ProgramTypes& types);

}  // namespace tpu::stablehlo
