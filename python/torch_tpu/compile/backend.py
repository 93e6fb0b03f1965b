"""The dynamo backend ``tpu``.

Dynamo traces Python into a graph, AOTAutograd makes forward and backward graphs of ATen operators from it, and
:class:`torch_tpu.compile.graphs.CompiledGraph` makes a program of each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from torch_tpu.compile.graphs import CompiledGraph
from torch_tpu.compile.host_scalars import WithNumbers, split
from torch_tpu.compile.options import Options

# What inductor's modes ask for (measuring kernels, CUDA graphs) is moot: a graph is one program already.
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def backend(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles `graph`, as dynamo calls it for ``torch.compile(..., backend="tpu")``.

    Args:
        graph: what dynamo traced, in torch operators.
        inputs: fake tensors and symbolic integers that stand for its arguments.
        mode: one of inductor's names; all mean the same here.
        options: see :class:`torch_tpu.compile.options.Options`.

    Raises:
        ValueError: for an unknown mode.
        RuntimeError: for an unknown option.
    """
    if mode is not None and mode not in _MODES:
        raise ValueError(f"unknown mode {mode!r} for backend 'tpu'; known are {', '.join(_MODES)}")
    chosen = Options.of(options)
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    # Under dynamic=True all sizes are symbols; else those only that were found, or said, to change.
    all_change = torch._dynamo.config.assume_static_by_default
    compile_graph = functools.partial(_compile_graph, options=chosen, all_change=all_change)
    compiler = aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        inference_compiler=compile_graph,
        partition_fn=min_cut_rematerialization_partition if chosen.recompute else default_partition,
        keep_inference_input_mutations=True,
    )
    compiled: Callable[..., Any] = compiler(graph, inputs)
    return compiled


def _compile_graph(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], options: Options, all_change: bool
) -> Callable[..., Any]:
    from torch._functorch._aot_autograd.utils import make_boxed_func

    boxed: Callable[..., Any] = make_boxed_func(_program_of(graph, options, all_change))
    return boxed


def _program_of(graph: torch.fx.GraphModule, options: Options, all_change: bool) -> Callable[..., Any]:
    parts = split(graph)
    if parts is None:
        return CompiledGraph(graph, options, all_change=all_change)
    program = CompiledGraph(parts.device, options, all_change=all_change)
    return WithNumbers(parts, program)


def use_by_default(compile_fx: ModuleType) -> None:
    """Lets ``torch.compile`` without a backend's name come here for graphs on the device.

    torch has no registration for a device's default backend: inductor, the default of all devices, is asked through
    this function of `compile_fx`, the module ``torch._inductor.compile_fx``, and knows "tpu" as another project's.
    """
    inductor = compile_fx.compile_fx

    def choose(graph: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(graph, torch.fx.GraphModule) and _is_ours(graph, inputs):
            return backend(graph, inputs)
        return inductor(graph, inputs, *args, **kwargs)

    choose.__wrapped__ = inductor  # type: ignore[attr-defined]
    compile_fx.compile_fx = choose  # type: ignore[attr-defined]


def _is_ours(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if tensors:
        return any(x.device.type == "tpu" for x in tensors)
    # A graph without arguments makes its tensors itself.
    for node in graph.graph.nodes:
        value = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(value, torch.Tensor) and value.device.type == "tpu":
            return True
    return False
