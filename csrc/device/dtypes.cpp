#include "device/dtypes.h"

#include <c10/util/Exception.h>

#include <array>
#include <optional>

namespace tpu::device {
namespace {

constexpr std::array<c10::ScalarType, kDTypeCount> kScalarTypes = {
    c10::ScalarType::Bool,           c10::ScalarType::Char,
    c10::ScalarType::Short,          c10::ScalarType::Int,
    c10::ScalarType::Long,           c10::ScalarType::Byte,
    c10::ScalarType::UInt16,         c10::ScalarType::UInt32,
    c10::ScalarType::UInt64,         c10::ScalarType::Half,
    c10::ScalarType::BFloat16,       c10::ScalarType::Float,
    c10::ScalarType::Double,         c10::ScalarType::ComplexFloat,
    c10::ScalarType::ComplexDouble,  c10::ScalarType::Float8_e4m3fn,
    c10::ScalarType::Float8_e5m2,    c10::ScalarType::Float8_e4m3fnuz,
    c10::ScalarType::Float8_e5m2fnuz};

constexpr int kUnsupported = -1;

constexpr auto kFromScalarType = [] {
  std::array<int, static_cast<size_t>(c10::ScalarType::NumOptions) + 1> table{};
  table.fill(kUnsupported);
  for (size_t i = 0; i < kScalarTypes.size(); ++i) table[static_cast<size_t>(kScalarTypes[i])] = static_cast<int>(i);
  return table;
}();

}  // namespace

DType to_dtype(c10::ScalarType type) {
  const int index = kFromScalarType[static_cast<size_t>(type)];
  TORCH_CHECK_TYPE(index != kUnsupported, "dtype ", c10::toString(type), " is not supported on the tpu device");
  return static_cast<DType>(index);
}

c10::ScalarType to_scalar_type(DType dtype) { return kScalarTypes[static_cast<size_t>(dtype)]; }

bool supports(c10::ScalarType type) { return kFromScalarType[static_cast<size_t>(type)] != kUnsupported; }

}  // namespace tpu::device
