"""Saving, loading, copying and pickling: plain PyTorch files that any machine can read."""

from __future__ import annotations

import copy
import io
import pathlib
import pickle
from typing import Any

import pytest
import torch
from helpers import DEVICE, assert_matches, each_mode, run_python  # noqa: F401
from torch import nn

pytestmark = pytest.mark.usefixtures("each_mode")


def through_file(value: Any, **arguments: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True, **arguments)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int64,
        torch.bool,
        torch.uint8,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
    ids=str,
)
def test_round_trip(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    device = x.to(DEVICE)
    back = through_file(device)
    assert back.device.type == DEVICE
    for y in (back, through_file(device, map_location="cpu"), through_file(x, map_location=DEVICE)):
        assert torch.equal(y.cpu().contiguous().view(torch.uint8), x.view(torch.uint8))
    assert through_file(device, map_location="cpu").device.type == "cpu"
    assert through_file(x, map_location=DEVICE).device.type == DEVICE


def test_views_share_their_storage_after_loading() -> None:
    x = torch.arange(12.0).to(DEVICE)
    loaded = through_file({"x": x, "view": x[2:6].view(2, 2), "transposed": x.view(3, 4).t()})
    assert loaded["view"].untyped_storage().data_ptr() == loaded["x"].untyped_storage().data_ptr()
    loaded["x"][2] = 100
    assert loaded["view"][0, 0].item() == 100
    assert loaded["transposed"].stride() == (1, 4) and loaded["transposed"][2, 0].item() == 100
    assert x[2].item() == 2


def test_only_a_views_own_storage_is_written_when_cloned(tmp_path: pathlib.Path) -> None:
    base = torch.zeros(1 << 18, device=DEVICE)
    torch.save(base[:4], tmp_path / "view.pt")
    torch.save(base[:4].clone(), tmp_path / "clone.pt")
    assert (tmp_path / "view.pt").stat().st_size > 1 << 20
    assert (tmp_path / "clone.pt").stat().st_size < 1 << 13


def test_pending_work_is_in_the_file() -> None:
    x = torch.ones(8, device=DEVICE)
    for _ in range(20):
        x = x + 1
    x[2:4] *= 2
    assert_matches(through_file(x), torch.tensor([21.0, 21, 42, 42, 21, 21, 21, 21]))


def test_state_dicts_with_optimizer_resume_exactly() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
        for i in range(count):
            optimizer.zero_grad()
            model(torch.full((2, 3), float(i), device=DEVICE)).square().sum().backward()
            optimizer.step()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    step(model, optimizer, 3)
    saved = through_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, map_location="cpu")
    resumed = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(DEVICE)
    resumed.load_state_dict(saved["model"])
    again = torch.optim.AdamW(resumed.parameters(), lr=0.05)
    again.load_state_dict(saved["optimizer"])
    step(model, optimizer, 3)
    step(resumed, again, 3)
    for a, b in zip(model.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_file_from_the_device_loads_without_the_backend(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.arange(3.0, device=DEVICE)}, path)
    run_python(
        """
        import sys, torch
        assert "torch_tpu" not in sys.modules
        assert torch.load(sys.argv[1], map_location="cpu", weights_only=True)["w"].tolist() == [0, 1, 2]
        """,
        arguments=(str(path),),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_mmap_load(tmp_path: pathlib.Path) -> None:
    torch.save({"w": torch.arange(1000.0)}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", mmap=True, map_location="cpu", weights_only=True)["w"]
    moved = loaded.to(DEVICE)
    del loaded
    assert moved.sum().item() == 499500


def test_copies_in_memory() -> None:
    x = torch.arange(6.0).to(DEVICE).view(2, 3)
    for duplicate in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), copy.deepcopy(x.t()).t()):
        assert duplicate.device.type == DEVICE and torch.equal(duplicate, x)
        duplicate.zero_()
    assert x.sum().item() == 15
    shared = {"a": x, "b": x[0]}
    twin = copy.deepcopy(shared)
    twin["a"].zero_()
    assert twin["b"].sum().item() == 0 and x.sum().item() == 15
    assert copy.copy(x).data_ptr() == x.data_ptr()


def test_deepcopy_of_parameters_and_modules() -> None:
    model = nn.Linear(3, 2).to(DEVICE)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.weight.add_(1)
    assert isinstance(twin.weight, nn.Parameter) and not torch.equal(twin.weight, model.weight)
    loaded = through_file(model.weight)
    assert isinstance(loaded, nn.Parameter) and loaded.device.type == DEVICE


def test_untyped_storage() -> None:
    x = torch.arange(4, dtype=torch.int32).to(DEVICE)
    storage = x.untyped_storage()
    assert (storage.nbytes(), storage.device.type) == (16, DEVICE)
    assert list(storage.cpu()) == list(x.cpu().untyped_storage())
    clone = storage.clone()
    x.zero_()
    assert list(clone.cpu())[4] == 1 and sum(storage.cpu()) == 0


def test_generator_state_is_saved() -> None:
    torch.manual_seed(5)
    torch.rand(3, device=DEVICE)
    state = torch.tpu.get_rng_state()
    want = torch.rand(3, device=DEVICE)
    loaded = through_file(state)
    torch.tpu.set_rng_state(loaded)
    assert torch.equal(torch.rand(3, device=DEVICE), want)


def test_safetensors(tmp_path: pathlib.Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    x = {"a": torch.arange(6.0).to(DEVICE).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16, device=DEVICE)}
    safetensors.save_file(x, tmp_path / "x.safetensors")
    loaded = safetensors.load_file(tmp_path / "x.safetensors")
    assert_matches({k: v.to(DEVICE) for k, v in loaded.items()}, {k: v.cpu() for k, v in x.items()})


def test_wrong_device_index_is_refused() -> None:
    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer)
    buffer.seek(0)
    with pytest.raises(RuntimeError, match=f"{DEVICE}:99|device"):
        torch.load(buffer, map_location=f"{DEVICE}:99", weights_only=True)
