"""Operators that no row lowers, expressed in operators that have rows: PyTorch's own decompositions, and the
functional form for in-place and out= overloads. Asked once per overload by the engine, which tapes what a
decomposition does and from then on replays it (csrc/aten/tape.h)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu import _C
from torch_tpu._internal import composites, fake_quantization, module_operators

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
    own = _own(op)
    if own is not None:
        return own
    table = torch._decomp.decomposition_table
    if op in table:
        return _without_options(table[op])
    schema = op._schema
    if not schema.is_mutable:
        return None
    return _through_functional(name, overload, schema)


def run_traced(tape: _C.Tape, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Runs a decomposition and tells the tape what it calls."""
    with _Tracer(tape):
        return function(*args, **kwargs)


class _Tracer(TorchDispatchMode):
    def __init__(self, tape: _C.Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            self._tape.give_up()
            return func(*args, **kwargs)
        if func.namespace == "prims":
            # Implemented in Python by ATen operators: those are what is worth replaying. The primitive itself would
            # arrive here again.
            with self:
                return func.impl_aten(*args, **kwargs)  # type: ignore[attr-defined]
        result = func(*args, **kwargs)
        self._tape.step(func._schema.name, func._schema.overload_name, tuple(args), kwargs, result)
        return result


def _own(op: torch._ops.OpOverload) -> Callable[..., Any] | None:
    key = op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")
    return _OWN.get(key)


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
    if outs:
        return _through_out(name, schema, [a.name for a in outs])
    base = name.removesuffix("_")
    functional = _overload(base, overload) if base != name else None
    if functional is None:
        return None
    # What the functional form writes as well, such as the noise of rrelu_with_noise_, it writes itself.
    also = {a.name for a in functional._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    if [a.name for a in written if a.name not in also] != ["self"] or len(functional._schema.returns) != 1:
        return None
    names = [a.name for a in schema.arguments if not a.kwarg_only]

    def inplace(*args: Any, **kwargs: Any) -> torch.Tensor:
        # By name: polygamma_(self, n) is polygamma(n, self).
        given = dict(zip(names, args, strict=False)) | kwargs
        result: torch.Tensor = given["self"].copy_(functional(**given))
        return result

    return inplace


def _through_out(name: str, schema: Any, outs: list[str]) -> Callable[..., Any] | None:
    inputs = [(a.name, str(a.type)) for a in schema.arguments if a.name not in outs]
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base)
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        # What both forms write, such as running statistics, the functional form writes itself.
        if [(a.name, str(a.type)) for a in candidate._schema.arguments] == inputs:
            # PyTorch's kernels leave matrices column by column, and so an out tensor that they resize.
            keep_strides = base.startswith(("linalg_", "_linalg_"))
            return _write_results(_own(candidate) or candidate, outs, keep_strides)
    return None


def _write_results(functional: Any, outs: list[str], keep_strides: bool) -> Callable[..., Any]:
    def out_form(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in outs]
        results = functional(*args, **kwargs)
        if isinstance(results, torch.Tensor):
            results = (results,)
        for target, result in zip(targets, results, strict=True):
            if target.shape != result.shape:
                target.resize_(result.shape)
                if keep_strides:
                    target.as_strided_(result.shape, result.stride())
            target.copy_(result)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return out_form


def _self_attention(
    x: torch.Tensor,
    heads: int,
    qkv: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    mask_type: int | None,
) -> torch.Tensor:
    """Attention of ``x`` [batch, length, width] to itself; True in a boolean mask means: do not look."""
    batch, length, width = x.shape
    q, k, v = torch.nn.functional.linear(x, *qkv).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    if mask is not None:
        if mask_type == 1:  # key padding, [batch, length]
            mask = mask.view(batch, 1, 1, length)
        mask = mask.logical_not() if mask.dtype == torch.bool else mask
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out.transpose(1, 2).reshape(batch, length, width)


def _transformer_encoder_layer_fwd(
    src: torch.Tensor, embed_dim: int, num_heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor, proj_bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: torch.Tensor, norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor, ffn_bias_1: torch.Tensor, ffn_weight_2: torch.Tensor, ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None, mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """What nn.TransformerEncoderLayer calls in evaluation instead of its modules."""
    functional = torch.nn.functional
    if src.is_nested:
        raise NotImplementedError("nested tensors are not supported on the tpu device")

    def attend(x: torch.Tensor) -> torch.Tensor:
        out = _self_attention(x, num_heads, (qkv_weight, qkv_bias), mask, mask_type)
        return functional.linear(out, proj_weight, proj_bias)

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(hidden, ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        src = src + attend(norm_1(src))
        return src + feed_forward(norm_2(src))
    src = norm_1(src + attend(src))
    return norm_2(src + feed_forward(src))


# Operators that PyTorch has no decomposition for.
_OWN: dict[str, Callable[..., Any]] = {
    "aten::_transformer_encoder_layer_fwd": _transformer_encoder_layer_fwd,
    **composites.COMPOSITES,
    **fake_quantization.COMPOSITES,
    **module_operators.COMPOSITES,
}
