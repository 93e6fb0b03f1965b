// Field numbers of xla.CompileOptionsProto and the messages inside it.

#include "pjrt/client.h"
#include "pjrt/proto.h"

namespace tpu::pjrt {
namespace {

// CompileOptionsProto
constexpr int kBuildOptions = 3;
constexpr int kPortable = 4;
constexpr int kOverrides = 7;  // map<string, OptionOverrideProto>

// ExecutableBuildOptionsProto
constexpr int kDeviceOrdinal = 1;
constexpr int kReplicas = 4;
constexpr int kPartitions = 5;
constexpr int kUseSpmd = 6;
constexpr int kUseShardy = 19;

// A map entry
constexpr int kKey = 1;
constexpr int kValue = 2;

// OptionOverrideProto
constexpr int kString = 1;
constexpr int kBool = 2;
constexpr int kInteger = 3;
constexpr int kReal = 4;

constexpr int kAnyDevice = -1;

std::string encode_override(const std::variant<std::string, bool, int64_t, double>& value) {
  ProtoWriter writer;
  if (const auto* text = std::get_if<std::string>(&value)) {
    writer.text(kString, *text);
  } else if (const auto* flag = std::get_if<bool>(&value)) {
    writer.integer(kBool, *flag ? 1 : 0);
  } else if (const auto* number = std::get_if<int64_t>(&value)) {
    writer.integer(kInteger, *number);
  } else {
    writer.real(kReal, std::get<double>(value));
  }
  return writer.bytes();
}

}  // namespace

std::string CompileOptions::encode() const {
  if (replicas < 1 || partitions < 1) {
    throw Error(Code::kValue, "a program needs at least one replica and one partition, not " +
                                  std::to_string(replicas) + " and " + std::to_string(partitions));
  }
  ProtoWriter build;
  build.integer(kDeviceOrdinal, kAnyDevice).integer(kReplicas, replicas).integer(kPartitions, partitions);
  if (partitions > 1) build.integer(kUseSpmd, 1).integer(kUseShardy, 1);

  ProtoWriter options;
  options.text(kBuildOptions, build.bytes());
  // Only a program for one device can be moved to another one.
  if (portable && replicas * partitions == 1) options.integer(kPortable, 1);
  for (const auto& [name, value] : overrides) {
    options.text(kOverrides, ProtoWriter().text(kKey, name).text(kValue, encode_override(value)).bytes());
  }
  return options.bytes();
}

}  // namespace tpu::pjrt
