"""``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts`` carry compiled programs of the device.

An artifact is an entry of the disk cache (docs/cache.md): the file, by its name. Reading one back verifies it.
"""

from __future__ import annotations

import logging
import os
import pathlib
import re
import tempfile
from types import ModuleType
from typing import Any

from torch_tpu import _C

_log = logging.getLogger("torch_tpu.compile")

_TYPE = "tpu"
_NAME = re.compile(r"[0-9a-f]{32}")


def register(module: ModuleType) -> None:
    """Adds a kind of artifact to `module`, torch.compiler._cache."""

    class TpuCacheArtifact(module.CacheArtifact):  # type: ignore[misc, name-defined]
        """One compiled program."""

        @staticmethod
        def type() -> str:
            return _TYPE

        def populate_cache(self) -> None:
            _store(self.key, self.content)

    module.CacheArtifactFactory.register(TpuCacheArtifact)
    manager: Any = module.CacheArtifactManager
    serialize = manager.serialize.__func__

    # Compiling goes on in the background, and what is compiled is no matter of torch.compile's: so programs are looked
    # for when artifacts are asked for, and not recorded one by one.
    def with_programs(cls: Any) -> Any:
        for name in _entries():
            content = _load(name)
            if content is not None:
                cls.record_artifact(_TYPE, name, content)
        return serialize(cls)

    manager.serialize = classmethod(with_programs)


def _entries() -> list[str]:
    """Names of the programs that this process has used and that are on disk."""
    if not _C.cache_entries():
        return []
    for device in range(_C.device_count()):
        _C.synchronize(device)
    return _C.cache_entries()


def _path(name: str) -> pathlib.Path:
    return pathlib.Path(_C.cache_dir()) / f"{name}.exe"


def _load(name: str) -> bytes | None:
    try:
        return _path(name).read_bytes()
    except OSError:
        return None  # it had to make room for others


def _store(name: str, content: bytes) -> None:
    folder = _C.cache_dir()
    if not folder:
        _log.warning("a saved program was not loaded: the disk cache is off (TORCH_TPU_CACHE)")
        return
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"a saved program has the name {name!r}")
    path = _path(name)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(suffix=".tmp", prefix=f"{name}.", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
