"""Optimizers whose step a graph would freeze.

An optimizer with ``capturable=False`` counts its steps on the host, so that every replay would repeat the step that was
captured. Torch refuses to capture it on CUDA and XPU; the same goes for the device's graphs.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from torch_tpu import _C


def register(module: ModuleType) -> None:
    """Adds the device to the check that optimizers of `module`, ``torch.optim.optimizer``, make in each step."""
    optimizer = module.Optimizer
    upstream = getattr(optimizer, "_accelerator_graph_capture_health_check", None)
    if upstream is None:  # older than torch 2.13
        return

    @functools.wraps(upstream)
    def check(self: Any) -> None:
        upstream(self)
        if torch.compiler.is_compiling():  # and dynamo traces this
            return
        if _C.capturing() == "replay" and not all(group["capturable"] for group in self.param_groups):
            raise RuntimeError(
                f"Attempting graph capture of step() for an instance of {type(self).__name__} but param_groups' "
                "capturable is False."
            )

    optimizer._accelerator_graph_capture_health_check = check
