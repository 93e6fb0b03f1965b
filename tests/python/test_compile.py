"""torch.compile: results, gradients, mutation, aliasing and random numbers as without it, in one program per graph."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_tpu
from helpers import DEVICE, assert_matches, eager_mode, run_python, to_device
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="tpu", **options)


def check_compiled(function: Callable[..., Any], *arguments: Any, calls: int = 2, **options: Any) -> None:
    """Results and arguments of the compiled function on the device are those of the function on the CPU."""
    on_device = compiled(function, **options)
    for _ in range(calls):
        cpu, device = to_device(list(arguments), "cpu"), to_device(list(arguments))
        want = function(*cpu)
        assert_matches(on_device(*device), want)
        assert_matches(device, cpu)


def launches(function: Callable[[], Any]) -> float:
    """Programs that a call launches, once everything is compiled."""
    with eager_mode("strict"):
        function()
        before = torch_tpu.compile_stats()["executions"]
        function()
        torch.tpu.synchronize()
        return torch_tpu.compile_stats()["executions"] - before


def models() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    return {
        "mlp": (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)), torch.randn(5, 6)),
        "cnn": (
            nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            torch.randn(3, 2, 6, 6),
        ),
        "attention": (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(2, 5, 8)),
        "embedding": (nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2)), torch.randint(10, (4, 3))),
        "lstm": (Last(nn.LSTM(4, 5, batch_first=True)), torch.randn(2, 3, 4)),
    }


class Last(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][:, -1]


@pytest.mark.parametrize("mode", ["strict", "fused", "debug"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "attention", "embedding", "lstm"])
def test_training(name: str, mode: str) -> None:
    cpu, x = models()[name]
    device = copy.deepcopy(cpu).to(DEVICE)
    step = compiled(device, fullgraph=name != "lstm")  # dynamo itself leaves nn.LSTM out
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (cpu, device)]
    with eager_mode(mode):
        for _ in range(3):
            losses = [cpu(x).square().mean(), step(x.to(DEVICE)).square().mean()]
            assert_matches(losses[1], losses[0])
            for loss, optimizer in zip(losses, optimizers, strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    for got, want in zip(device.state_dict().values(), cpu.state_dict().values(), strict=True):
        assert_matches(got, want)


def test_a_graph_is_one_program() -> None:
    model, x = models()["attention"]
    model, x = model.to(DEVICE).eval(), x.to(DEVICE)
    step = compiled(model)
    with torch.no_grad():
        assert launches(lambda: step(x)) == 1
    assert launches(lambda: model(x)) > 5

    x.requires_grad_()
    function = compiled(lambda t: (t.sin() * t.cos()).sum())
    assert launches(lambda: torch.autograd.grad(function(x), x)) == 3  # forward, ones, backward


@pytest.mark.parametrize("dynamic", [None, False, True])
def test_sizes_that_change(dynamic: bool | None) -> None:
    def function(x: Tensor) -> tuple[Tensor, Any, int]:
        return x / x.shape[0] + x.mean(0), x.view(-1)[: x.shape[0] * 2], x.shape[0] + 1

    step = compiled(function, dynamic=dynamic)
    for size in (3, 5, 4, 3, 7, 2):
        x = torch.randn(size, 4)
        assert_matches(step(x.to(DEVICE)), function(x))


@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_that_change(dynamic: bool | None, graphs: list[Any]) -> None:
    """Floats are operands of the program; what is computed of them alone, the host computes."""

    def function(x: Tensor, scale: float, shift: float) -> tuple[Tensor, ...]:
        return (x * (scale / 2) + shift).sin() / scale, torch.full_like(x, scale) * x, x.sum() * scale

    step = compiled(function, dynamic=dynamic)
    x = torch.randn(3, 4)
    for scale in (1.5, 2.5, -0.0, 0.0, 3.25, math.inf, math.nan):
        assert_matches(step(x.to(DEVICE), scale, 3.0), function(x, scale, 3.0))
    leaves = [x.clone().requires_grad_(), x.to(DEVICE).requires_grad_()]
    for scale in (0.5, 1.25):
        want = torch.autograd.grad(sum(t.sum() for t in function(leaves[0], scale, 1.0)), leaves[0])
        got = torch.autograd.grad(sum(t.sum() for t in step(leaves[1], scale, 1.0)), leaves[1])
        assert_matches(got, want)
    assert all(graph.reason is None for graph in graphs)


def test_numbers_in_other_captures() -> None:
    """A step draws them anew at each call; a graph keeps those that it was captured with."""
    inner = compiled(lambda x, scale: (x * (scale / 2)).sin() + scale, dynamic=True)
    step = torch_tpu.compile.step(inner)
    x = torch.randn(3, 4)
    for scale in (1.5, 2.5, 1.5):
        assert_matches(step(x.to(DEVICE), scale), (x * (scale / 2)).sin() + scale)
    graph, static = torch.tpu.Graph(), x.to(DEVICE)
    with graph:
        result = inner(static, 4.5)
    assert_matches(inner(static, 0.5), (x * 0.25).sin() + 0.5)
    graph.replay()
    assert_matches(result, (x * 2.25).sin() + 4.5)
    assert_matches(inner(static, 4.5), (x * 2.25).sin() + 4.5)


def test_the_host_draws_anew() -> None:
    """What a graph draws on the host is another number in each call."""

    def function(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        drawn = torch.rand(())
        return x * (scale * drawn), drawn

    step = compiled(function, dynamic=True)
    x = torch.ones(3, device=DEVICE)
    first, second = step(x, 1.5), step(x, 1.5)
    assert first[1] != second[1]
    for product, drawn in (first, second):
        torch.testing.assert_close(product.cpu(), torch.full((3,), 1.5) * drawn)


def test_mutation_of_arguments() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        y[1:].mul_(2)
        return x.sum() + y.sum()

    check_compiled(function, torch.randn(3, 4), torch.randn(3, 4))
    check_compiled(lambda x: x[0].zero_() + 1, torch.randn(3, 4))
    check_compiled(lambda x: x.t_() * 2, torch.randn(3, 4))

    def through_views(base: Tensor) -> Tensor:
        a, b = base[:2], base[1:]
        a.add_(1)
        return b * 2

    check_compiled(through_views, torch.randn(4, 3))


def test_arguments_that_are_views() -> None:
    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    step = compiled(function)
    for view in (lambda t: t[1:3], lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[:, 1], lambda t: t.view(-1)[5:9]):
        cpu = torch.arange(24.0).view(4, 6)
        device = cpu.to(DEVICE)
        assert_matches(step(view(device)), function(view(cpu)))
        assert_matches(device, cpu)


def test_donated_arguments_are_not_lost() -> None:
    step = compiled(lambda x: x.add_(1))
    x = torch.zeros(1000, device=DEVICE)
    kept = x.clone()
    alias = x.view(10, 100)
    for _ in range(5):
        step(x)
    assert x.sum().item() == alias.sum().item() == 5000 and kept.sum().item() == 0


def test_results_that_share_memory() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y, y[1:], y.t(), x, x[0], y.view(-1)

    step = compiled(function)
    cpu = torch.randn(3, 4)
    device = cpu.to(DEVICE)
    want, got = function(cpu), step(device)
    assert_matches(got, want, strides=True)
    for results in (want, got):
        results[1].add_(10)
        results[4].add_(5)
    assert_matches(got, want)
    assert got[3] is device and device[0, 0].item() == cpu[0, 0].item()


def test_empty_and_constant_results() -> None:
    def function(x: Tensor) -> tuple[Tensor | None, ...]:
        return x[:0] + 1, x.new_zeros(2), torch.full((2,), 3.0, device=x.device), x.sum(), None

    check_compiled(function, torch.ones(3))


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_dropout(mode: str) -> None:
    """The numbers are drawn from the device's generator: reproducible, new at every call, as in eager mode."""

    def function(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x)

    step = compiled(function)
    x = torch.ones(64, device=DEVICE)
    with eager_mode(mode):
        torch.manual_seed(7)
        eager = [function(x) for _ in range(3)]
        torch.manual_seed(7)
        graph = [step(x) for _ in range(3)]
        torch.manual_seed(7)
        again = step(x)
    for got, want in zip(graph, eager, strict=True):
        assert torch.equal(got, want)
    assert torch.equal(again, graph[0]) and not torch.equal(graph[0], graph[1])


