"""The module torch.tpu, function by function, and torch.accelerator over it."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
import torch
import torch_tpu

tpu = torch.tpu  # type: ignore[attr-defined]


def with_devices(count: int, code: str) -> str:
    """Output of code in an interpreter whose plugin shows several devices."""
    environment = {**os.environ, "TORCH_TPU_NUM_DEVICES": str(count)}
    code = "import torch\ntpu = torch.tpu\n" + code
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- devices -----------------------------------------------------------------------------------------------------------


def test_availability() -> None:
    assert tpu.is_available()
    assert tpu.device_count() >= 1
    tpu.init()
    assert tpu.is_initialized()
    assert not tpu._is_in_bad_fork()


def test_names_are_all_there() -> None:
    for name in tpu.__all__:
        assert getattr(tpu, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tpu.nonsense


def test_current_device_is_the_first_one() -> None:
    assert tpu.current_device() == 0
    assert torch.ones(1, device="tpu").device == torch.device("tpu", 0)


def test_set_device_and_context_managers() -> None:
    code = """
tpu.set_device(1)
assert tpu.current_device() == 1 and torch.ones(1, device="tpu").device.index == 1
with tpu.device(2):
    assert tpu.current_device() == 2
    with tpu.device("tpu:0"):
        assert torch.ones(1, device="tpu").device.index == 0
    assert tpu.current_device() == 2
    with tpu.device(None), tpu.device(-1):
        assert tpu.current_device() == 2
assert tpu.current_device() == 1
with tpu.device_of(torch.ones(1, device="tpu:2")):
    assert tpu.current_device() == 2
with tpu.device_of(torch.ones(1)):
    assert tpu.current_device() == 1
try:
    with tpu.device(0):
        raise KeyError
except KeyError:
    assert tpu.current_device() == 1
tpu.set_device(torch.device("tpu"))
tpu.set_device(-1)
assert tpu.current_device() == 1
print(tpu.device_count(), torch.accelerator.device_count(), torch.accelerator.current_device_index())
"""
    assert with_devices(3, code) == "3 3 1"


def test_current_device_belongs_to_the_thread() -> None:
    code = """
import threading
tpu.set_device(1)
seen = []
thread = threading.Thread(target=lambda: seen.append(tpu.current_device()))
thread.start(); thread.join()
print(seen, tpu.current_device())
"""
    assert with_devices(2, code) == "[0] 1"


def test_tensors_on_several_devices() -> None:
    code = """
x = torch.arange(4.0)
parts = [(x.to(f"tpu:{i}") + i).to("tpu:0") for i in range(3)]
total = sum(parts)
print(total.device, total.cpu().tolist())
try:
    torch.ones(1, device="tpu:0") + torch.ones(1, device="tpu:1")
except RuntimeError as error:
    print("tpu:0" in str(error) and "tpu:1" in str(error))
