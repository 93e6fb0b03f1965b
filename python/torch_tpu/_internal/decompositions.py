"""Operators that no row lowers, expressed in operators that have rows: PyTorch's own decompositions, and the
functional form for in-place and out= overloads. Asked once per overload by the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Decompositions that end in the operator itself, or that draw random numbers on another device.
_REFUSED = {"aten::_to_copy", "aten::copy", "aten::clone", "aten::empty_like", "aten::detach"}


def lookup(name: str, overload: str) -> Callable[..., Any] | None:
    """Callable that takes the operator's arguments as the schema lists them, or None.

    It may return NotImplemented: then the call goes to the host.
    """
    if name in _REFUSED:
        return None
    op = _overload(name, overload)
    if op is None:
        return None
    table = torch._decomp.decomposition_table
    if op in table:
        return _without_options(table[op])
    schema = op._schema
    if not schema.is_mutable:
        return None
    return _through_functional(name, overload, schema)


def _overload(name: str, overload: str) -> Any | None:
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, overload or "default", None)


def _without_options(function: Callable[..., Any]) -> Callable[..., Any]:
    # Decompositions do not all take what only says where the result lives.
    return function


def _through_functional(name: str, overload: str, schema: Any) -> Callable[..., Any] | None:
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    outs = [a for a in written if a.kwarg_only]
    if outs and len(outs) == len(written):
        return _through_out(name, schema, [a.name for a in outs])
    base = name.removesuffix("_")
    functional = _overload(base, overload) if base != name else None
    if functional is None or functional._schema.is_mutable or len(written) != 1:
        return None

    def inplace(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.copy_(functional(self, *args, **kwargs))

    return inplace


def _through_out(name: str, schema: Any, outs: list[str]) -> Callable[..., Any] | None:
    inputs = [(a.name, str(a.type)) for a in schema.arguments if a.name not in outs]
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base)
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        if candidate._schema.is_mutable:
            continue
        if [(a.name, str(a.type)) for a in candidate._schema.arguments] == inputs:
            return _write_results(candidate, outs)
    return None


def _write_results(functional: Any, outs: list[str]) -> Callable[..., Any]:
    def out_form(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in outs]
        results = functional(*args, **kwargs)
        if isinstance(results, torch.Tensor):
            results = (results,)
        for target, result in zip(targets, results, strict=True):
            if target.shape != result.shape:
                target.resize_(result.shape)
            target.copy_(result)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return out_form
