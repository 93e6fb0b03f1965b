"""The examination behind ``python -m torch_tpu doctor``.

Everything that can die is tried in a child process with a time-out: the plugin alone (tpu_probe), `import torch`, and
an operator through torch. This process imports neither torch nor the extension module.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
from dataclasses import dataclass, field

from torch_tpu._internal import names, probe

# Distributions worth naming in a report of a problem.
_DISTRIBUTIONS = (
    "torch",
    "torch-pjrt",
    "lammps-jax-pjrt-cpu",
    "fastatomstruct-xla-cpu",
    "xla-cpu-pjrt",
    "libtpu",
    "libneuronxla",
    "jax-cuda13-pjrt",
)
_VARIABLE_PREFIXES = ("TORCH_TPU_", "TORCH_DEVICE", "XLA_", "TPU_", "LIBTPU_", "NEURON_", "ALLOW_MULTIPLE_LIBTPU_LOAD")

_IMPORT_CHILD = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    from torch_tpu import _loader
print(json.dumps({
    "torch": torch.__version__,
    "loaded": _loader.is_loaded(),
    "built_for": _loader.built_for(),
    "warnings": [str(w.message) for w in caught if "torch_tpu" in str(w.message)],
}))
"""

_RUN_CHILD = """
import json, torch, torch_tpu
from torch_tpu import _loader
_loader.load()
x = torch.arange(6.0).reshape(2, 3)
y = (x.to("tpu") @ x.to("tpu").t()).cpu()
assert torch.equal(y, x @ x.t()), f"wrong numbers: {y.tolist()}"
count = torch.tpu.device_count()
print(json.dumps({"devices": [torch.tpu.get_device_name(i) for i in range(count)]}))
"""


@dataclass
class Report:
    """What was found: sections of facts, and problems, each with what to do about it."""

    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)

    def add(self, section: str, name: str, value: str) -> None:
        """Notes a fact."""
        self.facts.setdefault(section, {})[name] = value

    def problem(self, what: str, remedy: str) -> None:
        """Notes a problem and its remedy."""
        self.problems.append((what, remedy))


def run(timeout: float | None = None, as_json: bool = False) -> int:
    """Examines and prints. Returns 0 if everything works, 1 otherwise."""
    report = examine(timeout)
    if as_json:
        problems = [{"problem": what, "remedy": remedy} for what, remedy in report.problems]
        print(json.dumps({"healthy": not problems, "facts": report.facts, "problems": problems}, indent=2))
    else:
        _print(report)
    return 1 if report.problems else 0


def examine(timeout: float | None = None) -> Report:
    """Looks at versions, variables, the plugin, the cache, and torch, in this order. A time-out is per trial."""
    report = Report()
    _examine_versions(report)
    _examine_variables(report)
    plugin_works = _examine_plugin(report, timeout)
    torch_works = _examine_torch(report, timeout)
    if plugin_works and torch_works:
        _examine_operator(report, timeout)
    return report


