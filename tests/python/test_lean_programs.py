"""Programs without operations that do nothing: counted in those of whole training steps."""

from __future__ import annotations

import collections
import functools
import json
import re
import subprocess
import sys
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
    """Result, name and everything from the name on, of each operation outside regions."""
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


def programs() -> dict[str, str]:
    """The texts that are counted."""
    x = torch.randn(2, 5, 16, device=DEVICE)
    with torch.no_grad():
        texts = {f"inference {n}": program_of(functools.partial(blocks(n), x)) for n in (1, 2)}
    texts |= {f"training {n}": program_of(training(blocks(n))) for n in (1, 2, 4, 8)}
    return texts | {"training in bfloat16": program_of(training(blocks(2, torch.bfloat16)))}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    # In a process of its own: what sizes and numbers a line has seen before decides which of them are operands.
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


def added(one: str, two: str) -> dict[str, int]:
    before, after = counts(one), counts(two)
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}


def test_what_a_layer_adds(texts: dict[str, str]) -> None:
    inference = added(texts["inference 1"], texts["inference 2"])
    assert inference == {"broadcast_in_dim": 14, "reshape": 22, "transpose": 8}
    steps = added(texts["training 1"], texts["training 2"])
    assert steps == {"broadcast_in_dim": 24, "reshape": 56, "transpose": 14}


@pytest.mark.parametrize("name", ["training 2", "training in bfloat16"])
def test_nothing_is_said_twice(texts: dict[str, str], name: str) -> None:
    said = collections.Counter(line for _, op, line in operations(texts[name]) if op != "optimization_barrier")
    twice = {line: number for line, number in said.items() if number > 1 and not line.endswith("({")}
    assert len(said) > 300
    assert not twice


@pytest.mark.parametrize("name", ["training 2", "training 4", "training in bfloat16"])
def test_everything_is_used(texts: dict[str, str], name: str) -> None:
    read = collections.Counter(re.findall(r"%\d+", texts[name]))
    made = [results.split(", ") for results, op, _ in operations(texts[name]) if op != "call"]
    assert len(made) > 300
    assert not [results for results in made if all(read[value] == 1 for value in results)]


@pytest.mark.parametrize("name", ["training 2", "training in bfloat16"])
def test_no_move_undoes_or_extends_another(texts: dict[str, str], name: str) -> None:
    maker = {result: (op, line) for result, op, line in operations(texts[name])}
    chains: collections.Counter[str] = collections.Counter()
    for op, line in maker.values():
        before, said = maker.get(re.findall(r"%\d+", line)[0] if "%" in line else "", ("", ""))
        if op == before and op in MOVES:
            widened = op == "convert" and "xf32>) -> " in said  # then the first one rounded
            chains[op] += not widened
    assert not +chains


def test_numbers_of_an_optimizer_are_operands_once(texts: dict[str, str]) -> None:
    # Of the same line and of the same value: whatever the number of parameters.
    assert counts(texts["training 1"])["slice"] == counts(texts["training 2"])["slice"]


def test_layers_share_functions(texts: dict[str, str]) -> None:
    four, eight = texts["training 4"], texts["training 8"]
    functions = [text.count("func.func private") for text in (four, eight)]
    assert functions[0] == functions[1] >= 2  # forward and backward
    # Of a layer's more than 400 operations most that are left are the optimizer's.
    assert len(list(operations(eight))) - len(list(operations(four))) < 4 * 120


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
def test_shared_functions_compile_for_a_tpu(texts: dict[str, str]) -> None:
    assert "func.call" in texts["training 4"]
    compiled = compile_text(texts["training 4"], "v5e:2x2", provider="libtpu", timeout=600, keep_executable=False)
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
    assert capture.text().count("func.func private") >= 1
    if wrong is None:
        want = torch.zeros(2, 2)
        table = table.cpu()
        for each in rows:
            want = look(want, each.cpu())
        assert_matches(x, want)
    else:
        with pytest.raises(IndexError, match=r"embedding.*test_lean_programs\.py"):
            torch.accelerator.synchronize()


if __name__ == "__main__":
    print(json.dumps(programs()))
