"""torch.accelerator.Graph: what a block does, captured once and replayed as one program on the tensors it touched."""

from __future__ import annotations

import copy
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_tpu
from helpers import DEVICE, MODES, assert_matches, eager_mode
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_tpu.device import graphs


def capture(function: Callable[[], Any]) -> tuple[Any, Any]:
    """A graph of a call, and what the call returned."""
    graph = torch.tpu.Graph()
    with graph:
        result = function()
    return graph, result


def launches() -> float:
    torch.tpu.synchronize()
    return torch_tpu.compile_stats()["executions"]


def compiles() -> float:
    torch.tpu.synchronize()
    stats = torch_tpu.compile_stats()
    return stats["compiles"] + stats["disk_hits"] + stats["memory_hits"]


# ---- what a graph does -------------------------------------------------------------------------------------------


def test_it_is_torchs_own_interface() -> None:
    assert torch.tpu.Graph is torch.accelerator.Graph
    assert not torch.accelerator.current_stream().is_capturing()
    x = torch.ones(3, device=DEVICE)
    stream, graph = torch.Stream(), torch.accelerator.Graph()
    with stream, graph:
        assert torch.accelerator.current_stream().is_capturing()
        assert torch.tpu.is_current_stream_capturing()
        x += 1
    assert not torch.accelerator.current_stream().is_capturing()
    graph.replay()
    assert_matches(x, torch.full((3,), 2.0))


@pytest.mark.parametrize("mode", MODES)
def test_capturing_runs_nothing_and_replays_read_what_is_there_then(mode: str) -> None:
    with eager_mode(mode):
        x, total = torch.ones(2, 3, device=DEVICE), torch.zeros(3, device=DEVICE)
        graph, result = capture(lambda: total.add_(x.sum(0)) * 10)
        assert_matches(x, torch.ones(2, 3))
        assert_matches(total, torch.zeros(3))
        with pytest.raises(RuntimeError, match="no value before the graph is replayed"):
            result.cpu()
        places = x.data_ptr(), total.data_ptr(), result.data_ptr()
        want = torch.zeros(3)
        for value in (1.0, 5.0, -2.0):
            x.fill_(value)
            graph.replay()
            want += 2 * value
            assert_matches(total, want)
            assert_matches(result, want * 10)
            assert_matches(x, torch.full((2, 3), value))
        total.zero_()  # between replays tensors are like any others
        graph.replay()
        assert_matches(total, torch.full((3,), -4.0))
        assert places == (x.data_ptr(), total.data_ptr(), result.data_ptr())


def test_a_replay_is_one_launch_and_takes_over_memory() -> None:
    x = torch.zeros(256, 256, device=DEVICE)

    def work() -> None:
        for _ in range(5):
            x.add_(1).mul_(0.5)

    graph, _ = capture(work)
    graph.replay()
    before, programs = launches(), compiles()
    torch.tpu.reset_peak_memory_stats()
    held = torch.tpu.memory_allocated()
    for _ in range(4):
        graph.replay()
    assert launches() - before == 4
    assert compiles() == programs
    assert torch.tpu.max_memory_allocated() - held < x.nbytes // 2  # of the new value: it lies where the old one was
    want = torch.zeros(256, 256)
    for _ in range(25):
        want.add_(1).mul_(0.5)
    assert_matches(x, want)


def test_views_and_tensors_that_share_memory() -> None:
    def work(base: Tensor, row: Tensor, column: Tensor) -> Tensor:
        row.mul_(2)
        column += base.sum()
        base[1:, 1:] -= 1
        return row + base[-1]

    def views(base: Tensor) -> tuple[Tensor, Tensor]:
        return base[0], base[:, 1]

    cpu = torch.arange(12.0).view(3, 4)
    device = cpu.to(DEVICE)
    row, column = views(device)
    graph, result = capture(lambda: work(device, row, column))
    for _ in range(3):
        graph.replay()
        want = work(cpu, *views(cpu))
        assert_matches(result, want)
        assert_matches(device, cpu)
        assert_matches(column, cpu[:, 1])


def test_memory_that_nothing_was_written_to() -> None:
    outside = torch.empty(3, device=DEVICE)
    graph, (result, inside) = capture(lambda: (outside + 1, torch.empty(3, device=DEVICE)))
    outside.copy_(torch.tensor([1.0, 2.0, 3.0]))
    graph.replay()
    assert_matches(result, torch.tensor([2.0, 3.0, 4.0]))
    assert_matches(inside.fill_(7), torch.full((3,), 7.0))


