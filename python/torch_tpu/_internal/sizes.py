"""What is done about sizes that change from call to call, and about compiling where there should be none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from torch_tpu import _loader

_loader.load()

from torch_tpu import _C  # noqa: E402


def bounded_sizes(setting: str) -> AbstractContextManager[None]:
    """Within the block tensors of changing sizes are treated as `setting` says; afterwards as before.

    A program is compiled for the sizes of its arguments. Where a line goes on making tensors of new sizes, they are
    stored in larger arrays, of a power of two, and programs are made for those, so that all lengths up to n need about
    log2(n) of each (docs/dynamic_shapes.md). Results, sizes and strides are those of PyTorch in any case. The setting
    is the process's; ``TORCH_TPU_BOUNDED_SIZES`` says what it is at first. What was seen of a program's sizes is
    forgotten at the beginning and at the end of the block.

    Args:
        setting: "auto", the default: after four sizes at one line. "off": never. "always": all sizes are treated as
            changing, and what stands behind the elements is overwritten with numbers that would show; for tests.

    Raises:
        ValueError: there is no such setting.
    """
    return _within(_C.bounded_sizes, _C.set_bounded_sizes, setting)


def compile_guard(setting: str) -> AbstractContextManager[None]:
    """Within the block, says what happens where a program is needed that is not in memory; afterwards what did before.

    For loops that should have compiled all they need. A program that would come from the disk cache counts as well, so
    that the outcome does not depend on earlier runs. The setting is the process's; ``TORCH_TPU_COMPILE_GUARD`` says
    what it is at first.

    Args:
        setting: "allow", the default: it is compiled. "log": as well, and a line on stderr names the operators, the
            user's line and why no known program serves. "error": RuntimeError that says the same, at the call or where
            its result is read. What the refused call was to write has no value then, as after any failed call.

    Raises:
        ValueError: there is no such setting.
    """
    return _within(_C.compile_guard, _C.set_compile_guard, setting)


@contextlib.contextmanager
def _within(get: Callable[[], str], set_to: Callable[[str], None], setting: str) -> Iterator[None]:
    before = get()
    set_to(setting)
    try:
        yield
    finally:
        set_to(before)
