#pragma once
// Programs whose text was made earlier, perhaps in another process: what torch_tpu.export reads from a folder. A loaded
// program is called like a captured graph and launched as it is, since its text cannot be joined with other operators.

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "compile/captured_call.h"

namespace tpu::compile {

/// A text and what has to be known of it. Its parameters are `parameters`, then, if there are random operators, the
/// int64 vector of their seeds and offsets; its outputs are `results`, new values of the `written` parameters, then the
/// flags of `checks` if there are any. Tensors are dense and row-major.
struct LoadedForm {
  struct Tensor {
    std::vector<int64_t> sizes;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
  };
  struct Check {
    Code code = Code::kInvalidArgument;
    std::string name, message;  // operator, and what is wrong when its flag is set
  };
  std::string name;  // in messages
  std::string text;
  std::vector<Tensor> parameters, results;
  std::vector<int64_t> written;         // numbers of parameters, ascending
  std::vector<uint64_t> random_blocks;  // per random operator, by how much it moves the generator's offset
  std::vector<Check> checks;
  std::string executable_file = {};  // may hold what a compiler made of the text (runtime/executable_file.h)
};

/// Starts loading the executable, or compiling the text where there is none for this device. Raises ValueError where
/// the text has other types than the form. An error of the compiler is raised where a result is read.
std::shared_ptr<const CapturedCall> load_program(LoadedForm form, c10::DeviceIndex device);

}  // namespace tpu::compile
