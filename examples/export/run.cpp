// export_run: runs a program that torch_tpu.export.save wrote, without Python and without torch.
//
// usage: export_run DIRECTORY INPUTS OUTPUTS [--seed N] [--packages DIRECTORY]...
//   DIRECTORY   with program.mlir, weights.safetensors and signature.json; and program.exe, where there is one, which
//               saves the compiler's time on the kind of device that it is for
//   INPUTS      a safetensors file with a tensor for each input, by the names in the signature
//   OUTPUTS     the file to write: a tensor for each result, and "written.NAME" for each input or weight that the
//               program writes to
//   --seed      of the random operators; 0 by default. As torch.manual_seed(N) before the first call in Python
//   --packages  a folder with installed packages, to look for PJRT plugins in; TORCH_TPU_PJRT_PLUGIN names one itself
// Exit status 0, 1 after a message on standard error, or 2 for wrong arguments.

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "pjrt/client.h"
#include "runtime/compile_cache.h"
#include "runtime/executable_file.h"
#include "runtime/provider.h"
#include "stablehlo/program_types.h"
#include "tensor_file.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using tpu::DType;
using tpu::TensorType;
using tpu::pjrt::Buffer;
using tpu::pjrt::Client;
using tpu::pjrt::Executable;

constexpr std::chrono::seconds kStart{300};

struct Arguments {
  fs::path directory, inputs, outputs;
  uint64_t seed = 0;
  std::vector<std::string> packages;
};

std::optional<Arguments> parse(const std::vector<std::string>& given) {
  Arguments arguments;
  std::vector<fs::path> paths;
  for (size_t i = 0; i < given.size(); ++i) {
    const bool named = given[i] == "--seed" || given[i] == "--packages";
    if (!named) {
      paths.emplace_back(given[i]);
    } else if (i + 1 == given.size()) {
      return std::nullopt;
    } else if (given[i] == "--seed") {
      const std::string& text = given[++i];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), arguments.seed);
      if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    } else {
      arguments.packages.push_back(given[++i]);
    }
  }
  if (paths.size() != 3) return std::nullopt;
  arguments.directory = paths[0];
  arguments.inputs = paths[1];
  arguments.outputs = paths[2];
  return arguments;
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error(path.string() + " cannot be read");
  return text.str();
}

json read_signature(const fs::path& directory) {
  json signature = json::parse(read_text(directory / "signature.json"));
  constexpr int kVersion = 1;
  if (signature.at("version") != kVersion)
    throw std::runtime_error("signature.json has a version that is unknown here");
  return signature;
}

TensorType type_of(const json& entry) {
  TensorType type;
  const auto name = entry.at("dtype").get<std::string>();
  int number = 0;
  while (number < tpu::kDTypeCount && tpu::torch_name(static_cast<DType>(number)) != name) ++number;
  if (number == tpu::kDTypeCount) throw std::runtime_error("unknown dtype " + name);
  type.dtype = static_cast<DType>(number);
  for (const json& size : entry.at("sizes")) type.dims.push_back(size.get<int64_t>());
  return type;
}

/// Throws unless the text is what the signature says: who reads a result counts on its size.
void check_types(const json& signature, const std::string& text) {
  tpu::stablehlo::ProgramTypes wanted;
  for (const json& parameter : signature.at("parameters")) wanted.parameters.push_back(type_of(parameter));
  for (const json& output : signature.at("outputs")) wanted.results.push_back(type_of(output));
  for (const json& number : signature.at("written")) {
    wanted.results.push_back(wanted.parameters.at(number.get<size_t>()));
  }
  const auto draws = static_cast<int64_t>(signature.at("random_blocks").size());
  if (draws > 0) wanted.parameters.push_back({DType::kS64, {2 * draws}});
  const auto flags = static_cast<int64_t>(signature.at("checks").size());
  if (flags > 0) wanted.results.push_back({DType::kBool, {flags}});
  const tpu::stablehlo::ProgramTypes there = tpu::stablehlo::program_types(text);
  if (there == wanted) return;
  throw std::runtime_error("signature.json says " + to_string(wanted) + ", program.mlir is " + to_string(there));
}

/// The tensor of a parameter: a weight or an input, by name.
HostTensor read_parameter(const json& signature, const json& parameter, TensorFileReader& weights,
                          TensorFileReader& inputs) {
  const bool is_weight = parameter.contains("weight");
  const std::string name =
      is_weight ? parameter.at("weight").get<std::string>()
                : signature.at("inputs").at(parameter.at("input").get<size_t>()).at("name").get<std::string>();
  TensorFileReader& file = is_weight ? weights : inputs;
  const TensorType wanted = type_of(parameter);
  if (!(file.type(name) == wanted)) {
    throw std::runtime_error("expected " + name + " to be " + tpu::to_string(wanted) + ", got " +
                             tpu::to_string(file.type(name)));
  }
  return file.read(name);
}

/// Seed and offset of each random operator, int64. An operator moves the offset for those after it.
HostTensor random_words(const json& signature, uint64_t seed) {
  std::vector<uint64_t> words;
  uint64_t offset = 0;
  for (const json& blocks : signature.at("random_blocks")) {
    words.insert(words.end(), {seed, offset});
    offset += blocks.get<uint64_t>();
  }
  const auto* bytes = reinterpret_cast<const char*>(words.data());
  return {{DType::kS64, {static_cast<int64_t>(words.size())}}, {bytes, bytes + sizeof(uint64_t) * words.size()}};
}

