"""Random programs of views, writes through them, and changes of sizes, strides and storages, against the CPU.

A program grows a list of tensors, many of which share memory. Every action is made of integers drawn beforehand, so it
does the same on both devices: either both do it or both raise the same type of error. At random points, and at the end,
all tensors are compared bit for bit, with their sizes, strides and offsets.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch_tpu
from helpers import DEVICE, eager_mode
from torch import Tensor

World = list[Tensor]
# Does something to the tensors of a world; what it returns is added to them.
Action = Callable[[World], Tensor | None]

STEPS = 50
MOST_TENSORS = 20
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def owns_its_elements(x: Tensor) -> bool:
    """No two elements share memory. Where they do, a write depends on the order of PyTorch's loops."""
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(x.shape, x.stride(), strict=True):
        places = places[..., None] + torch.arange(size) * stride
    return places.unique().numel() == x.numel()


def nothing(_: object) -> None:
    """An action's result is in the tensor that it wrote."""


class Program:
    """Draws actions that suit the tensors of a CPU world. Storages may grow where `grows` says so."""

    def __init__(self, seed: int, grows: bool = True) -> None:
        self.rng = random.Random(seed)
        self.grows = grows

    def start(self) -> World:
        sizes = self.rng.choice([(24,), (4, 6), (2, 3, 4), (2, 2, 2, 3), (1, 5, 1, 3)])
        dtype = self.rng.choice([torch.float32, torch.float32, torch.complex64, torch.bool, *INTEGERS])
        return [self.numbers(sizes, dtype)]

    def numbers(self, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Small whole numbers: exact in every dtype."""
        count = torch.Size(sizes).numel()
        low = 0 if dtype in (torch.uint8, torch.bool) else -9
        parts = [torch.tensor([self.rng.randint(low, 9) for _ in range(count)]).reshape(sizes) for _ in range(2)]
        return torch.complex(*(p.float() for p in parts)) if dtype.is_complex else parts[0].to(dtype)

    def action(self, world: World) -> Action:
        place = self.rng.randrange(len(world))
        kinds = [self.write] * 4 + [self.rearrange]
        if len(world) < MOST_TENSORS:
            kinds += [self.view] * 4 + [self.compute]
        made = self.rng.choice(kinds)(world, place)
        return made if made is not None else self.view(world, place)

    def view(self, world: World, place: int) -> Action:
        rng, x = self.rng, world[place]
        views: list[Callable[[Tensor], Tensor]] = [lambda t: t.unsqueeze(-1), lambda t: t.detach(), lambda t: t.data]
        if x.dim():
            dim = rng.randrange(x.dim())
            size = x.shape[dim]
            order = rng.sample(range(x.dim()), x.dim())
            start = rng.randint(0, size)
            stop, step = rng.randint(start, size), rng.choice((1, 1, 2, 3))
            selector = (slice(None),) * dim + (slice(start, stop, step),)
            views += [
                lambda t: t.permute(order),
                lambda t: t[selector],
                lambda t: t.squeeze(),
                lambda t: t.squeeze(dim),
            ]
            if x.dim() > 1:
                offset, other = rng.randint(-1, 2), (dim + 1) % x.dim()
                views += [lambda t: t.diagonal(offset, dim, other), lambda t: t.flatten(), lambda t: t.movedim(dim, 0)]
            if size:
                index, width, hop = rng.randrange(size), rng.randint(1, size), rng.randint(1, 3)
                views += [lambda t: t.select(dim, index), lambda t: t.unfold(dim, width, hop)]
                views += [lambda t: t.split(width, dim)[-1], lambda t: t.narrow(dim, index, size - index)]
            if size > 1 and size % 2 == 0:
                views += [lambda t: t.unflatten(dim, (2, size // 2)), lambda t: t.unflatten(dim, (size // 2, -1))]
            if size == 1:
                repeated = (*x.shape[:dim], 3, *x.shape[dim + 1 :])
                views.append(lambda t: t.expand(repeated))
            views += [lambda t: t.view(-1), lambda t: t.view(torch.Size(reversed(t.shape)))]
        if x.dtype in INTEGERS:
            dtype = rng.choice(INTEGERS)
            views.append(lambda t: t.view(dtype))
        if x.dtype.is_complex:
            views += [lambda t: t.conj(), lambda t: t.real, lambda t: t.imag, lambda t: torch.view_as_real(t)]
        if x.dtype is torch.float32 and x.dim() and x.shape[-1] == 2:
            views.append(torch.view_as_complex)
        rows, stride, offset = rng.randint(0, 3), rng.randint(1, 6), rng.randint(0, 6)
        views.append(lambda t: t.as_strided((rows, 3), (stride, 1), offset))
        chosen = rng.choice(views)
        return lambda w: chosen(w[place])

    def write(self, world: World, place: int) -> Action | None:
        rng, x = self.rng, world[place]
        if not owns_its_elements(x):
            return None
        value = rng.randint(0, 3)
        source = self.numbers(tuple(x.shape), x.dtype)
        mask = torch.tensor([rng.random() < 0.4 for _ in range(x.numel())], dtype=torch.bool).reshape(x.shape)
        writes: list[Callable[[Tensor], object]] = [
            lambda t: t.fill_(value),
            lambda t: t.zero_(),
            lambda t: t.copy_(source),
            lambda t: t.copy_(source.to(t.device)),
            lambda t: t.masked_fill_(mask.to(t.device), value),
            lambda t: t.masked_scatter_(mask.to(t.device), source.to(t.device)),
            lambda t: t.__setitem__(mask.to(t.device), value),
            lambda t: torch.where(mask.to(t.device), source.to(t.device), value, out=t),
            lambda t: t.copy_(t.flip(0) if t.dim() else t),
            lambda t: t.logical_not_(),
        ]
        if x.dtype is not torch.bool:
            writes += [
                lambda t: t.sub_(source.to(t.device)),
                lambda t: torch.add(source.to(t.device), value, out=t),
                lambda t: torch._foreach_add_([t], [source.to(t.device)]),
                lambda t: t.neg_(),
            ]
        if x.dtype in INTEGERS:
            writes += [lambda t: t.bitwise_xor_(value), lambda t: t.bitwise_not_(), lambda t: t.clamp_(0, 5)]
        if x.dim() and x.shape[0]:
            index = torch.tensor([rng.randrange(x.shape[0]) for _ in range(2)])
            last = index[-1:]
            writes += [
                lambda t: t.index_fill_(0, index.to(t.device), value),
                lambda t: t.__setitem__(last.to(t.device), source[:1].to(t.device)),
                lambda t: t.index_copy_(0, last.to(t.device), source[:1].to(t.device)),
                lambda t: t[int(last)].copy_(t[0].clone()),
            ]
            if x.dtype is not torch.bool:
                writes.append(
                    lambda t: t.index_add_(0, index.to(t.device), source[:1].repeat_interleave(2, 0).to(t.device))
                )
        chosen = rng.choice(writes)
        return lambda w: nothing(chosen(w[place]))

    def compute(self, world: World, place: int) -> Action:
        """New tensors, in storages of their own, and writes whose source is another tensor."""
        rng, x = self.rng, world[place]
        alike = [i for i, y in enumerate(world) if y.shape == x.shape and y.dtype == x.dtype]
        other = rng.choice(alike)
        y = world[other]
        computes: list[Action] = [
            lambda w: w[place].clone(),
            lambda w: w[place].contiguous(),
            lambda w: torch.cat([w[place].reshape(-1), w[other].reshape(-1)]),
            lambda w: torch.where(w[place] == w[other], w[place], w[other]),
        ]
        if owns_its_elements(x):
            # Overlap of windows with gaps is "too hard" for PyTorch's check: then the order of its loops decides.
            if place == other or x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr():
                computes.append(lambda w: nothing(w[place].copy_(w[other])))
            else:
                computes.append(lambda w: nothing(w[place].copy_(w[other].clone())))
        return rng.choice(computes)

    def rearrange(self, world: World, place: int) -> Action | None:
        """Sizes, strides and storages of a tensor that exists; others that share its memory stay as they are."""
        rng, x = self.rng, world[place]
        if x.is_conj() or x.is_neg():
            return None
        other = rng.choice(
            [i for i, y in enumerate(world) if y.dtype == x.dtype and not y.is_conj() and not y.is_neg()]
        )
        sizes = rng.choice([(3,), (2, 2), (0, 2), tuple(reversed(x.shape)), (x.numel(),)])
        grown = (*x.shape, 2)
        strides, offset = (rng.randint(1, 4), 1), rng.randint(0, 3)
        actions: list[Action] = [
            lambda w: nothing(w[place].unsqueeze_(0)),
            lambda w: nothing(w[place].squeeze_()),
            lambda w: nothing(w[place].set_(w[other])),
            lambda w: setattr(w[place], "data", w[other]),
            lambda w: setattr(w[place], "data", w[other].clone()),
        ]
        if self.grows:
            # What a tensor gains by growing is not initialised.
            actions.append(lambda w: nothing(w[place].resize_(grown).zero_()))
        available = world[other].untyped_storage().nbytes() // x.element_size()
        if offset + strides[0] + 2 <= available:  # else the storage grows, by what is not initialised
            actions.append(lambda w: nothing(w[place].set_(w[other].untyped_storage(), offset, (2, 2), strides)))
        if torch.Size(sizes).numel() <= x.numel():
            actions.append(lambda w: nothing(w[place].resize_(sizes)))
        if x.dim() > 1:
            actions += [lambda w: nothing(w[place].transpose_(0, -1)), lambda w: nothing(w[place].swapdims_(0, 1))]
        return rng.choice(actions)


def attempt(action: Action, world: World) -> type[Exception] | None:
    """The type of error that the action raised."""
    try:
        made = action(world)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        return type(error)
    if made is not None:
        world.append(made)
    return None


def form(x: Tensor) -> tuple[object, ...]:
    # The stride of a dim with one element means nothing; PyTorch's CPU and Meta kernels differ in it.
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1]
    return x.shape, strides, x.storage_offset(), x.dtype, x.is_conj(), x.is_neg()


def differences(cpu: World, device: World) -> list[str]:
    found = []
    for i, (want, got) in enumerate(zip(cpu, device, strict=True)):
        if form(got) != form(want):
            found.append(f"tensor {i}: {form(got)} instead of {form(want)}")
        elif not torch.equal(got.cpu(), want):
            found.append(f"tensor {i}: {got.cpu()} instead of {want}")
    return found


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors")
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("seed", range(1000))
@pytest.mark.parametrize("mode", ["strict", "fused"])
@torch.no_grad()
def test_random_program(mode: str, seed: int) -> None:
    program = Program(seed)
    cpu = program.start()
    device = [x.to(DEVICE) for x in cpu]
    with eager_mode(mode):
        for step in range(STEPS):
            action = program.action(cpu)
            where = f"seed {seed}, step {step}, {action.__code__.co_firstlineno}"
            want, got = attempt(action, cpu), attempt(action, device)
            assert got == want, f"{where}: raised {got} instead of {want}"
            if program.rng.random() < 0.15:
                assert (found := differences(cpu, device)) == [], f"{where}: {found}"
        assert (found := differences(cpu, device)) == [], f"seed {seed}: {found}"


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors")
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("seed", range(1000))
@torch.no_grad()
def test_random_program_in_steps(seed: int) -> None:
    """Ten actions a step (torch_tpu.compile.step), on tensors that steps before left behind."""
    program = Program(seed, grows=False)
    cpu = program.start()
    device = [x.to(DEVICE) for x in cpu]

    @torch_tpu.compile.step
    def ten_actions() -> None:
        for _ in range(10):
            action = program.action(cpu)
            want, got = attempt(action, cpu), attempt(action, device)
            assert got == want, f"seed {seed}, {action.__code__.co_firstlineno}: raised {got} instead of {want}"

    for number in range(STEPS // 10):
        ten_actions()
        assert (found := differences(cpu, device)) == [], f"seed {seed}, step {number}: {found}"
