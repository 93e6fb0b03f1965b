"""The workloads of benchmarks/run.py: small models whose steps are typical, in plain PyTorch.

A workload is a function `device -> Step`. It builds model and data (the same numbers on every device) and
returns the step to time. Nothing in a step waits for the device unless the workload is about that: `run.py`
synchronises around each group of steps.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
from train_gpt import GPT, Config


@dataclasses.dataclass
class Step:
    """`run()` does one step; `check()` gives a few numbers that must agree between devices."""

    run: Callable[[], None]
    check: Callable[[], list[float]]
    per: int = 1  # operations in one step: times are reported divided by it


def chained_add(device: str) -> Step:
    """f32[4]: x = x + y, a thousand times, without grad."""
    state = torch.zeros(4).to(device)
    one = torch.ones(4).to(device)

    def run() -> None:
        nonlocal state
        x = state
        for _ in range(1000):
            x = x + one
        state = x

    return Step(run, lambda: state.cpu().tolist(), per=1000)


def training(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> Step:
    def run() -> None:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return Step(run, lambda: [loss_of().item()])


def mlp_train(device: str) -> Step:
    """784-512-512-10 with ReLU, batch 64, Adam."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    x, target = torch.randn(64, 784).to(device), torch.randint(10, (64,)).to(device)
    model.to(device)
    return training(model, torch.optim.Adam(model.parameters(), lr=1e-3), lambda: F.cross_entropy(model(x), target))


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def cnn_train(device: str) -> Step:
    """ResNet-8 (16-32-64 channels) for 32x32 images, batch 32, SGD with momentum."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        ResidualBlock(16, 16, 1),
        ResidualBlock(16, 32, 2),
        ResidualBlock(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    x, target = torch.randn(32, 3, 32, 32).to(device), torch.randint(10, (32,)).to(device)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return training(model, optimizer, lambda: F.cross_entropy(model(x), target))


def gpt_train(device: str) -> Step:
    """GPT with 6 layers, width 384, 6 heads, context 256, batch 8, AdamW."""
    torch.manual_seed(0)
    model = GPT(Config(vocabulary=96, context=256, layers=6, heads=6, width=384))
    tokens = torch.randint(96, (8, 257))
    x, target = tokens[:, :-1].contiguous().to(device), tokens[:, 1:].contiguous().to(device)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return training(model, optimizer, lambda: F.cross_entropy(model(x).flatten(0, 1), target.flatten()))


class EncoderLayer(nn.Module):
    """Post-norm encoder layer as in BERT, with a padding mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.norm1, self.norm2 = nn.Linear(width, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        attended = F.scaled_dot_product_attention(
            self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x)), attn_mask=mask
        )
        x = self.norm1(x + self.out(attended.transpose(1, 2).reshape(x.shape)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def bert_inference(device: str) -> Step:
    """Encoder with 6 layers, width 384, 12 heads, batch 16 of 128 tokens, padding mask."""
    torch.manual_seed(0)
    embedding, layers = nn.Embedding(30522, 384), nn.ModuleList(EncoderLayer(384, 12) for _ in range(6))
    tokens = torch.randint(30522, (16, 128)).to(device)
    lengths = torch.randint(64, 129, (16,))
    mask = (torch.arange(128) < lengths[:, None])[:, None, None, :].to(device)
    embedding.to(device).eval()
    layers.to(device).eval()
    out = torch.empty(0)

    @torch.no_grad()
    def run() -> None:
        nonlocal out
        x = embedding(tokens)
        for layer in layers:
            x = layer(x, mask)
        out = x

    return Step(run, lambda: out[0, 0, :8].cpu().tolist())


def lstm_train(device: str) -> Step:
    """Two LSTM layers of width 256 over 64 steps, batch 32, Adam."""
    torch.manual_seed(0)
    model = nn.LSTM(128, 256, num_layers=2, batch_first=True)
    head = nn.Linear(256, 10)
    x, target = torch.randn(32, 64, 128).to(device), torch.randint(10, (32,)).to(device)
    model.to(device)
    head.to(device)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
    return training(model, optimizer, lambda: F.cross_entropy(head(model(x)[0][:, -1]), target))


class CachedDecoder(nn.Module):
    """One-token decoder whose key/value cache grows by `torch.cat`, as in most generation loops."""

    def __init__(self, vocabulary: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, cache: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """int64[batch, time] -> logits of the last token, new cache. Causal only where time > 1."""
        x, grown = self.embedding(tokens), []
        for i, layer in enumerate(self.layers):
            q, k, v = layer.split(layer.query(x)), layer.split(layer.key(x)), layer.split(layer.value(x))
            if cache:
                k, v = torch.cat((cache[i][0], k), dim=2), torch.cat((cache[i][1], v), dim=2)
            grown.append((k, v))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=tokens.shape[1] > 1)
            x = layer.norm1(x + layer.out(attended.transpose(1, 2).reshape(x.shape)))
            x = layer.norm2(x + layer.down(F.gelu(layer.up(x))))
        return self.head(x[:, -1]), grown


def greedy_decode(device: str) -> Step:
    """64 tokens after a prompt of 16: 4 layers, width 256, batch 1, growing cache; the token is read each time."""
    torch.manual_seed(0)
    model = CachedDecoder(1000, layers=4, heads=4, width=256).to(device).eval()
    prompt = torch.randint(1000, (1, 16)).to(device)
    text: list[int] = []

    @torch.no_grad()
    def run() -> None:
        text.clear()
        logits, cache = model(prompt, [])
        for _ in range(64):
            token = logits.argmax(-1, keepdim=True)
            text.append(token.item())
            logits, cache = model(token, cache)

    return Step(run, lambda: [float(t) for t in text])


WORKLOADS: dict[str, Callable[[str], Step]] = {
    "chained_add": chained_add,
    "mlp_train": mlp_train,
    "cnn_train": cnn_train,
    "gpt_train": gpt_train,
    "bert_inference": bert_inference,
    "lstm_train": lstm_train,
    "greedy_decode": greedy_decode,
}
