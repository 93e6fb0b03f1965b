"""Writes a program of torch.export as files."""

from __future__ import annotations

import collections
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torch_tpu.export.capturing import Captured, capture
from torch_tpu.export.signature import PROGRAM_FILE, WEIGHTS_FILE, Check, Input, Result, Signature, plain, value_to_json


def save(
    program: ExportedProgram | tuple[Any, ...],
    directory: str | os.PathLike[str],
    *,
    platform: str | None = None,
    example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
    locations: bool = False,
) -> None:
    """Writes program.mlir, weights.safetensors and signature.json into a folder, which is made if need be.

    Args:
        program: what :func:`torch.export.export` returns, exported on any device, "meta" included; or
            ``(module, args)`` or ``(module, args, kwargs)``, which are exported here. Weights that are meta or fake
            tensors are not written: :func:`load` then wants them.
        directory: of the files; files of an earlier call are replaced.
        platform: as PJRT names it ("cpu", "tpu", "cuda"): lays the program out as the engine does for it. By default
            the text holds nothing that is meant for one kind of device.
        example_inputs: ``(args, kwargs)`` of the sizes that the file is for, for a program with dynamic sizes.
        locations: operations carry the lines of the user's program, with the names of its files.

    Raises:
        TypeError: `program` is neither of these.
        ValueError: a size is dynamic, and `example_inputs` do not say what it is to be. A value among the results or
            arguments cannot be written.
        RuntimeError: what the program does cannot be one program, as where it needs a tensor's value on the way. Names
            the operator and the user's line.
        NotImplementedError: an argument of the program is no tensor or value, or a type among the results is not
            registered with torch.utils._pytree under a name.
    """
    safetensors = _safetensors()
    if not isinstance(program, ExportedProgram):
        if not (isinstance(program, tuple) and len(program) in (2, 3) and isinstance(program[0], torch.nn.Module)):
            raise TypeError(f"save() takes an ExportedProgram, or (module, args, kwargs), not {type(program).__name__}")
        module, args, kwargs = (*program, {})[:3]
        program = torch.export.export(module, tuple(args), dict(kwargs), strict=False)
    captured = capture(program, example_inputs)
    text, checks = captured.call.program(platform or "", locations)
    leaves: list[Input | Result] = [*captured.inputs, *captured.results]
    for leaf in leaves:
        try:
            value_to_json(leaf.value)
        except ValueError as error:
            raise ValueError(f"{leaf.name}: {error}") from None
    signature = Signature(
        name=_name_of(program),
        platform=platform or "",
        parameters=captured.parameters,
        inputs=captured.inputs,
        input_tree=pytree.treespec_dumps(plain(program.call_spec.in_spec)),
        outputs=captured.outputs,
        written=tuple(_written(captured)),
        results=captured.results,
        result_tree=pytree.treespec_dumps(plain(program.call_spec.out_spec)),
        random_blocks=tuple(captured.call.random_blocks),
        checks=tuple(Check(*check) for check in checks),
    )
    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.save_file(_on_host(captured.weights), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / PROGRAM_FILE).write_text(text)
    signature.write(folder)


def _name_of(program: ExportedProgram) -> str:
    """The class of the module that was exported, from the first node that knows."""
    for node in program.graph.nodes:
        for path, kind in node.meta.get("nn_module_stack", {}).values():
            if path == "":
                return str(kind if isinstance(kind, str) else kind.__qualname__).rpartition(".")[2]
    return "exported program"


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError("weights are written by safetensors: pip install torch-pjrt[export]") from None
    return safetensors.torch


def _written(captured: Captured) -> list[int]:
    """Parameters that the program gives new values. Refuses what would change another weight as well."""
    numbers = [captured.call.parameters.index(argument) for argument in captured.call.written]
    for number in numbers:
        name = captured.parameters[number].weight
        if name is None:
            continue
        weight = captured.weights[name]
        others = [o for o, other in captured.weights.items() if o != name and _may_overlap(weight, other)]
        if others:
            raise NotImplementedError(f"the program writes to {name}, which shares its memory with {', '.join(others)}")
    return numbers


def _may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    (a_begin, a_end), (b_begin, b_end) = _extent(a), _extent(b)
    return a_begin < b_end and b_begin < a_end


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's elements lie in its storage, in bytes."""
    begin = int(tensor.storage_offset()) * tensor.element_size()
    last = sum((int(n) - 1) * int(stride) for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size() if tensor.numel() > 0 else begin


def _on_host(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that have contents, each with memory of its own."""
    made = {}
    users = collections.Counter(tensor.untyped_storage()._cdata for tensor in weights.values())
    for name, tensor in weights.items():
        if tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
            continue
        dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        alone = dense.untyped_storage().nbytes() == dense.numel() * dense.element_size()
        made[name] = dense if alone and users[tensor.untyped_storage()._cdata] == 1 else dense.clone()
    return made
