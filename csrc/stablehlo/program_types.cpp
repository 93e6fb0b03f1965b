#include "stablehlo/program_types.h"

#include <charconv>
#include <string>

#include "base/error.h"

namespace tpu::stablehlo {
namespace {

[[noreturn]] void refuse(std::string_view what) {
  throw Error(Code::kValue, "this is no StableHLO program of torch_tpu: " + std::string(what));
}

// "2x3xf32"
TensorType parse_type(std::string_view text) {
  TensorType type;
  std::string_view rest = text;
  while (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
    if (error != std::errc() || end == rest.data() + rest.size() || *end != 'x') refuse("type " + std::string(text));
    type.dims.push_back(size);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()) + 1);
  }
  for (int number = 0; number < kDTypeCount; ++number) {
    type.dtype = static_cast<DType>(number);
    if (mlir_name(type.dtype) == rest) return type;
  }
  refuse("type " + std::string(text));
}

std::vector<TensorType> parse_types(std::string_view text) {
  constexpr std::string_view kOpen = "tensor<";
  std::vector<TensorType> types;
  for (size_t at = text.find(kOpen); at != std::string_view::npos; at = text.find(kOpen, at)) {
    at += kOpen.size();
    size_t end = at;  // of "complex<f32>>" the last
    for (int depth = 1; end < text.size(); ++end) {
      depth += (text[end] == '<') - (text[end] == '>');
      if (depth == 0) break;
    }
    if (end == text.size()) refuse("a type has no end");
    types.push_back(parse_type(text.substr(at, end - at)));
    at = end;
  }
  return types;
}

std::string list(const std::vector<TensorType>& types) {
  std::string text;
  for (const TensorType& type : types) text += (text.empty() ? "" : ", ") + to_string(type);
  return "(" + text + ")";
}

}  // namespace

ProgramTypes program_types(std::string_view text) {
  const size_t begin = text.find(" @main(");
  if (begin == std::string_view::npos) refuse("it has no function main");
  const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
  const size_t arrow = line.find(") -> (");
  if (arrow == std::string_view::npos) refuse("main is not written on one line with its results");
  return {parse_types(line.substr(0, arrow)), parse_types(line.substr(arrow))};
}

std::string to_string(const ProgramTypes& types) { return list(types.parameters) + " -> " + list(types.results); }

}  // namespace tpu::stablehlo
