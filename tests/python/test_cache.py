"""The compile cache on disk: shared by processes, verified, bounded; whatever is wrong with it only costs time."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import stat
import time

import pytest
import torch
from helpers import run_python, start_python

WORK = """
    import torch, torch_tpu
    torch.tpu.set_eager_mode("strict")
    x = torch.arange(12.0, device="tpu").view(3, 4)
    y = torch.tanh(x @ x.t()).softmax(-1) + x.sum()
    assert abs(y.sum().item() - (3 + 9 * 66)) < 1e-2, y
    stats = torch_tpu.compile_stats()
    print(int(stats["compiles"]), int(stats["disk_hits"]))
    """


def run(directory: pathlib.Path, **environment: str) -> tuple[int, int]:
    """(compiled, found on disk) of a process that uses `directory`."""
    done = run_python(WORK, TORCH_TPU_CACHE_DIR=str(directory), **environment)
    compiled, found = done.stdout.split()[-2:]
    return int(compiled), int(found)


def entries(directory: pathlib.Path) -> list[pathlib.Path]:
    return sorted(directory.glob("*.exe"))


@pytest.fixture(scope="module")
def filled_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, int]:
    """A cache that one process filled, and how many programs that process compiled."""
    directory = tmp_path_factory.mktemp("filled")
    compiled, found = run(directory)
    assert compiled > 0 and found == 0
    return directory, compiled


@pytest.fixture
def filled(filled_once: tuple[pathlib.Path, int], tmp_path: pathlib.Path) -> tuple[pathlib.Path, int]:
    """A copy of it for one test."""
    directory, compiled = filled_once
    return shutil.copytree(directory, tmp_path / "cache"), compiled


def test_second_process_compiles_nothing(filled: tuple[pathlib.Path, int]) -> None:
    directory, compiled = filled
    assert len(entries(directory)) == compiled
    assert run(directory) == (0, compiled)


def test_turned_off(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, TORCH_TPU_CACHE="0")[1] == 0
    assert entries(tmp_path) == []


def test_two_processes_fill_one_directory(tmp_path: pathlib.Path) -> None:
    processes = [start_python(WORK, TORCH_TPU_CACHE_DIR=str(tmp_path)) for _ in range(3)]
    for process in processes:
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, err + out
    compiled, found = run(tmp_path)
    assert compiled == 0 and found == len(entries(tmp_path))


def test_two_processes_one_of_them_killed(tmp_path: pathlib.Path) -> None:
    """The survivor is not disturbed, and a later process finds nothing but whole entries."""
    source = """
        import torch, torch_tpu
        print("ready", flush=True)
        for i in range(1, 20):
            assert torch.ones(i, device="tpu").cumsum(0).tanh().sum().item() > 0
        print(torch_tpu.compile_stats()["compiles"])
        """
    victim, survivor = (start_python(source, TORCH_TPU_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert victim.stdout is not None and victim.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 120
    while len(entries(tmp_path)) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=60)
    _, err = survivor.communicate(timeout=180)
    assert survivor.returncode == 0, err
    assert run_python(source, TORCH_TPU_CACHE_DIR=str(tmp_path)).stdout.split() == ["ready", "0.0"]


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_killed_while_writing(tmp_path: pathlib.Path, delay: float) -> None:
    process = start_python(
        "import torch; torch.ones(1, device='tpu').item(); print('ready', flush=True)\n"
        "for i in range(1, 200): torch.ones(i, device='tpu').cumsum(0).tanh()\n"
        "torch.tpu.synchronize()",
        TORCH_TPU_CACHE_DIR=str(tmp_path),
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    compiled, _ = run(tmp_path)
    assert compiled >= 0
    assert run(tmp_path)[0] == 0


def damage_truncate(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def damage_empty(path: pathlib.Path) -> None:
    path.write_bytes(b"")


def damage_flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 0x10
    path.write_bytes(bytes(content))


def damage_garbage(path: pathlib.Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def damage_swap(path: pathlib.Path) -> None:
    """An intact entry under another entry's name, as after a hash collision."""
    other = next(p for p in entries(path.parent) if p != path)
    path.write_bytes(other.read_bytes())