def test_dropout_in_training_uses_one_mask() -> None:
    step = compiled(lambda t: F.dropout(t, 0.5).square())
    x = torch.ones(256, device=DEVICE, requires_grad=True)
    y = step(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient == 0, y == 0) and 64 < (y == 0).sum().item() < 192


def test_checkpointing() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(3, 4)

    def function(m: nn.Module, t: Tensor) -> Tensor:
        return checkpoint(m, t, use_reentrant=False).sum()

    device = copy.deepcopy(layer).to(DEVICE)
    function(layer, x).backward()
    compiled(function)(device, x.to(DEVICE)).backward()
    for got, want in zip(device.parameters(), layer.parameters(), strict=True):
        assert_matches(got.grad, want.grad)


def test_autocast() -> None:
    layer = nn.Linear(8, 4).to(DEVICE)
    x = torch.randn(3, 8, device=DEVICE)

    def function(t: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            return layer(t)

    got, want = compiled(function)(x), function(x)
    assert got.dtype is torch.bfloat16
    assert_matches(got, want.cpu())
    outside = compiled(lambda t: layer(t))
    with torch.autocast(DEVICE, torch.bfloat16):
        assert outside(x).dtype is torch.bfloat16


def test_graph_breaks() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        if y.sum() > 0:
            y = y + 1
        return y * 2

    check_compiled(function, torch.ones(3))
    check_compiled(function, -torch.ones(3))


def test_values_that_decide_sizes() -> None:
    """Not capturable: the operators run one after the other, with the same results."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        check_compiled(lambda x: x[x > 0].sum(), torch.tensor([1.0, -2.0, 3.0]))
        check_compiled(lambda x: torch.nonzero(x) * 2, torch.tensor([1.0, 0.0, 3.0]))


def test_tensors_of_the_host() -> None:
    scale = torch.tensor(3.0)  # on the CPU
    step = compiled(lambda x, s: x * s)
    x = torch.ones(2, device=DEVICE)
    assert step(x, scale).tolist() == [3, 3]
    scale.fill_(5)
    assert step(x, scale).tolist() == [5, 5]
    assert torch.compile(lambda t: t + 1, backend="tpu")(torch.ones(2)).tolist() == [2, 2]


def test_host_numbers_as_arguments() -> None:
    step = compiled(lambda x, n: x * n)
    for n in (2, 3.5, 4, 0.25, 1, -1.5):
        assert step(torch.ones(2, device=DEVICE), n).tolist() == [n, n]


@torch.library.custom_op("torch_tpu_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_custom_operators() -> None:
    check_compiled(lambda x: twice(x.sin()) + 1, torch.randn(4), fullgraph=True)


def test_higher_order_operators() -> None:
    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))

    check_compiled(branches, torch.ones(3), fullgraph=True)
    check_compiled(branches, -torch.ones(3), fullgraph=True)


def test_grouped_products() -> None:
    """PyTorch's own fake tensors take bfloat16 alone."""
    ends = torch.tensor([2, 4, 4, 8], dtype=torch.int32)
    check_compiled(lambda a, b, offs: torch._grouped_mm(a, b, offs=offs), torch.randn(8, 4), torch.randn(4, 4, 8), ends)
    check_compiled(lambda a, b: torch._grouped_mm(a, b), torch.randn(2, 8, 4), torch.randn(2, 4, 8))


def test_compiled_optimizer() -> None:
    torch.manual_seed(0)
    cpu = nn.Linear(4, 3)
    device = copy.deepcopy(cpu).to(DEVICE)
    x = torch.randn(5, 4)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (cpu, device)]
    step = compiled(optimizers[1].step)
    for _ in range(3):
        for model, optimizer, update in ((cpu, optimizers[0], optimizers[0].step), (device, optimizers[1], step)):
            optimizer.zero_grad()
            model(x.to(next(model.parameters()).device)).square().mean().backward()
            update()
    for got, want in zip(device.parameters(), cpu.parameters(), strict=True):
        assert_matches(got, want)


