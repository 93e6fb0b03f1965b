// Clients, buffers, programs and events over the fake plugin: what is passed on, what errors become, and that
// everything is released exactly once.

#include <atomic>
#include <chrono>
#include <thread>

#include "fake_plugin.h"
#include "pjrt/c_api.h"

namespace tpu::pjrt {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

std::vector<float> download(const Buffer& buffer, size_t count) {
  std::vector<float> values(count);
  buffer.copy_to_host(values.data(), count * sizeof(float));
  return values;
}

class ClientTest : public FakePluginTest {
 protected:
  void SetUp() override { open(); }

  ExecuteResult run(const Executable& executable, std::vector<PJRT_Buffer*> inputs, bool want_event = true) {
    return executable.execute(inputs, {}, &client_->devices()[0], want_event);
  }
  void delay_results(int milliseconds, fake_pjrt::Failure failure = {}) {
    const std::lock_guard lock(control_->mutex);
    control_->event_delay_ms = milliseconds;
    control_->late_failure = std::move(failure);
  }
};

TEST_F(ClientTest, Facts) {
  EXPECT_EQ(client_->platform_name(), "fake");
  EXPECT_EQ(client_->platform_version(), "fake 1");
  ASSERT_EQ(client_->devices().size(), 2U);
  const Device& device = client_->devices()[1];
  EXPECT_EQ(device.id(), 1);
  EXPECT_EQ(device.local_hardware_id(), 11);
  EXPECT_EQ(device.kind(), "fake");
  EXPECT_EQ(device.debug_string(), "fake:1");
  EXPECT_EQ(device.attributes(), (std::map<std::string, std::string>{{"core_count", "4"}}));
}

TEST_F(ClientTest, CreateOptionsOfEveryKind) {
  const Options options = {{"flag", true},
                           {"list", std::vector<int64_t>{2, 3}},
                           {"number", int64_t{-7}},
                           {"real", 0.5F},
                           {"text", std::string("abc")}};
  const auto client = Client::create(plugin_, options, seconds(30));
  const std::map<std::string, std::string> expected = {
      {"flag", "b:1"}, {"list", "l:2,3,"}, {"number", "i:-7"}, {"real", "f:0.500000"}, {"text", "s:abc"}};
  EXPECT_EQ(control_->create_options, expected);
}

TEST_F(ClientTest, FailedCreationIsUnavailableWithThePluginsText) {
  fail("PJRT_Client_Create", PJRT_Error_Code_INTERNAL, "the chips are gone");
  const Error error = error_of([&] { Client::create(plugin_, {}, seconds(30)); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "the chips are gone")) << error.what();
  EXPECT_TRUE(contains(error.what(), plugin_->path())) << error.what();
}

TEST_F(ClientTest, ClientIsReleasedWhenItsDevicesCannotBeRead) {
  fail("PJRT_DeviceDescription_Kind", PJRT_Error_Code_INTERNAL, "no kind");
  EXPECT_THROW(Client::create(plugin_, {}, seconds(30)), Error);
  EXPECT_EQ(control_->clients, 1);  // the fixture's
}

TEST_F(ClientTest, SlowCreationTimesOutAndTheLateClientIsReleased) {
  control_->create_delay_ms = 1500;
  const auto start = steady_clock::now();
  const Error error = error_of([&] { Client::create(plugin_, {}, seconds(1)); });
  EXPECT_LT(steady_clock::now() - start, std::chrono::milliseconds(1450));
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(contains(error.what(), "TORCH_TPU_INIT_TIMEOUT")) << error.what();
  // The thread that goes on hands its client back.
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  EXPECT_EQ(control_->clients, 1);
  control_->create_delay_ms = 0;
}

TEST_F(ClientTest, HostCopies) {
  const Buffer buffer = upload({1, 2, 3});
  EXPECT_EQ(download(buffer, 3), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(buffer.on_device_bytes(), 12U);
  EXPECT_FALSE(buffer.is_deleted());
  EXPECT_EQ(control_->host_copies, 0);  // memory that the host can read is read directly
}

TEST_F(ClientTest, DeviceMemoryIsCopiedByThePluginInRowMajorOrder) {
  control_->on_cpu = false;
  const float values[6] = {1, 2, 3, 4, 5, 6};
  const Buffer buffer = client_->buffer_from_host(values, {DType::kF32, {1, 2, 3}}, client_->devices()[0]);
  EXPECT_EQ(download(buffer, 6), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(control_->host_copies, 1);
  EXPECT_EQ(control_->host_layout, (std::vector<int64_t>{2, 1, 0}));
}

TEST_F(ClientTest, TooSmallDestinationIsRefused) {
  const Buffer buffer = upload({1, 2, 3});
  std::vector<float> values(2);
  EXPECT_THROW(buffer.copy_to_host(values.data(), 8), Error);
}

TEST_F(ClientTest, StridedUploads) {
  const float values[6] = {1, 2, 3, 4, 5, 6};
  const auto upload_strided = [&](const float* data, Dims dims, std::vector<int64_t> strides) {
    return client_->buffer_from_host(data, {DType::kF32, std::move(dims)}, strides, client_->devices()[0]);
  };
  EXPECT_EQ(download(upload_strided(values, {3, 2}, {4, 12}), 6), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(download(upload_strided(values, {2, 2}, {0, 4}), 4), (std::vector<float>{1, 2, 1, 2}));
  EXPECT_EQ(download(upload_strided(values + 5, {3}, {-8}), 3), (std::vector<float>{6, 4, 2}));
}

TEST_F(ClientTest, ScalarsAndEmptyBuffers) {
  const float value = 3;
  const Buffer scalar = client_->buffer_from_host(&value, {DType::kF32, {}}, client_->devices()[0]);
  EXPECT_EQ(download(scalar, 1), std::vector<float>{3});
  const Buffer empty = client_->buffer_from_host(nullptr, {DType::kF32, {0, 4}}, client_->devices()[0]);
  EXPECT_EQ(download(empty, 0), std::vector<float>{});
}

TEST_F(ClientTest, CopyToAnotherDevice) {
  const Buffer copy = upload({5}).copy_to_device(client_->devices()[1]);
  EXPECT_EQ(download(copy, 1), std::vector<float>{5});
}

TEST_F(ClientTest, BufferOwnership) {
  Buffer first = upload({1});
  Buffer second = upload({2});
  EXPECT_EQ(control_->buffers, 2);
  first = std::move(second);
  EXPECT_EQ(control_->buffers, 1);  // what it held before is gone at once
  EXPECT_FALSE(second.valid());     // NOLINT(bugprone-use-after-move): the moved-from state is defined
  EXPECT_EQ(download(first, 1), std::vector<float>{2});
  Buffer& same = first;
  first = std::move(same);
  EXPECT_TRUE(first.valid());
  const Buffer owner(client_->api(), first.release());
  EXPECT_FALSE(first.valid());
  EXPECT_EQ(control_->buffers, 1);
}

TEST_F(ClientTest, EmptyHandlesAreRefused) {
  const Buffer nothing;
  EXPECT_EQ(error_of([&] { nothing.ready_event(); }).code(), Code::kInternal);
  EXPECT_EQ(error_of([&] { nothing.unsafe_pointer(); }).code(), Code::kInternal);
  EXPECT_EQ(error_of([&] { Event().await(); }).code(), Code::kInternal);
}

TEST_F(ClientTest, CompilePassesTheProgram) {
  CompileOptions options;
  options.overrides = {{"fast", true}};
  client_->compile("module outputs=1", options);
  EXPECT_EQ(control_->program, "module outputs=1");
  EXPECT_EQ(control_->program_format, "mlir");
  EXPECT_EQ(control_->compile_options, options.encode());
}

TEST_F(ClientTest, RefusedProgramKeepsTheCompilersText) {
  fail("PJRT_Client_Compile", PJRT_Error_Code_INVALID_ARGUMENT, "line 3: type mismatch");
  const Error error = error_of([&] { client_->compile("module", {}); });
  EXPECT_EQ(error.code(), Code::kPlugin);
  EXPECT_EQ(std::string(error.what()), "PJRT_Client_Compile: INVALID_ARGUMENT: line 3: type mismatch");
}

TEST_F(ClientTest, ExecutableIsReleasedWhenItsOutputsCannotBeCounted) {
  fail("PJRT_Executable_NumOutputs", PJRT_Error_Code_INTERNAL, "cannot count");
  EXPECT_THROW(client_->compile("module", {}), Error);
  EXPECT_EQ(control_->loaded_executables, 0);
  EXPECT_EQ(control_->executables, 0);
}

TEST_F(ClientTest, Execute) {
  const auto executable = client_->compile("outputs=3", {});
  EXPECT_EQ(executable->output_count(), 3U);
  const Buffer a = upload({1, 2});
  const Buffer b = upload({3});
  const std::vector<PJRT_Buffer*> inputs = {a.raw(), b.raw()};
  const std::vector<int64_t> keep = {1};
  const ExecuteResult result = executable->execute(inputs, keep, &client_->devices()[1], true);
  ASSERT_EQ(result.outputs.size(), 3U);
  result.done.await();
  EXPECT_TRUE(result.done.ready());
  EXPECT_EQ(download(result.outputs[0], 2), (std::vector<float>{1, 2}));
  EXPECT_EQ(download(result.outputs[1], 1), (std::vector<float>{3}));
  EXPECT_EQ(download(result.outputs[2], 2), (std::vector<float>{1, 2}));
  EXPECT_EQ(control_->kept_inputs, keep);
  EXPECT_EQ(control_->execute_device, 1);
}

TEST_F(ClientTest, ExecuteWithoutEventOrDevice) {
  const auto executable = client_->compile("outputs=0", {});
  const ExecuteResult result = executable->execute({}, {}, nullptr, false);
  EXPECT_TRUE(result.outputs.empty());
  EXPECT_FALSE(result.done.valid());
  EXPECT_FALSE(control_->event_wanted);
  EXPECT_EQ(control_->execute_device, -1);
}

TEST_F(ClientTest, MoreOutputsThanFitInline) {
  const auto executable = client_->compile("outputs=100", {});
  const Buffer input = upload({7});
  const ExecuteResult result = run(*executable, {input.raw()});
  ASSERT_EQ(result.outputs.size(), 100U);
  EXPECT_EQ(download(result.outputs[99], 1), std::vector<float>{7});
}

TEST_F(ClientTest, RefusedExecuteLeavesNothingBehind) {
  const auto executable = client_->compile("outputs=2", {});
  const Buffer input = upload({7});
  fail("PJRT_LoadedExecutable_Execute", PJRT_Error_Code_RESOURCE_EXHAUSTED, "no room");
  const Error error = error_of([&] { run(*executable, {input.raw()}); });
  EXPECT_EQ(error.code(), Code::kOutOfMemory);
  EXPECT_EQ(control_->buffers, 1);
}

TEST_F(ClientTest, ErrorCodes) {
  const std::pair<uint32_t, Code> codes[] = {{PJRT_Error_Code_RESOURCE_EXHAUSTED, Code::kOutOfMemory},
                                             {PJRT_Error_Code_UNAVAILABLE, Code::kUnavailable},
                                             {PJRT_Error_Code_UNIMPLEMENTED, Code::kNotImplemented},
                                             {PJRT_Error_Code_INTERNAL, Code::kPlugin},
                                             {PJRT_Error_Code_FAILED_PRECONDITION, Code::kPlugin},
                                             {PJRT_Error_Code_INVALID_ARGUMENT, Code::kPlugin},
                                             {9999, Code::kPlugin}};
  for (const auto& [plugin_code, code] : codes) {
    fail("PJRT_Client_BufferFromHostBuffer", plugin_code, "text");
    EXPECT_EQ(error_of([&] { upload({1}); }).code(), code) << plugin_code;
  }
}

TEST_F(ClientTest, UnsupportedTypeIsNotImplemented) {
  const double value = 1;
  const Error error = error_of([&] { client_->buffer_from_host(&value, {DType::kF64, {1}}, client_->devices()[0]); });
  EXPECT_EQ(error.code(), Code::kNotImplemented);
  EXPECT_TRUE(contains(error.what(), "float32 only")) << error.what();
}

TEST_F(ClientTest, LateResults) {
  const auto executable = client_->compile("outputs=1", {});
  const Buffer input = upload({4});
  delay_results(200);
  const ExecuteResult result = run(*executable, {input.raw()});
  EXPECT_FALSE(result.done.ready());
  EXPECT_EQ(download(result.outputs[0], 1), std::vector<float>{4});  // waits
  EXPECT_TRUE(result.done.ready());
}

TEST_F(ClientTest, LateFailureReachesEveryReader) {
  const auto executable = client_->compile("outputs=1", {});
  const Buffer input = upload({4});
  delay_results(50, {PJRT_Error_Code_RESOURCE_EXHAUSTED, "out of HBM"});
  const ExecuteResult result = run(*executable, {input.raw()});
  const Error at_event = error_of([&] { result.done.await(); });
  EXPECT_EQ(at_event.code(), Code::kOutOfMemory);
  EXPECT_TRUE(contains(at_event.what(), "out of HBM")) << at_event.what();
  EXPECT_EQ(error_of([&] { result.done.await(); }).code(), Code::kOutOfMemory);  // again
  EXPECT_EQ(error_of([&] { download(result.outputs[0], 1); }).code(), Code::kOutOfMemory);
  control_->on_cpu = false;
  EXPECT_EQ(error_of([&] { download(result.outputs[0], 1); }).code(), Code::kOutOfMemory);
}

TEST_F(ClientTest, CallbackWhenAlreadyReady) {
  int calls = 0;
  const Buffer buffer = upload({1});
  buffer.ready_event().on_ready([&](const std::optional<Error>& error) {
    ++calls;
    EXPECT_FALSE(error.has_value());
  });
  EXPECT_EQ(calls, 1);
}

TEST_F(ClientTest, CallbackOutlivesItsEventAndGetsTheError) {
  const auto executable = client_->compile("outputs=0", {});
  delay_results(100, {PJRT_Error_Code_INTERNAL, "late"});
  std::atomic<bool> called{false};
  std::string text;
  run(*executable, {}).done.on_ready([&](const std::optional<Error>& error) {
    text = error ? error->what() : "";
    called = true;
  });
  EXPECT_FALSE(called);
  for (int i = 0; i < 200 && !called; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(called);
  EXPECT_TRUE(contains(text, "INTERNAL: late")) << text;
}

TEST_F(ClientTest, CallbackThatThrowsIsContained) {
  upload({1}).ready_event().on_ready([](const std::optional<Error>&) { throw std::runtime_error("from a callback"); });
}

TEST_F(ClientTest, RefusedCallbackIsNotKept) {
  fail("PJRT_Event_OnReady", PJRT_Error_Code_INTERNAL, "no callbacks");
  const Buffer buffer = upload({1});
  bool called = false;
  EXPECT_THROW(buffer.ready_event().on_ready([&](const std::optional<Error>&) { called = true; }), Error);
  EXPECT_FALSE(called);
}

TEST_F(ClientTest, FailureWhileReleasingIsSwallowed) {
  auto buffer = std::make_unique<Buffer>(upload({1}));
  PJRT_Buffer* raw = buffer->raw();
  fail("PJRT_Buffer_Destroy", PJRT_Error_Code_INTERNAL, "will not go");
  buffer.reset();
  EXPECT_EQ(control_->buffers, 1);
  EXPECT_EQ(control_->errors, 0);
  control_->failures.clear();
  const Buffer second_try(client_->api(), raw);
}

TEST_F(ClientTest, SerializeAndDeserialize) {
  const auto executable = client_->compile("outputs=2", {});
  const std::string bytes = executable->serialize();
  EXPECT_EQ(bytes, "fake:outputs=2");
  EXPECT_EQ(client_->deserialize(bytes)->output_count(), 2U);
  EXPECT_EQ(executable->generated_code_bytes(), 1234U);
  EXPECT_EQ(error_of([&] { client_->deserialize("garbage"); }).code(), Code::kPlugin);
}

TEST_F(ClientTest, Topologies) {
  const auto topology = Topology::create(plugin_, "fake:1x1", {});
  EXPECT_EQ(topology->platform_name(), "fake");
  topology->compile("module", {});
  fail("PJRT_Compile", PJRT_Error_Code_INVALID_ARGUMENT, "does not fit");
  const Error error = error_of([&] { topology->compile("module", {}); });
  EXPECT_EQ(error.code(), Code::kPlugin);
  EXPECT_TRUE(contains(error.what(), "does not fit")) << error.what();
  EXPECT_THROW(Topology::create(plugin_, "fake:9x9", {}), Error);
}

TEST_F(ClientTest, FfiHandlersAreRegistered) {
  register_ffi_handler(*plugin_, "my_target", reinterpret_cast<void*>(1), "Host");
  EXPECT_EQ(control_->ffi_targets, std::vector<std::string>{"Host:my_target"});
  fail("PJRT_FFI_Register_Handler", PJRT_Error_Code_ALREADY_EXISTS, "twice");
  const Error error = error_of([&] { register_ffi_handler(*plugin_, "my_target", nullptr, "Host"); });
  EXPECT_TRUE(contains(error.what(), "ALREADY_EXISTS: twice")) << error.what();
}

TEST(FfiTest, PluginWithoutTheExtension) {
  const auto plugin = load_fake({{"FAKE_PJRT_NO_FFI", "1"}});
  const Error error = error_of([&] { register_ffi_handler(*plugin, "t", nullptr, "Host"); });
  EXPECT_EQ(error.code(), Code::kNotImplemented);
}

}  // namespace
}  // namespace tpu::pjrt
