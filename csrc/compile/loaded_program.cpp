#include "compile/loaded_program.h"

#include <algorithm>

#include "aten/call_site.h"
#include "device/dtypes.h"
#include "device/errors.h"
#include "device/generator.h"
#include "runtime/context.h"
#include "stablehlo/program_types.h"

namespace tpu::compile {
namespace {

TensorType type_of(const LoadedForm::Tensor& tensor) {
  return {device::to_dtype(tensor.dtype), Dims(tensor.sizes.begin(), tensor.sizes.end())};
}

graph::OutputTemplate output_of(TensorType type, size_t number) {
  const size_t rank = type.rank();
  return {std::move(type), static_cast<uint32_t>(number), iota(rank), {}, {}, {}};
}

graph::DrawRandom draw_of(uint64_t blocks, c10::DeviceIndex device) {
  at::Generator generator = device::default_generator(device);
  return {device::random_stream(generator), blocks};
}

/// The text must be that of the form: who reads a result counts on its size.
void check_types(const LoadedForm& form) {
  stablehlo::ProgramTypes wanted;
  for (const LoadedForm::Tensor& parameter : form.parameters) wanted.parameters.push_back(type_of(parameter));
  for (const LoadedForm::Tensor& result : form.results) wanted.results.push_back(type_of(result));
  for (int64_t number : form.written) {
    if (number < 0 || number >= static_cast<int64_t>(form.parameters.size())) {
      throw Error(Code::kValue, "a program cannot write to its parameter " + std::to_string(number));
    }
    wanted.results.push_back(wanted.parameters[static_cast<size_t>(number)]);
  }
  if (!std::is_sorted(form.written.begin(), form.written.end())) {
    throw Error(Code::kValue, "the parameters that a program writes to are listed in ascending order");
  }
  const auto words = static_cast<int64_t>(2 * form.random_blocks.size());
  if (words > 0) wanted.parameters.push_back({DType::kS64, {words}});
  const auto flags = static_cast<int64_t>(form.checks.size());
  if (flags > 0) wanted.results.push_back({DType::kBool, {flags}});
  const stablehlo::ProgramTypes there = stablehlo::program_types(form.text);
  if (there == wanted) return;
  throw Error(Code::kValue, form.name + ": the signature says " + stablehlo::to_string(wanted) + ", the program is " +
                                stablehlo::to_string(there));
}

graph::CapturedFunction function_of(const LoadedForm& form, c10::DeviceIndex device) {
  auto* const graph = new graph::CapturedGraph;  // lives for ever, as plans do
  graph::CapturedFunction function{graph, {}, {}, {}};
  graph::Plan& plan = graph->plan;
  plan.id = graph::next_plan_id();
  plan.name = form.name;
  for (size_t i = 0; i < form.parameters.size(); ++i) {
    plan.inputs.push_back(type_of(form.parameters[i]));
    graph->sources.push_back(static_cast<int32_t>(i));
  }
  for (const LoadedForm::Tensor& result : form.results) {
    plan.outputs.push_back(output_of(type_of(result), plan.outputs.size()));
  }
  for (int64_t number : form.written) {
    plan.outputs.push_back(output_of(plan.inputs.at(static_cast<size_t>(number)), plan.outputs.size()));
    plan.outputs.back().takes_over = static_cast<uint32_t>(number);
  }
  plan.slots.assign(2 * form.random_blocks.size(), graph::Slot::kInt);
  graph->blocks = form.random_blocks;
  for (uint64_t blocks : form.random_blocks) function.draws.push_back(draw_of(blocks, device));
  return function;
}

std::shared_ptr<graph::Program> program_of(LoadedForm& form, const graph::Plan& plan) {
  auto program = std::make_shared<graph::Program>();
  program->label = form.name;
  for (size_t i = 0; i < plan.outputs.size(); ++i) program->outputs.push_back(static_cast<uint32_t>(i));
  for (LoadedForm::Check& check : form.checks) {
    program->checks.push_back({0, check.code, std::move(check.message), std::move(check.name), {}});
  }
  program->aliased_parameters = form.written;
  runtime::CompileCache& cache = runtime::Context::get().cache();
  program->executable = cache.get({std::move(form.text), form.name, describe(aten::call_site()), "loaded program", "",
                                   std::move(form.executable_file)});
  return program;
}

}  // namespace

std::shared_ptr<const CapturedCall> load_program(LoadedForm form, c10::DeviceIndex device) {
  return device::translate([&] {
    check_types(form);
    auto call = std::make_shared<CapturedCall>();
    call->device_ = device;
    call->function_ = function_of(form, device);
    const graph::Plan& plan = call->function_.graph->plan;
    for (size_t i = 0; i < form.parameters.size(); ++i) {
      const LoadedForm::Tensor& tensor = form.parameters[i];
      CapturedCall::Argument argument{{}, {}, tensor.dtype, plan.inputs[i], {}, {}};
      argument.sizes.assign(tensor.sizes.begin(), tensor.sizes.end());
      const Dims strides = contiguous_strides(tensor.sizes);
      argument.strides.assign(strides.begin(), strides.end());
      call->arguments_.push_back(std::move(argument));
    }
    for (size_t i = 0; i < form.written.size(); ++i) {
      call->arguments_[static_cast<size_t>(form.written[i])].written = form.results.size() + i;
    }
    for (size_t i = 0; i < form.results.size(); ++i) {
      const LoadedForm::Tensor& tensor = form.results[i];
      CapturedCall::Result result;
      result.kind = CapturedCall::Result::Kind::kMade;
      result.source = i;
      result.sizes.assign(tensor.sizes.begin(), tensor.sizes.end());
      const Dims strides = contiguous_strides(tensor.sizes);
      result.strides.assign(strides.begin(), strides.end());
      result.dtype = tensor.dtype;
      call->results_.push_back(std::move(result));
      call->storages_.push_back(plan.outputs[i].base.bytes());
    }
    call->loaded_ = program_of(form, plan);
    return std::shared_ptr<const CapturedCall>(std::move(call));
  });
}

}  // namespace tpu::compile
