"""Programs in files: saved from torch.export, loaded without the model's code, from Python and from C++."""

from __future__ import annotations

import collections
import copy
import json
import pathlib
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import ROOT
from helpers import DEVICE, assert_matches, eager_mode, run_python, to_device
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch_tpu import _C, export
from torch_tpu._internal import topology

pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file

RUNNER = ROOT / "build" / "examples" / "export_run"
needs_runner = pytest.mark.skipif(not RUNNER.exists(), reason="built with -DTPU_BUILD_EXAMPLES=ON only")


class Of(nn.Module):
    """A module of a function of itself and its arguments."""

    def __init__(self, function: Callable[..., Any], **buffers: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


def write_all(self: Of, x: Tensor, y: Tensor) -> Any:
    """Writes to a buffer, through a view of it, and to an argument; returns what it wrote to."""
    self.total += x.sum()
    self.row[1:3] *= 2
    y.add_(self.row[0])
    return {"row": self.row, "y": y, "both": (y + self.total, y)}


def change_places(self: Of, x: Tensor, y: Tensor) -> Any:
    old, kept = self.a.clone(), x.clone()
    self.a.copy_(self.b)
    self.b.copy_(old)
    x.copy_(y)
    y.copy_(kept)
    return old, self.a, kept, x.t(), y


def of_many_kinds(self: Of, x: Tensor, number: int, flag: bool, nothing: None) -> Any:
    made = (torch.arange(4), torch.tensor([1.0, 2.0]), torch.full((2,), 3, dtype=torch.int8), x.new_zeros(2, 0))
    return {"made": made, "values": [number, flag, nothing, float("inf"), "text"], "pair": torch.max(x * number, 1)}


def autocast(self: Of, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16):
        product = x @ self.weight
    with torch.no_grad():
        return product.float() + torch.ones(3)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "linear": lambda: (nn.Linear(6, 3), (torch.randn(4, 6),)),
    "convolution": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 9, 5)),
        (torch.randn(2, 3, 8, 8),),
    ),
    "channels last": lambda: (
        nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last),
        (torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),),
    ),
    "batch norm in training": lambda: (nn.BatchNorm1d(5), (torch.randn(7, 5),)),
    "transformer": lambda: (
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(),
        (torch.randn(2, 5, 16), torch.rand(5, 5) < 0.3),
    ),
    "lstm": lambda: (nn.LSTM(6, 8, 2), (torch.randn(5, 2, 6),)),
    "tied": lambda: (Tied(), (torch.tensor([3, 0, 10]),)),
    "writes": lambda: (Of(write_all, total=torch.zeros(()), row=torch.ones(4)), (torch.randn(3), torch.randn(2))),
    "two change places": lambda: (
        Of(change_places, a=torch.randn(3), b=torch.randn(3)),
        (torch.randn(3, 2), torch.randn(2, 3).t()),
    ),
    "transposed": lambda: (
        Of(lambda self, x: x.t().view(-1).mul_(2) + self.w.t().view(-1), w=torch.randn(5, 3).t()),
        (torch.randn(3, 5).t(),),
    ),
    "kinds": lambda: (Of(of_many_kinds), (torch.randn(3, 4), 3, True, None)),
    "arguments returned": lambda: (Of(lambda self, x: (x, x.t(), self.b, x), b=torch.ones(2)), (torch.randn(2, 3),)),
    "half": lambda: (nn.LayerNorm(8).half(), (torch.randn(3, 8).half(),)),
    "complex": lambda: (Of(lambda self, x: (x.conj(), torch.fft.fft(x))), (torch.randn(8, dtype=torch.complex64),)),
    "no elements": lambda: (Of(lambda self, x: (x * 2, x.sum(), x)), (torch.zeros(0, 3),)),
    "autocast": lambda: (Of(autocast, weight=torch.randn(4, 3)), (torch.randn(2, 4),)),
    "no arguments": lambda: (Of(lambda self: self.b.exp(), b=torch.randn(3)), ()),
}


def exported(module: nn.Module, args: tuple[Any, ...], **options: Any) -> torch.export.ExportedProgram:
    # Of a copy: a buffer that the module writes to is written in exported programs, too.
    return torch.export.export(copy.deepcopy(module), args, **options)


def saved(tmp_path: pathlib.Path, module: nn.Module, args: tuple[Any, ...], **options: Any) -> pathlib.Path:
    export.save(exported(module, args), tmp_path / "program", **options)
    return tmp_path / "program"


