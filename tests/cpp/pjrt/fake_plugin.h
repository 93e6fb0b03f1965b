#pragma once
// Loads the fake plugin for a test: one copy of the file per shape, since a file is loaded once.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "../../fake_pjrt/control.h"
#include "pjrt/client.h"

namespace tpu::pjrt {

/// Sets environment variables for the life of the object.
class ScopedEnvironment {
 public:
  explicit ScopedEnvironment(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) {
      const char* old = std::getenv(name.c_str());
      old_[name] = old == nullptr ? std::nullopt : std::optional<std::string>(old);
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;
  ~ScopedEnvironment() {
    for (const auto& [name, value] : old_) {
      if (value) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }

 private:
  std::map<std::string, std::optional<std::string>> old_;
};

/// A directory that is removed with what is in it.
class ScopedDirectory {
 public:
  ScopedDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "torch_tpu_test_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = pattern;
  }
  ScopedDirectory(const ScopedDirectory&) = delete;
  ScopedDirectory& operator=(const ScopedDirectory&) = delete;
  ~ScopedDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Loads a copy of the fake plugin whose shape follows `variables`. A file that is mapped stays usable after it
/// is removed.
inline std::shared_ptr<const Plugin> load_fake(const std::map<std::string, std::string>& variables,
                                               fake_pjrt::Control** control = nullptr) {
  const ScopedDirectory directory;
  const std::string copy = (directory.path() / "fake.so").string();
  std::filesystem::copy_file(TPU_FAKE_PJRT, copy);
  const ScopedEnvironment environment(variables);
  auto plugin = Plugin::load(copy);
  if (control != nullptr) {
    void* handle = dlopen(copy.c_str(), RTLD_NOW | RTLD_NOLOAD);
    const auto function = reinterpret_cast<fake_pjrt::ControlFunction>(dlsym(handle, "fake_pjrt_control"));
    *control = function();
  }
  return plugin;
}

/// A client of a fresh fake plugin. Checks at the end that every object was released exactly once.
class FakePluginTest : public testing::Test {
 protected:
  void open(const std::map<std::string, std::string>& variables = {}) {
    plugin_ = load_fake(variables, &control_);
    client_ = Client::create(plugin_, {}, std::chrono::seconds(30));
  }
  void TearDown() override {
    client_.reset();
    if (control_ != nullptr) EXPECT_EQ(control_->live_objects(), 0);
  }
  void fail(const std::string& entry, uint32_t code, const std::string& message) {
    const std::lock_guard lock(control_->mutex);
    control_->failures[entry] = {code, message};
  }
  Buffer upload(std::initializer_list<float> values) {
    const TensorType type{DType::kF32, {static_cast<int64_t>(values.size())}};
    return client_->buffer_from_host(values.begin(), type, client_->devices()[0]);
  }

  std::shared_ptr<const Plugin> plugin_;
  std::unique_ptr<Client> client_;
  fake_pjrt::Control* control_ = nullptr;
};

/// The tpu::Error that `function` throws; a test failure if it throws none.
template <typename Function>
Error error_of(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(Code::kInternal, "");
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace tpu::pjrt
