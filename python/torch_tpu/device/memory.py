"""Memory of ``torch.tpu``: what the engine holds on a device, by its own account. Sizes are bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NoReturn

import torch

from torch_tpu.device._index import DeviceLike, device_index


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, Any]:
    """All counters, flat, under the names of ``torch.cuda.memory_stats``; empty before the first allocation."""
    return torch.accelerator.memory_stats(device_index(device))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of live tensors."""
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes of live tensors since the start or the last :func:`reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes held on the device, in live tensors or not."""
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes held since the start or the last :func:`reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_reserved(device_index(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts the peaks anew from what is held now."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the counters of what was ever allocated and freed to zero."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def empty_cache() -> None:
    """Gives back memory that no tensor uses."""
    torch.accelerator.empty_cache()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes of the device."""
    return torch.accelerator.get_memory_info(device_index(device))


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """A table of the counters for people to read; ``abbreviated`` leaves out the accumulated ones."""
    index = device_index(device)
    stats = memory_stats(index)
    heading = f"{'':<28}{'now':>14}{'peak':>14}" + ("" if abbreviated else f"{'total':>16}")
    rows = [f"torch.tpu memory, device {index}", heading]
    for name in ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes", "allocation"):
        values = [stats.get(f"{name}.all.{kind}", 0) for kind in ("current", "peak", "allocated")]
        if not any(values):
            continue
        rows.append(f"{name:<28}{values[0]:>14,}{values[1]:>14,}" + ("" if abbreviated else f"{values[2]:>16,}"))
    rows.append(f"allocation retries {stats.get('num_alloc_retries', 0)}, out of memory {stats.get('num_ooms', 0)}")
    return "\n".join(rows)


def _not_supported(name: str) -> NoReturn:
    raise NotImplementedError(
        f"torch.tpu.{name} is not supported: the plugin allocates, and reports no blocks. memory_stats() and "
        "memory_summary() tell what is held."
    )


def memory_snapshot(*args: object, **kwargs: object) -> NoReturn:
    """Not supported: the plugin's allocator reports no blocks."""
    _not_supported("memory_snapshot")


def _snapshot(*args: object, **kwargs: object) -> NoReturn:
    _not_supported("memory._snapshot")


def _dump_snapshot(*args: object, **kwargs: object) -> NoReturn:
    _not_supported("memory._dump_snapshot")


def _record_memory_history(*args: object, **kwargs: object) -> NoReturn:
    _not_supported("memory._record_memory_history")
