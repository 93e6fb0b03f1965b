"""PyTorch's database of modules: what each check compares, by name. A case is that of cases.py."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from cases import Case
from compare import Refused, assert_accurate, assert_same, assert_same_error, tensors
from entries import DEVICE, DTYPES, Placement
from torch import nn
from torch.testing._internal.common_modules import (
    ErrorModuleInput,
    FunctionInput,
    ModuleErrorEnum,
    ModuleInfo,
    ModuleInput,
    module_db,
)

MODULES: dict[str, ModuleInfo] = {info.name: info for info in module_db}


def dtypes(info: ModuleInfo) -> list[torch.dtype]:
    """Types that the entry lists and the engine stores, the everyday ones first."""
    return [dtype for dtype in DTYPES if dtype in info.supported_dtypes("cpu")]


def _inputs(info: ModuleInfo, dtype: torch.dtype, training: bool, gradient: bool) -> list[ModuleInput]:
    torch.manual_seed(0)
    arguments = {"device": "cpu", "dtype": dtype, "requires_grad": gradient, "training": training}
    return [made for made in info.module_inputs_func(info, **arguments) if made.forward_input is not None]


def _each(info: ModuleInfo, full: bool, *, gradient: bool = False) -> Iterator[tuple[str, ModuleInput, nn.Module]]:
    for dtype in dtypes(info) if full else dtypes(info)[:1]:
        for training in (True, False) if info.train_and_eval_differ else (True,):
            inputs = _inputs(info, dtype, training, gradient)
            for i, made in enumerate(inputs if full else inputs[:1]):
                label = f"{str(dtype).removeprefix('torch.')} {'train' if training else 'eval'} #{i}"
                yield label, made, _module(info, made, dtype, training)


def _module(info: ModuleInfo, made: ModuleInput, dtype: torch.dtype, training: bool) -> nn.Module:
    """The module on the CPU, with its parameters."""
    torch.manual_seed(1)
    module = info.module_cls(*made.constructor_input.args, **made.constructor_input.kwargs).to(dtype).train(training)
    if info.is_lazy:
        _call(module, made.forward_input, "cpu")
    return module


def _call(
    module: nn.Module, given: FunctionInput, device: str, change: Callable[[Any], Any] = lambda x: x, seed: int = 2
) -> Any:
    to = Placement(device)
    args, kwargs = to(change(tuple(given.args))), to(change(dict(given.kwargs)))
    torch.manual_seed(seed)
    return module(*args, **kwargs)


def _on(device: str, module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).to(device)


def _buffers(module: nn.Module) -> list[torch.Tensor]:
    return list(module.buffers())


def _is_random(module: nn.Module, given: FunctionInput) -> bool:
    """Whether the result depends on the seed, as that of dropout does."""
    results = [tensors(_call(_on("cpu", module), given, "cpu", seed=seed)) for seed in (2, 3, 4)]
    return any(not torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def _widen(x: Any) -> Any:
    wide = {True: torch.complex128, False: torch.float64}

    def one(v: Any) -> Any:
        if not isinstance(v, torch.Tensor) or not (v.is_floating_point() or v.is_complex()):
            return v
        return v.detach().to(wide[v.is_complex()]).requires_grad_(v.requires_grad)

    return torch.utils._pytree.tree_map(one, x)


# ---- forward


def _forward(made: ModuleInput, module: nn.Module) -> None:
    """Results, and the buffers afterwards: running statistics."""
    with torch.no_grad():
        random = _is_random(module, made.forward_input)
        on_cpu, on_device = _on("cpu", module), _on(DEVICE, module)
        want = _call(on_cpu, made.forward_input, "cpu")
        got = _call(on_device, made.forward_input, DEVICE)

        def truth() -> Any:
            wide = _on("cpu", module).double()
            return [_call(wide, made.forward_input, "cpu", _widen), _buffers(wide)]

        assert_accurate([got, _buffers(on_device)], [want, _buffers(on_cpu)], truth, values=not random)


def forward(info: ModuleInfo, full: bool) -> Iterator[Case]:
    """The module's results, in training and in evaluation."""
    for label, made, module in _each(info, full):
        yield label, lambda made=made, module=module: _forward(made, module)


# ---- gradients


def _gradients(
    module: nn.Module, given: FunctionInput, device: str, change: Callable[[Any], Any] = lambda x: x
) -> list[torch.Tensor | None]:
    to = Placement(device)
    args, kwargs = to(change(tuple(given.args))), to(change(dict(given.kwargs)))
    leaves = [x for x in tensors((args, kwargs)) if x.requires_grad] + list(module.parameters())
    torch.manual_seed(2)
    outputs = [x for x in tensors(module(*args, **kwargs)) if x.requires_grad]
    if not leaves or not outputs:
        raise Refused("no result of this sample is differentiable")
    torch.manual_seed(3)
    weights = [torch.randn(x.shape, dtype=torch.float32).to(x.dtype).to(device) for x in outputs]
    return list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))


