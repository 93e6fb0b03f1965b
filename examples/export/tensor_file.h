#pragma once
// Tensors in a file of the safetensors format (https://huggingface.co/docs/safetensors): the length of a header as
// eight bytes, little-endian; the header, a JSON object with dtype, shape and place of each tensor; their bytes,
// row-major.

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/tensor_type.h"

struct HostTensor {
  tpu::TensorType type;
  std::vector<char> bytes;  // row-major
};

/// Reads tensors one by one, so that a large file is never whole in memory. Not thread-safe.
class TensorFileReader {
 public:
  /// Throws std::runtime_error if the file cannot be read or its header is not as the format has it.
  explicit TensorFileReader(const std::filesystem::path& path);
  bool has(const std::string& name) const { return entries_.contains(name); }
  const tpu::TensorType& type(const std::string& name) const { return entry(name).type; }
  HostTensor read(const std::string& name);

 private:
  struct Entry {
    tpu::TensorType type;
    size_t begin = 0;  // in the file
  };
  const Entry& entry(const std::string& name) const;

  std::filesystem::path path_;
  std::ifstream file_;
  std::map<std::string, Entry> entries_;
};

/// Throws std::runtime_error if the file cannot be written, or a tensor has a dtype that the format has not.
void write_tensor_file(const std::filesystem::path& path, const std::map<std::string, HostTensor>& tensors);
