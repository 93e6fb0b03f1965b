#include "tensor_file.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace {

using nlohmann::json;
using tpu::DType;

static_assert(std::endian::native == std::endian::little, "the format is little-endian, as is all that is read here");

constexpr std::pair<const char*, DType> kDTypes[] = {
    {"BOOL", DType::kBool},      {"I8", DType::kS8},
    {"I16", DType::kS16},        {"I32", DType::kS32},
    {"I64", DType::kS64},        {"U8", DType::kU8},
    {"U16", DType::kU16},        {"U32", DType::kU32},
    {"U64", DType::kU64},        {"F16", DType::kF16},
    {"BF16", DType::kBF16},      {"F32", DType::kF32},
    {"F64", DType::kF64},        {"F8_E4M3", DType::kF8E4M3FN},
    {"F8_E5M2", DType::kF8E5M2}, {"C64", DType::kC64},
};

DType dtype_of(const std::string& name) {
  for (const auto& [known, dtype] : kDTypes) {
    if (name == known) return dtype;
  }
  throw std::runtime_error("unknown dtype " + name);
}

const char* name_of(DType dtype) {
  for (const auto& [name, known] : kDTypes) {
    if (dtype == known) return name;
  }
  throw std::runtime_error("files of tensors have no dtype " + std::string(tpu::torch_name(dtype)));
}

// Of a tensor, if that is at most `limit`: the sizes are anybody's, and their product need not fit a number.
uint64_t bytes_of(const tpu::TensorType& type, uint64_t limit) {
  const bool none = std::any_of(type.dims.begin(), type.dims.end(), [](int64_t size) { return size == 0; });
  uint64_t bytes = none ? 0 : tpu::byte_size(type.dtype);
  for (int64_t size : type.dims) {
    if (size < 0 || (!none && bytes > limit / static_cast<uint64_t>(size)))
      throw std::runtime_error("impossible sizes");
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

}  // namespace

TensorFileReader::TensorFileReader(const std::filesystem::path& path) : path_(path), file_(path, std::ios::binary) {
  try {
    if (!file_) throw std::runtime_error("cannot be opened");
    const uint64_t file_bytes = std::filesystem::file_size(path);
    uint64_t header_bytes = 0;
    file_.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
    if (!file_ || header_bytes > file_bytes - sizeof(header_bytes)) throw std::runtime_error("has no whole header");
    std::string header(header_bytes, '\0');
    file_.read(header.data(), static_cast<std::streamsize>(header_bytes));
    const uint64_t data = sizeof(header_bytes) + header_bytes;
    const json parsed = json::parse(header);
    for (const auto& [name, value] : parsed.items()) {
      if (name == "__metadata__") continue;
      Entry entry;
      entry.type.dtype = dtype_of(value.at("dtype").get<std::string>());
      for (const json& size : value.at("shape")) entry.type.dims.push_back(size.get<int64_t>());
      const auto begin = value.at("data_offsets").at(0).get<uint64_t>();
      const auto end = value.at("data_offsets").at(1).get<uint64_t>();
      if (begin > end || end > file_bytes - data || end - begin != bytes_of(entry.type, file_bytes)) {
        throw std::runtime_error(name + " does not lie where the header says");
      }
      entry.begin = data + begin;
      entries_.emplace(name, std::move(entry));
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(path.string() + ": " + error.what());
  }
}

const TensorFileReader::Entry& TensorFileReader::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw std::runtime_error(path_.string() + " has no tensor " + name);
  return found->second;
}

HostTensor TensorFileReader::read(const std::string& name) {
  const Entry& wanted = entry(name);
  HostTensor tensor{wanted.type, std::vector<char>(wanted.type.bytes())};
  file_.seekg(static_cast<std::streamoff>(wanted.begin));
  file_.read(tensor.bytes.data(), static_cast<std::streamsize>(tensor.bytes.size()));
  if (!file_) throw std::runtime_error(path_.string() + ": " + name + " cannot be read");
  return tensor;
}

void write_tensor_file(const std::filesystem::path& path, const std::map<std::string, HostTensor>& tensors) {
  json header = json::object();
  uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t begin = end;
    end += tensor.bytes.size();
    header[name] = {{"dtype", name_of(tensor.type.dtype)},
                    {"shape", std::vector<int64_t>(tensor.type.dims.begin(), tensor.type.dims.end())},
                    {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the tensors are aligned
  const uint64_t header_bytes = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& [name, tensor] : tensors) {
    file.write(tensor.bytes.data(), static_cast<std::streamsize>(tensor.bytes.size()));
  }
  file.close();
  if (!file) throw std::runtime_error(path.string() + " cannot be written");
}
