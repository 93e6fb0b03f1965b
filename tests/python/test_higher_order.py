"""torch.compile of operators that take functions (torch.cond, scan, map, flex_attention, ...), against the CPU:
PyTorch's database of them, with gradients where it has them, and attention with scores and masks of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE, assert_matches, to_device
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.testing._internal.common_methods_invocations import OpInfo
from torch.testing._internal.hop_db import hop_db
from torch.utils import _pytree as pytree
from torch_tpu.compile.graphs import CompiledGraph

# Why an entry is left out.
NOT_TESTED = {
    "auto_functionalize": "its custom operator has a kernel for the CPU only",
    "inline_asm_elementwise": "takes CUDA's assembler",
    "local_map_hop": "dynamo cannot trace the function of the entry",
    "flex_attention_backward": "the CPU has no backward pass: below",
    "register_hook": "takes tensors that require a gradient: below",
}
NO_GRADIENT = {
    "invoke_quant": "AOTAutograd cannot divide the graph, on the CPU neither",
}
# Which way a branch or loop goes is known on the host only.
NEED_A_VALUE = ("while_loop_stack_output",)
DTYPES = (torch.float32, torch.int64)


def dtypes_of(op: OpInfo) -> tuple[torch.dtype, ...]:
    # flex_attention's entries name no dtypes; loops over cosines keep theirs only if it is floating.
    floating = "flex_attention" in op.name or "while_loop" in op.name
    return DTYPES[:1] if floating else tuple(d for d in DTYPES if d in op.dtypes)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def copies(tree: Any, device: str) -> Any:
    def copy(x: Any) -> Any:
        return to_device(x, device) if isinstance(x, Tensor) else x.to(device) if isinstance(x, BlockMask) else x

    return pytree.tree_map(copy, tree)


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def entries(wanted: Callable[[OpInfo], bool]) -> list[Any]:
    return [
        pytest.param(op, dtype, id=f"{op.name} {op.variant_test_name} {dtype}")
        for op in hop_db
        if wanted(op)
        for dtype in dtypes_of(op)
    ]


def has_gradient(op: OpInfo) -> bool:
    if op.name == "register_hook":
        return True
    return op.supports_autograd and op.name not in NOT_TESTED.keys() | NO_GRADIENT.keys() | {"flex_attention"}


@pytest.mark.parametrize(("op", "dtype"), entries(lambda op: op.name not in NOT_TESTED))
def test_results(op: OpInfo, dtype: torch.dtype, graphs: list[CompiledGraph]) -> None:
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        call = ((sample.input, *sample.args), sample.kwargs)
        (on_cpu, cpu_keywords), (given, keywords) = copies(call, "cpu"), copies(call, DEVICE)
        want = torch.compile(op.op, backend="eager")(*on_cpu, **cpu_keywords)
        torch._dynamo.reset()
        got = torch.compile(op.op, backend="tpu", fullgraph=True)(*given, **keywords)
        for g, w in zip(tensors(got), tensors(want), strict=True):
            assert_matches(g, w)
        one_program = [graph.reason is None for graph in graphs]
        assert one_program == [op.name not in NEED_A_VALUE] * len(graphs) and graphs


@pytest.mark.parametrize(("op", "dtype"), [e for e in entries(has_gradient) if e.values[1].is_floating_point])
def test_gradients(op: OpInfo, dtype: torch.dtype) -> None:
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        call = ((sample.input, *sample.args), sample.kwargs)
        wanted = []
        for device, backend in (("cpu", "aot_eager"), (DEVICE, "tpu")):
            torch._dynamo.reset()
            torch.manual_seed(0)
            args, keywords = copies(call, device)
            results = tensors(torch.compile(op.op, backend=backend)(*args, **keywords))
            inputs = [x for x in tensors((args, keywords)) if x.requires_grad]
            outputs = [x for x in results if x.requires_grad]
            assert inputs and outputs
            wanted.append(torch.autograd.grad([x.sin().sum() for x in outputs], inputs, allow_unused=True))
        for got, want in zip(wanted[1], wanted[0], strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                assert_matches(got, want)


# ---- flex_attention ------------------------------------------------------------------------------------

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 48, 16


def dense_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, mask_mod: Any, scale: float | None
) -> Tensor:
    """Attention written out; heads of keys and values are repeated for groups of those of queries."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * (scale or WIDTH**-0.5)
    index = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    if score_mod is not None:
        scores = score_mod(scores, *index)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(*index), -torch.inf)
    return scores.softmax(-1) @ value


