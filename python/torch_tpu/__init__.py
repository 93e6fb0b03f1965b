"""PyTorch on any accelerator that has a PJRT plugin, as device ``"tpu"``.

Installing the package is enough: ``import torch`` loads it, and ``torch.ones(3, device="tpu")`` works. This module
holds what has no place in ``torch.tpu``: choosing a device, counters, and settings of the engine.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_tpu import aot, export
    from torch_tpu._internal.counters import (
        clear_cache,
        compile_stats,
        debug,
        host_fallbacks,
        operators,
        reset_compile_stats,
        reset_host_fallbacks,
    )
    from torch_tpu._internal.health import preferred_device
    from torch_tpu._internal.precision import matmul_precision
    from torch_tpu._internal.sizes import bounded_sizes, compile_guard

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "aot",
    "bounded_sizes",
    "clear_cache",
    "compile_guard",
    "compile_stats",
    "debug",
    "export",
    "host_fallbacks",
    "matmul_precision",
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


def __getattr__(name: str) -> Any:
    # What needs torch and the native libraries is looked up when it is asked for: torch imports this module while it
    # is still being imported itself, and the doctor must run without either.
    if name in ("aot", "compile", "export"):
        return importlib.import_module(f"torch_tpu.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'torch_tpu' has no attribute {name!r}")
    home = {
        "bounded_sizes": "sizes",
        "compile_guard": "sizes",
        "matmul_precision": "precision",
        "preferred_device": "health",
    }.get(name, "counters")
    return getattr(importlib.import_module(f"torch_tpu._internal.{home}"), name)


# `import torch_tpu` registers the device also where autoload is turned off. `python -m torch_tpu` must start even where
# torch or the native libraries are broken, since it is there to explain such things.
if not (sys.argv[:1] == ["-m"] and "torch_tpu" in sys.orig_argv):
    import torch as _torch  # noqa: F401

    _autoload()