def on_device(tree: Any) -> Any:
    return pytree.tree_map(lambda x: to_device(x) if isinstance(x, Tensor) else x, tree)


def plain(tree: Any) -> Any:
    """With tuples in place of named ones."""
    if isinstance(tree, (tuple, list)):
        made = [plain(x) for x in tree]
        return tuple(made) if isinstance(tree, tuple) else made
    return {k: plain(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("decomposed", [False, True], ids=["exported", "decomposed"])
def test_results_and_writes(name: str, decomposed: bool, tmp_path: pathlib.Path) -> None:
    """Results, buffers and arguments after two calls are those of the module on the CPU."""
    module, args = MODELS[name]()
    program = exported(module, args)
    export.save(program.run_decompositions() if decomposed else program, tmp_path)
    loaded = export.load(tmp_path)
    for _ in range(2):
        on_cpu, given = copy.deepcopy(args), on_device(args)
        with torch.no_grad():
            want = plain(module(*on_cpu))
        assert_matches(loaded(*given), want)
        assert_matches(given, on_cpu)
    for buffer, want in module.named_buffers():
        assert_matches(loaded.weights[buffer], want)


def test_modules_may_be_given_with_their_arguments(tmp_path: pathlib.Path) -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor, *, scale: Tensor, power: int = 1) -> Tensor:
            return super().forward(x) * scale**power

    module, x, scale = Scaled(3, 2), torch.randn(4, 3), torch.randn(2)
    export.save((module, (x,), {"scale": scale, "power": 2}), tmp_path)
    loaded = export.load(tmp_path)
    assert "Scaled" in repr(loaded) and "scale: float32[2]" in repr(loaded)
    got = loaded(on_device(x), power=2, scale=on_device(scale))  # in any order
    assert_matches(got, module(x, scale=scale, power=2).detach())
    with pytest.raises(TypeError, match="ExportedProgram"):
        export.save(module, tmp_path)  # type: ignore[arg-type]


def test_named_tuples_come_back_as_tuples(tmp_path: pathlib.Path) -> None:
    Pair = collections.namedtuple("Pair", ["left", "right"])
    x = torch.randn(3)
    export.save((Of(lambda self, pair: Pair(pair.left + 1, pair.right)), (Pair(x, 2),)), tmp_path)
    loaded = export.load(tmp_path)
    for pair in (Pair(on_device(x), 2), (on_device(x), 2)):
        got = loaded(pair)
        assert type(got) is tuple
        assert_matches(got, (x + 1, 2))


def test_exported_on_the_device(tmp_path: pathlib.Path) -> None:
    module, args = MODELS["transformer"]()
    program = exported(copy.deepcopy(module).to(DEVICE), on_device(args))
    export.save(program, tmp_path)
    with torch.no_grad():
        assert_matches(export.load(tmp_path)(*on_device(args)), module(*args))


def test_tied_weights_are_stored_once(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path, *MODELS["tied"]())
    stored = load_file(folder / "weights.safetensors")
    assert [tuple(t.shape) for t in stored.values()] == [(11, 6)]
    assert len(export.load(folder).weights) == 1


def test_files_hold_no_memory_that_weights_are_windows_of(tmp_path: pathlib.Path) -> None:
    large = torch.randn(1000)
    folder = saved(tmp_path, Of(lambda self, x: x + self.a + self.b, a=large[:3], b=large[2:5]), (torch.randn(3),))
    assert_matches(export.load(folder)(torch.zeros(3, device=DEVICE)), large[:3] + large[2:5])
    assert (folder / "weights.safetensors").stat().st_size < 400


def test_writing_to_overlapping_buffers_is_refused(tmp_path: pathlib.Path) -> None:
    large = torch.randn(6)
    module = Of(lambda self, x: (self.a.add_(1), x + self.b), a=large[:4], b=large[2:])
    with pytest.raises(NotImplementedError, match="writes to a, which shares its memory with b"):
        saved(tmp_path, module, (torch.randn(4),))
    module = Of(lambda self, x: (self.a.add_(1), x + self.b), a=large[:3], b=large[3:])  # side by side
    saved(tmp_path, module, (torch.randn(3),))


def test_dropout_draws_as_in_eager_mode(tmp_path: pathlib.Path) -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 64), nn.Dropout(0.3))
    x = torch.randn(16, 64)
    loaded = export.load(saved(tmp_path, module, (x,)))
    on_tpu = module.to(DEVICE)
    torch.manual_seed(11)
    with torch.no_grad():
        want = [on_tpu(on_device(x)).cpu() for _ in range(2)]
    torch.manual_seed(11)
    got = [loaded(on_device(x)) for _ in range(2)]
    assert_matches(got, want)
    assert not torch.equal(want[0], want[1])