def test_errors_name_the_line() -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        y = x.sin()
        return y[index] * 2  # the line

    line = function.__code__.co_firstlineno + 2
    step = compiled(function)
    good, bad = torch.tensor([0], device=DEVICE), torch.tensor([9], device=DEVICE)
    x = torch.ones(3, device=DEVICE)
    step(x, good).cpu()
    with pytest.raises(IndexError, match=rf"test_compile\.py:{line}"):
        step(x, bad).cpu()
    assert_matches(step(x, good), function(x, good).cpu())


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda a: torch.linalg.solve(a, a + 1), "singular"),
        (torch.linalg.inv, "singular"),
        (torch.linalg.cholesky, "not positive-definite"),
    ],
    ids=["solve", "inv", "cholesky"],
)
def test_factorisations_are_one_program_that_checks(function: Callable[[Tensor], Tensor], what: str) -> None:
    good = torch.tensor([[[4.0, 1.0], [1.0, 3.0]]] * 2)
    bad = good.clone()
    bad[1] = 0
    step = compiled(function, fullgraph=True)
    assert launches(lambda: step(good.to(DEVICE))) == 1
    with pytest.raises(torch.linalg.LinAlgError, match=what):
        step(bad.to(DEVICE)).cpu()
    assert_matches(step(good.to(DEVICE)), function(good))


