"""Registers the device with torch, once per process.

``load`` is a public contract: libraries call ``torch_tpu._loader.load()`` where autoload may be off. Nothing here
starts a client or loads a plugin; that happens at the first use of the device.
"""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import threading
import warnings
from types import ModuleType

from torch_tpu._internal import names

_lock = threading.RLock()
_loaded = False
_failure: Exception | None = None
# At exit, work that was launched gets this long to finish: nobody will read its results.
_DRAIN_SECONDS = 1.0


def autoload() -> None:
    """What ``import torch`` runs: :func:`load`, with a warning in place of an exception. Does nothing under
    ``TORCH_DEVICE=cpu``, so that libraries that look for an accelerator find none."""
    try:
        if names.requested() == "cpu":
            return
        load()
    except Exception as error:
        warnings.warn(f"torch_tpu is not loaded: {error}", RuntimeWarning, stacklevel=2)


def load() -> None:
    """Registers device ``"tpu"``, module ``torch.tpu`` and the operators. Does nothing the second time.

    Raises:
        RuntimeError: the native libraries are missing, were built for another torch, or PrivateUse1 is taken.
        NotImplementedError: ``TORCH_DEVICE`` or the hardware asks for a device that is not supported yet.
        ValueError: ``TORCH_DEVICE`` is not understood.
    """
    global _loaded, _failure
    with _lock:
        if _loaded:
            return
        if _failure is not None:
            raise _failure
        try:
            name = names.settle()
            _register(name, _import_engine())
            _loaded = True
        except Exception as error:
            _failure = error
            raise


def is_loaded() -> bool:
    """Whether the device is registered in this process."""
    return _loaded


def built_for() -> str | None:
    """Version of torch that the native libraries were built for; None where nothing is built."""
    path = pathlib.Path(__file__).with_name("_build_info.json")
    try:
        return str(json.loads(path.read_text())["torch_version"])
    except (OSError, ValueError, KeyError):
        return None


def _import_engine() -> ModuleType:
    import torch

    built, running = built_for(), str(torch.__version__)
    # Compared before loading: the wrong libtorch shows as an undefined symbol, or worse, as nothing at once.
    if built is not None and built.split(".")[:2] != running.split(".")[:2]:
        raise RuntimeError(
            f"the native libraries were built for torch {built}, and this is torch {running}. Build them again: "
            "`make build` in the source tree, or `pip install --force-reinstall --no-build-isolation --no-deps` of "
            "torch-pjrt."
        )
    try:
        from torch_tpu import _C
    except ImportError as error:
        raise RuntimeError(
            f"the native libraries could not be loaded ({error}). Build them with `make build` in the source tree, or "
            "reinstall torch-pjrt with `pip install --no-build-isolation`."
        ) from error
    return _C


def _register(name: str, engine: ModuleType) -> None:
    import torch
    from torch.utils import backend_registration

    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", name) or hasattr(torch, name):
        raise RuntimeError(
            f"another backend has already registered device '{taken}' in this process, and there can be one only. "
            "Uninstall it, or turn autoload off with TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import one of them."
        )
    from torch_tpu import device
    from torch_tpu._internal import lazy, probe

    engine.set_plugin_search_path(probe.search_path())
    backend_registration.rename_privateuse1_backend(name)
    torch._register_device_module(name, device)
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    os.register_at_fork(after_in_child=engine.after_fork_in_child)
    atexit.register(engine.drain, _DRAIN_SECONDS)
    lazy.after_import("torch._dynamo.device_interface", _register_dynamo_interface)
    lazy.after_import("torch._inductor.compile_fx", _register_default_backend)
    lazy.after_import("torch._subclasses.fake_impls", _register_fake_implementations)
    lazy.after_import("torch.optim.optimizer", _check_captured_optimizers)
    lazy.after_import("torch.nn.attention.flex_attention", _allow_flex_attention)
    lazy.after_import("torch.compiler._cache", _carry_programs)


def _register_default_backend(module: ModuleType) -> None:
    from torch_tpu.compile.backend import use_by_default

    use_by_default(module)


def _register_fake_implementations(module: ModuleType) -> None:
    from torch_tpu._internal.fake_implementations import register

    register(module)


def _check_captured_optimizers(module: ModuleType) -> None:
    from torch_tpu._internal.captured_optimizers import register

    register(module)


def _register_dynamo_interface(module: ModuleType) -> None:
    from torch_tpu._internal.dynamo_interface import register

    register(module)


def _allow_flex_attention(module: ModuleType) -> None:
    from torch_tpu._internal.flex_attention import register

    register(module)


def _carry_programs(module: ModuleType) -> None:
    from torch_tpu._internal.cache_artifacts import register

    register(module)
