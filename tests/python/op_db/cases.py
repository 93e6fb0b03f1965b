"""Checks by name: which samples of an entry each one takes, and its outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import compare
import torch
from entries import ENTRIES, QUICK, Extent, dtypes, error_samples, gradient_dtypes, samples
from layouts import LAYOUTS, view_of_base, with_layout
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_map

# A label for messages and for known.py, and the comparison itself.
Case = tuple[str, Callable[[], None]]


class DeadlinePassed(BaseException):
    """Raised from a signal handler. No Exception, which the comparisons take for what an operator raised."""


@dataclasses.dataclass
class Outcome:
    """Of one check for one entry, by the labels of its cases. Those in `refused` had nothing to compare."""

    passed: list[str] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    refused: list[str] = dataclasses.field(default_factory=list)

    @property
    def result(self) -> str:
        return "failed" if self.failed else "passed" if self.passed else "refused"


def _label(dtype: torch.dtype, place: int) -> str:
    return f"{str(dtype).removeprefix('torch.')} #{place}"


def _each(op: OpInfo, extent: Extent) -> Iterator[tuple[str, SampleInput]]:
    for dtype in extent.dtypes(dtypes(op)):
        for place, sample in samples(op, dtype, extent):
            yield _label(dtype, place), sample


def _differentiable(op: OpInfo, extent: Extent, function: compare.Derivatives) -> Iterator[Case]:
    for dtype in extent.dtypes(gradient_dtypes(op)):
        for place, sample in samples(op, dtype, extent, gradient=True):
            yield _label(dtype, place), lambda sample=sample: compare.derivatives(op, sample, function)


def forward(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """The function."""
    for label, sample in _each(op, extent):
        yield label, lambda sample=sample: compare.forward(op, sample)


def noncontiguous(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """The function of tensors with gaps between their elements."""
    for label, sample in _each(op, extent):
        if any(x.layout != torch.strided for x in compare.tensors((sample.input, sample.args, sample.kwargs))):
            continue
        yield label, lambda sample=sample: compare.forward(op, sample.noncontiguous())


def layouts(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """The function of tensors with the strides of layouts.py."""
    for label, sample in _each(op, extent):
        for name, layout in LAYOUTS.items():
            other = with_layout(sample, layout)
            if other is None or (name == "expanded" and op.name in compare.CPU_NEEDS_ALL_ELEMENTS):
                continue
            yield f"{label} {name}", lambda sample=other: compare.forward(op, sample)


def traced(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """What tracing foretells of the function and its gradients, of tensors as they are and with other strides."""
    for dtype in extent.dtypes(dtypes(op)):
        differentiable = dtype in gradient_dtypes(op)
        for place, sample in samples(op, dtype, extent, gradient=differentiable):
            others = ((f" {name}", with_layout(sample, layout)) for name, layout in LAYOUTS.items())
            for name, given in (("", sample), *others):
                if given is not None:
                    yield _label(dtype, place) + name, lambda sample=given: compare.traced(op, sample)


def inplace(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """The method that ends in an underscore, of a tensor and of a view, whose base is compared then."""
    function = op.get_inplace()
    if function is None:
        return
    for label, sample in _each(op, extent):
        if sample.broadcasts_input or any(x.layout != torch.strided for x in compare.tensors(sample.input)):
            continue
        view = SampleInput(tree_map(view_of_base, sample.input), args=sample.args, kwargs=sample.kwargs)
        for name, given in (("", sample), (" view", view)):
            yield (
                label + name,
                lambda sample=given: compare.forward(op, sample, function=function, whole_storages=True),
            )


def out(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """The form with out=, which returns what it was given."""
    if not op.supports_out:
        return
    for label, sample in _each(op, extent):
        for form, with_out in compare.out_forms(op, sample):
            wrong_on_cpu = form == "strided" and op.name in compare.CPU_IGNORES_STRIDES
            function = compare.functional_out(op) if wrong_on_cpu else None
            yield (
                f"{label} {form}",
                lambda sample=with_out, function=function: compare.forward(op, sample, function=function),
            )


def gradient(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """Backward."""
    return _differentiable(op, extent, compare.gradients)


def double_gradient(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """Backward of backward."""
    return _differentiable(op, extent, compare.double_gradients) if op.supports_gradgrad else iter(())


def forward_mode(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """Forward-mode derivatives."""
    return _differentiable(op, extent, compare.tangents) if op.supports_forward_ad else iter(())


def error(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """Wrong calls; all of them in any case."""
    for i, case in enumerate(error_samples(op)):
        yield f"error #{i}", lambda case=case: compare.error(op, case)


def compiled(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """The function under torch.compile."""
    for label, sample in _each(op, extent):
        yield label, lambda sample=sample: compare.forward(op, sample, function=compare.compiled(op))


def compiled_gradient(op: OpInfo, extent: Extent) -> Iterator[Case]:
    """Backward under torch.compile."""
    return _differentiable(op, extent, compare.compiled_gradients)


CHECKS: dict[str, Callable[[OpInfo, Extent], Iterator[Case]]] = {
    "forward": forward,
    "gradient": gradient,
    "double_gradient": double_gradient,
    "forward_mode": forward_mode,
    "error": error,
    "inplace": inplace,
    "out": out,
    "noncontiguous": noncontiguous,
    "layouts": layouts,
    "traced": traced,
}


# Each case takes a second or two: test_compiled.py has them for one sample of an entry.
COMPILED = {"compiled": compiled, "compiled_gradient": compiled_gradient}


def run_entry(name: str, check: str, *, extent: Extent = QUICK, outcome: Outcome | None = None) -> Outcome:
    """Runs one check for one entry, in the given extent. Fills `outcome` case by case, so that a caller
    who ends it with a DeadlinePassed has what came before."""
    return run((CHECKS | COMPILED)[check](ENTRIES[name], extent), outcome or Outcome())


def run(cases: Iterable[Case], outcome: Outcome) -> Outcome:
    """Runs cases one after the other and notes how they end."""
    for label, case in cases:
        try:
            case()
            outcome.passed.append(label)
        except compare.Refused:
            outcome.refused.append(label)
        except Exception as problem:
            outcome.failed[label] = f"{type(problem).__name__}: {problem}"
    return outcome
