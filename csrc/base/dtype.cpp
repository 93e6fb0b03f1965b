#include "base/dtype.h"

#include <array>

namespace tpu {
namespace {

struct Entry {
  size_t bytes;
  std::string_view mlir;
  std::string_view torch;
};

constexpr std::array<Entry, kDTypeCount> kEntries = {{
    {1, "i1", "bool"},
    {1, "i8", "int8"},
    {2, "i16", "int16"},
    {4, "i32", "int32"},
    {8, "i64", "int64"},
    {1, "ui8", "uint8"},
    {2, "ui16", "uint16"},
    {4, "ui32", "uint32"},
    {8, "ui64", "uint64"},
    {2, "f16", "float16"},
    {2, "bf16", "bfloat16"},
    {4, "f32", "float32"},
    {8, "f64", "float64"},
    {8, "complex<f32>", "complex64"},
    {16, "complex<f64>", "complex128"},
    {1, "f8E4M3FN", "float8_e4m3fn"},
    {1, "f8E5M2", "float8_e5m2"},
    {1, "f8E4M3FNUZ", "float8_e4m3fnuz"},
    {1, "f8E5M2FNUZ", "float8_e5m2fnuz"},
}};

const Entry& entry(DType dtype) { return kEntries[static_cast<size_t>(dtype)]; }

}  // namespace

size_t byte_size(DType dtype) { return entry(dtype).bytes; }
std::string_view mlir_name(DType dtype) { return entry(dtype).mlir; }
std::string_view torch_name(DType dtype) { return entry(dtype).torch; }

bool is_floating(DType dtype) { return (dtype >= DType::kF16 && dtype <= DType::kF64) || dtype >= DType::kF8E4M3FN; }
bool is_complex(DType dtype) { return dtype == DType::kC64 || dtype == DType::kC128; }
bool is_signed_integer(DType dtype) { return dtype >= DType::kS8 && dtype <= DType::kS64; }
bool is_unsigned_integer(DType dtype) { return dtype >= DType::kU8 && dtype <= DType::kU64; }

DType compute_type(DType dtype) {
  const bool narrow = is_floating(dtype) && byte_size(dtype) < 4;
  return narrow ? DType::kF32 : dtype;
}

DType real_type(DType dtype) {
  if (dtype == DType::kC64) return DType::kF32;
  if (dtype == DType::kC128) return DType::kF64;
  return dtype;
}

}  // namespace tpu
