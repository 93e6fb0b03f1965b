"""debug, strict and fused differ in when work is launched and in nothing else."""

from __future__ import annotations

import copy
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, MODES, eager_mode, run_python
from torch import Tensor, nn


def work(x: Tensor, w: Tensor) -> list[Tensor]:
    """Elementwise chains, matrix products, views written in place, random numbers."""
    y = F.gelu(x @ w + 1).softmax(-1)
    y[1:, ::2] *= 2
    z = y.t().contiguous()
    z[0] = y.sum(0)[0]
    noise = torch.rand(4, 4, device=x.device)
    return [y, z, noise, torch.randn(7, device=x.device), F.dropout(y, 0.5), (y > 0.1).sum(), z.cumsum(0)]


def test_modes_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(8, 8, generator=generator).to(DEVICE) for _ in range(2))
    results = {}
    for mode in MODES:
        with eager_mode(mode):
            torch.manual_seed(3)
            results[mode] = [t.cpu() for t in work(x, w)]
    for mode in ("strict", "fused"):
        for got, want in zip(results[mode], results["debug"], strict=True):
            torch.testing.assert_close(got, want)
        assert torch.equal(results[mode][2], results["debug"][2]), "random bits differ between modes"


def test_a_mode_repeats_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(8, 8, generator=generator).to(DEVICE) for _ in range(2))
    for mode in MODES:
        with eager_mode(mode):
            runs = []
            for _ in range(3):
                torch.manual_seed(3)
                runs.append([t.cpu() for t in work(x, w)])
        for run in runs[1:]:
            assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True)), mode


def test_training_agrees() -> None:
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    x, target = torch.randn(16, 8).to(DEVICE), torch.randint(4, (16,)).to(DEVICE)
    losses = {}
    for mode in MODES:
        with eager_mode(mode):
            model = copy.deepcopy(start).to(DEVICE)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            history = []
            for _ in range(10):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), target)
                loss.backward()
                optimizer.step()
                history.append(loss.detach())
            losses[mode] = torch.stack(history).cpu()
    # Fusion reorders roundings; ten AdamW steps amplify an ulp.
    torch.testing.assert_close(losses["strict"], losses["debug"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses["fused"], losses["debug"], rtol=1e-4, atol=1e-5)
    assert losses["fused"][-1] < losses["fused"][0]


def test_switching_flushes() -> None:
    x = torch.zeros(4, device=DEVICE)
    for i, mode in enumerate(MODES * 3):
        with eager_mode(mode):
            x += i
            x[i % 4] *= 2
    want = torch.zeros(4)
    for i in range(9):
        want += i
        want[i % 4] *= 2
    assert torch.equal(x.cpu(), want)


def test_fused_defers_and_reads_flush() -> None:
    import torch_tpu

    with eager_mode("fused"):
        x = torch.ones(4, device=DEVICE)
        x.tolist()
        before = torch_tpu.compile_stats()["executions"]
        for _ in range(10):
            x = x * 1.5
        assert torch_tpu.compile_stats()["executions"] == before
        assert x[0].item() == pytest.approx(1.5**10)
        assert torch_tpu.compile_stats()["executions"] - before <= 3


def test_fused_repeats_without_compiling() -> None:
    """A training loop, once seen, finds all its programs."""
    import torch_tpu

    with eager_mode("fused"):
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).to(DEVICE)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x = torch.ones(3, 6, device=DEVICE)

        def step() -> float:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        for _ in range(6):
            step()
        before = torch_tpu.compile_stats()["compiles"]
        for _ in range(20):
            step()
        assert torch_tpu.compile_stats()["compiles"] == before


def test_unread_loop_is_cut_at_its_repetition() -> None:
    """Nothing reads a value for thousands of operators; neither memory nor program size may grow without end."""
    import torch_tpu

    with eager_mode("fused"):
        x = torch.ones(4, device=DEVICE)
        torch.tpu.synchronize()
        before = torch_tpu.compile_stats()
        for _ in range(5000):
            x = x + 1
            x = x * 0.5
        torch.tpu.synchronize()
        after = torch_tpu.compile_stats()
        assert x.tolist() == [1, 1, 1, 1]
        assert after["compiles"] - before["compiles"] <= 8


def test_dead_results_are_never_computed_but_randoms_still_count() -> None:
    with eager_mode("fused"):
        torch.manual_seed(0)
        torch.rand(10, device=DEVICE)
        kept = torch.rand(10, device=DEVICE).cpu()
    with eager_mode("strict"):
        torch.manual_seed(0)
        unread = torch.rand(10, device=DEVICE)
        assert torch.equal(torch.rand(10, device=DEVICE).cpu(), kept)
        assert unread.shape == (10,)


@pytest.mark.parametrize("mode", MODES)
def test_threads_share_a_device(mode: str) -> None:
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            x = torch.full((16,), float(seed), device=DEVICE)
            y = torch.zeros(16, device=DEVICE)
            for i in range(40):
                y[i % 16] += x[0]
                x = x + 1
            want = torch.zeros(16)
            for i in range(40):
                want[i % 16] += seed + i
            assert torch.equal(y.cpu(), want)
        except BaseException as error:  # handed to the main thread
            failures.append(error)

    with eager_mode(mode):
        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


def test_a_tensor_crosses_threads() -> None:
    with eager_mode("fused"):
        x = torch.ones(8, device=DEVICE) * 3
        seen: list[list[float]] = []
        thread = threading.Thread(target=lambda: seen.append((x + 1).tolist()))
        thread.start()
        thread.join()
        assert seen == [[4.0] * 8]


def test_waiting_releases_the_gil() -> None:
    """Another Python thread runs on while one waits for the device."""
    x = torch.randn(1500, 1500, device=DEVICE)
    torch.tpu.synchronize()
    ticks, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        y = x
        for _ in range(10):
            y = y @ x / 40
        start, before = time.perf_counter(), ticks[0]
        torch.tpu.synchronize()
        elapsed, counted = time.perf_counter() - start, ticks[0] - before
    finally:
        stop.set()
        thread.join()
    if elapsed < 0.05:
        pytest.skip("the device was done before the wait began")
    assert counted >= 5


def test_environment_chooses_the_mode() -> None:
    for mode in MODES:
        run_python(f"import torch; assert torch.tpu.get_eager_mode() == {mode!r}", TORCH_TPU_EAGER_MODE=mode)
    run_python(
        """
        import os, torch
        os.environ.pop("TORCH_TPU_EAGER_MODE", None)
        assert torch.tpu.get_eager_mode() == "strict"
        """,
        TORCH_TPU_EAGER_MODE="",
    )


def test_debug_mode_raises_in_the_call() -> None:
    with eager_mode("debug"):
        index = (torch.arange(3, device=DEVICE).float() * 2).long()
        with pytest.raises((IndexError, RuntimeError)):
            torch.ones(3, device=DEVICE)[index]
            pytest.fail("the call itself should have raised")
