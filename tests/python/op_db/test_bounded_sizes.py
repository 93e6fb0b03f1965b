"""Entries of the operator database on tensors that are stored in larger arrays (docs/dynamic_shapes.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch_tpu
from cases import run_entry
from entries import QUICK, Extent

# What stands behind the end is another number in each dtype.
FULL = Extent(every_dtype=True, samples=3)
EXTENT = FULL if os.environ.get("TORCH_TPU_TEST_FULL") == "1" else QUICK


@pytest.fixture(autouse=True)
def all_sizes_change() -> Iterator[None]:
    with torch_tpu.bounded_sizes("always"):
        yield


# Entries whose rows have rules of their own (csrc/lowering/bounded.cpp), and what they are put together of.
ENTRIES = [
    "add",
    "div.no_rounding_mode",
    "div.floor_rounding",
    "floor_divide",
    "remainder",
    "where",
    "clamp",
    "masked_fill",
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "all",
    "any",
    "count_nonzero",
    "logsumexp",
    "var",
    "std_mean",
    "linalg.vector_norm",
    "cumsum",
    "cumprod",
    "softmax",
    "log_softmax",
    "nn.functional.layer_norm",
    "nn.functional.rms_norm",
    "mm",
    "bmm",
    "mv",
    "dot",
    "addmm",
    "addbmm",
    "baddbmm",
    "matmul",
    "nn.functional.linear",
    "gather",
    "index_select",
    "nn.functional.embedding",
    "nn.functional.nll_loss",
    "nn.functional.cross_entropy",
    "cat",
    "stack",
    "hstack",
    "repeat",
    "tril",
    "nn.functional.pad.constant",
    "topk",
    "max.reduction_with_dim",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.glu",
    "flip",
    "roll",
    "sort",
    "argsort",
    "scatter_add",
    "nn.functional.conv1d",
    "nn.functional.conv2d",
    "nn.functional.conv3d",
    "nn.functional.conv_transpose1d",
    "nn.functional.conv_transpose2d",
    "nn.functional.batch_norm",
    "nn.functional.instance_norm",
    "nn.functional.max_pool1d",
    "nn.functional.max_pool2d",
    "nn.functional.avg_pool2d",
    "nn.functional.adaptive_avg_pool2d",
    "nn.functional.interpolate.bilinear",
    "nn.functional.mse_loss",
    "nn.functional.l1_loss",
    "nn.functional.smooth_l1_loss",
    "nn.functional.huber_loss",
    "nn.functional.soft_margin_loss",
    "nn.functional.binary_cross_entropy",
    "nn.functional.binary_cross_entropy_with_logits",
    "index_add",
    "index_put",
    "nn.functional.group_norm",
    "linalg.solve",
]


@pytest.mark.quick
@pytest.mark.parametrize("check", ["forward", "gradient"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_entries_of_the_operator_database(entry: str, check: str) -> None:
    outcome = run_entry(entry, check, extent=EXTENT)
    assert not outcome.failed
    assert outcome.passed or check == "gradient"