def draw(self: nn.Module, x: Tensor) -> list[Tensor]:
    unwritten = torch.empty_like(x)
    return [
        torch.rand_like(x),
        torch.bernoulli(x.sigmoid()),
        torch.multinomial(x.abs() + 1, 2),
        torch.nn.functional.rrelu(x, training=True),
        torch.ops.aten.rrelu_with_noise(x, unwritten, 0.1, 0.3, True) + unwritten,
        x.clone().exponential_(),
        torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
    ]


def test_random_operators_draw_in_their_order(tmp_path: pathlib.Path) -> None:
    module, x = Of(draw), torch.randn(4, 6)
    loaded, given = export.load(saved(tmp_path, module, (x,))), on_device(x)
    torch.manual_seed(3)
    want = [[t.cpu() for t in draw(module, given)] for _ in range(2)]
    torch.manual_seed(3)
    assert_matches([loaded(given) for _ in range(2)], want)


# ---- errors of a call --------------------------------------------------------------------------------


def lookup(self: Of, index: Tensor, scale: float, options: dict[str, Tensor]) -> Tensor:
    return self.table[index] * scale + options["bias"]


@pytest.fixture
def table(tmp_path: pathlib.Path) -> export.LoadedProgram:
    args = (torch.arange(4), 2.0, {"bias": torch.randn(3)})
    return export.load(saved(tmp_path, Of(lookup, table=torch.randn(5, 3)), args))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda i, s, o: (i[:3], s, o), RuntimeError, r"args_0 \(at args\[0\]\) to be int64\[4\], got int64\[3\]"),
        (lambda i, s, o: (i.int(), s, o), RuntimeError, r"to be int64\[4\], got int32\[4\]"),
        (lambda i, s, o: (i, 3.0, o), RuntimeError, r"args_1 \(at args\[1\]\) to be 2.0, got 3.0"),
        (lambda i, s, o: (i, 2, o), RuntimeError, r"to be 2.0, got 2"),
        (lambda i, s, o: (i.cpu(), s, o), RuntimeError, r"on tpu:0, got one on cpu"),
        (lambda i, s, o: (i, s, {"bias": 1.0}), RuntimeError, r"at args\[2\]\['bias'\]\) to be a tensor, got float"),
        (lambda i, s, o: (i, s, {"bias": o["bias"].clone().requires_grad_()}), RuntimeError, "no gradient"),
        (lambda i, s, o: (i, s), ValueError, "arranged as"),
        (lambda i, s, o: (i, s, {"scale": o["bias"]}), ValueError, "arranged as"),
    ],
    ids=["size", "dtype", "value", "type of value", "device", "no tensor", "gradient", "missing", "other key"],
)
def test_wrong_arguments_raise(
    table: export.LoadedProgram, change: Callable[..., tuple[Any, ...]], error: type[Exception], message: str
) -> None:
    right = (torch.arange(4, device=DEVICE), 2.0, {"bias": torch.zeros(3, device=DEVICE)})
    want = table(*right).cpu()
    with pytest.raises(error, match=message):
        table(*change(*right))
    with pytest.raises(ValueError, match="keyword arguments"):
        table(*right, more=1)
    assert_matches(table(*right), want)


def test_index_out_of_range_raises_in_every_mode(table: export.LoadedProgram) -> None:
    bias = {"bias": torch.zeros(3, device=DEVICE)}
    for mode in ("debug", "strict", "fused"):
        with eager_mode(mode):
            with pytest.raises(IndexError, match=r"index.Tensor in Of: index is out of bounds"):
                table(torch.arange(4, device=DEVICE) + 2, 2.0, bias).cpu()
            assert_matches(table(torch.arange(4, device=DEVICE) * 1, 2.0, bias), 2 * table.weights["table"][:4].cpu())


def test_singular_matrices_raise(tmp_path: pathlib.Path) -> None:
    loaded = export.load(saved(tmp_path, Of(lambda self, a: torch.linalg.inv(a)), (torch.eye(3),)))
    assert_matches(loaded(2 * torch.eye(3, device=DEVICE)), torch.eye(3) / 2)
    with pytest.raises(torch.linalg.LinAlgError, match=r"in Of: linalg.inv: .* singular"):
        loaded(torch.ones(3, 3, device=DEVICE)).cpu()