def test_as_strided_looks_beyond_windows() -> None:
    """A program gets the elements of a window; what lies around them is read as without torch.compile."""
    numbers = torch.arange(24.0).view(4, 6)
    reads: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.as_strided((1, 3), (5, 1), 6) + 0,
        lambda x: x.mul(2).sum() + x.t().as_strided((2, 2), (3, 1), 0),
        lambda x: torch.as_strided_copy(x, (2, 3), (5, 1)),
    ]
    windows: list[Callable[[Tensor], Tensor]] = [lambda x: x, lambda x: x[1:], lambda x: x[:2], lambda x: x[1:3, 1:3]]
    for read in reads:
        step, whole = compiled(read), numbers.to(DEVICE)
        assert launches(functools.partial(step, whole)) == 1
        for window in windows:
            assert_matches(step(window(whole)), read(window(numbers)))
    with pytest.raises(Exception, match="as_strided of an argument that is a view"):
        compiled(reads[0], options={"one_program": True})(numbers.to(DEVICE)[1:])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.conv2d(x, x[:, :, :2, :2]).flatten(1),
        lambda x: F.conv_transpose2d(x, x[:, :, :2, :2].transpose(0, 1)).flatten(2),
        lambda x: F.pad(x, (1, 1, 1, 1), "reflect").flatten(1),
        lambda x: torch.fft.irfft(x, dim=1).flatten(1),
        lambda x: torch.fft.rfft2(x.mT).flatten(2),
        lambda x: F.scaled_dot_product_attention(x, x, x[..., :2]).transpose(1, 2).flatten(2),
    ],
)
def test_reshaped_results(function: Callable[[Tensor], Tensor], dynamic: bool) -> None:
    """Whether reshaping copies is decided while tracing, by the strides that are foretold."""
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    check_compiled(function, x, dynamic=dynamic)


def test_default_backend() -> None:
    """torch.compile without a backend's name, as libraries call it; other devices keep inductor's answers."""
    run_python(
        """
        import torch, torch_tpu
        step = torch.compile(lambda x: x.sin() + 1)
        x = torch.ones(3)
        assert torch.allclose(step(x.to("tpu")).cpu(), x.sin() + 1)
        assert torch.compile(lambda: torch.zeros(2, device="tpu") + 1)().tolist() == [1, 1]
        assert {"tpu", "neuron"} <= set(torch._dynamo.list_backends())
        # Both names are one backend.
        by_second_name = torch.compile(lambda x: x * 2, backend="neuron", options={"one_program": True})
        assert by_second_name(x.to("tpu")).tolist() == [2, 2, 2]
        assert torch.allclose(torch.compile(lambda x: x.cos())(x), x.cos())
        """,
        timeout=400,
    )


def test_options() -> None:
    x = torch.ones(2, device=DEVICE)
    assert set(torch_tpu.compile.list_options()) == {"bounded_sizes", "one_program", "recompute"}
    for bad, message in (
        ({"mode": "fastest"}, "unknown mode 'fastest'"),
        ({"options": {"no_such_option": 1}}, "unexpected option 'no_such_option' .* known are one_program, recompute"),
        ({"options": {"recompute": "no"}}, "'recompute' of backend 'tpu' is a bool, got 'no'"),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=message):
            torch.compile(lambda t: t + 1, backend="tpu", **bad)(x)
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        assert torch.compile(lambda t: t + 1, backend="tpu", mode=mode)(x).tolist() == [2, 2]


def test_option_one_program() -> None:
    def positive(x: Tensor) -> Tensor:
        return x[x > 0] + 1

    x = torch.tensor([1.0, -1.0], device=DEVICE)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert compiled(positive, fullgraph=True)(x).tolist() == [2]
        torch._dynamo.reset()
        strict = compiled(positive, fullgraph=True, options={"one_program": True})
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"does not become one program: .*value"):
                strict(x)
    assert compiled(lambda x: x + 1, options={"one_program": True})(x).tolist() == [2, 0]


