#!/usr/bin/env python3
"""A training step of a Llama block as XLA:TPU estimates it, beside the same step in JAX. No TPU is needed.

    python benchmarks/tpu_cycles.py --jax-python ~/jax/bin/python --topology v5e:2x2 v6e:2x2

Both programs, ours as torch_tpu.aot captures it and JAX's as ``jax.jit(...).lower()`` writes it, are compiled by libtpu
in the same way. Estimated cycles are the compiler's own (docs/aot.md), and nothing here is measured on hardware.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys

import torch
import torch.nn.functional as F
import torch_tpu.aot
from torch import Tensor, nn
from torch_tpu.aot.compiler import compile_text
from torch_tpu.aot.hlo import instructions


class LlamaBlock(nn.Module):
    """The one of `jax_steps.py`: width 2048, 16 heads, 4 of keys and values, one sequence of 2,048 tokens."""

    width, heads, groups, hidden, steps = 2048, 16, 4, 5632, 2048

    def __init__(self) -> None:
        super().__init__()
        head = self.width // self.heads
        self.norm1, self.norm2 = nn.RMSNorm(self.width, eps=1e-5), nn.RMSNorm(self.width, eps=1e-5)
        self.q = nn.Linear(self.width, self.width, bias=False)
        self.k = nn.Linear(self.width, self.groups * head, bias=False)
        self.v = nn.Linear(self.width, self.groups * head, bias=False)
        self.out = nn.Linear(self.width, self.width, bias=False)
        self.gate = nn.Linear(self.width, self.hidden, bias=False)
        self.up = nn.Linear(self.width, self.hidden, bias=False)
        self.down = nn.Linear(self.hidden, self.width, bias=False)

    def rotate(self, x: Tensor) -> Tensor:
        """Rotary positions, float[batch, heads, time, head width]."""
        half = x.shape[-1] // 2
        frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
        angle = torch.arange(x.shape[-2], dtype=torch.float32, device=x.device)[:, None] * frequency
        cos, sin = (torch.cat([f(angle)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        def split(t: Tensor) -> Tensor:
            return t.view(t.shape[0], self.steps, -1, self.width // self.heads).transpose(1, 2)

        h = self.norm1(x)
        q, k, v = self.rotate(split(self.q(h))), self.rotate(split(self.k(h))), split(self.v(h))
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        h = self.norm2(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return (x - target).float().square().mean()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", nargs="+", default=["v5e:2x2", "v6e:2x2"])
    parser.add_argument("--jax-python", required=True, metavar="FILE", help="interpreter with jax")
    parser.add_argument("--operators", action="store_true", help="show where our cycles go")
    args = parser.parse_args()
    script = str(pathlib.Path(__file__).with_name("jax_steps.py"))
    jax_text = subprocess.run(
        [args.jax_python, script, "llama_block", "--text"], env={}, check=True, capture_output=True, text=True
    ).stdout
    with torch.device("meta"):
        model = LlamaBlock().bfloat16()
        x = torch.zeros(1, LlamaBlock.steps, LlamaBlock.width, dtype=torch.bfloat16)
    print(
        "| topology | | estimated cycles | FLOPs | bytes | without estimate | compile |\n|---|---|---|---|---|---|---|"
    )
    for topology in args.topology:
        report = torch_tpu.aot.compile(
            model,
            (x, x),
            topology=topology,
            training=True,
            loss=lambda loss: loss,
            optimizer=lambda p: torch.optim.AdamW(p, lr=1e-4, capturable=True),
            whole=True,
        )
        made = compile_text(jax_text, topology, provider="libtpu", timeout=1800.0, keep_executable=False)
        if report.error or made.error:
            print(report.error or made.error)
            return 1
        theirs = instructions(made.optimized)
        cycles = sum((i.cycles or 0) * i.times for i in theirs)
        free = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
        for name, count, flops, moved, seconds, list_ in (
            ("ours", report.estimated_cycles, report.flops, report.bytes_accessed, report.seconds, report.instructions),
            ("JAX", cycles, made.cost.get("flops"), made.cost.get("bytes accessed"), made.seconds, theirs),
        ):
            unknown = sum(i.cycles is None and i.opcode not in free for i in list_)
            print(f"| {topology} | {name} | {count:,} | {flops:.3g} | {moved:.3g} | {unknown} | {seconds:.1f} s |")
        print(f"| {topology} | ours / JAX | {report.estimated_cycles / cycles:.3f} | | | | |", flush=True)
        if args.operators:
            print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
