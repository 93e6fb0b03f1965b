"""From what a user may pass as a device to an index."""

from __future__ import annotations

import torch

from torch_tpu import _C

DeviceLike = int | str | torch.device | None


def device_index(device: DeviceLike) -> int:
    """Index of `device`; the current one for None and for ``"tpu"`` without a number.

    Raises:
        ValueError: it is a device of another type.
        TypeError: it is not a device at all.
    """
    if device is None:
        return _C.current_device()
    if isinstance(device, bool):
        raise TypeError("a device may be an index, a string, a torch.device or None, not a bool")
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if not isinstance(device, torch.device):
        raise TypeError(f"a device may be an index, a string, a torch.device or None, not {type(device).__name__}")
    if device.type != "tpu":
        raise ValueError(f"expected a tpu device, got {device}")
    return device.index if device.index is not None else _C.current_device()