def test_option_recompute(graphs: list[Any]) -> None:
    """With it the backward pass is given the arguments only, and does the forward pass's cheap operators again."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return ((x + y).sin() * x.cos()).exp()

    saved = {}
    for recompute in (True, False):
        torch._dynamo.reset()
        graphs.clear()
        cpu = [torch.randn(5, requires_grad=True) for _ in range(2)]
        device = to_device(cpu)
        got = torch.autograd.grad(compiled(function, options={"recompute": recompute})(*device).sum(), device)
        assert_matches(got, torch.autograd.grad(function(*cpu).sum(), cpu))
        saved[recompute] = sum(node.op == "placeholder" for node in graphs[1]._graph.graph.nodes)
    assert saved[True] < saved[False]


@pytest.mark.parametrize("bounded", [True, False])
def test_option_bounded_sizes(bounded: bool, graphs: list[Any]) -> None:
    """Without them another size is another program. The first is one of its own: nothing has changed yet."""
    with torch_tpu.bounded_sizes("auto"):
        function = compiled(lambda x: (x * 2 + 1).sin(), dynamic=True, options={"bounded_sizes": bounded})
        for size in (33, 34, 35):
            x = torch.randn(size)
            assert_matches(function(x.to(DEVICE)), (x * 2 + 1).sin())
    (graph,) = graphs
    assert len(graph._programs) == 3
    assert len({program._call.text("cpu") for program in graph._programs.values()}) == (2 if bounded else 3)


@pytest.mark.parametrize("enable", ["config", "context"])
def test_compiled_autograd(enable: str, graphs: list[Any]) -> None:
    """The whole backward pass, hooks and accumulation included, is a graph of its own."""
    cpu, x = models()["mlp"]
    device = copy.deepcopy(cpu).to(DEVICE)
    seen: list[float] = []
    for model in (cpu, device):
        model[0].weight.register_hook(lambda gradient: gradient * 2)
        model[3].weight.register_post_accumulate_grad_hook(lambda weight: seen.append(float(weight.grad.abs().sum())))

    def step(model: nn.Module, x: Tensor) -> None:
        loss = model(x).square().mean()
        loss.backward()

    for _ in range(2):
        step(cpu, x)
    torch._dynamo.reset()
    on_device = compiled(device)
    if enable == "config":
        with torch._dynamo.config.patch(compiled_autograd=True):
            train = compiled(step)
            for _ in range(2):
                train(device, x.to(DEVICE))
    else:
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="tpu")):
            for _ in range(2):
                step(on_device, x.to(DEVICE))
    assert_matches([p.grad for p in device.parameters()], [p.grad for p in cpu.parameters()])
    assert len(seen) == 4 and seen[2:] == pytest.approx(seen[:2], rel=1e-5)
    assert graphs


def test_results_that_are_stored_conjugated_or_negated() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return x.conj(), y.conj(), y.conj().imag, x.conj().imag, y.conj().resolve_conj()

    check_compiled(function, torch.randn(3, 2, dtype=torch.complex64))
    check_compiled(lambda x: torch.fft.ifft(x, n=10, dim=1, norm="ortho"), torch.randn(5, 6, 7))


def test_gradients_that_are_zero_tensors() -> None:
    x = torch.randn(3, 4)
    on_device = x.to(DEVICE).requires_grad_()
    result = compiled(torch.sgn, fullgraph=True)(on_device)
    assert_matches(result, x.sgn())
    assert_matches(torch.autograd.grad(result.sum(), on_device)[0], torch.zeros(3, 4))


def test_operators_without_a_meta_kernel() -> None:
    """Tracing runs them on zeros of the device, made like a fake tensor."""
    check_compiled(lambda x: torch.geqrf(x)[1] * 2, torch.randn(5, 4))
    check_compiled(lambda x: torch.histogram(x, 4)[0] + 1, torch.randn(20))


def test_what_a_capture_leaves_behind_cannot_be_read() -> None:
    from torch_tpu import _C

    x = torch.ones(3, device=DEVICE)
    capture = _C.GraphCapture(0)
    try:
        stand_in = capture.argument(x)
        inside = stand_in + 1
        with pytest.raises(RuntimeError, match="cannot be captured"):
            inside.sum().item()
        with pytest.raises(RuntimeError, match="neither an argument"):
            x.add_(stand_in)
        call = capture.finish([inside * 2])
    finally:
        capture.close()
    with pytest.raises(RuntimeError, match="made while a graph was captured"):
        inside.cpu()
    assert call([x])[0].tolist() == [4, 4, 4] and x.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="sizes"):
        call([torch.ones(4, device=DEVICE)])
    with pytest.raises(TypeError, match="dtype"):
        call([torch.ones(3, dtype=torch.int32, device=DEVICE)])
    with pytest.raises(RuntimeError, match="takes 1 arguments"):
        call([])
