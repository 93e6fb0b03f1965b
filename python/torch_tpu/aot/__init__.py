"""Compiling for hardware that is not there: does it compile, does it fit, what will it cost?

    report = torch_tpu.aot.compile(model, (tokens,), topology="v5e:2x2", training=True)
    print(report)

Needs the compiler of the hardware and no hardware: ``pip install torch-pjrt[tpu]`` brings libtpu, which knows every
TPU. No weights are needed either: build the model under ``torch.device("meta")``, and give fake or meta tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_tpu.aot.compiler import Compiled, compile_text
from torch_tpu.aot.hlo import Instruction, instructions
from torch_tpu.aot.layers import Repeated, repeated_layers, variants, with_depths
from torch_tpu.aot.programs import Loss, OptimizerFactory, Program, capture
from torch_tpu.aot.report import Memory, Report, Row, out_of_memory

__all__ = ["Instruction", "Memory", "Report", "Row", "compile"]

# Where a program that does not fit elsewhere is compiled to learn its sizes: the TPU with the most memory.
ROOMY = "v5p:2x2x1"


def compile(
    function: torch.nn.Module | Callable[..., Any],
    arguments: Sequence[Any] = (),
    keywords: Mapping[str, Any] | None = None,
    *,
    topology: str = "v5e:2x2",
    training: bool = False,
    loss: Loss | None = None,
    optimizer: OptimizerFactory | None = None,
    provider: str = "libtpu",
    timeout: float = 1800.0,
    whole: bool = False,
    keep_executable: bool = False,
) -> Report:
    """Compiles one call of a module or function as one program for one device of a topology.

    Args:
        function: what is called. Of a module, parameters and buffers are arguments of the program. Only sizes, strides
            and dtypes matter, so that everything may be on any device, "meta" included.
        arguments: of the call; tensors of any kind, fake ones included, nested as the function takes them.
        keywords: further ones by name.
        topology: as the plugin names it. libtpu: "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2", with other
            sizes of the kind.
        training: also the gradients, of all parameters and inputs that require one. Without it gradients are off.
        loss: makes the number to differentiate of what the function returns. By default its attribute ``loss``, as
            models of transformers return one, else the sum of all that it returns.
        optimizer: makes an optimizer of the parameters; its step becomes part of the program, with the state that it
            has after a first step: ``lambda parameters: torch.optim.AdamW(parameters, lr=1e-4)``.
        provider: the package with the compiler, as in ``TORCH_TPU_PJRT_PLUGIN``.
        timeout: seconds that the compiler may take.
        whole: compile the program of the whole model. By default, of a list of more than three layers that are all
            alike, one and two are compiled, and the figures of the whole are put together from these
            (:attr:`Report.notes` says so; docs/aot.md says how well it fits).
        keep_executable: keep what the compiler made, for a client on such a device to load; implies `whole`.

    Returns:
        A report. A program that cannot be captured, that the compiler refuses or that does not fit is no exception:
        :attr:`Report.error` says what it is, with the operator and the line where they are known.

    Raises:
        RuntimeError: the compiler is not installed, does not start, or does not know the topology.
        TimeoutError: it gave no answer in time.
    """
    if optimizer is not None and not training:
        raise ValueError("an optimizer is part of training: pass training=True")
    name = (
        type(function).__name__ if isinstance(function, torch.nn.Module) else getattr(function, "__name__", "function")
    )
    if training:
        name += ", training step" if optimizer is not None else ", gradients"

    def program_of(repeated: Sequence[Repeated], depths: Sequence[int]) -> Program:
        with with_depths(repeated, depths):
            return capture(
                function, arguments, keywords or {}, platform="tpu", training=training, loss=loss, optimizer=optimizer
            )

    repeated = [] if whole or keep_executable else repeated_layers(function)
    parts = variants(repeated)
    try:
        try:
            programs = [program_of(repeated, part.depths) for part in parts]
        except Exception:
            if not repeated:
                raise
            # A model may count on all of its layers.
            repeated, parts = [], variants([])
            programs = [program_of([], ())]
    except (RuntimeError, NotImplementedError) as refusal:
        return Report(name, topology, "", None, 0.0, str(refusal), None, None, None)

    def compile_all(place: str) -> list[Compiled]:
        return [
            compile_text(program.text, place, provider=provider, timeout=timeout, keep_executable=keep_executable)
            for program in programs
        ]

    made = compile_all(topology)
    error = next((each.error for each in made if each.error is not None), None)
    device_kind, device_bytes = made[0].device_kind, made[0].device_bytes
    notes = [
        f"put together from compiles with 1 and 2 of the {len(each.layers)} layers of {each.name}, which are alike"
        for each in repeated
    ]
    instructions_of: tuple[Instruction, ...] = ()
    if error is not None and out_of_memory(error) and topology != ROOMY:
        made = compile_all(ROOMY)
        if all(each.error is None for each in made):
            notes.append(f"sizes as compiled for {ROOMY}, which has more memory")
    elif error is None:
        instructions_of = tuple(
            dataclasses.replace(i, times=i.times * part.weight)
            for part, each in zip(parts, made, strict=True)
            for i in (instructions(each.optimized) if each.optimized else ())
        )
    weighted = [(part.weight, each) for part, each in zip(parts, made, strict=True)]
    known = all(each.error is None for each in made)

    def total(name: str) -> float | None:
        return sum(weight * each.cost.get(name, 0.0) for weight, each in weighted) if known else None

    return Report(
        name=name,
        topology=topology,
        device_kind=device_kind,
        device_bytes=device_bytes,
        seconds=sum(each.seconds for each in made),
        error=error,
        memory=Memory.sum_of([(weight, each.memory) for weight, each in weighted]) if known else None,
        flops=total("flops"),
        bytes_accessed=total("bytes accessed"),
        instructions=instructions_of,
        notes=tuple(notes),
        stablehlo=programs[-1].text,
        executable=made[-1].executable,
    )
