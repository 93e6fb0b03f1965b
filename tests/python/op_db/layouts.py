"""Strides that tensors come with in practice, for the tensors of a sample: each function returns a tensor of the same
shape and dtype on the CPU, and None where it makes no other tensor than the one it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_flatten

Layout = Callable[[torch.Tensor], torch.Tensor | None]


def transposed(x: torch.Tensor) -> torch.Tensor | None:
    """The first dim lies densest in memory."""
    return x.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1) if x.ndim > 1 else None


def channels_last(x: torch.Tensor) -> torch.Tensor | None:
    """Images and volumes whose channels lie densest in memory."""
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    return x.contiguous(memory_format=memory_format) if memory_format else None


def offset(x: torch.Tensor) -> torch.Tensor | None:
    """Begins at the fourth element of its storage."""
    base = torch.zeros(x.numel() + 5, dtype=x.dtype)
    return base[3 : 3 + x.numel()].view(x.shape).copy_(x)


def expanded(x: torch.Tensor) -> torch.Tensor | None:
    """What has index 0 in the first dim, for all of it: stride 0."""
    return x[:1].clone().expand_as(x) if x.ndim and x.shape[0] > 1 else None


def overlapping(x: torch.Tensor) -> torch.Tensor | None:
    """Windows over the first elements: every stride is 1."""
    if sum(size > 1 for size in x.shape) < 2:
        return None
    return x.reshape(-1).clone().as_strided(x.shape, (1,) * x.ndim)


LAYOUTS: dict[str, Layout] = {f.__name__: f for f in (transposed, channels_last, offset, expanded, overlapping)}


def view_of_base(x: torch.Tensor) -> torch.Tensor:
    """`x` as every second column of a larger tensor, from the second row on."""
    base = torch.full((x.numel() + 2, 3), 1, dtype=x.dtype)
    return base[1:-1, 1].view(x.shape).copy_(x)


def with_layout(sample: SampleInput, layout: Layout) -> SampleInput | None:
    """The sample with other strides wherever the layout differs; None where it does nowhere."""
    changed = False

    def change(x: Any) -> Any:
        nonlocal changed
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.is_nested or x.is_conj() or x.is_neg():
            return x
        with torch.no_grad():
            other = layout(x.detach())
        if other is None:
            return x
        changed = True
        return other.requires_grad_(x.requires_grad)

    made = sample.transform(change)
    return made if changed else None


def storages(x: Any) -> list[torch.Tensor]:
    """Everything in the storages of the tensors, as flat tensors."""
    found = []
    for v in tree_flatten(x)[0]:
        if isinstance(v, torch.Tensor) and v.layout == torch.strided:
            elements = v.untyped_storage().nbytes() // v.element_size()
            found.append(v.detach().as_strided((elements,), (1,), 0))
    return found
