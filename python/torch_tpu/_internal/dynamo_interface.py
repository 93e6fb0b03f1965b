"""The device interface that torch._dynamo and inductor ask.

torch has one for the name "tpu" already, written for another backend: it knows no float64 and no complex numbers, and
a single device.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu import device as tpu


def register(module: ModuleType) -> None:
    """Puts ours in place of torch's own in `module`, which is torch._dynamo.device_interface."""
    # Fills the registry with torch's own first: done later, it would overwrite ours.
    module.get_interface_for_device("cpu")
    base: Any = module.DeviceInterface

    class TpuInterface(base):  # type: ignore[misc]
        """torch.tpu, as torch._dynamo wants it."""

        class Worker:
            """What inductor's compile workers ask; they have no device of their own."""

            @staticmethod
            def set_device(device: int) -> None:
                module.caching_worker_current_devices["tpu"] = device

            @staticmethod
            def current_device() -> int:
                known: dict[str, int] = module.caching_worker_current_devices
                return known.get("tpu", 0) if known else _C.current_device()

            @staticmethod
            def get_device_properties(device: Any = None) -> Any:
                return tpu.get_device_properties(device)

        device = tpu.device
        Event = tpu.Event
        Stream = tpu.Stream
        current_device = staticmethod(tpu.current_device)
        set_device = staticmethod(tpu.set_device)
        device_count = staticmethod(tpu.device_count)
        is_available = staticmethod(tpu.is_available)
        stream = staticmethod(tpu.stream)
        current_stream = staticmethod(tpu.current_stream)
        set_stream = staticmethod(tpu.set_stream)
        synchronize = staticmethod(tpu.synchronize)
        get_device_properties = staticmethod(tpu.get_device_properties)
        memory_allocated = staticmethod(tpu.memory_allocated)
        exchange_device = staticmethod(_C.exchange_device)
        maybe_exchange_device = staticmethod(_C.maybe_exchange_device)

        @staticmethod
        def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
            torch._C._accelerator_setStream(
                torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
            )

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            return int(tpu.current_stream(device_idx).stream_id)

        @staticmethod
        def get_compute_capability(device: Any = None) -> str:
            return ""

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return True

        @classmethod
        def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
            return True

        @staticmethod
        def is_triton_capable(device: Any = None) -> bool:
            return False

        @staticmethod
        def raise_if_triton_unavailable(device: Any = None) -> None:
            raise RuntimeError("device tpu has no Triton; use torch.compile(backend='tpu')")

    module.register_interface_for_device("tpu", TpuInterface)