def test_tensors_whose_memory_was_written_in_another_form() -> None:
    # Such writes give a storage another base array (csrc/graph/window.h), between replays and within the graph.
    x = torch.arange(24.0, device=DEVICE).view(4, 6)
    graph, result = capture(lambda: x * 2)
    want = torch.arange(24.0).view(4, 6)
    graph.replay()
    for each in (x, want):
        each.view(torch.int32).view(-1)[3:9].zero_()
        each.as_strided((5, 3), (4, 1), 2).fill_(7)
    graph.replay()
    assert_matches(result, want * 2)

    def inside(t: Tensor) -> None:
        t.as_strided((5, 3), (4, 1), 2).add_(1)
        t.view(torch.int32).view(-1)[:2].zero_()

    graph, _ = capture(lambda: inside(x))
    for _ in range(2):
        graph.replay()
        inside(want)
        assert_matches(x, want)


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_random_numbers_are_those_of_eager_mode(mode: str) -> None:
    def draw(x: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        own = torch.rand(5, device=DEVICE, generator=generator)
        return F.dropout(x, 0.5), torch.randn(3, device=DEVICE), own, torch.randint(100, (4,), device=DEVICE)

    with eager_mode(mode):
        x, generator = torch.ones(40, device=DEVICE), torch.Generator(DEVICE)
        torch.manual_seed(5)
        generator.manual_seed(6)
        want = [[t.cpu() for t in draw(x, generator)] for _ in range(4)]
        after = torch.rand(2, device=DEVICE).cpu()

        torch.manual_seed(5)
        generator.manual_seed(6)
        state = torch.tpu.get_rng_state()
        graph, results = capture(lambda: draw(x, generator))
        assert torch.equal(torch.tpu.get_rng_state(), state)
        for step in want:
            graph.replay()
            for got, expected in zip(results, step, strict=True):
                assert torch.equal(got.cpu(), expected)
        assert torch.equal(torch.rand(2, device=DEVICE).cpu(), after)


def test_random_state_that_is_restored_within() -> None:
    # Activation checkpointing draws the same numbers twice.
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        x.grad = None
        y = checkpoint(lambda t: F.dropout(t.sin(), 0.5), x, use_reentrant=False)
        y.sum().backward()
        return y, x.grad

    torch.manual_seed(1)
    x = torch.randn(50, device=DEVICE, requires_grad=True)
    graph, (y, gradient) = capture(lambda: step(x))
    for _ in range(2):
        graph.replay()
        kept = y.detach() != 0
        assert_matches(gradient, (torch.cos(x.detach()) * kept * 2).cpu())


# ---- training ----------------------------------------------------------------------------------------------------


def model_and_batches() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),  # a bias would have no gradient but rounding, which Adam makes steps of
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.GELU(),
        nn.Linear(16, 5),
    )
    return model, [(torch.randn(8, 1, 6, 6), torch.randint(5, (8,))) for _ in range(6)]


@pytest.mark.parametrize("foreach", [False, True])
def test_a_training_step(foreach: bool) -> None:
    cpu, batches = model_and_batches()
    device = copy.deepcopy(cpu).to(DEVICE)
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}
    plain = torch.optim.AdamW(cpu.parameters(), **options)
    # A learning rate that replays shall see is a tensor, as on CUDA.
    options["lr"] = torch.tensor(0.01, device=DEVICE)
    capturable = torch.optim.AdamW(device.parameters(), capturable=True, foreach=foreach, **options)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    x, y = (t.to(DEVICE) for t in batches[0])
    for _ in range(2):  # so that the optimizer's state is there
        step(device, capturable, x, y)
        step(cpu, plain, *batches[0])
    before = copy.deepcopy(device.state_dict())
    graph, loss = capture(lambda: step(device, capturable, x, y))
    assert_matches(device.state_dict(), {name: t.cpu() for name, t in before.items()})
    count = launches()
    for number, batch in enumerate(batches):
        x.copy_(batch[0])
        y.copy_(batch[1])
        graph.replay()
        assert_matches(loss, step(cpu, plain, *batch))
        if number == 2:
            options["lr"].fill_(0.003)
            plain.param_groups[0]["lr"] = 0.003
    assert launches() - count == len(batches) + 1  # and one fill
    assert_matches(device.state_dict(), dict(cpu.state_dict()))
    for got, want in zip(device.parameters(), cpu.parameters(), strict=True):
        assert_matches(got.grad, want.grad)
    for got, want in zip(capturable.state.values(), plain.state.values(), strict=True):
        assert_matches(got["step"], want["step"])
        assert_matches(got["exp_avg"], want["exp_avg"])


