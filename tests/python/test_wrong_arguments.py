"""Calls that PyTorch's kernels refuse although its meta kernels do not: the device refuses them too, with an exception
of the same type, instead of computing something."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, assert_matches, to_device
from torch import Tensor

Call = Callable[..., object]

FLOATS = torch.tensor([[0.5, -1.5, 2.0], [1.0, 3.5, -0.5]])
SQUARE = torch.eye(3) * 2
IMAGE = torch.rand(1, 2, 4, 4)

# Operators by the dtypes that none of PyTorch's kernels takes.
REFUSED: dict[tuple[torch.dtype, ...], dict[str, tuple[Call, Tensor]]] = {
    (torch.complex64,): {
        "amax": (lambda x: x.amax(0), FLOATS),
        "atan2": (torch.atan2, FLOATS),
        "clamp": (lambda x: x.clamp(max=x), FLOATS),
        "cummax": (lambda x: x.cummax(0), FLOATS),
        "erf": (torch.erf, FLOATS),
        "greater": (lambda x: x > x, FLOATS),
        "lgamma": (torch.lgamma, FLOATS),
        "maximum": (lambda x: torch.maximum(x, x), FLOATS),
        "signbit": (torch.signbit, FLOATS),
        "sort": (torch.sort, FLOATS),
        "i1e": (torch.special.i1e, FLOATS),
        "xlog1py": (lambda x: torch.special.xlog1py(x, x), FLOATS),
        "zeta": (lambda x: torch.special.zeta(x, x), FLOATS),
    },
    (torch.complex64, torch.bool): {
        "argmax": (torch.argmax, FLOATS),
        "floor": (torch.floor, FLOATS),
        "kthvalue": (lambda x: x.kthvalue(1), FLOATS),
        "max_pool": (lambda x: F.max_pool2d(x, 2), IMAGE),
        "remainder": (lambda x: torch.remainder(x, x), FLOATS),
        "topk": (lambda x: x.topk(1), FLOATS),
    },
    (torch.bool,): {
        "abs": (torch.abs, FLOATS),
        "convolution": (lambda x: F.conv2d(x, x), IMAGE),
        "mv": (lambda x: x @ x[0], SQUARE),
        "pad": (lambda x: F.pad(x, (1, 1), "reflect"), FLOATS),
    },
    (torch.complex64, torch.bool, torch.int64): {
        "average": (lambda x: F.adaptive_avg_pool2d(x, 2), IMAGE),
        "elu": (F.elu, FLOATS),
        "frac": (torch.frac, FLOATS),
        "gelu": (F.gelu, FLOATS),
        "huber": (lambda x: F.huber_loss(x, x), FLOATS),
        "layer_norm": (lambda x: F.layer_norm(x, (3,)), FLOATS),
        "leaky_relu": (F.leaky_relu, FLOATS),
        "log_softmax": (lambda x: F.log_softmax(x, 0), FLOATS),
        "logits": (lambda x: F.binary_cross_entropy_with_logits(x, x), FLOATS),
        "mish": (F.mish, FLOATS),
        "nextafter": (lambda x: torch.nextafter(x, x), FLOATS),
        "nll": (lambda x: F.nll_loss(x, torch.tensor([0, 1]).to(x.device)), FLOATS),
        "softmax": (lambda x: F.softmax(x, 0), FLOATS),
        "softshrink": (F.softshrink, FLOATS),
    },
    (torch.bool, torch.int64): {
        "det": (torch.linalg.det, SQUARE),
        "eigh": (torch.linalg.eigh, SQUARE),
        "lerp": (lambda x: torch.lerp(x, x, 0.5), FLOATS),
        "qr": (torch.linalg.qr, SQUARE),
        "silu": (F.silu, FLOATS),
        "svd": (torch.linalg.svd, SQUARE),
        "var": (torch.var, FLOATS),
    },
    (torch.float16, torch.bfloat16): {
        "cholesky": (torch.linalg.cholesky, torch.eye(3)),
        "eigvalsh": (torch.linalg.eigvalsh, SQUARE),
        "factors": (torch.linalg.lu_factor, SQUARE),
        "inverse": (torch.linalg.inv, SQUARE),
        "orthogonal": (torch.linalg.qr, SQUARE),
        "solution": (lambda x: torch.linalg.solve(x, x), SQUARE),
        "triangular": (lambda x: torch.linalg.solve_triangular(x, x, upper=True), SQUARE),
        "values": (torch.linalg.svdvals, SQUARE),
    },
    (torch.complex64, torch.bool, torch.int64, torch.uint8): {
        "linear": (lambda x: F.interpolate(x, size=3, mode="linear"), FLOATS[None]),
    },
    (torch.float32, torch.bool): {"gcd": (lambda x: torch.gcd(x, x), FLOATS)},
    (torch.float32, torch.complex64): {"and": (lambda x: x & x, FLOATS)},
}


def raised(call: Callable[[], object]) -> type[Exception] | None:
    try:
        result = call()
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            tensor.cpu()  # type: ignore[attr-defined]
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    ("name", "call", "x", "dtype"),
    [
        pytest.param(name, call, x, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}")
        for dtypes, calls in REFUSED.items()
        for name, (call, x) in calls.items()
        for dtype in dtypes
    ],
)
def test_dtypes_without_a_kernel(name: str, call: Call, x: Tensor, dtype: torch.dtype) -> None:
    x = x.to(dtype)
    want = raised(lambda: call(x))
    assert want is not None
    assert raised(lambda: call(x.to(DEVICE))) is want


def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(sizes, dtype=dtype)


@pytest.mark.parametrize(
    "call",
    [
        lambda b, x: torch.remainder(b, 2),
        lambda b, x: b // 2,
        lambda b, x: torch.bitwise_left_shift(b, 1),
        lambda b, x: torch.gcd(b.int(), b),
        lambda b, x: b.amax(),
        lambda b, x: x.index_put((b,), torch.tensor(3.0, dtype=torch.float64)),
        lambda b, x: F.layer_norm(x.bfloat16(), (2,), x.bfloat16()),
        lambda b, x: F.batch_norm(x[None].bfloat16(), x, x.abs()),
        lambda b, x: F.softmax(b, 0, dtype=torch.float32),
        lambda b, x: torch.ops.aten.addmm(x, x.outer(x), x.outer(x), beta=0.5),
        lambda b, x: F.mse_loss(b.long(), x),
        lambda b, x: F.smooth_l1_loss(x, b.long()),
        lambda b, x: x.index_add(0, b.int(), x),
        lambda b, x: F.conv_transpose1d(x[None, None], x[None, None], dilation=2, output_padding=1),
    ],
)
def test_numbers_decide_too(call: Call) -> None:
    """Near those that are refused."""
    arguments = [torch.tensor([True, False]), torch.tensor([1.0, -2.0])]
    assert_matches(call(*to_device(arguments)), call(*arguments))


INT, DOUBLE = torch.int64, torch.float64
MISFITS: dict[str, tuple[Call, tuple[Tensor, ...]]] = {
    "mm": (torch.mm, (zeros(2, 3), zeros(3, 2, dtype=DOUBLE))),
    "linear": (F.linear, (zeros(2, 3), zeros(2, 3, dtype=torch.bfloat16))),
    "linear, one row": (F.linear, (zeros(3), zeros(2, 3, dtype=INT))),
    "addmm": (torch.addmm, (zeros(2, dtype=DOUBLE), zeros(2, 3), zeros(3, 2))),
    "bmm": (torch.bmm, (zeros(1, 2, 3), zeros(1, 3, 2, dtype=DOUBLE))),
    "baddbmm": (torch.baddbmm, (zeros(2, dtype=INT), zeros(1, 2, 3), zeros(1, 3, 2))),
    "dot": (torch.dot, (zeros(3), zeros(3, dtype=DOUBLE))),
    "convolution": (F.conv2d, (IMAGE, zeros(1, 2, 2, 2, dtype=DOUBLE))),
    "bias of another size": (F.conv2d, (IMAGE, zeros(3, 2, 2, 2), zeros(1))),
    "bias of another size, transposed": (F.conv_transpose2d, (IMAGE, zeros(2, 3, 2, 2), zeros(2))),
    "kernel without elements": (F.conv2d, (IMAGE, zeros(3, 2, 2, 0))),
    "image without elements": (F.conv2d, (IMAGE[..., :0], zeros(3, 2, 2, 2))),
    "no output channel": (F.conv2d, (IMAGE, zeros(0, 2, 2, 2))),
    "index_select by floats": (lambda x, i: x.index_select(0, i), (FLOATS, zeros(1))),
    "index_select by a matrix": (lambda x, i: x.index_select(0, i), (FLOATS, zeros(1, 1, dtype=INT))),
    "index_copy of another dtype": (
        lambda x, i, y: x.index_copy(0, i, y),
        (FLOATS, zeros(1, dtype=INT), zeros(1, 3, dtype=DOUBLE)),
    ),
    "grid of another dtype": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        (IMAGE, zeros(1, 2, 2, 2, dtype=DOUBLE)),
    ),
    "index_copy by int32": (
        lambda x, i, y: x.index_copy(0, i, y),
        (FLOATS, zeros(1, dtype=torch.int32), zeros(1, 3)),
    ),
    "an image of no pixels": (lambda x: F.interpolate(x, size=(0, 3), mode="bilinear"), (IMAGE,)),
    "dropout of more than all": (
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=1.5),
        (torch.rand(1, 1, 2, 4),),
    ),
    "put at floats": (lambda x, i, y: x.put(i, y), (FLOATS, zeros(1), zeros(1))),
    "put of another dtype": (lambda x, i, y: x.put(i, y), (FLOATS, zeros(1, dtype=INT), zeros(1, dtype=DOUBLE))),
    "put of more": (lambda x, i, y: x.put(i, y), (FLOATS, zeros(1, dtype=INT), zeros(2))),
    "index_put of another dtype": (
        lambda x, i, y: x.index_put((i,), y),
        (FLOATS, zeros(1, dtype=INT), zeros(3, dtype=INT)),
    ),
    "weights of a bag": (
        lambda i, w, s: F.embedding_bag(i, w, per_sample_weights=s, mode="sum"),
        (zeros(2, 2, dtype=INT), FLOATS, zeros(2, 2, dtype=DOUBLE)),
    ),
    "weights of a normalisation": (lambda x, w: F.layer_norm(x, (3,), w), (FLOATS, zeros(3, dtype=DOUBLE))),
    "statistics of a normalisation": (F.batch_norm, (FLOATS, zeros(3, dtype=DOUBLE), zeros(3, dtype=DOUBLE))),
    "index_add of another dtype": (
        lambda x, i, y: x.index_add(0, i, y),
        (FLOATS, zeros(1, dtype=INT), zeros(1, 3, dtype=torch.complex64)),
    ),
    "index_add by floats": (lambda x, i, y: x.index_add(0, i, y), (FLOATS, zeros(1), zeros(1, 3))),
    "index_add of narrower rows": (lambda x, i, y: x.index_add(0, i, y), (FLOATS, zeros(1, dtype=INT), zeros(1, 2))),
    "index_reduce by a matrix": (
        lambda x, i, y: x.index_reduce(0, i, y, "amax"),
        (FLOATS, zeros(1, 1, dtype=INT), zeros(1, 3)),
    ),
    "index_fill by int32": (lambda x, i: x.index_fill(0, i, 1), (FLOATS, zeros(1, dtype=torch.int32))),
    "a mask that is too short": (
        lambda x, m: x.index_put((m,), torch.tensor(1.0)),
        (FLOATS, zeros(1, dtype=torch.bool)),
    ),
    "bias of complex numbers": (
        F.conv_transpose2d,
        (IMAGE, zeros(2, 3, 2, 2), zeros(3, dtype=torch.complex64)),
    ),
    "output padding of a stride": (
        lambda x, w: F.conv_transpose2d(x, w, output_padding=1),
        (IMAGE, zeros(2, 3, 2, 2)),
    ),
    "negative output padding": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=-1),
        (IMAGE, zeros(2, 3, 2, 2)),
    ),
    "negative padding of windows": (lambda x: F.unfold(x, 2, padding=-1), (IMAGE,)),
    "a mean without a variance": (lambda x, m: F.batch_norm(x, m, None, training=True), (FLOATS, zeros(3))),
    "a variance without a mean": (lambda x, v: F.instance_norm(x, None, v), (IMAGE, zeros(2))),
    "heaviside of two dtypes": (torch.heaviside, (FLOATS, zeros(3, dtype=DOUBLE))),
    "cross of two dtypes": (torch.linalg.cross, (FLOATS, zeros(2, 3, dtype=DOUBLE))),
    "distances of two dtypes": (torch.cdist, (FLOATS, zeros(2, 3, dtype=DOUBLE))),
    "probabilities of two dtypes": (F.binary_cross_entropy, (zeros(3), zeros(3, dtype=DOUBLE))),
    "classes that are bools": (F.nll_loss, (FLOATS, zeros(2, dtype=torch.bool))),
    "an image of fewer classes": (F.nll_loss, (torch.rand(2, 3, 2, 2), zeros(2, 2, 0, dtype=INT))),
    "errors of complex numbers": (F.mse_loss, (FLOATS, zeros(2, 3, dtype=torch.complex64))),
    "a deviation of NaN": (lambda x: x.normal_(0, float("nan")), (zeros(3),)),
    "deviations of NaN": (lambda x: torch.normal(0.0, x), (torch.tensor([1.0, float("nan")]),)),
    "a rate of NaN": (lambda x: x.exponential_(float("nan")), (zeros(3),)),
    "pivots past the matrix": (
        torch.linalg.lu_solve,
        (SQUARE, torch.tensor([1, 2, 4], dtype=torch.int32), zeros(3, 1)),
    ),
    "pivots of 0": (torch.linalg.lu_solve, (SQUARE, zeros(3, dtype=torch.int32), zeros(3, 1))),
    "pivots of blocks past the matrix": (
        torch.linalg.ldl_solve,
        (SQUARE, torch.tensor([1, 2, 4], dtype=torch.int32), zeros(3, 1)),
    ),
    "too few reflections": (torch.ormqr, (SQUARE, zeros(2), zeros(3, 1))),
    "boundaries that are a number": (torch.searchsorted, (zeros(), zeros(1))),
    "histogram of integers": (lambda x: torch.histogram(x, 3), (zeros(3, dtype=INT),)),
    "multinomial of integers": (lambda x: torch.multinomial(x, 1), (torch.ones(3, dtype=INT),)),
}


@pytest.mark.parametrize("name", MISFITS)
def test_arguments_that_do_not_fit(name: str) -> None:
    call, arguments = MISFITS[name]
    want = raised(lambda: call(*arguments))
    assert want is not None
    assert raised(lambda: call(*to_device(list(arguments)))) is want


@pytest.mark.parametrize("label", [5, -1])
def test_targets_of_ctc_loss(label: int) -> None:
    """The CPU reads what lies beside the scores."""
    scores, targets = torch.randn(6, 2, 5).log_softmax(-1), torch.tensor([[1, 2, 4], [3, 1, label]])
    lengths = torch.tensor([6, 6])
    # A label past its target's length is padding.
    padded = F.ctc_loss(scores.to(DEVICE), targets.to(DEVICE), lengths, torch.tensor([3, 2]))
    torch.testing.assert_close(padded.cpu(), F.ctc_loss(scores, targets.clamp(0, 4), lengths, torch.tensor([3, 2])))
    with pytest.raises(IndexError, match="a target is out of bounds: there are 5 classes"):
        F.ctc_loss(scores.to(DEVICE), targets.to(DEVICE), lengths, torch.tensor([3, 3])).item()


@pytest.mark.parametrize("degree", [float("inf"), float("nan"), 2.0**24 + 2])
def test_degrees_of_polynomials_end(degree: float) -> None:
    """The loop over degrees counts past the whole numbers of float32, and does not begin for what is no degree."""
    x = torch.tensor([0.5, 1.0, -1.0])
    polynomial = torch.special.chebyshev_polynomial_t
    assert_matches(polynomial(x.to(DEVICE), degree), polynomial(x, degree))