def _examine_versions(report: Report) -> None:
    report.add("versions", "python", platform.python_version())
    for name in _DISTRIBUTIONS:
        try:
            report.add("versions", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    if "torch-pjrt" not in report.facts["versions"]:
        report.problem(
            "the metadata of torch-pjrt is not installed, so `import torch` does not load it",
            "install the package (pip install --no-build-isolation .), or `import torch_tpu` in your program",
        )
    report.add("versions", "TPU hardware", "present" if names.tpu_hardware() else "none")
    report.add("versions", "Neuron hardware", "present" if names.neuron_hardware() else "none")


def _examine_variables(report: Report) -> None:
    for name in sorted(os.environ):
        if name.startswith(_VARIABLE_PREFIXES) or name == "TORCH_DEVICE_BACKEND_AUTOLOAD":
            report.add("environment", name, os.environ[name])
    try:
        requested = names.requested()
    except ValueError as error:
        report.problem(str(error), "correct or unset TORCH_DEVICE")
        return
    if requested == "cpu":
        report.problem(
            "TORCH_DEVICE=cpu turns the device off", "unset TORCH_DEVICE to use device 'tpu'; leave it if this is meant"
        )
    if requested == "neuron":
        report.problem("TORCH_DEVICE asks for 'neuron', which is not supported yet", "set TORCH_DEVICE=tpu")
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        report.add("environment", "autoload", "off: programs must `import torch_tpu` themselves")


def _examine_plugin(report: Report, timeout: float | None) -> bool:
    result = probe.run(timeout)
    for key, value in result.facts:
        if key not in ("device", "healthy", "error", "cache_directory"):
            report.add("plugin", key, value)
    healthy = set(result.all("healthy"))
    for device in result.all("device"):
        number, _, kind = device.partition(" ")
        report.add("plugin", f"device {number}", f"{kind}, {'healthy' if number in healthy else 'NOT healthy'}")
    _examine_cache(report, result.first("cache_directory"))
    if result.error is None:
        return True
    where = result.first("path")
    report.problem(f"the plugin does not work: {result.error}", _plugin_remedy(result.error, where))
    return False


def _plugin_remedy(error: str, path: str | None) -> str:
    if "tpu_probe cannot be run" in error:
        return "build the native libraries: make build, or reinstall torch-pjrt"
    if "XLA_FLAGS" in error or os.environ.get("XLA_FLAGS"):
        return "unset XLA_FLAGS and try again"
    if os.environ.get("TORCH_TPU_PJRT_PLUGIN"):
        return "unset TORCH_TPU_PJRT_PLUGIN to use the default plugin, or correct it"
    if path is None:
        return "pip install --no-deps lammps-jax-pjrt-cpu==0.11.2"
    return f"reinstall the package that holds {path}, or set TORCH_TPU_PJRT_PLUGIN=cpu to run on the CPU"


def _examine_cache(report: Report, folder: str | None) -> None:
    if folder is None:
        return
    if not folder:
        report.add("compile cache", "folder", "off (TORCH_TPU_CACHE)")
        return
    report.add("compile cache", "folder", folder)
    files = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()] if os.path.isdir(folder) else []
    size = 0
    for path in files:
        try:
            size += path.stat().st_size
        except OSError:  # evicted by another process meanwhile
            continue
    report.add("compile cache", "size", f"{size / 1e6:.1f} MB in {len(files)} files")
    absolute = pathlib.Path(folder).absolute()
    nearest = next(path for path in (absolute, *absolute.parents) if os.path.lexists(path))
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        report.problem(
            f"the compile cache cannot be written: {folder}",
            "set TORCH_TPU_CACHE_DIR to a folder that can, or TORCH_TPU_CACHE=0 to do without",
        )


def _examine_torch(report: Report, timeout: float | None) -> bool:
    found, error = _child(_IMPORT_CHILD, timeout)
    if found is None:
        report.problem(
            f"`import torch` fails: {error}", "reinstall torch; TORCH_DEVICE_BACKEND_AUTOLOAD=0 loads it alone"
        )
        return False
    report.add("torch", "version", str(found["torch"]))
    report.add("torch", "native libraries built for", str(found["built_for"]))
    report.add("torch", "device 'tpu' registered", "yes" if found["loaded"] else "no")
    warned = found["warnings"]
    for warning in warned if isinstance(warned, list) else []:
        report.problem(str(warning), "see the message; then run the doctor again")
    if not found["loaded"] and not warned and not os.environ.get("TORCH_DEVICE"):
        report.problem("torch_tpu did not register its device", "run `python -c 'import torch_tpu'` for the reason")
    return bool(found["loaded"])


def _examine_operator(report: Report, timeout: float | None) -> None:
    found, error = _child(_RUN_CHILD, timeout)
    if found is None:
        report.problem(
            f"the plugin works, but an operator through torch does not: {error}",
            "run again with TORCH_TPU_DEBUG=4, and report the output",
        )
        return
    devices = found["devices"]
    report.add("torch", "devices", ", ".join(str(d) for d in devices) if isinstance(devices, list) else "")
    report.add("torch", "matmul on tpu", "right")


def _child(code: str, timeout: float | None) -> tuple[dict[str, object] | None, str]:
    """Runs Python code that prints one JSON object; (object, "") or (None, what went wrong)."""
    seconds = probe.DEFAULT_TIMEOUT if timeout is None else timeout
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {seconds:g} seconds"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode != 0:
        how = f"signal {-done.returncode}" if done.returncode < 0 else "an exception"
        return None, f"{how}: {lines[-1] if lines else 'no message'}"
    try:
        return dict(json.loads(done.stdout.splitlines()[-1])), ""
    except (ValueError, IndexError):
        return None, f"unexpected output: {done.stdout[-200:]!r}"


def _print(report: Report) -> None:
    for section, facts in report.facts.items():
        print(f"{section}")
        width = max(len(name) for name in facts)
        for name, value in facts.items():
            print(f"  {name:<{width}}  {value}")
    if not report.problems:
        print("\nhealthy")
        return
    print(f"\n{len(report.problems)} problem{'s' if len(report.problems) > 1 else ''}")
    for what, remedy in report.problems:
        print(f"- {what}\n  what to do: {remedy}")
