#pragma once
// Small programs, one or more for every kind of operation: their text is compared with what is expected
// (ops_test.cpp) and given to a real compiler (plugin_test.cpp).

#include <string>
#include <vector>

namespace tpu::stablehlo {

struct Program {
  const char* name;
  std::string (*build)();
  /// The body of @main, one operation a line without indentation of the first level; empty when only the
  /// compiler's acceptance is tested.
  const char* body;
};

const std::vector<Program>& programs();

}  // namespace tpu::stablehlo