"""
    assert with_devices(3, code).splitlines() == ["tpu:0 [3.0, 6.0, 9.0, 12.0]", "True"]


def test_device_that_does_not_exist() -> None:
    count = tpu.device_count()
    with pytest.raises(RuntimeError, match=str(count)):
        torch.ones(1, device=f"tpu:{count}")
    with pytest.raises(RuntimeError):
        tpu.get_device_properties(count)


@pytest.mark.parametrize(("argument", "error"), [("cpu", ValueError), (1.5, TypeError), (True, TypeError)])
def test_wrong_device_arguments(argument: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        tpu.synchronize(argument)


def test_properties() -> None:
    properties = tpu.get_device_properties()
    assert properties.name == tpu.get_device_name() == tpu.get_device_name("tpu:0") == tpu.get_device_name(0)
    assert properties.name
    assert properties.total_memory > 0
    assert properties.platform
    assert isinstance(properties.attributes, dict)
    assert torch.float32 in tpu.get_device_capability()["supported_dtypes"]


def test_dtype_questions() -> None:
    assert tpu.is_bf16_supported()
    assert tpu.get_amp_supported_dtype() == [torch.bfloat16, torch.float16]


def test_accelerator_is_tpu() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    torch.accelerator.synchronize()
    assert torch.accelerator.current_stream().device == torch.device("tpu", 0)


def test_tensor_and_module_methods() -> None:
    x = torch.arange(3.0)
    assert x.tpu().is_tpu
    assert not x.is_tpu
    assert x.tpu().device == torch.device("tpu", 0)
    module = torch.nn.Linear(2, 2).tpu()
    assert module.weight.is_tpu
    assert x.untyped_storage().tpu().device.type == "tpu"


# -- streams and events ------------------------------------------------------------------------------------------------


def test_default_stream_is_current() -> None:
    assert tpu.current_stream() == tpu.default_stream()
    assert isinstance(tpu.current_stream(), torch.Stream)
    assert tpu.current_stream().device == torch.device("tpu", 0)


def test_stream_context() -> None:
    side = tpu.Stream()
    assert side != tpu.default_stream()
    x = torch.arange(8.0, device="tpu")
    with tpu.stream(side):
        assert tpu.current_stream() == side
        side.wait_stream(tpu.default_stream())
        y = x * 2
    assert tpu.current_stream() == tpu.default_stream()
    tpu.current_stream().wait_stream(side)
    assert (y + 1).cpu().tolist() == [2.0 * i + 1 for i in range(8)]
    with tpu.stream(None):
        assert tpu.current_stream() == tpu.default_stream()
    with side:
        assert tpu.current_stream() == side
    assert tpu.current_stream() == tpu.default_stream()


def test_set_stream() -> None:
    side = tpu.Stream(0)
    tpu.set_stream(side)
    try:
        assert tpu.current_stream() == side
        assert torch.accelerator.current_stream() == side
    finally:
        tpu.set_stream(tpu.default_stream())
    tpu.set_stream(None)
    assert tpu.current_stream() == tpu.default_stream()


def test_events() -> None:
    start, end = tpu.Event(enable_timing=True), tpu.Event(enable_timing=True)
    x = torch.ones(64, 64, device="tpu")
    start.record()
    for _ in range(3):
        x = x @ x / 64
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    side = tpu.Stream()
    end.wait(side)
    side.wait_event(end)
    side.synchronize()
    assert side.query()
    with pytest.raises(NotImplementedError):
        tpu.Event(interprocess=True)


def test_stream_survives_rebuilding() -> None:
    side = tpu.Stream()
    again = torch.Stream(stream_id=side.stream_id, device_index=side.device_index, device_type=side.device_type)
    assert again == side
    assert hash(again) == hash(side)


# -- random numbers ----------------------------------------------------------------------------------------------------


def test_seeds_repeat() -> None:
    torch.manual_seed(5)
    assert tpu.initial_seed() == 5
    a = torch.rand(7, device="tpu").cpu()
    b = torch.rand(7, device="tpu").cpu()
    tpu.manual_seed(5)
    assert torch.equal(torch.rand(7, device="tpu").cpu(), a)
    assert not torch.equal(a, b)
    tpu.manual_seed_all(5)
    assert torch.equal(torch.rand(7, device="tpu").cpu(), a)


def test_seed_before_the_client_starts() -> None:
    code = """
