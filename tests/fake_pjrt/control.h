#pragma once
// How tests steer the fake PJRT plugin (fake_pjrt.cpp). Its shape is fixed when it is loaded, by environment
// variables; since a file is loaded once, a test that wants another shape loads a copy under another name.
//
//   FAKE_PJRT_NULL=1            GetPjrtApi returns a null pointer
//   FAKE_PJRT_MAJOR, _MINOR     version of the C API (default: that of the generated header)
//   FAKE_PJRT_STRUCT_SIZE       bytes of the function table; what lies beyond is not allocated at all
//   FAKE_PJRT_MISSING           comma-separated entries whose slots are null
//   FAKE_PJRT_NO_FFI=1          no FFI extension
//   FAKE_PJRT_PLATFORM          its platform's name (default: fake)
//   FAKE_PJRT_ZEROS=1           takes any program and any data; its results are zeros
//
// Its behaviour is steered through the Control that the symbol `fake_pjrt_control` returns. Tests in Python, which
// cannot reach it, set what it starts with:
//
//   FAKE_PJRT_FAIL              "ENTRY=CODE:MESSAGE;..." entries that fail
//   FAKE_PJRT_FAIL_EXECUTION    "NUMBER=CODE:MESSAGE;..." executions, from 1, that are refused
//   FAKE_PJRT_LATE_EXECUTION    the same for executions that are accepted and fail later
//   FAKE_PJRT_FAIL_PROGRAM      programs that contain this text do not compile
//   FAKE_PJRT_CREATE_MS, _COMPILE_MS, _EVENT_MS   how long creating, compiling and executing take
//   FAKE_PJRT_OFF_HOST=1        the host cannot read buffers

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace fake_pjrt {

struct Failure {
  uint32_t code = 0;  // PJRT_Error_Code_*
  std::string message;
};

struct Control {
  std::mutex mutex;  // guards everything but the counters

  std::map<std::string, Failure> failures;  // by entry: every call of it fails
  std::string refused_program;              // programs that contain it do not compile, unless it is empty
  std::map<int, Failure> refused, late;     // by number of the execution, from 1
  int executions = 0;                       // so far
  int create_delay_ms = 0;                  // PJRT_Client_Create takes so long
  int compile_delay_ms = 0;                 // PJRT_Client_Compile takes so long
  int event_delay_ms = 0;                   // results of Execute become ready so late
  Failure late_failure;                     // ... and fail, if the code is not 0
  bool on_cpu = true;                       // what PJRT_Buffer_IsOnCpu says

  // What the plugin was told last.
  std::map<std::string, std::string> create_options;
  std::string program, program_format, compile_options;
  std::vector<int64_t> kept_inputs;  // non_donatable_input_indices
  int execute_device = -1;           // device id; -1: none given
  bool event_wanted = false;
  std::vector<int64_t> host_layout;      // minor_to_major given to ToHostBuffer
  std::vector<std::string> ffi_targets;  // "platform:target"

  // Objects that are alive.
  std::atomic<int> errors{0}, clients{0}, buffers{0}, events{0}, executables{0}, loaded_executables{0}, topologies{0},
      serialized{0};
  std::atomic<int> host_copies{0};  // calls of ToHostBuffer
  std::atomic<int> busy{0};         // creations, compiles and executions that are not finished

  int live_objects() const {
    return errors + clients + buffers + events + executables + loaded_executables + topologies + serialized;
  }
};

using ControlFunction = Control* (*)();

}  // namespace fake_pjrt
