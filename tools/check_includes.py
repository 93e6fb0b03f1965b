"""Checks that every file of csrc includes only what its layer may.

The layers, from the bottom up, with what each may include besides itself and whatever those include. Torch headers are
for the upper layers, Python's for `python` alone.
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent / "csrc"

MAY_INCLUDE = {
    "base": set(),
    "pjrt": {"base"},
    "stablehlo": {"base"},
    "lowering": {"stablehlo"},
    "runtime": {"pjrt"},
    "graph": {"lowering", "runtime"},
    "ffi": {"runtime"},
    "probe": {"runtime"},
    "device": {"graph"},
    "aten": {"device"},
    "compile": {"aten"},
    "distributed": {"aten"},
    "profiler": {"runtime"},
    "python": {"aten", "compile", "distributed", "ffi", "profiler"},
}
WITH_TORCH = {"device", "aten", "compile", "distributed", "profiler", "python"}
# pjrt/c_api.h is generated; its folder is a layer like any other.
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH_HEADER = re.compile(r"^(ATen|c10|torch|caffe2)/")
PYTHON_HEADER = re.compile(r"^(Python\.h|pybind11/|torch/csrc/utils/pybind\.h|torch/extension\.h|torch/python\.h)")


def reachable(layer: str) -> set[str]:
    """The layer, and every layer it may include."""
    seen = {layer}
    pending = [layer]
    while pending:
        for below in MAY_INCLUDE[pending.pop()] - seen:
            seen.add(below)
            pending.append(below)
    return seen


def findings(path: pathlib.Path) -> list[str]:
    """Violations in one file, as "file:line: text"."""
    layer = path.relative_to(ROOT).parts[0]
    if layer not in MAY_INCLUDE:
        return [f"{path}:1: folder csrc/{layer} has no layer in tools/check_includes.py"]
    allowed = reachable(layer)
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match is None:
            continue
        header = match[2]
        problem = None
        if TORCH_HEADER.match(header) and layer not in WITH_TORCH:
            problem = f"{layer} is free of torch"
        elif PYTHON_HEADER.match(header) and layer != "python":
            problem = "Python's headers are for csrc/python only"
        elif match[1] == '"':
            target = header.split("/")[0]
            if target in MAY_INCLUDE and target not in allowed:
                problem = f"{layer} may not include {target} (it may: {', '.join(sorted(allowed))})"
            elif target not in MAY_INCLUDE:
                problem = f'include paths start at csrc: "{header}"'
        if problem is not None:
            found.append(f"{path.relative_to(ROOT.parent)}:{number}: {problem}")
    return found


def main() -> int:
    """Prints all violations; 1 if there are any."""
    paths = sorted(p for p in ROOT.rglob("*") if p.suffix in (".h", ".cpp"))
    found = [line for path in paths for line in findings(path)]
    print("\n".join(found) if found else f"{len(paths)} files keep to their layers")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
