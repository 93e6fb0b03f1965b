#!/usr/bin/env python3
"""Writes docs/operators.md from the built engine: what runs natively, for which dtypes, what the Neuron compiler
refuses, and what PyTorch's CPU has that we do not.

    python tools/operators_page.py            # rewrite the page
    python tools/operators_page.py --check    # exit with 1 if it is out of date

Family and file of a row come from the sources, dtypes and refusals from docs/operators.json (measure_operators.py makes
it); everything else comes from the dispatcher and the engine's own table.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
import sys

import torch
import torch_tpu
from torch_tpu._internal.decompositions import lookup

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "operators.md"
MEASURED = ROOT / "docs" / "operators.json"
# Class of dtypes -> those of it that were tried.
CLASSES = {
    "f32": ("float32",),
    "f64": ("float64",),
    "half": ("bfloat16", "float16"),
    "complex": ("complex64",),
    "int": ("int64", "int32", "uint8"),
    "bool": ("bool",),
    "unsigned": ("uint32",),
}
NAME = re.compile(r'"([A-Za-z_0-9]+(?:\.[A-Za-z_0-9]+)?)"')
KEY = "PrivateUse1"


def families(rows: set[str]) -> dict[str, str]:
    """Row name -> family, from the sources."""
    found: dict[str, str] = {}
    # Rules about sizes name rows, too.
    sources = [p for p in sorted((ROOT / "csrc" / "lowering").glob("*.cpp")) if p.stem != "bounded"]
    names = [p.stem for p in sources]
    for path in sources:
        # normalization_layer.cpp belongs to normalization.cpp.
        owner = min((n for n in names if path.stem == n or path.stem.startswith(n + "_")), key=len)
        for name in rows & set(NAME.findall(path.read_text())):
            found[name] = owner
    return found


def kernel(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def has_cpu(name: str) -> bool:
    """Whether PyTorch itself computes `name` on the CPU with a kernel of its own."""
    return kernel(name, "CPU")


def composite(name: str) -> bool:
    return any(
        kernel(name, k)
        for k in ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    )


def ends_in_out_form(overload: str) -> bool:
    functional = full(base_name(overload))
    if functional not in torch._C._dispatch_get_all_op_names() or not composite(functional):
        return False
    # Neither made of other operators, nor by a kernel or decomposition of ours.
    ours = kernel(functional, KEY) or lookup(functional, "") is not None
    return not ours and not kernel(functional, "CompositeImplicitAutograd")


def full(overload: str) -> str:
    return "aten::" + overload


def base_name(overload: str) -> str:
    return overload.split(".")[0]


def packet(overload: str, rows: set[str]) -> str:
    """The operator that an overload is a form of: add for add_.Tensor and add.out."""
    base = base_name(overload)
    functional = base.removesuffix("_")
    return functional if functional in rows and base not in rows else base


def outcomes(served: dict[str, dict[str, str]], names: set[str]) -> dict[str, dict[str, str]]:
    """Operator -> dtype -> how it is served: the best of its overloads."""
    best: dict[str, dict[str, str]] = collections.defaultdict(dict)
    ranks = ["native", "decomposed", "composite"]
    for overload, by_dtype in served.items():
        name = packet(overload, names)
        for dtype, how in by_dtype.items():
            outcome = how if how in ranks else "refused"
            order = [*ranks, "refused"]
            best[name][dtype] = min(best[name].get(dtype, "refused"), outcome, key=order.index)
    return best


def dtypes_of(by_dtype: dict[str, str], how: str) -> str:
    """Classes of which every dtype that was met is served in this way; where only some are, those dtypes."""
    parts = []
    for name, members in CLASSES.items():
        met = [dtype for dtype in members if dtype in by_dtype]
        so = [dtype for dtype in met if by_dtype[dtype] == how]
        if so:
            parts.append(name if len(so) == len(met) else " ".join(so))
    return ", ".join(parts)


def neuron_refusals(neuron: dict[str, dict[str, list[str]]], rows: list[str]) -> str:
    """Reasons for the rows of one operator: those met with float32 first, then those of other dtypes only."""
    found: dict[str, list[str]] = {}
    for dtype, by_row in neuron.items():
        for row in rows:
            for reason in by_row.get(row, []):
                found.setdefault(reason, []).append(dtype)
    parts = []
    for reason, dtypes in sorted(found.items()):
        met = list(dict.fromkeys(dtypes))
        parts.append(reason if "float32" in met else f"{reason} ({', '.join(met)})")
    return ", ".join(parts)


def page() -> str:
    measured = json.loads(MEASURED.read_text())
    rows = set(torch_tpu.operators())
    family_of = families(rows)
    lost = sorted(rows - family_of.keys())
    if lost:
        raise SystemExit(f"rows whose source was not found: {', '.join(lost)}")
    overloads = sorted(
        n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")
    )
    native = [o for o in overloads if kernel(full(o), KEY)]
    derived = [o for o in native if o not in rows]
    others = [o for o in overloads if not kernel(full(o), KEY) and not composite(full(o)) and has_cpu(full(o))]
    host = [o for o in others if lookup(full(base_name(o)), o.partition(".")[2]) is None]
    # An out= form is made of the functional form. That may be on the host itself, or call the out= form.
    on_host = {base_name(o) for o in host}
    on_host |= {base_name(o) for o in others if ends_in_out_form(o)}
    host = [o for o in others if base_name(o) in on_host]
    decomposed = [o for o in others if base_name(o) not in on_host]

    by_family: dict[str, dict[str, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    for row in sorted(rows):
        by_family[family_of[row]][base_name(row)].add(row.partition(".")[2] or "default")
    lines = [
        "# Operators",
        "",
        "Written by `tools/operators_page.py`; do not edit.",
        "",
        "A *row* is a lowering to StableHLO. In-place and out= forms of a row are derived from the schema, and",
        "PyTorch's composite operators come for free: they are made of others. Some more are *decomposed*: PyTorch",
        "describes them in Python, or we do, and that runs once per signature. What has none of these runs on the",
        "host, with a warning, or is refused under `TORCH_TPU_HOST_FALLBACK=error`.",
        "",
        "There is no third kind: no row calls a library kernel (no program has a custom call), and nothing is",
        "computed on the host behind the scenes. Metadata and the numbers that Python passes are all it works out.",
        "",
        "Every row compiles for a TPU v5e (`tests/python/test_tpu_rows.py`), but for convolutions of int64 and Fourier",
        "transforms of float64 and complex128, which its compiler refuses.",
        "",
        "| | overloads |",
        "|---|---|",
        f"| rows | {len(rows)} |",
        f"| registered for the device: rows, forms derived from them, views and copies | {len(native)} |",
        f"| of these not in the table themselves | {len(derived)} |",
        f"| decomposed | {len(decomposed)} |",
        f"| with a CPU kernel, and on the host here | {len(host)} |",
        "",
        "## Native, by family",
        "",
        "*native*: classes of dtypes with which PyTorch's operator database, or our own calls, met a row. *f32*",
        "float32, *f64* float64, *half* bfloat16 and float16, *complex* complex64, *int* int64, int32 and uint8,",
        "*unsigned* uint32.",
        "A class that is missing has no sample, mostly because PyTorch's CPU does not have the operator for it.",
        "",
        "*Neuron*: what our rules for its compiler (`csrc/stablehlo/neuron_limits.h`) refuse in some of the operator's",
        "programs; in parentheses the dtypes, where it is not met with float32. All float64 and complex programs are",
        "refused besides. An empty cell: every program passes. The rules follow AWS's documentation, not a compiler.",
    ]
    names = {base_name(row) for row in rows}
    how = outcomes(measured["served"], names)
    for family in sorted(by_family):
        operators = by_family[family]
        lines += ["", f"### {family.replace('_', ' ').capitalize()} (`csrc/lowering/{family}*.cpp`)", ""]
        lines += ["| operator | native | Neuron |", "|---|---|---|"]
        for name, variants in sorted(operators.items()):
            forms = "" if variants == {"default"} else f" ({', '.join(sorted(variants))})"
            mine = [name if v == "default" else f"{name}.{v}" for v in sorted(variants)]
            # Factories are composites of the row's out= form.
            served = {dtype: "native" if outcome == "composite" else outcome for dtype, outcome in how[name].items()}
            native_dtypes = dtypes_of(served, "native")
            refused = dtypes_of(served, "refused")
            if refused:
                native_dtypes += f"; refused: {refused}" if native_dtypes else f"refused: {refused}"
            lines.append(f"| `{name}`{forms} | {native_dtypes} | {neuron_refusals(measured['neuron'], mine)} |")
    lines += ["", "## Decomposed, by dtype", "", "| operator | decomposed |", "|---|---|"]
    for name in sorted({base_name(o) for o in decomposed}):
        dtypes = dtypes_of(how[name], "decomposed")
        if dtypes:
            lines.append(f"| `{name}` | {dtypes} |")
    for title, names in (("Decomposed", decomposed), ("On the host", host)):
        lines += ["", f"## {title}", "", ", ".join(f"`{name}`" for name in sorted({base_name(o) for o in names})) + "."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = page()
    if args.check:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print(f"{PAGE.relative_to(ROOT)} is out of date: run tools/operators_page.py", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
