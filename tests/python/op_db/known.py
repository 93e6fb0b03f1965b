"""Cases that fail, with the cause. The tests check this table both ways: a failing case that is not listed fails them,
and so does a line of which all cases pass."""

from __future__ import annotations

import dataclasses
import re

import pytest
from cases import Outcome

COMPUTED = (
    "forward", "gradient", "double_gradient", "forward_mode", "inplace", "out", "noncontiguous", "layouts",
    "traced", "compiled", "compiled_gradient",
)  # fmt: skip
ALL = (*COMPUTED, "error")


@dataclasses.dataclass(frozen=True)
class Known:
    why: str
    entries: str  # names, separated by blanks
    checks: tuple[str, ...] = ALL
    cases: str = ""  # regular expression over the labels of cases; every case if empty
    certain: bool = True  # something listed fails on every machine

    def applies(self, entry: str, check: str, label: str) -> bool:
        return entry in self.entries.split() and check in self.checks and re.search(self.cases, label) is not None


SPARSE = "sparse layouts have a dispatch key of their own"

KNOWN = (
    Known(SPARSE, "sparse.sampled_addmm sparse.mm.reduce to_sparse"),
    Known("the engine stores no complex32", "chalf"),
    Known("the engine stores no complex32", "complex", COMPUTED, "^float16"),
    Known("the engine stores no complex32", "view_as_complex", ("gradient", "double_gradient"), "^float16"),
    Known(
        "statistics of half types are float32, as PyTorch's meta kernels and CUDA have it; on the CPU they are half",
        "native_layer_norm native_batch_norm _native_batch_norm_legit _batch_norm_with_update",
        ("forward",),
        "float16 #",
    ),
    Known(
        "outside training the statistics have a number for each channel, as in PyTorch's meta kernels for every device "
        "but the CPU, whose are empty",
        "native_batch_norm _native_batch_norm_legit",
        ("forward", "layouts", "noncontiguous"),
        "float(32|64) #[1478]",
    ),
    Known("the same", "_native_batch_norm_legit", ("out",), "#[1478] "),
    Known(
        "of -8.5, terms of -32 and 32 cancel to 4e-5, ten units in their last place of float32; the CPU's roundings "
        "are off by a unit less",
        "polygamma.polygamma_n_0 polygamma.polygamma_n_1 polygamma.polygamma_n_2 polygamma.polygamma_n_3 "
        "polygamma.polygamma_n_4 special.polygamma.special_polygamma_n_0",
        ("forward",),
        "^bfloat16 #8$",
    ),
    Known(
        "max_norm scales the weights in place: where their elements overlap the device refuses, or the order counts",
        "nn.functional.embedding nn.functional.embedding_bag",
        ("layouts", "traced"),
        "expanded|overlapping",
        certain=False,
    ),
    Known(
        "a matrix of equal rows is singular: what factorisations and solvers make of it depends on the last rounding",
        "linalg.cholesky_ex linalg.cond linalg.eig linalg.eigvals linalg.ldl_solve linalg.lstsq "
        "linalg.lstsq.grad_oriented linalg.inv_ex linalg.svd svd svd_lowrank pca_lowrank pinverse triangular_solve",
        ("layouts",),
        "expanded|overlapping",
        certain=False,
    ),
    Known(
        "results have the strides of PyTorch's meta kernels and of CUDA, not those of the CPU's kernels; and running "
        "statistics that share memory are refused, as everywhere else",
        "native_batch_norm _native_batch_norm_legit _batch_norm_with_update nn.functional.batch_norm",
        ("layouts",),
        "transposed|expanded|overlapping",
    ),
    Known(
        "running statistics that share memory are refused, as everywhere else",
        "native_batch_norm _native_batch_norm_legit _batch_norm_with_update nn.functional.batch_norm",
        ("traced",),
        "expanded",
    ),
    Known(
        "of operands that are transposed and broadcast, PyTorch's meta kernels order the result's dims otherwise",
        "copysign div.floor_rounding floor_divide heaviside ldexp logaddexp logical_and logical_or logical_xor",
        ("layouts",),
        "#[1-9][0-9]* (transposed|overlapping)",
    ),
    Known(
        "results have the strides of PyTorch's meta kernels and of CUDA, not those of the CPU's kernels",
        "native_dropout_backward",
        ("layouts",),
        "transposed|overlapping",
    ),
    Known("the same, of images", "nn.functional.nll_loss", ("layouts",), "#[1-9][0-9]* (transposed|overlapping)"),
    Known(
        "the same, of channels_last",
        "nn.functional.conv_transpose3d nn.functional.pixel_shuffle nn.functional.channel_shuffle",
        ("layouts",),
        "channels_last",
    ),
    Known(
        "the same, of volumes in PyTorch's meta kernels",
        "nn.functional.pad.reflect nn.functional.pad.replicate",
        ("layouts",),
        "#(9|10) channels_last",
    ),
    Known(
        "values of another width than the keys: results lie in memory like queries, as PyTorch's meta kernel has it",
        "nn.functional.scaled_dot_product_attention",
        ("layouts",),
        "#(8|9|1[0-5]|24) (transposed|channels_last|overlapping)",
    ),
    Known("any of equal elements may be the kth", "kthvalue", ("layouts",), "expanded|overlapping", certain=False),
    Known(
        "of equal strides the CPU's transforms put any first",
        "fft.fft fft.fft2 fft.fftn fft.hfft2 fft.rfft fft.rfft2 fft.rfftn fft.ifft fft.ifft2 fft.ifftn fft.ihfft "
        "fft.ihfft2 fft.ihfftn fft.irfft fft.irfft2 fft.irfftn",
        ("layouts",),
        "#[356] overlapping",
    ),
    Known(
        "over 200 random arrays the largest error is 1.4 times the CPU's in the median, for some 2.6 times",
        "fft.hfft2",
        ("layouts",),
        "int[0-9]+ #5 ",
    ),
    Known(
        "solutions with a conjugated matrix are stored by columns; tracing foretells rows",
        "lu lu_solve linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve",
        ("traced",),
        "^complex",
    ),
    Known(
        "PyTorch's kernel keeps channels_last, what it foretells does not",
        "nn.functional.max_unpool2d nn.functional.max_unpool2d.grad",
        ("traced",),
        "channels_last",
    ),
    Known(
        "of 200 random systems the device's error is the CPU's in the median, of this one more than twice that",
        "linalg.ldl_solve",
        ("forward",),
        "^float32 #[23]$",
    ),
    Known(
        "PyTorch's formula subtracts exponentials of nearly equal sums: three digits of float32 are left on both "
        "devices, a little less of them here",
        "logcumsumexp",
        ("gradient", "compiled_gradient"),
        "^float32 #0$",
    ),
    Known(
        "of equal elements, which an unstable sort may take in any order, another gets the gradient",
        "sort msort",
        ("gradient", "double_gradient", "forward_mode"),
        "^b?float16 #0$",
    ),
    Known(
        "between 5 and 8 the CPU's approximations are off by up to 8e-7, which shows near a root; the device's by "
        "1e-14",
        "special.bessel_j0 special.bessel_y1",
        COMPUTED,
        "^float64 #0",
    ),
    Known(
        "options left to PyTorch accumulate in float32 on the CPU and on CUDA, in the input's dtype on other devices",
        "nn.functional.linear_cross_entropy.chunked nn.functional.linear_cross_entropy.chunked_none",
        COMPUTED,
        "^b?float16",
    ),
    Known(
        "scores around a hundred are rounded before their exponential: over many draws the device's gradients are as "
        "close as the CPU's to those in double, for one draw up to seven times further off or three times closer",
        "nn.functional.scaled_dot_product_attention",
        ("gradient",),
        "^float32 #21$",
    ),
    Known("on the CPU an internal assertion checks dim", "narrow_copy", ("error",), "#1"),
    Known(
        "an empty out tensor becomes contiguous, as PyTorch's meta kernels have it and most of its transforms; the CPU "
        "leaves it the strides that its library of transforms works with",
        "fft.ifft fft.ihfft",
        ("out",),
        "resized",
    ),
)

