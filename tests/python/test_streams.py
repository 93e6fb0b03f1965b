"""Streams and events through torch's generic API and torch.tpu's."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import DEVICE, each_mode  # noqa: F401

pytestmark = pytest.mark.usefixtures("each_mode")


def test_work_on_several_streams_is_ordered_by_waits() -> None:
    first, second = torch.tpu.Stream(), torch.tpu.Stream()
    assert first != second and first != torch.tpu.current_stream()
    x = torch.ones(64, 64, device=DEVICE)
    first.wait_stream(torch.tpu.current_stream())
    with torch.tpu.stream(first):
        assert torch.tpu.current_stream() == first
        y = x @ x
    second.wait_stream(first)
    with torch.tpu.stream(second):
        z = y + 1
        y.record_stream(second)
    torch.tpu.current_stream().wait_stream(second)
    assert z.unique().tolist() == [65]
    assert torch.tpu.current_stream() == torch.tpu.default_stream()


def test_generic_stream_api() -> None:
    stream = torch.Stream(device=DEVICE)
    assert stream.device.type == DEVICE
    with stream:
        assert torch.accelerator.current_stream() == stream
        x = torch.ones(8, device=DEVICE) * 2
    stream.synchronize()
    assert stream.query()
    assert x.sum().item() == 16
    torch.accelerator.synchronize()


def test_streams_are_kept_per_thread() -> None:
    import threading

    stream = torch.tpu.Stream()
    seen = []
    with torch.tpu.stream(stream):
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_stream() == stream))
        thread.start()
        thread.join()
    assert seen == [False]


def test_events() -> None:
    before, after = (torch.Event(device=DEVICE, enable_timing=True) for _ in range(2))
    x = torch.ones(128, 128, device=DEVICE)
    before.record()
    for _ in range(10):
        x = x @ x / 128
    after.record()
    after.synchronize()
    assert after.query() and before.query()
    milliseconds = before.elapsed_time(after)
    assert math.isfinite(milliseconds) and 0 <= milliseconds < 60_000
    assert x[0, 0].item() == pytest.approx(1)


def test_event_orders_two_streams() -> None:
    producer, consumer = torch.Stream(device=DEVICE), torch.Stream(device=DEVICE)
    with producer:
        x = torch.full((4,), 3.0, device=DEVICE)
        event = producer.record_event()
    consumer.wait_event(event)
    with consumer:
        y = x * 2
    consumer.synchronize()
    assert y.tolist() == [6, 6, 6, 6]


def test_unrecorded_event() -> None:
    event = torch.Event(device=DEVICE)
    assert event.query()
    event.synchronize()
    torch.accelerator.current_stream().wait_event(event)


def test_tpu_event_class() -> None:
    event = torch.tpu.Event(enable_timing=True)
    event.record(torch.tpu.current_stream())
    event.wait()
    event.synchronize()
    assert event.query()


def test_device_context_and_counts() -> None:
    assert torch.tpu.is_available() and torch.tpu.device_count() >= 1
    with torch.tpu.device(0):
        assert torch.tpu.current_device() == 0
        assert torch.ones(1, device=DEVICE).device.index == 0
    assert torch.accelerator.current_accelerator().type == DEVICE
    assert torch.accelerator.device_count() == torch.tpu.device_count()
    assert torch.tpu.get_device_properties().total_memory > 0
    assert isinstance(torch.tpu.get_device_name(), str)


def test_memory_statistics_follow_tensors() -> None:
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    x = torch.ones(1 << 20, device=DEVICE)
    x.add_(1)
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() - before >= 4 << 20
    assert torch.tpu.max_memory_allocated() >= torch.tpu.memory_allocated()
    del x
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() - before < 1 << 20
    torch.tpu.empty_cache()
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() <= before + (1 << 20)
