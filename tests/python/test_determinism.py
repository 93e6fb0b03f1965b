"""The same seed, the same numbers: in every mode, compiled or not, on every device, from a saved state; streams that do
not overlap; and what torch.use_deterministic_algorithms asks for. test_random.py has the bits and the distributions of
single operators."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, MODES, each_mode, eager_mode, run_python  # noqa: F401
from torch import Tensor
from torch import distributions as D
from torch.utils.checkpoint import checkpoint

COUNT = 20_000


def ramp(n: int, low: float, high: float) -> Tensor:
    return torch.linspace(low, high, n, device=DEVICE)


# Integers and uniform numbers come from bits alone.
FROM_BITS: dict[str, Callable[[int], Tensor]] = {
    "rand": lambda n: torch.rand(n, device=DEVICE),
    "rand_half": lambda n: torch.rand(n, device=DEVICE, dtype=torch.bfloat16),
    "rand_double": lambda n: torch.rand(n, device=DEVICE, dtype=torch.float64),
    "randint": lambda n: torch.randint(-5, 1000, (n,), device=DEVICE),
    "randint_wide": lambda n: torch.randint(-(2**60), 2**60, (n,), device=DEVICE),
    "random": lambda n: torch.empty(n, device=DEVICE).random_(),
    "randperm": lambda n: torch.randperm(n, device=DEVICE),
    "bernoulli": lambda n: torch.bernoulli(ramp(n, 0, 1)),
    "bernoulli_number": lambda n: torch.empty(n, device=DEVICE).bernoulli_(0.3),
    "dropout": lambda n: F.dropout(ramp(n, 1, 2), 0.4),
    "rrelu": lambda n: F.rrelu(ramp(n, -2, -1), training=True),
}
# These take logarithms and roots, which the compiler may round otherwise in another program.
ROUNDED: dict[str, Callable[[int], Tensor]] = {
    "randn": lambda n: torch.randn(n, device=DEVICE),
    "exponential": lambda n: torch.empty(n, device=DEVICE).exponential_(2),
    "cauchy": lambda n: torch.empty(n, device=DEVICE).cauchy_(),
    "log_normal": lambda n: torch.empty(n, device=DEVICE).log_normal_(),
    "geometric": lambda n: torch.empty(n, device=DEVICE).geometric_(0.2),
    "gamma": lambda n: torch._standard_gamma(ramp(n, 0.3, 5)),
    "gamma_alike": lambda n: torch._standard_gamma(torch.full((n,), 2.0, device=DEVICE)),
    "dirichlet": lambda n: torch._sample_dirichlet(ramp(n, 0.3, 5).reshape(-1, 2)).flatten(),
    "poisson": lambda n: torch.poisson(ramp(n, 0, 30)),
    "binomial": lambda n: torch.binomial(ramp(n, 1, 50).round(), ramp(n, 0.1, 0.9)),
    "multinomial": lambda n: torch.multinomial(ramp(n, 0, 1), n // 2),
    "multinomial_again": lambda n: torch.multinomial(ramp(7, 0, 1), n, replacement=True),
}
SAMPLERS = FROM_BITS | ROUNDED


def drawn(sampler: Callable[[int], Tensor], seed: int = 8, n: int = 1000) -> list[Tensor]:
    """Two calls after a seed, of different sizes."""
    torch.manual_seed(seed)
    return [x.cpu() for x in (sampler(n), sampler(n // 2))]


# ---- one seed


@pytest.mark.parametrize("name", SAMPLERS)
def test_modes_agree(name: str) -> None:
    results = []
    for mode in MODES:
        with eager_mode(mode):
            results.append(drawn(SAMPLERS[name]))
    for other in results[1:]:
        if name in FROM_BITS:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
        else:
            torch.testing.assert_close(other, results[0])


@pytest.mark.parametrize("name", SAMPLERS)
def test_state_brings_numbers_back(name: str) -> None:
    first, second = drawn(SAMPLERS[name])
    assert not torch.equal(first[: len(second)], second)
    assert all(torch.equal(a, b) for a, b in zip(drawn(SAMPLERS[name]), (first, second), strict=True))
    state = torch.tpu.get_rng_state()
    again = SAMPLERS[name](400).cpu()
    with torch.random.fork_rng(device_type="tpu"):
        torch.manual_seed(77)
        SAMPLERS[name](10)
        torch.tpu.set_rng_state(state)
        assert torch.equal(SAMPLERS[name](400).cpu(), again)
    after = SAMPLERS[name](400).cpu()
    generator = torch.tpu.default_generators[0]
    generator.set_state(state)
    assert torch.equal(SAMPLERS[name](400).cpu(), again)
    assert torch.equal(SAMPLERS[name](400).cpu(), after)


@pytest.mark.parametrize("name", ("rand", "randint", "randn", "bernoulli", "dropout", "poisson"))
def test_compiled_agrees(name: str) -> None:
    """A compiled graph draws what eager mode draws, at every call."""

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        return SAMPLERS[name](100) + x, SAMPLERS[name](60)

    compiled = torch.compile(twice, backend="tpu")
    zero = torch.zeros((), device=DEVICE)
    results = []
    for function in (twice, compiled):
        torch.manual_seed(4)
        results.append([x.cpu() for _ in range(3) for x in function(zero)])
    torch.testing.assert_close(results[1], results[0])


def test_devices_agree() -> None:
    source = """
    import torch
    for draw in (
        lambda d: torch.rand(100, device=d),
        lambda d: torch.randn(100, device=d),
        lambda d: torch.randperm(50, device=d),
        lambda d: torch.poisson(torch.full((100,), 3.0, device=d)),
        lambda d: torch.nn.functional.dropout(torch.ones(100, device=d), 0.5),
    ):
        results = []
        for device in ("tpu:0", "tpu:1"):
            torch.manual_seed(3)
            results.append([draw(device).cpu(), draw(device).cpu()])
        assert all(torch.equal(a, b) for a, b in zip(*results))
        # One device's numbers do not depend on what the other drew meanwhile.
        torch.manual_seed(3)
        mixed = [draw(f"tpu:{i % 2}").cpu() for i in range(4)]
        assert torch.equal(mixed[1], results[0][0]) and torch.equal(mixed[2], results[0][1])
    """
    run_python(source, TORCH_TPU_NUM_DEVICES="2")


# ---- streams


@pytest.mark.slow
def test_no_number_comes_twice() -> None:
    """No block of the generator serves two calls, whatever the operators and the sizes. Of 53 bits, a few thousand
    numbers hardly ever share all."""
    torch.manual_seed(0)
    seen: list[Tensor] = []
    for n in (1, 3, 4, 1000):
        for name in SAMPLERS:
            SAMPLERS[name](2 * n)
            seen.append(torch.rand(n, device=DEVICE, dtype=torch.float64).cpu())
    numbers = torch.cat(seen)
    assert len(numbers.unique()) == len(numbers)


def correlation(a: Tensor, b: Tensor) -> float:
    """In standard deviations of that of independent numbers."""
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    return float((a * b).mean() / (a.std() * b.std())) * math.sqrt(len(a))


@pytest.mark.parametrize(
    "name", ("rand", "randn", "randint", "exponential", "bernoulli_number", "gamma_alike", "geometric")
)
def test_calls_are_independent(name: str) -> None:
    """Calls, elements beside each other, neighbouring seeds and generators."""
    draw = SAMPLERS[name]
    torch.manual_seed(1)
    first, second = draw(COUNT).cpu(), draw(COUNT).cpu()
    torch.manual_seed(2)
    other = draw(COUNT).cpu()
    for a, b in ((first, second), (first, other), (first[1:], first[:-1]), (first[4:], first[:-4])):
        assert not torch.equal(a, b)
        assert abs(correlation(a, b)) < 4


def test_operators_do_not_share_a_stream() -> None:
    torch.manual_seed(1)
    results = [SAMPLERS[name](COUNT).cpu() for name in ("rand", "randn", "exponential", "bernoulli_number", "random")]
    for a, b in itertools.combinations(results, 2):
        assert abs(correlation(a, b)) < 4
    # From one state they do, with uniform numbers of the same bits; so states must move on.
    generators = [torch.Generator(DEVICE).manual_seed(s) for s in (5, 5, 6)]
    same, again, third = (torch.rand(COUNT, device=DEVICE, generator=g).cpu() for g in generators)
    assert torch.equal(same, again)
    assert abs(correlation(same, third)) < 4


# ---- distributions

DISTRIBUTIONS: dict[str, Callable[[], D.Distribution]] = {
    "beta": lambda: D.Beta(ramp(3, 0.5, 4), ramp(3, 3, 1)),
    "binomial": lambda: D.Binomial(20, ramp(3, 0.1, 0.9)),
    "categorical_one_hot": lambda: D.OneHotCategorical(ramp(4, 0.1, 1)),
    "chi2": lambda: D.Chi2(ramp(3, 1, 9)),
    "continuous_bernoulli": lambda: D.ContinuousBernoulli(ramp(3, 0.1, 0.9)),
    "dirichlet": lambda: D.Dirichlet(ramp(4, 0.4, 5)),
    "exponential": lambda: D.Exponential(ramp(3, 0.2, 5)),
    "fisher_snedecor": lambda: D.FisherSnedecor(ramp(2, 5, 9), ramp(2, 20, 30)),
    "gamma": lambda: D.Gamma(ramp(3, 0.3, 9), ramp(3, 1, 2)),
    "geometric": lambda: D.Geometric(ramp(3, 0.2, 0.8)),
    "gumbel": lambda: D.Gumbel(ramp(3, -1, 1), ramp(3, 1, 2)),
    "inverse_gamma": lambda: D.InverseGamma(ramp(3, 6, 9), ramp(3, 1, 2)),
    "kumaraswamy": lambda: D.Kumaraswamy(ramp(3, 1, 3), ramp(3, 2, 1)),
    "laplace": lambda: D.Laplace(ramp(3, -1, 1), ramp(3, 1, 2)),
    "log_normal": lambda: D.LogNormal(ramp(3, -1, 1), ramp(3, 0.2, 0.5)),
    "multinomial": lambda: D.Multinomial(10, ramp(4, 0.1, 1)),
    "multivariate_normal": lambda: D.MultivariateNormal(ramp(3, -1, 1), torch.eye(3, device=DEVICE) + 0.5),
    "negative_binomial": lambda: D.NegativeBinomial(ramp(3, 2, 9), ramp(3, 0.2, 0.6)),
    "normal": lambda: D.Normal(ramp(3, -9, 9), ramp(3, 0.1, 3)),
    "pareto": lambda: D.Pareto(ramp(3, 1, 2), ramp(3, 9, 12)),
    "poisson": lambda: D.Poisson(ramp(4, 0.5, 40)),
    "student_t": lambda: D.StudentT(ramp(3, 9, 20)),
    "uniform": lambda: D.Uniform(ramp(3, -2, 0), ramp(3, 1, 9)),
    "weibull": lambda: D.Weibull(ramp(3, 1, 2), ramp(3, 1, 3)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_moments(name: str) -> None:
    """Mean and variance of torch.distributions; the error of a mean is estimated from the sample."""
    torch.manual_seed(11)
    distribution = DISTRIBUTIONS[name]()
    sample = distribution.sample((COUNT,))
    assert sample.device.type == DEVICE
    x, mean, variance = sample.cpu().double(), distribution.mean.cpu().double(), distribution.variance.cpu().double()
    for got, want in ((x, mean), ((x - mean) ** 2, variance)):
        error = got.std(0) / math.sqrt(COUNT)
        assert bool(((got.mean(0) - want).abs() <= 4.5 * error + 1e-6).all()), (got.mean(0), want, error)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_moments_of_half_types(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    empty = torch.empty(COUNT, dtype=dtype, device=DEVICE)
    cases: tuple[tuple[Tensor, float, float], ...] = (
        (empty.clone().normal_(1, 2), 1, 4),
        (empty.clone().uniform_(-1, 3), 1, 16 / 12),
        (empty.clone().exponential_(0.5), 2, 4),
        (empty.clone().geometric_(0.25), 4, 12),
        (torch.poisson(torch.full_like(empty, 9)), 9, 9),
        (torch._standard_gamma(torch.full_like(empty, 2)), 2, 2),
        (torch.rand_like(empty), 0.5, 1 / 12),
        (torch.randint_like(empty, 0, 5), 2, 2),
    )
    for sample, mean, variance in cases:
        x = sample.cpu().double()
        # Rounding to half types moves a number by up to a part in 256, in both directions alike; numbers of [0, 1)
        # with 8 or 11 bits are cut off instead, by half a step on average.
        cut = 2**-9 * (1 + abs(mean))
        assert abs(float(x.mean()) - mean) < 5 * math.sqrt(variance / COUNT) + cut
        assert abs(float(x.var()) / variance - 1) < 0.06


def test_permutations_are_equally_likely() -> None:
    torch.manual_seed(2)
    total, kinds = 1200, math.factorial(4)
    orders = torch.tensor([torch.randperm(4, device=DEVICE).tolist() for _ in range(total)])
    keys = (orders * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = keys.unique(return_counts=True)[1].double()
    assert len(counts) == kinds
    chi = float(((counts - total / kinds) ** 2 / (total / kinds)).sum())
    assert abs(chi - (kinds - 1)) < 4 * math.sqrt(2 * (kinds - 1))
    long = torch.randperm(COUNT, device=DEVICE).cpu()
    assert abs(correlation(long, torch.arange(COUNT))) < 4


# ---- recomputation


@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize("reentrant", (False, True))
def test_checkpointed_network_trains_alike(reentrant: bool) -> None:
    """Dropout within checkpoints, one of them within another: loss and gradients are those without."""
    results = []
    for wraps in (False, True):
        torch.manual_seed(0)
        layers = [torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True) for _ in range(3)]
        net = torch.nn.ModuleList(layers).to(DEVICE).train()
        x = torch.randn(2, 5, 8, device=DEVICE, requires_grad=True)

        def run(layer: Callable[[Tensor], Tensor], x: Tensor, wraps: bool = wraps) -> Tensor:
            out = checkpoint(layer, x, use_reentrant=reentrant) if wraps else layer(x)
            assert isinstance(out, Tensor)
            return out

        torch.manual_seed(1)
        y = run(net[0], x)
        y = run(lambda t, net=net: run(net[1], F.dropout(t, 0.2)), y)
        (run(net[2], y) ** 2).sum().backward()
        results.append([y.detach(), x.grad, *(p.grad for p in net.parameters())])
        # The stream goes on as if nothing had been computed again.
        results[-1].append(torch.rand(5, device=DEVICE))
    for got, want in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, want)


# ---- torch.use_deterministic_algorithms


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def gradient(function: Callable[[Tensor], Tensor], *sizes: int) -> Tensor:
    x = torch.linspace(-1, 1, math.prod(sizes)).sin().reshape(sizes).to(DEVICE).requires_grad_()
    y = function(x)
    weights = torch.linspace(1, 2, y.numel(), device=DEVICE).cos().reshape(y.shape)
    return torch.autograd.grad(y, x, weights)[0]


def many(n: int = 5000, top: int = 7) -> Tensor:
    """Indices, each of which comes often."""
    return (torch.arange(n, device=DEVICE) * 31) % top


def addends(n: int = 5000) -> Tensor:
    return torch.linspace(-1, 1, n, device=DEVICE).exp()


# PyTorch's CUDA kernels of these are in no fixed order, or raise: the list of use_deterministic_algorithms.
UNORDERED_ELSEWHERE: dict[str, Callable[[], Tensor]] = {
    "index_add": lambda: torch.zeros(7, device=DEVICE).index_add(0, many(), addends()),
    "scatter_add": lambda: torch.zeros(7, device=DEVICE).scatter_add(0, many(), addends()),
    "scatter_reduce": lambda: torch.ones(7, device=DEVICE).scatter_reduce(0, many(), addends(), "mean"),
    "scatter_twice": lambda: torch.zeros(7, device=DEVICE).scatter(0, many(), addends()),
    "index_copy_twice": lambda: torch.zeros(7, device=DEVICE).index_copy(0, many(), addends()),
    "put": lambda: torch.zeros(7, device=DEVICE).put(many(), addends(), accumulate=True),
    "put_twice": lambda: torch.zeros(7, device=DEVICE).put(many(), addends()),
    "index_put": lambda: torch.zeros(7, device=DEVICE).index_put((many(),), addends(), accumulate=True),
    "index_put_twice": lambda: torch.zeros(7, device=DEVICE).index_put((many(),), addends()),
    "bincount": lambda: torch.bincount(many(), addends()),
    "histc": lambda: torch.histc(addends(), 20),
    "cumsum": lambda: addends().cumsum(0),
    "kthvalue": lambda: torch.stack([x.float() for x in (many() * 1.0).kthvalue(100)]),
    "median": lambda: torch.stack([x.float() for x in (many() * 1.0).median(0)]),
    "sort": lambda: many().sort().indices,
    "bmm": lambda: torch.bmm(addends().view(5, 20, 50), addends().view(5, 50, 20)),
    "gather": lambda: gradient(lambda x: x.gather(0, many()), 7),
    "index": lambda: gradient(lambda x: x[many()], 7),
    "index_select": lambda: gradient(lambda x: x.index_select(0, many()), 7),
    "take": lambda: gradient(lambda x: x.take(many()), 7),
    "repeat_interleave": lambda: gradient(lambda x: x.repeat_interleave(many(7) * 9, 0), 7),
    "embedding": lambda: gradient(lambda x: F.embedding(many(), x), 7, 3),
    "embedding_bag": lambda: gradient(lambda x: F.embedding_bag(many().view(50, 100), x, mode="sum"), 7, 3),
    "max_pool2d": lambda: gradient(lambda x: F.max_pool2d(x, 3, 1), 2, 3, 9, 9),
    "max_pool3d": lambda: gradient(lambda x: F.max_pool3d(x, 2, 1), 1, 2, 5, 5, 5),
    "adaptive_avg_pool2d": lambda: gradient(lambda x: F.adaptive_avg_pool2d(x, 3), 2, 3, 8, 8),
    "adaptive_max_pool2d": lambda: gradient(lambda x: F.adaptive_max_pool2d(x, 3), 2, 3, 8, 8),
    "avg_pool3d": lambda: gradient(lambda x: F.avg_pool3d(x, 2, 1), 1, 2, 5, 5, 5),
    "fractional_max_pool2d": lambda: gradient(
        lambda x: F.fractional_max_pool2d(x, 2, 3, _random_samples=torch.full((2, 3, 2), 0.4, device=DEVICE)),
        2,
        3,
        8,
        8,
    ),
    "interpolate": lambda: gradient(lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), 1, 2, 7, 7),
    "interpolate_bicubic": lambda: gradient(lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"), 1, 2, 7, 7),
    "reflection_pad": lambda: gradient(lambda x: F.pad(x, (3, 3, 2, 2), mode="reflect"), 1, 2, 7, 7),
    "replication_pad": lambda: gradient(lambda x: F.pad(x, (3, 3, 2, 2), mode="replicate"), 1, 2, 7, 7),
    "grid_sample": lambda: gradient(
        lambda x: F.grid_sample(x, addends(50).view(1, 5, 5, 2) - 1, align_corners=False), 1, 2, 7, 7
    ),
    "nll_loss2d": lambda: gradient(lambda x: F.nll_loss(x, many(64).view(1, 8, 8)), 1, 7, 8, 8),
    "ctc_loss": lambda: gradient(
        lambda x: F.ctc_loss(x.log_softmax(2), many(6).view(2, 3) + 1, [9, 9], [3, 3]), 9, 2, 9
    ),
    "attention": lambda: gradient(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), 2, 2, 16, 8),
    "convolution": lambda: gradient(lambda x: F.conv2d(x, x[:, :, :3, :3]), 2, 2, 9, 9),
    "convolution_transposed": lambda: gradient(lambda x: F.conv_transpose2d(x, x[:, :, :3, :3]), 2, 2, 9, 9),
}


@pytest.mark.usefixtures("deterministic", "each_mode")
@pytest.mark.parametrize("name", UNORDERED_ELSEWHERE)
def test_deterministic_operators(name: str) -> None:
    """They neither raise nor warn, and give the same bits every time; where several writes meet in one place, the
    numbers of the CPU, whose last write counts."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = [UNORDERED_ELSEWHERE[name]().cpu() for _ in range(3)]
        torch.use_deterministic_algorithms(True, warn_only=True)
        results.append(UNORDERED_ELSEWHERE[name]().cpu())
    for other in results[1:]:
        assert torch.equal(other, results[0])
    if name.endswith("_twice"):
        last = torch.zeros(7)
        for place, x in zip(many().tolist(), addends().tolist(), strict=True):
            last[place] = x
        assert torch.equal(results[0], last)


