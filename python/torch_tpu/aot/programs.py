"""Programs of modules and functions that no device has run: captured from tensors that have no contents."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from torch_tpu import _C

Loss = Callable[[Any], torch.Tensor]
OptimizerFactory = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


@dataclasses.dataclass(frozen=True)
class Program:
    """StableHLO text, and of each of its parameters what the user calls it."""

    text: str
    parameters: tuple[str, ...]


def capture(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    *,
    platform: str,
    training: bool = False,
    loss: Loss | None = None,
    optimizer: OptimizerFactory | None = None,
) -> Program:
    """The program of one call; see :func:`torch_tpu.aot.compile`, which has the same arguments.

    Raises:
        RuntimeError: what the call does cannot be one program, as where it needs a tensor's value. Names the operator
            and the user's line.
    """
    step = _Step(function, training=training, loss=loss, optimizer=optimizer)
    state = step.optimizer_state()
    capturing = _Capturing()
    try:
        with _as_if_compiling():
            results = step.run(capturing, state, arguments, keywords)
        made = capturing.finish(results)
    finally:
        capturing.close()
    names = [capturing.names[i] if i >= 0 else "a tensor from outside" for i in made.parameters]
    return Program(made.text(platform, locations=True), tuple(names))


class _Capturing:
    """A capture whose arguments have names."""

    def __init__(self) -> None:
        self._capture = _C.GraphCapture(0, fixed_sizes=True)
        self.names: list[str] = []

    def stand_in(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        self.names.append(name)
        return self._capture.argument(tensor).requires_grad_(tensor.requires_grad)

    def stand_ins(self, tree: Any, name: str) -> Any:
        number = 0

        def replace(x: Any) -> Any:
            nonlocal number
            if not isinstance(x, torch.Tensor):
                return x
            number += 1
            return self.stand_in(x, f"{name} {number - 1}")

        return tree_map(replace, tree)

    def finish(self, results: Sequence[torch.Tensor]) -> _C.CapturedCall:
        return self._capture.finish([r.detach() for r in results])

    def close(self) -> None:
        self._capture.close()


@dataclasses.dataclass
class _Step:
    function: Callable[..., Any]
    training: bool
    loss: Loss | None
    optimizer: OptimizerFactory | None

    def module_tensors(self) -> dict[str, torch.Tensor]:
        if not isinstance(self.function, torch.nn.Module):
            return {}
        return {**dict(self.function.named_parameters()), **dict(self.function.named_buffers())}

    def optimizer_state(self) -> list[dict[str, Any]]:
        """Of each trainable tensor what an optimizer keeps for it after a first step."""
        if self.optimizer is None:
            return []
        capturing = _Capturing()
        try:
            leaves = [capturing.stand_in(t, name) for name, t in self.module_tensors().items() if t.requires_grad]
            for leaf in leaves:
                leaf.grad = capturing.stand_in(leaf.detach(), "gradient")
            made = self.optimizer(leaves)
            made.step()
            return [{k: v.to("meta") if _on_device(v) else v for k, v in made.state[leaf].items()} for leaf in leaves]
        finally:
            capturing.close()

    def run(
        self,
        capturing: _Capturing,
        state: list[dict[str, Any]],
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> list[torch.Tensor]:
        """Runs the step on stand-ins; the results to keep."""
        tensors = {name: capturing.stand_in(t, name) for name, t in self.module_tensors().items()}
        leaves = [t for t in tensors.values() if t.requires_grad]
        optimizer = self.optimizer(leaves) if self.optimizer is not None else None
        for leaf, kept in zip(leaves, state, strict=False):
            assert optimizer is not None
            optimizer.state[leaf] = {
                k: capturing.stand_in(v, f"optimizer's {k}") if isinstance(v, torch.Tensor) and v.is_meta else v
                for k, v in kept.items()
            }
        args, kwargs = capturing.stand_ins((tuple(arguments), dict(keywords)), "input")
        if not self.training:
            with torch.no_grad():
                return _tensors(self._call(tensors, args, kwargs))
        inputs = [t for t in _tensors((args, kwargs)) if t.requires_grad]
        with torch.enable_grad():
            value = self._loss_of(self._call(tensors, args, kwargs))
            wanted = leaves + inputs
            if not wanted:
                raise ValueError("training needs a parameter or an input that requires a gradient")
            gradients = torch.autograd.grad(value, wanted, allow_unused=True)
        if optimizer is None:
            return [value, *(g for g in gradients if g is not None)]
        for leaf, gradient in zip(leaves, gradients, strict=False):
            leaf.grad = gradient
        optimizer.step()
        return [value]

    def _call(self, tensors: dict[str, torch.Tensor], args: Any, kwargs: Any) -> Any:
        if isinstance(self.function, torch.nn.Module):
            return torch.func.functional_call(self.function, tensors, args, kwargs)
        return self.function(*args, **kwargs)

    def _loss_of(self, result: Any) -> torch.Tensor:
        if self.loss is not None:
            return self.loss(result)
        given = getattr(result, "loss", None)
        if isinstance(given, torch.Tensor):
            return given
        floating = [t.float().sum() for t in _tensors(result) if t.is_floating_point() and t.requires_grad]
        if not floating:
            raise ValueError("training needs a result that requires a gradient")
        return torch.stack(floating).sum()


@contextlib.contextmanager
def _as_if_compiling() -> Iterator[None]:
    """``torch.compiler.is_compiling()`` is true, as under torch.export: libraries ask it before they look at values."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _on_device(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == "tpu"


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]
