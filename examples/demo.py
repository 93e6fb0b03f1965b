#!/usr/bin/env python3
"""Everything a newcomer wants to see, in one run: training, checkpoints, real weights, and a report.

    make demo
    python examples/demo.py --device cpu      # the same with plain PyTorch, for comparison

1. Trains a small GPT (examples/train_gpt.py) on the sources of Python's standard library, lets it write a
   few lines, saves a checkpoint, loads it on the CPU and compares the logits.
2. Ranks sentences with the real weights of all-MiniLM-L6-v2 (examples/sentence_similarity.py) and compares
   the embeddings with the CPU's.
3. Reports plugin, device, mode, compiled programs, cache hits and host fallbacks.

Exits with 1 and says why when a figure is off.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time

# Set before torch is imported, since importing torch loads the backend: an operator that would silently run
# on the CPU is an error in this demo, and the engine may record several operators into one program.
os.environ["TORCH_TPU_HOST_FALLBACK"] = "error"
os.environ.setdefault("TORCH_TPU_EAGER_MODE", "fused")

import sentence_similarity
import torch
import train_gpt

# Cross-entropy of an untrained model is ln(95 characters) = 4.57; character frequencies alone reach 3.1.
LARGEST_LOSS_RATIO = 0.55
# Both sides compute in float32 with sums in different orders; neither may be much further from float64 than
# the other.
LARGEST_ERROR_RATIO = 2.0
LARGEST_EMBEDDING_DIFFERENCE = 1e-5


class Checks:
    """Prints each figure beside its limit and remembers those that are off."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def expect(self, good: bool, text: str) -> None:
        print(f"  {'ok  ' if good else 'FAIL'} {text}", flush=True)
        if not good:
            self.failed.append(text)


def heading(text: str) -> None:
    print(f"\n== {text}", flush=True)


def train_and_check(device: str, steps: int, checks: Checks) -> None:
    heading(f"Training a character-level GPT on {device}")
    torch.manual_seed(0)
    characters = train_gpt.Characters()
    text = train_gpt.standard_library_text()
    model = train_gpt.GPT(train_gpt.Config(vocabulary=len(characters))).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(text):,} characters of Python's standard library, {steps} steps")
    tokens = characters.encode(text)
    result = train_gpt.train(model, tokens, device, steps=steps)
    checks.expect(
        result.last_loss < LARGEST_LOSS_RATIO * result.first_loss,
        f"loss {result.first_loss:.3f} -> {result.last_loss:.3f} (limit {LARGEST_LOSS_RATIO} x the first), "
        f"{result.seconds:.1f} s, {result.tokens_per_second:,.0f} tokens/s",
    )

    heading("What it writes")
    print(train_gpt.sample(model, characters, "def ", 240, device))

    heading("Checkpoint: saved from the device, loaded on the CPU")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "gpt.pt"
        train_gpt.save(model, path)
        size = path.stat().st_size
        on_cpu = train_gpt.load(path, "cpu")
    probe = tokens[: 4 * model.config.context].view(4, -1)
    with torch.no_grad():
        got, want = model(probe.to(device)).cpu(), on_cpu(probe)
        exact = on_cpu.double()(probe)
    error, cpu_error = (got - exact).abs().max().item(), (want - exact).abs().max().item()
    checks.expect(
        error <= LARGEST_ERROR_RATIO * cpu_error,
        f"{size:,} bytes; logits differ by {(got - want).abs().max().item():.1e} at most; from float64 by {error:.1e}, "
        f"the CPU's by {cpu_error:.1e} (limit {LARGEST_ERROR_RATIO} x the CPU's)",
    )


def rank_and_check(device: str, checks: Checks) -> None:
    heading(f"Real weights: all-MiniLM-L6-v2 on {device}")
    tokenizer = sentence_similarity.load_tokenizer()
    texts = (sentence_similarity.QUERY, *sentence_similarity.SENTENCES)
    model = sentence_similarity.load_model(device)
    start = time.perf_counter()
    got = sentence_similarity.embed(model, tokenizer, texts)
    got_on_cpu = got.cpu()
    seconds = time.perf_counter() - start
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters; first forward pass {seconds:.1f} s\n{texts[0]}")
    for score, sentence in sentence_similarity.rank(got, texts[1:]):
        print(f"  {score:6.3f}  {sentence}")
    want = sentence_similarity.embed(sentence_similarity.load_model("cpu"), tokenizer, texts)
    difference = (got_on_cpu - want).abs().max().item()
    checks.expect(
        difference <= LARGEST_EMBEDDING_DIFFERENCE,
        f"largest difference of an embedding to the CPU's: {difference:.1e} (limit {LARGEST_EMBEDDING_DIFFERENCE})",
    )


def report(device: str, checks: Checks) -> None:
    heading("Report")
    if device == "cpu":
        print("plain PyTorch on the CPU; nothing to report")
        return
    import torch_tpu

    statistics, fallbacks = torch_tpu.compile_stats(), torch_tpu.host_fallbacks()
    print(f"  plugin      {torch_tpu._C.client_info()['plugin_path']}")
    print(f"  device      {torch.tpu.get_device_name()}")
    print(f"  mode        {torch.tpu.get_eager_mode()}")
    print(
        f"  programs    {statistics['compiles']:.0f} compiled in {statistics['compile_seconds']:.1f} s, "
        f"{statistics['disk_hits']:.0f} found on disk, {statistics['memory_hits']:.0f} found in memory"
    )
    checks.expect(statistics["executions"] > 0, f"{statistics['executions']:.0f} programs run on the device")
    checks.expect(not fallbacks, f"operators run on the host: {fallbacks or 'none'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    start = time.perf_counter()
    checks = Checks()
    train_and_check(args.device, args.steps, checks)
    rank_and_check(args.device, checks)
    report(args.device, checks)
    print(f"\n{time.perf_counter() - start:.0f} s")
    for text in checks.failed:
        print(f"off: {text}", file=sys.stderr)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
