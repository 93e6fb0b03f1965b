#pragma once
// The types that a program's text gives its results, for a fake plugin that answers with zeros.

#include <cstdint>
#include <string>
#include <vector>

namespace fake_pjrt {

struct ArrayType {
  std::vector<int64_t> dims;
  size_t bytes = 0;  // of the whole array
};

/// Of `main`, in order. Aborts on text that is none of ours: a test is wrong.
std::vector<ArrayType> result_types(const std::string& program);

}  // namespace fake_pjrt
