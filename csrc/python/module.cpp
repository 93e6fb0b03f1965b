// Python bindings; python/torch_tpu/_C.pyi documents every function. Functions that can block release the
// GIL, since compile workers and other threads may need it to name the user's line.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <filesystem>

#include "aten/changing_sizes.h"
#include "aten/fallback.h"
#include "aten/registration.h"
#include "base/log.h"
#include "base/waiting.h"
#include "device/device.h"
#include "device/errors.h"
#include "device/generator.h"
#include "device/storage.h"
#include "graph/recorder.h"
#include "lowering/table.h"
#include "python/capture.h"
#include "python/decompose.h"
#include "python/exit.h"
#include "python/user_frame.h"
#include "runtime/executable_file.h"
#include "runtime/memory_stats.h"
#include "stablehlo/neuron_limits.h"

namespace tpu::python {
namespace {

namespace py = pybind11;
using Context = runtime::Context;
using NoGil = py::call_guard<py::gil_scoped_release>;

// tpu::Error reaches Python as what PyTorch raises for the same mistake.
void translate_error(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& error) {
    PyObject* type = PyExc_RuntimeError;
    if (error.code() == Code::kValue) type = PyExc_ValueError;
    if (error.code() == Code::kIndex) type = PyExc_IndexError;
    if (error.code() == Code::kType) type = PyExc_TypeError;
    if (error.code() == Code::kNotImplemented) type = PyExc_NotImplementedError;
    py::object imported;  // PyTorch's own exceptions are not exported to C++
    if (error.code() == Code::kLinearAlgebra) imported = py::module_::import("torch._C").attr("_LinAlgError");
    PyErr_SetString(imported ? imported.ptr() : type, error.what());
  } catch (python_error& error) {
    error.restore();
  }
}

// Runs Python's signal handlers while the main thread waits for the device. What they raise, usually
// KeyboardInterrupt, ends the wait; PyTorch hands this exception on to Python.
void check_signals() {
  python_error error;
  bool raised = false;
  {
    const py::gil_scoped_acquire gil;
    raised = PyErr_CheckSignals() != 0;
    if (raised) error.persist();
  }
  if (raised) throw error;
}

void flush_all(const char* reason) {
  if (!Context::initialized() || Context::in_bad_fork()) return;
  for (int i = 0; i < Context::get().devices(); ++i) graph::Recorder::of(i).flush(reason);
}

void set_eager_mode(const std::string& name) {
  const graph::Mode mode = graph::parse_mode(name);
  flush_all("mode change");
  graph::set_mode(mode);
}

struct DeviceProperties {
  std::string name, platform;
  int id = 0;
  int local_hardware_id = 0;
  size_t total_memory = 0;
  std::map<std::string, std::string> attributes;
};

DeviceProperties device_properties(int index) {
  Context& context = Context::get();
  const auto resolved = device::resolve(static_cast<c10::DeviceIndex>(index));
  const pjrt::Device& device = context.device(resolved);
  return {runtime::display_device_kind(device.kind()),
          context.client().platform_name(),
          device.id(),
          device.local_hardware_id(),
          device::total_memory(resolved),
          device.attributes()};
}

std::map<std::string, std::string> client_info() {
  if (!Context::initialized()) return {};
  Context& context = Context::get();
  std::map<std::string, std::string> info = context.client().plugin().attributes();
  info["provider"] = context.choice().provider;
  info["plugin_path"] = context.choice().path;
  info["pjrt_api_version"] = std::to_string(context.client().plugin().major_version()) + "." +
                             std::to_string(context.client().plugin().minor_version());
  info["platform_name"] = context.client().platform_name();
  info["platform_version"] = context.client().platform_version();
  return info;
}

std::map<std::string, double> compile_stats() {
  std::map<std::string, double> stats{
      {"compiles", 0}, {"compile_seconds", 0}, {"memory_hits", 0}, {"disk_hits", 0}, {"file_hits", 0},
      {"failed", 0},   {"programs", 0},        {"executions", 0},  {"nodes", 0},     {"waits", 0}};
  if (!Context::initialized()) return stats;
  const runtime::CompileStats cache = Context::get().cache().stats();
  stats["compiles"] = static_cast<double>(cache.compiled);
  stats["compile_seconds"] = cache.compile_seconds;
  stats["memory_hits"] = static_cast<double>(cache.memory_hits);
  stats["disk_hits"] = static_cast<double>(cache.disk_hits);
  stats["file_hits"] = static_cast<double>(cache.file_hits);
  stats["failed"] = static_cast<double>(cache.failed);
  stats["programs"] = static_cast<double>(cache.programs);
  for (int i = 0; i < Context::get().devices(); ++i) {
    const auto recorded = graph::Recorder::of(i).statistics();
    stats["executions"] += static_cast<double>(recorded.launches);
    stats["nodes"] += static_cast<double>(recorded.nodes);
    stats["waits"] += static_cast<double>(recorded.waits);
  }
  return stats;
}

py::list compile_events() {
  py::list events;
  if (!Context::initialized()) return events;
  for (const runtime::CompileEvent& event : Context::get().cache().stats().recent) {
    py::dict entry;
    entry["operators"] = event.label;
    entry["location"] = event.location;
    entry["reason"] = event.reason;
    entry["source"] = event.source;
    entry["seconds"] = event.seconds;
    events.append(std::move(entry));
  }
  return events;
}

std::map<std::string, int64_t> donation_stats() {
  std::map<std::string, int64_t> stats{{"donated", 0}, {"donatable", 0}};
  if (!Context::initialized()) return stats;
  for (int i = 0; i < Context::get().devices(); ++i) {
    const auto recorded = graph::Recorder::of(i).statistics();
    stats["donated"] += recorded.donated;
    stats["donatable"] += recorded.donatable;
  }
  return stats;
}

void clear_compile_cache(bool disk) {
  flush_all("cache cleared");
  if (Context::initialized()) {
    for (int i = 0; i < Context::get().devices(); ++i) graph::Recorder::of(i).clear_programs();
  }
  if (!disk || runtime::cache_directory().empty()) return;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(runtime::cache_directory(), ignored)) {
    if (entry.path().extension() == ".exe") std::filesystem::remove(entry.path(), ignored);
  }
}

