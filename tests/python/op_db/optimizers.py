"""PyTorch's database of optimizers: what each check compares, by name. A case is that of cases.py."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from cases import Case
from compare import Refused, assert_same_error, is_as_accurate
from entries import DEVICE, Placement
from torch import Tensor
from torch.optim import Optimizer
from torch.testing._internal import common_optimizers
from torch.testing._internal.common_optimizers import ErrorOptimizerInput, OptimizerErrorEnum, OptimizerInfo, optim_db

OPTIMIZERS: dict[str, OptimizerInfo] = {info.name: info for info in optim_db}

# The database has options for these devices only, `capturable` among them, that PyTorch gives every backend.
common_optimizers.CUDA_CONFIG_GPUS.append(DEVICE)

# One matrix, one vector and one number; some optimizers take matrices only.
SHAPES: tuple[tuple[int, ...], ...] = ((4, 3), (5,), ())
MATRICES: tuple[tuple[int, ...], ...] = ((4, 3), (2, 5))

STEPS = 3

Options = dict[str, Any]


def dtypes(info: OptimizerInfo, full: bool) -> tuple[torch.dtype, ...]:
    """Of the parameters."""
    more = (torch.float64, torch.bfloat16, torch.float16, *[torch.complex64] * info.supports_complex)
    return (torch.float32, *(more if full else ()))


def configurations(info: OptimizerInfo, dtype: torch.dtype, full: bool) -> Iterator[tuple[str, Options]]:
    """The options of each input of the database, in each of the optimizer's implementations."""
    implementations = [flag for flag in ("foreach", "fused") if flag in info.supported_impls]
    inputs = info.optim_inputs_func(device=DEVICE, dtype=dtype)
    for i, made in enumerate(inputs):
        # The quick run takes the first input, and the last, which is capturable or has a tensor as its learning rate.
        if not full and i not in (0, len(inputs) - 1):
            continue
        yield f"#{i} default", made.kwargs
        for flag in implementations:
            yield f"#{i} {flag}", {**made.kwargs, flag: True}
        if implementations and full:
            yield f"#{i} loop", {**made.kwargs, **dict.fromkeys(implementations, False)}


def on_cpu(options: Options) -> Options:
    """The same numbers by the plain loop, which needs no capturable state."""
    plain = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in options.items() if k != "capturable"}
    return {**plain, "foreach": False} if "foreach" in plain else plain


class Training:
    """An optimizer and its parameters on a device. Gradients are given, the same ones on each device."""

    def __init__(self, info: OptimizerInfo, options: Options, device: str, dtype: torch.dtype, seed: int = 0) -> None:
        self.device, self.needs_closure = device, info.step_requires_closure
        self.sparse = info.only_supports_sparse_grads
        drawn = torch.Generator().manual_seed(seed)
        shapes = MATRICES if info.name == "Muon" else SHAPES[:2] if self.sparse else SHAPES
        weights = [torch.randn(shape, generator=drawn, dtype=torch.float64).to(dtype) for shape in shapes]
        self.weights = [torch.nn.Parameter(w.to(device)) for w in weights]
        self.optimizer: Optimizer = info.optim_cls(self.weights, **copy.deepcopy(options))
        self.step_number = 0

    def steps(self, count: int = STEPS) -> Training:
        for _ in range(count):
            self.step_number += 1
            self.optimizer.step(self._closure) if self.needs_closure else self._plain_step()
        return self

    def _closure(self) -> Tensor:
        """A loss with its minimum at one."""
        self.optimizer.zero_grad()
        loss = sum(((w - 1).abs() ** 2).sum() for w in self.weights)
        assert isinstance(loss, Tensor)
        loss.backward()
        return loss.detach()

    def _plain_step(self) -> None:
        drawn = torch.Generator().manual_seed(self.step_number)
        for w in self.weights:
            grad = torch.randn(w.shape, generator=drawn, dtype=torch.float64).to(w.dtype)
            w.grad = (grad.to_sparse() if self.sparse else grad).to(w.device)
        self.optimizer.step()

    def results(self) -> list[Tensor]:
        """Parameters and states, on the CPU."""
        states = [self.optimizer.state[w] for w in self.weights]
        kept = [state[key] for state in states for key in sorted(state) if isinstance(state[key], Tensor)]
        return [x.detach().cpu() for x in (*self.weights, *kept)]