/// The executable beside the program if it is for this device, else what the compiler makes of the text.
std::unique_ptr<Executable> load_or_compile(const Client& client, const fs::path& directory, const std::string& text) {
  using namespace tpu::runtime;
  const std::string environment =
      executable_environment(client.plugin(), client.platform_name(), client.devices()[0].kind());
  const auto bytes = read_executable((directory / "program.exe").string(), executable_key(environment, text));
  return bytes ? client.deserialize(*bytes) : client.compile(text, compile_options(client.platform_name()));
}

Buffer to_device(const Client& client, const HostTensor& tensor) {
  return client.buffer_from_host(tensor.bytes.data(), tensor.type, client.devices()[0]);
}

HostTensor read_buffer(const Buffer& buffer, const TensorType& type) {
  HostTensor tensor{type, std::vector<char>(type.bytes())};
  if (!tensor.bytes.empty()) buffer.copy_to_host(tensor.bytes.data(), tensor.bytes.size());
  return tensor;
}

/// Throws for the first flag that is set.
void raise_failed_checks(const json& signature, const Buffer& flags) {
  const json& checks = signature.at("checks");
  const HostTensor values = read_buffer(flags, {DType::kBool, {static_cast<int64_t>(checks.size())}});
  for (size_t i = 0; i < checks.size(); ++i) {
    if (values.bytes[i] == 0) continue;
    throw std::runtime_error(checks[i].at("raises").get<std::string>() + ": " +
                             checks[i].at("operator").get<std::string>() + ": " +
                             checks[i].at("message").get<std::string>());
  }
}

/// A parameter's name in the files.
std::string name_of(const json& signature, size_t parameter) {
  const json& entry = signature.at("parameters").at(parameter);
  if (entry.contains("weight")) return entry.at("weight").get<std::string>();
  return signature.at("inputs").at(entry.at("input").get<size_t>()).at("name").get<std::string>();
}

std::map<std::string, HostTensor> read_results(const json& signature, const std::vector<Buffer>& parameters,
                                               const std::vector<Buffer>& outputs) {
  const auto written = signature.at("written").get<std::vector<size_t>>();
  const size_t first_written = signature.at("outputs").size();
  const auto value_of = [&](size_t parameter) {
    const TensorType type = type_of(signature.at("parameters").at(parameter));
    const auto found = std::find(written.begin(), written.end(), parameter);
    if (found == written.end()) return read_buffer(parameters.at(parameter), type);
    return read_buffer(outputs.at(first_written + static_cast<size_t>(found - written.begin())), type);
  };
  std::map<std::string, HostTensor> results;
  for (const json& result : signature.at("results")) {
    const auto name = result.at("name").get<std::string>();
    if (result.contains("output")) {
      const auto number = result.at("output").get<size_t>();
      results[name] = read_buffer(outputs.at(number), type_of(signature.at("outputs").at(number)));
    } else if (result.contains("parameter")) {
      results[name] = value_of(result.at("parameter").get<size_t>());
    } else if (result.contains("dtype")) {
      results[name] = {type_of(result), {}};  // without elements
    }
  }
  for (size_t parameter : written) results["written." + name_of(signature, parameter)] = value_of(parameter);
  return results;
}

void run(const Arguments& arguments) {
  const json signature = read_signature(arguments.directory);
  const std::string text = read_text(arguments.directory / "program.mlir");
  check_types(signature, text);
  TensorFileReader weights(arguments.directory / "weights.safetensors");
  TensorFileReader inputs(arguments.inputs);

  tpu::runtime::set_plugin_search_path(arguments.packages);
  const tpu::runtime::PluginChoice choice = tpu::runtime::choose_plugin();
  tpu::runtime::prepare_plugin(choice);
  const auto client = Client::create(tpu::pjrt::Plugin::load(choice.path), choice.options, kStart);
  if (client->devices().empty()) throw std::runtime_error("plugin " + choice.path + " has no device");
  const tpu::pjrt::Device& device = client->devices()[0];
  const auto program = load_or_compile(*client, arguments.directory, text);

  std::vector<Buffer> parameters;
  for (const json& parameter : signature.at("parameters")) {
    parameters.push_back(to_device(*client, read_parameter(signature, parameter, weights, inputs)));
  }
  const HostTensor words = random_words(signature, arguments.seed);
  if (words.type.numel() > 0) parameters.push_back(to_device(*client, words));

  std::vector<PJRT_Buffer*> raw;
  for (const Buffer& parameter : parameters) raw.push_back(parameter.raw());
  // What the program writes to gives its memory to the new values.
  const tpu::pjrt::ExecuteResult made = program->execute(raw, {}, &device, /*want_event=*/true);
  made.done.await();
  if (!signature.at("checks").empty()) raise_failed_checks(signature, made.outputs.back());
  write_tensor_file(arguments.outputs, read_results(signature, parameters, made.outputs));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto arguments = parse(std::vector<std::string>(argv + 1, argv + argc));
    if (!arguments) {
      std::fprintf(stderr, "usage: export_run DIRECTORY INPUTS OUTPUTS [--seed N] [--packages DIRECTORY]...\n");
      return 2;
    }
    run(*arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
