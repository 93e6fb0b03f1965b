"""Settings for all tests. They must be in the environment before torch is imported, hence at the top of this file."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_tpu.compile.graphs import CompiledGraph

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# With fallback allowed nearly everything passes, on the host: then a green run would prove nothing.
os.environ.setdefault("TORCH_TPU_HOST_FALLBACK", "error")
# One compile cache for all runs in this checkout, apart from the user's own.
os.environ.setdefault("TORCH_TPU_CACHE_DIR", str(ROOT / "build" / "test-cache"))

import pytest  # noqa: E402
import torch  # noqa: E402
import torch_tpu  # noqa: E402

# A shell that runs tests in the background ignores Ctrl-C for them, and children inherit that: then the tests of
# interrupts would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seeds(request: pytest.FixtureRequest) -> None:
    """Every test draws its own numbers, and the same ones in every run and whatever ran before it."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def sizes_of_samples(request: pytest.FixtureRequest) -> Iterator[None]:
    """The operator database's samples pass through one line of code, in many sizes, which would be taken to change: how
    a result is rounded must not depend on which entries ran before. op_db/test_bounded_sizes.py asks for them."""
    if "op_db" not in request.path.parts:
        yield
        return
    with torch_tpu.bounded_sizes("off"):
        yield


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[CompiledGraph]:
    """The graphs that torch.compile hands to the device in the test."""
    from torch_tpu.compile.graphs import CompiledGraph

    made: list[CompiledGraph] = []
    initialise = CompiledGraph.__init__

    def note(self: CompiledGraph, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(CompiledGraph, "__init__", note)
    return made


def pytest_report_header() -> list[str]:
    """Names the plugin under test."""
    from torch_tpu import _C

    provider, path, reason = _C.choose_plugin()
    return [f"torch {torch.__version__}, torch_tpu {torch_tpu.__version__}", f"plugin {provider}: {path} ({reason})"]


# `make test` leaves out tests marked slow and runs the parameter sets of each test function at these places of its
# list, so that every function, family and mode is met, and those marked quick; `make test-full`
# (TORCH_TPU_TEST_FULL=1) runs them all.
SAMPLED = (0.0, 2 / 3)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what the sample leaves out, unless the full run, a single test or a -k expression was asked for."""
    _mark_known_defects(items)
    _keep_part(config, items, os.environ.get("TORCH_TPU_TEST_PART", "1/1"))
    chosen_by_hand = config.getoption("keyword") or any("::" in str(arg) for arg in config.args)
    if os.environ.get("TORCH_TPU_TEST_FULL") == "1" or chosen_by_hand:
        return
    by_function: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is not None:
            continue
        by_function.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for item in items if item.get_closest_marker("quick") is not None}
    for group in by_function.values():
        kept.update(group[int(place * len(group))] for place in SAMPLED)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _keep_part(config: pytest.Config, items: list[pytest.Item], part: str) -> None:
    """Keeps the I-th of N parts of all tests, "I/N": the same tests in every run, about as many in each part."""
    number, count = map(int, part.split("/"))
    if not 1 <= number <= count:
        raise pytest.UsageError(f"TORCH_TPU_TEST_PART={part}: parts count from 1/{count} to {count}/{count}")
    kept = [item for item in items if zlib.crc32(item.nodeid.encode()) % count == number - 1]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


# Defects that are known and not mended yet, by test and reason. One that passes fails the run, so that its entry goes.
KNOWN_DEFECTS = {}


def _mark_known_defects(items: list[pytest.Item]) -> None:
    for item in items:
        for name, reason in KNOWN_DEFECTS.items():
            if item.nodeid.endswith(name) or item.nodeid.partition("[")[0].endswith(name):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
