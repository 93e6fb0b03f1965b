#pragma once
// Installs the location provider of base/location.h: the innermost Python frame of the calling thread that
// belongs to the user, not to torch or this package.

namespace tpu::python {

void install_location_provider();

}  // namespace tpu::python
