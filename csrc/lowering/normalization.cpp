#include "lowering/table.h"

namespace tpu::lowering {

std::span<const Row> normalization_rows() { return {}; }

}  // namespace tpu::lowering