def compare(got: Training, want: Training, truth: Callable[[], Training] | None = None) -> None:
    """Parameters and states agree at the default tolerances, or are about as close to those in double."""
    for w in got.weights:
        assert w.device.type == got.device
        for x in got.optimizer.state[w].values():
            if isinstance(x, Tensor) and x.dim() > 0:
                assert x.device == w.device, "a state is on another device"
    results, wanted = got.results(), want.results()
    assert [x.shape for x in results] == [x.shape for x in wanted]
    try:
        torch.testing.assert_close(results, wanted)
    except AssertionError:
        if truth is None or not is_as_accurate(results, wanted, truth().results()):
            raise


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


# ---- steps


def _steps(info: OptimizerInfo, options: Options, dtype: torch.dtype) -> None:
    plain = on_cpu(options)
    try:
        want = Training(info, plain, "cpu", dtype).steps()
    except Exception as error:
        raise Refused(str(error)) from error
    got = Training(info, options, DEVICE, dtype).steps()
    compare(got, want, lambda: Training(info, plain, "cpu", _wide(dtype)).steps())


def steps(info: OptimizerInfo, full: bool) -> Iterator[Case]:
    """Some steps with given gradients, for every implementation."""
    for dtype in dtypes(info, full):
        for label, options in configurations(info, dtype, full):
            name = f"{str(dtype).removeprefix('torch.')} {label}"
            yield name, lambda options=options, dtype=dtype: _steps(info, options, dtype)


# ---- saved states


def _saved_state(info: OptimizerInfo, options: Options, source: str, target: str) -> None:
    """Trains, saves, loads on the other device and trains on; as if all had been done on the CPU."""
    first = Training(info, on_cpu(options) if source == "cpu" else options, source, torch.float32).steps(2)
    file = io.BytesIO()
    torch.save([first.optimizer.state_dict(), [w.detach() for w in first.weights]], file)
    file.seek(0)
    state, weights = torch.load(file, map_location=target)
    if target == "cpu":  # as in on_cpu
        for group in state["param_groups"]:
            group.update({flag: False for flag in ("capturable", "foreach") if group.get(flag)})
    second = Training(info, on_cpu(options) if target == "cpu" else options, target, torch.float32, seed=9)
    with torch.no_grad():
        for w, saved in zip(second.weights, weights, strict=True):
            w.copy_(saved)
    second.optimizer.load_state_dict(state)
    second.step_number = 2
    want = Training(info, on_cpu(options), "cpu", torch.float32).steps(4)
    compare(second.steps(2), want, lambda: Training(info, on_cpu(options), "cpu", torch.float64).steps(4))


def saved_state(info: OptimizerInfo, full: bool) -> Iterator[Case]:
    """state_dict through torch.save and torch.load, to the device, from it, and staying there."""
    for label, options in configurations(info, torch.float32, full):
        for source, target in (("cpu", DEVICE), (DEVICE, "cpu"), (DEVICE, DEVICE)):
            yield (
                f"{label} {source} to {target}",
                lambda options=options, source=source, target=target: _saved_state(info, options, source, target),
            )


# ---- groups


def _regrouped(info: OptimizerInfo, options: Options, device: str, dtype: torch.dtype) -> Training:
    """Each parameter in a group of its own, with its own learning rate, the last added later."""
    training = Training(info, options, device, dtype)
    rates = [0.001 * (1 + i) for i in range(len(training.weights))]
    if info.supports_param_groups:
        groups: list[dict[str, Any]] = [
            {"params": [w], "lr": rate} for w, rate in zip(training.weights, rates, strict=True)
        ]
        training.optimizer = info.optim_cls(groups[:-1], **copy.deepcopy(options))
        training.optimizer.add_param_group(groups[-1])
    training.steps(1)
    for group in training.optimizer.param_groups:
        group["lr"] = group["lr"] * 0.5
    return training.steps(2)


def _groups(info: OptimizerInfo, options: Options) -> None:
    plain = on_cpu(options)
    got = _regrouped(info, options, DEVICE, torch.float32)
    want = _regrouped(info, plain, "cpu", torch.float32)
    compare(got, want, lambda: _regrouped(info, plain, "cpu", torch.float64))


def groups(info: OptimizerInfo, full: bool) -> Iterator[Case]:
    """Groups of parameters, and learning rates that change."""
    for label, options in configurations(info, torch.float32, full):
        yield label, lambda options=options: _groups(info, options)


# ---- schedulers


