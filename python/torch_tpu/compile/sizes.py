"""The sizes of a graph's values under dynamic shapes, as functions of those of its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]  # a dependency of torch
import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C

# Bounds that follow from others are rounded up to a multiple of this: an array of 127 elements is none of 128 then.
_MULTIPLE = 16


class ChangingSizes:
    """Which sizes change from call to call, and what they are stored in (docs/dynamic_shapes.md).

    Every size in a graph is an integer, or an expression of symbols that stand for sizes of its arguments. A symbol
    is stored in its bound; what an expression is stored in is its value for the bounds, so that sets of sizes
    with the same bounds are alike in all of a graph.

    Args:
        graph: traced with symbolic sizes.
        all_change: whether each symbol stands for a size that is known to change. If not, as under ``dynamic=True``,
            which makes symbols of all sizes, it changes once it has had two values.
    """

    def __init__(self, graph: torch.fx.GraphModule, *, all_change: bool) -> None:
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._arguments = [_expressions(node) for node in placeholders]
        known = {symbol for sizes in self._arguments for symbol in sizes if isinstance(symbol, sympy.Symbol)}
        values = {size for node in graph.graph.nodes for size in _expressions(node)}
        self._sizes = [size for size in values if size.free_symbols and size.free_symbols <= known]
        self._all_change = all_change
        self._first: dict[sympy.Symbol, int] = {}
        self._change: set[sympy.Symbol] = set()

    def observe(self, args: tuple[Any, ...]) -> list[tuple[int, int]]:
        """The sizes that change in a call with these arguments, and their bounds."""
        values: dict[sympy.Symbol, int] = {}
        for sizes, argument in zip(self._arguments, args, strict=True):
            given = argument.shape if isinstance(argument, torch.Tensor) else (argument,)
            values.update((size, n) for size, n in zip(sizes, given, strict=False) if isinstance(size, sympy.Symbol))
        for symbol, n in values.items():
            if self._all_change or self._first.setdefault(symbol, n) != n:
                self._change.add(symbol)
        bounds = {symbol: _C.bound_of(n) if symbol in self._change else n for symbol, n in values.items()}
        found: dict[int, int] = {}
        for size in self._sizes:
            if not size.free_symbols & self._change:
                continue
            now, bound = _value(size, values), _value(size, bounds)
            if now is None or now <= 1:
                continue
            if bound is None or bound < now:
                bound = _C.bound_of(now)
            elif not isinstance(size, sympy.Symbol):
                bound = -(-bound // _MULTIPLE) * _MULTIPLE
            found[now] = max(bound, found.get(now, 0))
        return sorted(found.items())

    def dims(self, number: int) -> int:
        """A bit for each dim of an argument whose size changes."""
        return sum(1 << dim for dim, size in enumerate(self._arguments[number]) if size.free_symbols & self._change)


def _expressions(node: torch.fx.Node) -> list[sympy.Expr]:
    """The sizes of a node's tensors, or the number that it is."""
    return [sympy.sympify(size) for size in _sizes(node.meta.get("val"))]


def _sizes(value: Any) -> Iterator[Any]:
    for leaf in pytree.tree_leaves(value):
        for size in leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,):
            if isinstance(size, torch.SymInt):
                yield size.node.expr
            elif isinstance(leaf, torch.Tensor) or isinstance(size, int):
                yield int(size)
            else:
                yield 0


def _value(size: sympy.Expr, values: dict[sympy.Symbol, int]) -> int | None:
    found = size.xreplace({symbol: sympy.Integer(n) for symbol, n in values.items()})
    return int(found) if found.is_Integer else None
