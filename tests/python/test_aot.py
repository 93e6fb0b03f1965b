"""Reports on programs compiled for a TPU that is not there."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch_tpu import _C, aot
from torch_tpu._internal import topology
from torch_tpu.aot import layers, programs

needs_libtpu = pytest.mark.skipif(
    not topology.libtpu_installed(), reason="libtpu is not installed: pip install -r requirements/test.txt"
)


def this_line(offset: int) -> str:
    return f"{__file__}:{sys._getframe(1).f_lineno + offset}"


def meta(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


@needs_libtpu
def test_report_of_a_function() -> None:
    def scores(x: Tensor, w: Tensor) -> Tensor:
        product = x @ w
        return torch.softmax(product, dim=-1)

    matmul_line = f"{__file__}:{scores.__code__.co_firstlineno + 1}"
    report = aot.compile(scores, (meta(512, 1024), meta(1024, 256)), topology="v5e:2x2")
    assert report.compiles and report.fits
    assert report.device_kind == "TPU v5 lite" and report.device_bytes is not None and 15e9 < report.device_bytes < 18e9
    assert report.memory is not None
    assert report.memory.arguments == 4 * (512 * 1024 + 1024 * 256)
    assert report.memory.outputs == 4 * 512 * 256
    # A float32 product takes several passes of bfloat16 products.
    assert report.flops is not None and report.flops >= 2 * 512 * 1024 * 256
    assert report.estimated_cycles > 0
    by_line = {row.name: row.amount for row in report.cycles_by_line()}
    assert by_line[matmul_line] > 0
    assert sum(by_line.values()) == report.estimated_cycles == sum(r.amount for r in report.cycles_by_operator())
    assert "estimated by the compiler, not measured" in str(report)
    assert "fits: needs" in str(report)


@needs_libtpu
@pytest.mark.parametrize(
    ("place", "kind", "gibibytes"),
    [
        ("v4:2x2x1", "TPU v4", 30),
        ("v5e:1x1", "TPU v5 lite", 15),
        ("v5p:2x2x1", "TPU v5", 95),
        ("v6e:2x2", "TPU v6 lite", 31),
        ("tpu7x:2x2x1", "TPU7x", 94),
    ],
)
def test_training_step_for_each_kind_of_device(place: str, kind: str, gibibytes: int) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)).bfloat16()
    report = aot.compile(model, (meta(8, 128, dtype=torch.bfloat16),), topology=place, training=True)
    assert report.compiles and report.fits, report.error
    assert report.device_kind == kind
    assert report.device_bytes is not None and report.device_bytes >> 30 == gibibytes
    assert report.estimated_cycles > 0
    # Two products forward, two for the weights' gradients, one for the first result's.
    assert report.flops is not None and report.flops >= 5 * 2 * 8 * 128 * 256


@needs_libtpu
def test_training_step_reuses_the_memory_of_parameters_and_state(tmp_path: pathlib.Path) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
    size = 4 * sum(p.numel() for p in model.parameters())
    report = aot.compile(
        model, (meta(8, 128),), training=True, optimizer=lambda parameters: torch.optim.AdamW(parameters)
    )
    assert report.compiles, report.error
    assert report.memory is not None
    # Parameters and two moments; results are these, and the loss.
    assert report.memory.arguments >= 3 * size
    assert report.memory.aliased >= 3 * size
    report.save_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Estimates of the compiler. Nothing was run." in page
    assert "addmm" in page


@needs_libtpu
def test_what_does_not_fit() -> None:
    report = aot.compile(torch.mm, (meta(65536, 65536), meta(65536, 65536)), topology="v5e:2x2")
    assert not report.compiles
    assert report.fits is False
    assert report.memory is not None and report.memory.arguments == 2 * 4 * 65536**2
    assert "does not fit: needs" in str(report)
    assert not report.instructions  # no estimate for a program that this chip cannot run


def test_what_needs_a_value_names_the_line() -> None:
    def doubled_if_positive(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x * 2
        return x

    report = aot.compile(doubled_if_positive, (meta(3),))
    assert not report.compiles and report.fits is None
    assert report.error is not None
    assert f"{__file__}:{doubled_if_positive.__code__.co_firstlineno + 1}" in report.error


def test_nothing_of_a_meta_model_is_allocated() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1 << 16, 1 << 16), nn.Dropout(0.5))
    before = torch.tpu.memory_allocated()
    program = programs.capture(model, (meta(2, 1 << 16),), {}, platform="tpu", training=True)
    assert torch.tpu.max_memory_allocated() - before < 1 << 30
    assert set(program.parameters) == {"0.weight", "0.bias", "input 0"}
    assert program.text.count("tensor<65536x65536xf32>") > 0
    assert all(p.is_meta and p.grad is None for p in model.parameters())


def test_fake_tensors_and_real_ones_give_the_same_program() -> None:
    real = torch.randn(4, 6)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(real)
    texts = {
        programs.capture(torch.relu, (x,), {}, platform="tpu").text for x in (real, real.to("tpu"), fake, meta(4, 6))
    }
    assert len({text.partition("#l")[0] for text in texts}) == 1


def test_captured_tensors_belong_to_the_capturing_thread() -> None:
    # Backward passes run on threads of their own by default; in a capture they must not.
    x = meta(3).requires_grad_()
    programs.capture(torch.sin, (x,), {}, platform="tpu", training=True)
    assert torch.autograd.is_multithreading_enabled()

    capture = _C.GraphCapture(0)
    try:
        captured = capture.argument(meta(3))
        with ThreadPoolExecutor() as pool:
            for use in (torch.sin, Tensor.cpu, lambda t: torch.ones(3, device="tpu").add_(t)):
                with pytest.raises(RuntimeError, match="another thread captures"):
                    pool.submit(use, captured).result()
    finally:
        capture.close()


class _Block(nn.Module):
    def __init__(self, number: int, size: int) -> None:
        super().__init__()
        self.layer_idx = number
        self.linear = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class _Stack(nn.Module):
    def __init__(self, depth: int, size: int) -> None:
        super().__init__()
        self.first = nn.Linear(size, size)
        self.blocks = nn.ModuleList(_Block(i, size) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_repeated_layers_are_found() -> None:
    model = _Stack(6, 4)
    (found,) = layers.repeated_layers(model)
    assert found.name == "blocks"
    with layers.with_depths([found], [2]):
        assert len(model.blocks) == 2
    assert len(model.blocks) == 6
    assert [(v.depths, v.weight) for v in layers.variants([found])] == [((1,), -4), ((2,), 5)]
    model.blocks[3] = _Block(3, 4).double()
    assert not layers.repeated_layers(model)
    model.blocks[3] = _Block(7, 4)  # its own number is not its place, so it may do something else
    assert not layers.repeated_layers(model)


@needs_libtpu
def test_figures_put_together_are_those_of_the_whole() -> None:
    with torch.device("meta"):
        model = _Stack(8, 256)
    together = aot.compile(model, (meta(64, 256),), training=True)
    whole = aot.compile(model, (meta(64, 256),), training=True, whole=True)
    assert together.notes and not whole.notes
    assert together.memory is not None and whole.memory is not None
    assert together.memory.arguments == whole.memory.arguments
    assert together.memory.outputs == whole.memory.outputs
    # The compiler counts operations of what it fused and padded, which differs a little between programs.
    assert together.flops == pytest.approx(whole.flops, rel=0.05)
    # Small fusions are estimated a little differently when there are more of them to schedule.
    assert together.estimated_cycles == pytest.approx(whole.estimated_cycles, rel=0.25)


@needs_libtpu
def test_command_line(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "model.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            model = torch.nn.Linear(256, 512)
            assert model.weight.is_meta
            example_inputs = (torch.randn(8, 256),)
            """
        )
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch_tpu",
            "aot",
            str(script),
            "--topology",
            "v5e:2x2",
            "v6e:2x2",
            "--html",
            tmp_path / "r.html",
        ],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "Linear for v5e:2x2 (TPU v5 lite)" in done.stdout
    assert "Linear for v6e:2x2" in done.stdout
    assert (tmp_path / "r.html").exists()


@needs_libtpu
def test_unknown_topology() -> None:
    with pytest.raises(RuntimeError, match="libtpu does not compile for 'v99:1x1'"):
        aot.compile(torch.relu, (meta(3),), topology="v99:1x1")


def test_missing_compiler_and_wrong_arguments() -> None:
    with pytest.raises(RuntimeError, match="nonexistent"):
        aot.compile(torch.relu, (meta(3),), provider="nonexistent")
    with pytest.raises(ValueError, match="training=True"):
        aot.compile(torch.relu, (meta(3),), optimizer=torch.optim.SGD)
    with pytest.raises(ValueError, match="requires a gradient"):
        aot.compile(torch.relu, (meta(3),), training=True)
