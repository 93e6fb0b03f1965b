"""``torch.compile`` for the device: one program for a graph's forward pass, one for its backward pass.

``torch.compile(model)`` picks this backend for graphs on the device; ``backend="tpu"`` names it.
"""

from __future__ import annotations

from torch_tpu.compile.backend import backend

__all__ = ["backend"]
