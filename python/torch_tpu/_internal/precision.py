"""How exact products of float32 numbers are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Within the block ``torch.set_float32_matmul_precision(precision)`` holds; afterwards what was before.

    For the device it is part of what an operator is compiled for, so both kinds live side by side and nothing is
    compiled again on the way back. The setting is the process's, as PyTorch's is: other threads see it too. A backward
    pass has the precision of where it is called, not of the block of its forward pass.

    Args:
        precision: "highest": float32 (on a TPU the sum of six products of bfloat16 numbers); "high": three such
            products, about 16 bits; "medium": one, 8 bits. Applies to matrix products, convolutions and attention of
            float32 tensors. The CPU plugin always computes in float32.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
