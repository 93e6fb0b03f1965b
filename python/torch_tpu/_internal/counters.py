"""Counters and settings of the engine, re-exported by ``torch_tpu``."""

from __future__ import annotations

from torch_tpu import _loader

_loader.load()

from torch_tpu import _C  # noqa: E402


def host_fallbacks() -> dict[str, int]:
    """Operators that had no lowering and ran on the host so far (``"aten::name.overload"``), and how often each."""
    return _C.host_fallbacks()


def reset_host_fallbacks() -> None:
    """Sets the counts of :func:`host_fallbacks` back to nothing."""
    _C.reset_host_fallbacks()


def compile_stats() -> dict[str, float]:
    """Counters of the compiler and its cache: compiles, compile_seconds, memory_hits, disk_hits, file_hits (programs
    that came with an executable), failed (compiles), programs (now in memory), executions, nodes (operators recorded)
    and waits (for a value of the device)."""
    return _C.compile_stats()


def reset_compile_stats() -> None:
    """Sets the counts of the compiler in :func:`compile_stats` back to zero; executions, nodes and waits go on."""
    _C.reset_compile_stats()


def clear_cache(*, disk: bool = False) -> None:
    """Drops compiled programs from memory, and with ``disk=True`` from the disk too."""
    _C.clear_compile_cache(disk)


def operators() -> list[str]:
    """Names of the operators that are lowered natively, without the prefix ``aten::``."""
    return _C.operators()


class debug:
    """Context manager that sets the level of ``TORCH_TPU_DEBUG`` (0 to 5) for a block."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._previous = 0

    def __enter__(self) -> None:
        self._previous = _C.debug_level()
        _C.set_debug_level(self._level)

    def __exit__(self, *exc: object) -> None:
        _C.set_debug_level(self._previous)
