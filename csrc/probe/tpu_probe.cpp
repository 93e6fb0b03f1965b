// tpu_probe: loads a PJRT plugin in a process of its own, starts a client, and runs one small program on every
// device. What a plugin may do to its host, aborting or hanging, then happens here; the parent sees an exit status.
//
// usage: tpu_probe PLUGIN [NAME=KIND:VALUE ...]   this file, with these create options (KIND: s text, i integer, b 0 or
// 1)
//        tpu_probe [DIRECTORY ...]                the plugin that the engine would choose, with installed packages in
//                                                 these directories and the same environment variables
// Prints one "key<TAB>value" line per fact, as soon as it is known. Exit status 0 if every device works; 1, after a
// line "error", if something reported a failure.

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "pjrt/client.h"
#include "runtime/provider.h"

namespace {

using tpu::pjrt::Client;
using tpu::pjrt::Device;
using tpu::pjrt::Plugin;
using tpu::runtime::PluginChoice;

// The parent kills the probe when its patience ends, so the client gets all the time there is.
constexpr std::chrono::hours kPatience{24};
constexpr char kProgram[] = R"(module @probe {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<4xf32>
    %1 = stablehlo.add %0, %arg0 : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
)";

void print(const std::string& key, std::string value) {
  for (char& c : value) {
    if (c == '\n' || c == '\t') c = ' ';
  }
  std::printf("%s\t%s\n", key.c_str(), value.c_str());
  std::fflush(stdout);
}

void print_facts(const Client& client) {
  print("platform_name", client.platform_name());
  print("platform_version", client.platform_version());
  for (const Device& device : client.devices()) {
    const std::string name = tpu::runtime::display_device_kind(device.kind());
    print("device", std::to_string(device.id()) + " " + name);
  }
}

/// Throws if x * x + x is not what it should be on `device`.
void check_device(const Client& client, const tpu::pjrt::Executable& program, const Device& device) {
  constexpr std::array<float, 4> kInput = {0.0F, 1.0F, -2.0F, 0.5F};
  constexpr std::array<float, 4> kWanted = {0.0F, 2.0F, 2.0F, 0.75F};
  const tpu::TensorType type{tpu::DType::kF32, {4}};
  const tpu::pjrt::Buffer input = client.buffer_from_host(kInput.data(), type, device);
  std::array<PJRT_Buffer*, 1> inputs = {input.raw()};
  tpu::pjrt::ExecuteResult result = program.execute(inputs, {}, &device, false);
  std::array<float, 4> output{};
  result.outputs.at(0).copy_to_host(output.data(), sizeof(output));
  if (output != kWanted) throw std::runtime_error("device computes wrong numbers: " + device.debug_string());
}

void add_option(tpu::pjrt::Options& options, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || text.size() < equals + 3 || text[equals + 2] != ':') {
    throw std::invalid_argument("option is not NAME=KIND:VALUE: " + text);
  }
  const std::string name = text.substr(0, equals);
  const std::string value = text.substr(equals + 3);
  switch (text[equals + 1]) {
    case 's':
      options[name] = value;
      return;
    case 'i':
      options[name] = int64_t{std::stoll(value)};
      return;
    case 'b':
      options[name] = value == "1";
      return;
    default:
      throw std::invalid_argument("option of unknown kind: " + text);
  }
}

/// The plugin that the command line names. A file's flags are not tried again: whoever names it does that, by this very
/// process.
PluginChoice choice_of(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && !std::filesystem::is_directory(arguments[0])) {
    PluginChoice choice{"custom", arguments[0], {}, "named on the command line"};
    for (size_t i = 1; i < arguments.size(); ++i) add_option(choice.options, arguments[i]);
    return choice;
  }
  print("cache_directory", tpu::runtime::cache_directory());
  tpu::runtime::set_plugin_search_path(arguments);
  PluginChoice choice = tpu::runtime::choose_plugin();
  print("provider", choice.provider);
  print("path", choice.path);
  print("reason", choice.reason);
  tpu::runtime::prepare_plugin(choice);
  return choice;
}

void probe(const std::vector<std::string>& arguments) {
  const PluginChoice choice = choice_of(arguments);
  const auto plugin = Plugin::load(choice.path);
  print("pjrt_api_version", std::to_string(plugin->major_version()) + "." + std::to_string(plugin->minor_version()));
  for (const auto& [key, value] : plugin->attributes()) print(key, value);
  const auto client = Client::create(plugin, choice.options, kPatience);
  print_facts(*client);
  if (client->devices().empty()) throw std::runtime_error("the plugin has no device");
  const auto program = client->compile(kProgram, {});
  for (const Device& device : client->devices()) {
    check_device(*client, *program, device);
    print("healthy", std::to_string(device.id()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    probe(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    print("error", error.what());
    return 1;
  }
  return 0;
}
