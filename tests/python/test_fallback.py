"""The host fallback is visible (a warning, a counter) and refusable."""

from __future__ import annotations

import pytest
import torch
from helpers import run_python

# A dense eigendecomposition has no lowering. Should it get one, pick another operator here.
UNSUPPORTED = "torch.linalg.eig(torch.tensor([[2.0, 0.0], [0.0, 3.0]], device='tpu'))"


def test_warns_once_and_counts() -> None:
    done = run_python(
        f"""
        import warnings, torch, torch_tpu
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                values = {UNSUPPORTED}.eigenvalues
        assert values.device.type == "tpu" and sorted(values.real.tolist()) == [2, 3], values
        texts = [str(w.message) for w in caught if "linalg_eig" in str(w.message)]
        assert len(texts) == 1, texts
        counts = torch_tpu.host_fallbacks()
        assert [v for k, v in counts.items() if "linalg_eig" in k] == [3], counts
        torch_tpu.reset_host_fallbacks()
        assert torch_tpu.host_fallbacks() == {{}}
        """,
        TORCH_TPU_HOST_FALLBACK="warn",
    )
    assert done.stderr.count("linalg_eig") <= 1


def test_silent() -> None:
    done = run_python(
        f"""
        import torch, torch_tpu
        {UNSUPPORTED}
        assert torch_tpu.host_fallbacks()
        """,
        TORCH_TPU_HOST_FALLBACK="silent",
    )
    assert "linalg_eig" not in done.stderr


def test_refused() -> None:
    run_python(
        f"""
        import torch, torch_tpu
        try:
            {UNSUPPORTED}
        except (NotImplementedError, RuntimeError) as error:
            assert "linalg_eig" in str(error), error
        else:
            raise SystemExit("ran on the host")
        assert torch_tpu.host_fallbacks() == {{}}
        """,
        TORCH_TPU_HOST_FALLBACK="error",
    )


def test_fallback_keeps_pending_writes_and_aliases() -> None:
    """The host sees what was recorded before, and in-place fallbacks reach every alias."""
    run_python(
        """
        import torch
        torch.tpu.set_eager_mode("fused")
        base = torch.zeros(2, 2, device="tpu")
        base[0, 0], base[1, 1] = 2.0, 3.0
        values = torch.linalg.eig(base).eigenvalues
        assert sorted(values.real.tolist()) == [2, 3], values
        out = torch.zeros(2, dtype=torch.complex64, device="tpu")
        vectors = torch.zeros(2, 2, dtype=torch.complex64, device="tpu")
        alias = out[1:]
        torch.linalg.eig(base, out=(out, vectors))
        assert alias.real.tolist() == out[1:].real.tolist() and abs(alias.real.item()) >= 2
        """,
        TORCH_TPU_HOST_FALLBACK="silent",
    )


def test_unknown_setting_is_refused() -> None:
    done = run_python(f"import torch; {UNSUPPORTED}", expect=None, TORCH_TPU_HOST_FALLBACK="perhaps")
    assert done.returncode == 1 and "TORCH_TPU_HOST_FALLBACK" in done.stderr + done.stdout


@pytest.mark.parametrize("operation", ["x + 1", "x @ x", "x.softmax(0)", "x[0]", "torch.cat((x, x))", "x.sort()"])
def test_core_operators_never_fall_back(operation: str) -> None:
    import torch_tpu

    before = torch_tpu.host_fallbacks()
    eval(operation, {"torch": torch, "x": torch.ones(3, 3, device="tpu")})
    assert torch_tpu.host_fallbacks() == before


def test_structured_operators_reach_the_host_once() -> None:
    """Their functional forms call the out= forms, which are decomposed through the functional forms."""
    run_python(
        """
        import torch, torch_tpu
        a = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
        calls = {
            "qr": lambda a: torch.linalg.qr(a).R.abs(),
            "svd": lambda a: torch.linalg.svd(a).S,
            "eigh": lambda a: torch.linalg.eigh(a).eigenvalues,
            "lstsq": lambda a: torch.linalg.lstsq(a, a).solution,
            "ldl": lambda a: torch.linalg.ldl_factor(a).LD,
        }
        for name, call in calls.items():
            for _ in range(2):
                torch.testing.assert_close(call(a.to("tpu")).cpu(), call(a))
        counts = torch_tpu.host_fallbacks()
        assert set(counts.values()) == {2}, counts
        """,
        TORCH_TPU_HOST_FALLBACK="silent",
    )
