"""Checks by name: which samples of an entry each one takes, and its outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import compare
import torch
from entries import ENTRIES, dtypes, error_samples, gradient_dtypes, samples
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

# A label for messages and for known.py, and the comparison itself.
Case = tuple[str, Callable[[], None]]


class DeadlinePassed(BaseException):
    """Raised from a signal handler. No Exception, which the comparisons take for what an operator raised."""


@dataclasses.dataclass
class Outcome:
    """Of one check for one entry. Cases that are neither in `passed` nor in `failed` had nothing to compare."""

    passed: list[str] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def result(self) -> str:
        return "failed" if self.failed else "passed" if self.passed else "refused"


def _each(op: OpInfo, full: bool, *, gradient: bool = False) -> Iterator[tuple[str, SampleInput]]:
    supported = gradient_dtypes(op) if gradient else dtypes(op)
    for dtype in supported if full else supported[:1]:
        for i, sample in enumerate(samples(op, dtype, gradient=gradient, first=not full)):
            yield f"{str(dtype).removeprefix('torch.')} #{i}", sample


def forward(op: OpInfo, full: bool) -> Iterator[Case]:
    """The function."""
    for label, sample in _each(op, full):
        yield label, lambda sample=sample: compare.forward(op, sample, strides=full)


def noncontiguous(op: OpInfo, full: bool) -> Iterator[Case]:
    """The function of tensors with gaps between their elements."""
    for label, sample in _each(op, full):
        if any(x.layout != torch.strided for x in compare.tensors((sample.input, sample.args, sample.kwargs))):
            continue
        yield label, lambda sample=sample: compare.forward(op, sample.noncontiguous(), strides=full)


def inplace(op: OpInfo, full: bool) -> Iterator[Case]:
    """The method that ends in an underscore."""
    function = op.get_inplace()
    if function is None:
        return
    for label, sample in _each(op, full):
        if not sample.broadcasts_input:
            yield label, lambda sample=sample: compare.forward(op, sample, function=function, strides=full)


def out(op: OpInfo, full: bool) -> Iterator[Case]:
    """The form with out=, which returns what it was given."""
    if not op.supports_out:
        return
    for label, sample in _each(op, full):
        for form, with_out in compare.out_forms(op, sample):
            wrong_on_cpu = form == "strided" and op.name in compare.CPU_IGNORES_STRIDES
            function = compare.functional_out(op) if wrong_on_cpu else None
            yield (
                f"{label} {form}",
                lambda sample=with_out, function=function: compare.forward(op, sample, function=function, strides=True),
            )


def gradient(op: OpInfo, full: bool) -> Iterator[Case]:
    """Backward."""
    for label, sample in _each(op, full, gradient=True):
        yield label, lambda sample=sample: compare.gradient(op, sample)


def error(op: OpInfo, full: bool) -> Iterator[Case]:
    """Wrong calls; all of them in any case."""
    for i, case in enumerate(error_samples(op)):
        yield f"error #{i}", lambda case=case: compare.error(op, case)


CHECKS: dict[str, Callable[[OpInfo, bool], Iterator[Case]]] = {
    "forward": forward,
    "gradient": gradient,
    "error": error,
    "inplace": inplace,
    "out": out,
    "noncontiguous": noncontiguous,
}


def run_entry(name: str, check: str, *, full: bool = False, outcome: Outcome | None = None) -> Outcome:
    """Runs one check for one entry, with its first sample or in full. Fills `outcome` case by case, so that a caller
    who ends it with a DeadlinePassed has what came before."""
    return run(CHECKS[check](ENTRIES[name], full), outcome or Outcome())


def run(cases: Iterable[Case], outcome: Outcome) -> Outcome:
    """Runs cases one after the other and notes how they end."""
    for label, case in cases:
        try:
            case()
            outcome.passed.append(label)
        except compare.Refused:
            pass
        except Exception as problem:
            outcome.failed[label] = f"{type(problem).__name__}: {problem}"
    return outcome
