#pragma once
// Installs the location provider of base/location.h: the innermost Python frame of the calling thread that
// belongs to the user, not to torch or this package.

namespace tpu::python {

void install_location_provider();

/// Locations get no text any more on other threads than the main one: a thread that asks for the GIL while Python ends
/// is ended in the middle of our code, and the process with it. Returns when no thread is asking.
void forsake_python();

}  // namespace tpu::python
