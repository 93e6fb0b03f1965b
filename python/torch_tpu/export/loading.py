"""Reads a program from files and calls it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.export.signature import (
    EXECUTABLE_FILE,
    PROGRAM_FILE,
    WEIGHTS_FILE,
    Input,
    Result,
    Signature,
    TensorForm,
    on_one_line,
    plain,
)


def load(
    directory: str | os.PathLike[str],
    *,
    device: torch.device | str | int | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> LoadedProgram:
    """Reads what :func:`torch_tpu.export.save` wrote; neither the model's code nor torch.export are needed.

    Args:
        directory: with the files.
        device: that the program runs on; by default the current one.
        weights: tensors on any device, by name, that take the place of those in the file or that the file lacks.

    Returns:
        A callable. Compiling begins at once, where the folder has no executable for this device; an error of the
        compiler is raised where a result is read.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged or newer than this torch_tpu; a weight is missing or has other sizes than the
            program.
        RuntimeError: the device does not work, or a type among the results is not known: import the library that
            defines it.
    """
    folder = pathlib.Path(directory)
    signature = Signature.read(folder)
    place = _place(device)
    program = _C.load_program(
        signature.name,
        (folder / PROGRAM_FILE).read_text(),
        [(list(p.form.sizes), p.form.dtype) for p in signature.parameters],
        [(list(form.sizes), form.dtype) for form in signature.outputs],
        list(signature.written),
        list(signature.random_blocks),
        [(check.kind, f"{check.operator} in {signature.name}", check.message) for check in signature.checks],
        place.index,
        str(folder / EXECUTABLE_FILE),
    )
    return LoadedProgram(signature, program, _weights(folder, signature, weights or {}, place), place)


class LoadedProgram:
    """Calls a program that was read from files, with the arguments and results of the module that was exported.

    Arguments are tensors on the program's device. What the module wrote to, buffers and arguments, is written; results
    are otherwise new tensors, row-major. Random numbers are drawn from the device's generator as in eager mode. There
    are no gradients.
    """

    def __init__(
        self, signature: Signature, program: _C.CapturedCall, weights: dict[str, torch.Tensor], device: torch.device
    ) -> None:
        self._signature = signature
        self._program = program
        self._weights = weights
        self._device = device
        self._input_tree = _tree(signature.input_tree)
        self._result_tree = _tree(signature.result_tree)
        keywords = self._input_tree.child(1)
        self._keywords: list[str] = list(keywords.context or ())

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """Parameters, buffers and constants on the device, by name: the very tensors that the program uses."""
        return self._weights

    def __repr__(self) -> str:
        inputs = ", ".join(f"{i.name}: {_describe(i.form)}" for i in self._signature.inputs if i.form is not None)
        return f"LoadedProgram({self._signature.name}({inputs}) on {self._device})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ValueError for arguments that are arranged differently than those that the module was exported with,
        and RuntimeError for another size, dtype, device or value."""
        leaves = self._flatten(args, kwargs)
        for given, wanted in zip(leaves, self._signature.inputs, strict=True):
            self._check(given, wanted)
        arguments = [
            self._weights[p.weight] if p.weight is not None else leaves[p.input or 0]
            for p in self._signature.parameters
        ]
        self._refuse_shared(leaves)
        with torch.no_grad():
            outputs = self._program(arguments)
        results = [self._result(r, arguments, outputs) for r in self._signature.results]
        return pytree.tree_unflatten(results, self._result_tree)

    def _result(self, result: Result, arguments: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Any:
        if result.output is not None:
            return outputs[result.output]
        if result.parameter is not None:
            return arguments[result.parameter]
        if result.empty is not None:
            return torch.empty(result.empty.sizes, dtype=result.empty.dtype, device=self._device)
        return result.value

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if set(kwargs) != set(self._keywords):
            raise ValueError(
                f"{self._signature.name} takes the keyword arguments {self._keywords}, got {sorted(kwargs)}"
            )
        leaves, tree = pytree.tree_flatten((args, {name: kwargs[name] for name in self._keywords}))
        if plain(tree) != self._input_tree:
            raise ValueError(
                f"{self._signature.name} takes arguments arranged as {on_one_line(self._input_tree)}, like the inputs "
                f"that it was exported with, got {on_one_line(tree)}"
            )
        return leaves

    def _check(self, given: Any, wanted: Input) -> None:
        what = f"{self._signature.name}: expected input {wanted.name} (at {wanted.path})"
        if wanted.form is None:
            if type(given) is not type(wanted.value) or given != wanted.value:
                raise RuntimeError(f"{what} to be {wanted.value!r}, got {given!r}")
            return
        if not isinstance(given, torch.Tensor):
            raise RuntimeError(f"{what} to be a tensor, got {type(given).__name__}")
        if TensorForm.of(given) != wanted.form:
            raise RuntimeError(f"{what} to be {_describe(wanted.form)}, got {_describe(TensorForm.of(given))}")
        if given.device != self._device:
            raise RuntimeError(f"{what} to be on {self._device}, got one on {given.device}")
        if given.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{what} to need no gradient: a program from a file has none. Call it under torch.no_grad(), or pass "
                "x.detach()"
            )

    def _refuse_shared(self, leaves: Sequence[Any]) -> None:
        """What is written to must be seen in no other argument: the program would not show it there."""
        written = [self._signature.parameters[number].input for number in self._signature.written]
        storages = [x.untyped_storage()._cdata if isinstance(x, torch.Tensor) else None for x in leaves]
        for number in written:
            if number is not None and storages.count(storages[number]) > 1:
                name = self._signature.inputs[number].name
                raise RuntimeError(
                    f"{self._signature.name} writes to its input {name}, which shares its memory with another input"
                )


