// Expected text of whole programs, and the checks that refuse ill-typed ones.

#include "stablehlo/ops.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "stablehlo/programs.h"

namespace tpu::stablehlo {
namespace {

constexpr DType F32 = DType::kF32;

// The lines of @main's body without main's own indentation.
std::string body_of(const std::string& text) {
  std::string body = "\n";
  size_t at = text.find(") {\n") + 4;
  const size_t end = text.find("\n  }\n}\n");
  while (at < end) {
    const size_t stop = text.find('\n', at);
    body += text.substr(at + 4, stop - at - 4) + "\n";
    at = stop + 1;
  }
  return body;
}

TEST(Ops, ProgramsHaveTheExpectedText) {
  for (const Program& program : programs()) {
    const std::string text = program.build();
    EXPECT_EQ(text.rfind("module @program {\n  func.func public @main(", 0), 0u) << program.name;
    if (*program.body != '\0') EXPECT_EQ(body_of(text), program.body) << program.name;
  }
}

TEST(Ops, BuildingTwiceGivesTheSameText) {
  for (const Program& program : programs()) EXPECT_EQ(program.build(), program.build()) << program.name;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInternal);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Ops, IllTypedOperandsAreRefused) {
  Builder b;
  const Value x = b.parameter({F32, {2, 3}}), y = b.parameter({F32, {3, 2}}), n = b.parameter({DType::kS32, {2, 3}});
  EXPECT_EQ(message_of([&] { add(x, y); }),
            "stablehlo.add: operands must have one type (operands float32[2, 3], float32[3, 2])");
  EXPECT_EQ(message_of([&] { tanh(n); }), "stablehlo.tanh: wrong element type (operands int32[2, 3])");
  EXPECT_EQ(message_of([&] { add(x, Value()); }), "stablehlo: an undefined value was used");
  EXPECT_EQ(message_of([&] { reshape(x, {7}); }),
            "stablehlo.reshape: the number of elements changes (operands float32[2, 3])");
  EXPECT_EQ(message_of([&] { transpose(x, {0, 0}); }),
            "stablehlo.transpose: axes must be a permutation (operands float32[2, 3])");
  EXPECT_EQ(message_of([&] { slice(x, {0, 0}, {2, 4}, {1, 1}); }),
            "stablehlo.slice: out of bounds (operands float32[2, 3])");
  EXPECT_EQ(message_of([&] { broadcast_in_dim(x, {4, 3}, {0, 1}); }),
            "stablehlo.broadcast_in_dim: an operand dim is neither 1 nor the result's (operands float32[2, 3])");
  EXPECT_EQ(message_of([&] { reduce(x, Reducer::kAdd, {2}); }),
            "stablehlo.reduce: axes must be distinct and in range (operands float32[2, 3])");
  EXPECT_EQ(message_of([&] { dot_general(x, x, {{}, {}, {1}, {0}}, F32); }),
            "stablehlo.dot_general: paired dims differ in size (operands float32[2, 3], float32[2, 3])");
  EXPECT_EQ(message_of([&] { bitcast_convert(x, DType::kBool); }),
            "stablehlo.bitcast_convert: bool and complex cannot be reinterpreted (operands float32[2, 3])");
  EXPECT_EQ(message_of([&] { select(x, x, x); }).rfind("stablehlo.select: the predicate must be i1", 0), 0u);
}

TEST(Ops, ResultTypesFollowTheSpecification) {
  Builder b;
  const Value x = b.parameter({F32, {4, 6}}), z = b.parameter({DType::kC64, {4, 6}});
  EXPECT_EQ(abs(z).type(), (TensorType{F32, {4, 6}}));
  EXPECT_EQ(bitcast_convert(x, DType::kS16).type(), (TensorType{DType::kS16, {4, 6, 2}}));
  EXPECT_EQ(fft(x, FftKind::kRfft, {6}).type(), (TensorType{DType::kC64, {4, 4}}));
  EXPECT_EQ(reduce(x, Reducer::kAdd, {0}).type(), (TensorType{F32, {6}}));
  Window window;
  window.sizes = {3, 2};
  window.strides = {1, 2};
  window.pad_low = {1, 0};
  window.pad_high = {1, 0};
  window.window_dilations = {2, 1};
  const Value zero = b.constant(0.0, {F32, {}});
  const auto sum = [](std::span<const Value> a) { return std::vector<Value>{add(a[0], a[1])}; };
  EXPECT_EQ(reduce_window({&x, 1}, {&zero, 1}, window, sum)[0].type(), (TensorType{F32, {2, 3}}));
}

}  // namespace
}  // namespace tpu::stablehlo
