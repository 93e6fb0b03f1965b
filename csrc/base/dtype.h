#pragma once
// Element types that a device value can have, with their StableHLO spelling and size in bytes.
// The list is what PJRT plugins implement; torch dtypes without an entry are refused, never narrowed.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tpu {

enum class DType : uint8_t {
  kBool,
  kS8,
  kS16,
  kS32,
  kS64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128,
  kF8E4M3FN,
  kF8E5M2,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
};
inline constexpr int kDTypeCount = 19;

/// Bytes that one element takes in memory (bool takes one byte).
size_t byte_size(DType dtype);

/// StableHLO element type: "f32", "i1", "ui8", "complex<f32>".
std::string_view mlir_name(DType dtype);

/// Name used in messages to PyTorch users: "float32", "bool", "complex64".
std::string_view torch_name(DType dtype);

bool is_floating(DType dtype);  // float8, f16, bf16, f32, f64
bool is_complex(DType dtype);
bool is_signed_integer(DType dtype);
bool is_unsigned_integer(DType dtype);  // bool is neither
inline bool is_integer(DType dtype) { return is_signed_integer(dtype) || is_unsigned_integer(dtype); }
inline bool is_integral_or_bool(DType dtype) { return is_integer(dtype) || dtype == DType::kBool; }

/// Type in which PyTorch's kernels compute for `dtype`: float32 for every narrower float, else itself.
DType compute_type(DType dtype);

/// Real type of a complex type's parts; `dtype` itself otherwise.
DType real_type(DType dtype);

}  // namespace tpu
