"""Small models of every common kind, trained a few steps: losses, gradients and weights as on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, assert_matches, each_mode  # noqa: F401
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("each_mode")


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.encoder(self.embedding(tokens), mask=mask, is_causal=True)).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn = kind(6, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=4),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.LeakyReLU(),
        nn.ConvTranspose2d(8, 3, 2, stride=2),
        nn.InstanceNorm2d(3, affine=True),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(3, 4, 1),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], tuple[int, ...]]] = {
    "mlp": (mlp, lambda: torch.randn(5, 6), (5,)),
    "cnn": (cnn, lambda: torch.randn(4, 3, 8, 8), (4,)),
    "autoencoder": (autoencoder, lambda: torch.randn(4, 3, 8, 8), (4,)),
    "transformer": (Transformer, lambda: torch.randint(20, (3, 7)), (3, 7)),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(3, 5, 6), (3,)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(3, 5, 6), (3,)),
    "rnn": (lambda: Recurrent(nn.RNN), lambda: torch.randn(3, 5, 6), (3,)),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, target: Tensor, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def twins(name: str) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """The model on CPU and device, input and target on the CPU."""
    torch.manual_seed(0)
    make, data, sizes = MODELS[name]
    model, x = make(), data()
    target = torch.randint(4, sizes)
    return model, copy.deepcopy(model).to(DEVICE), x, target


@pytest.mark.parametrize("name", MODELS)
def test_training_follows_the_cpu(name: str) -> None:
    cpu, device, x, target = twins(name)
    want = train(cpu, torch.optim.SGD(cpu.parameters(), 0.1, momentum=0.9), x, target, 5)
    got = train(device, torch.optim.SGD(device.parameters(), 0.1, momentum=0.9), x.to(DEVICE), target.to(DEVICE), 5)
    # Rounding differs by an ulp per operation and five steps of momentum amplify it.
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-4, atol=1e-5)
    assert got[-1] < got[0]
    for (key, g), (_, w) in zip(device.state_dict().items(), cpu.state_dict().items(), strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-3, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_equals_the_cpu(name: str) -> None:
    cpu, device, x, _ = twins(name)
    with torch.no_grad():
        # Three to six layers of float32 sums in another order.
        assert_matches(device.eval()(x.to(DEVICE)), cpu.eval()(x), rtol=1e-5, atol=1e-5)


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam_loop": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adam_tensor_lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    def run(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        weights = [torch.randn(4, 3).to(device).requires_grad_(), torch.randn(3).to(device).requires_grad_()]
        x, y = torch.randn(8, 4).to(device), torch.randn(8, 3).to(device)
        optimizer = OPTIMIZERS[name](weights)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(x @ weights[0] + weights[1], y)
            loss.backward()
            return loss

        for _ in range(6):
            optimizer.step(closure)
        return [w.detach() for w in weights]

    # Six steps; where a method divides by the root of a small second moment rounding grows.
    assert_matches(run(DEVICE), run("cpu"), rtol=1e-4, atol=1e-5)


def test_learning_rate_schedule_does_not_recompile() -> None:
    import torch_tpu

    w = torch.ones(8, device=DEVICE, requires_grad=True)
    optimizer = torch.optim.AdamW([w], lr=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step() -> None:
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()
        schedule.step()
        torch.tpu.synchronize()

    for _ in range(5):
        step()
    before = torch_tpu.compile_stats()["compiles"]
    for _ in range(10):
        step()
    assert torch_tpu.compile_stats()["compiles"] == before


def test_tied_weights_survive_the_move() -> None:
    model = Transformer().to(DEVICE)
    assert model.head.weight is model.embedding.weight
    with torch.no_grad():
        model.embedding.weight.fill_(3)
    assert bool((model.head.weight == 3).all())
    loaded = Transformer().to(DEVICE)
    loaded.load_state_dict(model.state_dict())
    assert loaded.head.weight is loaded.embedding.weight and bool((loaded.head.weight == 3).all())


def test_module_moves_there_and_back() -> None:
    model = cnn()
    kept = copy.deepcopy(model.state_dict())
    model.to(DEVICE).to(memory_format=torch.channels_last)
    assert all(p.device.type == DEVICE for p in model.parameters())
    model.to("cpu")
    for key, value in model.state_dict().items():
        assert torch.equal(value, kept[key])
    half = mlp().to(DEVICE, torch.bfloat16)
    assert half(torch.ones(2, 6, device=DEVICE, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_models_built_on_the_device() -> None:
    with torch.device(DEVICE):
        model = mlp()
    assert all(p.device.type == DEVICE for p in model.parameters())
    empty = mlp().to("meta").to_empty(device=DEVICE)
    empty.load_state_dict(model.state_dict())
    x = torch.ones(2, 6, device=DEVICE)
    assert torch.equal(empty(x), model(x))


def test_channels_last_convolution() -> None:
    torch.manual_seed(0)
    model, x = cnn().eval(), torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    want = model.to(memory_format=torch.channels_last)(x)
    model.to(DEVICE)
    got = model(x.to(DEVICE))
    assert_matches(got, want)
    inner = model[0](x.to(DEVICE))
    assert inner.is_contiguous(memory_format=torch.channels_last)


def test_dropout_and_random_init_repeat_with_the_seed() -> None:
    def draw() -> list[Tensor]:
        torch.manual_seed(11)
        x = torch.ones(100, device=DEVICE)
        return [
            F.dropout(x, 0.3),
            torch.rand(5, device=DEVICE),
            torch.randn(5, device=DEVICE),
            torch.randint(9, (5,), device=DEVICE),
            torch.randperm(7, device=DEVICE),
            nn.init.kaiming_uniform_(torch.empty(3, 3, device=DEVICE)),
            torch.multinomial(torch.ones(5, device=DEVICE), 3),
            torch.bernoulli(x / 2),
        ]

    first, second = draw(), draw()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_exponential_moving_average_and_swa() -> None:
    model = mlp().to(DEVICE)
    average = torch.optim.swa_utils.AveragedModel(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    average.update_parameters(model)
    assert_matches(list(average.module.parameters()), [p.detach().cpu() for p in model.parameters()])


def test_parametrizations_and_functional_call() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)).to(DEVICE)
    layer(torch.ones(1, 3, device=DEVICE)).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    plain = nn.Linear(3, 2).to(DEVICE)
    zeros = {k: torch.zeros_like(v) for k, v in plain.named_parameters()}
    assert torch.func.functional_call(plain, zeros, torch.ones(1, 3, device=DEVICE)).abs().sum().item() == 0