MODULES = (
    Known(
        "of one sample without a batch, PyTorch's meta kernel makes a result of one element, its CPU kernel a number",
        "nn.MultiLabelMarginLoss",
        ("forward", "gradient", "factory"),
        "#6$",
    ),
    Known(
        "the device's log-probabilities are the float16 numbers nearest to those in double, the CPU's are one further; "
        "the sums of rounded numbers that follow happen to bring the CPU's loss closer",
        "nn.LinearCrossEntropyLoss",
        ("forward",),
        "float16 train #(163|546)$",
    ),
)

OPTIMIZERS = (
    Known(SPARSE, "SparseAdam", ("steps", "saved_state", "groups", "schedules")),
    Known(SPARSE, "SparseAdam", ("error",), "#[78]$"),
    Known(
        "the device computes what the CPU computes in vectors; its loop over single numbers rounds elsewhere, and "
        "the average of a parameter of one element cancels to a few units in its last place",
        "Adam",
        ("steps",),
        "float16 #3 (default|foreach|loop)",
    ),
    Known(
        "as for Adam",
        "NAdam",
        ("steps",),
        "^bfloat16 #6 (default|foreach|loop)",
    ),
)


def reason(entry: str, check: str, label: str, table: tuple[Known, ...] = KNOWN) -> Known | None:
    """The line that lists this case."""
    return next((known for known in table if known.applies(entry, check, label)), None)


def assert_expected(
    outcome: Outcome, entry: str, check: str, table: tuple[Known, ...] = KNOWN, *, part: bool = False
) -> None:
    """What fails is listed, and of what is listed something fails, unless that is but a `part` of the check. Skips the
    test if there was nothing to compare."""
    surprises = {k: cause for k, cause in outcome.failed.items() if reason(entry, check, k, table) is None}
    assert not surprises, "\n".join(f"{label}: {cause}" for label, cause in surprises.items())
    if outcome.result == "refused":
        pytest.skip("no sample that both devices could be compared with")
    for line in () if part else table:
        listed = [label for label in (*outcome.passed, *outcome.failed) if line.applies(entry, check, label)]
        fails = not line.certain or any(label in outcome.failed for label in listed)
        assert not listed or fails, f"passes; take it off: {line.why}"
