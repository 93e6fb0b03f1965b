"""``torch.cond``, ``while_loop``, ``scan`` and ``map`` in captured graphs.

What dynamo leaves of them are operators that take functions. Where a graph is being captured, their functions are
captured too and become regions of its program (csrc/graph/control_flow.h): which way a branch or a loop goes is found
out on the device. What cannot be captured like that is computed by torch's own kernels: a scan or a map slice by slice,
a branch or a loop by asking for a value, which no captured graph can give.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.compile.windows import is_window, reads_storages

_log = logging.getLogger("torch_tpu.compile")

# Runs a graph on stand-ins, so that errors name the user's lines.
_Run = Callable[[torch.fx.GraphModule, Sequence[Any]], Any]


class _NotARegion(Exception):
    """A function cannot be a region of a program; the message says why."""


def register(run: _Run) -> None:
    """Gives the operators kernels for the device. `run` calls a graph."""
    import torch._higher_order_ops

    parts = _Parts(run)
    kernels: dict[str, Callable[..., Any]] = {
        "cond": parts.cond,
        "while_loop": parts.while_loop,
        "scan": parts.scan,
        "map_impl": parts.map,
    }
    for name, kernel in kernels.items():
        operator = getattr(torch.ops.higher_order, name, None)
        if operator is not None:
            operator.py_impl(DispatchKey.PrivateUse1)(_or_by_value(operator, kernel, name in ("cond", "while_loop")))


def _or_by_value(operator: Any, kernel: Callable[..., Any], needs_a_value: bool) -> Callable[..., Any]:
    """The kernel where a graph is captured and can hold it, else that of all devices."""
    by_value = operator.py_kernels[DispatchKey.CompositeExplicitAutograd]

    def call(*args: Any, **kwargs: Any) -> Any:
        if _C.capturing() is None:
            return by_value(*args, **kwargs)
        try:
            return kernel(*args, **kwargs)
        except _NotARegion as reason:
            _log.info("%s is not computed by a region of a program: %s", operator.name(), reason)
            if needs_a_value:
                _C.refuse_capture(f"{operator.name()}: {reason}")
        return by_value(*args, **kwargs)

    return call


@dataclasses.dataclass(frozen=True)
class _Part:
    """A captured function: what its graph makes, and what else it returns."""

    call: _C.CapturedCall
    made: list[torch.Tensor]  # stand-ins, in the order of the graph's results
    leaves: list[Any]  # of all that is returned; None for what is made
    is_made: list[bool]
    tree: pytree.TreeSpec

    def results(self, made: Iterator[torch.Tensor]) -> Any:
        """What the function returns, with these in the place of what is made."""
        leaves = [next(made) if here else leaf for leaf, here in zip(self.leaves, self.is_made, strict=True)]
        return pytree.tree_unflatten(leaves, self.tree)


class _Parts:
    """The operators, with their functions as parts of a program."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    def cond(
        self, pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
    ) -> Any:
        if not _is_ours(pred):
            return (true_fn if pred else false_fn)(*operands)
        on_true = self._capture(true_fn, operands)
        on_false = self._capture(false_fn, operands, like=on_true.made)
        if on_true.tree != on_false.tree or on_true.leaves != on_false.leaves:
            raise _NotARegion("its branches do not return the same but for tensors")
        _refuse_random(on_true, on_false)
        made = _C.branch(_flag(pred), on_true.call, on_false.call, _tensors(operands))
        return on_true.results(iter(made))

    def while_loop(
        self,
        cond_fn: Callable[..., Any],
        body_fn: Callable[..., Any],
        carried_inputs: Sequence[Any],
        additional_inputs: Sequence[Any],
        mutated_arg_indices: str = "",
    ) -> Any:
        if mutated_arg_indices:
            raise _NotARegion("it writes to its arguments")
        if not carried_inputs or not all(_is_ours(x) for x in carried_inputs):
            raise _NotARegion("not all that it carries are tensors of the device")
        carried_inputs = _packed(carried_inputs)
        arguments = (*carried_inputs, *additional_inputs)
        condition = self._capture(cond_fn, arguments)
        if [(x.shape, x.dtype) for x in condition.made] != [((), torch.bool)] or len(condition.leaves) != 1:
            raise _NotARegion("its condition does not compute a bool")
        body = self._capture(body_fn, arguments, like=carried_inputs)
        if len(body.leaves) != len(carried_inputs) or not all(body.is_made):
            raise _NotARegion("it does not carry tensors only")
        _refuse_random(condition, body)
        made = _C.while_loop(condition.call, body.call, carried_inputs, _tensors(additional_inputs))
        return body.results(iter(made))

    def scan(
        self,
        combine_fn: Callable[..., Any],
        init: Sequence[Any],
        xs: Sequence[Any],
        additional_inputs: Sequence[Any],
    ) -> Any:
        return tuple(self._scan("scan", combine_fn, init, xs, additional_inputs))

    def map(self, f: Callable[..., Any], xs: Sequence[Any], pos_args: Sequence[Any]) -> Any:
        return self._scan("map", f, (), xs, pos_args)

    def _scan(
        self, name: str, body_fn: Callable[..., Any], init: Sequence[Any], xs: Sequence[Any], others: Sequence[Any]
    ) -> Any:
        sliced, how = pytree.tree_flatten(xs)
        if not sliced or not all(_is_ours(x) for x in (*init, *sliced)) or sliced[0].shape[0] == 0:
            raise _NotARegion("it is not of tensors of the device with slices")
        if isinstance(body_fn, torch.fx.GraphModule) and reads_storages(body_fn):
            raise _NotARegion("as_strided of a slice")
        init = _packed(init)
        slices = [torch.empty(x.shape[1:], dtype=x.dtype, device="meta") for x in sliced]
        operands = (*init, *pytree.tree_unflatten(slices, how), *others)
        body = self._capture(body_fn, operands, init, torch.contiguous_format)
        if not all(body.is_made[: len(init)]) or any(leaf is not None for leaf in body.leaves):
            raise _NotARegion("it returns something else than tensors")
        made = _C.scan(name, body.call, init, sliced, _tensors(others))
        return body.results(iter(made))

    def _capture(
        self,
        function: Callable[..., Any],
        operands: Sequence[Any],
        like: Sequence[torch.Tensor] = (),
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> _Part:
        """Captures a function of tensors like the operands. The first of its results are stored like `like`, the others
        by the memory format."""
        looks_beyond = isinstance(function, torch.fx.GraphModule) and reads_storages(function)
        if looks_beyond and any(is_window(x) for x in _tensors(operands) if _is_ours(x)):
            raise _NotARegion("as_strided of a view of larger memory")
        capture = _C.GraphCapture(_device_of(operands), fixed_sizes=True)
        try:
            stand_ins = [capture.argument(x) if isinstance(x, torch.Tensor) else x for x in operands]
            if isinstance(function, torch.fx.GraphModule):
                returned = self._run(function, stand_ins)
            else:
                returned = function(*stand_ins)
            leaves, tree = pytree.tree_flatten(returned)
            is_made = [isinstance(leaf, torch.Tensor) for leaf in leaves]
            made = _dense(_tensors(leaves), like, memory_format)
            call = capture.finish(made, again=True)  # within a step, at each of its calls
        except Exception as error:
            if not capture.blocked:
                raise
            raise _NotARegion(capture.blocked) from error
        finally:
            capture.close()
        if call.written:
            raise _NotARegion("it writes to its arguments")
        if call.results != list(range(len(made))):
            raise _NotARegion("it returns a tensor without elements")
        return _Part(call, made, [None if isinstance(x, torch.Tensor) else x for x in leaves], is_made, tree)


def _is_ours(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    return [x for x in values if isinstance(x, torch.Tensor)]


def _device_of(operands: Sequence[Any]) -> int:
    devices = {x.device for x in _tensors(operands) if x.device.type != "meta"}
    if any(device.type != "tpu" for device in devices) or len(devices) > 1:
        raise _NotARegion(f"it takes tensors on {', '.join(sorted(map(str, devices)))}")
    return next(iter(devices)).index or 0 if devices else _C.current_device()


def _flag(predicate: torch.Tensor) -> torch.Tensor:
    if predicate.numel() != 1:
        raise _NotARegion(f"its predicate has {predicate.numel()} elements")
    return torch.empty((), dtype=torch.bool, device=predicate.device).copy_(predicate.reshape(()))


def _refuse_random(*parts: _Part) -> None:
    """In eager mode only what is computed draws from the generator: where it stands then, the host cannot know."""
    if any(part.call.random_blocks for part in parts):
        raise _NotARegion("it draws random numbers")


def _packed(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Without gaps in memory and repeated elements."""
    return [x if torch.empty_like(x, device="meta").stride() == x.stride() else x.clone() for x in tensors]


def _dense(
    tensors: Sequence[torch.Tensor], like: Sequence[torch.Tensor], memory_format: torch.memory_format
) -> list[torch.Tensor]:
    """Each in memory of its own."""
    made = []
    for i, tensor in enumerate(tensors):
        if not _is_ours(tensor):
            raise _NotARegion(f"it returns a tensor on {tensor.device}")
        if i >= len(like):
            made.append(tensor.clone(memory_format=memory_format))
            continue
        if (tensor.shape, tensor.dtype) != (like[i].shape, like[i].dtype):
            raise _NotARegion("the sizes or dtypes of what it returns vary")
        room = torch.empty_strided(like[i].shape, like[i].stride(), dtype=tensor.dtype, device=tensor.device)
        made.append(room.copy_(tensor))
    return made
