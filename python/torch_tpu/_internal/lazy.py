"""Runs something after a module has been imported, whenever that is.

torch._dynamo takes a second to import, so `import torch` must not pull it in for the sake of a registration.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Callback = Callable[[ModuleType], None]


class _Loader(importlib.abc.Loader):
    """The module's own loader, with the callback after it."""

    def __init__(self, loader: importlib.abc.Loader, callback: Callback) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Later users of the loader (inspect, pickle, reload) should meet the real one.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._callback(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module by asking the other finders, then leaves sys.meta_path."""

    def __init__(self, name: str, callback: Callback) -> None:
        self._name = name
        self._callback = callback

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(fullname, path, target) if find_spec else None
            if isinstance(spec, importlib.machinery.ModuleSpec) and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self._callback)
                return spec
        return None


def after_import(name: str, callback: Callback) -> None:
    """Calls ``callback(module)`` once module ``name`` has been imported; at once if it has been already."""
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
    else:
        sys.meta_path.insert(0, _Finder(name, callback))
