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

from torch_tpu import _C
from torch_tpu.export.capturing import Captured, capture
from torch_tpu.export.signature import (
    EXECUTABLE_FILE,
    PROGRAM_FILE,
    WEIGHTS_FILE,
    Check,
    Input,
    Result,
    Signature,
    plain,
    value_to_json,
)

# For `compile_for`: the device of this process.
HERE = "device"


def save(
    program: ExportedProgram | tuple[Any, ...],
    directory: str | os.PathLike[str],
    *,
    platform: str | None = None,
    example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
    locations: bool = False,
    compile_for: str | None = None,
    timeout: float = 1800.0,
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
        compile_for: also writes program.exe, an executable for one kind of device, so that :func:`load` compiles
            nothing there: "device", the one of this process, or a topology as :func:`torch_tpu.aot.compile` takes them
            ("v5e:1x1"), which needs its compiler and no hardware. The program is laid out for that platform.
        timeout: seconds that the compiler of a topology may take.

    Raises:
        TypeError: `program` is neither of these.
        ValueError: a size is dynamic, and `example_inputs` do not say what it is to be. A value among the results or
            arguments cannot be written.
        RuntimeError: what the program does cannot be one program, as where it needs a tensor's value on the way. Names
            the operator and the user's line. Or the compiler is not there, does not know the topology, or refuses
            the program.
        TimeoutError: the compiler gave no answer in time.
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
    if compile_for is not None and platform is None:
        platform = _C.device_properties(0).platform if compile_for == HERE else "tpu"
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
    executable = None if compile_for is None else _compile(text, compile_for, timeout)
    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.save_file(_on_host(captured.weights), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / PROGRAM_FILE).write_text(text)
    signature.write(folder)
    (folder / EXECUTABLE_FILE).unlink(missing_ok=True)
    if executable is not None:
        _C.write_executable(str(folder / EXECUTABLE_FILE), executable[0], text, executable[1])


def _compile(text: str, place: str, timeout: float) -> tuple[str, bytes]:
    """An executable, and the environment that it is for."""
    if place == HERE:
        return _C.compile_executable(text)
    from torch_tpu.aot.compiler import compile_text

    made = compile_text(text, place, provider="libtpu", timeout=timeout, keep_executable=True)
    if made.error is not None:
        raise RuntimeError(f"the compiler for {place} refuses the program: {made.error}")
    return made.environment, made.executable


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