Modifiers = dict[str, Callable[..., Tensor]]


def relative(tables: dict[str, Tensor]) -> Modifiers:
    return {"score_mod": lambda score, b, h, i, j: score + (i - j) * 0.1}


def alibi(tables: dict[str, Tensor]) -> Modifiers:
    slopes = tables["slopes"]
    return {
        "score_mod": lambda score, b, h, i, j: score - slopes[h] * (i - j).abs(),
        "mask_mod": lambda b, h, i, j: i >= j,
    }


def capped(tables: dict[str, Tensor]) -> Modifiers:
    return {
        "score_mod": lambda score, b, h, i, j: 2 * torch.tanh(score / 2),
        "mask_mod": lambda b, h, i, j: (i >= j) & (i - j < 10),
    }


def documents(tables: dict[str, Tensor]) -> Modifiers:
    document = tables["document"]
    return {"mask_mod": lambda b, h, i, j: (document[b, i] == document[b, j]) & (i >= j)}


@pytest.mark.parametrize("modifiers", [relative, alibi, capped, documents, lambda tables: {}])
@pytest.mark.parametrize(("key_heads", "scale"), [(HEADS, None), (2, 0.3)], ids=["heads", "groups"])
def test_flex_attention(
    modifiers: Callable[[dict[str, Tensor]], Modifiers],
    key_heads: int,
    scale: float | None,
    graphs: list[CompiledGraph],
) -> None:
    """Results and gradients; one program for each pass."""
    tables = {"slopes": torch.rand(HEADS), "document": torch.randint(3, (BATCH, LENGTH)).sort().values}
    sizes = [(BATCH, heads, LENGTH, WIDTH) for heads in (HEADS, key_heads, key_heads)]
    on_cpu = [torch.randn(size, requires_grad=True) for size in sizes]
    given, upstream = to_device(on_cpu), torch.randn(BATCH, HEADS, LENGTH, WIDTH)
    ours, theirs = modifiers(to_device(tables)), modifiers(tables)
    mask = ours.get("mask_mod")
    blocks = create_block_mask(mask, BATCH, None, LENGTH, LENGTH, device=DEVICE, BLOCK_SIZE=16) if mask else None
    graphs.clear()  # making the mask compiles as well
    attend = torch.compile(flex_attention, backend="tpu", fullgraph=True)
    options = {"block_mask": blocks, "scale": scale, "enable_gqa": key_heads != HEADS}
    got = attend(*given, score_mod=ours.get("score_mod"), **options)
    want = dense_attention(*on_cpu, theirs.get("score_mod"), theirs.get("mask_mod"), scale)
    assert_matches(got, want)
    gradients = torch.autograd.grad(got, given, upstream.to(DEVICE))
    assert_matches(list(gradients), list(torch.autograd.grad(want, on_cpu, upstream)))
    assert [graph.reason for graph in graphs] == [None, None]


def test_flex_attention_without_compile() -> None:
    query, key, value = (torch.randn(BATCH, HEADS, LENGTH, WIDTH) for _ in range(3))
    got = flex_attention(*to_device([query, key, value]), score_mod=relative({})["score_mod"])
    assert_matches(got, dense_attention(query, key, value, relative({})["score_mod"], None, None))


def test_flex_attention_leaves_other_devices_alone() -> None:
    query = torch.randn(BATCH, HEADS, LENGTH, WIDTH, device="meta")
    with pytest.raises(ValueError, match="only supported on"):
        flex_attention(query, query, query)
