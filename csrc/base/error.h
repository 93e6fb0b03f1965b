#pragma once
// The one exception type of the core. A code says which Python exception it becomes; the message keeps
// the plugin's own text and names what to do next.

#include <stdexcept>
#include <string>

namespace tpu {

enum class Code {
  kInternal,         // a defect of ours             -> RuntimeError
  kInvalidArgument,  // the caller's argument        -> RuntimeError
  kValue,            // a wrong value                -> ValueError
  kIndex,            // an index out of range        -> IndexError
  kType,             // a wrong type                 -> TypeError
  kNotImplemented,   // not supported yet            -> NotImplementedError
  kOutOfMemory,      // device memory is exhausted   -> torch.OutOfMemoryError
  kUnavailable,      // plugin or device is missing  -> RuntimeError
  kLinearAlgebra,    // a matrix is singular, ...    -> torch.linalg.LinAlgError
  kPlugin,           // the plugin reported a failure -> RuntimeError
};

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Code code() const { return code_; }

 private:
  Code code_;
};

/// Throws Error{kInternal} when `condition` is false: for conditions that only a defect of ours can break.
inline void ensure(bool condition, const char* message) {
  if (!condition) throw Error(Code::kInternal, message);
}

}  // namespace tpu
