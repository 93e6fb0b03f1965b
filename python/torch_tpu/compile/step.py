"""A function whose every call is launched as one program: forward pass, backward pass and optimizer together."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torch_tpu import _C

_P = ParamSpec("_P")
_R = TypeVar("_R")

_origins = itertools.count(1)


def step(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes every call of `function` one program on the device.

        @torch_tpu.compile.step
        def train(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

    The function's Python code runs at each call, as it would without the decorator: learning-rate schedulers, gradient
    clipping, accumulation, dropout, branches and hooks mean what they always mean. What differs is that nothing is
    launched before the function returns, and then everything at once. Parameters, buffers and the optimizer's state are
    the program's arguments and results, and new ones take over the memory of the old. A program is compiled for each
    sequence of operators, shapes and dtypes that occurs; numbers, such as a learning rate, are operands of it.

    Args:
        function: takes and returns anything. What it computes on the device is on the current one. Tensors of the host
            may be moved there within.

    Returns:
        A function of the same arguments and results. Within another step, or where a graph is being captured, it is a
        part of that.

    Raises:
        RuntimeError: on a call, where the value of a tensor that the step computes is needed within it (``item()``,
            ``print``, ``if loss > 1``), and where a tensor from outside is resized. What the function did before an
            exception is done, as without the decorator.
    """
    origin = next(_origins)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if _C.capturing() is not None:
            return function(*args, **kwargs)
        capture = _C.StepCapture(_C.current_device(), origin)
        with _NewStates() as states:
            try:
                return function(*args, **kwargs)
            finally:
                capture.launch(states.tensors)

    return call


def _tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


class _NewStates:
    """While it is entered, `tensors` collects the states of optimizers that make some in their step.

    An optimizer makes its state in its first step and finds it in all others. Told so, the engine makes one program of
    both.
    """

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._known: dict[int, int] = {}

    def __enter__(self) -> _NewStates:
        self._hooks = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._known[id(optimizer)] = sum(1 for _ in _tensors(optimizer))

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        tensors = list(_tensors(optimizer))
        if len(tensors) > self._known.get(id(optimizer), 0):
            self.tensors += tensors