def test_windows_as_arguments(table: export.LoadedProgram) -> None:
    bias = {"bias": torch.zeros(9, device=DEVICE)[::3]}
    want = 2 * table.weights["table"].cpu()
    assert_matches(table(torch.arange(9, device=DEVICE)[5:] - 5, 2.0, bias), want[:4])
    assert_matches(table(torch.tensor([1, 0], device=DEVICE).repeat(4)[::2], 2.0, bias), want[1].expand(4, 3))
    assert_matches(table(torch.empty(4, dtype=torch.long, device=DEVICE), 2.0, bias), want[0].expand(4, 3))


def test_writes_through_windows_of_arguments(tmp_path: pathlib.Path) -> None:
    loaded = export.load(saved(tmp_path, Of(lambda self, x: x.add_(1).sum()), (torch.randn(3),)))
    base = torch.zeros(4, 3, device=DEVICE)
    assert loaded(base[:3, 1]).item() == 3
    assert_matches(base, torch.tensor([[0.0, 1, 0]] * 3 + [[0.0] * 3]))


def test_one_tensor_for_two_arguments(tmp_path: pathlib.Path) -> None:
    x = torch.randn(3)
    loaded = export.load(saved(tmp_path, Of(lambda self, x, y: x - 2 * y), (x, x.clone())))
    for mode in ("debug", "strict", "fused"):
        with eager_mode(mode):
            given = on_device(x) * 1
            assert_matches(loaded(given, given), -x)
    loaded = export.load(saved(tmp_path, Of(lambda self, x, y: x.add_(y)), (x, x.clone())))
    given = on_device(x)
    with pytest.raises(RuntimeError, match="writes to its input args_0, which shares its memory"):
        loaded(given, given.view(3))


def test_a_call_is_one_program_that_takes_over_the_memory_of_buffers(tmp_path: pathlib.Path) -> None:
    module = Of(lambda self, x: self.state.mul_(0.5).add_(x).sum(), state=torch.zeros(256, 256))
    x = torch.ones(256, 256)
    loaded, given = export.load(saved(tmp_path, module, (x,))), on_device(x)
    loaded(given).item()
    before, donated = _C.compile_stats(), _C._donation_stats()["donated"]
    for _ in range(3):
        total = loaded(given)
    torch.tpu.synchronize()
    after = _C.compile_stats()
    assert after["executions"] - before["executions"] == 3 and after["compiles"] == before["compiles"]
    assert _C._donation_stats()["donated"] - donated == 3
    assert total.item() == 1.875 * 256 * 256


# ---- what cannot be saved ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [lambda self, x: x * x.sum().item(), lambda self, x: x[x > 0]],
    ids=["item", "mask"],
)
def test_programs_that_need_a_value_are_refused(function: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match="the value of a tensor is needed"):
        saved(tmp_path, Of(function), (torch.randn(3),))
    assert_matches(torch.ones(2, device=DEVICE) + 1, torch.full((2,), 2.0))  # the capture has ended


def test_dynamic_sizes_need_example_inputs(tmp_path: pathlib.Path) -> None:
    def function(self: Of, x: Tensor, more: dict[str, Tensor]) -> Any:
        return x.view(x.shape[0], 2, 3) * x.shape[0], more["y"].sum()

    batch = torch.export.Dim("batch", min=2, max=64)
    args = (torch.randn(3, 6), {"y": torch.randn(6)})
    program = exported(Of(function), args, dynamic_shapes=(({0: batch}, {"y": {0: 2 * batch}}),))
    with pytest.raises(ValueError, match=r"args_0.shape\[0\] = (s\d+), args_1_y.shape\[0\] = 2\*\1 .*\1 in \[2, 64\]"):
        export.save(program, tmp_path)

    def example(rows: int, length: int, columns: int = 6) -> Any:
        return (torch.randn(rows, columns), {"y": torch.randn(length)}), {}

    for wrong, message in (
        (example(5, 11), r"args_1_y.shape\[0\] is 11, the program takes 2\*s\d+, 10 here"),
        (example(5, 10, 7), r"args_0.shape\[1\] is 7, the program takes 6$"),
        (example(65, 130), r"is 65, the program takes 2 to 64"),
        (example(5, 10)[0], "arranged as"),
    ):
        with pytest.raises(ValueError, match=message):
            export.save(program, tmp_path, example_inputs=wrong)
    right = example(5, 10)
    export.save(program, tmp_path, example_inputs=right)
    assert_matches(export.load(tmp_path)(*on_device(right[0])), Of(function)(*right[0]))


