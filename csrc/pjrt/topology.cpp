#include "pjrt/call.h"

namespace tpu::pjrt {

std::unique_ptr<Topology> Topology::create(std::shared_ptr<const Plugin> plugin, const std::string& name,
                                           const Options& options) {
  const std::vector<PJRT_NamedValue> values = named_values(options);
  auto args = make_args<PJRT_TopologyDescription_Create_Args>();
  args.topology_name = name.data();
  args.topology_name_size = name.size();
  args.create_options = values.data();
  args.num_options = values.size();
  call<&PJRT_Api::PJRT_TopologyDescription_Create>(plugin->api(), args);
  std::unique_ptr<Topology> topology(new Topology);
  topology->plugin_ = std::move(plugin);
  topology->topology_ = args.topology;
  auto platform = make_args<PJRT_TopologyDescription_PlatformName_Args>();
  platform.topology = args.topology;
  call<&PJRT_Api::PJRT_TopologyDescription_PlatformName>(topology->plugin_->api(), platform);
  topology->platform_name_.assign(platform.platform_name, platform.platform_name_size);
  return topology;
}

Topology::~Topology() {
  if (topology_ == nullptr) return;
  auto args = make_args<PJRT_TopologyDescription_Destroy_Args>();
  args.topology = topology_;
  call_in_destructor<&PJRT_Api::PJRT_TopologyDescription_Destroy>(plugin_->api(), args);
}

std::unique_ptr<CompiledProgram> Topology::compile(const std::string& stablehlo_text,
                                                   const CompileOptions& options) const {
  const PJRT_Program program = mlir_program(stablehlo_text);
  const std::string encoded = options.encode();
  auto args = make_args<PJRT_Compile_Args>();
  args.topology = topology_;
  args.program = &program;
  args.compile_options = encoded.data();
  args.compile_options_size = encoded.size();
  call<&PJRT_Api::PJRT_Compile>(plugin_->api(), args);
  return std::make_unique<CompiledProgram>(plugin_->api(), args.executable);
}

std::span<PJRT_DeviceDescription* const> Topology::descriptions() const {
  auto args = make_args<PJRT_TopologyDescription_GetDeviceDescriptions_Args>();
  args.topology = topology_;
  call<&PJRT_Api::PJRT_TopologyDescription_GetDeviceDescriptions>(plugin_->api(), args);
  return {args.descriptions, args.num_descriptions};
}

size_t Topology::device_count() const { return descriptions().size(); }

Topology::Device Topology::device() const {
  const auto all = descriptions();
  if (all.empty()) throw Error(Code::kPlugin, "this topology has no devices");
  auto kind = make_args<PJRT_DeviceDescription_Kind_Args>();
  kind.device_description = all[0];
  call<&PJRT_Api::PJRT_DeviceDescription_Kind>(plugin_->api(), kind);
  auto attributes = make_args<PJRT_DeviceDescription_Attributes_Args>();
  attributes.device_description = all[0];
  call<&PJRT_Api::PJRT_DeviceDescription_Attributes>(plugin_->api(), attributes);
  return {std::string(kind.device_kind, kind.device_kind_size),
          to_map(attributes.attributes, attributes.num_attributes)};
}

CompiledProgram::~CompiledProgram() {
  auto args = make_args<PJRT_Executable_Destroy_Args>();
  args.executable = program_;
  call_in_destructor<&PJRT_Api::PJRT_Executable_Destroy>(api_, args);
}

CompiledProgram::Memory CompiledProgram::memory() const {
  auto args = make_args<PJRT_Executable_GetCompiledMemoryStats_Args>();
  args.executable = program_;
  call<&PJRT_Api::PJRT_Executable_GetCompiledMemoryStats>(api_, args);
  return {args.argument_size_in_bytes, args.output_size_in_bytes,         args.alias_size_in_bytes,
          args.temp_size_in_bytes,     args.generated_code_size_in_bytes, args.peak_memory_in_bytes};
}

std::map<std::string, double> CompiledProgram::cost() const {
  auto args = make_args<PJRT_Executable_GetCostAnalysis_Args>();
  args.executable = program_;
  call<&PJRT_Api::PJRT_Executable_GetCostAnalysis>(api_, args);
  std::map<std::string, double> cost;
  const auto* const properties = static_cast<const PJRT_NamedValue*>(args.properties);
  for (size_t i = 0; i < args.num_properties; ++i) {
    const PJRT_NamedValue& property = properties[i];
    if (property.type == PJRT_NamedValue_kFloat) {
      cost.emplace(std::string(property.name, property.name_size), property.float_value);
    } else if (property.type == PJRT_NamedValue_kInt64) {
      cost.emplace(std::string(property.name, property.name_size), static_cast<double>(property.int64_value));
    }
  }
  return cost;
}

CompiledProgram::Text CompiledProgram::optimized() const {
  auto program = make_args<PJRT_Program>();
  auto args = make_args<PJRT_Executable_OptimizedProgram_Args>();
  args.executable = program_;
  args.program = &program;
  call<&PJRT_Api::PJRT_Executable_OptimizedProgram>(api_, args);  // tells the sizes, as there is no memory yet
  Text text{std::string(program.format, program.format_size), std::string(program.code_size, '\0')};
  program.code = text.bytes.data();
  call<&PJRT_Api::PJRT_Executable_OptimizedProgram>(api_, args);
  return text;
}

std::string CompiledProgram::serialize() const { return serialized(api_, program_); }

}  // namespace tpu::pjrt
