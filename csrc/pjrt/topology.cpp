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

void Topology::compile_check(const std::string& stablehlo_text, const CompileOptions& options) const {
  const PJRT_Program program = mlir_program(stablehlo_text);
  const std::string encoded = options.encode();
  auto args = make_args<PJRT_Compile_Args>();
  args.topology = topology_;
  args.program = &program;
  args.compile_options = encoded.data();
  args.compile_options_size = encoded.size();
  call<&PJRT_Api::PJRT_Compile>(plugin_->api(), args);
  auto destroy = make_args<PJRT_Executable_Destroy_Args>();
  destroy.executable = args.executable;
  call_in_destructor<&PJRT_Api::PJRT_Executable_Destroy>(plugin_->api(), destroy);
}

}  // namespace tpu::pjrt
