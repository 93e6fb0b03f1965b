"""Graphs of ``torch.tpu``: what a block does, captured once and replayed as one program.

graph = torch.tpu.Graph()
with torch.tpu.graph(graph):
    loss = step(static_input)
static_input.copy_(batch)
graph.replay()
"""

from __future__ import annotations

import itertools
import pathlib
import warnings
from typing import TYPE_CHECKING

import torch

from torch_tpu import _C
from torch_tpu.device.streams import stream as stream_context

_pools = itertools.count(1)


def is_current_stream_capturing() -> bool:
    """Whether what this thread does is captured in a graph, or in a :func:`torch_tpu.compile.step`."""
    return _C.capturing() in ("replay", "step")


def graph_pool_handle() -> tuple[int, int]:
    """A name for a pool of memory, for likeness with CUDA: memory is the plugin's."""
    return (1, next(_pools))


class _Graph:
    """:class:`torch.accelerator.Graph` for releases of torch that have none."""

    def __init__(
        self,
        keep_graph: bool = False,
        *,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "default",
    ) -> None:
        self._graph = _C.ReplayGraph()
        self._keep_graph = keep_graph
        self._debug = False
        self.graph_pool = pool
        self.capture_error_mode = capture_error_mode

    def capture_begin(self) -> None:
        """Begins to capture what this thread does on the current device."""
        self._graph.capture_begin()
        if self.graph_pool is None:
            self.graph_pool = graph_pool_handle()

    def capture_end(self) -> None:
        """Ends the capture.

        Raises:
            RuntimeError: something that was called cannot be captured.
        """
        self._graph.capture_end()

    def instantiate(self) -> None:
        """For graphs made with ``keep_graph=True``; programs are compiled at the first replay in any case."""
        self._need_capture("instantiate")
        if not self._keep_graph:
            raise RuntimeError("instantiate() is for graphs made with keep_graph=True")

    def replay(self) -> None:
        """Does what was captured, with what the tensors hold now."""
        self._graph.replay()

    def reset(self) -> None:
        """Forgets the graph; another one can be captured."""
        self._graph.reset()

    def pool(self) -> tuple[int, int]:
        """The name of the graph's pool."""
        self._need_capture("pool")
        assert self.graph_pool is not None
        return self.graph_pool

    def enable_debug_mode(self) -> None:
        """Allows :meth:`debug_dump`."""
        self._debug = True

    def debug_dump(self, path: str) -> None:
        """Writes the program as StableHLO."""
        self._need_capture("debug_dump")
        if self._debug or self._keep_graph:
            pathlib.Path(path).write_text(self._graph.text(locations=True))
        else:
            warnings.warn("debug_dump() does nothing before enable_debug_mode()", stacklevel=2)

    def __enter__(self) -> None:
        _C.synchronize(_C.current_device())
        self.capture_begin()

    def __exit__(self, *exc: object) -> None:
        self.capture_end()

    def _need_capture(self, name: str) -> None:
        if not self._graph.captured:
            raise RuntimeError(f"{name}() of a graph without a successful capture")


if TYPE_CHECKING:
    Graph = _Graph
else:
    Graph = getattr(torch.accelerator, "Graph", _Graph)  # torch 2.13 is the first to have it


class graph:
    """Context manager that captures its block in a graph: ``with torch.tpu.graph(g): …``.

    Args:
        graph: a :class:`Graph` that holds none yet.
        pool: see :func:`graph_pool_handle`.
        stream: becomes current within the block. Whatever stream is current, all that the thread does is captured.
    """

    def __init__(self, graph: Graph, pool: tuple[int, int] | None = None, stream: torch.Stream | None = None) -> None:
        self._graph = graph
        self._stream = stream_context(stream)
        if pool is not None:
            graph.graph_pool = pool

    def __enter__(self) -> None:
        self._stream.__enter__()
        try:
            self._graph.__enter__()
        except BaseException:
            self._stream.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        try:
            self._graph.__exit__(*exc)
        finally:
            self._stream.__exit__(*exc)
