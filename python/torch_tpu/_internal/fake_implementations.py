"""Shapes and strides of results for tracing, where PyTorch's own are not those of the device.

Eager mode has its own way (csrc/aten/metadata.cpp); tracing asks fake tensors, which follow PyTorch's own devices.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch._prims_common import suggest_memory_format


def register(fake_impls: ModuleType) -> None:
    """Adds to `fake_impls`, the module torch._subclasses.fake_impls."""
    _register_convolution(fake_impls)
    grouped = torch.ops.aten._grouped_mm.default
    if grouped not in fake_impls.op_implementations_dict:  # else a torch that knows better
        _register_grouped_mm(fake_impls, grouped)


def _register_convolution(fake_impls: ModuleType) -> None:
    """Where input or weight is in channels_last, so are the results of a convolution and both gradients."""

    def in_their_format(torchs: Any) -> Any:
        def convolution(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            results = torchs(mode, func, *args, **kwargs)
            arguments = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
            operands = (arguments["input"], arguments["weight"])
            last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(operands[1].dim())
            if operands[0].device.type != "tpu" or last not in [suggest_memory_format(x) for x in operands]:
                return results

            def placed(result: Any) -> Any:
                if result is None or result.dim() != operands[1].dim():
                    return result
                return torch.empty_like(result, memory_format=last)

            with mode:
                return tuple(map(placed, results)) if isinstance(results, tuple) else placed(results)

        return convolution

    aten = torch.ops.aten
    for operator in (aten.convolution.default, aten._convolution.default, aten.convolution_backward.default):
        torchs = fake_impls.op_implementations_dict.pop(operator, None)
        if torchs is not None:
            fake_impls.register_op_impl(operator)(in_their_format(torchs))


def _register_grouped_mm(fake_impls: ModuleType, grouped: Any) -> None:
    def grouped_mm(
        mode: Any,
        func: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        offs: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Any:
        """Products of groups in any floating-point dtype; PyTorch's takes bfloat16 alone."""
        if a.device.type != "tpu":
            return NotImplemented
        sizes: tuple[int | torch.SymInt, ...]
        if a.dim() == 2 and b.dim() == 2 and offs is not None:
            sizes = (offs.shape[0], a.shape[0], b.shape[1])
        elif a.dim() == 2:
            sizes = (a.shape[0], b.shape[2])
        elif b.dim() == 2:
            sizes = (a.shape[1], b.shape[1])
        else:
            sizes = (a.shape[0], a.shape[1], b.shape[2])
        with mode:
            return torch.empty(sizes, dtype=out_dtype or a.dtype, device=a.device)

    fake_impls.register_op_impl(grouped)(grouped_mm)