def test_weights_without_contents_are_given_when_loading(tmp_path: pathlib.Path) -> None:
    with torch.device("meta"):
        empty, x = nn.Linear(3, 2), torch.empty(4, 3)
    folder = saved(tmp_path, empty, (x,))
    with pytest.raises(ValueError, match="no weight 'weight'"):
        export.load(folder)
    full, x = nn.Linear(3, 2), torch.randn(4, 3)
    assert_matches(export.load(folder, weights=full.state_dict())(on_device(x)), full(x).detach())
    with pytest.raises(ValueError, match=r"weight bias is float32\[3\], the program takes float32\[2\]"):
        export.load(folder, weights=full.state_dict() | {"bias": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"no weights \['scale'\]"):
        export.load(folder, weights={"scale": torch.zeros(3)})


def test_weights_that_are_given_are_copied(tmp_path: pathlib.Path) -> None:
    module, args = MODELS["batch norm in training"]()
    given = {name: t.to(DEVICE) for name, t in module.state_dict().items()}
    loaded = export.load(saved(tmp_path, module, args), weights=given)
    loaded(*on_device(args))
    assert loaded.weights["num_batches_tracked"].item() == 1 and given["num_batches_tracked"].item() == 0


# ---- files ---------------------------------------------------------------------------------------------


def test_text_is_portable(tmp_path: pathlib.Path) -> None:
    """No lines of the user's files and nothing for one kind of plugin, unless asked for."""

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = (x @ x).softmax(-1)
            return y @ x

    line = Twice.forward.__code__.co_firstlineno + 1
    module, args = Twice(), (torch.randn(4, 4),)
    text = (saved(tmp_path, module, args) / "program.mlir").read_text()
    assert "loc(" not in text and "optimization_barrier" not in text and "custom_call" not in text
    text = (saved(tmp_path, module, args, platform="cpu", locations=True) / "program.mlir").read_text()
    assert "optimization_barrier" in text and f'loc("mm"("{__file__}":{line}' in text


@pytest.mark.skipif(not topology.libtpu_installed(), reason="libtpu is not installed")
def test_text_compiles_for_a_tpu(tmp_path: pathlib.Path) -> None:
    module = nn.Sequential(nn.Embedding(9, 16), nn.TransformerEncoderLayer(16, 4, 32), nn.Dropout(0.1))
    text = (saved(tmp_path, module, (torch.arange(6).view(2, 3),)) / "program.mlir").read_text()
    run_python(
        """
        import sys, torch
        from torch_tpu import _C
        assert _C.Topology("libtpu", "v5e:2x2").compile(open(sys.argv[1]).read()).memory()["arguments"] > 0
        """,
        arguments=(str(tmp_path / "program" / "program.mlir"),),
    )
    assert "stablehlo.dot_general" in text


def run_from(folder: pathlib.Path, x: Tensor) -> tuple[Tensor, dict[str, float]]:
    """The result in a process without a cache, and how it came by its programs."""
    save_file({"x": x}, folder / "inputs")
    run_python(
        """
        import sys, torch, torch_tpu.export
        from safetensors.torch import load_file, save_file
        run = torch_tpu.export.load(sys.argv[1])
        x = load_file(sys.argv[1] + "/inputs")["x"].to("tpu")
        y = run(x).cpu()
        stats = torch_tpu.compile_stats()
        save_file({"y": y, "stats": torch.tensor([stats["file_hits"], stats["compiles"]])}, sys.argv[1] + "/outputs")
        """,
        arguments=(str(folder),),
        TORCH_TPU_CACHE="0",
    )
    outputs = load_file(folder / "outputs")
    file_hits, compiles = outputs["stats"].tolist()
    return outputs["y"], {"file_hits": file_hits, "compiles": compiles}


def test_an_executable_saves_the_compile(tmp_path: pathlib.Path) -> None:
    module, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), torch.randn(3, 4)
    folder = saved(tmp_path, module, (x,), compile_for="device")
    want = module(x).detach()

    y, stats = run_from(folder, x)
    assert stats == {"file_hits": 1, "compiles": 0}
    torch.testing.assert_close(y, want)

    executable = (folder / "program.exe").read_bytes()
    (folder / "program.exe").write_bytes(executable[:-1] + bytes([executable[-1] ^ 1]))
    y, stats = run_from(folder, x)
    assert stats == {"file_hits": 0, "compiles": 1}
    torch.testing.assert_close(y, want)

    (folder / "program.exe").write_bytes(executable)
    text = (folder / "program.mlir").read_text()
    (folder / "program.mlir").write_text(text.replace("stablehlo.tanh", "stablehlo.sine"))
    y, stats = run_from(folder, x)
    assert stats == {"file_hits": 0, "compiles": 1}
    torch.testing.assert_close(y, module[0](x).detach().sin())

    saved(tmp_path, module, (x,))
    assert not (folder / "program.exe").exists()