std::vector<std::string> operators() {
  std::vector<std::string> names;
  for (const lowering::Row& row : lowering::table()) names.emplace_back(row.name);
  return names;
}

std::map<std::string, std::string> build_info() {
#if defined(__SANITIZE_ADDRESS__)
  const char* sanitizers = "address";
#else
  const char* sanitizers = "";
#endif
  return {{"torch_version", TORCH_VERSION}, {"compiler", __VERSION__}, {"sanitizers", sanitizers}};
}

void bind_life_cycle(py::module_& m) {
  m.def("set_plugin_search_path", &runtime::set_plugin_search_path);
  m.def("choose_plugin", [] {
    const runtime::PluginChoice choice = runtime::choose_plugin();
    return std::tuple(choice.provider, choice.path, choice.reason);
  });
  m.def("init", [] { Context::get(); }, NoGil());
  m.def("is_available", [] { return !Context::in_bad_fork() && Context::available(); });
  m.def("is_initialized", &Context::initialized);
  m.def("after_fork_in_child", &Context::mark_forked_child);
  m.def("is_in_bad_fork", &Context::in_bad_fork);
  m.def("drain", &drain, NoGil());
}

void bind_devices(py::module_& m) {
  py::class_<DeviceProperties>(m, "DeviceProperties")
      .def_readonly("name", &DeviceProperties::name)
      .def_readonly("platform", &DeviceProperties::platform)
      .def_readonly("id", &DeviceProperties::id)
      .def_readonly("local_hardware_id", &DeviceProperties::local_hardware_id)
      .def_readonly("total_memory", &DeviceProperties::total_memory)
      .def_readonly("attributes", &DeviceProperties::attributes)
      .def("__repr__", [](const DeviceProperties& p) {
        return "DeviceProperties(name='" + p.name + "', platform='" + p.platform + "', id=" + std::to_string(p.id) +
               ", total_memory=" + std::to_string(p.total_memory >> 20) + "MB)";
      });
  m.def("device_count", &Context::device_count, NoGil());
  m.def("current_device", [] { return static_cast<int>(device::current_device()); });
  m.def("set_device", [](int index) { device::set_current_device(static_cast<c10::DeviceIndex>(index)); }, NoGil());
  const auto exchange = [](int index) {
    if (index < 0) return -1;
    const int old = device::current_device();
    device::set_current_device(static_cast<c10::DeviceIndex>(index));
    return old;
  };
  m.def("exchange_device", exchange, NoGil());
  m.def("maybe_exchange_device", exchange, NoGil());
  m.def(
      "synchronize",
      [](int index) { graph::Recorder::of(device::resolve(static_cast<c10::DeviceIndex>(index))).synchronize(); },
      NoGil());
  m.def("device_properties", &device_properties, NoGil());
  m.def("client_info", &client_info);
  m.def("default_generator", [](int index) {
    return py::reinterpret_steal<py::object>(
        THPGenerator_Wrap(device::default_generator(static_cast<c10::DeviceIndex>(index))));
  });
  m.def("manual_seed_all", [](uint64_t seed) {
    for (int i = 0; i < runtime::kMaxDevices; ++i) {
      at::Generator generator = device::default_generator(static_cast<c10::DeviceIndex>(i));
      std::lock_guard lock(generator.mutex());
      generator.set_current_seed(seed);
    }
  });
}

