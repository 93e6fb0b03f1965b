"""Programs without operations that do nothing: counted in those of whole training steps."""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, assert_matches
from torch import Tensor, nn
from torch_tpu import _C
from torch_tpu._internal import topology
from torch_tpu.aot.compiler import compile_text

# Operations that move or convert elements. XLA would find most of those that do nothing, in every compile anew.
MOVES = ("broadcast_in_dim", "convert", "reshape", "slice", "transpose")


def program_of(function: Callable[[], Any]) -> str:
    """StableHLO text of all that `function` launches."""
    capture = _C.StepCapture(_C.current_device(), 1 << 40)
    try:
        kept = function()  # what nobody holds is not computed
    finally:
        capture.launch([])
    text: str = capture.text()
    del kept
    return text


def operations(text: str) -> Iterator[tuple[str, str, str]]:
    """Result, name and everything from the name on, of each operation of main's own block."""
    for match in re.finditer(r'^    (%[\d, %]+) = "?\w+\.(\w+)"?(.*)$', text, re.MULTILINE):
        yield match.group(1), match.group(2), match.group(2) + match.group(3)


def counts(text: str) -> dict[str, int]:
    found = collections.Counter(name for _, name, _ in operations(text))
    return {name: found[name] for name in MOVES if found[name]}


class Block(nn.Module):
    """A pre-norm transformer block of width 16 with 2 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, steps, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, steps, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def blocks(number: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(number))).to(DEVICE, dtype)


def training(model: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(2, 5, 16, device=DEVICE, dtype=next(model.parameters()).dtype)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()  # makes the optimizer's state
    return step


def test_what_a_layer_adds_in_inference() -> None:
    x = torch.randn(2, 5, 16, device=DEVICE)
    with torch.no_grad():
        one, two = (counts(program_of(functools.partial(blocks(number), x))) for number in (1, 2))
    added = {name: two[name] - one[name] for name in two if two[name] != one[name]}
    assert added == {"broadcast_in_dim": 14, "reshape": 22, "transpose": 8}


def test_what_a_layer_adds_in_training() -> None:
    one, two = (counts(program_of(training(blocks(number)))) for number in (1, 2))
    added = {name: two[name] - one[name] for name in two if two[name] != one[name]}
    assert added == {"broadcast_in_dim": 24, "reshape": 56, "transpose": 14}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_is_said_twice(dtype: torch.dtype) -> None:
    text = program_of(training(blocks(2, dtype)))
    said = collections.Counter(line for _, name, line in operations(text) if name != "optimization_barrier")
    twice = {line: number for line, number in said.items() if number > 1 and not line.endswith("({")}
    assert len(said) > 300
    assert not twice


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_everything_is_used(dtype: torch.dtype) -> None:
    text = program_of(training(blocks(2, dtype)))
    read = collections.Counter(re.findall(r"%\d+", text))
    made = [results.split(", ") for results, _, _ in operations(text)]
    assert len(made) > 300
    assert not [results for results in made if all(read[value] == 1 for value in results)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_move_undoes_or_extends_another(dtype: torch.dtype) -> None:
    text = program_of(training(blocks(2, dtype)))
    maker = {result: (name, line) for result, name, line in operations(text)}
    chains: collections.Counter[str] = collections.Counter()
    for name, line in maker.values():
        before, said = maker.get(re.findall(r"%\d+", line)[0] if "%" in line else "", ("", ""))
        if name == before and name in MOVES:
            widened = name == "convert" and "xf32>) -> " in said  # then the first one rounded
            chains[name] += not widened
    assert not +chains


def test_layers_share_functions() -> None:
    four, eight = (program_of(training(blocks(number))) for number in (4, 8))
    functions = [text.count("func.func private") for text in (four, eight)]
    assert functions[0] == functions[1] >= 2  # forward and backward
    added = len(list(operations(eight))) - len(list(operations(four)))
    assert added < 4 * 120  # of which most are the optimizer's; a layer alone has more than 400


def test_results_of_shared_functions() -> None:
    models = [nn.Sequential(*(Block() for _ in range(5))) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    device, cpu = models[0].to(DEVICE), models[1]
    generator = torch.Generator().manual_seed(0)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(3):
        x = torch.randn(2, 5, 16, generator=generator)

        def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        on_device = x.to(DEVICE)
        capture = _C.StepCapture(_C.current_device(), 1 << 41)
        loss = step(device, optimizers[0], on_device)
        capture.launch([])
        assert "func.call" in capture.text()
        assert_matches(loss, step(cpu, optimizers[1], x))
    for got, want in zip(device.parameters(), cpu.parameters(), strict=True):
        assert_matches(got, want)


@pytest.mark.skipif(not topology.libtpu_installed(), reason="libtpu is not installed")
def test_shared_functions_compile_for_a_tpu() -> None:
    text = program_of(training(blocks(3)))
    assert text.count("func.func private") >= 2
    compiled = compile_text(text, "v5e:2x2", provider="libtpu", timeout=600, keep_executable=False)
    assert compiled.error is None


@pytest.mark.parametrize("wrong", [None, 0, 2, 3])
def test_checks_within_shared_functions(wrong: int | None) -> None:
    table = torch.arange(12.0, device=DEVICE).reshape(6, 2)
    rows = [torch.tensor([1, 9 if layer == wrong else 4], device=DEVICE) for layer in range(4)]

    def look(x: Tensor, rows: Tensor) -> Tensor:
        found = F.embedding(rows, table).sin().cos().tanh().exp().sigmoid()
        return (x + found).atan().neg().square().sqrt()

    capture = _C.StepCapture(_C.current_device(), 1 << 42)
    x = torch.zeros(2, 2, device=DEVICE)
    for each in rows:
        x = look(x, each)
    capture.launch([])
    assert capture.text().count("func.func private") == 1
    if wrong is None:
        want = torch.zeros(2, 2)
        table = table.cpu()
        for each in rows:
            want = look(want, each.cpu())
        assert_matches(x, want)
    else:
        with pytest.raises(IndexError, match=r"embedding.*test_lean_programs\.py"):
            torch.accelerator.synchronize()


def test_numbers_of_an_optimizer_are_operands_once() -> None:
    # Of the same line and of the same value: whatever the number of parameters.
    slices = {number: counts(program_of(training(blocks(number))))["slice"] for number in (1, 2)}
    assert slices[1] == slices[2]
