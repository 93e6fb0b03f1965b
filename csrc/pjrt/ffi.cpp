#include "pjrt/call.h"

namespace tpu::pjrt {

void register_ffi_handler(const Plugin& plugin, const std::string& target, void* handler, const std::string& platform) {
  const auto* base = find_extension(plugin.api(), PJRT_Extension_Type_FFI, PJRT_kStructSize<PJRT_FFI_Extension>);
  const auto* extension = reinterpret_cast<const PJRT_FFI_Extension*>(base);
  if (extension == nullptr || extension->register_handler == nullptr) {
    throw Error(Code::kNotImplemented,
                "the PJRT plugin " + plugin.path() + " takes no custom calls: it has no FFI extension");
  }
  auto args = make_args<PJRT_FFI_Register_Handler_Args>();
  args.target_name = target.data();
  args.target_name_size = target.size();
  args.handler = handler;
  args.platform_name = platform.data();
  args.platform_name_size = platform.size();
  PJRT_Error* error = extension->register_handler(&args);
  if (error != nullptr) throw take_error(plugin.api(), error, "PJRT_FFI_Register_Handler");
}

}  // namespace tpu::pjrt
