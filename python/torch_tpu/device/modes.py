"""Execution modes: the same operators, flushed to the device at different times.

``debug`` runs one operator at a time and waits for it; ``strict`` (the default) queues each one at once; ``fused``
collects operators and compiles them together at reads, events and stream changes.
"""

from __future__ import annotations

from torch_tpu import _C

MODES = ("debug", "strict", "fused")


def get_eager_mode() -> str:
    """The mode of this process: ``"debug"``, ``"strict"`` or ``"fused"``."""
    return _C.eager_mode()


def set_eager_mode(mode: str) -> None:
    """Flushes what is collected and switches the mode.

    Raises:
        ValueError: there is no such mode.
    """
    if mode not in MODES:
        raise ValueError(f"eager mode is {mode!r}; it may be {', '.join(MODES)}")
    _C.set_eager_mode(mode)


class eager_mode:
    """Context manager that switches the mode for a block: ``with torch.tpu.eager_mode("fused"): …``."""

    def __init__(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"eager mode is {mode!r}; it may be {', '.join(MODES)}")
        self._mode = mode
        self._previous = ""

    def __enter__(self) -> None:
        self._previous = get_eager_mode()
        set_eager_mode(self._mode)

    def __exit__(self, *exc: object) -> None:
        set_eager_mode(self._previous)