def damage_directory(path: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [damage_truncate, damage_empty, damage_flip, damage_garbage, damage_swap, damage_directory],
    ids=lambda f: f.__name__.removeprefix("damage_"),
)
def test_damaged_entry_is_compiled_again(filled: tuple[pathlib.Path, int], damage) -> None:
    directory, compiled = filled
    victim = entries(directory)[0]
    intact = victim.stat().st_size
    damage(victim)
    assert run(directory) == (1, compiled - 1)
    if damage is not damage_directory:  # the others have been replaced by an entry that works
        assert victim.stat().st_size >= intact // 2
        assert run(directory) == (0, compiled)


# Permissions mean nothing to root: gives up the capabilities that make it so.
AS_ANYBODY = """
    import ctypes
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, sets) == 0
    """


def test_read_only_directory_is_read(filled: tuple[pathlib.Path, int]) -> None:
    """Hits are served; what is missing or damaged is compiled each time, and nothing is changed."""
    directory, compiled = filled
    missing, damaged, *_ = entries(directory)
    missing.unlink()
    damage_truncate(damaged)
    for path in entries(directory):
        path.chmod(stat.S_IRUSR)
    directory.chmod(stat.S_IRUSR | stat.S_IXUSR)
    before = [(path.name, path.read_bytes()) for path in sorted(directory.iterdir())]
    try:
        for _ in range(2):
            done = run_python(AS_ANYBODY + WORK, TORCH_TPU_CACHE_DIR=str(directory))
            assert done.stdout.split() == ["2", str(compiled - 2)]
        assert [(path.name, path.read_bytes()) for path in sorted(directory.iterdir())] == before
    finally:
        directory.chmod(stat.S_IRWXU)


@pytest.mark.parametrize("place", ["file", "file/cache", "closed/cache"])
def test_directory_that_cannot_be_made(tmp_path: pathlib.Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "closed").mkdir(mode=0)
    done = run_python(AS_ANYBODY + WORK, TORCH_TPU_CACHE_DIR=str(tmp_path / place))
    compiled, found = done.stdout.split()
    assert int(compiled) > 0 and found == "0"
    assert (tmp_path / "file").read_text() == "in the way"


