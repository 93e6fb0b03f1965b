"""Whether the device works, found out by using it."""

from __future__ import annotations

import functools
import warnings

import torch

from torch_tpu import _loader
from torch_tpu._internal import names, probe


def preferred_device() -> torch.device:
    """The device to use when the user names none.

    ``TORCH_DEVICE`` (``tpu[:n]`` or ``cpu``) decides when it is set. Otherwise it is ``tpu`` if a small program, run
    once per process on that device, gives the right answer, and ``cpu``, with a warning that says why, if not.

    Raises:
        RuntimeError: ``TORCH_DEVICE`` names a device that does not work.
        ValueError: ``TORCH_DEVICE`` is not understood.
    """
    spec = names.parse()
    if spec is not None and spec[0] == "cpu":
        return torch.device("cpu")
    problem = problem_of_device()
    if spec is None:
        if problem is None:
            return torch.device("tpu", torch.tpu.current_device())  # type: ignore[attr-defined]
        warnings.warn(f"using the CPU, since device 'tpu' does not work: {problem}", RuntimeWarning, stacklevel=2)
        return torch.device("cpu")
    if problem is not None:
        raise RuntimeError(f"TORCH_DEVICE asks for device '{spec[0]}', which does not work: {problem}")
    index = spec[1] if spec[1] is not None else 0
    count = torch.tpu.device_count()  # type: ignore[attr-defined]
    if index >= count:
        raise RuntimeError(f"TORCH_DEVICE asks for device 'tpu:{index}', and there are {count}, numbered from 0")
    return torch.device("tpu", index)


@functools.cache
def problem_of_device() -> str | None:
    """None if a small program gives the right answer on the device, else what is wrong. Asked once per process."""
    try:
        _loader.load()
        if not torch.tpu.is_initialized():  # type: ignore[attr-defined]
            # A plugin that aborts or hangs should do so in a child.
            error = probe.run().error
            if error is not None:
                return error
        x = torch.tensor([0.0, 1.0, -2.0, 0.5])
        on_device = x.to("tpu")
        result = (on_device * on_device + on_device).cpu()
    except Exception as error:
        return str(error)
    return None if torch.equal(result, x * x + x) else f"it computes wrong numbers: {result.tolist()}"