def test_max_unpool2d_raises_as_on_the_cpu() -> None:
    """PyTorch's own description of this operator, for every device, calls it one without an order."""
    for device in ("cpu", DEVICE):
        y, places = F.max_pool2d(torch.ones(1, 2, 8, 8, device=device), 2, return_indices=True)
        want = F.max_unpool2d(y, places, 2)
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
                F.max_unpool2d(y, places, 2, output_size=(9, 9))
            torch.use_deterministic_algorithms(True, warn_only=True)
            with warnings.catch_warnings(action="ignore"):
                assert torch.equal(F.max_unpool2d(y, places, 2), want)
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_uninitialised_memory_is_filled() -> None:
    """With what PyTorch fills it with: NaN and the largest integer."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.int8, torch.uint8,
                  torch.uint16, torch.bool):  # fmt: skip
        made = []
        for device in ("cpu", DEVICE):
            x = torch.empty(3, dtype=dtype, device=device)
            y = torch.zeros(2, dtype=dtype, device=device)
            made.append(
                [
                    x,
                    torch.empty_strided((2, 2), (1, 5), dtype=dtype, device=device),
                    torch.empty_like(y),
                    y.new_empty(2, 2),
                    torch.empty((), dtype=dtype, device=device),
                    torch.empty_permuted((2, 3), (1, 0), dtype=dtype, device=device),
                    y.resize_(3, 2),
                    torch.empty(0, dtype=dtype, device=device).resize_(4),
                ]
            )
        for got, want in zip(made[1], made[0], strict=True):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got.cpu(), want, equal_nan=True, rtol=0, atol=0)


def test_uninitialised_memory_is_left_alone_otherwise() -> None:
    def read() -> list[float]:
        numbers: list[float] = torch.empty(2, device=DEVICE).tolist()
        return numbers

    assert read() == [0, 0]
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        assert read() == [0, 0]
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.usefixtures("deterministic")
def test_deterministic_training_repeats() -> None:
    """A network with embedding, convolution, attention and dropout trains to the same bits."""
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        embed = torch.nn.Embedding(11, 8, device=DEVICE)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True, device=DEVICE)
        conv = torch.nn.Conv1d(8, 4, 3, device=DEVICE)
        weights = [*embed.parameters(), *layer.parameters(), *conv.parameters()]
        optimizer = torch.optim.AdamW(weights, lr=0.01)
        for _ in range(3):
            tokens = torch.randint(0, 11, (4, 9), device=DEVICE)
            loss = conv(layer(embed(tokens)).transpose(1, 2)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results.append([loss.detach().cpu(), *(w.detach().cpu() for w in weights)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
