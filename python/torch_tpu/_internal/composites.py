"""Operators that PyTorch describes only by kernels for each device, composed of operators that have rows: distances of
all pairs, histograms, hashes. Run under the tracer like PyTorch's own decompositions, so the code asks for sizes and
numbers but never for the elements of a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# ---- distances of all pairs of rows


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = torch.triu_indices(x.size(0), x.size(0), 1, device=x.device).unbind(0)
    return first, second


def _pdist_forward(x: Tensor, p: float = 2.0) -> Tensor:
    """p-norms of x[i] - x[j] for i < j, row by row: [n, m] -> [n (n - 1) / 2]."""
    if x.size(0) < 2:
        return x.new_empty(0)
    first, second = _pairs(x)
    norms: Tensor = torch.linalg.vector_norm(x.index_select(0, first) - x.index_select(0, second), p, dim=1)
    return norms


def _pdist_backward(grad: Tensor, x: Tensor, p: float, pdist: Tensor) -> Tensor:
    """Gradient of x [n, m] for that of the distances; pairs at distance 0 give none."""
    if x.size(0) < 2 or p == 0:
        return torch.zeros_like(x)
    first, second = _pairs(x)
    difference = x.index_select(0, first) - x.index_select(0, second)
    length, grad = pdist.unsqueeze(1), grad.unsqueeze(1)
    if p == 1:
        slope = difference.sign()
    elif math.isinf(p):
        slope = difference.sign() * (difference.abs() == length)
    else:
        slope = difference.sign() * (difference.abs() / length) ** (p - 1)
    share = torch.where((length == 0) | (difference == 0), 0.0, slope * grad)
    return torch.zeros_like(x).index_add(0, first, share).index_add(0, second, -share)


# ---- histograms


def _edges(x: Tensor, bins: int, low: Tensor, high: Tensor) -> Tensor:
    return torch.linspace(low, high, bins + 1, dtype=x.dtype, device=x.device)


def _outer_edges(points: Tensor, bounds: Sequence[float] | None) -> tuple[Tensor, Tensor]:
    """Lowest and highest edge of each of the d dims of points [m, d]: the given ones, or those of the data."""
    dims = points.size(1)
    if bounds is not None:
        flat = torch.stack([torch.full((), v, dtype=points.dtype, device=points.device) for v in bounds])
        low, high = flat[0::2], flat[1::2]
    elif points.size(0) == 0:
        low, high = points.new_zeros(dims), points.new_ones(dims)
    else:
        low, high = points.amin(0), points.amax(0)
    same = (low == high).to(points.dtype) / 2
    return low - same, high + same


def _count(points: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """Weights of points [m, d] per bin, [bins of dim 0, ...]; the last bin of a dim includes its upper edge."""
    sizes = [edge.numel() - 1 for edge in edges]
    place = torch.zeros(points.size(0), dtype=torch.int64, device=points.device)
    inside = torch.ones(points.size(0), dtype=torch.bool, device=points.device)
    for d, edge in enumerate(edges):
        x = points[:, d].contiguous()
        inside = inside & (x >= edge[0]) & (x <= edge[-1])
        bin_of_x = (torch.searchsorted(edge, x, right=True) - 1).clamp(0, sizes[d] - 1)
        place = place * sizes[d] + bin_of_x
    weights = torch.ones_like(points[:, 0]) if weight is None else weight.reshape(-1).to(points.dtype)
    weights = torch.where(inside, weights, torch.zeros_like(weights))
    counts = points.new_zeros(math.prod(sizes)).scatter_add(0, place, weights).reshape(sizes)
    if not density:
        return counts
    counts = counts / counts.sum()
    for d, edge in enumerate(edges):
        shape = [1] * len(sizes)
        shape[d] = sizes[d]
        counts = counts / edge.diff().reshape(shape)
    return counts


def _check_histogram(x: Tensor, bins: Sequence[Any], bounds: Sequence[float] | None, weight: Tensor | None) -> None:
    dims = x.size(-1)
    if not x.is_floating_point():
        raise NotImplementedError(f"torch.histogramdd is not implemented for {x.dtype}")
    if x.dim() < 2:
        raise RuntimeError("torch.histogramdd: input tensor should have at least 2 dimensions")
    if len(bins) != dims:
        raise RuntimeError(
            f"torch.histogramdd: expected {dims} sequences of bin edges for a {dims}-dimensional histogram but got "
            f"{len(bins)}"
        )
    if weight is not None and (weight.shape != x.shape[:-1] or weight.dtype != x.dtype):
        raise RuntimeError("torch.histogramdd: weight must have the shape of input without its last dim, and its dtype")
    if bounds is None:
        return
    if len(bounds) != 2 * dims:
        raise RuntimeError(
            f"torch.histogramdd: for a {dims}-dimensional histogram range should have {2 * dims} elements"
        )
    for low, high in zip(bounds[0::2], bounds[1::2], strict=True):
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RuntimeError(f"torch.histogramdd: range [{low}, {high}] is not finite")
        if low > high:
            raise RuntimeError("torch.histogramdd: min should not exceed max")


def _histogramdd_bin_edges(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    _check_histogram(x, bins, range, weight)
    for count in bins:
        if count <= 0:
            raise RuntimeError(f"torch.histogramdd: bins must be > 0, but got {count}")
    points = x.reshape(-1, x.size(-1))
    low, high = _outer_edges(points, range)
    return [_edges(points, count, low[d], high[d]) for d, count in enumerate(bins)]


def _histogramdd_from_bin_cts(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    edges = _histogramdd_bin_edges(x, bins, range=range, weight=weight)
    return _count(x.reshape(-1, x.size(-1)), edges, weight, density)


def _histogramdd_from_bin_tensors(
    x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    _check_histogram(x, bins, None, weight)
    return _count(x.reshape(-1, x.size(-1)), bins, weight, density)


def _column(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return x.reshape(-1, 1), None if weight is None else weight.reshape(-1)


def _histogram_bin_ct(
    x: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    points, weights = _column(x, weight)
    (edges,) = _histogramdd_bin_edges(points, [bins], range=range, weight=weights)
    return _count(points, [edges], weights, density), edges


def _histogram_bins_tensor(
    x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    points, weights = _column(x, weight)
    return _histogramdd_from_bin_tensors(points, [bins], weight=weights, density=density), bins.clone()


# ---- random numbers


def _uniform_(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: torch.Generator | None = None) -> Any:
    """Complex numbers: both parts are drawn."""
    if not x.is_complex():
        return NotImplemented
    torch.view_as_real(x).uniform_(low, high, generator=generator)
    return x


# ---- hashes


def _hash_tensor(x: Tensor, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Tensor:
    """Exclusive or over `dim` of the elements' bits, each element widened to 64 bits; uint64."""
    if mode != 0:
        raise NotImplementedError("hash_tensor: only mode 0, exclusive or, exists")
    wide = x.to(torch.float64) if x.is_floating_point() else x.to(torch.int64)
    bits = wide.view(torch.int64) if x.is_floating_point() else wide
    axes = sorted({d % max(x.dim(), 1) for d in dim} or range(x.dim())) if x.dim() else []
    rest = [d for d in range(x.dim()) if d not in axes]
    rows = bits.permute([*rest, *axes])
    result = _fold(rows.reshape([x.size(d) for d in rest] + [math.prod(x.size(d) for d in axes)]))
    if keepdim:
        result = result.reshape([1 if d in axes else x.size(d) for d in range(x.dim())])
    return result.view(torch.uint64)


def _fold(rows: Tensor) -> Tensor:
    """Exclusive or of the last dim, half of it with the other half."""
    if rows.size(-1) == 0:
        return rows.new_zeros(rows.shape[:-1])
    while rows.size(-1) > 1:
        half = rows.size(-1) // 2
        folded = rows[..., :half] ^ rows[..., half : 2 * half]
        rows = folded if rows.size(-1) % 2 == 0 else torch.cat([folded, rows[..., 2 * half :]], -1)
    return rows.squeeze(-1)


# By operator and overload, as the engine asks for them.
COMPOSITES: dict[str, Callable[..., Any]] = {
    "aten::_pdist_forward": _pdist_forward,
    "aten::_pdist_backward": _pdist_backward,
    "aten::_histogramdd_bin_edges": _histogramdd_bin_edges,
    "aten::_histogramdd_from_bin_cts": _histogramdd_from_bin_cts,
    "aten::_histogramdd_from_bin_tensors": _histogramdd_from_bin_tensors,
    "aten::histogram.bin_ct": _histogram_bin_ct,
    "aten::histogram.bins_tensor": _histogram_bins_tensor,
    "aten::hash_tensor": _hash_tensor,
    "aten::uniform_": _uniform_,
}