def test_full_disk(tmp_path: pathlib.Path) -> None:
    """Writes that fail in the middle, as on a full disk, leave no half entries; small ones that fit are kept."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
    done = run_python(f"\n    {limit}" + WORK, TORCH_TPU_CACHE_DIR=str(tmp_path))
    compiled, found = done.stdout.split()
    assert int(compiled) > 0 and found == "0"
    assert [path for path in tmp_path.iterdir() if path.suffix != ".exe"] == []
    assert all(path.stat().st_size < 4096 for path in entries(tmp_path))
    kept = len(entries(tmp_path))
    assert kept < int(compiled)
    assert run(tmp_path) == (int(compiled) - kept, kept)


def test_size_is_bounded(tmp_path: pathlib.Path) -> None:
    run_python(
        """
        import torch
        for i in range(1, 60):
            torch.ones(i, device="tpu").cumsum(0).tanh()
        torch.tpu.synchronize()
        """,
        TORCH_TPU_CACHE_DIR=str(tmp_path),
        TORCH_TPU_CACHE_SIZE_MB="1",
        TORCH_TPU_EAGER_MODE="strict",
    )
    total = sum(p.stat().st_size for p in entries(tmp_path))
    # Eviction runs once per twentieth of the bound written, so a little more may stand there at the end.
    assert 0 < total <= 1.1 * 2**20
    compiled, _ = run(tmp_path, TORCH_TPU_CACHE_SIZE_MB="1")
    assert compiled >= 0


def test_other_flags_do_not_share_entries(filled: tuple[pathlib.Path, int]) -> None:
    directory, compiled = filled
    again, found = run(directory, XLA_FLAGS="--xla_backend_optimization_level=0")
    assert (again, found) == (compiled, 0)


def test_clear_cache(filled: tuple[pathlib.Path, int]) -> None:
    directory, _ = filled
    assert len(entries(directory)) > 2
    run_python(
        """
        import torch, torch_tpu
        torch.ones(2, device="tpu").sum().item()
        torch_tpu.clear_cache(disk=True)
        assert torch.ones(3, device="tpu").sum().item() == 3
        """,
        TORCH_TPU_CACHE_DIR=str(directory),
    )
    assert len(entries(directory)) <= 2


def test_memory_cache_serves_repeats() -> None:
    import torch_tpu

    def once() -> float:
        return (torch.ones(5, 7, device="tpu") * 3).sum().item()

    assert once() == 105
    before = torch_tpu.compile_stats()["compiles"]
    assert once() == 105
    assert torch_tpu.compile_stats()["compiles"] == before


def test_programs_in_memory_are_bounded(tmp_path: pathlib.Path) -> None:
    """A process that goes through many programs keeps those used last; the others come back from disk."""
    done = run_python(
        """
        import torch, torch_tpu
        def once(i):
            return torch.ones(i, device="tpu").cumsum(0)[-1].item()
        most = 0
        for i in range(2, 60):
            assert once(i) == i
            most = max(most, torch_tpu.compile_stats()["programs"])
        before = torch_tpu.compile_stats()
        assert once(59) == 59
        torch.tpu.synchronize()
        after = torch_tpu.compile_stats()
        assert after["compiles"] == before["compiles"] and after["disk_hits"] == before["disk_hits"]
        assert once(2) == 2
        last = torch_tpu.compile_stats()
        assert last["compiles"] == before["compiles"] and last["disk_hits"] > before["disk_hits"]
        print(int(before["compiles"]), int(most))
        """,
        TORCH_TPU_CACHE_DIR=str(tmp_path),
        TORCH_TPU_PROGRAM_MEMORY_MB="4",
        TORCH_TPU_BOUNDED_SIZES="off",  # a program for each size
        TORCH_TPU_EAGER_MODE="strict",
    )
    compiled, most = map(int, done.stdout.split())
    # A quarter of a megabyte each, and a few more that wait to be freed.
    assert compiled > 60 and most <= 16 + 16


def test_saved_artifacts_carry_programs(tmp_path: pathlib.Path) -> None:
    """torch.compiler.save_cache_artifacts of one process, load_cache_artifacts of another whose cache is empty."""
    work = """
        import pathlib, sys, torch, torch_tpu
        torch.tpu.set_eager_mode("strict")
        saved = pathlib.Path(sys.argv[1])
        if saved.exists():
            info = torch.compiler.load_cache_artifacts(saved.read_bytes())
            assert len(info.tpu_artifacts) >= 3
        x = torch.arange(12.0, device="tpu").view(3, 4).requires_grad_()
        y = torch.compile(lambda x: torch.tanh(x @ x.t()).softmax(-1) + x.sum(), backend="tpu", fullgraph=True)(x)
        y.sum().backward()
        assert x.grad.shape == (3, 4) and abs(y.sum().item() - (3 + 9 * 66)) < 1e-2
        stats = torch_tpu.compile_stats()
        if not saved.exists():
            written, info = torch.compiler.save_cache_artifacts()
            assert len(info.tpu_artifacts) == stats["compiles"] >= 3
            saved.write_bytes(written)
        print(int(stats["compiles"]), int(stats["disk_hits"]))
        """
    counts = []
    for folder in ("first", "second"):
        done = run_python(work, arguments=(str(tmp_path / "saved"),), TORCH_TPU_CACHE_DIR=str(tmp_path / folder))
        counts.append(tuple(int(n) for n in done.stdout.split()[-2:]))
    (compiled, found), second = counts
    assert compiled >= 3 and found == 0
    assert second == (0, compiled)


@pytest.mark.slow
def test_a_saved_artifact_is_verified(filled: tuple[pathlib.Path, int], tmp_path: pathlib.Path) -> None:
    """A damaged one is compiled again, and none is written outside the cache."""
    directory, compiled = filled
    load = """
        import pathlib, sys, torch
        from torch.compiler._cache import CacheArtifactFactory
        for number, path in enumerate(sorted(pathlib.Path(sys.argv[1]).glob("*.exe"))):
            content = path.read_bytes()
            damaged = content[:-1] + bytes([content[-1] ^ 1]) if number == 0 else content
            CacheArtifactFactory.create("tpu", path.stem, damaged).populate_cache()
        try:
            CacheArtifactFactory.create("tpu", "../" + "0" * 32, content).populate_cache()
        except ValueError as error:
            assert "../" in str(error)
        else:
            raise AssertionError("written elsewhere")
        """
    run_python(load, arguments=(str(directory),), TORCH_TPU_CACHE_DIR=str(tmp_path / "loaded"))
    assert len(entries(tmp_path / "loaded")) == compiled
    assert run(tmp_path / "loaded") == (1, compiled - 1)
