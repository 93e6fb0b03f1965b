"""The interpreter ends with its own status, in time, whatever the device is doing, and waits can be interrupted."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from helpers import run_python, start_python
from test_hostile_plugin import FAKE, run_fake

needs_fake = pytest.mark.skipif(not FAKE.exists(), reason="the fake plugin is built with the C++ tests: make test-cpp")
# Longer than any limit below: whoever waits for the fake plugin to finish fails its test.
HOUR_MS = "3600000"
FAKE_ENVIRONMENT = {"TORCH_TPU_PJRT_PLUGIN": str(FAKE), "TORCH_TPU_CACHE": "0"}

# The plugin works on something that nobody will read. Its static destructor aborts the process when it runs meanwhile.
COMPILING = {"FAKE_PJRT_COMPILE_MS": HOUR_MS}
EXECUTING = {"FAKE_PJRT_EVENT_MS": HOUR_MS}
START = """
    import atexit, os, sys
    atexit.register(lambda: print("first handler"))
    import torch
    atexit.register(lambda: print("last handler"))
    x = torch.tensor([1.0, 2.0]).to("tpu")
    y = x + x
    print("not flushed", end=" ")
    sys.stderr.write("on stderr\\n")
    """


@needs_fake
@pytest.mark.parametrize("busy", [COMPILING, EXECUTING], ids=["compiling", "executing"])
@pytest.mark.parametrize(
    "ending, status",
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('text')", 1),
        ("raise KeyError('x')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("del x, y", 0),
        ("torch.tpu.set_eager_mode('fused'); z = y + x", 0),
        ("import threading; threading.Thread(target=y.cpu, daemon=True).start(); import time; time.sleep(0.3)", 0),
    ],
)
def test_exit_while_the_plugin_works(ending: str, status: int, busy: dict[str, str]) -> None:
    """In seconds, with the program's own status, its output complete and all handlers run."""
    start = time.monotonic()
    done = run_fake(START + f"\n    {ending}\n", expect=status, **busy)
    assert time.monotonic() - start < 45  # importing torch is most of it
    assert done.stdout == "not flushed last handler\nfirst handler\n"
    assert "on stderr" in done.stderr


@needs_fake
def test_hard_exit_while_the_plugin_works() -> None:
    assert run_fake(START + "\n    sys.stdout.flush(); os._exit(7)\n", expect=7, **COMPILING).stdout == "not flushed "


@needs_fake
def test_exit_while_the_client_is_being_created() -> None:
    run_fake(
        """
        import sys, threading, time, torch
        threading.Thread(target=torch.ones, args=(1,), kwargs={"device": "tpu"}, daemon=True).start()
        time.sleep(0.5)
        sys.exit(3)
        """,
        expect=3,
        FAKE_PJRT_CREATE_MS=HOUR_MS,
    )


@needs_fake
def test_exit_when_all_is_quiet_runs_every_destructor() -> None:
    """The short way out is for a plugin that works: otherwise C's own exit handlers run, too."""
    done = run_fake(
        START
        + """
    import ctypes
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc.abort, None, None)  # seen if it is called
    """,
        expect=-signal.SIGABRT,
        FAKE_PJRT_EVENT_MS="100",
    )
    assert done.stdout == "not flushed last handler\nfirst handler\n"


@needs_fake
@pytest.mark.parametrize("ending", ["", "sys.exit(3)"])
def test_spawned_children(ending: str) -> None:
    """Children of multiprocessing end while their device compiles; the parent's goes on."""
    child = "import sys, torch; x = torch.tensor([1.0]).to('tpu'); y = x + x; " + ending
    run_fake(
        f"""
        import multiprocessing
        processes = [multiprocessing.get_context("spawn").Process(target=exec, args=({child!r},)) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(100)
        assert [process.exitcode for process in processes] == [{3 if ending else 0}] * 2, processes
        """,
        **COMPILING,
    )


@needs_fake
@pytest.mark.parametrize("ending, status", [("sys.exit(4)", 4), ("os._exit(5)", 5), ("raise KeyError('x')", 1)])
def test_forked_child_ends(ending: str, status: int) -> None:
    """The parent's threads are not there in the child, and what they were doing will never be done."""
    run_fake(
        START
        + f"""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        {ending}
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {status}
    """,
        **COMPILING,
    )


@needs_fake
def test_forked_child_leaves_the_plugin_alone() -> None:
    """Its copies of device tensors die without a call into the plugin, which the fake one would not survive."""
    run_fake("""
        import gc, os, sys, torch
        x = torch.tensor([1.0, 2.0]).to("tpu")
        y = x + x
        y.cpu()
        child = os.fork()
        if child == 0:
            del x, y
            gc.collect()
            sys.exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        assert y.cpu().tolist() == [1, 2]
        """)


WAITS = {
    "read": (COMPILING, "y.cpu()"),
    "item": (COMPILING, "y[0].item()"),
    "print": (COMPILING, "print(y)"),
    "synchronize": (COMPILING, "torch.tpu.synchronize()"),
    "event": (COMPILING, "event = torch.Event(device='tpu'); event.record(); event.synchronize()"),
    "full queue": (COMPILING, "while True: y = y + x"),
    "debug mode": (COMPILING, "torch.tpu.set_eager_mode('debug'); y + x"),
    "execution": (EXECUTING, "y.cpu()"),
    "synchronize execution": (EXECUTING, "torch.tpu.synchronize()"),
    "launches ahead": (EXECUTING, "while True: y = y + x"),
}


