"""Numbers in traced graphs.

Under dynamic shapes dynamo makes arguments of Python's floats: 0-d tensors of the host, on which a graph computes too
(``x * (alpha / 2)``). That part of a graph runs on the host, and what the rest takes from it is an argument of the
program: another number needs no other program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from torch_tpu import _C


@dataclasses.dataclass(frozen=True)
class Parts:
    """A graph in two: `host` gives what `device` takes after those of the arguments that are at `kept`, and the results
    at the places `host_results`, in this order. `device` gives the other results."""

    host: torch.fx.GraphModule
    device: torch.fx.GraphModule
    numbers: list[int]  # the places of the host's tensors among the arguments
    kept: list[int]
    taken: int
    host_results: list[int]
    target: torch.device


class WithNumbers:
    """Calls both parts; the host's only where it would compute something else than the last time.

    Args:
        parts: of a graph.
        program: calls `parts.device`.
    """

    def __init__(self, parts: Parts, program: Callable[..., Any]) -> None:
        self._parts = parts
        self._program = program
        # What was given, and what it made. Replaced as one: threads may call with different numbers.
        self._last: tuple[tuple[str, ...], list[torch.Tensor], list[torch.Tensor]] = ((), [], [])

    def __call__(self, *args: Any) -> list[Any]:
        parts = self._parts
        taken, host_results = self._numbers(args)
        results = list(self._program(*(args[i] for i in parts.kept), *taken))
        for place, result in zip(parts.host_results, host_results, strict=True):
            results.insert(place, result.clone())  # the caller's own
        return results

    def _numbers(self, args: tuple[Any, ...]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        parts, last = self._parts, self._last
        # As text: -0.0 is another number than 0.0.
        numbers = (repr(args[i].item()) for i in parts.numbers)
        given = (*numbers, *(repr(a) for a in args if isinstance(a, (int, float))))
        capturing = _C.capturing() is not None
        if given == last[0] and not capturing:
            return last[1], last[2]
        with torch.no_grad():
            found = parts.host(*args)
            taken, host_results = found[: parts.taken], found[parts.taken :]
            if capturing:  # a graph keeps the numbers, and nothing is copied from the host while it is made
                made = [torch.full((), x.item(), dtype=x.dtype, device=parts.target) for x in taken]
                return made, host_results
            made = [number.to(parts.target) for number in taken]
        self._last = given, made, host_results
        return made, host_results


def split(graph: torch.fx.GraphModule) -> Parts | None:
    """The graph without what it computes of 0-d tensors of the host; None if it has no such arguments, or other tensors
    of the host."""
    nodes = list(graph.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    numbers = [i for i, node in enumerate(placeholders) if _is_number(node)]
    if not numbers:
        return None
    on_host = _on_host(nodes)
    targets = {x.device for node in nodes for x in _tensors(node) if x.device.type != "cpu"}
    if on_host is None or len(targets) != 1:
        return None
    output = nodes[-1]
    results = output.args[0] if isinstance(output.args[0], (list, tuple)) else (output.args[0],)
    beyond = {n for node in nodes[:-1] if node not in on_host for n in node.all_input_nodes}
    taken = [node for node in nodes if node in on_host and node in beyond]
    host_results = [i for i, result in enumerate(results) if result in on_host]

    host, device = torch.fx.Graph(), torch.fx.Graph()
    of_host: dict[torch.fx.Node, torch.fx.Node] = {}
    of_device: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in placeholders:
        of_host[node] = host.node_copy(node, of_host.__getitem__)
        if node not in on_host:
            of_device[node] = device.node_copy(node, of_device.__getitem__)
    for node in taken:
        of_device[node] = device.placeholder(node.name)
        of_device[node].meta = dict(node.meta)
    for node in nodes[len(placeholders) : -1]:
        if node not in on_host:
            of_device[node] = device.node_copy(node, of_device.__getitem__)
        if node in on_host or (_is_size(node) and all(n in of_host for n in node.all_input_nodes)):
            if not all(n in of_host for n in node.all_input_nodes):
                return None
            of_host[node] = host.node_copy(node, of_host.__getitem__)
    host.output([of_host[node] for node in (*taken, *(results[i] for i in host_results))])
    host.eliminate_dead_code()
    rest = [result for i, result in enumerate(results) if i not in host_results]
    device.output(map_arg(rest, of_device.__getitem__)).meta = dict(output.meta)
    kept = [i for i, node in enumerate(placeholders) if node not in on_host]
    return Parts(
        host=torch.fx.GraphModule(graph, host),
        device=torch.fx.GraphModule(graph, device),
        numbers=numbers,
        kept=kept,
        taken=len(taken),
        host_results=host_results,
        target=targets.pop(),
    )


def _on_host(nodes: list[torch.fx.Node]) -> set[torch.fx.Node] | None:
    found: set[torch.fx.Node] = set()
    for node in nodes:
        if all(x.device.type != "cpu" for x in _tensors(node)):
            continue
        tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        if not _is_number(node) or not _is_function(node) or not found.issuperset(tensors):
            return None
        found.add(node)
    return found


def _is_function(node: torch.fx.Node) -> bool:
    """Whether it gives the same for the same, and writes to nothing."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.op == "placeholder"
    return torch.Tag.nondeterministic_seeded not in node.target.tags and not node.target._schema.is_mutable


def _is_size(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat))


def _is_number(node: torch.fx.Node) -> bool:
    value: Any = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(node.meta.get("val")) if isinstance(x, torch.Tensor)]