def test_an_optimizer_that_counts_on_the_host_is_refused() -> None:
    model = nn.Linear(3, 2, device=DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.ones(4, 3, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step()
    with pytest.raises(RuntimeError, match=r"Attempting graph capture of step.. for an instance of Adam"):
        capture(step)
    step()  # outside it is served as ever


# ---- what cannot be captured -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda t: t.sum().item(), "value of a tensor is needed"),
        (lambda t: t[t > 0], "value of a tensor is needed"),
        (lambda t: bool(t.any()), "value of a tensor is needed"),
        (lambda t: t.cpu(), "value of a tensor is needed"),
        (lambda t: t.copy_(torch.zeros(3)), "data is copied from the host"),
        (lambda t: torch.tensor([1.0, 2.0], device=DEVICE), "data is copied from the host"),
        (lambda t: t.resize_(7), "from outside is resized"),
    ],
)
def test_what_is_refused(work: Callable[[Tensor], Any], message: str) -> None:
    x = torch.ones(3, device=DEVICE)
    y = torch.zeros(3, device=DEVICE)
    graph = torch.tpu.Graph()

    def refused() -> None:
        y.add_(x)
        work(x)

    with pytest.raises(RuntimeError, match=message) as raised, graph:
        refused()
    assert "test_graphs.py" in str(raised.value.__context__)  # the line
    assert_matches(y, torch.zeros(3))
    assert_matches(x, torch.ones(3))
    with pytest.raises(RuntimeError, match="without a successful capture"):
        graph.replay()
    with graph:  # the object can be used again
        y.add_(x)
    graph.replay()
    assert_matches(y, torch.ones(3))


def test_numbers_of_the_host_are_part_of_the_graph() -> None:
    x = torch.ones(3, device=DEVICE)
    factor = 2.5
    graph, result = capture(lambda: x * factor + torch.tensor(0.25))  # 0-d tensors of the CPU are numbers, as on CUDA
    factor = 4.0
    graph.replay()
    assert_matches(result, torch.full((3,), 2.75))


def test_an_exception_in_the_block_leaves_tensors_as_they_were() -> None:
    x = torch.ones(3, device=DEVICE)
    torch.manual_seed(2)
    state = torch.tpu.get_rng_state()
    with pytest.raises(ValueError, match="of the user"), torch.tpu.Graph():
        x.add_(torch.rand(3, device=DEVICE))
        raise ValueError("of the user")
    assert_matches(x, torch.ones(3))
    assert torch.equal(torch.tpu.get_rng_state(), state)


def test_indices_out_of_range_are_found_at_a_replay() -> None:
    table, index = torch.arange(5.0, device=DEVICE), torch.tensor([0, 4], device=DEVICE)
    graph, result = capture(lambda: table[index])
    graph.replay()
    assert_matches(result, torch.tensor([0.0, 4.0]))
    index.fill_(5)
    graph.replay()
    with pytest.raises(IndexError, match=r"test_graphs\.py"):
        torch.tpu.synchronize()


# ---- the life of a graph -----------------------------------------------------------------------------------------


def test_begin_end_and_reset() -> None:
    x = torch.zeros(2, device=DEVICE)
    graph = torch.tpu.Graph()
    for call in (graph.replay, graph.instantiate, graph.pool, graph.capture_end):
        with pytest.raises(RuntimeError, match="capture"):
            call()
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="captures a graph already"):
        torch.tpu.Graph().capture_begin()
    with pytest.raises(RuntimeError, match="during a capture"):
        graph.reset()
    x += 1
    graph.capture_end()
    with pytest.raises(RuntimeError, match="holds a captured graph"):
        graph.capture_begin()
    graph.replay()
    graph.reset()
    with pytest.raises(RuntimeError, match="without a successful capture"):
        graph.replay()
    with graph:
        x += 10
    graph.replay()
    assert_matches(x, torch.full((2,), 11.0))
    with torch.tpu.Graph():
        pass


def test_pools_are_names() -> None:
    x = torch.zeros(2, device=DEVICE)
    first, _ = capture(lambda: x + 1)
    handle = torch.tpu.graph_pool_handle()
    for pool in (first.pool(), handle):
        graph = torch.tpu.Graph(pool=pool)
        with graph:
            x.add_(1)
        assert graph.pool() == pool
    assert handle not in (first.pool(), torch.tpu.graph_pool_handle())


