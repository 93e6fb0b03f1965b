"""Fourier transforms against the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from helpers import check

NORMS = ("forward", "backward", "ortho")
DIMS = ((0,), (2,), (1, 2), (2, 0), (0, 1, 2, 3), (3, 1, 0, 2))
ONE_DIM: dict[str, Callable[..., torch.Tensor]] = {
    "fft": torch.fft.fft,
    "ifft": torch.fft.ifft,
    "rfft": torch.fft.rfft,
    "irfft": torch.fft.irfft,
    "hfft": torch.fft.hfft,
    "ihfft": torch.fft.ihfft,
}


def signal(name: str, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    real = name in ("rfft", "ihfft", "rfftn")
    return torch.randn(*sizes, dtype=dtype if real else dtype.to_complex())


@pytest.mark.parametrize("name", ONE_DIM)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("length", (None, 4, 7, 12))
def test_one_dim(name: str, norm: str, length: int | None) -> None:
    check(lambda x: ONE_DIM[name](x, n=length, dim=1, norm=norm), signal(name, 3, 8, 2))


@pytest.mark.parametrize(("name", "dtype"), itertools.product(ONE_DIM, (torch.float64,)))
def test_double(name: str, dtype: torch.dtype) -> None:
    check(ONE_DIM[name], signal(name, 2, 9, dtype=dtype))


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("name", ("fftn", "ifftn", "rfftn", "irfftn"))
def test_several_dims(name: str, dims: tuple[int, ...]) -> None:
    function = getattr(torch.fft, name)
    check(lambda x: function(x, dim=dims, norm="ortho"), signal(name, 4, 3, 5, 2))


def test_whole_spectrum_of_a_real_signal() -> None:
    """fft of a real tensor asks for both halves of the spectrum."""
    check(lambda x: torch.fft.fftn(x, dim=(1, 2)), torch.randn(2, 5, 6))
    check(torch.fft.fft, torch.arange(5))


def test_edges() -> None:
    check(torch.fft.fft, torch.randn(3, 1))
    check(lambda x: torch.fft.fft(x, dim=1), torch.randn(0, 4))
    check(lambda x: torch.fft.rfft(x, dim=0), torch.randn(6, 4).t())
    check(lambda x: torch.fft.fftshift(torch.fft.fft2(x)), torch.randn(2, 4, 4))


def test_gradients() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = torch.fft.irfft(torch.fft.rfft(x) * 2, n=7) + torch.fft.fft(x).abs()
        return torch.autograd.grad((y**2).sum(), x)[0]

    check(run, torch.randn(3, 7, requires_grad=True))


def test_stft_round_trip() -> None:
    window = torch.hann_window(16)

    def run(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
        return torch.istft(spectrum, 16, 4, window=window, length=x.shape[-1])

    check(run, torch.randn(2, 64), window)
