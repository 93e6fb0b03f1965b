#!/usr/bin/env python3
"""Train a character-level GPT on the sources of Python's standard library.

    python examples/train_gpt.py                   # on the accelerator, fused eager mode
    python examples/train_gpt.py --device cpu      # the same on the CPU
    python examples/train_gpt.py --steps 1000 --save gpt.pt

Everything here is plain PyTorch. The only two lines that know about the device are `device="tpu"` and the
optional `torch.tpu.set_eager_mode("fused")`, which lets the engine record several operators and compile
them into one program.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
import string
import sys
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass
class Config:
    """Sizes of the model; the defaults make 0.8 million parameters."""

    vocabulary: int = 0
    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128


class Characters:
    """Printable ASCII <-> integers. Other characters are dropped when encoding."""

    alphabet = "\n" + "".join(c for c in string.printable if c.isprintable())

    def __init__(self) -> None:
        self.index = {c: i for i, c in enumerate(self.alphabet)}

    def __len__(self) -> int:
        return len(self.alphabet)

    def encode(self, text: str) -> Tensor:
        """`text` as int64[characters] on the CPU."""
        return torch.tensor([self.index[c] for c in text if c in self.index], dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        return "".join(self.alphabet[i] for i in tokens.tolist())


class Block(nn.Module):
    """Pre-norm transformer block: causal self-attention, then a GELU network four times as wide."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.projection = nn.Linear(config.width, config.width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(config.width),
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """float[batch, time, width] -> the same."""
        batch, time_steps, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, time_steps, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, time_steps, width))
        return x + self.mlp(x)


class GPT(nn.Module):
    """Decoder-only transformer with learned positions; input and output embeddings are one parameter."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.token_embedding.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64[batch, time] -> logits float[batch, time, vocabulary]; time <= context."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def standard_library_text(limit: int = 2_000_000) -> str:
    """About `limit` characters of Python source, the same on every machine with this Python version."""
    parts, size = [], 0
    for path in sorted(pathlib.Path(os.__file__).parent.glob("*.py")):
        parts.append(path.read_text(encoding="utf-8", errors="ignore"))
        size += len(parts[-1])
        if size >= limit:
            break
    return "".join(parts)[:limit]


def batches(tokens: Tensor, context: int, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless random windows on the CPU: inputs and the same shifted by one, int64[batch, context] each."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(context + 1)
    while True:
        starts = torch.randint(len(tokens) - context - 1, (batch, 1), generator=generator)
        window = tokens[starts + offsets]
        yield window[:, :-1].contiguous(), window[:, 1:].contiguous()


class ProgressBar:
    """One line that redraws itself on a terminal, and one line every tenth of the way elsewhere."""

    def __init__(self, total: int, width: int = 28) -> None:
        self.total, self.width, self.printed = total, width, -1

    def update(self, done: int, text: str) -> None:
        filled = self.width * done // self.total
        line = f"[{'#' * filled}{'.' * (self.width - filled)}] {done:4d}/{self.total} {text}"
        if sys.stdout.isatty():
            print("\r" + line, end="\n" if done == self.total else "", flush=True)
        elif 10 * done // self.total != self.printed:
            self.printed = 10 * done // self.total
            print(line, flush=True)


@dataclasses.dataclass
class Training:
    """What `train` reports: the loss of step 1, the mean of the last `report_every` steps, and speed."""

    first_loss: float
    last_loss: float
    seconds: float
    tokens_per_second: float


def train(
    model: GPT,
    tokens: Tensor,
    device: str,
    *,
    steps: int,
    batch: int = 16,
    peak_lr: float = 3e-3,
    seed: int = 0,
    report_every: int = 10,
) -> Training:
    """Trains `model` (already on `device`) with AdamW, warm-up and cosine decay.

    The loss is read every `report_every` steps only: reading a number waits for the device.
    """
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=peak_lr,
        betas=(0.9, 0.95),
        fused=True,
    )
    warm_up = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: (
            (s + 1) / warm_up
            if s < warm_up
            else 0.1 + 0.45 * (1 + math.cos(math.pi * (s - warm_up) / max(1, steps - warm_up)))
        ),
    )
    data = batches(tokens, model.config.context, batch, seed)
    bar = ProgressBar(steps)
    running = torch.zeros((), device=device)
    per_step = batch * model.config.context
    first_loss, losses = math.nan, []
    start = recent_start = time.perf_counter()
    for step in range(1, steps + 1):
        inputs, targets = (t.to(device, non_blocking=True) for t in next(data))
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        running += loss.detach()
        if step == 1:
            first_loss = loss.item()
        if step % report_every == 0 or step == steps:
            window = (step - 1) % report_every + 1
            losses.append(running.item() / window)
            running.zero_()
            now = time.perf_counter()
            bar.update(step, f"loss {losses[-1]:.3f}  {window * per_step / (now - recent_start):8,.0f} tokens/s")
            recent_start = now
    seconds = time.perf_counter() - start
    return Training(first_loss, losses[-1], seconds, steps * per_step / seconds)


@torch.no_grad()
def sample(
    model: GPT,
    characters: Characters,
    prompt: str,
    length: int,
    device: str,
    *,
    temperature: float = 0.7,
    seed: int = 0,
) -> str:
    """`prompt` continued by `length` characters.

    The window always holds `context` tokens and the model is causal, so what stands behind the cursor does
    not matter. Shapes therefore never change, and no step after the first compiles anything.
    """
    context = model.config.context
    start = characters.encode(prompt)[-context:]
    window = torch.zeros(1, context, dtype=torch.int64)
    window[0, : len(start)] = start
    window = window.to(device)
    generator = torch.Generator().manual_seed(seed)
    out, cursor = [], len(start)
    for _ in range(length):
        logits = model(window)[0, cursor - 1]
        # Drawn on the CPU, so that the text does not depend on the device's random numbers.
        token = torch.multinomial(F.softmax(logits.cpu() / temperature, dim=-1), 1, generator=generator)
        out.append(token)
        if cursor == context:
            window = window.roll(-1, dims=1)
            cursor -= 1
        window[0, cursor] = token.item()
        cursor += 1
    return prompt + characters.decode(torch.cat(out))


def save(model: GPT, path: str | os.PathLike[str]) -> None:
    torch.save({"config": dataclasses.asdict(model.config), "model": model.state_dict()}, path)


def load(path: str | os.PathLike[str], device: str) -> GPT:
    """The model of `save`, whatever device it was saved from."""
    checkpoint = torch.load(path, map_location=device, weights_only=True)
    model = GPT(Config(**checkpoint["config"])).to(device)
    model.load_state_dict(checkpoint["model"])
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--mode", default="fused", choices=("debug", "strict", "fused"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--save", metavar="FILE", help="write a checkpoint there")
    args = parser.parse_args()
    if args.device != "cpu":
        torch.tpu.set_eager_mode(args.mode)
    torch.manual_seed(0)
    characters = Characters()
    model = GPT(Config(vocabulary=len(characters))).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {args.device}")
    result = train(model, characters.encode(standard_library_text()), args.device, steps=args.steps)
    print(
        f"loss {result.first_loss:.3f} -> {result.last_loss:.3f} in {result.seconds:.1f} s "
        f"({result.tokens_per_second:,.0f} tokens/s)"
    )
    print(sample(model, characters, "def ", 300, args.device))
    if args.save:
        save(model, args.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
