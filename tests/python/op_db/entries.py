"""The entries of PyTorch's operator databases, and their samples as the checks want them: made on the CPU, then placed
on either device with the same strides, offsets and sharing of storages."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch
import torch_tpu  # noqa: F401  # before PyTorch's test modules, which list the devices when they are imported
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import ErrorInput, ForeachFuncInfo, OpInfo, SampleInput

DEVICE = "tpu"

# Entries of random operators set the seed themselves. Then they would not be recognised as random, and their numbers,
# which differ between devices, would be compared.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

# What the engine stores: docs/operators.md. complex32 and the quantised types are refused.
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip

# Operators of lists of tensors have databases of their own.
FOREACH: tuple[OpInfo, ...] = (
    *common_methods_invocations.foreach_unary_op_db,
    *common_methods_invocations.foreach_binary_op_db,
    *common_methods_invocations.foreach_pointwise_op_db,
    *common_methods_invocations.foreach_reduce_op_db,
    *common_methods_invocations.foreach_other_op_db,
)

ENTRIES: dict[str, OpInfo] = {op.full_name: op for op in (*op_db, *FOREACH)}


def dtypes(op: OpInfo) -> list[torch.dtype]:
    """Types that the CPU has the operator for and the engine stores, the everyday ones first."""
    supported = op.supported_dtypes("cpu")
    return [dtype for dtype in DTYPES if dtype in supported]


def gradient_dtypes(op: OpInfo) -> list[torch.dtype]:
    """As `dtypes`, for differentiation; none if the operator is not differentiable."""
    if not op.supports_autograd:
        return []
    supported = op.supported_backward_dtypes("cpu")
    return [dtype for dtype in DTYPES if dtype in supported and (dtype.is_floating_point or dtype.is_complex)]


@dataclasses.dataclass(frozen=True)
class Extent:
    """How much of an entry is run: of each dtype this many samples, spread over all of them."""

    every_dtype: bool
    samples: int | None
    dtype: torch.dtype | None = None  # this one only
    slice: tuple[int, int] = (0, 1)  # the first of every so many samples

    def dtypes(self, supported: list[torch.dtype]) -> list[torch.dtype]:
        if self.dtype is not None:
            return [self.dtype] if self.dtype in supported else []
        return supported if self.every_dtype else supported[:1]


QUICK = Extent(every_dtype=False, samples=1)
FULL = Extent(every_dtype=True, samples=None)

# Entries with more than 200 samples of a dtype. Of each of so many slices of them the full run makes a test of its own:
# none takes more than some minutes, so that parts of the run are of about one length.
SLICES = {
    "cdist": 2,
    "linalg.svd": 2,
    "logspace": 3,
    "logspace.tensor_overload": 7,
    "masked.norm": 3,
    "max_pool2d_with_indices_backward": 8,
    "nn.functional.gaussian_nll_loss": 2,
    "nn.functional.max_pool1d": 5,
    "nn.functional.max_pool2d": 8,
    "nn.functional.max_pool3d": 3,
    "nn.functional.max_unpool2d": 2,
    "searchsorted": 2,
    "svd": 2,
    "unique": 3,
    "unique_consecutive": 2,
}


def samples(
    op: OpInfo, dtype: torch.dtype, extent: Extent, *, gradient: bool = False
) -> Iterator[tuple[int, SampleInput]]:
    """Samples with their places among all, always with the same numbers."""
    torch.manual_seed(0)
    random.seed(0)  # of the numbers beside the lists of foreach operators
    foreach = isinstance(op, ForeachFuncInfo)
    every = _foreach_samples(op, dtype, gradient) if foreach else op.sample_inputs("cpu", dtype, requires_grad=gradient)
    made = enumerate(every)
    if extent.samples is None:
        first, step = extent.slice
        return itertools.islice(made, first, None, step)
    if extent.samples == 1:
        return itertools.islice(made, 1)
    everything = list(made)
    step = max(1, len(everything) / extent.samples)
    return iter([everything[int(i * step)] for i in range(min(extent.samples, len(everything)))])


def _foreach_samples(op: ForeachFuncInfo, dtype: torch.dtype, gradient: bool) -> Iterator[SampleInput]:
    # Their lists have a score of tensors of different sizes unless told otherwise. Five will do: numbers for each
    # tensor are of four types. "cpu:0" brings the lists with empty tensors among the others, which "cpu" leaves out.
    yield from op.sample_inputs("cpu:0", dtype, requires_grad=gradient, num_input_tensors=[5])
    yield from op.sample_zero_size_inputs("cpu:0", dtype, requires_grad=gradient)


def error_samples(op: OpInfo) -> Iterator[ErrorInput]:
    """Calls that raise, if the entry has any."""
    if op.error_inputs_func is None:
        return iter(())
    torch.manual_seed(0)
    return iter(op.error_inputs("cpu"))


class Placement:
    """Copies arguments to a device. Tensors that share a storage share one there too, as in-place and overlap checks
    need it; strides and offsets are kept, which `Tensor.to` does for dense tensors only."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._storages: dict[int, torch.Tensor] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._keep: list[Any] = []

    def __call__(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self._tensor(x)
        if isinstance(x, (torch.device, str)) and str(x) == "cpu":
            return torch.device(self.device)
        if isinstance(x, slice):
            return slice(self(x.start), self(x.stop), self(x.step))
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*map(self, x))
        if isinstance(x, (list, tuple)):
            return type(x)(map(self, x))
        if isinstance(x, dict):
            return {k: self(v) for k, v in x.items()}
        if dataclasses.is_dataclass(x) and not isinstance(x, type):
            return dataclasses.replace(x, **{f.name: self(getattr(x, f.name)) for f in dataclasses.fields(x)})
        if isinstance(x, torch.Generator):
            return torch.Generator(self.device).manual_seed(x.initial_seed())
        return x

    def _tensor(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu":
            return x
        if id(x) not in self._tensors:
            self._tensors[id(x)] = self._copy(x)
            self._keep.append(x)  # an id names an object as long as it lives
        return self._tensors[id(x)]

    def _copy(self, x: torch.Tensor) -> torch.Tensor:
        placed: torch.Tensor
        with torch.no_grad():
            if x.layout != torch.strided or x.is_nested:
                placed = x.detach().to(self.device, copy=True)
            elif x.is_conj():
                placed = self._copy(x.conj()).conj()
            elif x.is_neg():
                placed = self._copy(x._neg_view())._neg_view()
            else:
                base = self._storage(x.detach())
                placed = base.as_strided(x.size(), x.stride(), x.storage_offset())
        return placed.detach().requires_grad_(x.requires_grad)

    def _storage(self, x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        key = hash((storage.data_ptr(), storage._cdata, x.dtype))
        if key not in self._storages:
            flat = torch.empty(0, dtype=x.dtype, device=x.device).set_(
                storage, 0, (storage.nbytes() // x.element_size(),)
            )
            self._storages[key] = flat.to(self.device, copy=True)
            self._keep.append(storage)
        return self._storages[key]


# Their further tensors say how many pieces to make, and PyTorch wants them on the CPU for every device.
ARGUMENTS_ON_CPU = {"tensor_split"}


def place(op: OpInfo, sample: SampleInput, device: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Input, further arguments and keywords on a device."""
    to = Placement(device)
    if op.name in ARGUMENTS_ON_CPU:
        return to(sample.input), tuple(sample.args), dict(sample.kwargs)
    return to(sample.input), to(tuple(sample.args)), to(dict(sample.kwargs))