def interrupt(process: subprocess.Popen[str], number: int) -> tuple[str, str]:
    """Sends a signal to a process that has said that it is ready and has had time to get into its wait."""
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(1.0)
    assert process.poll() is None, "it did not wait"
    process.send_signal(number)
    return process.communicate(timeout=60)


@needs_fake
@pytest.mark.parametrize("name", WAITS)
def test_keyboard_interrupt_ends_a_wait(name: str) -> None:
    """Ctrl-C during a wait that would take an hour: an exception like any other, and the program goes on."""
    busy, wait = WAITS[name]
    out, err = interrupt(
        start_python(
            f"""
            import sys, torch
            x = torch.tensor([1.0, 2.0]).to("tpu")
            y = x + x
            print("ready", flush=True)
            try:
                {wait}
            except KeyboardInterrupt:
                print("caught", (torch.ones(2) + 1).tolist())
                sys.exit(5)
            """,
            **FAKE_ENVIRONMENT | busy,
        ),
        signal.SIGINT,
    )
    assert out == "caught [2.0, 2.0]\n", err


@needs_fake
def test_keyboard_interrupt_while_the_client_is_being_created() -> None:
    source = "import torch; print('ready', flush=True); torch.ones(1, device='tpu')"
    process = start_python(source, **FAKE_ENVIRONMENT, FAKE_PJRT_CREATE_MS=HOUR_MS)
    _, err = interrupt(process, signal.SIGINT)
    assert "KeyboardInterrupt" in err and process.returncode == -signal.SIGINT


@needs_fake
def test_handlers_of_other_signals_run_during_a_wait() -> None:
    process = start_python(
        """
        import signal, sys, torch
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(6))
        x = torch.tensor([1.0, 2.0]).to("tpu")
        y = x + x
        print("ready", flush=True)
        y.cpu()
        """,
        **FAKE_ENVIRONMENT | COMPILING,
    )
    interrupt(process, signal.SIGUSR1)
    assert process.returncode == 6


@needs_fake
def test_termination_is_immediate() -> None:
    source = "import torch; x = torch.ones(2).to('tpu'); print('ready', flush=True); (x + x).cpu()"
    process = start_python(source, **FAKE_ENVIRONMENT | COMPILING)
    interrupt(process, signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM


@needs_fake
def test_results_after_an_interrupt_are_right() -> None:
    """A read that was interrupted may be repeated: nothing of the computation was lost."""
    out, err = interrupt(
        start_python(
            """
            import torch
            x = torch.tensor([1.0, 2.0]).to("tpu")
            y = x + x
            print("ready", flush=True)
            caught = 0
            while True:
                try:
                    print(y.cpu().tolist(), caught)
                    break
                except KeyboardInterrupt:
                    caught += 1
            """,
            **FAKE_ENVIRONMENT,
            FAKE_PJRT_EVENT_MS="5000",
        ),
        signal.SIGINT,
    )
    assert out == "[1.0, 2.0] 1\n", out + err


@pytest.mark.parametrize("mode", ["strict", "fused"])
@pytest.mark.parametrize(
    "ending", ["", "sys.exit(3)", "raise KeyError('x')", "del x", "threading.Thread(target=f).start()"]
)
def test_exit_with_work_in_flight(mode: str, ending: str) -> None:
    """The same with a real plugin."""
    expect = {"sys.exit(3)": 3, "raise KeyError('x')": 1}.get(ending, 0)
    run_python(
        f"""
        import sys, threading, torch
        torch.tpu.set_eager_mode({mode!r})
        x = torch.ones(600, 600, device="tpu")
        def f():
            y = x
            for _ in range(20):
                y = y @ x / 600
        f()
        for _ in range(20):
            x = x @ x / 600
        y = x.requires_grad_()
        (y * 2).sum().backward()
        {ending}
        """,
        expect=expect,
        timeout=120,
    )


def test_exit_while_compiling() -> None:
    """A real compiler is at work on many threads when the interpreter ends."""
    run_python(
        """
        import sys, torch
        torch.tpu.set_eager_mode("fused")
        x = torch.ones(32, 32, device="tpu")
        for i in range(1000):
            x = torch.tanh(x @ x) + i
        torch.tpu.set_eager_mode("strict")
        sys.exit(3)
        """,
        expect=3,
        timeout=60,
        TORCH_TPU_CACHE="0",
    )


def test_tensors_that_outlive_everything() -> None:
    """Module globals, reference cycles and class attributes are destroyed late or never."""
    run_python("""
        import torch
        class Holder:
            tensor = torch.ones(3, device="tpu")
        a, b = Holder(), Holder()
        a.other, b.other = b, a
        a.x = torch.ones(3, device="tpu") * 2
        import builtins
        builtins.kept = [Holder.tensor + 1, torch.tpu.Stream(), torch.Event(device="tpu"),
                         torch.Generator(device="tpu")]
        """)
