#include "program_types.h"

#include <cstdlib>
#include <map>
#include <sstream>

namespace fake_pjrt {
namespace {

size_t element_bytes(const std::string& name) {
  static const std::map<std::string, size_t> kSizes = {
      {"i1", 1},  {"i8", 1},   {"ui8", 1}, {"i16", 2},          {"ui16", 2},
      {"i32", 4}, {"ui32", 4}, {"i64", 8}, {"ui64", 8},         {"bf16", 2},
      {"f16", 2}, {"f32", 4},  {"f64", 8}, {"complex<f32>", 8}, {"complex<f64>", 16}};
  const auto found = kSizes.find(name);
  if (found != kSizes.end()) return found->second;
  if (name.starts_with("f8")) return 1;
  std::abort();
}

// "2x3xf32"
ArrayType parse(const std::string& text) {
  ArrayType type;
  size_t count = 1, at = 0;
  while (text[at] >= '0' && text[at] <= '9') {
    const size_t end = text.find('x', at);
    type.dims.push_back(std::stoll(text.substr(at, end - at)));
    count *= static_cast<size_t>(type.dims.back());
    at = end + 1;
  }
  type.bytes = count * element_bytes(text.substr(at));
  return type;
}

}  // namespace

std::vector<ArrayType> result_types(const std::string& program) {
  constexpr char kOpen[] = "tensor<";
  const size_t main = program.find("@main(");
  if (main == std::string::npos) std::abort();
  const size_t end = program.find('\n', main);
  std::vector<ArrayType> types;
  for (size_t at = program.find(kOpen, program.find(") -> (", main)); at < end; at = program.find(kOpen, at)) {
    at += sizeof kOpen - 1;
    size_t close = at;  // of "complex<f32>>" the last
    for (int depth = 1; (depth += (program[close] == '<') - (program[close] == '>')) != 0;) ++close;
    types.push_back(parse(program.substr(at, close - at)));
  }
  return types;
}

}  // namespace fake_pjrt
