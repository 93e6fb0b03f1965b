#include "stablehlo/literal.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace tpu::stablehlo {
namespace {

// Layout of a binary floating-point type of at most 16 bits.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_infinity;
  // "fnuz" types have one NaN, the pattern of negative zero, and no negative zero.
  bool negative_zero_is_nan;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {5, 10, 15, true, false};
    case DType::kBF16:
      return {8, 7, 127, true, false};
    case DType::kF8E5M2:
      return {5, 2, 15, true, false};
    case DType::kF8E4M3FN:
      return {4, 3, 7, false, false};
    case DType::kF8E4M3FNUZ:
      return {4, 3, 8, false, true};
    case DType::kF8E5M2FNUZ:
      return {5, 2, 16, false, true};
    default:
      throw Error(Code::kInternal, "literal: not a narrow floating-point type");
  }
}

struct Narrow {
  uint32_t bits;
  double value;  // what the bits mean; NaN and infinities included
};

Narrow nan_of(const Format& f, bool negative) {
  const int width = 1 + f.exponent_bits + f.mantissa_bits;
  const uint32_t sign = negative ? 1u << (width - 1) : 0;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (f.negative_zero_is_nan) return {1u << (width - 1), kNan};
  if (!f.has_infinity) return {sign | ((1u << (width - 1)) - 1), kNan};
  const uint32_t exponent = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
  return {sign | exponent | (1u << (f.mantissa_bits - 1)), kNan};
}

// PyTorch saturates to float8_e4m3fn and gives infinity or, without infinities, NaN elsewhere.
Narrow overflow_of(const Format& f, bool negative) {
  const uint32_t sign = negative ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
  if (f.negative_zero_is_nan) return nan_of(f, negative);
  if (!f.has_infinity) return {sign | 0x7E, negative ? -448.0 : 448.0};
  const uint32_t exponent = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
  const double infinity = std::numeric_limits<double>::infinity();
  return {sign | exponent, negative ? -infinity : infinity};
}

// Rounds to the nearest value of the format, ties to even.
Narrow narrow(double value, DType dtype) {
  const Format f = format_of(dtype);
  const bool negative = std::signbit(value);
  if (std::isnan(value)) return nan_of(f, negative);
  if (std::isinf(value)) return overflow_of(f, negative);
  const uint32_t sign = negative ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return f.negative_zero_is_nan ? Narrow{0, 0.0} : Narrow{sign, value};

  int exponent = std::max(std::ilogb(magnitude), 1 - f.bias);  // subnormals share the least exponent
  double scaled = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
  if (scaled >= std::ldexp(1.0, f.mantissa_bits + 1)) {
    scaled /= 2;
    ++exponent;
  }
  const double rounded = std::ldexp(scaled, exponent - f.mantissa_bits);
  auto mantissa = static_cast<uint32_t>(scaled);
  const uint32_t hidden = 1u << f.mantissa_bits;
  uint32_t biased = 0;
  if (mantissa >= hidden) {
    biased = static_cast<uint32_t>(exponent + f.bias);
    mantissa -= hidden;
  }
  const uint32_t top = (1u << f.exponent_bits) - 1;
  const bool reserved = f.has_infinity
                            ? biased >= top
                            : biased > top || (!f.negative_zero_is_nan && biased == top && mantissa == hidden - 1);
  if (reserved) return overflow_of(f, negative);
  if (biased == 0 && mantissa == 0)
    return f.negative_zero_is_nan ? Narrow{0, 0.0} : Narrow{sign, negative ? -0.0 : 0.0};
  return {sign | (biased << f.mantissa_bits) | mantissa, negative ? -rounded : rounded};
}

void append_hex(std::string& text, uint64_t bits, size_t bytes) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  text += "0x";
  for (int shift = static_cast<int>(bytes) * 8 - 4; shift >= 0; shift -= 4) text += kDigits[(bits >> shift) & 15];
}

// `value` is exactly representable in a type of `bytes` bytes whose pattern is `bits`. The parser reads a
// decimal as a double, so the shortest decimal of the double is exact for every narrower type too.
void append_float(std::string& text, double value, uint64_t bits, size_t bytes) {
  constexpr size_t kShort = 8;
  char buffer[32];
  if (std::isfinite(value)) {
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    const std::string_view digits(buffer, static_cast<size_t>(end - buffer));
    if (digits.size() <= kShort) {
      const size_t exponent = digits.find('e');
      const std::string_view mantissa = digits.substr(0, exponent);
      text += mantissa;
      if (mantissa.find('.') == std::string_view::npos) text += ".0";  // MLIR reads "1e5" as an integer
      if (exponent != std::string_view::npos) text += digits.substr(exponent);
      return;
    }
  }
  append_hex(text, bits, bytes);
}

int integer_bits(DType dtype) { return static_cast<int>(byte_size(dtype)) * 8; }

[[noreturn]] void out_of_range(const std::string& value, DType dtype) {
  throw Error(Code::kInternal, "constant " + value + " does not fit " + std::string(torch_name(dtype)));
}

void append_real(std::string& text, double value, DType dtype) {
  if (dtype == DType::kF64) {
    append_float(text, value, std::bit_cast<uint64_t>(value), 8);
    return;
  }
  const auto single = static_cast<float>(value);
  if (dtype == DType::kF32) {
    append_float(text, single, std::bit_cast<uint32_t>(single), 4);
    return;
  }
  const Narrow n = narrow(single, dtype);
  append_float(text, n.value, n.bits, byte_size(dtype));
}

}  // namespace

void append_literal(std::string& text, int64_t value, DType dtype) {
  if (dtype == DType::kBool) {
    text += value != 0 ? "true" : "false";
  } else if (is_integer(dtype)) {
    const int bits = integer_bits(dtype);
    bool fits = true;
    if (is_unsigned_integer(dtype)) {
      fits = value >= 0 && (bits == 64 || value < (int64_t{1} << bits));
    } else if (bits < 64) {
      fits = value >= -(int64_t{1} << (bits - 1)) && value < (int64_t{1} << (bits - 1));
    }
    if (!fits) out_of_range(std::to_string(value), dtype);
    text += std::to_string(value);
  } else if (is_complex(dtype)) {
    append_literal(text, std::complex<double>(static_cast<double>(value), 0), dtype);
  } else {
    // One rounding from the integer: large values would round twice through double.
    append_real(text, dtype == DType::kF64 ? static_cast<double>(value) : static_cast<float>(value), dtype);
  }
}

void append_literal(std::string& text, double value, DType dtype) {
  if (dtype == DType::kBool) {
    text += value != 0 ? "true" : "false";
  } else if (is_integer(dtype)) {
    constexpr double kLimit = 9223372036854775808.0;
    if (!(value >= -kLimit && value < kLimit) || value != std::trunc(value)) out_of_range(std::to_string(value), dtype);
    append_literal(text, static_cast<int64_t>(value), dtype);
  } else if (is_complex(dtype)) {
    append_literal(text, std::complex<double>(value, 0), dtype);
  } else {
    append_real(text, value, dtype);
  }
}

void append_literal(std::string& text, std::complex<double> value, DType dtype) {
  if (!is_complex(dtype)) {
    if (value.imag() != 0) out_of_range("with an imaginary part", dtype);
    append_literal(text, value.real(), dtype);
    return;
  }
  text += '(';
  append_real(text, value.real(), real_type(dtype));
  text += ", ";
  append_real(text, value.imag(), real_type(dtype));
  text += ')';
}

}  // namespace tpu::stablehlo
