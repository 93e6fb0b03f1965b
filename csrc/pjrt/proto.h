#pragma once
// Writes the protobuf wire format: the few field kinds that CompileOptionsProto needs.

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace tpu::pjrt {

class ProtoWriter {
 public:
  const std::string& bytes() const { return bytes_; }

  /// Negative values take ten bytes, as int64 and int32 fields do on the wire.
  ProtoWriter& integer(int field, int64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  /// Strings, byte strings and nested messages.
  ProtoWriter& text(int field, std::string_view value) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes_.append(value);
    return *this;
  }
  ProtoWriter& real(int field, double value) {
    varint(static_cast<uint64_t>(field) << 3 | 1);
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 0; shift < 64; shift += 8) bytes_.push_back(static_cast<char>(bits >> shift & 0xff));
    return *this;
  }

 private:
  void varint(uint64_t value) {
    for (; value > 0x7f; value >>= 7) bytes_.push_back(static_cast<char>((value & 0x7f) | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

}  // namespace tpu::pjrt
