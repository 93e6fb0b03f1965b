"""torch.cond, while_loop, scan and map within compiled graphs: regions of one program, with no value waited for."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_tpu
from helpers import DEVICE, assert_matches, eager_mode, to_device
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_slices
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils import _pytree as pytree
from torch_tpu.aot import programs
from torch_tpu.compile.graphs import CompiledGraph


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def text_of(graph: CompiledGraph) -> str:
    (program,) = graph._programs.values()
    return program._call.text("cpu")


# ---- what it computes ------------------------------------------------------------------------------------


def branch(x: Tensor, w: Tensor) -> Tensor:
    """Within a larger graph, on a predicate that the graph computes."""
    y = x * 2
    return torch.cond(y.sum() > 0, lambda y, w: (y @ w).sin(), lambda y, w: (y.cos() @ w).relu(), (y, w)) + 1


def branch_in_memory_order(x: Tensor, w: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.t().sin(), lambda x: x.cos().t(), (x,)) @ x[:, :3]


def branch_on_a_number(x: Tensor, w: Tensor) -> Tensor:
    number = (x > 0).sum().reshape(1)
    return torch.cond(number, lambda x, w: x.exp(), lambda x, w: (w * 2)[0, 0] * x, (x, w))


def loop(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    i = torch.zeros((), dtype=torch.int64, device=x.device)
    go_on: Callable[..., Tensor] = lambda i, x: (i < 6) & (x.sum() < 40)  # noqa: E731
    return while_loop(go_on, lambda i, x: (i + 1, (x @ w).abs() + x + i), (i, x[:, :3] * 1))


def recurrent(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x[:3] @ w + h)
        return h.clone(), h * 2

    return scan(step, w[0] * 1, x)


def recurrent_backwards(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return scan(lambda h, x: (h + x @ w, h.sin()), w[0] * 1, x[:, :3].t() * 1, dim=1, reverse=True)


def rows(x: Tensor, w: Tensor) -> Any:
    return map_slices(
        lambda x, w: {"a": (x["p"] @ w).sin(), "b": (x["q"] * 2,)}, {"p": x[:, :3] * 1, "q": x[:, 3:] * 1}, w
    )


def nested(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A branch within a scan, on what is carried, and a scan within a branch."""

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.cond(h.sum() > x.sum(), lambda h, x: torch.tanh(x[:3] + h), lambda h, x: h - x[:3].exp(), (h, x))
        return h.clone(), h.sin()

    return torch.cond(x.mean() > -9, lambda x, w: scan(step, w[0] * 1, x)[1], lambda x, w: x[:, :3] @ w, (x, w))


EXAMPLES = [branch, branch_in_memory_order, branch_on_a_number, recurrent, recurrent_backwards, rows, nested]


