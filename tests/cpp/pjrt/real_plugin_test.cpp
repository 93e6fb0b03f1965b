// The same checks on real CPU plugins of different API versions. TPU_TEST_PLUGINS lists their files, separated
// by colons; without it the tests are skipped.

#include <array>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <thread>

#include "fake_plugin.h"

namespace tpu::pjrt {
namespace {

constexpr char kAdd[] = R"(module @add {
  func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
})";

std::vector<std::string> plugin_files() {
  std::vector<std::string> files;
  const char* text = std::getenv("TPU_TEST_PLUGINS");
  std::istringstream list(text == nullptr ? "" : text);
  for (std::string file; std::getline(list, file, ':');) {
    if (!file.empty()) files.push_back(file);
  }
  if (files.empty()) files.emplace_back();  // one test that is skipped, and says why
  return files;
}

class RealPluginTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam().empty()) GTEST_SKIP() << "TPU_TEST_PLUGINS names no plugin";
    // One client for all tests of a plugin: clients of one plugin share threads, and starting one is slow.
    static auto& clients = *new std::map<std::string, std::unique_ptr<Client>>;
    auto& client = clients[GetParam()];
    if (client == nullptr) {
      client = Client::create(Plugin::load(GetParam()), {{"cpu_device_count", int64_t{2}}}, std::chrono::seconds(60));
    }
    client_ = client.get();
  }
  const Device& device(size_t index = 0) const { return client_->devices()[index]; }
  Buffer upload(const std::vector<float>& values, Dims dims, size_t index = 0) const {
    return client_->buffer_from_host(values.data(), {DType::kF32, std::move(dims)}, device(index));
  }
  static std::vector<float> download(const Buffer& buffer, size_t count) {
    std::vector<float> values(count);
    buffer.copy_to_host(values.data(), count * sizeof(float));
    return values;
  }
  ExecuteResult run(const Executable& executable, const std::vector<PJRT_Buffer*>& inputs,
                    const std::vector<int64_t>& keep = {}, size_t index = 0) const {
    return executable.execute(inputs, keep, &device(index), true);
  }

  const Client* client_ = nullptr;
};

TEST_P(RealPluginTest, Facts) {
  EXPECT_EQ(client_->platform_name(), "cpu");
  ASSERT_EQ(client_->devices().size(), 2U);
  EXPECT_EQ(device(1).id(), 1);
  EXPECT_EQ(device().kind(), "cpu");
  EXPECT_TRUE(client_->plugin().attributes().contains("stablehlo_current_version"));
}

TEST_P(RealPluginTest, PortableProgramRunsOnEveryDevice) {
  const auto executable = client_->compile(kAdd, {});
  EXPECT_EQ(executable->output_count(), 1U);
  for (size_t index = 0; index < 2; ++index) {
    const Buffer a = upload({1, 2, 3, 4}, {4}, index);
    const Buffer b = upload({10, 20, 30, 40}, {4}, index);
    const ExecuteResult result = run(*executable, {a.raw(), b.raw()}, {}, index);
    result.done.await();
    EXPECT_EQ(download(result.outputs.at(0), 4), (std::vector<float>{11, 22, 33, 44}));
  }
}

TEST_P(RealPluginTest, RoundTripOfEveryType) {
  std::array<unsigned char, 6 * 16> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 37 + 5);
  for (int i = 0; i < kDTypeCount; ++i) {
    const TensorType type{static_cast<DType>(i), {2, 3}};
    std::array<unsigned char, 6 * 16> sent = bytes;
    if (type.dtype == DType::kBool) sent.fill(1);
    std::array<unsigned char, 6 * 16> received{};
    client_->buffer_from_host(sent.data(), type, device()).copy_to_host(received.data(), type.bytes());
    EXPECT_EQ(std::memcmp(sent.data(), received.data(), type.bytes()), 0) << to_string(type);
  }
}

