"""PyTorch on any accelerator that has a PJRT plugin, as device ``"tpu"``.

Installing the package is enough: ``import torch`` loads it, and ``torch.ones(3, device="tpu")`` works. This module
holds what has no place in ``torch.tpu``: choosing a device, counters, and settings of the engine.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "clear_cache",
    "compile_stats",
    "debug",
    "host_fallbacks",
    "operators",
    "preferred_device",
    "reset_compile_stats",
    "reset_host_fallbacks",
]


def _autoload() -> None:
    """Entry point that ``import torch`` calls (group ``torch.backends``). Warns instead of raising: a backend that
    cannot be loaded must not take torch with it."""
    from torch_tpu import _loader

    _loader.autoload()


def preferred_device() -> torch.device:
    """The device to use when the user names none.

    ``TORCH_DEVICE`` (``tpu[:n]`` or ``cpu``) decides when it is set. Otherwise it is ``tpu`` if a small program, run
    once per process on that device, gives the right answer, and ``cpu``, with a warning that says why, if not.

    Raises:
        RuntimeError: ``TORCH_DEVICE`` names a device that does not work.
        ValueError: ``TORCH_DEVICE`` is not understood.
    """
    from torch_tpu._internal import health

    return health.preferred_device()


def host_fallbacks() -> dict[str, int]:
    """Operators that had no lowering and ran on the host so far (``"aten::name.overload"``), and how often each."""
    from torch_tpu import _loader

    return _loader.engine().host_fallbacks()


def reset_host_fallbacks() -> None:
    """Sets the counts of :func:`host_fallbacks` back to nothing."""
    from torch_tpu import _loader

    _loader.engine().reset_host_fallbacks()


def compile_stats() -> dict[str, float]:
    """Counters of the compiler and its cache: compiles, compile_seconds, memory_hits, disk_hits, executions, flushes,
    programs."""
    from torch_tpu import _loader

    return _loader.engine().compile_stats()


def reset_compile_stats() -> None:
    """Sets the counts of :func:`compile_stats` back to zero."""
    from torch_tpu import _loader

    _loader.engine().reset_compile_stats()


def clear_cache(*, disk: bool = False) -> None:
    """Drops compiled programs from memory, and with ``disk=True`` from the disk too."""
    from torch_tpu import _loader

    _loader.engine().clear_compile_cache(disk)


def operators() -> list[str]:
    """Names of the operators that are lowered natively, without the prefix ``aten::``."""
    from torch_tpu import _loader

    return _loader.engine().operators()


class debug:
    """Context manager that sets the level of ``TORCH_TPU_DEBUG`` (0 to 5) for a block."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._previous = 0

    def __enter__(self) -> None:
        from torch_tpu import _loader

        self._previous = _loader.engine().debug_level()
        _loader.engine().set_debug_level(self._level)

    def __exit__(self, *exc: object) -> None:
        from torch_tpu import _loader

        _loader.engine().set_debug_level(self._previous)


# `import torch_tpu` registers the device also where autoload is turned off. `python -m torch_tpu` must start even where
# torch or the native libraries are broken, since it is there to explain such things.
if not (sys.argv[:1] == ["-m"] and "torch_tpu" in sys.orig_argv):
    import torch  # noqa: F811

    _autoload()
