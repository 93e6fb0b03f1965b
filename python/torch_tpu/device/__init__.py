"""The module ``torch.tpu``: devices, streams, random numbers, memory and execution modes.

It follows ``torch.cuda`` wherever that has a function of the same name. Where a device is asked for, an index, a
string, a ``torch.device`` or None (the current device) will do. Nothing starts the plugin's client before it is needed:
``is_available``, ``is_initialized``, ``current_device``, ``set_device`` and the seeding functions never do.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu import _C
from torch_tpu._C import DeviceProperties
from torch_tpu.device import memory
from torch_tpu.device._index import DeviceLike, device_index
from torch_tpu.device.graphs import Graph, graph, graph_pool_handle, is_current_stream_capturing
from torch_tpu.device.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch_tpu.device.modes import eager_mode, get_eager_mode, set_eager_mode
from torch_tpu.device.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_tpu.device.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "DeviceProperties",
    "Event",
    "Graph",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "eager_mode",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_eager_mode",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "graph_pool_handle",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


def is_available() -> bool:
    """Whether there is a plugin that works. Does not start the client and never raises."""
    return _C.is_available()


def is_initialized() -> bool:
    """Whether this process has started the client."""
    return _C.is_initialized()


def init() -> None:
    """Starts the client now instead of at the first use of the device.

    Raises:
        RuntimeError: no plugin, a broken one, or this is a forked child of a process that had a client.
    """
    _C.init()


def _lazy_init() -> None:
    _C.init()


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def device_count() -> int:
    """Number of devices; 0 where there is no plugin that works or in a forked child. Starts the client."""
    return _C.device_count() if _C.is_available() else 0


def current_device() -> int:
    """Index of this thread's current device."""
    return _C.current_device()


def set_device(device: DeviceLike) -> None:
    """Makes `device` current in this thread. None and negative indices do nothing.

    Raises:
        RuntimeError: there is no such device (when it is found out, at the latest at its first use).
    """
    index = device_index(device)
    if index >= 0:
        _C.set_device(index)


class device:
    """Context manager that makes a device current: ``with torch.tpu.device(1): …``. None and negative indices leave
    the current device as it is."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = device_index(device) if device is not None else -1
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(self, *exc: object) -> None:
        self.idx = _C.maybe_exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor or storage current; does nothing for those on other kinds of
    devices."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage) -> None:
        super().__init__(obj.device.index if obj.device.type == "tpu" else None)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all work queued on the device and raises the first error it met."""
    _C.synchronize(device_index(device))


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, platform, ids, total memory in bytes and the plugin's attributes of a device."""
    return _C.device_properties(device_index(device))


def get_device_name(device: DeviceLike = None) -> str:
    """Name of a device, for example ``"TPU v5e"``."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """What the device can do, as in :func:`torch.accelerator.get_device_capability`: its supported dtypes."""
    return torch.accelerator.get_device_capability(torch.device("tpu", device_index(device)))


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether one device can read the other's memory directly: False, copies go through the plugin."""
    if device_index(device) == device_index(peer_device):
        raise RuntimeError("can_device_access_peer: the two devices are the same")
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that ``torch.autocast("tpu")`` accepts."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: every plugin computes bfloat16, natively or not."""
    del including_emulation
    return True


def __getattr__(name: str) -> Any:
    # Their number is that of the devices, so looking at them starts the client.
    if name == "default_generators":
        return tuple(_C.default_generator(index) for index in range(device_count()))
    # torch.utils.checkpoint asks whether there is random state to keep.
    if name == "_initialized":
        return _C.is_initialized()
    raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")
