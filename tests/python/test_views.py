"""Views: every view operator and what is written through it, aliasing, storages."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, assert_matches, check, each_mode  # noqa: F401
from torch import Tensor

pytestmark = pytest.mark.usefixtures("each_mode")


def numbers(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(1, 1 + torch.Size(sizes).numel()).reshape(sizes).to(dtype)


VIEWS: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Tensor]]] = {
    "alias": (lambda: numbers(3, 4), lambda x: torch.ops.aten.alias(x)),
    "detach": (lambda: numbers(3, 4), lambda x: x.detach()),
    "as_strided": (lambda: numbers(24), lambda x: x.as_strided((2, 3), (7, 2), 3)),
    "as_strided_of_view": (lambda: numbers(4, 6), lambda x: x[1:, 1:].as_strided((2, 2), (1, 9))),
    "as_strided_permuted": (lambda: numbers(24), lambda x: x.as_strided((3, 2), (1, 3), 4)),
    "diagonal": (lambda: numbers(4, 5), lambda x: x.diagonal()),
    "diagonal_below": (lambda: numbers(2, 4, 5), lambda x: x.diagonal(-1, 1, 2)),
    "movedim": (lambda: numbers(2, 3, 4), lambda x: x.movedim(0, 2)),
    "narrow": (lambda: numbers(5, 4), lambda x: x.narrow(0, 1, 3)),
    "permute": (lambda: numbers(2, 3, 4), lambda x: x.permute(2, 0, 1)),
    "select": (lambda: numbers(5, 4), lambda x: x[2]),
    "select_last": (lambda: numbers(5, 4), lambda x: x[:, -1]),
    "select_scalar": (lambda: numbers(5, 4), lambda x: x[2, 3]),
    "slice": (lambda: numbers(7, 4), lambda x: x[1:6:2]),
    "slice_columns": (lambda: numbers(4, 9), lambda x: x[:, 1:8:3]),
    "slice_both": (lambda: numbers(6, 9), lambda x: x[1:5, 2::2]),
    "slice_empty": (lambda: numbers(6, 9), lambda x: x[3:3]),
    "split": (lambda: numbers(7, 4), lambda x: x.split([2, 4, 1])[1]),
    "chunk": (lambda: numbers(7, 4), lambda x: x.chunk(3)[2]),
    "tensor_split": (lambda: numbers(7, 4), lambda x: x.tensor_split(3, 1)[1]),
    "hsplit": (lambda: numbers(2, 6), lambda x: x.hsplit(3)[1]),
    "unbind": (lambda: numbers(3, 4), lambda x: x.unbind(1)[2]),
    "squeeze": (lambda: numbers(1, 3, 1, 2), lambda x: x.squeeze()),
    "squeeze_dim": (lambda: numbers(1, 3, 1, 2), lambda x: x.squeeze(2)),
    "unsqueeze": (lambda: numbers(3, 2), lambda x: x.unsqueeze(1)),
    "transpose": (lambda: numbers(3, 4), lambda x: x.t()),
    "mT": (lambda: numbers(2, 3, 4), lambda x: x.mT),
    "swapaxes": (lambda: numbers(2, 3, 4), lambda x: x.swapaxes(0, 1)),
    "transpose_slice": (lambda: numbers(5, 6), lambda x: x.t()[1:5:2, 1:3]),
    "unflatten": (lambda: numbers(3, 8), lambda x: x.unflatten(1, (2, 4))),
    "flatten": (lambda: numbers(3, 2, 4), lambda x: x.flatten(1)),
    "view": (lambda: numbers(3, 8), lambda x: x.view(2, 3, 4)),
    "view_of_slice": (lambda: numbers(6, 8), lambda x: x[2:5].view(3, 2, 4)),
    "view_splitting_transposed": (lambda: numbers(4, 6), lambda x: x.t().view(2, 3, 4)),
    "reshape": (lambda: numbers(3, 8), lambda x: x.reshape(-1, 2)),
    "view_as": (lambda: numbers(3, 8), lambda x: x.view_as(torch.empty(4, 6, device=x.device))),
    "unfold": (lambda: numbers(8), lambda x: x.unfold(0, 2, 3)),
    "unfold_columns": (lambda: numbers(3, 8), lambda x: x.unfold(1, 4, 4)),
    "newaxis_and_ellipsis": (lambda: numbers(2, 3, 4), lambda x: x[..., None, 1:3]),
    "channels_last": (lambda: numbers(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), lambda x: x[:, 1:]),
    "channels_last_3d": (
        lambda: numbers(2, 3, 2, 2, 2).contiguous(memory_format=torch.channels_last_3d),
        lambda x: x[1],
    ),
    "zero_dim": (lambda: numbers(1)[0], lambda x: x.view(1)),
    "zero_size": (lambda: numbers(0, 3), lambda x: x.view(3, 0)),
    "real": (lambda: torch.complex(numbers(2, 3), -numbers(2, 3)), lambda x: x.real),
    "imag": (lambda: torch.complex(numbers(2, 3), -numbers(2, 3)), lambda x: x.imag),
    "view_as_real": (lambda: torch.complex(numbers(2, 3), -numbers(2, 3)), lambda x: torch.view_as_real(x)),
    "view_as_complex": (lambda: numbers(3, 2), lambda x: torch.view_as_complex(x)),
    "conj": (lambda: torch.complex(numbers(2, 3), -numbers(2, 3)), lambda x: x.conj()),
    "conj_imag_is_neg": (lambda: torch.complex(numbers(2, 3), -numbers(2, 3)), lambda x: x.conj().imag),
    "view_dtype_same_size": (lambda: numbers(2, 4), lambda x: x.view(torch.int32)),
    "view_dtype_smaller": (lambda: numbers(2, 4), lambda x: x.view(torch.int16)),
    "view_dtype_bytes": (lambda: numbers(2, 4), lambda x: x.view(torch.uint8)),
    "view_dtype_larger": (lambda: numbers(2, 4, dtype=torch.int32), lambda x: x.view(torch.int64)),
    "view_dtype_of_slice": (lambda: numbers(4, 4, dtype=torch.int16), lambda x: x[1:3].view(torch.int32)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_reads_as_on_cpu(name: str) -> None:
    make, view = VIEWS[name]
    base = make()
    want, got = view(base), view(base.to(DEVICE))
    assert got.device.type == DEVICE
    assert (got.shape, got.stride(), got.storage_offset(), got.dtype) == (
        want.shape,
        want.stride(),
        want.storage_offset(),
        want.dtype,
    )
    assert (got.is_conj(), got.is_neg(), got.is_contiguous()) == (want.is_conj(), want.is_neg(), want.is_contiguous())
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", VIEWS)
def test_write_through_view_reaches_base(name: str) -> None:
    make, view = VIEWS[name]

    def write(base: Tensor) -> tuple[Tensor, Tensor]:
        alias = view(base)
        alias.copy_(torch.full_like(alias, 3))
        if alias.numel():
            alias.flatten()[:1].view(-1)  # a read between writes
        alias.fill_(7) if alias.dim() == 0 else alias[..., :1].fill_(7)
        return base, alias

    base = make()
    want = write(base.clone(memory_format=torch.preserve_format))
    got = write(base.to(DEVICE))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", VIEWS)
def test_write_to_base_shows_in_view(name: str) -> None:
    make, view = VIEWS[name]

    def write(base: Tensor) -> Tensor:
        alias = view(base)
        base.mul_(2)
        return alias

    base = make()
    want = write(base.clone(memory_format=torch.preserve_format))
    torch.testing.assert_close(write(base.to(DEVICE)).cpu(), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", VIEWS)
def test_view_of_view_as_operand(name: str) -> None:
    """A window is read inside the consuming program, also together with other windows of the same base."""
    make, view = VIEWS[name]
    if view(make()).numel() == 0:
        pytest.skip("nothing to combine")
    check(lambda x: view(x) + view(x)[..., :1] if view(x).dim() else view(x) + view(x), make())


def test_expand_reads_and_refuses_writes() -> None:
    for device in ("cpu", DEVICE):
        x = numbers(3, 1).to(device)
        wide = x.expand(2, 3, 4)
        assert wide.stride() == (0, 1, 0)
        assert wide.sum().item() == 48
        with pytest.raises(RuntimeError, match=r"single memory location|more than one element"):
            wide.add_(1)
        x += 1
        assert wide[1, 2, 3].item() == 4


def test_broadcast_operands() -> None:
    check(lambda a, b: a.expand(4, 3, 5) * b.expand(4, 3, 5), numbers(3, 1), numbers(5))
    check(lambda a: a.expand(2, -1, -1).transpose(0, 2).contiguous(), numbers(3, 4))


def test_overlapping_operands_are_refused() -> None:
    for device in ("cpu", DEVICE):
        x = numbers(8).to(device)
        with pytest.raises(RuntimeError, match=r"single memory location|overlap"):
            x[1:].add_(x[:-1])


def test_copy_between_overlapping_windows() -> None:
    """copy_ of overlapping windows is unspecified on the CPU, so the reference goes through a clone."""
    x = numbers(10)
    got = x.to(DEVICE)
    got[2:8].copy_(got[:6].clone())
    x[2:8].copy_(x[:6].clone())
    assert_matches(got, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64])
def test_unfold_overlapping_read(dtype: torch.dtype) -> None:
    check(lambda x: x.unfold(0, 3, 1).clone(), numbers(7).to(dtype))


def test_negative_and_conjugate_bits_are_materialised() -> None:
    z = torch.complex(numbers(2, 3), -numbers(2, 3))
    check(lambda z: (z.conj() * z, z.conj().resolve_conj(), z.conj().imag.resolve_neg(), z.conj().t() @ z), z)
    check(lambda z: z.clone().conj().copy_(z), z)
    check(lambda z: z[:1].expand(4, 3).conj() @ z.as_strided((3, 2), (1, 1)).conj(), z)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_memory_formats(memory_format: torch.memory_format) -> None:
    x = torch.randn(2, 3, 4, 5)

    def convert(x: Tensor) -> list[Tensor]:
        y = x.contiguous(memory_format=memory_format)
        return [y, y + 1, y.relu(), torch.empty_like(y).zero_(), y.clone(), y.transpose(1, 2), y[:, :2], y.flatten(1)]

    check(convert, x, strides=True)
    check(lambda x: x.contiguous(memory_format=torch.channels_last).is_contiguous(memory_format=memory_format), x)


# ---------------------------------------------------------------------------------------- storages and `.data`


def test_set_shares_a_storage() -> None:
    for device in ("cpu", DEVICE):
        x, y = numbers(6).to(device), torch.empty(0, device=device)
        y.set_(x)
        y[0] = 10
        assert x[0].item() == 10
        z = torch.empty(0, device=device)
        z.set_(x.untyped_storage(), 2, (2, 2), (1, 2))
        assert z.tolist() == [[3, 5], [4, 6]]
        z.zero_()
        assert x.tolist() == [10, 2, 0, 0, 0, 0]
        assert z.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_data_is_an_alias_and_can_be_replaced() -> None:
    for device in ("cpu", DEVICE):
        x = numbers(4).to(device).requires_grad_()
        x.data.mul_(2)
        assert x.tolist() == [2, 4, 6, 8]
        x.data = x.data[:2]
        assert x.tolist() == [2, 4]
        x.data = torch.zeros(3, device=device)
        assert x.tolist() == [0, 0, 0]


def test_resize_keeps_the_prefix() -> None:
    for device in ("cpu", DEVICE):
        x = numbers(2, 3).to(device)
        x.resize_(4)
        assert x.tolist() == [1, 2, 3, 4]
        x.resize_(3, 4)
        assert x.flatten()[:6].tolist() == [1, 2, 3, 4, 5, 6]
        x.fill_(5)
        assert x.sum().item() == 60
        x.resize_(0)
        assert x.numel() == 0


def test_resize_of_a_view_grows_the_storage() -> None:
    for device in ("cpu", DEVICE):
        base = numbers(6).to(device)
        view = base[4:]
        view.resize_(4)
        assert view[:2].tolist() == [5, 6]
        view.zero_()
        assert base.tolist() == [1, 2, 3, 4, 0, 0]


def test_storage_resize_to_zero_and_back() -> None:
    """FSDP frees a parameter this way and fills it again later."""
    for device in ("cpu", DEVICE):
        x = numbers(6).to(device)
        view = x.view(2, 3)
        nbytes = x.untyped_storage().nbytes()
        x.untyped_storage().resize_(0)
        assert x.untyped_storage().nbytes() == 0
        x.untyped_storage().resize_(nbytes)
        x.copy_(numbers(6).to(device))
        assert view.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_data_ptr_is_unique_and_stable() -> None:
    """Tied-weight detection and safetensors compare addresses; null or changing ones would break both."""
    tensors = [numbers(4).to(DEVICE) for _ in range(50)]
    pointers = [t.data_ptr() for t in tensors]
    assert 0 not in pointers and len(set(pointers)) == 50
    for t in tensors:
        t.add_(1)
        t[1:3] = 0
    torch.tpu.synchronize()
    assert [t.data_ptr() for t in tensors] == pointers
    x = numbers(4, 4).to(DEVICE)
    assert x[1].data_ptr() == x.data_ptr() + 16
    assert x.view(16).untyped_storage().data_ptr() == x.data_ptr()
    sizes = [(t.data_ptr(), t.data_ptr() + t.numel() * 4) for t in sorted(tensors, key=Tensor.data_ptr)]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(sizes))


def test_zero_sizes() -> None:
    check(lambda x: [x + 1, x.sum(), x.t(), torch.cat((x, x)), x.view(0), x.expand(2, 0, 3), x.clone()], numbers(0, 3))
    check(lambda x: x[:, :0].fill_(1), numbers(2, 3))


def test_version_counter_counts_writes_through_views() -> None:
    x = numbers(4).to(DEVICE)
    view = x[1:]
    before = x._version
    view.add_(1)
    assert x._version == before + 1 == view._version


def test_offsets_are_operands_and_compile_once() -> None:
    """x[t] and x[:, t] = ... for changing t use one program each."""
    import torch_tpu

    x = torch.zeros(64, 8, device=DEVICE)

    def touch(t: int) -> None:
        x[t] += 1.0
        x[:, t % 8].mul_(1.0)
        torch.tpu.synchronize()

    for t in range(8):
        touch(t)
    before = torch_tpu.compile_stats()["compiles"]
    for t in range(8, 56):
        touch(t)
    # Tails of a recorded sequence may still meet once; a compile per index would be 48 or more.
    assert torch_tpu.compile_stats()["compiles"] - before <= 2
    assert x.sum().item() == 56 * 8


def test_write_through_a_dtype_view_keeps_the_bytes_around_it() -> None:
    def flags_among_bytes(x: Tensor) -> Tensor:
        x.view(torch.bool)[::2] = False
        return x

    def words_before_odd_bytes(x: Tensor) -> Tensor:
        x[:4].view(torch.int32).fill_(77)
        x[6:].view(torch.int8).neg_()
        return x

    def pairs_before_an_odd_one(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x[:14].view(7, 2))
        pairs[torch.tensor([1], device=x.device)] = 3
        pairs.mul_(2)
        pairs[1:3] = 1j
        return x

    def nothing(x: Tensor) -> Tensor:
        x[4:4].view(torch.float32).zero_()
        return x

    check(flags_among_bytes, numbers(7, dtype=torch.uint8))
    check(words_before_odd_bytes, numbers(7, dtype=torch.uint8))
    check(pairs_before_an_odd_one, numbers(15))
    check(nothing, numbers(7, dtype=torch.uint8))
