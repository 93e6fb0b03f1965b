"""DataLoader: pinned memory, worker processes, and a device that was in use before they were forked."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, run_python
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Squares(Dataset[Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index), float(index * index)])


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("pinned", [False, True])
def test_workers(start: str, pinned: bool) -> None:
    torch.ones(3, device=DEVICE).sum().item()  # the client runs before workers start
    loader = DataLoader(Squares(), batch_size=5, num_workers=2, pin_memory=pinned, multiprocessing_context=start)
    for _ in range(2):
        total = torch.zeros(2, device=DEVICE)
        for batch in loader:
            assert batch.device.type == "cpu"
            total += batch.to(DEVICE, non_blocking=True).sum(0)
        assert total.tolist() == [276, 4324]


def test_persistent_workers_and_prefetch() -> None:
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, persistent_workers=True, prefetch_factor=3)
    for _ in range(3):
        assert sum(batch.to(DEVICE)[:, 0].sum().item() for batch in loader) == 276
    del loader


def test_pin_memory() -> None:
    loader = DataLoader(TensorDataset(torch.arange(8.0), torch.arange(8)), batch_size=4, pin_memory=True)
    for x, y in loader:
        assert x.is_pinned() and y.is_pinned()
        assert x.to(DEVICE, non_blocking=True).tolist() == y.tolist()
    pinned = torch.arange(5).pin_memory()
    assert pinned.is_pinned() and not torch.arange(5).is_pinned()
    device = torch.arange(5, device=DEVICE)
    back = torch.empty(5, dtype=torch.int64, pin_memory=True)
    back.copy_(device, non_blocking=True)
    torch.tpu.synchronize()
    assert back.tolist() == [0, 1, 2, 3, 4]


def test_pinned_buffer_is_reused_after_an_event() -> None:
    """The CUDA rule: a pinned source belongs to the copy until an event or a synchronisation."""
    staging = torch.empty(1 << 14, pin_memory=True)
    results = []
    for i in range(6):
        staging.fill_(i)
        device = staging.to(DEVICE, non_blocking=True)
        event = torch.Event(device=DEVICE)
        event.record()
        results.append(device * 2)
        event.synchronize()
    assert [r[0].item() for r in results] == [0, 2, 4, 6, 8, 10]


def test_device_tensors_in_the_dataset() -> None:
    data = TensorDataset(torch.arange(6.0, device=DEVICE))
    assert [batch[0].tolist() for batch in DataLoader(data, batch_size=3)] == [[0, 1, 2], [3, 4, 5]]


def test_default_device_and_generators() -> None:
    run_python("""
        import torch
        from torch.utils.data import DataLoader
        torch.set_default_device("tpu")
        loader = DataLoader(range(6), batch_size=2, shuffle=True, generator=torch.Generator(device="tpu"))
        seen = torch.cat([b for b in loader])
        assert seen.device.type == "tpu" and sorted(seen.tolist()) == [0, 1, 2, 3, 4, 5]
        """)


def test_forked_child_is_told() -> None:
    """A client does not survive a fork: the child gets an error instead of a hang, and may use the CPU."""
    run_python(
        """
        import os, sys, torch
        x = torch.ones(3, device="tpu")
        assert x.sum().item() == 3
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert torch.ones(3).sum().item() == 3
                assert torch.tpu._is_in_bad_fork()
                try:
                    (torch.ones(3, device="tpu") + 1).sum().item()
                except RuntimeError as error:
                    status = 0 if "fork" in str(error) and "spawn" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert (x + 1).sum().item() == 6
        """,
        timeout=120,
    )


def test_fork_before_first_use_is_fine() -> None:
    run_python(
        """
        import os, torch
        pid = os.fork()
        value = torch.ones(3, device="tpu").sum().item()
        if pid == 0:
            os._exit(0 if value == 3 else 1)
        assert value == 3 and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """,
        timeout=120,
    )


def test_share_memory_of_host_copies() -> None:
    x = torch.arange(4.0, device=DEVICE).cpu().share_memory_()
    assert x.is_shared() and x.to(DEVICE).sum().item() == 6
