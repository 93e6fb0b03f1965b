"""Random sampling: the contract between seed and numbers, and the distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE, eager_mode

# ---- a reference of the generator, in Python integers

MASK = 0xFFFFFFFF


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Philox4x32-10: four 32-bit words of one counter block."""
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & MASK, (p0 >> 32) ^ c[3] ^ k1, p0 & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c


def words(seed: int, block: int, count: int) -> list[int]:
    """The first `count` words of the blocks from `block` on."""
    drawn: list[int] = []
    for b in range(block, block + (count + 3) // 4):
        drawn += philox((b & MASK, b >> 32, 0, 0), (seed & MASK, seed >> 32))
    return drawn[:count]


def test_reference_reproduces_published_vectors() -> None:
    assert philox((0, 0, 0, 0), (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox((MASK,) * 4, (MASK,) * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


SEEDS = (0, 1234, (1 << 40) + 7)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("dtype", "bits"), ((torch.float32, 24), (torch.float16, 11), (torch.bfloat16, 8)), ids=("f32", "f16", "bf16")
)
def test_uniform_bits(seed: int, dtype: torch.dtype, bits: int) -> None:
    torch.manual_seed(seed)
    first, second = torch.rand(3, 7, dtype=dtype, device=DEVICE), torch.rand(5, dtype=dtype, device=DEVICE)
    # uniform_ moves the state on by two blocks for four numbers.
    for got, block in ((first, 0), (second, 2 * math.ceil(21 / 4))):
        want = [(w >> (32 - bits)) / (1 << bits) for w in words(seed, block, got.numel())]
        assert torch.equal(got.cpu().flatten(), torch.tensor(want, dtype=torch.float64).to(dtype))


def test_uniform_bits_of_double() -> None:
    torch.manual_seed(99)
    got = torch.rand(9, dtype=torch.float64, device=DEVICE).cpu()
    w = words(99, 0, 18)
    want = [((w[2 * i] | w[2 * i + 1] << 32) >> 11) / 2**53 for i in range(9)]
    assert torch.equal(got, torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("count", (10, 300_000))  # looped rounds, unrolled rounds
def test_normal_from_bits(count: int) -> None:
    torch.manual_seed(5)
    got = torch.randn(count, device=DEVICE).cpu()[:10]
    w, want = words(5, 0, 12), []
    for i in range(0, 12, 2):
        radius = math.sqrt(-2 * math.log((w[i] + 0.5) / 2**32))
        quadrant, within = w[i + 1] >> 30, ((w[i + 1] << 2 & MASK) >> 8) / 2**24
        angle = (quadrant + within - 0.5) * math.pi / 2
        want += [radius * math.cos(angle), radius * math.sin(angle)]
    torch.testing.assert_close(got, torch.tensor(want[:10]))


def test_layout_does_not_matter() -> None:
    torch.manual_seed(3)
    plain = torch.empty(4, 6, device=DEVICE).uniform_()
    torch.manual_seed(3)
    transposed = torch.empty(6, 4, device=DEVICE).t().uniform_()
    assert torch.equal(plain.cpu(), transposed.cpu())


def test_modes_draw_the_same_numbers() -> None:
    drawn = []
    for mode in ("debug", "strict", "fused"):
        with eager_mode(mode):
            torch.manual_seed(8)
            numbers = [torch.rand(7, device=DEVICE), torch.randint(0, 100, (5,), device=DEVICE)]
            drawn.append([x.cpu() for x in numbers])
    for other in drawn[1:]:
        assert all(torch.equal(a, b) for a, b in zip(drawn[0], other, strict=True))


def test_generator_state() -> None:
    generator = torch.Generator(DEVICE).manual_seed(4)
    first = torch.rand(5, device=DEVICE, generator=generator)
    state = generator.get_state()
    second = torch.rand(5, device=DEVICE, generator=generator)
    generator.set_state(state)
    again = torch.rand(5, device=DEVICE, generator=generator)
    assert torch.equal(second.cpu(), again.cpu())
    assert not torch.equal(first.cpu(), second.cpu())


# ---- distributions
# A Kolmogorov-Smirnov statistic times sqrt(n) exceeds 1.95 with probability 0.001; seeds are fixed.

COUNT = 20_000


def distance(sample: torch.Tensor, cdf: Callable[[torch.Tensor], torch.Tensor]) -> float:
    x = sample.detach().cpu().double().flatten().sort().values
    steps = torch.arange(len(x) + 1, dtype=torch.float64) / len(x)
    f = cdf(x)
    return float(torch.maximum(f - steps[:-1], steps[1:] - f).max()) * math.sqrt(len(x))


def normal_cdf(z: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(z / math.sqrt(2)))


CONTINUOUS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "uniform": (lambda x: x.uniform_(-1, 3), lambda v: (v + 1) / 4),
    "normal": (lambda x: x.normal_(2, 3), lambda v: normal_cdf((v - 2) / 3)),
    "exponential": (lambda x: x.exponential_(2), lambda v: 1 - torch.exp(-2 * v)),
    "cauchy": (lambda x: x.cauchy_(1, 2), lambda v: torch.atan((v - 1) / 2) / math.pi + 0.5),
    "log_normal": (lambda x: x.log_normal_(1, 0.5), lambda v: normal_cdf((v.log() - 1) / 0.5)),
    "gamma_small": (
        lambda x: torch._standard_gamma(torch.full_like(x, 0.3)),
        lambda v: torch.special.gammainc(torch.tensor(0.3, dtype=torch.float64), v),
    ),
    "gamma": (
        lambda x: torch._standard_gamma(torch.full_like(x, 4.0)),
        lambda v: torch.special.gammainc(torch.tensor(4.0, dtype=torch.float64), v),
    ),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    draw, cdf = CONTINUOUS[name]
    sample = draw(torch.empty(COUNT, dtype=dtype, device=DEVICE))
    assert sample.dtype == dtype
    assert distance(sample, cdf) < 1.95


def excess(sample: torch.Tensor, log_probability: Callable[[torch.Tensor], torch.Tensor], low: int, high: int) -> float:
    """Chi-squared of the counts of low..high, in standard deviations from its mean."""
    values = torch.arange(low, high + 1, dtype=torch.float64)
    want = log_probability(values).exp() * sample.numel()
    got = torch.stack([(sample == v).sum() for v in values.tolist()]).double()
    used = want > 10
    freedom = int(used.sum())
    chi = float(((got - want) ** 2 / want)[used].sum())
    return (chi - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("rate", (0.3, 3.0, 10.0, 200.0))
def test_poisson(rate: float) -> None:
    torch.manual_seed(0)
    sample = torch.poisson(torch.full((COUNT,), rate, device=DEVICE)).cpu()
    spread = 4 * math.sqrt(rate)
    low, high = max(0, int(rate - spread)), int(rate + spread) + 2
    assert abs(excess(sample, lambda k: k * math.log(rate) - rate - torch.lgamma(k + 1), low, high)) < 4


@pytest.mark.parametrize(("n", "p"), ((5, 0.3), (20, 0.95), (400, 0.25), (0, 0.5), (7, 0.0), (7, 1.0)))
def test_binomial(n: int, p: float) -> None:
    torch.manual_seed(0)
    sample = torch.binomial(torch.full((COUNT,), float(n), device=DEVICE), torch.full((COUNT,), p, device=DEVICE)).cpu()
    if n == 0 or p in (0.0, 1.0):
        assert bool((sample == n * p).all())
        return
    total = torch.lgamma(torch.tensor(n + 1.0, dtype=torch.float64))

    def log_probability(k: torch.Tensor) -> torch.Tensor:
        return total - torch.lgamma(k + 1) - torch.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)

    spread = 4 * math.sqrt(n * p * (1 - p))
    assert abs(excess(sample, log_probability, max(0, int(n * p - spread)), min(n, int(n * p + spread)))) < 4


@pytest.mark.parametrize("p", (0.0, 0.25, 1.0))
def test_bernoulli(p: float) -> None:
    torch.manual_seed(1)
    for sample in (
        torch.empty(COUNT, device=DEVICE).bernoulli_(p),
        torch.bernoulli(torch.full((COUNT,), p, device=DEVICE)),
        torch.empty(COUNT, device=DEVICE).bernoulli_(torch.tensor(p, device=DEVICE)),
    ):
        assert abs(float(sample.mean()) - p) <= 4 * math.sqrt(p * (1 - p) / COUNT)


def test_geometric() -> None:
    torch.manual_seed(1)
    sample = torch.empty(COUNT, device=DEVICE).geometric_(0.3).cpu()
    assert abs(excess(sample, lambda k: (k - 1) * math.log(0.7) + math.log(0.3), 1, 20)) < 4


@pytest.mark.parametrize("dtype", (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32))
def test_random_integers(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    whole = torch.empty(COUNT, dtype=dtype, device=DEVICE).random_().cpu()
    top = {torch.bool: 1, torch.float32: 2**24}.get(dtype) or torch.iinfo(dtype).max
    assert int(whole.min()) >= 0
    assert float(whole.max()) <= top
    assert abs(float(whole.double().mean()) / top - 0.5) < 0.02
    if dtype != torch.bool:
        some = torch.empty(COUNT, dtype=dtype, device=DEVICE).random_(3, 9).cpu().long()
        assert some.unique().tolist() == [3, 4, 5, 6, 7, 8]
        assert abs(excess(some, lambda k: torch.full_like(k, math.log(1 / 6)), 3, 8)) < 4


def test_wide_ranges() -> None:
    torch.manual_seed(2)
    sample = torch.empty(1000, dtype=torch.int64, device=DEVICE).random_(-(2**62), 2**62).cpu()
    assert int(sample.min()) < -(2**61)
    assert int(sample.max()) > 2**61
    assert torch.randint(5, 6, (100,), device=DEVICE).unique().tolist() == [5]


@pytest.mark.parametrize("n", (0, 1, 1000))
def test_randperm(n: int) -> None:
    order = torch.randperm(n, device=DEVICE)
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(n))
    if n > 1:
        assert order.tolist() != list(range(n))


def test_multinomial() -> None:
    torch.manual_seed(6)
    weights = torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0], [2.0, 0.0, 2.0, 0.0, 0.0]], device=DEVICE)
    drawn = torch.multinomial(weights, COUNT, replacement=True).cpu()
    counts = torch.stack([torch.bincount(row, minlength=5) for row in drawn]) / COUNT
    want = weights.cpu() / weights.cpu().sum(1, keepdim=True)
    assert torch.equal(counts == 0, want == 0)
    torch.testing.assert_close(counts, want, atol=0.02, rtol=0)

    pairs = torch.multinomial(torch.tensor([1.0, 2.0, 0.0, 3.0], device=DEVICE).expand(COUNT, 4), 2).cpu()
    assert bool((pairs[:, 0] != pairs[:, 1]).all())
    assert not bool((pairs == 2).any())
    first = torch.bincount(pairs[:, 0], minlength=4) / COUNT
    torch.testing.assert_close(first, torch.tensor([1.0, 2.0, 0.0, 3.0]) / 6, atol=0.02, rtol=0)


def test_complex_normal() -> None:
    torch.manual_seed(0)
    z = torch.randn(COUNT, dtype=torch.complex64, device=DEVICE)
    half = math.sqrt(0.5)
    for part in (z.real, z.imag):
        assert distance(part, lambda v: normal_cdf(v / half)) < 1.95


def test_normal_with_tensors() -> None:
    torch.manual_seed(0)
    mean = torch.tensor([-5.0, 0.0, 5.0], device=DEVICE)[:, None].expand(3, COUNT)
    std = torch.tensor([1.0, 0.0, 2.0], device=DEVICE)[:, None].expand(3, COUNT)
    sample = torch.normal(mean, std).cpu()
    assert bool((sample[1] == 0).all())
    assert distance(sample[0], lambda v: normal_cdf(v + 5)) < 1.95
    assert distance(torch.normal(1.0, std[2]), lambda v: normal_cdf((v - 1) / 2)) < 1.95
    assert distance(torch.normal(mean[2], 2.0), lambda v: normal_cdf((v - 5) / 2)) < 1.95


def test_dropout() -> None:
    torch.manual_seed(0)
    x = torch.ones(200, 300, device=DEVICE, requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.2)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert sorted(y.unique().tolist()) == [0.0, 1.25]
    assert torch.equal(grad.cpu(), y.detach().cpu())
    assert abs(float((y == 0).float().mean()) - 0.2) < 0.01
    assert torch.equal(torch.nn.functional.dropout(x, 0.2, training=False).cpu(), x.cpu())
    assert not bool(torch.nn.functional.dropout(x, 1.0).any())


def test_rrelu() -> None:
    torch.manual_seed(0)
    x = torch.randn(COUNT, device=DEVICE)
    y = torch.nn.functional.rrelu(x, 0.1, 0.3, training=True)
    positive = x.cpu() > 0
    assert torch.equal(y.cpu()[positive], x.cpu()[positive])
    assert distance((y / x).cpu()[~positive], lambda v: (v - 0.1) / 0.2) < 1.95


def test_empty_and_scalar() -> None:
    assert torch.rand(0, 3, device=DEVICE).shape == (0, 3)
    assert torch.randn((), device=DEVICE).shape == ()
    assert torch.poisson(torch.empty(0, device=DEVICE)).shape == (0,)


INVALID: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda x: x.normal_(0, -1),
    "uniform": lambda x: x.uniform_(2, 1),
    "exponential": lambda x: x.exponential_(-1),
    "cauchy": lambda x: x.cauchy_(0, -1),
    "log_normal": lambda x: x.log_normal_(0, -1),
    "geometric": lambda x: x.geometric_(1.5),
    "bernoulli": lambda x: x.bernoulli_(1.5),
    "bernoulli_tensor": lambda x: torch.bernoulli(x + 2),
    "random": lambda x: x.random_(3, 2),
    "poisson": lambda x: torch.poisson(x - 1),
    "multinomial": lambda x: torch.multinomial(x - 1, 1),
    "multinomial_zero": lambda x: torch.multinomial(x, 1),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_parameters(name: str) -> None:
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError):
            INVALID[name](torch.zeros(4, device=device)).cpu()
            if device == DEVICE:
                torch.tpu.synchronize()