@pytest.mark.skipif(not topology.libtpu_installed(), reason="libtpu is not installed")
def test_an_executable_for_another_device_is_left_alone(tmp_path: pathlib.Path) -> None:
    module, x = nn.Linear(4, 8), torch.randn(3, 4)
    folder = saved(tmp_path, module, (x,), compile_for="v5e:1x1")
    assert b"kind TPU v5 lite" in (folder / "program.exe").read_bytes()
    y, stats = run_from(folder, x)
    assert stats == {"file_hits": 0, "compiles": 1}
    torch.testing.assert_close(y, module(x).detach())


@pytest.mark.skipif(not topology.libtpu_installed(), reason="libtpu is not installed")
def test_what_no_compiler_takes_leaves_the_files_as_they_were(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path, nn.Linear(4, 8), (torch.randn(3, 4),))
    before = (folder / "program.mlir").read_text()
    with pytest.raises(RuntimeError, match="does not compile for 'v5e:9x9x9'"):
        saved(tmp_path, nn.Tanh(), (torch.randn(3, 4),), compile_for="v5e:9x9x9")
    with pytest.raises(RuntimeError, match="the compiler for v5e:1x1 refuses the program"):
        saved(tmp_path, nn.Tanh(), (torch.empty(1 << 34, device="meta"),), compile_for="v5e:1x1")  # 64 GiB
    assert (folder / "program.mlir").read_text() == before


def damage(folder: pathlib.Path, **changes: Any) -> None:
    signature = json.loads((folder / "signature.json").read_text())
    for name, value in changes.items():
        signature[name] = value(signature[name])
    (folder / "signature.json").write_text(json.dumps(signature))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: damage(f, version=lambda n: n + 1), "version 2"),
        (lambda f: damage(f, outputs=lambda o: [o[0] | {"sizes": [400, 3]}]), "the signature says"),
        (lambda f: damage(f, parameters=lambda p: p[:1]), "the signature says"),
        (lambda f: damage(f, written=lambda w: [9]), "cannot write to its parameter 9"),
        (lambda f: damage(f, outputs=lambda o: [o[0] | {"dtype": "float31"}]), "unknown dtype 'float31'"),
        (lambda f: (f / "signature.json").write_text("{"), "no signature"),
        (lambda f: (f / "signature.json").write_text("[]"), "no signature"),
        (lambda f: (f / "program.mlir").write_text("module {}"), "no function main"),
        (lambda f: (f / "weights.safetensors").write_bytes(b"12345678"), "cannot be read"),
        (lambda f: save_file({}, f / "weights.safetensors"), "has no weight 'table'"),
    ],
    ids=["version", "output", "parameter", "written", "dtype", "json", "list", "text", "weights", "no weights"],
)
def test_damaged_files_raise(change: Callable[[pathlib.Path], Any], message: str, tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path, Of(lambda self, i: self.table[i], table=torch.randn(5, 3)), (torch.arange(4),))
    change(folder)
    with pytest.raises(ValueError, match=message):
        export.load(folder)


def test_a_program_that_the_compiler_refuses(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path, nn.Linear(3, 2), (torch.randn(4, 3),))
    text = (folder / "program.mlir").read_text()
    (folder / "program.mlir").write_text(text.replace("stablehlo.dot_general", "stablehlo.dot_particular"))
    with pytest.raises(RuntimeError, match="does not take this program"):
        export.load(folder)(torch.randn(4, 3, device=DEVICE)).cpu()


@pytest.mark.parametrize("name", ["program.mlir", "signature.json", "weights.safetensors"])
def test_missing_files_raise(name: str, tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path, nn.Linear(3, 2), (torch.randn(4, 3),))
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        export.load(folder)


