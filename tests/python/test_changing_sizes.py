"""Sizes that change from call to call: results are exact, and the number of programs grows like the logarithm of the
largest size (docs/dynamic_shapes.md)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_tpu
from helpers import DEVICE, assert_matches, eager_mode
from torch import Tensor
from torch_tpu import _C


# Programs that were made, those that came from the disk cache included.
def compiled_by(work: Callable[[], object]) -> int:
    torch_tpu.clear_cache()
    before = torch_tpu.compile_stats()
    work()
    torch.accelerator.synchronize()
    after = torch_tpu.compile_stats()
    return int(sum(after[name] - before[name] for name in ("compiles", "disk_hits")))


@pytest.fixture(autouse=True)
def nothing_seen_yet() -> Iterator[None]:
    with torch_tpu.bounded_sizes("auto"):
        yield


@pytest.fixture(params=("strict", "fused"))
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with eager_mode(request.param):
        yield request.param


# ---- numbers of programs


@pytest.mark.quick
def test_one_operator_over_all_lengths(mode: str) -> None:
    lengths = [*range(1, 140), 255, 256, 257, 500, 1000, 1025, 2048, 2049, 3000, 4095, 4096]

    def work() -> None:
        for n in lengths:
            x = torch.arange(3.0 * n).view(n, 3)
            total = x.to(DEVICE).sum(0)
            assert_matches(total, x.sum(0), rtol=1e-5, atol=1e-5)  # thousands of addends, in another order

    assert compiled_by(work) <= 14


@pytest.mark.quick
def test_a_loss_and_its_gradients_over_many_lengths(mode: str) -> None:
    torch.manual_seed(0)
    cpu = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 5))
    device = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 5)
    )
    device.load_state_dict(cpu.state_dict())
    device.to(DEVICE)

    def step(model: torch.nn.Module, x: Tensor, target: Tensor) -> Tensor:
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), target) + model(x).softmax(-1).mean()
        loss.backward()
        return loss.detach()

    def lengths(all_of: list[int]) -> None:
        for n in all_of:
            x, target = torch.randn(n, 8), torch.randint(0, 5, (n,))
            assert_matches(step(device, x.to(DEVICE), target.to(DEVICE)), step(cpu, x, target))
            for got, want in zip(device.parameters(), cpu.parameters(), strict=True):
                assert_matches(got.grad, want.grad, rtol=1e-4, atol=1e-6)  # sums over n, in another order

    lengths([3, 4, 5, 6, 7, 8, 9])
    assert compiled_by(lambda: lengths([*range(10, 17)])) <= compiled_by(lambda: lengths([16]))
    for n in (16, 11, 13):
        with torch_tpu.compile_guard("error"):
            lengths([n])


@pytest.mark.quick
def test_training_on_batches_of_many_lengths() -> None:
    torch.manual_seed(2)
    cpu = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    device = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    device.to(DEVICE)
    device.load_state_dict(cpu.state_dict())

    def lengths(all_of: list[int]) -> None:
        for n in all_of:
            x = torch.randn(4, n, 16)  # Linear merges the first two dims, attention splits them
            got, want = device(x.to(DEVICE)), cpu(x)
            assert_matches(got, want, rtol=1e-5, atol=1e-5)
            for model, result in ((device, got), (cpu, want)):
                model.zero_grad()
                result.square().mean().backward()
            for a, b in zip(device.parameters(), cpu.parameters(), strict=True):
                assert_matches(a.grad, b.grad, rtol=1e-3, atol=1e-5)  # sums over 4 n rows, in another order

    lengths([17, 19, 21, 23, 25, 27, 29])
    before = torch_tpu.compile_stats()
    lengths([26, 22, 30])
    after = torch_tpu.compile_stats()
    # A size that some other dim has by chance may need a program of its own.
    assert sum(after[name] - before[name] for name in ("compiles", "disk_hits")) <= 4


@pytest.mark.quick
def test_decoding_with_a_growing_cache(mode: str) -> None:
    torch.manual_seed(1)
    shapes = ((32, 16), (16, 16), (16, 16), (16, 16), (16, 32), (256, 16))
    embed, q, k, v, out, places = (torch.randn(s) / 2 for s in shapes)

    def decode(device: str, tokens: int, watch: Callable[[int], None]) -> list[int]:
        weights = [w.to(device) for w in (embed, q, k, v, out, places)]
        keys = values = torch.zeros(1, 0, 16, device=device)
        token, said = torch.tensor([[3]], device=device), []
        for i in range(tokens):
            x = torch.nn.functional.embedding(token, weights[0]) + weights[5][i]
            keys = torch.cat([keys, x @ weights[2]], 1)
            values = torch.cat([values, x @ weights[3]], 1)
            scores = (x @ weights[1]) @ keys.transpose(1, 2) / 4
            token = ((torch.softmax(scores, -1) @ values + x) @ weights[4]).argmax(-1)
            said.append(int(token.item()))
            watch(i)
        return said

    counts: list[float] = []

    def watch(_: int) -> None:
        stats = torch_tpu.compile_stats()
        counts.append(stats["compiles"] + stats["disk_hits"])

    torch_tpu.clear_cache()
    said = decode(DEVICE, 256, watch)
    assert said == decode("cpu", 256, lambda i: None)
    assert len(set(said)) > 3
    assert counts[-1] - counts[15] <= 20


@pytest.mark.quick
def test_a_compiled_function_over_many_lengths() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        # Numbers made of sizes, in programs that serve many of them.
        return (x.relu() / x.shape[0]).sum(0) + 1 / len(x), torch.softmax(x @ x.t(), -1).mean(-1)

    compiled = torch.compile(function, dynamic=True, backend="tpu")

    def lengths(all_of: list[int]) -> None:
        for n in all_of:
            x = torch.randn(n, 4)
            assert_matches(compiled(x.to(DEVICE)), function(x))

    lengths([2, 3, 4, 5, 6, 7])
    assert compiled_by(lambda: lengths([*range(8, 17)])) <= 3
    assert compiled_by(lambda: lengths([17, 20, 25, 31, 32])) <= 3


class _Decoder(torch.nn.Module):
    """Packed projections, merged and split dims, shifted labels: what the usual language model does with lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = torch.nn.Embedding(61, 24), torch.nn.Embedding(2048, 24)
        self.packed, self.out = torch.nn.Linear(24, 72), torch.nn.Linear(24, 61)
        self.norm = torch.nn.LayerNorm(24)

    def forward(self, ids: Tensor) -> Tensor:
        batch, length = ids.shape
        x = self.embed(ids) + self.places(torch.arange(length, device=ids.device))
        heads = (part.view(batch, length, 4, 6).transpose(1, 2) for part in self.packed(self.norm(x)).split(24, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(batch, length, 24)
        logits, labels = self.out(x)[:, :-1], torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:-1]
        return torch.nn.functional.cross_entropy(logits.reshape(-1, 61), labels.reshape(-1))


class _Classifier(torch.nn.Module):
    """Images in batches of many sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(8, 4, 3, stride=2),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        return torch.nn.functional.mse_loss(self.layers(images), images[:, 0, :4, 0])


@pytest.mark.parametrize(
    ("model", "make"),
    [
        pytest.param(_Decoder, lambda n: torch.randint(1, 61, (3, n)), id="decoder", marks=pytest.mark.quick),
        pytest.param(_Classifier, lambda n: torch.randn(n, 3, 12, 12), id="images", marks=pytest.mark.quick),
    ],
)
def test_a_compiled_model_over_many_sizes(
    model: Callable[[], torch.nn.Module], make: Callable[[int], Tensor], graphs: list[Any]
) -> None:
    """Forward and backward are a program each for all sizes up to a bound, and one for the first size."""
    torch.manual_seed(3)
    cpu = model()
    device = copy.deepcopy(cpu).to(DEVICE)
    compiled = torch.compile(device, dynamic=True, backend="tpu")
    for n in (20, 27, 31, 32, 33, 40, 57, 64, 65, 90, 128, 129):  # none, and none next to one, that other dims have
        inputs = make(n)
        device.zero_grad()
        cpu.zero_grad()
        got, want = compiled(inputs.to(DEVICE)), cpu(inputs)
        assert_matches(got, want)
        got.backward()
        want.backward()
        for a, b in zip(device.parameters(), cpu.parameters(), strict=True):
            assert_matches(a.grad, b.grad, rtol=1e-3, atol=1e-5)  # sums over n, in another order
    texts = [{program._call.text("cpu") for program in graph._programs.values()} for graph in graphs]
    assert [len(each) <= 5 for each in texts] == [True, True]


@pytest.mark.quick
def test_a_compiled_function_draws_what_eager_mode_draws() -> None:
    compiled = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5), dynamic=True, backend="tpu")
    for n in range(2, 24):
        x = torch.ones(n, 3, device=DEVICE)
        torch.manual_seed(n)
        want = torch.nn.functional.dropout(x, 0.5)
        torch.manual_seed(n)
        assert torch.equal(compiled(x), want)


SUMS_BY_INDEX: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "put": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "put one number": lambda x, i, v: x.index_put((i,), v[0, 0], accumulate=True),
    "put one row": lambda x, i, v: x.index_put((i,), v[:1], accumulate=True),
    "put by two indices": lambda x, i, v: x.index_put((i, i % 3), v[:, 0], accumulate=True),
    "put by a later index": lambda x, i, v: torch.ops.aten.index_put(x, [None, i % 3], v.t()[:1].expand(5, -1), True),
    "add": lambda x, i, v: x.index_add(0, i, v),
    "scatter": lambda x, i, v: x.scatter_add(0, i[:, None].expand(-1, 3), v),
    "scatter the first": lambda x, i, v: x.scatter_add(0, i[:-2, None].expand(-1, 3), v),
    "scatter along a row": lambda x, i, v: x.scatter_add(1, (i % 3).expand(5, -1), v.t()[:1].expand(5, -1)),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", SUMS_BY_INDEX)
def test_sums_by_an_index_that_changes(name: str) -> None:
    """Nothing is added for what is behind the end of the index, whatever the addends are."""
    with torch_tpu.bounded_sizes("always"):
        for n in (4, 5, 17):
            x, index, addends = torch.randn(5, 3), torch.randint(0, 5, (n,)), torch.randn(n, 3)
            want = SUMS_BY_INDEX[name](x, index, addends)
            assert_matches(SUMS_BY_INDEX[name](*(t.to(DEVICE) for t in (x, index, addends))), want)


@pytest.mark.quick
def test_joining_parts_without_elements() -> None:
    with torch_tpu.bounded_sizes("always"):
        for n in (2, 5, 17):
            parts = [torch.empty(0), torch.randn(2, n), torch.empty(0), torch.randn(2, n + 1)]
            assert_matches(torch.cat([part.to(DEVICE) for part in parts], 1), torch.cat(parts, 1))


# ---- what changes and what does not


@pytest.mark.quick
def test_weights_of_many_sizes_do_not_change() -> None:
    layers = [torch.nn.Linear(4, n) for n in range(3, 20)]
    for layer in layers:
        layer.to(DEVICE)
        assert _C.stored_sizes(layer.weight) == list(layer.weight.shape)
    made = []
    for n in range(3, 20):
        made.append(torch.ones(n, device=DEVICE))
        assert _C.stored_sizes(made[-1]) == [n]


@pytest.mark.quick
def test_a_line_that_makes_new_sizes_is_found_out() -> None:
    stored = []
    for n in (3, 5, 7, 9, 11, 17, 40):
        x = torch.ones(n, 2).to(DEVICE)
        stored.append(_C.stored_sizes(x))
    assert stored == [[3, 2], [5, 2], [7, 2], [9, 2], [16, 2], [32, 2], [64, 2]]
    with torch_tpu.bounded_sizes("off"):
        for n in (3, 5, 7, 9, 11, 17, 40):
            assert _C.stored_sizes(torch.ones(n, 2).to(DEVICE)) == [n, 2]


# ---- tensors that are stored in a larger array are like all others


@pytest.fixture
def all_sizes_change() -> Iterator[None]:
    with torch_tpu.bounded_sizes("always"):
        yield


VIEWS = {
    "rows": lambda x: x[1:4],
    "columns": lambda x: x[:, 1:],
    "last": lambda x: x[-1],
    "steps": lambda x: x[::2, 1::3],
    "transposed": lambda x: x.t(),
    "split": lambda x: x.view(5, 2, 3),
    "merged": lambda x: x.reshape(-1)[3:20],
    "expanded": lambda x: x.unsqueeze(1).expand(5, 4, 6),
    "strided": lambda x: x.as_strided((3, 4), (7, 2), 1),
    "bits": lambda x: x.view(torch.int32),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", VIEWS)
def test_reading_through_views(all_sizes_change: None, mode: str, name: str) -> None:
    cpu = torch.randn(5, 6)
    device = cpu.to(DEVICE)
    assert _C.stored_sizes(device) == [16, 16]
    got, want = VIEWS[name](device), VIEWS[name](cpu)
    assert_matches(got, want, strides=True)
    assert_matches(got + 1, want + 1)
    assert_matches(got.sum(), want.sum())
    assert_matches(got.contiguous(), want.contiguous(), strides=True)


@pytest.mark.quick
@pytest.mark.parametrize("name", [name for name in VIEWS if name not in ("expanded", "bits")])
def test_writing_through_views(all_sizes_change: None, mode: str, name: str) -> None:
    cpu = torch.randn(5, 6)
    device = cpu.to(DEVICE)
    other = torch.randn(VIEWS[name](cpu).shape)
    for write in (lambda t, o: t.copy_(o), lambda t, o: t.mul_(3), lambda t, o: t.add_(o), lambda t, o: t.fill_(7)):
        write(VIEWS[name](cpu), other)
        write(VIEWS[name](device), other.to(DEVICE))
        assert_matches(device, cpu)


@pytest.mark.quick
def test_leaving_the_device_and_coming_back(all_sizes_change: None, tmp_path: object) -> None:
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16):
        cpu = torch.ones(3, 2, 5).cumsum(0).to(dtype)
        device = cpu.to(DEVICE)
        assert torch.equal(device.cpu(), cpu)
        assert torch.equal(device.permute(2, 0, 1).cpu(), cpu.permute(2, 0, 1))
        assert device.tolist() == cpu.tolist()
        assert str(device.cpu()) == str(cpu)
        torch.save(device, f"{tmp_path}/x.pt")
        assert torch.equal(torch.load(f"{tmp_path}/x.pt").cpu(), cpu)


@pytest.mark.quick
def test_sizes_and_strides_are_those_of_the_tensors(all_sizes_change: None) -> None:
    x = torch.randn(2, 3, 4, 5).to(DEVICE)
    for y in (x, x * 2, x.transpose(1, 2) + 1, x.to(memory_format=torch.channels_last), x.clone()):
        assert y.untyped_storage().nbytes() == 120 * 4
        assert y.shape.numel() == 120
    assert (x * 2).stride() == (60, 20, 5, 1)
    x.resize_(3, 5)
    assert x.untyped_storage().nbytes() == 120 * 4
    assert_matches(x + 0, x.cpu())


# Each reduces the last dim, behind whose end is a number that must not count. Every number counts among narrow ones.
REDUCTIONS: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: x.sum(1),
    "prod": lambda x: x.prod(1),
    "all": lambda x: x.all(1),
    "any": lambda x: x.any(1),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(1),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
    "count_nonzero": lambda x: x.count_nonzero(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "topk": lambda x: x.topk(3)[0],
}


@pytest.mark.quick
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_narrow_types(all_sizes_change: None, name: str) -> None:
    function = REDUCTIONS[name]
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.bfloat16):
        lowest, highest = (0, 1) if dtype == torch.bool else (0, 255) if dtype == torch.uint8 else (-128, 127)
        for row in ([lowest] * 5, [highest] * 5, [lowest, 1, highest, 0, 1], [0, 1, 1, 0, 1]):
            x = torch.tensor([row, row[::-1]]).to(dtype)
            try:
                want = function(x)
            except RuntimeError:
                continue  # the CPU has no kernel for this type
            assert_matches(function(x.to(DEVICE)), want)


@pytest.mark.quick
def test_what_stands_behind_raises_no_errors(all_sizes_change: None) -> None:
    index = torch.tensor([0, 2, 1]).to(DEVICE)
    table = torch.randn(3, 4)
    assert_matches(torch.nn.functional.embedding(index, table.to(DEVICE)), table[[0, 2, 1]])
    assert_matches(torch.tensor([7, 9, 4]).to(DEVICE) // index.add(1), torch.tensor([7, 3, 2]))
    with pytest.raises(IndexError):
        torch.nn.functional.embedding(index + 1, table.to(DEVICE)).cpu()


# ---- compile_guard


@pytest.mark.quick
def test_compile_guard(mode: str) -> None:
    n = 17 if mode == "strict" else 19  # programs of the other mode are known
    x = torch.ones(3, n, device=DEVICE)
    for _ in range(2):  # with what made x, and alone
        (x * 5).cpu()
    with torch_tpu.compile_guard("error"):
        assert_matches(x * 5, torch.full((3, n), 5.0))
        with pytest.raises(RuntimeError, match=r"has to be compiled.*compile_guard"):
            (x.t() * 5 - 3).cpu()
    assert_matches(x.t() * 5 - 3, torch.full((n, 3), 2.0))
    with pytest.raises(ValueError, match="allow"), torch_tpu.compile_guard("never"):
        pass
    with pytest.raises(ValueError, match="always"), torch_tpu.bounded_sizes("sometimes"):
        pass
