"""torch_tpu.compile.step: a whole training step as one program, with the results that eager mode gives."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_tpu
from helpers import DEVICE, assert_matches, eager_mode
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_tpu.compile import step

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


# Their states begin as zeros, which one more program makes before the first step; so all steps are the same program.
MAKE_ZEROS = {"Adam", "AdamW", "AdamW, amsgrad", "fused AdamW", "RMSprop", "NAdam"}


class Counts:
    """Launches and compiles of the device since it was made."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        torch.tpu.synchronize()
        stats = torch_tpu.compile_stats()
        return stats["executions"], stats["compiles"] + stats["disk_hits"] + stats["memory_hits"]

    def take(self) -> tuple[float, float]:
        before, self._before = self._before, self._now()
        return self._before[0] - before[0], self._before[1] - before[1]


class Net(nn.Module):
    """Without parameters whose gradient is zero but for rounding, which Adam would make steps of: biases before a batch
    norm, biases of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.hidden = nn.Linear(8, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight  # tied

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.hidden(self.embedding(tokens)).transpose(1, 2)).transpose(1, 2)
        return self.head(F.gelu(hidden))


def twins() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    cpu = Net()
    return cpu, copy.deepcopy(cpu).to(DEVICE)


def batch(number: int, size: int = 4) -> Tensor:
    return torch.randint(11, (size, 6), generator=torch.Generator().manual_seed(number))


def trainer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
    def train(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    return train


def assert_same_state(device: Any, cpu: Any) -> None:
    """Of modules or optimizers."""
    got, want = device.state_dict(), cpu.state_dict()
    if "param_groups" in want:
        assert got["param_groups"] == want["param_groups"]
        got, want = got["state"], want["state"]
    flat = torch.utils._pytree.tree_leaves
    for g, w in zip(flat(got), flat(want), strict=True):
        if isinstance(w, Tensor):
            torch.testing.assert_close(g.cpu(), w)
        else:
            assert g == w


# ---- training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_eager_mode(name: str) -> None:
    cpu, device = twins()
    optimizers = [OPTIMIZERS[name](m.parameters()) for m in (cpu, device)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.7) for o in optimizers]
    eager, compiled = trainer(cpu, optimizers[0]), step(trainer(device, optimizers[1]))
    programs = []
    for number in range(5):
        tokens = batch(number)
        on_device = tokens.to(DEVICE)
        counts = Counts()
        loss = compiled(on_device)
        launched, compiled_now = counts.take()
        assert launched == (2 if number == 0 and name in MAKE_ZEROS else 1)
        programs.append(compiled_now)
        assert_matches(loss, eager(tokens))
        for scheduler in schedulers:
            scheduler.step()
    assert sum(programs[1:]) <= (0 if name in MAKE_ZEROS else 1)
    assert programs[2:] == [0, 0, 0]
    assert_same_state(device, cpu)
    assert_same_state(optimizers[1], optimizers[0])
    for got, want in zip(device.parameters(), cpu.parameters(), strict=True):
        assert_matches(got.grad, want.grad)


@pytest.mark.parametrize("mode", ["strict", "fused", "debug"])
def test_parameters_stay_where_they_are_and_memory_is_taken_over(mode: str) -> None:
    with eager_mode(mode):
        model = nn.Sequential(*[nn.Linear(128, 128, bias=False) for _ in range(4)]).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.ones(2, 128, device=DEVICE)

        @step
        def train() -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        places = [p.data_ptr() for p in model.parameters()]
        for _ in range(2):
            train()
        torch.tpu.synchronize()
        torch.tpu.reset_peak_memory_stats()
        held = torch.tpu.memory_allocated()
        before = torch_tpu._C._donation_stats()
        for _ in range(3):
            train()
            torch.tpu.synchronize()
        after = torch_tpu._C._donation_stats()
        assert after["donated"] - before["donated"] == 3 * 8  # a weight and its momentum, four layers
        assert torch.tpu.max_memory_allocated() - held < model[0].weight.nbytes
        assert [p.data_ptr() for p in model.parameters()] == places


def test_what_somebody_still_holds_is_kept() -> None:
    model = nn.Linear(3, 3, bias=False, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x = torch.eye(3, device=DEVICE)

    @step
    def train() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    for _ in range(3):
        before = model.weight.detach().clone()
        want = before.cpu()
        train()
        assert_matches(before, want)
        assert_matches(model.weight, want - 1)


def test_learning_rates_and_other_numbers_compile_nothing() -> None:
    cpu, device = twins()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.125, weight_decay=0.5) for m in (cpu, device)]
    eager, compiled = trainer(cpu, optimizers[0]), step(trainer(device, optimizers[1]))
    for number in range(2):
        eager(batch(number))
        compiled(batch(number).to(DEVICE))
    counts = Counts()
    settings = [{"lr": 0.1}, {"lr": 0.03, "weight_decay": 0.25}, {"betas": (0.8, 0.95)}, {"eps": 1e-6, "lr": 1e-3}]
    for number, setting in enumerate(settings):
        tokens = batch(number)
        for optimizer in optimizers:
            optimizer.param_groups[0].update(setting)
        assert_matches(compiled(tokens.to(DEVICE)), eager(tokens))
    assert counts.take() == (len(settings), 0)
    assert_same_state(device, cpu)


def test_batches_of_other_sizes() -> None:
    cpu, device = twins()
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (cpu, device)]
    eager, compiled = trainer(cpu, optimizers[0]), step(trainer(device, optimizers[1]))
    new = []
    for number, size in enumerate([4, 4, 3, 4, 3, 5, 3]):
        tokens = batch(number, size)
        on_device = tokens.to(DEVICE)
        counts = Counts()
        loss = compiled(on_device)
        launched, programs = counts.take()
        assert launched == (2 if number == 0 else 1)
        new.append(programs > 0)
        assert_matches(loss, eager(tokens))
    assert new[2:] == [True, False, False, True, False]
    assert_same_state(device, cpu)


def test_accumulated_gradients() -> None:
    cpu, device = twins()

    def accumulating(model: nn.Module, wrap: Callable[[Any], Any]) -> tuple[Callable[[Tensor], Tensor], Any, Any]:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        @wrap
        def add(tokens: Tensor) -> Tensor:
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()) / 3
            loss.backward()
            return loss

        @wrap
        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return add, update, optimizer

    eager, eager_update, eager_optimizer = accumulating(cpu, lambda f: f)
    add, update, optimizer = accumulating(device, step)
    for round_number in range(3):
        counts = Counts()
        for number in range(3):
            tokens = batch(10 * round_number + number)
            on_device = tokens.to(DEVICE)
            assert_matches(add(on_device), eager(tokens))
        for got, want in zip(device.parameters(), cpu.parameters(), strict=True):
            assert_matches(got.grad, want.grad)
        update()
        eager_update()
        launched, compiled_now = counts.take()
        assert launched == (5 if round_number == 0 else 4)
    assert compiled_now == 0
    assert_same_state(device, cpu)
    assert_same_state(optimizer, eager_optimizer)


def test_random_numbers_are_those_of_eager_mode() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Tensor]:
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 2)).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(8, 6, device=DEVICE)

        @wrap
        def train() -> Tensor:
            optimizer.zero_grad()
            hidden = checkpoint(lambda t: F.dropout(model(t), 0.2), x + torch.randn_like(x), use_reentrant=False)
            loss = hidden.square().sum()
            loss.backward()
            optimizer.step()
            return loss

        losses = [train().detach().cpu() for _ in range(4)]
        return [*losses, torch.rand(3, device=DEVICE).cpu(), model[0].weight.detach().cpu()]

    for got, want in zip(run(step), run(lambda f: f), strict=True):
        torch.testing.assert_close(got, want)


def test_python_runs_at_every_call() -> None:
    x = torch.ones(3, device=DEVICE)
    calls = 0

    @step
    def work(t: Tensor, *, negate: bool = False) -> tuple[Tensor, int, dict[str, Any]]:
        """The docstring."""
        nonlocal calls
        calls += 1
        y = t * calls
        if negate:
            y = -y
        return y, calls, {"same": t, "view": t[1:], "nothing": None}

    assert work.__name__ == "work"
    assert work.__doc__ == "The docstring."
    for number in range(1, 6):
        y, count, others = work(x, negate=number % 2 == 0)
        assert count == number
        assert_matches(y, torch.full((3,), float(number if number % 2 else -number)))
        assert others["same"] is x
        assert others["view"].data_ptr() == x[1:].data_ptr()
    counts = Counts()
    work(x)
    assert counts.take() == (1, 0)  # a number that changes is an operand


def test_positions_that_change_are_operands_from_the_second_on() -> None:
    cache = torch.zeros(8, 2, device=DEVICE)

    @step
    def put(position: int) -> Tensor:
        cache[position] = cache.sum() + 1
        return cache[:3].sum() + cache[position].sum()

    want = torch.zeros(8, 2)
    for position in range(8):
        counts = Counts()
        got = put(position)
        assert counts.take() == (1, 1 if position < 2 else 0)
        want[position] = want.sum() + 1
        assert_matches(got, want[:3].sum() + want[position].sum())
    assert_matches(cache, want)


def test_batches_may_come_from_the_host() -> None:
    state = torch.zeros(2, device=DEVICE)
    held = torch.empty(2, device=DEVICE)

    @step
    def add(values: Tensor) -> Tensor:
        held.copy_(values)
        state.add_(values.to(DEVICE) + torch.tensor([1.0, 2.0], device=DEVICE) + held)
        return state * 1

    want = torch.zeros(2)
    for number in range(4):
        values = torch.tensor([number, -number], dtype=torch.float32)
        want += 2 * values + torch.tensor([1.0, 2.0])
        assert_matches(add(values), want)
        assert_matches(held, values)


def test_methods_modules_and_compiled_models() -> None:
    torch._dynamo.reset()

    class Trainer:
        def __init__(self, device: str) -> None:
            torch.manual_seed(1)
            self.model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 1)).to(device)
            self.forward = torch.compile(self.model, backend="tpu") if device == DEVICE else self.model
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

        def plain(self, x: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = self.forward(x).square().mean()
            loss.backward()
            self.optimizer.step()
            return loss

        train = step(plain)

    cpu, device = Trainer("cpu"), Trainer(DEVICE)
    for number in range(4):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        on_device = x.to(DEVICE)
        counts = Counts()
        loss = device.train(on_device)
        assert counts.take()[0] == (2 if number == 0 else 1)
        assert_matches(loss, cpu.plain(x))
    assert_same_state(device.model, cpu.model)


def test_autocast_and_scaled_gradients() -> None:
    def run(device: str, wrap: Callable[[Any], Any]) -> tuple[list[Tensor], nn.Module]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @wrap
        def train(x: Tensor) -> Tensor:
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = model(x).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        data = [torch.randn(4, 4, generator=torch.Generator().manual_seed(i)).to(device) for i in range(3)]
        return [train(x).detach().cpu() for x in data], model

    got, want = run(DEVICE, step), run("cpu", lambda f: f)
    torch.testing.assert_close(got[0], want[0], rtol=1.6e-2, atol=1e-5)  # of bfloat16, in which they are computed


# ---- errors ------------------------------------------------------------------------------------------------------


def test_reading_a_value_within_is_refused_and_what_came_before_is_done() -> None:
    x, y = torch.zeros(3, device=DEVICE), torch.tensor(3.0, device=DEVICE)

    @step
    def work() -> None:
        x.add_(1)
        x.sum().item()
        x.add_(100)

    with pytest.raises(RuntimeError, match=r"value of a tensor is needed.*test_train_step\.py"):
        work()
    assert_matches(x, torch.ones(3))

    @step
    def reads_outside() -> float:
        x.add_(1)
        return y.item()  # nothing that the step computes

    assert reads_outside() == 3
    assert_matches(x, torch.full((3,), 2.0))


def test_an_exception_leaves_what_eager_mode_leaves() -> None:
    def run(device: str, wrap: Callable[[Any], Any]) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        x = torch.ones(4, 3, device=device)

        @wrap
        def train(fail: bool) -> None:
            model(x).sum().backward()
            if fail:
                raise KeyError("of the user")
            optimizer.step()

        with pytest.raises(KeyError, match="of the user"):
            train(True)
        train(False)
        return model, optimizer

    (model, optimizer), (cpu_model, cpu_optimizer) = run(DEVICE, step), run("cpu", lambda f: f)
    assert_same_state(model, cpu_model)
    assert_same_state(optimizer, cpu_optimizer)
    assert_matches(model.weight.grad, cpu_model.weight.grad)


def test_indices_out_of_range_are_found() -> None:
    table = nn.Embedding(5, 2, device=DEVICE)

    @step
    def work(index: Tensor) -> Tensor:
        return table(index).sum()

    with pytest.raises(IndexError, match=r"test_train_step\.py"):
        work(torch.tensor([7], device=DEVICE)).cpu()
    work(torch.tensor([4], device=DEVICE)).cpu()


def test_steps_within_steps_and_graphs() -> None:
    x = torch.zeros(3, device=DEVICE)

    @step
    def inner() -> None:
        x.add_(1)

    @step
    def outer() -> None:
        inner()
        inner()
        x.mul_(2)

    outer()
    counts = Counts()
    outer()
    assert counts.take() == (1, 0)
    graph = torch.tpu.Graph()
    with graph:
        outer()
    graph.replay()
    assert_matches(x, torch.full((3,), 28.0))

    @step
    def around() -> None:
        graph.replay()
        x.add_(1)

    around()
    assert_matches(x, torch.full((3,), 61.0))


def test_no_warnings_and_nothing_to_do() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step(lambda: 3)() == 3
        assert step(lambda t: t.shape)(torch.ones(2, device=DEVICE)) == (2,)
        step(lambda: torch.ones(2, device=DEVICE) * 2)()
