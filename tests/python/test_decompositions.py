"""Operators without a row: PyTorch's decompositions, taped once per signature and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from helpers import DEVICE, every_mode  # noqa: F401
from torch import Tensor
from torch_tpu import _C

pytestmark = pytest.mark.usefixtures("every_mode")

Body = Callable[..., Tensor]


class Custom:
    """A library operator whose only implementation is a decomposition, as third parties write them."""

    count = 0  # names are never used twice: the engine asks once for an operator's decomposition

    def __init__(self, library: torch.library.Library) -> None:
        self.library = library
        self.runs = 0

    def __call__(self, schema: str, body: Body) -> Callable[..., Tensor]:
        name = f"op{Custom.count}"
        Custom.count += 1
        self.library.define(name + schema)
        op = getattr(torch.ops.tpu_test_decompositions, name).default

        def counted(*args: object, **kwargs: object) -> Tensor:
            self.runs += 1
            return body(*args, **kwargs)

        torch._decomp.decomposition_table[op] = counted
        return op


@pytest.fixture
def custom() -> Iterator[Custom]:
    with torch.library._scoped_library("tpu_test_decompositions", "DEF") as library:
        made = Custom(library)
        yield made
        for op in list(torch._decomp.decomposition_table):
            if op.namespace == "tpu_test_decompositions":
                del torch._decomp.decomposition_table[op]


def chain(x: Tensor, y: Tensor, power: float) -> Tensor:
    z = torch.stack([x.t(), y.t()]).mul_(2)
    z[0].add_(y.t())
    return (z.flatten(1).view(2, *x.t().shape) ** power).sum(0)


def test_python_runs_once_per_signature(custom: Custom) -> None:
    op = custom("(Tensor x, Tensor y, float power) -> Tensor", chain)
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    for _ in range(4):
        torch.testing.assert_close(op(x.to(DEVICE), y.to(DEVICE), 2.0).cpu(), chain(x, y, 2.0))
    assert custom.runs == 1
    torch.testing.assert_close(op(x.to(DEVICE), y.to(DEVICE), 3.0).cpu(), chain(x, y, 3.0))
    wide = torch.rand(4, 5).to(DEVICE)
    torch.testing.assert_close(op(wide[1:], wide[:3], 3.0).cpu(), chain(wide[1:].cpu(), wide[:3].cpu(), 3.0))
    assert custom.runs == 3


def test_one_program_for_one_operator(custom: Custom) -> None:
    op = custom("(Tensor x, Tensor y, float power) -> Tensor", chain)
    x, y = torch.rand(3, 4).to(DEVICE), torch.rand(3, 4).to(DEVICE)
    op(x, y, 2.0)
    torch.tpu.synchronize()
    before = _C.compile_stats()["executions"]
    op(x, y, 2.0)
    torch.tpu.synchronize()
    launches = _C.compile_stats()["executions"] - before
    assert launches == 1 or torch.tpu.get_eager_mode() == "debug"


def test_random_numbers_are_drawn_anew(custom: Custom) -> None:
    op = custom("(Tensor x) -> Tensor", lambda x: x + torch.rand_like(x))
    x = torch.zeros(64).to(DEVICE)
    draws = [op(x).cpu() for _ in range(3)]
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[1], draws[2])
    torch.manual_seed(3)
    first = op(x).cpu()
    torch.manual_seed(3)
    torch.testing.assert_close(op(x).cpu(), first, rtol=0, atol=0)


def test_values_that_python_reads_are_never_stale(custom: Custom) -> None:
    op = custom("(Tensor x) -> Tensor", lambda x: x * x.max().item())
    for top in (2.0, 3.0, 4.0):
        x = torch.tensor([1.0, top])
        torch.testing.assert_close(op(x.to(DEVICE)).cpu(), x * top)
    assert custom.runs == 3


def test_tensors_from_elsewhere_are_never_stale(custom: Custom) -> None:
    outside = torch.ones(2, device=DEVICE)
    op = custom("(Tensor x) -> Tensor", lambda x: x + outside)
    x = torch.zeros(2, device=DEVICE)
    assert op(x).tolist() == [1, 1]
    outside = torch.full((2,), 5.0, device=DEVICE)
    assert op(x).tolist() == [5, 5]


def test_writing_decompositions(custom: Custom) -> None:
    op = custom("(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: x.mul_(y).add_(1))
    for scale in (2.0, 3.0):
        base = torch.ones(3, 2, device=DEVICE)
        column = base[:, 1]
        result = op(column, torch.full((3,), scale, device=DEVICE))
        assert result is column or result.data_ptr() == column.data_ptr()
        assert base.tolist() == [[1, scale + 1]] * 3


def test_same_tensor_twice(custom: Custom) -> None:
    """x.mul_(y) with x as y is another call than with two tensors."""
    op = custom("(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: x.add_(1).mul_(y))
    for _ in range(2):
        x = torch.ones(2, device=DEVICE)
        assert op(x, torch.ones(2, device=DEVICE)).tolist() == [2, 2]
        assert op(x, x).tolist() == [9, 9]


def test_errors_name_the_users_line(custom: Custom) -> None:
    op = custom("(Tensor x, Tensor i) -> Tensor", lambda x, i: x.relu().index_select(0, i))
    x = torch.ones(3, device=DEVICE)
    good, bad = torch.tensor([1], device=DEVICE), torch.tensor([7], device=DEVICE)
    for _ in range(2):
        op(x, good)
        with pytest.raises(IndexError, match=r"index_select.*test_decompositions\.py"):
            op(x, bad).cpu()
    assert custom.runs == 1


def test_unknown_custom_operator_is_refused(custom: Custom) -> None:
    custom.library.define("nothing(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="nothing"):
        torch.ops.tpu_test_decompositions.nothing(torch.ones(2, device=DEVICE))


@pytest.mark.parametrize("rows", [(3, 4, 0), (4, 3, -1), (0, 2, 0)])
def test_indices_of_triangles(rows: tuple[int, int, int]) -> None:
    for name in ("tril_indices", "triu_indices"):
        function = getattr(torch, name)
        for _ in range(2):
            assert function(*rows, device=DEVICE).tolist() == function(*rows).tolist()


def test_encoder_layer() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        want = layer(x)
        layer.to(DEVICE)
        before = _C.tape_stats()["replays"]
        for _ in range(3):
            torch.testing.assert_close(layer(x.to(DEVICE)).cpu(), want)
    assert _C.tape_stats()["replays"] >= before + 2
