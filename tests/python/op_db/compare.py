"""What is compared between the device and the CPU, for one entry and one sample. Every function returns if they agree
and raises if not: AssertionError for a difference, or what the device raised."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from entries import ARGUMENTS_ON_CPU, DEVICE, place
from layouts import storages
from torch._subclasses.fake_utils import CrossRefFakeMode, MetadataMismatchError
from torch.autograd import forward_ad
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

# Their results hold whatever the memory held.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}

# They also return the place of an element, of any one if several are equal, as samples of narrow types often are.
INDICES_OF_ANY_EQUAL = {"kthvalue", "median", "mode", "nanmedian", "topk"}

# They return the order of elements. Unless `stable` asks for it, equal elements follow each other in any order: where
# the dim lies dense in memory the CPU keeps theirs in rows of up to 16 elements only.
ORDER_OF_ANY_EQUAL = {"sort", "argsort"}

# The CPU's kernels write the elements of a strided out tensor as if it were contiguous.
CPU_IGNORES_STRIDES = {"nn.functional.gelu", "nn.functional.avg_pool3d", "narrow_copy"}

# Of a tensor with repeated elements the CPU takes the median of memory that nobody wrote.
CPU_NEEDS_ALL_ELEMENTS = {"median", "nanmedian", "masked.median"}

# Vectors in their results are determined up to a phase, which the samples' `output_process_fn_grad` takes out.
UP_TO_A_PHASE = {"linalg.eig", "linalg.eigh", "linalg.svd", "svd", "svd_lowrank", "pca_lowrank"}

Call = Callable[..., Any]


class Refused(Exception):
    """There is nothing to compare, because the CPU refuses this call too or has no differentiable result for it."""


def assert_same(got: Any, want: Any, *, values: bool = True, strides: bool = False) -> None:
    """Results in nested containers agree at the default tolerances of assert_close, or in shape and dtype only."""
    got_leaves, got_form = tree_flatten(got)
    want_leaves, want_form = tree_flatten(want)
    assert got_form == want_form, f"structure {got_form} instead of {want_form}"
    for g, w in zip(got_leaves, want_leaves, strict=True):
        assert type(g) is type(w), f"{type(g)} instead of {type(w)}"
        if isinstance(w, torch.Tensor):
            _assert_same_tensor(g, w, values=values, strides=strides)
        elif isinstance(w, (bool, int, float, complex)) and values:
            torch.testing.assert_close(g, w, equal_nan=True)
        elif not isinstance(w, torch.device) and values:
            assert g == w


def _assert_same_tensor(got: torch.Tensor, want: torch.Tensor, *, values: bool, strides: bool) -> None:
    device = DEVICE if want.device.type == "cpu" else want.device.type
    assert got.device.type == device, f"the result is on {got.device}"
    assert got.dtype == want.dtype, f"{got.dtype} instead of {want.dtype}"
    assert got.shape == want.shape, f"{tuple(got.shape)} instead of {tuple(want.shape)}"
    assert got.layout == want.layout
    if strides and want.layout == torch.strided:
        assert _significant(got) == _significant(want), f"strides {got.stride()} instead of {want.stride()}"
        assert got.storage_offset() == want.storage_offset()
    host = got.detach().cpu()  # read in any case: an error of the device shows here
    if values and want.device.type == "cpu":
        torch.testing.assert_close(host, want.detach(), equal_nan=True)


def _significant(x: torch.Tensor) -> list[int]:
    # A stride of a dim that has one element, or of a tensor that has none, addresses nothing.
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1] if x.numel() else []


def tensors(x: Any) -> list[torch.Tensor]:
    return [v for v in tree_flatten(x)[0] if isinstance(v, torch.Tensor)]


def is_random(op: OpInfo, function: Call, sample: SampleInput) -> bool:
    """Whether the CPU's result depends on the seed, or on what memory held."""
    if op.name in UNINITIALISED:
        return True

    def result(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        x, args, kwargs = place(op, sample, "cpu")
        return tensors(function(x, *args, **kwargs))

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = result(1)
    # Of what is drawn little may be left in the result, such as where a few windows begin.
    seeds = range(2, 4 if torch.equal(torch.get_rng_state(), before) else 12)
    return any(not _equal(a, b) for seed in seeds for a, b in zip(first, result(seed), strict=True))


def _is_close(a: torch.Tensor, b: torch.Tensor, **tolerance: float) -> bool:
    if a.layout != torch.strided or a.device.type != "cpu" or a.shape != b.shape:
        return a.shape == b.shape
    try:
        torch.testing.assert_close(a, b, equal_nan=True, **tolerance)
    except AssertionError:
        return False
    return True


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _is_close(a, b, rtol=0, atol=0)


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.detach().to(_wide_dtype(x.dtype)).requires_grad_(x.requires_grad)


def _wide_in_place(x: torch.Tensor) -> torch.Tensor:
    """In double, with the strides of x in a storage of as many elements, of which all may be compared."""
    if x.layout != torch.strided or x.is_nested or x.is_conj() or x.is_neg():
        return _wide(x)
    (storage,) = storages(x)
    return _wide(storage).as_strided(x.shape, x.stride(), x.storage_offset()).requires_grad_(x.requires_grad)


def _in_double(sample: SampleInput) -> SampleInput:
    return sample.transform(lambda x: _wide_in_place(x) if isinstance(x, torch.Tensor) else _wide_dtype(x))


# Both devices round at every step, in another order, and neither is the truth. Where the steps cancel (the gradients of
# logcumsumexp and ctc_loss lose half the digits) the results differ by more than the tolerance of assert_close, which
# knows the last rounding only. Then the error against float64 counts: the device's may be this many times the CPU's.
AS_ACCURATE = 2


def is_as_accurate(got: Any, want: Any, truth: Any) -> bool:
    """Whether every floating result is about as close to the truth as the CPU's, in the largest error of a tensor.
    Results of other types, and infinite and missing numbers, must be those of the CPU."""
    for g, w, t in zip(tensors(got), tensors(want), tensors(truth), strict=True):
        if _is_close(g.cpu(), w):
            continue
        if w.dtype != t.dtype and _is_close(g.cpu(), t.detach().to(w.dtype)):
            continue  # also where a step of the CPU's overflows
        if not (w.dtype.is_floating_point or w.dtype.is_complex) or w.dtype in (torch.float64, torch.complex128):
            return False
        g, w, t = _wide(g.detach().cpu()), _wide(w.detach()), t.detach()
        finite = w.isfinite()
        if t.shape != w.shape or not _equal(g[~finite], w[~finite]) or not bool(t[finite].isfinite().all()):
            return False
        errors = [float((x[finite] - t[finite]).abs().amax()) if x[finite].numel() else 0.0 for x in (g, w)]
        if not errors[0] <= AS_ACCURATE * errors[1]:
            return False
    return True


def assert_accurate(got: Any, want: Any, in_double: Callable[[], Any], *, values: bool = True) -> None:
    """Results agree in form, and if their values count, at the default tolerances; or else these are about as close to
    the result in double as the CPU's."""
    assert_same(got, want, values=False)
    if not values:
        return
    try:
        assert_same(got, want)
    except AssertionError:
        if not is_as_accurate(got, want, in_double()):
            raise


def forward(op: OpInfo, sample: SampleInput, *, function: Call | None = None, whole_storages: bool = False) -> None:
    """Results with their strides, and the arguments afterwards, or all that their storages hold."""
    function = function or op.get_op()
    with torch.no_grad():
        x, args, kwargs = place(op, sample, "cpu")
        try:
            want = function(x, *args, **kwargs)
        except Exception as error:
            raise Refused(str(error)) from error
        stays = op.name in ARGUMENTS_ON_CPU
        arguments_of = storages if whole_storages else tensors
        want_arguments = arguments_of(x if stays else (x, args, kwargs))
        values = not is_random(op, function, sample)
        x, args, kwargs = place(op, sample, DEVICE)
        # Without a tensor and a device among the arguments, the default device says where the result goes.
        with contextlib.nullcontext() if want_arguments else torch.device(DEVICE):
            got = function(x, *args, **kwargs)
        everything = [got, *arguments_of(x if stays else (x, args, kwargs))], [want, *want_arguments]
        assert_same(*everything, values=False, strides=True)
        if not values:
            return
        if op.name in INDICES_OF_ANY_EQUAL and tensors(want)[0].dtype not in (torch.float32, torch.float64):
            assert_same(tensors(got)[0], tensors(want)[0])
            return
        if op.name in ORDER_OF_ANY_EQUAL and sample.input.ndim and not sample.kwargs.get("stable"):
            assert_same(tensors(got)[:-1], tensors(want)[:-1])
            _assert_same_order(sample, tensors(got)[-1].cpu(), tensors(want)[-1])
            return
        up_to_a_phase = op.name in UP_TO_A_PHASE
        if up_to_a_phase:  # out= tensors among the arguments are the results
            everything = [sample.output_process_fn_grad(got)], [sample.output_process_fn_grad(want)]

        def in_double() -> list[Any]:
            x, args, kwargs = place(op, _in_double(sample), "cpu")
            truth = function(x, *args, **kwargs)
            arguments = arguments_of(x if stays else (x, args, kwargs))
            return [sample.output_process_fn_grad(truth)] if up_to_a_phase else [truth, *arguments]

        assert_accurate(*everything, in_double)


def _assert_same_order(sample: SampleInput, got: torch.Tensor, want: torch.Tensor) -> None:
    """Both are permutations along the dim that is sorted, and pick equal elements in turn."""
    dim = sample.kwargs.get("dim", sample.args[0] if sample.args else -1)
    assert _equal(got.sort(dim)[0], want.sort(dim)[0]), "the places are no permutation"
    assert _equal(*(sample.input.take_along_dim(places, dim) for places in (got, want))), "the order is another"


def compiled(op: OpInfo) -> Call:
    """The function, on the device compiled: as one graph where dynamo can trace it."""
    function = op.get_op()

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        given = tensors((x, args, kwargs))
        device = given[0].device if given else torch.get_default_device()
        if device.type != DEVICE and all(v.device.type != DEVICE for v in given):
            return function(x, *args, **kwargs)
        torch._dynamo.reset()
        try:
            return torch.compile(function, backend=DEVICE, fullgraph=True)(x, *args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException:
            torch._dynamo.reset()
            return torch.compile(function, backend=DEVICE)(x, *args, **kwargs)

    return call


def out_forms(op: OpInfo, sample: SampleInput) -> Iterator[tuple[str, SampleInput]]:
    """The sample with out= tensors full of other numbers: as the result, with other strides, and to be resized."""
    with torch.no_grad():
        x, args, kwargs = place(op, sample, "cpu")
        try:
            want = op.get_op()(x, *args, **kwargs)
        except Exception:
            return
    if not tensors(want) or any(v.layout != torch.strided for v in tensors(want)):
        return
    for name, make in (("same", _filled), ("strided", _strided), ("resized", lambda v: v.new_empty(0))):
        out = tree_map(make, tuple(want) if isinstance(want, tuple) else want)
        with_out = SampleInput(sample.input, args=sample.args, kwargs={**sample.kwargs, "out": out})
        with_out.output_process_fn_grad = sample.output_process_fn_grad
        if _runs_on_cpu(op, with_out):
            yield name, with_out


def _runs_on_cpu(op: OpInfo, sample: SampleInput) -> bool:
    x, args, kwargs = place(op, sample, "cpu")
    try:
        with torch.no_grad():
            op.get_op()(x, *args, **kwargs)
    except Exception:
        return False
    return True


def functional_out(op: OpInfo) -> Call:
    """The out= form, on the CPU made of the function: for CPU_IGNORES_STRIDES."""

    def function(x: Any, *args: Any, out: Any, **kwargs: Any) -> Any:
        if tensors(out)[0].device.type != "cpu":
            results = tensors(op.get_op()(x, *args, out=out, **kwargs))
            # Operators with a list of out tensors return nothing.
            assert not results or all(r is target for r, target in zip(results, tensors(out), strict=True))
            return out
        for target, result in zip(tensors(out), tensors(op.get_op()(x, *args, **kwargs)), strict=True):
            target.copy_(result)
        return out

    return function


def _filled(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like).fill_(1)


def _strided(like: torch.Tensor) -> torch.Tensor:
    return torch.ones((*like.shape, 2), dtype=like.dtype)[..., 0]


Derivatives = Callable[[OpInfo, SampleInput, str, "Weights"], list[torch.Tensor | None]]


class Weights:
    """Numbers that sums of results are weighted with: the same at every call, whatever the device and the dtype."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(5)

    def like(self, x: torch.Tensor) -> torch.Tensor:
        # Drawn in few digits, so that they are the same number in every dtype.
        drawn = torch.randint(-8, 9, (*x.shape, 2), generator=self._generator).double() / 8
        weight = torch.view_as_complex(drawn) if x.is_complex() else drawn[..., 0]
        return weight.to(x.dtype).to(x.device)


def derivatives(op: OpInfo, sample: SampleInput, function: Derivatives) -> None:
    """What `function` makes of the sample on both devices."""
    with torch.enable_grad():
        torch.manual_seed(3)
        try:
            want = function(op, sample, "cpu", Weights())
        except Exception as error:
            raise Refused(str(error)) from error
        torch.manual_seed(4)
        again = function(op, sample, "cpu", Weights())
        values = all(a is b or _equal(a, b) for a, b in zip(want, again, strict=True))
        got = function(op, sample, DEVICE, Weights())
    assert [g is None for g in got] == [w is None for w in want], "a derivative is missing or surplus"
    assert_accurate(got, want, lambda: function(op, _in_double(sample), "cpu", Weights()), values=values)


def gradients(op: OpInfo, sample: SampleInput, device: str, weights: Weights) -> list[torch.Tensor | None]:
    """Gradients of all differentiable arguments, of the weighted sum of the differentiable results."""
    return _gradients(op, sample, device, weights)[1]


def compiled_gradients(op: OpInfo, sample: SampleInput, device: str, weights: Weights) -> list[torch.Tensor | None]:
    """As `gradients`, of a compiled function on the device."""
    return _gradients(op, sample, device, weights, function=compiled(op))[1]


def double_gradients(op: OpInfo, sample: SampleInput, device: str, weights: Weights) -> list[torch.Tensor | None]:
    """Gradients of the weighted sum of the gradients."""
    inputs, first = _gradients(op, sample, device, weights, create_graph=True)
    outputs = [g for g in first if g is not None and g.requires_grad]
    if not outputs:
        raise Refused("no gradient of this sample is differentiable")
    return list(torch.autograd.grad(outputs, inputs, [weights.like(v) for v in outputs], allow_unused=True))


def _gradients(
    op: OpInfo,
    sample: SampleInput,
    device: str,
    weights: Weights,
    *,
    create_graph: bool = False,
    function: Call | None = None,
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    x, args, kwargs = place(op, sample, device)
    inputs = [v for v in tensors((x, args, kwargs)) if v.requires_grad]
    result = sample.output_process_fn_grad((function or op.get_op())(x, *args, **kwargs))
    outputs = [v for v in tensors(result) if v.requires_grad]
    if not outputs or not inputs:
        raise Refused("no result of this sample is differentiable")
    cotangents = [weights.like(v).requires_grad_(create_graph) for v in outputs]
    first = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True, create_graph=create_graph)
    return inputs + cotangents * create_graph, list(first)


def traced(op: OpInfo, sample: SampleInput) -> None:
    """Every operator that the function and its gradients call has results of the sizes, strides and dtypes that fake
    tensors foretell: what torch.compile makes of them is right only then."""

    def run(device: str) -> None:
        with torch.enable_grad():
            x, args, kwargs = place(op, sample, device)
            inputs = tensors((x, args, kwargs))
            with contextlib.nullcontext() if inputs else torch.device(device), CrossRefFakeMode(check_aliasing=False):
                result = sample.output_process_fn_grad(op.get_op()(x, *args, **kwargs))
                outputs = [v for v in tensors(result) if v.requires_grad]
                leaves = [v for v in inputs if v.requires_grad]
                if leaves and outputs:
                    torch.autograd.grad(outputs, leaves, [torch.ones_like(v) for v in outputs], allow_unused=True)

    try:
        run("cpu")
    except MetadataMismatchError:  # no matter what is foretold of the CPU
        pass
    except Exception as error:
        raise Refused(str(error)) from error
    run(DEVICE)


def tangents(op: OpInfo, sample: SampleInput, device: str, weights: Weights) -> list[torch.Tensor | None]:
    """Forward mode: the derivative of each result along one direction of all differentiable arguments."""
    x, args, kwargs = place(op, sample, device)
    with forward_ad.dual_level():

        def dual(v: Any) -> Any:
            if not isinstance(v, torch.Tensor) or not v.requires_grad:
                return v
            return forward_ad.make_dual(v.detach(), weights.like(v))

        x, args, kwargs = tree_map(dual, (x, args, kwargs))
        result = sample.output_process_fn_grad(op.get_op()(x, *args, **kwargs))
        found = [forward_ad.unpack_dual(v).tangent for v in tensors(result)]
    if all(v is None for v in found):
        raise Refused("no result of this sample has a tangent")
    return found


def error(op: OpInfo, case: ErrorInput) -> None:
    """A wrong call raises on the device what it raises on the CPU: at once, or when the device has looked at the
    numbers that are wrong."""
    assert_same_error(lambda device: _raised(op, case.sample_input, device))


def assert_same_error(raised_on: Callable[[str], Exception | None], pattern: str = "") -> None:
    """What is raised on the device has the type of what is raised on the CPU, and a text with `pattern` in it."""
    want = raised_on("cpu")
    if want is None:
        raise Refused("this is no error on the CPU")
    got = raised_on(DEVICE)
    assert got is not None, f"no error instead of {type(want).__name__}: {want}"
    same = type(got) is type(want) and re.search(pattern, str(got))
    assert same, f"{type(got).__name__}: {got}\ninstead of {type(want).__name__}: {want}"


def _raised(op: OpInfo, sample: SampleInput, device: str) -> Exception | None:
    x, args, kwargs = place(op, sample, device)
    try:
        op.get_op()(x, *args, **kwargs)
        if device == DEVICE:
            torch.tpu.synchronize()
    except Exception as error:
        return error
    return None
