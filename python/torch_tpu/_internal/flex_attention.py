"""``torch.nn.attention.flex_attention`` for the device: torch names the devices that it may run on, and has no
registration for others."""

from __future__ import annotations

from types import ModuleType

import torch


def register(module: ModuleType) -> None:
    """Lets the functions of `module` take tensors of the device. dynamo traces what is put in place here."""
    validate = getattr(module, "_validate_device", None)
    if validate is None:
        return

    def _validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "tpu":
            validate(query, key, value)

    module._validate_device = _validate_device  # type: ignore[attr-defined]
