"""The host fallback is visible (a warning, a counter) and refusable."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, run_python
from torch_tpu import _C

# PyTorch has this copy of its first argument for its own tests of fallbacks, so it will never have a lowering.
UNSUPPORTED = "torch._test_functorch_fallback(torch.tensor([2.0, 3.0], device='tpu'), torch.tensor(1.0))"


def test_warns_once_and_counts() -> None:
    done = run_python(
        f"""
        import warnings, torch, torch_tpu
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                values = {UNSUPPORTED}
        assert values.device.type == "tpu" and values.tolist() == [2, 3], values
        texts = [str(w.message) for w in caught if "functorch_fallback" in str(w.message)]
        assert len(texts) == 1, texts
        counts = torch_tpu.host_fallbacks()
        assert [v for k, v in counts.items() if "functorch_fallback" in k] == [3], counts
        torch_tpu.reset_host_fallbacks()
        assert torch_tpu.host_fallbacks() == {{}}
        """,
        TORCH_TPU_HOST_FALLBACK="warn",
    )
    assert done.stderr.count("functorch_fallback") <= 1


def test_silent() -> None:
    done = run_python(
        f"""
        import torch, torch_tpu
        {UNSUPPORTED}
        assert torch_tpu.host_fallbacks()
        """,
        TORCH_TPU_HOST_FALLBACK="silent",
    )
    assert "functorch_fallback" not in done.stderr


def test_refused() -> None:
    run_python(
        f"""
        import torch, torch_tpu
        try:
            {UNSUPPORTED}
        except (NotImplementedError, RuntimeError) as error:
            assert "functorch_fallback" in str(error), error
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
        import torch, torch_tpu
        torch.tpu.set_eager_mode("fused")
        copy = torch.ops.aten._test_functorch_fallback
        base = torch.zeros(2, device="tpu")
        base[0], base[1] = 2.0, 3.0
        assert copy(base, base).tolist() == [2, 3]
        out = torch.zeros(2, device="tpu")
        alias = out[1:]
        copy.out(base, base, out=out)
        assert alias.item() == 3
        assert torch_tpu.host_fallbacks()
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
        a = torch.tensor([0, 1, 3, 4])
        calls = {
            "to csr": lambda a: torch._convert_indices_from_coo_to_csr(a, 5),
            "to coo": lambda a: torch._convert_indices_from_csr_to_coo(a, a),
        }
        for name, call in calls.items():
            for _ in range(2):
                torch.testing.assert_close(call(a.to("tpu")).cpu(), call(a))
        counts = torch_tpu.host_fallbacks()
        assert set(counts.values()) == {2}, counts
        """,
        TORCH_TPU_HOST_FALLBACK="silent",
    )


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("_to_sparse", lambda x: x.to_sparse()),
        ("_to_sparse_csr", lambda x: x.to_sparse_csr()),
        ("quantize_per_tensor", lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)),
        ("quantize_per_channel", lambda x: torch.quantize_per_channel(x, x[0], x[0].long(), 0, torch.quint8)),
        ("to_mkldnn", lambda x: x.to_mkldnn()),
    ],
)
@pytest.mark.parametrize("mode", ["warn", "error"])
def test_layouts_that_no_device_stores(name: str, call: Callable[[torch.Tensor], object], mode: str) -> None:
    """Not even the host could help: the error names the operator, the line and what to do."""
    x = torch.eye(3).to(DEVICE)
    _C.set_host_fallback_mode(mode)
    try:
        with pytest.raises(NotImplementedError, match=rf"{name}.*test_fallback\.py.*x\.cpu\(\)"):
            call(x)
    finally:
        _C.set_host_fallback_mode("error")


def test_operators_on_sparse_tensors() -> None:
    x = torch.eye(3).to_sparse_csr()
    sparse = torch.sparse_csr_tensor(*(v.to(DEVICE) for v in (x.crow_indices(), x.col_indices(), x.values())))
    with pytest.raises(NotImplementedError, match=r"sparse tensor on the tpu device.*x\.to_dense\(\)"):
        torch.sparse.sampled_addmm(sparse, torch.eye(3).to(DEVICE), torch.eye(3).to(DEVICE))