def _gradient(made: ModuleInput, module: nn.Module) -> None:
    given = made.forward_input
    with torch.no_grad():
        random = _is_random(module, given)
    want = _gradients(_on("cpu", module), given, "cpu")
    got = _gradients(_on(DEVICE, module), given, DEVICE)
    assert [g is None for g in got] == [w is None for w in want], "a gradient is missing or surplus"
    assert_accurate(got, want, lambda: _gradients(_on("cpu", module).double(), given, "cpu", _widen), values=not random)


def gradient(info: ModuleInfo, full: bool) -> Iterator[Case]:
    """Gradients of inputs and parameters."""
    for label, made, module in _each(info, full, gradient=True):
        yield label, lambda made=made, module=module: _gradient(made, module)


# ---- copies


def _saved(module: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    return file.getvalue()


def _assert_equal(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], device: str) -> None:
    assert list(got) == list(want)
    for name, x in want.items():
        assert got[name].device.type == device
        assert got[name].dtype == x.dtype
        assert torch.equal(got[name].cpu(), x), name


def _copies(info: ModuleInfo, made: ModuleInput, module: nn.Module) -> None:
    """Copied, pickled and saved modules hold the same numbers where they should, and compute the same."""
    try:
        pickle.dumps(module)
    except (AttributeError, pickle.PicklingError) as error:
        raise Refused(str(error)) from error
    on_device = _on(DEVICE, module)
    fresh = [_on(device, module) for device in (DEVICE, "cpu", DEVICE)]
    with torch.no_grad():
        for x in (p for other in fresh for p in tensors(list(other.state_dict().values()))):
            x.zero_()
    fresh[0].load_state_dict(module.state_dict())
    fresh[1].load_state_dict(on_device.state_dict())
    fresh[2].load_state_dict(torch.load(io.BytesIO(_saved(on_device))))
    want = module.state_dict()
    _assert_equal(torch.load(io.BytesIO(_saved(on_device)), map_location="cpu"), want, "cpu")
    _assert_equal(fresh[1].state_dict(), want, "cpu")
    _assert_equal(_on("cpu", on_device).state_dict(), want, "cpu")
    others = [copy.deepcopy(on_device), pickle.loads(pickle.dumps(on_device)), fresh[0], fresh[2]]
    for other in others:
        _assert_equal(other.state_dict(), want, DEVICE)
    with torch.no_grad():
        result = _call(on_device, made.forward_input, DEVICE)
        for other in others:
            again = _call(other, made.forward_input, DEVICE)
            torch.testing.assert_close(again, result, rtol=0, atol=0, equal_nan=True)


def copies(info: ModuleInfo, full: bool) -> Iterator[Case]:
    """deepcopy, pickle, state_dict, torch.save: between devices and on the device."""
    for label, made, module in _each(info, full):
        yield label, lambda made=made, module=module: _copies(info, made, module)


# ---- construction on the device


def _constructed(info: ModuleInfo, made: ModuleInput, device: str) -> nn.Module:
    to = Placement(device)
    args = [_on(device, x) if isinstance(x, nn.Module) else to(x) for x in made.constructor_input.args]
    built: nn.Module = info.module_cls(*args, **to(dict(made.constructor_input.kwargs)))
    return built


def _factory(info: ModuleInfo, made: ModuleInput, module: nn.Module) -> None:
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    with torch.no_grad(), torch.device(DEVICE):
        torch.manual_seed(1)
        built = _constructed(info, made, DEVICE).to(dtype).train(module.training)
        got = _call(built, made.forward_input, DEVICE)
    with torch.no_grad():
        want = _call(_on("cpu", module), made.forward_input, "cpu")
    assert_same(got, want, values=False)
    assert_same(dict(built.state_dict()), dict(module.state_dict()), values=False)


def factory(info: ModuleInfo, full: bool) -> Iterator[Case]:
    """Modules that are made on the device, whose initial parameters are drawn there; lazy ones at their first call."""
    for label, made, module in _each(info, full):
        yield label, lambda made=made, module=module: _factory(info, made, module)


# ---- errors


def _raised(info: ModuleInfo, case: ErrorModuleInput, device: str) -> Exception | None:
    try:
        with torch.device(device):
            module = _constructed(info, case.module_error_input, device)
        if case.error_on == ModuleErrorEnum.FORWARD_ERROR:
            _call(module, case.module_error_input.forward_input, device)
            if device == DEVICE:
                torch.tpu.synchronize()
    except Exception as error:
        return error
    return None


def _error(info: ModuleInfo, case: ErrorModuleInput) -> None:
    assert_same_error(lambda device: _raised(info, case, device), case.error_regex)


def error(info: ModuleInfo, full: bool) -> Iterator[Case]:
    """Wrong modules and wrong calls raise what they raise on the CPU; all of them in any case."""
    if info.module_error_inputs_func is None:
        return
    torch.manual_seed(0)
    arguments = {"device": "cpu", "dtype": torch.float32, "requires_grad": False}
    for training in (True, False) if info.train_and_eval_differ else (True,):
        for i, case in enumerate(info.module_error_inputs_func(info, training=training, **arguments)):
            yield f"{'train' if training else 'eval'} error #{i}", lambda case=case: _error(info, case)


CHECKS: dict[str, Callable[[ModuleInfo, bool], Iterator[Case]]] = {
    "forward": forward,
    "gradient": gradient,
    "copies": copies,
    "factory": factory,
    "error": error,
}
