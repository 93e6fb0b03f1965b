"""Layers that a model repeats: a program with one and one with two of them tell what all of them need."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

# A list this short is compiled whole: it is nearly as quick.
_FEW = 3


@dataclasses.dataclass(frozen=True)
class Repeated:
    """A list of layers that are all alike, by its name in the model."""

    name: str
    layers: torch.nn.ModuleList


@dataclasses.dataclass(frozen=True)
class Variant:
    """A model with some of its layers, and how often it counts in the whole (a difference counts negative)."""

    depths: tuple[int, ...]
    weight: int


def repeated_layers(function: Any) -> list[Repeated]:
    """The longest lists of like layers in a module, none of them within another one."""
    found: list[Repeated] = []
    if not isinstance(function, torch.nn.Module):
        return found
    for name, module in function.named_modules():
        inside = any(name.startswith(f"{other.name}.") for other in found)
        if isinstance(module, torch.nn.ModuleList) and len(module) > _FEW and not inside and _alike(module):
            found.append(Repeated(name, module))
    return found


def variants(repeated: Sequence[Repeated]) -> list[Variant]:
    """Each list with one layer; and for each list the same with two of its layers, once for each layer it has more.

    What an added layer adds is taken to be the same for every layer, and not to depend on the other lists.
    """
    if not repeated:
        return [Variant((), 1)]
    single = (1,) * len(repeated)
    more = [len(each.layers) - 1 for each in repeated]
    return [
        Variant(single, 1 - sum(more)),
        *(Variant((*single[:i], 2, *single[i + 1 :]), count) for i, count in enumerate(more)),
    ]


@contextlib.contextmanager
def with_depths(repeated: Sequence[Repeated], depths: Sequence[int]) -> Iterator[None]:
    """The model's lists have only so many layers."""
    before = [dict(each.layers._modules) for each in repeated]
    try:
        for each, depth in zip(repeated, depths, strict=True):
            for key in list(each.layers._modules)[depth:]:
                del each.layers._modules[key]
        yield
    finally:
        for each, layers in zip(repeated, before, strict=True):
            each.layers._modules.clear()
            each.layers._modules.update(layers)


def _alike(layers: torch.nn.ModuleList) -> bool:
    first = _form(layers[0], 0)
    return all(_form(layer, i) == first for i, layer in enumerate(layers))


def _form(layer: torch.nn.Module, number: int) -> list[Any]:
    """What makes a layer's program: the modules in it, their settings and the forms of their tensors. A setting that is
    the layer's own number is none."""
    form: list[Any] = []
    for name, module in layer.named_modules():
        settings = {
            key: None if value == number and "idx" in key else value
            for key, value in vars(module).items()
            if isinstance(value, (bool, int, float, str, type(None))) and not key.startswith("_")
        }
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        form.append((name, type(module), settings, [(key, t.shape, t.dtype, t.requires_grad) for key, t in tensors]))
    return form
