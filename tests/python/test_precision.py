"""torch.set_float32_matmul_precision, for the whole process and for a block."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torch_tpu
from torch import Tensor
from torch_tpu import aot
from torch_tpu._internal import topology
from torch_tpu.aot import programs

PRODUCTS: dict[str, Callable[[Tensor], Tensor]] = {
    "mm": lambda x: x @ x,
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "convolution": lambda x: F.conv1d(x[None], x[:, :, None]),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}
# What torch calls it -> what StableHLO does.
PRECISIONS = {"highest": "HIGHEST", "high": "HIGH", "medium": None}


def program(function: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float32) -> str:
    return programs.capture(function, (torch.empty(8, 8, dtype=dtype, device="meta"),), {}, platform="tpu").text


def precisions(text: str) -> set[str | None]:
    products = [line for line in text.splitlines() if "dot_general" in line or "stablehlo.convolution" in line]
    assert products
    found = [re.findall(r"\b(DEFAULT|HIGH|HIGHEST)\b", line) for line in products]
    return {names[0] if names else None for names in found}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_the_precision_that_is_set(name: str) -> None:
    assert precisions(program(PRODUCTS[name])) == {"HIGHEST"}
    for precision, name_there in PRECISIONS.items():
        with torch_tpu.matmul_precision(precision):
            assert torch.get_float32_matmul_precision() == precision
            assert precisions(program(PRODUCTS[name])) == {name_there}
    assert torch.get_float32_matmul_precision() == "highest"
    assert precisions(program(PRODUCTS[name])) == {"HIGHEST"}


def test_narrower_types_and_factorisations_are_not_concerned() -> None:
    assert precisions(program(PRODUCTS["mm"], torch.bfloat16)) == {None}
    with torch_tpu.matmul_precision("medium"):
        assert precisions(program(torch.linalg.qr)) == {"HIGHEST"}  # type: ignore[arg-type]


def test_setting_is_put_back_after_an_exception() -> None:
    with pytest.raises(KeyError), torch_tpu.matmul_precision("high"):
        raise KeyError
    assert torch.get_float32_matmul_precision() == "highest"


def test_both_programs_are_kept() -> None:
    x = torch.randn(16, 16)
    on_device = x.to("tpu")

    def both() -> None:
        torch.testing.assert_close((on_device @ on_device).cpu(), x @ x)
        with torch_tpu.matmul_precision("medium"):
            torch.testing.assert_close((on_device @ on_device).cpu(), x @ x)  # the CPU plugin computes in float32

    both()
    before = torch_tpu.compile_stats()
    both()
    after = torch_tpu.compile_stats()
    assert after["compiles"] + after["disk_hits"] == before["compiles"] + before["disk_hits"]


@pytest.mark.skipif(not topology.libtpu_installed(), reason="libtpu is not installed")
def test_a_tpu_takes_fewer_passes_for_less() -> None:
    x = torch.empty(1024, 1024, device="meta")
    cycles = []
    for precision in ("highest", "high", "medium"):
        with torch_tpu.matmul_precision(precision):
            cycles.append(aot.compile(torch.mm, (x, x), topology="v5e:2x2").estimated_cycles)
    assert cycles[0] > 1.5 * cycles[1] > 1.5 * cycles[2], cycles
