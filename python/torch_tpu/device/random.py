"""Random numbers of ``torch.tpu``: the default generator of each device. A state is 16 bytes: seed, then offset."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

from torch_tpu import _C
from torch_tpu.device._index import DeviceLike, device_index


def _default(device: DeviceLike) -> torch.Generator:
    return _C.default_generator(device_index(device))


def _device_count() -> int:
    return _C.device_count() if _C.is_available() else 0


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _default(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices, without starting the client (``torch.manual_seed`` calls this)."""
    _C.manual_seed_all(int(seed))


def _random_seed() -> int:
    return int.from_bytes(os.urandom(8), "little") >> 1


def seed() -> None:
    """Seeds the current device's generator with a random number."""
    manual_seed(_random_seed())


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    manual_seed_all(_random_seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _default(None).initial_seed()


def get_rng_state(device: DeviceLike = "tpu") -> torch.Tensor:
    """State of a device's generator: a uint8 CPU tensor of 16 bytes."""
    return _default(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all devices' generators."""
    return [get_rng_state(index) for index in range(_device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "tpu") -> None:
    """Sets the state of a device's generator to what :func:`get_rng_state` returned."""
    _default(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of all devices' generators, in order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