def inputs(sign: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [(sign * torch.rand(3, 4)).to(dtype), torch.randn(3, 3).to(dtype)]


def given(function: Any, sign: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    x, w = inputs(sign, dtype)
    return [x, torch.randn(4, 3).to(dtype) if function is branch else w]


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


@pytest.mark.parametrize("function", EXAMPLES)
def test_results_and_gradients(function: Callable[..., Any], graphs: list[CompiledGraph]) -> None:
    on_device = torch.compile(function, backend="tpu", fullgraph=True)
    for sign in (1, -1):
        cpu = [x.requires_grad_() for x in given(function, sign)]
        device = to_device(cpu)
        want, got = tensors(function(*cpu)), tensors(on_device(*device))
        for g, w in zip(got, want, strict=True):
            assert_matches(g, w, strides=True)
        gradients = [
            torch.autograd.grad([x.sin().sum() for x in outputs], arguments, allow_unused=True, materialize_grads=True)
            for outputs, arguments in ((got, device), (want, cpu))
        ]
        assert_matches(list(gradients[0]), list(gradients[1]))
    assert [graph.reason for graph in graphs] == [None, None]
    assert all('"stablehlo.if"' in text_of(g) or '"stablehlo.while"' in text_of(g) for g in graphs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [branch, recurrent, rows])
def test_dtypes(function: Callable[..., Any], dtype: torch.dtype) -> None:
    arguments = given(function, 1, dtype)
    got = torch.compile(function, backend="tpu", fullgraph=True)(*to_device(arguments))
    for g, w in zip(tensors(got), tensors(function(*arguments)), strict=True):
        assert_matches(g, w)


@pytest.mark.parametrize("sign", [1, -1])
def test_loop(sign: int, graphs: list[CompiledGraph]) -> None:
    arguments = inputs(sign)
    got = torch.compile(loop, backend="tpu", fullgraph=True)(*to_device(arguments))
    assert_matches(got, loop(*arguments))
    assert text_of(graphs[0]).count('"stablehlo.while"') == 1


@pytest.mark.parametrize("function", [branch, loop, nested])
@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_one_launch_and_no_wait(function: Callable[..., Any], mode: str) -> None:
    """Both ways are in the program that the first call compiled, and the host does not look which one is taken."""
    on_device = torch.compile(function, backend="tpu", fullgraph=True)
    with eager_mode(mode), torch.no_grad():
        arguments = {sign: to_device(given(function, sign)) for sign in (1, -1)}
        kept = on_device(*arguments[1])  # a program is made for the results that somebody holds
        torch.tpu.synchronize()
        before = torch_tpu.compile_stats()
        results = on_device(*arguments[-1])
        waits = torch_tpu.compile_stats()["waits"]
        torch.tpu.synchronize()
        after = torch_tpu.compile_stats()
    assert waits == before["waits"]
    assert after["executions"] - before["executions"] == 1
    assert after["compiles"] == before["compiles"]
    assert_matches(results, function(*given(function, -1)))
    assert_matches(kept, function(*given(function, 1)))


@pytest.mark.parametrize("function", [branch, recurrent, rows])
def test_changing_sizes(function: Callable[..., Any], graphs: list[CompiledGraph]) -> None:
    on_device = torch.compile(function, backend="tpu", fullgraph=True, dynamic=True)
    for size in (5, 6, 7):
        x, w = given(function, 1)
        x = torch.randn(size, x.shape[1])
        for g, want in zip(tensors(on_device(*to_device([x, w]))), tensors(function(x, w)), strict=True):
            assert_matches(g, want)
    assert [graph.reason for graph in graphs] == [None]


def test_module() -> None:
    """Parameters that only the branches use, and buffers that the graph around them writes."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.a, self.b = nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x).sin(), (self.norm(x),))

    cpu, device = Two(), Two()
    device.load_state_dict(cpu.state_dict())
    device.to(DEVICE)
    on_device = torch.compile(device, backend="tpu", fullgraph=True)
    for sign in (1, -1):
        x = sign * torch.rand(5, 4)
        cpu(x).square().sum().backward()
        on_device(x.to(DEVICE)).square().sum().backward()
        assert_matches([p.grad for p in device.parameters()], [p.grad for p in cpu.parameters()])
        assert_matches(dict(device.named_buffers()), dict(cpu.named_buffers()))


# ---- checks and random numbers ---------------------------------------------------------------------------


def pick(flag: Tensor, x: Tensor, at: Tensor) -> Tensor:
    return torch.cond(flag.any(), lambda x, at: x[at].sin(), lambda x, at: x[:2] * 2, (x, at))


def test_a_check_of_the_branch_that_is_not_taken_does_not_fail() -> None:
    on_device = torch.compile(pick, backend="tpu", fullgraph=True)
    x, wrong = torch.randn(3, 4), torch.tensor([0, 99])
    arguments = [torch.tensor([False]), x, wrong]
    assert_matches(on_device(*to_device(arguments)), pick(*arguments))
    with pytest.raises(IndexError, match=r"index.Tensor at .*test_control_flow.py:\d+: index is out of bounds"):
        on_device(*to_device([torch.tensor([True]), x, wrong])).cpu()
    torch.tpu.synchronize()


def test_a_loop_ends_with_a_failed_check() -> None:
    """The element that would end it comes after one that cannot be read, and the condition reads as well."""

    def walk(x: Tensor, at: Tensor) -> tuple[Tensor]:
        return while_loop(lambda at: (x[at] > 0).all(), lambda at: (at + x[at],), (at,))

    on_device = torch.compile(walk, backend="tpu", fullgraph=True)
    start = torch.tensor([0])
    steps = torch.tensor([1, 2, 5, 1, 0])
    assert_matches(on_device(*to_device([steps, start])), (torch.tensor([4]),))
    with pytest.raises(IndexError, match="index is out of bounds"):
        on_device(*to_device([torch.tensor([1, 9, 5, 1, 0]), start]))[0].cpu()
    torch.tpu.synchronize()


def noisy(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = nn.functional.dropout(x + h, 0.5, True) + torch.rand_like(h)
    return h.clone(), h * 2


def test_a_scan_draws_what_its_steps_would() -> None:
    x, h = torch.ones(4, 5, device=DEVICE), torch.ones(5, device=DEVICE)
    torch.manual_seed(3)
    got = torch.compile(lambda x, h: scan(noisy, h, x), backend="tpu", fullgraph=True)(x, h)
    after = torch.rand(2, device=DEVICE)
    torch.manual_seed(3)
    made = []
    for row in x:
        h, y = noisy(h, row)
        made.append(y)
    # One compiler's fusions against another's: a product and a sum may be one operation.
    assert_matches(list(got), [h.cpu(), torch.stack(made).cpu()])
    assert torch.equal(after, torch.rand(2, device=DEVICE))


def without_region(function: Callable[..., Any], *arguments: Any) -> str:
    """Runs a function whose results are right and for which no region was made; why, as the log says."""
    torch._dynamo.reset()
    messages: list[str] = []
    logger = logging.getLogger("torch_tpu.compile")
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        torch.manual_seed(0)
        got = torch.compile(function, backend="tpu", fullgraph=True)(*to_device(list(arguments)))
        state = torch.tpu.get_rng_state()
        torch.manual_seed(0)
        with torch.compiler.set_stance("force_eager"):
            want = function(*to_device(list(arguments)))
        assert torch.equal(state, torch.tpu.get_rng_state())
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    for g, w in zip(tensors(got), tensors(want), strict=True):
        assert_matches(g, w.cpu())
    return " / ".join(messages)


def test_what_a_branch_draws() -> None:
    """Only a branch that is taken draws: how many, the generator cannot know."""

    def drop(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: nn.functional.dropout(x, 0.5, True), lambda x: x.sin(), (x,))

    assert "draws random numbers" in without_region(drop, torch.ones(8))
    assert "draws random numbers" in without_region(drop, -torch.ones(8))


def test_numbers_are_carried_by_the_host() -> None:
    def count(x: Tensor) -> tuple[int, Tensor]:
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5 + i), (0, x))

    assert "carries" in without_region(count, torch.ones(8))


def test_as_strided_looks_beyond_operands_and_slices() -> None:
    def branch(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.as_strided((1, 3), (1, 1), 0).exp(), lambda t: t.sin(), (x[1:2],))

    def rows(x: Tensor) -> Tensor:
        return map_slices(lambda row: row.as_strided((2,), (2,), 0) + 0, x)

    for function in (branch, rows):
        x = torch.arange(12.0).view(4, 3)
        got = torch.compile(function, backend="tpu")(x.to(DEVICE))
        # Without AOTAutograd a map gives each function a slice by itself.
        assert_matches(got, torch.compile(function, backend="aot_eager")(x))


def test_results_without_elements() -> None:
    def empty(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cond(x.sum() > 0, lambda x: (x[:0].sin(), x.sin()), lambda x: (x[:0].cos(), x.cos()), (x,))

    assert "without elements" in without_region(empty, torch.ones(3))


# ---- in other captures -----------------------------------------------------------------------------------


def test_within_a_step_and_a_graph() -> None:
    inner = torch.compile(branch, backend="tpu", fullgraph=True)
    step = torch_tpu.compile.step(lambda x, w: inner(x, w) * 3)
    with torch.no_grad():
        for sign in (1, -1):
            arguments = given(branch, sign)
            assert_matches(step(*to_device(arguments)), branch(*arguments) * 3)
        static = to_device(given(branch, 1))
        graph = torch.tpu.Graph()
        with graph:
            result = inner(*static)
        for sign in (1, -1):
            arguments = given(branch, sign)
            static[0].copy_(arguments[0])
            static[1].copy_(arguments[1])
            graph.replay()
            assert_matches(result, branch(*arguments))


def test_a_step_branches() -> None:
    """Each call of a step captures the parts anew; they are the same program."""
    weight = torch.randn(4, 4)

    def model(x: Tensor, w: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: (x @ w).sin(), lambda x: x * 2, (x,)).sum()

    def train(w: Tensor, x: Tensor) -> Tensor:
        loss = model(x, w)
        w.grad = None
        loss.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        return loss.detach()

    cpu, device = weight.clone().requires_grad_(), weight.to(DEVICE).requires_grad_()
    step = torch_tpu.compile.step(train)
    for i, sign in enumerate((1, -1, 1, 1, -1)):
        x = torch.rand(3, 4) * sign
        want = train(cpu, x)
        before = torch_tpu.compile_stats()["programs"]
        assert_matches(step(device, x.to(DEVICE)), want)
        assert_matches(device, cpu)
        assert i < 2 or torch_tpu.compile_stats()["programs"] == before


def test_in_a_file(tmp_path: pathlib.Path) -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            return branch(x, w), *loop(x, w[:3])

    x, w = given(branch, 1)
    program = torch.export.export(Both(), (x, w))
    torch_tpu.export.save(program, tmp_path / "both")
    loaded = torch_tpu.export.load(tmp_path / "both")
    for sign in (1, -1):
        x, w = given(branch, sign)
        for g, want in zip(tensors(loaded(*to_device([x, w]))), tensors(Both()(x, w)), strict=True):
            assert_matches(g, want)


def test_ahead_of_time() -> None:
    arguments = [x.requires_grad_() for x in given(branch, 1)]
    program = programs.capture(branch, arguments, {}, platform="tpu", training=True)
    assert program.text.count('"stablehlo.if"') == 2  # forward and backward
