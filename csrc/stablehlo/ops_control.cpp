// Control flow, barriers and custom calls.

#include "base/error.h"
#include "stablehlo/emit.h"
#include "stablehlo/ops.h"

namespace tpu::stablehlo {
namespace {

std::vector<TensorType> types_of(std::span<const Value> values) {
  std::vector<TensorType> types;
  for (Value value : values) types.push_back(value.type());
  return types;
}

// A branch whose yields are checked against the operation's results.
std::string branch_region(Builder& builder, const char* op, const Region& branch, std::span<const TensorType> results) {
  return builder.region({}, [&](std::span<const Value> arguments) {
    auto yielded = branch(arguments);
    bool matches = yielded.size() == results.size();
    for (size_t i = 0; matches && i < results.size(); ++i) matches = yielded[i].type() == results[i];
    check(matches, op, "a branch yields other types than the results'", yielded);
    return yielded;
  });
}

}  // namespace

std::vector<Value> while_loop(std::span<const Value> init, const Region& condition, const Region& body) {
  check(!init.empty(), "while", "needs a loop-carried value", init);
  Builder& builder = init[0].builder();
  const auto types = types_of(init);
  const std::string regions[] = {
      builder.region(types, condition),
      builder.region(types,
                     [&](std::span<const Value> arguments) {
                       auto yielded = body(arguments);
                       check(types_of(yielded) == types, "while", "the body yields other types than it takes", yielded);
                       return yielded;
                     }),
  };
  return emit_generic(builder, "while", init, "", types, join_regions(regions));
}

std::vector<Value> if_else(Value predicate, const Region& on_true, const Region& on_false,
                           std::span<const TensorType> results) {
  check(predicate.dtype() == DType::kBool && predicate.rank() == 0, "if", "the predicate must be a 0-d i1",
        {predicate});
  Builder& builder = predicate.builder();
  const std::string regions[] = {branch_region(builder, "if", on_true, results),
                                 branch_region(builder, "if", on_false, results)};
  return emit_generic(builder, "if", {&predicate, 1}, "", results, join_regions(regions));
}

std::vector<Value> case_of(Value index, std::span<const Region> branches, std::span<const TensorType> results) {
  check(index.dtype() == DType::kS32 && index.rank() == 0, "case", "the index must be a 0-d i32", {index});
  check(!branches.empty(), "case", "needs a branch", {index});
  Builder& builder = index.builder();
  std::vector<std::string> regions;
  for (const Region& branch : branches) regions.push_back(branch_region(builder, "case", branch, results));
  return emit_generic(builder, "case", {&index, 1}, "", results, join_regions(regions));
}

std::vector<Value> optimization_barrier(std::span<const Value> values) {
  if (values.empty()) return {};
  return emit_generic(values[0].builder(), "optimization_barrier", values, "", types_of(values));
}

}  // namespace tpu::stablehlo
