"""In-place, out= and foreach forms, assignment by index, and copies: derived from the schema, so tested by kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, assert_matches, check, each_mode  # noqa: F401
from torch import Tensor

pytestmark = pytest.mark.usefixtures("each_mode")


def grid(*sizes: int) -> Tensor:
    count = torch.Size(sizes).numel()
    return ((torch.arange(count, dtype=torch.float32) * 7 % 11) - 4).reshape(sizes) / 4


INPLACE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a.add_(b, alpha=2),
    "sub": lambda a, b: a.sub_(b),
    "mul": lambda a, b: a.mul_(b),
    "div": lambda a, b: a.div_(b + 3),
    "pow": lambda a, b: a.pow_(2),
    "relu": lambda a, b: a.relu_(),
    "exp": lambda a, b: a.exp_(),
    "clamp": lambda a, b: a.clamp_(-0.5, 0.5),
    "masked_fill": lambda a, b: a.masked_fill_(b > 0, 9.0),
    "lerp": lambda a, b: a.lerp_(b, 0.25),
    "addcmul": lambda a, b: a.addcmul_(b, b, value=0.5),
    "addcdiv": lambda a, b: a.addcdiv_(b, b + 3, value=0.5),
    "copy_broadcast": lambda a, b: a.copy_(b[0]),
    "zero": lambda a, b: a.zero_(),
    "fill": lambda a, b: a.fill_(2.5),
    "fill_tensor": lambda a, b: a.fill_(torch.tensor(2.5)),
    "sigmoid": lambda a, b: a.sigmoid_(),
    "neg": lambda a, b: a.neg_(),
    "iadd": lambda a, b: a.__iadd__(1),
    "comparison": lambda a, b: a.gt_(b),
    "tril": lambda a, b: a.tril_(),
    "cumsum": lambda a, b: a.cumsum_(0),
    "t": lambda a, b: a.t_(),
    "squeeze": lambda a, b: a.unsqueeze_(0).squeeze_(0),
    "index_add": lambda a, b: a.index_add_(0, torch.tensor([0, 2, 0], device=a.device), b[:3]),
    "index_fill": lambda a, b: a.index_fill_(1, torch.tensor([0, 2], device=a.device), -1.0),
    "index_copy": lambda a, b: a.index_copy_(0, torch.tensor([2, 0], device=a.device), b[:2]),
    "scatter": lambda a, b: a.scatter_(1, torch.tensor([[0, 1], [2, 0]], device=a.device), 5.0),
    "scatter_add": lambda a, b: a.scatter_add_(1, torch.tensor([[0, 0], [2, 1]], device=a.device), b),
    "masked_scatter": lambda a, b: a.masked_scatter_(b > 0, b),
    "put": lambda a, b: a.put_(torch.tensor([1, 3], device=a.device), torch.tensor([8.0, 9.0], device=a.device)),
    "fill_diagonal": lambda a, b: a.fill_diagonal_(7.0),
}


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("name", INPLACE)
def test_inplace(name: str, layout: str) -> None:
    function = INPLACE[name]

    def run(base: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a = {"contiguous": base[:4, :4], "transposed": base.t()[:4, :4], "strided": base[::2, 1:5]}[layout]
        result = function(a, b)
        assert result is a
        return base, a

    check(run, grid(8, 8), grid(4, 4).t().contiguous())


def test_inplace_keeps_identity_and_dtype() -> None:
    for device in ("cpu", DEVICE):
        x = torch.arange(4, device=device)
        with pytest.raises(RuntimeError, match="can't be cast"):
            x.add_(0.5)
        assert x.add_(True).tolist() == [1, 2, 3, 4]
        y = torch.ones(3, device=device, dtype=torch.bfloat16)
        assert y.add_(torch.ones(3, device=device)).dtype == torch.bfloat16


def test_operand_is_the_result() -> None:
    check(lambda x: x.add_(x), grid(3, 4))
    check(lambda x: x.copy_(x), grid(4, 4))
    check(lambda x: x.copy_(x.t().clone()), grid(4, 4))
    check(lambda x: torch.add(x, x, out=x), grid(3, 4))
    x = grid(3, 3)
    on_device = x.to(DEVICE)  # the CPU may write elements that it has not read yet
    assert_matches(torch.matmul(on_device, on_device.clone(), out=on_device), x @ x)


OUT: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "add": lambda a, b, out: torch.add(a, b, out=out),
    "matmul": lambda a, b, out: torch.matmul(a, b, out=out),
    "cat": lambda a, b, out: torch.cat((a, b), out=out),
    "sum": lambda a, b, out: torch.sum(a, dim=0, out=out),
    "where": lambda a, b, out: torch.where(a > 0, a, b, out=out),
    "exp": lambda a, b, out: torch.exp(a, out=out),
    "index_select": lambda a, b, out: torch.index_select(a, 0, torch.tensor([1, 0], device=a.device), out=out),
}


@pytest.mark.parametrize("start", ["empty", "right", "strided"])
@pytest.mark.parametrize("name", OUT)
def test_out(name: str, start: str) -> None:
    function = OUT[name]
    a, b = grid(4, 4), grid(4, 4).t().contiguous()
    sizes = function(a, b, torch.empty(0)).shape

    def run(a: Tensor, b: Tensor) -> Tensor:
        if start == "empty":
            out = torch.empty(0, device=a.device)
        elif start == "right":
            out = torch.full(sizes, -1.0, device=a.device)
        else:
            out = torch.full((*sizes[:-1], 2 * sizes[-1]), -1.0, device=a.device)[..., ::2]
        result = function(a, b, out)
        assert result is out
        return out

    check(run, a, b, strides=True)


def test_out_of_several_results() -> None:
    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = torch.empty(0, device=x.device), torch.empty(0, dtype=torch.int64, device=x.device)
        torch.max(x, dim=1, out=(values, indices))
        return values, indices

    check(run, grid(4, 5))


def test_out_with_wrong_dtype_is_refused() -> None:
    for device in ("cpu", DEVICE):
        x = torch.ones(3, device=device)
        with pytest.raises(RuntimeError):
            torch.add(x, x, out=torch.empty(3, dtype=torch.int32, device=device))


FOREACH: dict[str, Callable[[list[Tensor], list[Tensor]], object]] = {
    "add": lambda a, b: torch._foreach_add(a, b, alpha=0.5),
    "add_": lambda a, b: torch._foreach_add_(a, b),
    "add_scalar_": lambda a, b: torch._foreach_add_(a, 1.5),
    "mul_": lambda a, b: torch._foreach_mul_(a, 0.5),
    "mul_list": lambda a, b: torch._foreach_mul(a, b),
    "mul_tensor_": lambda a, b: torch._foreach_mul_(a, torch.tensor(0.5, device=a[0].device)),
    "div_": lambda a, b: torch._foreach_div_(a, [2.0, 4.0, 8.0]),
    "sqrt": lambda a, b: torch._foreach_sqrt(torch._foreach_abs(a)),
    "neg_": lambda a, b: torch._foreach_neg_(a),
    "zero_": lambda a, b: torch._foreach_zero_(a),
    "lerp_": lambda a, b: torch._foreach_lerp_(a, b, 0.3),
    "addcmul_": lambda a, b: torch._foreach_addcmul_(a, b, b, 0.7),
    "addcdiv_": lambda a, b: torch._foreach_addcdiv_(a, b, torch._foreach_add(torch._foreach_abs(b), 1.0), -0.1),
    "copy_": lambda a, b: torch._foreach_copy_(a, b),
    "norm": lambda a, b: torch._foreach_norm(a),
    "maximum": lambda a, b: torch._foreach_maximum(a, b),
    "pow": lambda a, b: torch._foreach_pow(a, 2.0),
    "reciprocal": lambda a, b: torch._foreach_reciprocal(torch._foreach_add(torch._foreach_abs(a), 1.0)),
}


@pytest.mark.parametrize("name", FOREACH)
def test_foreach(name: str) -> None:
    a, b = [grid(3, 4), grid(5), grid(2, 2).t()], [-grid(3, 4), 2 * grid(5), grid(2, 2)]
    check(lambda a, b: FOREACH[name](a, b), a, b)


# ------------------------------------------------------------------------------------- assignment by index


ASSIGN: dict[str, Callable[[Tensor], None]] = {
    "integer": lambda x: x.__setitem__(1, 5.0),
    "slice": lambda x: x.__setitem__(slice(1, 3), 5.0),
    "step": lambda x: x.__setitem__((slice(None), slice(0, 5, 2)), -1.0),
    "row_tensor": lambda x: x.__setitem__(2, torch.arange(5.0, device=x.device)),
    "host_scalar_tensor": lambda x: x.__setitem__((0, 0), torch.tensor(3.0)),
    "mask": lambda x: x.__setitem__(x > 0, 0.0),
    "mask_tensor": lambda x: x.__setitem__(x > 0, torch.tensor(9.0, device=x.device)),
    "mask_rows": lambda x: x.__setitem__(torch.tensor([True, False, True, False], device=x.device), 1.0),
    "list": lambda x: x.__setitem__([0, 2], 4.0),
    "index_tensor": lambda x: x.__setitem__((torch.tensor([0, 1], device=x.device), torch.tensor([4, 3])), 8.0),
    "negative_index": lambda x: x.__setitem__(torch.tensor([-1, -2], device=x.device), 8.0),
    "index_and_slice": lambda x: x.__setitem__((slice(1, 3), torch.tensor([1, 1, 0], device=x.device)), 2.0),
    "ellipsis": lambda x: x.__setitem__((..., 0), 6.0),
    "broadcast": lambda x: x.__setitem__(slice(None), torch.arange(4.0, device=x.device)[:, None]),
    "other_dtype": lambda x: x.__setitem__(0, torch.arange(5, device=x.device)),
    "bool": lambda x: x.__setitem__(True, 3.0),
    "empty": lambda x: x.__setitem__(slice(2, 2), 3.0),
}


@pytest.mark.parametrize("name", ASSIGN)
def test_assignment(name: str) -> None:
    check(lambda x: ASSIGN[name](x), grid(4, 5))
    check(lambda x: ASSIGN[name](x.t()), grid(5, 4))


def test_index_reads() -> None:
    def run(x: Tensor) -> list[Tensor]:
        i, j = torch.tensor([0, -1, 1], device=x.device), torch.tensor([[1], [0]], device=x.device)
        return [
            x[i],
            x[:, i],
            x[i, i],
            x[j, i],
            x[x > 0],
            x[None, i, ..., 1],
            x[i][:, [0, 2]],
            x[i, 1:3],
            x[torch.tensor([True, False, True, True], device=x.device)],
            x[i.cpu()],
        ]

    check(run, grid(4, 5))


# ---------------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("source", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("target", [torch.float32, torch.int32, torch.bool, torch.float16, torch.uint8])
def test_copy_converts(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 100]).to(source)
    check(lambda x: [torch.zeros(4, dtype=target, device=x.device).copy_(x), x.to(target)], x)
    # Across devices the conversion may happen on either side; the numbers may not differ.
    assert_matches(torch.zeros(4, dtype=target, device=DEVICE).copy_(x), torch.zeros(4, dtype=target).copy_(x))
    back = torch.zeros(4, dtype=target).copy_(x.to(DEVICE))
    assert torch.equal(back, x.to(target))


def test_copies_never_alias() -> None:
    host = grid(64, 64)
    kept = host.clone()
    device = host.to(DEVICE)
    host.fill_(0)
    assert torch.equal(device.cpu(), kept)
    host = device.cpu()
    device.fill_(1)
    assert torch.equal(host, kept)
    host.fill_(2)
    assert device.sum().item() == 64 * 64
    clone = device.clone()
    device.zero_()
    assert clone.sum().item() == 64 * 64


def test_copy_between_layouts_and_devices() -> None:
    x = grid(6, 8)
    device = torch.zeros(8, 6, device=DEVICE)
    device.t().copy_(x)
    assert torch.equal(device.cpu(), x.t())
    host = torch.zeros(12, 8)
    host[::2].copy_(device.t())
    assert torch.equal(host[::2], x) and host[1::2].abs().sum() == 0
    device[1:3, 2:4] = x[:2, :2]
    assert torch.equal(device[1:3, 2:4].cpu(), x[:2, :2])
    assert torch.equal(torch.zeros(3, 6).copy_(device[5]), device[5].cpu().expand(3, 6))


def test_non_blocking_host_write_after_copy_is_the_users_duty_but_pageable_is_safe() -> None:
    """A pageable source has been read when the call returns, as with CUDA."""
    host = torch.ones(1 << 16)
    device = host.to(DEVICE, non_blocking=True)
    host.fill_(5)
    assert device.sum().item() == 1 << 16


def test_item_tolist_bool_and_printing() -> None:
    x = torch.tensor([[1.5, -2.0], [3.0, 4.25]]).to(DEVICE)
    assert x[1, 1].item() == 4.25 and x.tolist() == [[1.5, -2.0], [3.0, 4.25]]
    assert bool(x[0, 0] > 1) and int(x[1, 0]) == 3 and float(x[0, 1]) == -2.0
    assert f"{x[0, 0]:.2f}" == "1.50"
    assert f"device='{DEVICE}:0'" in repr(x) and "4.2500" in repr(x)
    assert x.numpy(force=True).tolist() == x.tolist()


def test_several_results_in_one_storage() -> None:
    def low_and_high(device: str) -> Tensor:
        both = torch.zeros(3, 2).to(device)
        x = torch.tensor([[1.0, 5.0, 2.0], [4.0, 3.0, 9.0], [7.0, 8.0, 6.0]]).to(device)
        torch.aminmax(x, dim=1, out=(both[:, 0], both[:, 1]))
        return both

    assert_matches(low_and_high(DEVICE), low_and_high("cpu"))


def test_partly_overlapping_operands_are_refused_in_every_form() -> None:
    for device in ("cpu", DEVICE):
        x = torch.arange(8.0).to(device)
        for call in (
            lambda x: x[1:].mul_(x[:-1]),
            lambda x: torch.add(x[:4], 1, out=x[2:6]),
            lambda x: x[1:].lerp_(x[:-1], 0.5),
            lambda x: x.view(2, 4)[0].addcmul_(x[1:5], x[4:]),
            lambda x: x[1:].copy_(x[:-1]),
            lambda x: torch.cumsum(x[:4], 0, out=x[2:6]),
            lambda x: x.index_add_(0, torch.arange(4, device=x.device), x[2:6]),
            lambda x: x.view(4, 2).mul_(x[:2]),
        ):
            with pytest.raises(RuntimeError, match="single memory location"):
                call(x)
        # The same elements in the same places are fine, and so are neighbours.
        x[:4].mul_(x[:4]).add_(x[4:])
        assert x.tolist() == [4, 6, 10, 16, 4, 5, 6, 7]


@pytest.mark.parametrize("write", ["fill_", "zero_"])
def test_one_number_may_be_written_to_repeated_elements(each_mode: str, write: str) -> None:  # noqa: F811
    def work(base: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        repeated = base[1:, None, :2].expand(2, 5, 2)
        result = repeated.zero_() if write == "zero_" else repeated.fill_(7)
        assert result is repeated
        return base, repeated

    check(work, torch.arange(1.0, 10.0).view(3, 3))
