#!/usr/bin/env python3
"""Training steps of benchmarks/workloads.py as JAX users write them, for `run.py --jax-python`.

Runs in an environment of its own, where jax is installed and torch need not be. As a script it answers the requests of
`run.py` on stdin; `--text` writes the StableHLO of a step instead, for `tpu_cycles.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

Parameters = dict[str, Any]


def norm(x: jax.Array, p: Parameters, eps: float = 1e-5) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + eps) * p["weight"] + p["bias"]


def linear(x: jax.Array, p: Parameters) -> jax.Array:
    return x @ p["weight"] + p["bias"]


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal; float[batch, heads, time, head width] each."""
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), -1) @ v


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), target[..., None], -1)
    return -picked.mean()


class Gpt:
    """`gpt_train`: 6 layers, width 384, 6 heads, context 256, batch 8, AdamW."""

    vocabulary, context, layers, heads, width, batch = 96, 256, 6, 6, 384, 8

    def parameters(self) -> Parameters:
        keys = iter(jax.random.split(jax.random.key(0), 100))
        width = self.width

        def dense(inputs: int, outputs: int) -> Parameters:
            return {
                "weight": 0.02 * jax.random.normal(next(keys), (inputs, outputs)),
                "bias": jnp.zeros(outputs),
            }

        def layer_norm() -> Parameters:
            return {"weight": jnp.ones(width), "bias": jnp.zeros(width)}

        blocks = [
            {
                "norm1": layer_norm(),
                "qkv": dense(width, 3 * width),
                "projection": dense(width, width),
                "norm2": layer_norm(),
                "up": dense(width, 4 * width),
                "down": dense(4 * width, width),
            }
            for _ in range(self.layers)
        ]
        return {
            "tokens": 0.02 * jax.random.normal(next(keys), (self.vocabulary, width)),
            "positions": 0.02 * jax.random.normal(next(keys), (self.context, width)),
            "blocks": blocks,
            "norm": layer_norm(),
        }

    def data(self) -> tuple[jax.Array, jax.Array]:
        tokens = jax.random.randint(jax.random.key(1), (self.batch, self.context + 1), 0, self.vocabulary)
        return tokens[:, :-1], tokens[:, 1:]

    def block(self, x: jax.Array, p: Parameters) -> jax.Array:
        batch, steps, width = x.shape
        qkv = linear(norm(x, p["norm1"]), p["qkv"]).reshape(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        x = x + linear(attention(q, k, v).swapaxes(1, 2).reshape(x.shape), p["projection"])
        hidden = jax.nn.gelu(linear(norm(x, p["norm2"]), p["up"]), approximate=False)
        return x + linear(hidden, p["down"])

    def loss(self, p: Parameters, tokens: jax.Array, target: jax.Array) -> jax.Array:
        x = p["tokens"][tokens] + p["positions"][: tokens.shape[1]]
        for block in p["blocks"]:
            x = self.block(x, block)
        return cross_entropy(norm(x, p["norm"]) @ p["tokens"].T, target)


class LlamaBlock:
    """`tpu_cycles.py`: a Llama-3 block of width 2048, bfloat16, one sequence of 2,048 tokens, and a loss."""

    width, heads, groups, hidden, steps = 2048, 16, 4, 5632, 2048

    def parameters(self) -> Parameters:
        keys = iter(jax.random.split(jax.random.key(0), 20))
        head = self.width // self.heads

        def dense(inputs: int, outputs: int) -> jax.Array:
            return (0.02 * jax.random.normal(next(keys), (inputs, outputs))).astype(jnp.bfloat16)

        return {
            "norm1": jnp.ones(self.width, jnp.bfloat16),
            "norm2": jnp.ones(self.width, jnp.bfloat16),
            "q": dense(self.width, self.width),
            "k": dense(self.width, self.groups * head),
            "v": dense(self.width, self.groups * head),
            "out": dense(self.width, self.width),
            "gate": dense(self.width, self.hidden),
            "up": dense(self.width, self.hidden),
            "down": dense(self.hidden, self.width),
        }

    def data(self) -> tuple[jax.Array, jax.Array]:
        x = jax.random.normal(jax.random.key(1), (1, self.steps, self.width)).astype(jnp.bfloat16)
        return x, x

    def rms(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        return weight * (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)

    def rotate(self, x: jax.Array) -> jax.Array:
        """Rotary positions, float[batch, heads, time, head width]."""
        half = x.shape[-1] // 2
        frequency = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
        angle = jnp.arange(x.shape[-2], dtype=jnp.float32)[:, None] * frequency
        cos, sin = (jnp.concatenate([f(angle)] * 2, -1).astype(x.dtype) for f in (jnp.cos, jnp.sin))
        return x * cos + jnp.concatenate([-x[..., half:], x[..., :half]], -1) * sin

    def loss(self, p: Parameters, x: jax.Array, target: jax.Array) -> jax.Array:
        head = self.width // self.heads

        def split(t: jax.Array) -> jax.Array:
            return t.reshape(1, self.steps, -1, head).swapaxes(1, 2)

        h = self.rms(x, p["norm1"])
        q, k, v = self.rotate(split(h @ p["q"])), self.rotate(split(h @ p["k"])), split(h @ p["v"])
        k, v = (jnp.repeat(t, self.heads // self.groups, 1) for t in (k, v))
        scores = (q @ k.swapaxes(-1, -2)).astype(jnp.float32) / math.sqrt(head)
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        attended = jax.nn.softmax(scores, -1).astype(x.dtype) @ v
        x = x + attended.swapaxes(1, 2).reshape(x.shape) @ p["out"]
        h = self.rms(x, p["norm2"])
        x = x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
        return jnp.square((x - target).astype(jnp.float32)).mean()


MODELS = {"gpt_train": Gpt, "llama_block": LlamaBlock}


def zeros_like(tree: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, tree)


def adamw(p: Any, g: Any, m: Any, v: Any, count: jax.Array, lr: float = 1e-4) -> tuple[Any, Any, Any]:
    """A step with PyTorch's defaults."""
    beta1, beta2, eps, decay = 0.9, 0.999, 1e-8, 0.01
    m = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, m, g)
    v = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, v, g)
    correct1, correct2 = 1 - beta1**count, 1 - beta2**count

    def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        change = (m / correct1) / (jnp.sqrt(v / correct2) + eps)
        return (p * (1 - lr * decay) - lr * change).astype(p.dtype)

    return jax.tree.map(update, p, m, v), m, v


class Step:
    """A training step with donated parameters and optimizer state."""

    def __init__(self, name: str) -> None:
        self.model = MODELS[name]()
        p = self.model.parameters()
        self.state = (p, zeros_like(p), zeros_like(p), jnp.zeros((), jnp.float32))
        self.batch = self.model.data()
        self.jitted = jax.jit(self.step, donate_argnums=0)
        self.value: jax.Array | None = None

    def step(self, state: Any, *batch: jax.Array) -> tuple[Any, jax.Array]:
        p, m, v, count = state
        value, gradients = jax.value_and_grad(self.model.loss)(p, *batch)
        p, m, v = adamw(p, gradients, m, v, count + 1)
        return (p, m, v, count + 1), value

    def run(self) -> None:
        self.state, self.value = self.jitted(self.state, *self.batch)

    def text(self) -> str:
        return self.jitted.lower(self.state, *self.batch).as_text()


def serve(step: Step) -> None:
    def group(count: int) -> float:
        jax.block_until_ready(step.state)
        begin = time.perf_counter()
        for _ in range(count):
            step.run()
        jax.block_until_ready((step.state, step.value))
        return (time.perf_counter() - begin) / count

    for line in sys.stdin:
        request = json.loads(line)
        match request["do"]:
            case "first":
                reply: dict[str, Any] = {"seconds": group(1)}
            case "group":
                reply = {"seconds": group(request["count"])}
            case _:
                assert step.value is not None
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
                reply = {"check": [float(step.value)], "rss": peak, "version": jax.__version__}
        print(json.dumps(reply), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=sorted(MODELS))
    parser.add_argument("--text", action="store_true", help="write the program as StableHLO")
    args = parser.parse_args()
    step = Step(args.workload)
    if args.text:
        print(step.text())
    else:
        serve(step)


if __name__ == "__main__":
    main()