def test_devices(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path, nn.Linear(3, 2), (torch.randn(4, 3),))
    for device in (0, "tpu", "tpu:0", torch.device("tpu", 0)):
        assert export.load(folder, device=device).device == torch.device("tpu", 0)
    with pytest.raises(ValueError, match="not on cpu"):
        export.load(folder, device="cpu")
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        export.load(folder, device=1)
    run_python(
        """
        import sys, torch
        from torch_tpu import export
        loaded = export.load(sys.argv[1], device=1)
        x = torch.ones(4, 3, device="tpu:1")
        assert loaded(x).device == torch.device("tpu", 1), loaded(x).device
        with torch.tpu.device(1):
            assert torch.equal(export.load(sys.argv[1])(x).cpu(), loaded(x).cpu())
        """,
        arguments=(str(folder),),
        TORCH_TPU_NUM_DEVICES="2",
    )


def test_sizes_are_fixed_where_the_engine_takes_all_to_change(tmp_path: pathlib.Path) -> None:
    """Programs in files know no bounds; arguments that are stored in larger arrays fit them."""
    run_python(
        """
        import sys, torch
        from torch_tpu import export

        class Parts(torch.nn.Module):
            def forward(self, x, written):
                written += x[1:].sum()
                return torch.cat([x[:3], x[2:]]), torch.dropout(x[:2], 0.5, False)

        args = (torch.arange(5.0), torch.zeros(3))
        # What was planned for sizes that change must not be taken for a program in a file.
        torch.compile(Parts(), backend="tpu")(*[a.to("tpu") for a in args])
        export.save((Parts(), args), sys.argv[1])
        x = torch.cat([torch.arange(n, device="tpu") for n in (2, 3)]).float()  # stored in an array of 8
        written = torch.cat([x, x])[:3] * 0
        first, second = export.load(sys.argv[1])(x, written)
        assert first.tolist() == [0, 1, 0, 0, 1, 2] and second.tolist() == [0, 1], (first, second)
        assert written.tolist() == [4, 4, 4]
        """,
        arguments=(str(tmp_path),),
        TORCH_TPU_BOUNDED_SIZES="always",
    )


