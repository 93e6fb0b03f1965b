// The bytes of CompileOptionsProto.

#include <gtest/gtest.h>

#include "pjrt/client.h"
#include "pjrt/proto.h"

namespace tpu::pjrt {
namespace {

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

// Field 3 with device_ordinal -1 (ten bytes), one replica, one partition.
constexpr char kBuildOptions[] = "1a0f08ffffffffffffffffff0120012801";

TEST(CompileOptionsTest, DefaultIsPortable) {
  EXPECT_EQ(hex(CompileOptions{}.encode()), std::string(kBuildOptions) + "2001");
}

TEST(CompileOptionsTest, NotPortable) {
  CompileOptions options;
  options.portable = false;
  EXPECT_EQ(hex(options.encode()), kBuildOptions);
}

TEST(CompileOptionsTest, ReplicasCannotBePortable) {
  CompileOptions options;
  options.replicas = 300;
  EXPECT_EQ(hex(options.encode()), "1a1008ffffffffffffffffff0120ac022801");
}

TEST(CompileOptionsTest, PartitionsUseShardy) {
  CompileOptions options;
  options.partitions = 2;
  EXPECT_EQ(hex(options.encode()), "1a1408ffffffffffffffffff01200128023001980101");
}

TEST(CompileOptionsTest, OverridesOfEveryKind) {
  CompileOptions options;
  options.overrides = {{"b", true}, {"d", 1.5}, {"i", int64_t{-1}}, {"s", std::string("xy")}};
  EXPECT_EQ(hex(options.encode()), std::string(kBuildOptions) + "2001" +  // the default
                                       "3a07"
                                       "0a0162"
                                       "12021001" +  // b: true
                                       "3a0e"
                                       "0a0164"
                                       "120921000000000000f83f" +  // d: 1.5
                                       "3a10"
                                       "0a0169"
                                       "120b18ffffffffffffffffff01" +  // i: -1
                                       "3a09"
                                       "0a0173"
                                       "12040a027879");  // s: "xy"
}

TEST(CompileOptionsTest, CountsBelowOneAreRefused) {
  CompileOptions options;
  options.replicas = 0;
  EXPECT_THROW(options.encode(), Error);
  options.replicas = 1;
  options.partitions = -1;
  EXPECT_THROW(options.encode(), Error);
}

}  // namespace
}  // namespace tpu::pjrt
