"""What a program's parameters and outputs mean to its caller, as the file signature.json says it (docs/export.md)."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import pathlib
from typing import Any

import torch
from torch.utils import _pytree as pytree

VERSION = 1

PROGRAM_FILE, WEIGHTS_FILE, SIGNATURE_FILE = "program.mlir", "weights.safetensors", "signature.json"
EXECUTABLE_FILE = "program.exe"


@dataclasses.dataclass(frozen=True)
class TensorForm:
    """Sizes and dtype of a dense, row-major tensor."""

    sizes: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorForm:
        return cls(tuple(int(n) for n in tensor.shape), tensor.dtype)

    def to_json(self) -> dict[str, Any]:
        return {"dtype": str(self.dtype).removeprefix("torch."), "sizes": list(self.sizes)}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> TensorForm:
        dtype = getattr(torch, entry["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"unknown dtype {entry['dtype']!r}")
        return cls(tuple(entry["sizes"]), dtype)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A tensor that the program takes: a weight by its name in the weights' file, or a user's input by its number."""

    form: TensorForm
    weight: str | None = None
    input: int | None = None


@dataclasses.dataclass(frozen=True)
class Input:
    """A leaf of the user's arguments: a tensor, or a value that the program was made for."""

    name: str  # as in the graph of torch.export; the tensor's name in files of inputs
    path: str  # in the arguments: "args[0]['mask']"
    form: TensorForm | None = None
    value: Any = None


@dataclasses.dataclass(frozen=True)
class Result:
    """A leaf of what the call returns: an output of the program, one of its parameters unchanged or as it is written,
    a tensor without elements, or a value that is the same at each call."""

    name: str  # path in the results, "logits" or "0.mask"
    output: int | None = None
    parameter: int | None = None
    empty: TensorForm | None = None
    value: Any = None


@dataclasses.dataclass(frozen=True)
class Check:
    """A flag that the program computes: an index out of range, for example."""

    kind: str  # the exception's name
    operator: str
    message: str


@dataclasses.dataclass(frozen=True)
class Signature:
    """All of signature.json.

    The program's parameters are `parameters`, then an int64 vector of seeds and offsets if `random_blocks` is not
    empty; its outputs are `outputs`, new values of the parameters numbered in `written`, and a bool vector of flags if
    there are `checks`.
    """

    name: str
    platform: str  # that the program is laid out for, as PJRT names it; "" for any
    parameters: tuple[Parameter, ...]
    inputs: tuple[Input, ...]
    input_tree: str  # of (args, kwargs), as torch.utils._pytree.treespec_dumps writes it
    outputs: tuple[TensorForm, ...]
    written: tuple[int, ...]
    results: tuple[Result, ...]
    result_tree: str
    random_blocks: tuple[int, ...]  # per random operator, by how much a call moves the generator's offset
    checks: tuple[Check, ...]

    def write(self, directory: pathlib.Path) -> None:
        entries = {
            "version": VERSION,
            "torch": str(torch.__version__),
            "name": self.name,
            "platform": self.platform,
            "parameters": [_parameter_to_json(p) for p in self.parameters],
            "inputs": [_leaf_to_json(i) for i in self.inputs],
            "input_tree": self.input_tree,
            "outputs": [form.to_json() for form in self.outputs],
            "written": list(self.written),
            "results": [_leaf_to_json(r) for r in self.results],
            "result_tree": self.result_tree,
            "random_blocks": list(self.random_blocks),
            "checks": [{"raises": c.kind, "operator": c.operator, "message": c.message} for c in self.checks],
        }
        lines = ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in entries.items())
        (directory / SIGNATURE_FILE).write_text("{\n" + lines + "\n}\n")

    @classmethod
    def read(cls, directory: pathlib.Path) -> Signature:
        """Raises FileNotFoundError, or ValueError for a file that is none of ours or newer than this."""
        path = directory / SIGNATURE_FILE
        try:
            entries = json.loads(path.read_text())
            version = entries["version"]
            if version != VERSION:
                raise ValueError(f"has version {version}, this torch_tpu reads version {VERSION}")
            return cls(
                name=entries["name"],
                platform=entries["platform"],
                parameters=tuple(
                    Parameter(TensorForm.from_json(p), p.get("weight"), p.get("input")) for p in entries["parameters"]
                ),
                inputs=tuple(
                    Input(i["name"], i["path"], TensorForm.from_json(i) if "dtype" in i else None, value_of(i))
                    for i in entries["inputs"]
                ),
                input_tree=entries["input_tree"],
                outputs=tuple(TensorForm.from_json(o) for o in entries["outputs"]),
                written=tuple(entries["written"]),
                results=tuple(
                    Result(
                        r["name"],
                        r.get("output"),
                        r.get("parameter"),
                        TensorForm.from_json(r) if "dtype" in r else None,
                        value_of(r),
                    )
                    for r in entries["results"]
                ),
                result_tree=entries["result_tree"],
                random_blocks=tuple(entries["random_blocks"]),
                checks=tuple(Check(c["raises"], c["operator"], c["message"]) for c in entries["checks"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path} is no signature of an exported program: {what}") from None


def _lines(value: Any) -> str:
    """JSON with a line for each entry of a list of objects."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n " + ",\n ".join(json.dumps(entry, allow_nan=False) for entry in value) + "\n]"
    return json.dumps(value, allow_nan=False)


def _parameter_to_json(parameter: Parameter) -> dict[str, Any]:
    source = {"weight": parameter.weight} if parameter.weight is not None else {"input": parameter.input}
    return source | parameter.form.to_json()


def _leaf_to_json(leaf: Input | Result) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": leaf.name}
    if isinstance(leaf, Input):
        entry["path"] = leaf.path
        return entry | (leaf.form.to_json() if leaf.form is not None else value_to_json(leaf.value))
    if leaf.output is not None:
        return entry | {"output": leaf.output}
    if leaf.parameter is not None:
        return entry | {"parameter": leaf.parameter}
    if leaf.empty is not None:
        return entry | leaf.empty.to_json()
    return entry | value_to_json(leaf.value)


def value_to_json(value: Any) -> dict[str, Any]:
    """A value that is no tensor. Raises ValueError for a type that has no form in JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    raise ValueError(f"a value of type {type(value).__name__} cannot be written to a file")


def value_of(entry: dict[str, Any]) -> Any:
    """What :func:`value_to_json` wrote; None where the entry has no value."""
    if "float" in entry:
        return float(entry["float"])
    return entry.get("value")


def plain(tree: pytree.TreeSpec) -> pytree.TreeSpec:
    """The tree with tuples in place of named ones, whose classes a file cannot bring along."""
    if tree.is_leaf():
        return tree
    children = [plain(child) for child in tree.children()]
    # torch names the kind of a named tuple's node by the function that makes their classes.
    if tree.type is collections.namedtuple or issubclass(tree.type, tuple):
        return pytree.TreeSpec(tuple, None, children)
    return pytree.TreeSpec(tree.type, tree.context, children)


def on_one_line(tree: pytree.TreeSpec) -> str:
    return " ".join(str(tree).split())


def dotted(path: pytree.KeyPath) -> str:
    """A leaf's place in a tree as a name: "0.hidden"."""
    parts = []
    for key in path:
        for attribute in ("idx", "key", "name"):
            if hasattr(key, attribute):
                parts.append(str(getattr(key, attribute)))
                break
        else:
            parts.append(str(key).strip("."))
    return ".".join(parts)
