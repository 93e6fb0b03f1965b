#pragma once
// The end of the process. Threads of the plugin cannot be stopped, and its static destructors crash when they
// run beside one that still compiles. So the process ends normally where everything comes to rest soon, and
// otherwise with _exit() at the last moment: after Python's own finalisation, with its status.

namespace tpu::python {

/// To be called once, when the module is imported.
void install_exit_handler();

/// Waits until nothing compiles or runs on any device, at most `seconds`; false on time-out. What is recorded and
/// not launched is left alone: nobody will read it. From now on the engine's threads do without Python.
/// Called by atexit, without the GIL. The wait can be interrupted.
bool drain(double seconds);

}  // namespace tpu::python
