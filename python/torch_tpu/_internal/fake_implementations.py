"""Shapes of results for tracing, where PyTorch's own are narrower than the device.

Eager mode has its own way (csrc/aten/metadata.cpp); tracing asks fake tensors, which follow CUDA's restrictions.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def register(fake_impls: ModuleType) -> None:
    """Adds to `fake_impls`, the module torch._subclasses.fake_impls."""
    grouped = torch.ops.aten._grouped_mm.default
    if grouped in fake_impls.op_implementations_dict:  # a torch that knows better
        return

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
