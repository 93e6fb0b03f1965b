"""Which device name this process gets. torch has one PrivateUse1 slot, so the choice is made once, at load."""

from __future__ import annotations

import glob
import os
import re

_SPECS = re.compile(r"(tpu|neuron|cpu)(?::(\d+))?")


def parse() -> tuple[str, int | None] | None:
    """``TORCH_DEVICE`` as (type, index); None when it is unset or empty.

    Raises:
        ValueError: it is neither ``tpu[:n]``, ``neuron[:n]`` nor ``cpu``.
    """
    text = os.environ.get("TORCH_DEVICE", "").strip()
    if not text:
        return None
    match = _SPECS.fullmatch(text)
    if match is None or (match[1] == "cpu" and match[2] is not None):
        raise ValueError(f"TORCH_DEVICE is {text!r}; it may be tpu, tpu:<n>, neuron, neuron:<n> or cpu")
    return match[1], int(match[2]) if match[2] is not None else None


def requested() -> str | None:
    """Device type that ``TORCH_DEVICE`` names, or None."""
    spec = parse()
    return spec[0] if spec else None


def neuron_hardware() -> bool:
    """Whether the machine has a NeuronCore (its driver makes /dev/neuron0)."""
    return bool(glob.glob("/dev/neuron[0-9]*"))


def tpu_hardware() -> bool:
    """Whether the machine has a TPU: a PCI accelerator of vendor 0x1ae0 that a driver has taken."""
    if not (glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*")):
        return False
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        try:
            with open(path) as file:
                if file.read().strip() == "0x1ae0":
                    return True
        except OSError:
            continue
    return False


def settle() -> str:
    """The name to register: ``TORCH_DEVICE`` if set, else ``neuron`` where a NeuronCore is present, else ``tpu``.

    Raises:
        NotImplementedError: the name is ``neuron``.
    """
    name = requested()
    if name == "neuron" or (name is None and neuron_hardware()):
        raise NotImplementedError(
            "device 'neuron' is not supported yet; set TORCH_DEVICE=tpu to use device 'tpu' with another plugin, or "
            "TORCH_DEVICE=cpu to load no accelerator"
        )
    return "tpu"
