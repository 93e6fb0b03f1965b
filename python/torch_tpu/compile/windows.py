"""Windows into larger memory, and the operators that look beyond them.

A captured graph gets the elements of its arguments, whatever memory they lie in. That is all that operators look at,
except for those of the `as_strided` family: they count places from the beginning of a tensor's memory.
"""

from __future__ import annotations

import torch

_OF_STORAGES = ("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter")


def reads_storages(graph: torch.fx.GraphModule) -> bool:
    """Whether operators count places from the beginning of a tensor's memory, not from its first element."""
    modules = (m for m in graph.modules() if isinstance(m, torch.fx.GraphModule))
    targets = (node.target for module in modules for node in module.graph.nodes if node.op == "call_function")
    return any(getattr(getattr(target, "overloadpacket", None), "__name__", "") in _OF_STORAGES for target in targets)


def is_window(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor holds more than its elements, each once."""
    return tensor.storage_offset() != 0 or tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
