"""Errors: PyTorch's exception types, at the user's line, in every mode, and a device that goes on working."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, every_mode  # noqa: F401
from torch import Tensor

pytestmark = pytest.mark.usefixtures("every_mode")


def line() -> int:
    """Line number of the caller."""
    return inspect.currentframe().f_back.f_lineno


# Arguments that PyTorch checks before anything runs: the CPU's exception type, raised by the call itself.
WRONG: dict[str, Callable[[str], object]] = {
    "matmul_sizes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "add_sizes": lambda d: torch.ones(2, device=d) + torch.ones(3, device=d),
    "cat_sizes": lambda d: torch.cat((torch.ones(2, 2, device=d), torch.ones(2, 3, device=d))),
    "cat_nothing": lambda d: torch.cat([]),
    "view_numel": lambda d: torch.ones(4, device=d).view(3),
    "view_strides": lambda d: torch.ones(4, 3, device=d).t().view(12),
    "select_range": lambda d: torch.ones(4, device=d)[4],
    "select_dim": lambda d: torch.ones(4, device=d).select(2, 0),
    "sum_dim": lambda d: torch.ones(4, device=d).sum(3),
    "index_dtype": lambda d: torch.ones(4, device=d)[torch.ones(2, device=d)],
    "mask_shape": lambda d: torch.ones(4, device=d)[torch.tensor([True, False], device=d)],
    "conv_channels": lambda d: F.conv2d(torch.ones(1, 3, 4, 4, device=d), torch.ones(2, 2, 3, 3, device=d)),
    "linear_width": lambda d: F.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
    "layer_norm_shape": lambda d: F.layer_norm(torch.ones(2, 3, device=d), (4,)),
    "cross_entropy_batch": lambda d: F.cross_entropy(torch.ones(2, 3, device=d), torch.ones(3, device=d).long()),
    "dropout_p": lambda d: F.dropout(torch.ones(2, device=d), 1.5),
    "item_of_many": lambda d: torch.ones(2, device=d).item(),
    "bool_of_many": lambda d: bool(torch.ones(2, device=d)),
    "max_of_nothing": lambda d: torch.ones(0, device=d).max(),
    "negative_size": lambda d: torch.empty(-1, device=d),
    "expand": lambda d: torch.ones(3, device=d).expand(2, 4),
    "permute": lambda d: torch.ones(2, 3, device=d).permute(0, 0),
    "inplace_broadcast": lambda d: torch.ones(3, device=d).add_(torch.ones(2, 3, device=d)),
    "unknown_reduction": lambda d: F.mse_loss(torch.ones(2, device=d), torch.ones(2, device=d), reduction="most"),
    "topk": lambda d: torch.ones(3, device=d).topk(4),
    "embedding_dtype": lambda d: F.embedding(torch.ones(2, device=d), torch.ones(3, 2, device=d)),
    "scatter_dim": lambda d: torch.zeros(2, device=d).scatter_(1, torch.zeros(2, device=d).long(), 1.0),
    "as_strided": lambda d: torch.ones(4, device=d).as_strided((2, 3), (3, 1)),
    "max_pool_kernel": lambda d: F.max_pool2d(torch.ones(1, 1, 4, 4, device=d), 3, padding=2),
    "dot": lambda d: torch.dot(torch.ones(2, device=d), torch.ones(3, device=d)),
    "add_int_out": lambda d: torch.add(torch.ones(2, device=d), 1, out=torch.empty(2, device=d).long()),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_what_the_cpu_raises(name: str) -> None:
    with pytest.raises(Exception) as want:
        WRONG[name]("cpu")
    with pytest.raises(want.type):
        WRONG[name](DEVICE)
    assert torch.ones(2, device=DEVICE).sum().item() == 2


def test_tensors_of_two_devices() -> None:
    with pytest.raises(RuntimeError, match=r"same device|different devices|expected.*device"):
        torch.ones(2, device=DEVICE) + torch.ones(2)
    with pytest.raises(RuntimeError, match=r"same device|different devices|expected.*device"):
        torch.ones(2, 2, device=DEVICE) @ torch.ones(2, 2)
    # A 0-d host tensor is a number.
    assert (torch.ones(2, device=DEVICE) + torch.tensor(1.0)).tolist() == [2, 2]


def test_missing_device() -> None:
    with pytest.raises(RuntimeError, match="99"):
        torch.ones(2, device=f"{DEVICE}:99")
    with pytest.raises(RuntimeError, match="99"):
        torch.tpu.set_device(99)


# Values that only the device sees: raised at the latest when a result is read, with operator and line.


def embedding_beyond_the_table(d: str) -> Tensor:
    return F.embedding(torch.tensor([0, 5], device=d) + 0, torch.ones(3, 2, device=d))


def index_beyond_the_end(d: str) -> Tensor:
    return torch.arange(3, device=d)[torch.arange(4, 6, device=d)]


def index_put_beyond_the_end(d: str) -> Tensor:
    x = torch.zeros(3, device=d)
    x[torch.arange(2, 5, device=d)] = 1.0
    return x


def gather_beyond_the_end(d: str) -> Tensor:
    return torch.ones(2, 2, device=d).gather(1, torch.full((2, 1), 7, device=d))


def index_select_beyond_the_end(d: str) -> Tensor:
    return torch.ones(2, 2, device=d).index_select(0, torch.full((1,), 2, device=d))


def scatter_beyond_the_end(d: str) -> Tensor:
    return torch.zeros(3, device=d).scatter(0, torch.arange(2, 5, device=d), torch.ones(3, device=d))


def target_beyond_the_classes(d: str) -> Tensor:
    return F.nll_loss(torch.zeros(2, 3, device=d), torch.arange(2, 4, device=d))


def integer_division_by_zero(d: str) -> Tensor:
    return torch.arange(1, 4, device=d) // torch.arange(3, device=d)


def integer_remainder_by_zero(d: str) -> Tensor:
    return torch.arange(1, 4, device=d) % torch.arange(3, device=d)


BAD_VALUES = (
    embedding_beyond_the_table,
    index_beyond_the_end,
    index_put_beyond_the_end,
    gather_beyond_the_end,
    index_select_beyond_the_end,
    scatter_beyond_the_end,
    target_beyond_the_classes,
    integer_division_by_zero,
    integer_remainder_by_zero,
)


@pytest.mark.parametrize("function", BAD_VALUES, ids=lambda f: f.__name__)
def test_bad_values_raise_with_operator_and_line(function: Callable[[str], Tensor]) -> None:
    with pytest.raises((IndexError, RuntimeError)) as want:
        function("cpu")
    lines, first = inspect.getsourcelines(function)
    with pytest.raises((IndexError, RuntimeError)) as got:
        function(DEVICE).cpu()
    message = str(got.value)
    assert got.type is want.type or IndexError in (got.type, want.type), message
    raised_by_call = any(entry.name == function.__name__ for entry in got.traceback)
    # Either the call itself raised, so that the traceback shows the line, or the message names it.
    named = any(f"test_errors.py:{first + i}" in message for i in range(len(lines)))
    assert raised_by_call or named, message
    torch.tpu.synchronize()
    assert torch.ones(2, device=DEVICE).sum().item() == 2


@pytest.mark.parametrize("function", BAD_VALUES, ids=lambda f: f.__name__)
def test_bad_values_are_raised_by_synchronize(function: Callable[[str], Tensor]) -> None:
    """Nobody reads the result; the synchronisation still reports it, once."""
    with pytest.raises((IndexError, RuntimeError)):
        function(DEVICE)
        torch.tpu.synchronize()
    torch.tpu.synchronize()


def test_late_error_names_the_operator_and_the_users_line() -> None:
    weight, index = torch.ones(4, 2, device=DEVICE), torch.arange(2, 5, device=DEVICE)
    # Arithmetic hides the values from the host, so that the device has to find out.
    index = (index.float() * weight[0, 0]).long()
    with pytest.raises(IndexError) as caught:
        expected = line() + 1
        wrong = F.embedding(index, weight)
        wrong.sum().item()
    message = str(caught.value)
    assert "embedding" in message, message
    in_call = any(e.lineno + 1 == expected and str(e.path) == __file__ for e in caught.traceback)
    assert in_call or f"test_errors.py:{expected}" in message, message


def test_backward_error_names_the_forward_line() -> None:
    x = torch.ones(4, device=DEVICE, requires_grad=True)
    zero = (torch.arange(4, device=DEVICE).float() * 0).long()
    index = zero + 9
    with pytest.raises((IndexError, RuntimeError), match=r"index|range|bound"):
        y = x.gather(0, index)
        y.sum().backward()
        torch.tpu.synchronize()


def test_in_range_values_raise_nothing() -> None:
    index = torch.tensor([-1, 0, 2], device=DEVICE)
    assert torch.arange(3, device=DEVICE)[index].tolist() == [2, 0, 2]
    loss = F.nll_loss(torch.zeros(2, 3, device=DEVICE), torch.tensor([-100, 2], device=DEVICE))
    assert loss.item() == 0
    assert (torch.arange(3, device=DEVICE) / torch.zeros(3, device=DEVICE)).isnan().tolist() == [True, False, False]
    torch.tpu.synchronize()


def test_overwriting_heals_a_failed_tensor() -> None:
    x = torch.zeros(3, device=DEVICE)
    try:
        x[torch.arange(2, 5, device=DEVICE)] = 1.0
        torch.tpu.synchronize()
    except (IndexError, RuntimeError):
        pass
    x.fill_(4)
    assert x.tolist() == [4, 4, 4]


def test_what_does_not_depend_on_a_failure_survives() -> None:
    """One launch may hold the failed tensor's users and others: the others still give their results."""
    if torch.tpu.get_eager_mode() == "debug":
        pytest.skip("in debug the call raises: nothing that depends on its result exists")
    weight = torch.ones(4, 2, device=DEVICE)
    with pytest.raises((torch.OutOfMemoryError, RuntimeError), match=r"(?i)memory|alloc|size"):
        big = torch.ones(1 << 46, device=DEVICE)
        big_sum = big.sum()
        good = weight * 3
        big_sum.item()
    with pytest.raises((torch.OutOfMemoryError, RuntimeError), match=r"(?i)memory|alloc|size"):
        also_lost = big_sum + weight
        also_good = good + weight
        also_lost.cpu()
    assert good.sum().item() == 24
    assert also_good.sum().item() == 32


