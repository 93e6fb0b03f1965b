// Every test program is given to the compilers of real plugins, when they are named: TORCH_TPU_PJRT_PLUGIN for one that
// can start here, TPU_TEST_LIBTPU (libtpu's file) for TPUs, which are compiled for without having one.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "base/error.h"
#include "pjrt/client.h"
#include "runtime/compile_cache.h"
#include "runtime/provider.h"
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

TEST(Plugin, CompilesEveryProgramForTpu) {
  const char* path = std::getenv("TPU_TEST_LIBTPU");
  if (path == nullptr || *path == '\0') GTEST_SKIP() << "TPU_TEST_LIBTPU does not name libtpu's file";
  runtime::set_environment({"libtpu", path, {}, "named by the test"});
  const auto topology = pjrt::Topology::create(pjrt::Plugin::load(path), "v5e:2x2", {});
  EXPECT_EQ(topology->platform_name(), "tpu");
  const pjrt::CompileOptions options = runtime::compile_options(topology->platform_name());
  for (const Program& program : programs()) {
    if (program.name == std::string("windows")) {
      // select_and_scatter over the two minor dims has no TPU code; no lowering uses it.
      EXPECT_THROW(topology->compile(program.build(), options), Error);
      continue;
    }
    try {
      topology->compile(program.build(), options);
    } catch (const Error& error) {
      ADD_FAILURE() << program.name << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace tpu::stablehlo
