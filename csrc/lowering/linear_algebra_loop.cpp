#include "lowering/linear_algebra_loop.h"

namespace tpu::lowering {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

std::vector<Value> counted_loop(Value count, std::span<const Value> state, std::span<const Value> fixed,
                                const LoopBody& body) {
  Builder& builder = count.builder();
  std::vector<Value> init{scalar(builder, int64_t{0}, DType::kS32), count};
  init.insert(init.end(), state.begin(), state.end());
  init.insert(init.end(), fixed.begin(), fixed.end());
  const size_t changing = state.size();
  const auto condition = [](std::span<const Value> carried) {
    return std::vector<Value>{compare(carried[0], carried[1], Compare::kLt)};
  };
  const auto step = [&](std::span<const Value> carried) {
    const auto values = carried.subspan(2);
    std::vector<Value> next = body(carried[0], values.first(changing), values.subspan(changing));
    const Value one = scalar(carried[0].builder(), int64_t{1}, DType::kS32);
    next.insert(next.begin(), {add(carried[0], one), carried[1]});
    next.insert(next.end(), values.begin() + static_cast<ptrdiff_t>(changing), values.end());
    return next;
  };
  const std::vector<Value> last = while_loop(init, condition, step);
  return {last.begin() + 2, last.begin() + 2 + static_cast<ptrdiff_t>(changing)};
}

Value element_at(Value list, Value index) {
  const Value start[] = {index};
  return reshape(dynamic_slice(list, start, {1}), {});
}

Value index_along(Builder& builder, const Dims& sizes, int64_t axis) {
  return iota(builder, {DType::kS32, sizes}, axis);
}

}  // namespace tpu::lowering
