"""Settings for all tests. They must be in the environment before torch is imported, hence at the top of this file."""

from __future__ import annotations

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# With fallback allowed nearly everything passes, on the host: then a green run would prove nothing.
os.environ.setdefault("TORCH_TPU_HOST_FALLBACK", "error")
# One compile cache for all runs in this checkout, apart from the user's own.
os.environ.setdefault("TORCH_TPU_CACHE_DIR", str(ROOT / "build" / "test-cache"))

import torch  # noqa: E402
import torch_tpu  # noqa: E402


def pytest_report_header() -> list[str]:
    """Names the plugin under test."""
    from torch_tpu import _C

    provider, path, reason = _C.choose_plugin()
    return [f"torch {torch.__version__}, torch_tpu {torch_tpu.__version__}", f"plugin {provider}: {path} ({reason})"]
