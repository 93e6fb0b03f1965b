"""A graph of ATen operators, captured once and then launched as one node."""

from __future__ import annotations

import functools
import logging
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.compile import control_flow
from torch_tpu.compile.options import Options
from torch_tpu.compile.sizes import ChangingSizes
from torch_tpu.compile.windows import is_window, reads_storages

_log = logging.getLogger("torch_tpu.compile")


class CompiledGraph:
    """Calls a graph as one program.

    The first call with arguments of certain sizes runs the graph's operators in the ordinary way, on tensors without
    contents, and keeps what they would have launched (csrc/graph/capture.h). Later calls launch that. Symbolic integers
    are part of it, so their values are exact everywhere. Tensors of symbolic sizes are stored in larger arrays, and
    what is captured for other sizes with the same bounds is the same program.

    A graph that needs a value on the way, or has tensors on several devices, cannot be one program: its operators then
    run one after the other, and :attr:`reason` says why. So do those of a call with a window into larger memory, where
    the graph looks beyond it (``as_strided``): a program gets the window's elements only.
    """

    def __init__(self, graph: torch.fx.GraphModule, options: Options | None = None, *, all_change: bool = True) -> None:
        self._graph = graph
        self._options = options or Options()
        self._programs: dict[tuple[Any, ...], _Program] = {}
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._one_size = not any(_varies(node) for node in placeholders)
        self._sizes = None if self._one_size else ChangingSizes(graph, all_change=all_change)
        self._reads_storages = reads_storages(graph)
        self.reason: str | None = None

    def __call__(self, *args: Any) -> Any:
        windows = self._reads_storages and any(is_window(a) for a in args if isinstance(a, torch.Tensor))
        if windows and self._options.one_program:
            raise RuntimeError("as_strided of an argument that is a view of larger memory cannot be one program")
        if self.reason is None and not windows:
            # Under torch.compile(dynamic=True) one graph serves many sizes; otherwise dynamo has compared them.
            key = () if self._one_size else tuple(_form(a) for a in args)
            program = self._programs.get(key)
            if program is None:
                program = self._capture(args)
                if program is not None:
                    self._programs[key] = program
            if program is not None:
                return program(args)
        return _run(self._graph, args)

    def _capture(self, args: tuple[Any, ...]) -> _Program | None:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        devices = {t.device for t in tensors} or _devices_of(self._graph)
        if len(devices) != 1 or next(iter(devices)).type != "tpu":
            self._give_up(f"it has tensors on {', '.join(sorted(map(str, devices))) or 'no device'}")
            return None
        capture = _C.GraphCapture(next(iter(devices)).index or 0, fixed_sizes=not self._options.bounded_sizes)
        try:
            if self._sizes is not None:
                capture.set_sizes(self._sizes.observe(args))
            stand_ins = [
                capture.argument(a, self._sizes.dims(i) if self._sizes else 0) if isinstance(a, torch.Tensor) else a
                for i, a in enumerate(args)
            ]
            results = _run(self._graph, stand_ins)
            flat = list(results) if isinstance(results, (list, tuple)) else [results]
            made = capture.finish([r for r in flat if isinstance(r, torch.Tensor)])
        except Exception:
            if not capture.blocked:
                raise
            self._give_up(capture.blocked)
            return None
        finally:
            capture.close()
        return _Program(made, [None if isinstance(r, torch.Tensor) else (r,) for r in flat])

    def _give_up(self, reason: str) -> None:
        said = f"a graph of {len(self._graph.graph.nodes)} operators does not become one program: {reason}"
        if self._options.one_program:
            raise RuntimeError(said)
        self.reason = reason
        _log.info(said)


class _Program:
    """A captured graph with the results that are not tensors put back in their places."""

    def __init__(self, call: _C.CapturedCall, others: list[tuple[Any] | None]) -> None:
        self._call = call
        self._others = others

    def __call__(self, args: tuple[Any, ...]) -> list[Any]:
        tensors = iter(self._call([a for a in args if isinstance(a, torch.Tensor)]))
        return [next(tensors) if other is None else other[0] for other in self._others]


def _varies(placeholder: torch.fx.Node) -> bool:
    """Whether an argument's sizes are symbolic, or it is a number itself."""
    value = placeholder.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return True
    return any(not isinstance(n, int) for n in (*value.shape, *value.stride()))


def _form(argument: Any) -> Any:
    return (*argument.shape, *argument.stride()) if isinstance(argument, torch.Tensor) else argument


def _run(graph: torch.fx.GraphModule, args: Any) -> Any:
    # Graphs of AOTAutograd are traced: autograd and autocast have had their say.
    with torch.no_grad(), torch._C._DisableAutocast():
        return Interpreter(graph).run(*args)


class Interpreter(torch.fx.Interpreter):
    """Runs every node as if the user's line that it comes from called it, so that errors name that line."""

    def run_node(self, n: torch.fx.Node) -> Any:
        line = _user_line(n.meta.get("stack_trace"))
        if line is None or n.op != "call_function":
            return super().run_node(n)
        return _caller_at(*line)(super().run_node, n)


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def _user_line(trace: str | None) -> tuple[str, int] | None:
    """File and line of the innermost frame of a node's stack trace that is not torch's own."""
    frames = _FRAME.findall(trace or "")
    own = [frame for frame in frames if "/torch/" not in frame[0]] or frames
    return (own[-1][0], int(own[-1][1])) if own else None


@functools.lru_cache(maxsize=4096)
def _caller_at(file: str, line: int) -> Callable[..., Any]:
    """A function that calls another one from the given line, as far as a look at the stack can tell."""
    call: Callable[..., Any] = lambda function, argument: function(argument)  # noqa: E731
    code = call.__code__.replace(co_filename=file, co_firstlineno=line)
    return types.FunctionType(code, call.__globals__)


def _devices_of(graph: torch.fx.GraphModule) -> set[torch.device]:
    values = (node.meta.get("val") for node in graph.graph.nodes)
    return {value.device for value in values if isinstance(value, torch.Tensor)}


control_flow.register(_run)