def _scheduled(info: OptimizerInfo, make: list[Callable[[Optimizer], Any]], options: Options, device: str) -> Training:
    training = Training(info, options, device, torch.float32)
    schedulers = [made(training.optimizer) for made in make]
    for i in range(STEPS):
        training.steps(1)
        for scheduler in schedulers:
            plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            scheduler.step(torch.tensor(1.0 + i, device=device)) if plateau else scheduler.step()
    return training


def _schedule(info: OptimizerInfo, make: list[Callable[[Optimizer], Any]], options: Options) -> None:
    got = _scheduled(info, make, options, DEVICE)
    want = _scheduled(info, make, on_cpu(options), "cpu")
    rates = [[float(group["lr"]) for group in t.optimizer.param_groups] for t in (got, want)]
    torch.testing.assert_close(rates[0], rates[1])
    compare(got, want)


def schedules(info: OptimizerInfo, full: bool) -> Iterator[Case]:
    """Schedulers of the learning rate, which is a number or a tensor on the device."""
    for i, make in enumerate(info.scheduler_inputs if full else info.scheduler_inputs[:1]):
        yield f"#{i} number", lambda make=make: _schedule(info, make, {"lr": 0.01})
        if info.has_capturable_arg:
            options = {"lr": torch.tensor(0.01, device=DEVICE), "capturable": True}
            yield f"#{i} tensor", lambda make=make, options=options: _schedule(info, make, options)


# ---- both devices in one optimizer


def _mixed(info: OptimizerInfo, options: Options) -> None:
    got = Training(info, options, DEVICE, torch.float32)
    on_host = Training(info, options, "cpu", torch.float32)
    on_host.optimizer = got.optimizer = info.optim_cls([*got.weights, *on_host.weights], **options)
    drawn = got.weights + on_host.weights
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        grads = [torch.randn(w.shape, generator=generator) for w in got.weights]
        for w, grad in zip(drawn, grads * 2, strict=True):
            w.grad = grad.to(w.device)
        got.optimizer.step()
    compare(got, on_host)


def mixed(info: OptimizerInfo, full: bool) -> Iterator[Case]:
    """Parameters on the device and on the CPU in one optimizer."""
    if info.supports_multiple_devices and not info.only_supports_sparse_grads and not info.step_requires_closure:
        for flag in ("default", *(flag for flag in ("foreach", "fused") if flag in info.supported_impls)):
            yield flag, lambda flag=flag: _mixed(info, {} if flag == "default" else {flag: True})


# ---- errors


def _raised(info: OptimizerInfo, case: ErrorOptimizerInput, device: str) -> BaseException | None:
    made, to = case.optimizer_error_input, Placement(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if case.error_type is UserWarning else "ignore")
        try:
            params = _placed_parameters(made.params, to) if made.params is not None else [_parameter(device)]
            optimizer = info.optim_cls(params, **to(dict(made.kwargs)))
            if case.error_on == OptimizerErrorEnum.STEP_ERROR:
                optimizer.step()
                torch.tpu.synchronize()
        except Exception as error:
            return error
    return None


def _parameter(device: str) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(2, 2, device=device))


def _placed_parameters(params: Any, to: Placement) -> Any:
    """Gradients go with their parameters; one parameter that is given twice stays one."""
    placed = to(params)
    originals, copies = (torch.utils._pytree.tree_leaves(x) for x in (params, placed))
    for original, copied in zip(originals, copies, strict=True):
        if isinstance(original, Tensor) and original.grad is not None:
            copied.grad = to(original.grad)
    return placed


def _error(info: OptimizerInfo, case: ErrorOptimizerInput) -> None:
    assert_same_error(lambda device: _raised(info, case, device), case.error_regex)


def error(info: OptimizerInfo, full: bool) -> Iterator[Case]:
    """Wrong options and parameters raise what they raise on the CPU; all of them in any case."""
    torch.manual_seed(0)
    for i, case in enumerate(info.optim_error_inputs_func("cpu", torch.float32)):
        yield f"error #{i}", lambda case=case: _error(info, case)
    if "fused" in info.supported_impls:
        for i, other in enumerate(("foreach", "differentiable")):
            made = common_optimizers.OptimizerInput(None, {"fused": True, other: True})
            case = ErrorOptimizerInput(made, error_regex=f"`fused`.*`{other}`")
            yield f"flags #{i}", lambda case=case: _error(info, case)


CHECKS: dict[str, Callable[[OptimizerInfo, bool], Iterator[Case]]] = {
    "steps": steps,
    "saved_state": saved_state,
    "groups": groups,
    "schedules": schedules,
    "mixed": mixed,
    "error": error,
}