void bind_engine(py::module_& m) {
  m.def("eager_mode", [] { return graph::to_string(graph::mode()); });
  m.def("set_eager_mode", &set_eager_mode, NoGil());
  m.def("host_fallbacks", &aten::host_fallbacks);
  m.def("reset_host_fallbacks", &aten::reset_host_fallbacks);
  m.def("host_fallback_mode", [] { return aten::to_string(aten::host_fallback_mode()); });
  m.def("set_host_fallback_mode",
        [](const std::string& mode) { aten::set_host_fallback_mode(aten::parse_host_fallback(mode)); });
  m.def("compile_stats", &compile_stats);
  m.def("compile_events", &compile_events);
  m.def("compile_guard", [] { return runtime::to_string(runtime::compile_guard()); });
  m.def("set_compile_guard",
        [](const std::string& guard) { runtime::set_compile_guard(runtime::parse_compile_guard(guard)); });
  m.def("stored_sizes", [](const at::Tensor& tensor) {
    const TensorType type = device::slot_of(tensor).load()->stored_type();
    return std::vector<int64_t>(type.dims.begin(), type.dims.end());
  });
  m.def("bounded_sizes", [] { return aten::to_string(aten::bounded_sizes()); });
  m.def("set_bounded_sizes",
        [](const std::string& setting) { aten::set_bounded_sizes(aten::parse_bounded_sizes(setting)); });
  m.def("reset_compile_stats", [] {
    if (Context::initialized()) Context::get().cache().reset_stats();
  });
  m.def("clear_compile_cache", &clear_compile_cache, NoGil());
  m.def("cache_dir", &runtime::cache_directory);
  m.def("cache_entries",
        [] { return Context::initialized() ? Context::get().cache().disk_entries() : std::vector<std::string>(); });
  m.def(
      "compile_executable",
      [](const std::string& text) {
        const runtime::CompileCache& cache = Context::get().cache();
        const std::string bytes = cache.executable_of(text);
        const py::gil_scoped_acquire gil;
        return std::pair(cache.environment(), py::bytes(bytes));
      },
      py::arg("text"), NoGil());
  m.def(
      "write_executable",
      [](const std::string& path, const std::string& environment, const std::string& text, const std::string& bytes) {
        runtime::write_executable(path, runtime::executable_key(environment, text), bytes);
      },
      py::arg("path"), py::arg("environment"), py::arg("text"), py::arg("executable"), NoGil());
  m.def("debug_level", &log::level);
  m.def("set_debug_level", &log::set_level);
  m.def("operators", &operators);
  m.def("build_info", &build_info);
  m.def("neuron_refusals", &stablehlo::neuron_refusals);
  m.def("_donation_stats", &donation_stats);
}

void bind_topologies(py::module_& m) {
  py::class_<pjrt::Topology>(m, "Topology")
      .def(py::init([](const std::string& provider, const std::string& name) {
             const runtime::PluginChoice choice = runtime::find_provider(provider);
             runtime::set_environment(choice);
             return pjrt::Topology::create(pjrt::Plugin::load(choice.path), name, {});
           }),
           NoGil())
      .def_property_readonly("platform", &pjrt::Topology::platform_name)
      .def(
          "compile",
          [](const pjrt::Topology& topology, const std::string& text) {
            return topology.compile(text, runtime::compile_options(topology.platform_name()));
          },
          NoGil())
      .def_property_readonly("device_kind", [](const pjrt::Topology& topology) { return topology.device().kind; })
      .def_property_readonly("device_attributes",
                             [](const pjrt::Topology& topology) { return topology.device().attributes; })
      .def_property_readonly("device_count", &pjrt::Topology::device_count)
      .def_property_readonly("environment", [](const pjrt::Topology& topology) {
        return runtime::executable_environment(topology.plugin(), topology.platform_name(), topology.device().kind);
      });
  py::class_<pjrt::CompiledProgram>(m, "CompiledProgram")
      .def("memory",
           [](const pjrt::CompiledProgram& program) {
             const pjrt::CompiledProgram::Memory memory = program.memory();
             return std::map<std::string, int64_t>{{"arguments", memory.arguments}, {"outputs", memory.outputs},
                                                   {"aliased", memory.aliased},     {"temporaries", memory.temporaries},
                                                   {"code", memory.code},           {"peak", memory.peak}};
           })
      .def("cost", &pjrt::CompiledProgram::cost)
      .def("optimized",
           [](const pjrt::CompiledProgram& program) {
             const pjrt::CompiledProgram::Text text = program.optimized();
             return std::pair(text.format, py::bytes(text.bytes));
           })
      .def("serialize", [](const pjrt::CompiledProgram& program) { return py::bytes(program.serialize()); });
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  py::register_exception_translator(&translate_error);
  bind_life_cycle(m);
  bind_devices(m);
  bind_engine(m);
  bind_topologies(m);
  install_location_provider();
  bind_decomposer(m);
  bind_capture(m);
  set_interrupt_check(&check_signals);
  install_exit_handler();
  aten::register_rows();
}

}  // namespace tpu::python
