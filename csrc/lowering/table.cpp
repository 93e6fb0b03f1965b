#include "lowering/table.h"

#include <algorithm>

namespace tpu::lowering {
namespace {

using Family = std::span<const Row> (*)();

constexpr Family kFamilies[] = {
    elementwise_rows, reduction_rows,     normalization_rows, linear_algebra_rows, attention_rows,  convolution_rows,
    pooling_rows,     interpolation_rows, indexing_rows,      sorting_rows,        shape_rows,      padding_rows,
    creation_rows,    random_rows,        optimizer_rows,     loss_rows,           activation_rows, fft_rows,
};

std::vector<Row> sorted_rows() {
  std::vector<Row> rows;
  for (const Family family : kFamilies) {
    const auto part = family();
    rows.insert(rows.end(), part.begin(), part.end());
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.name < b.name; });
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].name == rows[i - 1].name) {
      throw Error(Code::kInternal, "two lowering rows are named " + std::string(rows[i].name));
    }
  }
  return rows;
}

}  // namespace

std::span<const Row> table() {
  static const std::vector<Row> rows = sorted_rows();
  return rows;
}

const Row* find(std::string_view name) {
  const auto rows = table();
  const auto at = std::lower_bound(rows.begin(), rows.end(), name,
                                   [](const Row& row, std::string_view wanted) { return row.name < wanted; });
  return at != rows.end() && at->name == name ? &*at : nullptr;
}

}  // namespace tpu::lowering
