"""What ``torch.compile(..., backend="tpu", options={...})`` takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a compiled function, with their defaults."""

    #: A graph that does not become one program raises RuntimeError with the reason, instead of running its operators
    #: one after the other.
    one_program: bool = False
    #: Backward passes compute again what is cheap to compute (torch's min-cut partitioner); otherwise they are given
    #: all that the forward pass has computed for them, which takes more memory.
    recompute: bool = True
    #: Sizes that change share programs, with tensors in larger arrays; otherwise each set of sizes has its own.
    bounded_sizes: bool = True

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Raises RuntimeError for a name that does not exist, or a value of another type, as inductor does."""
        names = list_options()
        for name, value in (given or {}).items():
            if name not in names:
                raise RuntimeError(f"unexpected option {name!r} for backend 'tpu'; known are {', '.join(names)}")
            if not isinstance(value, bool):
                raise RuntimeError(f"option {name!r} of backend 'tpu' is a bool, got {value!r}")
        return cls(**(given or {}))


def list_options() -> list[str]:
    """Names of the options that ``torch.compile(..., backend="tpu", options={...})`` takes."""
    return [field.name for field in dataclasses.fields(Options)]
