"""Tables in memory compare whole keys: with every hash equal, every result stays what it was."""

from __future__ import annotations

import pytest
from helpers import run_python

# Many signatures of one operator, decompositions, window offsets, numbers that are part of a key and numbers that
# are not, in-place work through views, and a training step whose programs differ in wiring alone.
WORK = """
    import hashlib, sys, torch, torch_tpu
    from torch import nn
    torch.tpu.set_eager_mode(sys.argv[1])
    torch.manual_seed(0)
    seen = []
    base = torch.arange(24.0, device="tpu").view(4, 6)
    for dims in ((0,), (1,), (0, 1)):
        seen.append(base.sum(dims))
    for number in (1, 2, 2.5, True):
        seen += [base + number, base.to(torch.int32) // (number + 1), base.clamp(min=number)]
    for i in range(4):
        seen += [base[i] * 2, base[:, i].cumsum(0), base.roll(i, 1), base.t()[i].square()]
    seen.append(nn.functional.gelu(base) + nn.functional.smooth_l1_loss(base, base.flip(0)))
    base[1:3, ::2].mul_(3)
    base[0].copy_(base[1])
    a, b = base[0], base[3]
    seen += [a - b, b - a, (a - b) * a, (a - b) * b, base.clone()]
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 6), nn.Dropout(0.5)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(base).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    for tensor in [*seen, *model.parameters()]:
        tensor = tensor.detach().cpu().contiguous()
        print(tuple(tensor.shape), tensor.dtype, hashlib.sha1(tensor.numpy().tobytes()).hexdigest())
    """


@pytest.mark.parametrize("mode", ["strict", "fused"])
@pytest.mark.parametrize("bits", ["0", "3"])
def test_results_do_not_depend_on_hashes(mode: str, bits: str) -> None:
    usual = run_python(WORK, arguments=(mode,)).stdout
    assert usual.count("\n") > 40
    assert run_python(WORK, arguments=(mode,), TORCH_TPU_HASH_BITS=bits).stdout == usual


@pytest.mark.parametrize("bits", ["-1", "many"])
def test_bad_number_of_bits(bits: str) -> None:
    work = 'import torch; torch.ones(2, device="tpu").add(1)'
    done = run_python(work, expect=1, TORCH_TPU_HASH_BITS=bits)
    assert "ValueError" in done.stderr and "TORCH_TPU_HASH_BITS" in done.stderr