TEST_P(RealPluginTest, StridedUploadsBecomeRowMajor) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const auto strided = [&](const float* data, Dims dims, std::vector<int64_t> strides) {
    const TensorType type{DType::kF32, std::move(dims)};
    return download(client_->buffer_from_host(data, type, strides, device()), static_cast<size_t>(type.numel()));
  };
  EXPECT_EQ(strided(values.data(), {3, 2}, {4, 12}), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(strided(values.data(), {2, 3}, {0, 4}), (std::vector<float>{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(strided(values.data() + 5, {3}, {-8}), (std::vector<float>{6, 4, 2}));
}

TEST_P(RealPluginTest, UploadMayBeOverwrittenAtOnce) {
  std::vector<float> values(1 << 20, 1.0F);
  const Buffer buffer = upload(values, {1 << 20});
  std::fill(values.begin(), values.end(), 2.0F);
  EXPECT_EQ(download(buffer, values.size()), std::vector<float>(values.size(), 1.0F));
}

TEST_P(RealPluginTest, ScalarsAndEmptyBuffers) {
  EXPECT_EQ(download(upload({3}, {}), 1), std::vector<float>{3});
  EXPECT_TRUE(download(upload({}, {0, 4}), 0).empty());
}

TEST_P(RealPluginTest, CopyToAnotherDevice) {
  const Buffer copy = upload({1, 2}, {2}).copy_to_device(device(1));
  EXPECT_EQ(download(copy, 2), (std::vector<float>{1, 2}));
}

TEST_P(RealPluginTest, SerializedProgramLoads) {
  const std::string bytes = client_->compile(kAdd, {})->serialize();
  const auto executable = client_->deserialize(bytes);
  const Buffer a = upload({1, 2, 3, 4}, {4});
  EXPECT_EQ(download(run(*executable, {a.raw(), a.raw()}).outputs.at(0), 4), (std::vector<float>{2, 4, 6, 8}));
  EXPECT_THROW(client_->deserialize("garbage"), Error);
}

TEST_P(RealPluginTest, RefusedProgramIsAnErrorWithTheCompilersText) {
  const Error error = error_of([&] { client_->compile("module { func.func @main() { nonsense } }", {}); });
  EXPECT_EQ(error.code(), Code::kPlugin);
  EXPECT_TRUE(contains(error.what(), "nonsense")) << error.what();
}

TEST_P(RealPluginTest, Overrides) {
  CompileOptions options;
  options.overrides = {{"xla_allow_excess_precision", false}, {"xla_backend_optimization_level", int64_t{0}}};
  client_->compile(kAdd, options);
  options.overrides = {{"xla_no_such_option", true}};
  const Error error = error_of([&] { client_->compile(kAdd, options); });
  EXPECT_TRUE(contains(error.what(), "xla_no_such_option")) << error.what();
}

TEST_P(RealPluginTest, DonationConsumesUnlessKept) {
  const auto executable = client_->compile(R"(module @donate {
    func.func public @main(%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<4xf32> {
      %0 = stablehlo.add %a, %a : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
  })",
                                           {});
  const Buffer kept = upload({1, 2, 3, 4}, {4});
  EXPECT_EQ(download(run(*executable, {kept.raw()}, {0}).outputs.at(0), 4), (std::vector<float>{2, 4, 6, 8}));
  EXPECT_FALSE(kept.is_deleted());
  EXPECT_EQ(download(kept, 4), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(download(run(*executable, {kept.raw()}).outputs.at(0), 4), (std::vector<float>{2, 4, 6, 8}));
  EXPECT_TRUE(kept.is_deleted());
  std::vector<float> values(4);
  EXPECT_THROW(kept.copy_to_host(values.data(), 16), Error);
}

TEST_P(RealPluginTest, OutputsAreRowMajor) {
  // A transposed result must not come back in the order in which it is computed.
  const auto executable = client_->compile(R"(module @transpose {
    func.func public @main(%a: tensor<2x3xf32>) -> tensor<3x2xf32> {
      %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
      return %0 : tensor<3x2xf32>
    }
  })",
                                           {});
  const Buffer a = upload({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(download(run(*executable, {a.raw()}).outputs.at(0), 6), (std::vector<float>{1, 4, 2, 5, 3, 6}));
}

TEST_P(RealPluginTest, ManyOutputs) {
  std::string text = "module @many { func.func public @main(%a: tensor<f32>) -> (tensor<f32>";
  for (int i = 1; i < 20; ++i) text += ", tensor<f32>";
  text += ") {\n  %0 = stablehlo.add %a, %a : tensor<f32>\n  return %0";
  for (int i = 1; i < 20; ++i) text += ", %a";
  text += " : tensor<f32>";
  for (int i = 1; i < 20; ++i) text += ", tensor<f32>";
  const auto executable = client_->compile(text + "\n} }", {});
  const Buffer a = upload({3}, {});
  const ExecuteResult result = run(*executable, {a.raw()});
  ASSERT_EQ(result.outputs.size(), 20U);
  EXPECT_EQ(download(result.outputs[0], 1), std::vector<float>{6});
  EXPECT_EQ(download(result.outputs[19], 1), std::vector<float>{3});
}

TEST_P(RealPluginTest, ReadyEventsAndCallbacks) {
  const auto executable = client_->compile(kAdd, {});
  const Buffer a = upload({1, 2, 3, 4}, {4});
  const ExecuteResult result = run(*executable, {a.raw(), a.raw()});
  std::atomic<int> state{0};
  result.outputs.at(0).ready_event().on_ready(
      [&](const std::optional<Error>& error) { state = error.has_value() ? -1 : 1; });
  for (int i = 0; i < 1000 && state == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(state, 1);
  EXPECT_TRUE(result.outputs[0].ready_event().ready());
  EXPECT_NE(result.outputs[0].unsafe_pointer(), nullptr);
}

TEST_P(RealPluginTest, UnknownCreateOption) {
  // The oldest plugin ignores it, the others refuse it by name; neither may take the process down.
  try {
    Client::create(Plugin::load(GetParam()), {{"no_such_option", int64_t{1}}}, std::chrono::seconds(60));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_TRUE(contains(error.what(), "no_such_option")) << error.what();
  }
}

// "/a/b/lib-x.so" -> "lib_x"
std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = std::filesystem::path(info.param).stem().string();
  if (name.empty()) return "None";
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Plugins, RealPluginTest, testing::ValuesIn(plugin_files()), test_name);

}  // namespace
}  // namespace tpu::pjrt