def test_in_a_new_process_without_the_model(tmp_path: pathlib.Path) -> None:
    """Neither the module's class nor what exports it is imported; a model of transformers, from its configuration."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    inputs = {"input_ids": torch.randint(97, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
    inputs["attention_mask"][0, :3] = 0
    with torch.no_grad():
        want = model(**inputs).logits

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, **kwargs: Tensor) -> Tensor:
            return self.model(**kwargs).logits

    export.save((Logits(), (), inputs), tmp_path)
    save_file(inputs, tmp_path / "inputs")
    run_python(
        """
        import sys, torch
        from safetensors.torch import load_file, save_file
        import torch_tpu.export
        run = torch_tpu.export.load(sys.argv[1])
        inputs = {name: t.to("tpu") for name, t in load_file(sys.argv[1] + "/inputs").items()}
        save_file({"logits": run(**inputs).cpu()}, sys.argv[1] + "/outputs")
        assert "transformers" not in sys.modules
        """,
        arguments=(str(tmp_path),),
    )
    torch.testing.assert_close(load_file(tmp_path / "outputs")["logits"], want)


# ---- C++ -------------------------------------------------------------------------------------------------


def run_cpp(folder: pathlib.Path, inputs: dict[str, Tensor], *more: str, fails: bool = False) -> Any:
    """Runs the C++ example: its outputs, or what it says where it is to fail."""
    save_file({name: t.contiguous() for name, t in inputs.items()}, folder / "inputs")
    (folder / "outputs").unlink(missing_ok=True)
    done = subprocess.run(
        [RUNNER, folder, folder / "inputs", folder / "outputs", *more],
        env={"TORCH_TPU_PJRT_PLUGIN": _C.choose_plugin()[1]},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if fails:
        assert done.returncode == 1 and not (folder / "outputs").exists()
        return done.stderr
    assert done.returncode == 0, done.stderr
    return load_file(folder / "outputs")


@needs_runner
@pytest.mark.parametrize(
    "name", ["convolution", "batch norm in training", "transformer", "tied", "writes", "kinds", "half", "no elements"]
)
def test_cpp_gives_what_the_cpu_gives(name: str, tmp_path: pathlib.Path) -> None:
    module, args = MODELS[name]()
    folder = saved(tmp_path, module, args)
    signature = json.loads((folder / "signature.json").read_text())
    names = [entry["name"] for entry in signature["inputs"]]
    tensors = {name: x for name, x in zip(names, pytree.tree_leaves(args), strict=True) if isinstance(x, Tensor)}
    got = run_cpp(folder, tensors)
    on_cpu = copy.deepcopy(args)
    with torch.no_grad():
        results = plain(module(*on_cpu))
    want = {r["name"]: x for r, x in zip(signature["results"], pytree.tree_leaves(results), strict=True)}
    buffers = dict(module.named_buffers())
    for number in signature["written"]:
        parameter = signature["parameters"][number]
        where = parameter.get("weight") or names[parameter["input"]]
        after = dict(zip(names, on_cpu, strict=True))
        want["written." + where] = buffers[where] if "weight" in parameter else after[where]
    want = {name: x for name, x in want.items() if isinstance(x, Tensor)}
    assert got.keys() == want.keys()
    for key in want:
        torch.testing.assert_close(got[key], want[key])


@needs_runner
def test_cpp_draws_the_same_random_numbers(tmp_path: pathlib.Path) -> None:
    module, x = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(4, 8)
    folder = saved(tmp_path, module, (x,))
    torch.manual_seed(5)
    want = export.load(folder)(on_device(x)).cpu()
    assert torch.equal(run_cpp(folder, {"input": x}, "--seed", "5")["output"], want)
    assert not torch.equal(run_cpp(folder, {"input": x})["output"], want)


@needs_runner
def test_cpp_loads_the_executable(tmp_path: pathlib.Path) -> None:
    x = torch.randn(4, 8)
    other = saved(tmp_path, nn.Tanh(), (x,), compile_for="device")
    foreign = _C.compile_executable((other / "program.mlir").read_text())
    folder = saved(tmp_path, nn.Sigmoid(), (x,), platform="cpu")
    text = (folder / "program.mlir").read_text()
    torch.testing.assert_close(run_cpp(folder, {"input": x})["output"], x.sigmoid())
    # Another program's under the key of this one shows which of them runs.
    _C.write_executable(str(folder / "program.exe"), foreign[0], text, foreign[1])
    torch.testing.assert_close(run_cpp(folder, {"input": x})["output"], x.tanh())
    _C.write_executable(str(folder / "program.exe"), foreign[0] + "x", text, foreign[1])
    torch.testing.assert_close(run_cpp(folder, {"input": x})["output"], x.sigmoid())


@needs_runner
def test_cpp_says_what_is_wrong(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path, Of(lambda self, i: self.table[i], table=torch.randn(5, 3)), (torch.arange(4),))
    assert "IndexError: index.Tensor: index is out of bounds" in run_cpp(
        folder, {"args_0": torch.arange(4) + 2}, fails=True
    )
    assert "expected args_0 to be int64[4], got int64[3]" in run_cpp(folder, {"args_0": torch.arange(3)}, fails=True)
    assert "has no tensor args_0" in run_cpp(folder, {"index": torch.arange(4)}, fails=True)
    damaged = tmp_path / "damaged"
    for name in ("program.mlir", "signature.json", "weights.safetensors"):
        shutil.copytree(folder, damaged)
        (damaged / name).write_text("{")
        assert run_cpp(damaged, {"args_0": torch.arange(4)}, fails=True).startswith("error: ")
        shutil.rmtree(damaged)
    shutil.copytree(folder, damaged)
    damage(damaged, outputs=lambda o: [o[0] | {"sizes": [400, 3]}])
    assert "signature.json says" in run_cpp(damaged, {"args_0": torch.arange(4)}, fails=True)
    for header in (
        {"args_0": {"dtype": "I64", "shape": [1 << 62, 4], "data_offsets": [0, 0]}},
        {"args_0": {"dtype": "I64", "shape": [-4], "data_offsets": [0, 32]}},
        {"args_0": {"dtype": "I64", "shape": [4], "data_offsets": [0, 64]}},
        {"args_0": {"dtype": "I65", "shape": [4], "data_offsets": [0, 32]}},
        {"args_0": {"shape": [4]}},
        ["args_0"],
    ):
        text = json.dumps(header).encode()
        (folder / "broken").write_bytes(len(text).to_bytes(8, "little") + text + bytes(32))
        done = subprocess.run([RUNNER, folder, folder / "broken", folder / "outputs"], capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.startswith(f"error: {folder / 'broken'}: ")
    for arguments in ([folder], [folder, "i", "o", "--seed"], [folder, "i", "o", "--seed", "1x"]):
        assert subprocess.run([RUNNER, *arguments], capture_output=True).returncode == 2
