"""Streams and events of ``torch.tpu``, thin subclasses of ``torch.Stream`` and ``torch.Event``."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.device._index import DeviceLike, device_index

_DEFAULT_STREAM_ID = 0
_DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1, as torch.Stream wants it


class Stream(torch.Stream):
    """A queue of work on one device, ordered within itself.

    Args:
        device: the device; the current one if None.
        priority: accepted for likeness with CUDA; all streams are equal.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        # Rebuilding from (stream_id, device_index, device_type), which torch itself does, passes no device.
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, device=torch.device("tpu", device_index(device)), priority=priority)

    def wait_event(self, event: torch.Event) -> None:
        """Makes work queued here from now on wait for `event`."""
        super().wait_event(event)

    def __repr__(self) -> str:
        return f"torch.tpu.Stream(device={self.device}, stream_id={self.stream_id})"


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "tpu"


class Event(metaclass=_EventType):
    """A mark in a stream that can be waited for, and timed between with ``enable_timing=True``.

    Makes a :class:`torch.Event`: its ``elapsed_time`` takes no subclass.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:  # type: ignore[misc]
        if interprocess:
            raise NotImplementedError("torch.tpu.Event: interprocess events are not supported")
        return torch.Event(device="tpu", enable_timing=enable_timing, blocking=blocking)


def _wrap(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: DeviceLike = None) -> Stream:
    """The stream that this thread queues work on."""
    return _wrap(torch._C._accelerator_getStream(device_index(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that is current unless another one is set."""
    return Stream(stream_id=_DEFAULT_STREAM_ID, device_index=device_index(device), device_type=_DEVICE_TYPE)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` current in this thread; None does nothing."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager that makes a stream, and its device, current. None leaves everything as it is."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous_device = -1
        self._previous: torch.Stream | None = None

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self._previous_device = _C.exchange_device(self.stream.device_index)
        self._previous = torch._C._accelerator_getStream(self.stream.device_index)
        torch._C._accelerator_setStream(self.stream)

    def __exit__(self, *exc: object) -> None:
        if self.stream is None:
            return
        if self._previous is not None:
            torch._C._accelerator_setStream(self._previous)
        _C.exchange_device(self._previous_device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """``with torch.tpu.stream(s): …`` queues the block's work on `s`."""
    return StreamContext(stream)