def _describe(form: TensorForm) -> str:
    return f"{str(form.dtype).removeprefix('torch.')}{list(form.sizes)}"


def _place(device: torch.device | str | int | None) -> torch.device:
    wanted = torch.device("tpu", device) if isinstance(device, int) else torch.device(device or "tpu")
    if wanted.type != "tpu":
        raise ValueError(f"a program runs on a device 'tpu', not on {wanted}")
    return torch.device("tpu", _C.current_device() if wanted.index is None else wanted.index)


def _tree(text: str) -> pytree.TreeSpec:
    try:
        return pytree.treespec_loads(text)
    except NotImplementedError as error:
        raise RuntimeError(
            f"{error}. Import the library that defines this type of an argument or result before loading the program"
        ) from None


def _weights(
    folder: pathlib.Path, signature: Signature, given: Mapping[str, torch.Tensor], device: torch.device
) -> dict[str, torch.Tensor]:
    wanted = {p.weight: p.form for p in signature.parameters if p.weight is not None}
    unknown = set(given) - set(wanted)
    if unknown:
        raise ValueError(f"{signature.name} has no weights {sorted(unknown)}")
    made = {name: tensor.detach() for name, tensor in given.items()}
    missing = [name for name in wanted if name not in made]
    if missing:
        made |= _read(folder / WEIGHTS_FILE, missing, device)
    for name, form in wanted.items():
        if name not in made:
            raise ValueError(f"{folder / WEIGHTS_FILE} has no weight {name!r}; pass it in weights=")
        if TensorForm.of(made[name]) != form:
            raise ValueError(
                f"weight {name} is {_describe(TensorForm.of(made[name]))}, the program takes {_describe(form)}"
            )
    # A copy in any case: the program may write to it.
    return {name: made[name].to(device, copy=True).contiguous() if name in given else made[name] for name in wanted}


def _read(path: pathlib.Path, names: Sequence[str], device: torch.device) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ImportError("weights are read by safetensors: pip install torch-pjrt[export]") from None
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            there = set(file.keys())
            # One at a time, so that the host holds one copy of the largest weight at most.
            return {name: file.get_tensor(name).to(device) for name in names if name in there}
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
