#pragma once
// Text of constants: every value is spelled so that the compiler reads back exactly the intended bits.
// Short exact decimals are used where there is one, bit patterns otherwise.

#include <complex>
#include <cstdint>
#include <string>

#include "base/dtype.h"

namespace tpu::stablehlo {

/// Appends `value` converted to `dtype` as PyTorch converts a Python number (narrow floats round through
/// float32). Error{kInternal} when an integer type cannot hold the value.
void append_literal(std::string& text, double value, DType dtype);
void append_literal(std::string& text, int64_t value, DType dtype);
void append_literal(std::string& text, std::complex<double> value, DType dtype);

}  // namespace tpu::stablehlo
