// Kernels run without the GIL, but a thread's own frames do not change while it is inside a kernel, so its
// frame list may be read. Reference counts may not be touched, hence code objects are interned: the first
// time one is seen, with the GIL, it is classified and kept alive for good (their number is bounded by the
// program's source). Frame structures are CPython's own and change between releases: newer ones than are
// known here are read through the public API, with the GIL.

#define Py_BUILD_CORE 1
#include <Python.h>
#if PY_VERSION_HEX < 0x030E0000
#include <internal/pycore_frame.h>
#endif

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "base/location.h"
#include "python/user_frame.h"

namespace tpu::python {
namespace {

bool is_internal_file(std::string_view file) {
  for (std::string_view part : {"/torch/", "/torch_tpu/", "<frozen ", "/functools.py", "/contextlib.py"}) {
    if (file.find(part) != std::string_view::npos) return true;
  }
  return false;
}

// REQUIRES: the GIL.
bool classify(PyCodeObject* code) {
  Py_INCREF(code);
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) {
    PyErr_Clear();
    return true;
  }
  return is_internal_file(file);
}

bool is_internal(PyCodeObject* code) {
  thread_local std::unordered_map<const PyCodeObject*, bool> known;
  const auto found = known.find(code);
  if (found != known.end()) return found->second;
  const PyGILState_STATE gil = PyGILState_Ensure();
  const bool internal = classify(code);
  PyGILState_Release(gil);
  known.emplace(code, internal);
  return internal;
}

#if PY_VERSION_HEX < 0x030E0000

_PyInterpreterFrame* current_frame(PyThreadState* state) {
#if PY_VERSION_HEX < 0x030D0000
  return state->cframe->current_frame;
#else
  return state->current_frame;
#endif
}

PyCodeObject* code_of(_PyInterpreterFrame* frame) {
#if PY_VERSION_HEX < 0x030D0000
  return frame->f_code;
#else
  return PyCode_Check(frame->f_executable) ? reinterpret_cast<PyCodeObject*>(frame->f_executable) : nullptr;
#endif
}

Location capture() {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return {};
  Location innermost;
  for (_PyInterpreterFrame* frame = current_frame(state); frame != nullptr; frame = frame->previous) {
    if (_PyFrame_IsIncomplete(frame)) continue;
    PyCodeObject* code = code_of(frame);
    if (code == nullptr) continue;
    const Location here{code, static_cast<int32_t>(_PyInterpreterFrame_LASTI(frame) * sizeof(_Py_CODEUNIT))};
    if (!is_internal(code)) return here;
    if (innermost.code == nullptr) innermost = here;
  }
  return innermost;
}

#else

Location capture() {
  const PyGILState_STATE gil = PyGILState_Ensure();
  Location innermost;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const Location here{code, PyFrame_GetLasti(frame)};
    const bool internal = is_internal(code);
    Py_DECREF(code);
    PyFrameObject* back = internal ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    if (!internal) {
      innermost = here;
      break;
    }
    if (innermost.code == nullptr) innermost = here;
    frame = back;
  }
  PyGILState_Release(gil);
  return innermost;
}

#endif

std::atomic<bool> forsaken{false};
std::atomic<int> describing{0};

// Counts threads in describe(); forsake_python() waits for them.
class Describing {
 public:
  Describing() { describing.fetch_add(1); }
  Describing(const Describing&) = delete;
  Describing& operator=(const Describing&) = delete;
  ~Describing() { describing.fetch_sub(1); }
};

std::string describe(const Location& location) {
  const Describing counted;
  if (!Py_IsInitialized() || (forsaken.load() && gettid() != getpid())) return "";
  const PyGILState_STATE gil = PyGILState_Ensure();
  auto* code = static_cast<PyCodeObject*>(const_cast<void*>(location.code));
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  std::string text = file == nullptr ? "?" : file;
  PyErr_Clear();
  text += ":" + std::to_string(PyCode_Addr2Line(code, location.instruction));
  PyGILState_Release(gil);
  return text;
}

}  // namespace

void forsake_python() {
  forsaken.store(true);
  while (describing.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void install_location_provider() { set_location_provider({&capture, &describe}); }

}  // namespace tpu::python
