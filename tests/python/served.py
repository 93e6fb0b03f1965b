"""What PyTorch sends to the device, operator by operator, and how each call was served."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KEY = "PrivateUse1"
COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


class Served(TorchDispatchMode):
    """`by_operator`: overload without "aten::" -> dtype -> native, decomposed, composite, or what it raised.

    The dtype of a call is the one that its tensors promote to: that of the elements, not of their indices or of a mask.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_operator: dict[str, dict[str, str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, raised = None, None
        try:
            result = func(*args, **(kwargs or {}))
        except Exception as error:
            raised = error
        if isinstance(func, torch._ops.OpOverload) and func.namespace == "aten":
            self._note(func, _dtype((args, kwargs)) or _dtype(result), raised)
        if raised is not None:
            raise raised
        return result

    def _note(self, func: torch._ops.OpOverload, dtype: torch.dtype | None, raised: Exception | None) -> None:
        if dtype is None:
            return
        overload = func._schema.overload_name
        name = func._schema.name.removeprefix("aten::") + (f".{overload}" if overload else "")
        outcomes = self.by_operator.setdefault(name, {})
        key = str(dtype).removeprefix("torch.")
        if raised is None:
            outcomes[key] = _how(func)
        else:  # another call of the dtype may be served
            outcomes.setdefault(key, type(raised).__name__)


def _how(func: torch._ops.OpOverload) -> str:
    name = func.name()
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, KEY):
        return "native"
    composite = any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in COMPOSITE)
    return "composite" if composite else "decomposed"


def _dtype(values: Any) -> torch.dtype | None:
    dtype: torch.dtype | None = None
    for leaf in tree_leaves(values):
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "tpu":
            continue
        with contextlib.suppress(RuntimeError):  # float8 and the wide unsigned types promote with few others
            dtype = leaf.dtype if dtype is None else torch.promote_types(dtype, leaf.dtype)
    return dtype
