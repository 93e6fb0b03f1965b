"""Programs of more than one operator.

``torch.compile(model)`` picks :func:`backend` for graphs on the device, ``backend="tpu"`` names it: one program for a
graph's forward pass, one for its backward pass. :func:`step` makes one program of a whole training step.
"""

from __future__ import annotations

from torch_tpu.compile.backend import backend
from torch_tpu.compile.options import list_options
from torch_tpu.compile.step import step

__all__ = ["backend", "list_options", "step"]