torch.manual_seed(11)
assert not tpu.is_initialized()
a = torch.rand(5, device="tpu:1").cpu()
torch.manual_seed(11)
print(torch.equal(torch.rand(5, device="tpu:1").cpu(), a), tpu.default_generators[1].initial_seed())
"""
    assert with_devices(2, code) == "True 11"


def test_random_seed_differs() -> None:
    tpu.seed()
    first = tpu.initial_seed()
    tpu.seed_all()
    assert tpu.initial_seed() != first


def test_state_round_trip() -> None:
    state = tpu.get_rng_state()
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    assert state.numel() == 16
    a = torch.rand(9, device="tpu").cpu()
    tpu.set_rng_state(state)
    assert torch.equal(torch.rand(9, device="tpu").cpu(), a)
    states = tpu.get_rng_state_all()
    assert len(states) == tpu.device_count() == len(tpu.default_generators)
    tpu.set_rng_state_all(states)


def test_fork_rng() -> None:
    torch.manual_seed(1)
    with torch.random.fork_rng(device_type="tpu"):
        torch.rand(3, device="tpu")
    a = torch.rand(3, device="tpu").cpu()
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3, device="tpu").cpu(), a)


def test_generator_argument() -> None:
    generator = torch.Generator(device="tpu").manual_seed(3)
    a = torch.rand(4, device="tpu", generator=generator).cpu()
    generator.manual_seed(3)
    assert torch.equal(torch.rand(4, device="tpu", generator=generator).cpu(), a)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_memory_figures_follow_tensors() -> None:
    tpu.synchronize()
    before = tpu.memory_allocated()
    x = torch.zeros(1 << 18, device="tpu")
    tpu.synchronize()
    assert tpu.memory_allocated() - before >= x.numel() * 4
    assert tpu.max_memory_allocated() >= tpu.memory_allocated()
    assert tpu.memory_reserved() >= tpu.memory_allocated()
    peak = tpu.max_memory_allocated()
    del x
    tpu.synchronize()
    assert tpu.memory_allocated() == before
    assert tpu.max_memory_allocated() == peak
    tpu.reset_peak_memory_stats()
    assert tpu.max_memory_allocated() == before
    tpu.reset_accumulated_memory_stats()
    tpu.empty_cache()


def test_memory_stats_have_the_usual_names() -> None:
    torch.ones(4, device="tpu").cpu()
    stats = tpu.memory_stats()
    for name in ("allocated_bytes.all.current", "active_bytes.all.peak", "reserved_bytes.all.peak", "num_ooms"):
        assert name in stats, name
    assert "num_alloc_retries" in stats
    free, total = tpu.mem_get_info()
    assert 0 < free <= total
    assert total == tpu.get_device_properties().total_memory
    text = tpu.memory_summary()
    assert "allocated_bytes" in text
    assert len(tpu.memory_summary(abbreviated=True)) < len(text)


def test_what_is_not_supported_says_so() -> None:
    with pytest.raises(NotImplementedError, match="memory_snapshot is not supported"):
        tpu.memory_snapshot()
    with pytest.raises(NotImplementedError, match="_record_memory_history"):
        tpu.memory._record_memory_history()


# -- modes and counters ------------------------------------------------------------------------------------------------


def test_modes() -> None:
    before = tpu.get_eager_mode()
    for mode in ("debug", "strict", "fused"):
        with tpu.eager_mode(mode):
            assert tpu.get_eager_mode() == mode
            assert (torch.ones(3, device="tpu") * 2 + 1).cpu().tolist() == [3.0, 3.0, 3.0]
        assert tpu.get_eager_mode() == before
    with pytest.raises(ValueError, match="may be debug, strict, fused"):
        tpu.set_eager_mode("lazy")
    with pytest.raises(ValueError, match="'lazy'"):
        tpu.eager_mode("lazy")


def test_compile_stats_count() -> None:
    torch_tpu.reset_compile_stats()
    x = torch.arange(6.0, device="tpu")
    for _ in range(3):
        (x * 3).cpu()
    stats = torch_tpu.compile_stats()
    assert stats["executions"] >= 3
    assert stats["compiles"] + stats["disk_hits"] <= stats["executions"]
    torch_tpu.clear_cache()
    assert torch_tpu.compile_stats()["programs"] == 0
    assert (x * 3).cpu().tolist() == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]


def test_host_fallbacks_are_refused_here_and_counted_where_allowed() -> None:
    code = """
import torch, torch_tpu
x = torch.tensor([2.0, 1.0], device="tpu")
torch._test_functorch_fallback(x, x)  # an operator of PyTorch's own tests, which has a CPU kernel only
torch._test_functorch_fallback(x, x)
print(sum(n for name, n in torch_tpu.host_fallbacks().items() if "functorch" in name))
torch_tpu.reset_host_fallbacks()
print(torch_tpu.host_fallbacks())
"""
    allowed = {**os.environ, "TORCH_TPU_HOST_FALLBACK": "silent"}
    done = subprocess.run([sys.executable, "-c", code], env=allowed, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "{}"]
    refused = {**os.environ, "TORCH_TPU_HOST_FALLBACK": "error"}
    done = subprocess.run([sys.executable, "-c", code], env=refused, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "functorch" in done.stderr.splitlines()[-1]


def test_operator_table_is_visible() -> None:
    names = torch_tpu.operators()
    assert "add.Tensor" in names
    assert len(names) == len(set(names))


def test_debug_level_is_scoped() -> None:
    from torch_tpu import _C

    before = _C.debug_level()
    with torch_tpu.debug(2):
        assert _C.debug_level() == 2
    assert _C.debug_level() == before


# -- saving and loading ------------------------------------------------------------------------------------------------


def test_save_and_load_keep_the_device() -> None:
    file = io.BytesIO()
    torch.save({"x": torch.arange(5, device="tpu")}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["x"].device == torch.device("tpu", 0)
    assert loaded["x"].cpu().tolist() == [0, 1, 2, 3, 4]
    file.seek(0)
    assert torch.load(file, map_location="cpu")["x"].device.type == "cpu"


def test_load_cpu_tensors_onto_the_device() -> None:
    file = io.BytesIO()
    torch.save(torch.eye(3), file)
    file.seek(0)
    assert torch.load(file, map_location="tpu").device == torch.device("tpu", 0)