def test_exception_between_recording_and_reading() -> None:
    """What was recorded before an exception of the user's is done, once, and nothing is left behind."""
    x = torch.arange(3.0, device=DEVICE)
    with pytest.raises(KeyError):
        y = x * 2
        x.add_(1)
        raise KeyError("the user's")
    with pytest.raises(RuntimeError):
        z = x + y
        x @ torch.ones(4, device=DEVICE)  # raised by the call, between two that are recorded
    x.add_(1)
    assert x.tolist() == [2, 3, 4]
    assert y.tolist() == [0, 2, 4]
    assert z.tolist() == [1, 4, 7]


def test_operator_that_cannot_be_lowered_in_the_middle() -> None:
    """Found out when the recording is made a program; only it and what needs it are lost."""
    x = torch.arange(3.0, device=DEVICE)
    integers = torch.arange(3, device=DEVICE)
    before = x * 2
    with pytest.raises(NotImplementedError, match="logcumsumexp"):
        lost = integers.logcumsumexp(0)
        lost_too = lost + x
        after = before + x
        lost_too.cpu()
    after = before + x
    assert before.tolist() == [0, 2, 4] and after.tolist() == [0, 3, 6]


def test_out_of_memory_is_pytorchs_exception() -> None:
    kept = torch.ones(4, device=DEVICE)
    with pytest.raises((torch.OutOfMemoryError, RuntimeError), match=r"(?i)memory|alloc|size"):
        x = torch.ones(1 << 46, device=DEVICE)
        x.sum().item()
    assert kept.sum().item() == 4