def test_keep_graph_and_debug_dump(tmp_path: pathlib.Path) -> None:
    x = torch.zeros(2, device=DEVICE)
    kept, plain = torch.tpu.Graph(keep_graph=True), torch.tpu.Graph()
    for graph in (kept, plain):
        with graph:
            x.add_(1)
    kept.instantiate()
    with pytest.raises(RuntimeError, match="keep_graph=True"):
        plain.instantiate()
    with pytest.warns(UserWarning, match="enable_debug_mode"):
        plain.debug_dump(str(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists()
    plain.enable_debug_mode()
    for number, graph in enumerate((kept, plain)):
        path = tmp_path / str(number)
        graph.debug_dump(str(path))
        assert "stablehlo.add" in path.read_text()
        assert "test_graphs.py" in path.read_text()
    with pytest.raises(RuntimeError, match="cannot be written"):
        plain.debug_dump(str(tmp_path / "no folder" / "file"))


def test_tensors_that_are_gone() -> None:
    x, y = torch.ones(64, 64, device=DEVICE), torch.zeros(64, 64, device=DEVICE)
    graph, (first, second) = capture(lambda x=x: (y.add_(x) + 1, y + 2))
    graph.replay()
    programs = compiles()
    del x, first  # the graph keeps what it reads, and not what it makes
    held = torch.tpu.memory_allocated()
    graph.replay()
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == held
    assert compiles() == programs
    assert_matches(second, torch.full((64, 64), 4.0))
    before = torch.tpu.memory_allocated()
    graph.reset()
    assert before - torch.tpu.memory_allocated() == y.nbytes  # that was x


def test_graphs_that_work_on_each_others_tensors() -> None:
    x = torch.full((3,), 2.0, device=DEVICE)
    first, middle = capture(lambda: x * 3)
    second, result = capture(lambda: middle + 1)
    third, _ = capture(lambda: x.copy_(result))
    for want in (7.0, 22.0, 67.0):
        for graph in (first, second, third):
            graph.replay()
        assert_matches(x, torch.full((3,), want))


def test_a_replay_within_a_graph() -> None:
    x = torch.full((3,), 2.0, device=DEVICE)
    inner, result = capture(lambda: F.dropout(x, 0.5) * 0 + x * 3)
    outer, copied = capture(lambda: (inner.replay(), result + 1)[1])
    x.fill_(5)
    before = launches()
    outer.replay()
    assert launches() - before == 1
    assert_matches(copied, torch.full((3,), 16.0))
    assert_matches(result, torch.full((3,), 15.0))


def test_compiled_functions_within_a_graph() -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda t: F.dropout(t, 0.5).sin().cumsum(0), backend="tpu")
    x = torch.randn(20, device=DEVICE)
    torch.manual_seed(3)
    want = [function(x).cpu() for _ in range(3)]
    torch.manual_seed(3)
    graph, result = capture(lambda: function(x))
    for each in want:
        graph.replay()
        assert_matches(result, each)


def test_other_threads_go_on_and_may_replay() -> None:
    x = torch.zeros(3, device=DEVICE)
    seen: list[Any] = []

    def eager() -> None:
        seen.append(torch.tpu.is_current_stream_capturing())
        seen.append((torch.ones(3, device=DEVICE) * 3).sum().item())

    graph = torch.tpu.Graph()
    with graph:
        x.add_(1)
        thread = threading.Thread(target=eager)
        thread.start()
        thread.join()
    assert seen == [False, 9.0]
    thread = threading.Thread(target=graph.replay)
    thread.start()
    thread.join()
    assert_matches(x, torch.ones(3))

    def end() -> None:
        try:
            graph.capture_end()
        except RuntimeError as error:
            seen.append(str(error))

    graph.reset()
    with graph:
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
    assert "thread that began it" in seen[-1]


def test_a_graph_dropped_during_its_capture() -> None:
    x = torch.ones(3, device=DEVICE)
    graph = torch.tpu.Graph()
    graph.capture_begin()
    x += 1
    del graph
    assert not torch.tpu.is_current_stream_capturing()
    assert_matches(x, torch.ones(3))


def test_the_context_manager_of_the_module() -> None:
    x = torch.zeros(3, device=DEVICE)
    stream, graph = torch.tpu.Stream(), torch.tpu.Graph()
    pool = torch.tpu.graph_pool_handle()
    with torch.tpu.graph(graph, pool=pool, stream=stream):
        assert torch.tpu.current_stream() == stream
        x += 2
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    assert graph.pool() == pool
    graph.replay()
    assert_matches(x, torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="holds a captured graph"), torch.tpu.graph(graph, stream=stream):
        pass
    assert torch.tpu.current_stream() == torch.tpu.default_stream()


def test_the_class_for_older_releases_of_torch(tmp_path: pathlib.Path) -> None:
    x = torch.zeros(3, device=DEVICE)
    graph = graphs._Graph()
    for call in (graph.replay, graph.instantiate, graph.pool):
        with pytest.raises(RuntimeError, match="without a successful capture"):
            call()
    with torch.tpu.graph(graph):
        x += 2
    graph.replay()
    assert_matches(x, torch.full((3,), 2.0))
    assert graph.pool() == graph.graph_pool
    with pytest.warns(UserWarning, match="enable_debug_mode"):
        graph.debug_dump(str(tmp_path / "dump"))
    graph.enable_debug_mode()
    graph.debug_dump(str(tmp_path / "dump"))
    assert "stablehlo.add" in (tmp_path / "dump").read_text()
    graph.reset()
    with pytest.raises(RuntimeError, match="without a successful capture"):
        graph.replay()
