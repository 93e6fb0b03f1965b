#include "lowering/table.h"

namespace tpu::lowering {

std::span<const Row> loss_rows() { return {}; }

}  // namespace tpu::lowering
