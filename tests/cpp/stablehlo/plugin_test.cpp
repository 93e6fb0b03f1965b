// Every test program is given to the compiler of a real plugin, when one is named.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "base/error.h"
#include "pjrt/client.h"
#include "stablehlo/programs.h"

namespace tpu::stablehlo {
namespace {

TEST(Plugin, CompilesEveryProgram) {
  const char* path = std::getenv("TORCH_TPU_PJRT_PLUGIN");
  if (path == nullptr || std::string(path).find('/') == std::string::npos) {
    GTEST_SKIP() << "TORCH_TPU_PJRT_PLUGIN does not hold the path of a plugin";
  }
  const auto client = pjrt::Client::create(pjrt::Plugin::load(path), {}, std::chrono::seconds(120));
  for (const Program& program : programs()) {
    try {
      EXPECT_NE(client->compile(program.build(), {}), nullptr) << program.name;
    } catch (const Error& error) {
      ADD_FAILURE() << program.name << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace tpu::stablehlo
