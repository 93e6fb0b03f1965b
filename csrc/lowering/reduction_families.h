#pragma once
// Rows of the files that make up the reduction, normalisation and sorting families; the families'
// exporting files concatenate them.

#include "lowering/table.h"

namespace tpu::lowering {

std::span<const Row> reduction_norm_rows();       // moments, norms, distances
std::span<const Row> reduction_scan_rows();       // cumulative operators
std::span<const Row> normalization_layer_rows();  // layer, RMS, group and weight norm
std::span<const Row> normalization_batch_rows();  // batch norm
std::span<const Row> sorting_search_rows();       // searchsorted, histograms

}  // namespace tpu::lowering
