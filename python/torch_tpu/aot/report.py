"""What :func:`torch_tpu.aot.compile` found, as an object, as text and as a page."""

from __future__ import annotations

import collections
import dataclasses
import html
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from torch_tpu.aot.hlo import Instruction

_GIB = 2**30
_SHOWN = 12

# What moves or names data costs no time of its own in XLA's schedule, or is counted with what waits for it.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call"}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device. Arguments that results take over are counted once."""

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int

    @staticmethod
    def sum_of(parts: Sequence[tuple[int, Mapping[str, int]]]) -> Memory:
        """Of programs that count so many times each."""
        names = [field.name for field in dataclasses.fields(Memory)]
        return Memory(**{name: sum(weight * part[name] for weight, part in parts) for name in names})

    @property
    def total(self) -> int:
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclasses.dataclass(frozen=True)
class Row:
    """A share of the estimated cycles, or of the memory."""

    name: str
    amount: int
    share: float


@dataclasses.dataclass(frozen=True)
class Report:
    """Whether a program compiles for a topology, whether it fits, and what it would cost.

    Nothing here is measured: memory is what the compiler reserved, FLOPs and bytes are XLA's cost analysis, and cycles
    are the estimates that XLA:TPU schedules by.
    """

    name: str
    topology: str
    device_kind: str
    device_bytes: int | None
    seconds: float
    error: str | None
    memory: Memory | None
    flops: float | None
    bytes_accessed: float | None
    instructions: tuple[Instruction, ...] = dataclasses.field(repr=False, default=())
    notes: tuple[str, ...] = ()  # how the figures were put together, where they are not of one program
    stablehlo: str = dataclasses.field(repr=False, default="")
    executable: bytes = dataclasses.field(repr=False, default=b"")

    @property
    def compiles(self) -> bool:
        """Whether the compiler took the program. It refuses one that does not fit."""
        return self.error is None

    @property
    def fits(self) -> bool | None:
        """Whether it fits into the memory of one device; None if that cannot be said."""
        if self.error is not None and out_of_memory(self.error):
            return False
        if self.error is not None or self.memory is None or self.device_bytes is None:
            return None
        return self.memory.total <= self.device_bytes

    @property
    def estimated_cycles(self) -> int:
        """Of one run on one device: the sum of what the compiler estimates; see :attr:`not_estimated`."""
        return sum((i.cycles or 0) * i.times for i in self.instructions)

    @property
    def not_estimated(self) -> dict[str, int]:
        """Instructions without an estimate, by kind, with how often they run."""
        counts: collections.Counter[str] = collections.Counter()
        for i in self.instructions:
            if i.cycles is None and i.opcode not in _FREE:
                counts[i.opcode] += i.times
        return {opcode: count for opcode, count in counts.most_common() if count > 0}

    def cycles_by_operator(self) -> list[Row]:
        """Estimated cycles by PyTorch operator, the largest first."""
        return self._cycles_by(lambda i: i.operator or f"({i.opcode} of the compiler)")

    def cycles_by_line(self) -> list[Row]:
        """Estimated cycles by line of the user's program, the largest first."""
        return self._cycles_by(lambda i: i.line or "(no line)")

    def largest_buffers(self) -> list[Row]:
        """Results of single instructions after optimisation by line and operator, in bytes, the largest first."""
        largest: dict[str, int] = {}
        for i in self.instructions:
            if i.opcode in _FREE or i.times < 0:
                continue
            where = f"{i.line or '(no line)'} {i.operator}".strip()
            largest[where] = max(largest.get(where, 0), i.bytes)
        total = self.memory.total if self.memory is not None else 0
        return _rows(largest, total)

    def _cycles_by(self, key: Callable[[Instruction], str]) -> list[Row]:
        amounts: dict[str, int] = collections.defaultdict(int)
        for i in self.instructions:
            if i.cycles is not None:
                amounts[key(i)] += i.cycles * i.times
        return _rows(amounts, self.estimated_cycles)

    def __str__(self) -> str:
        head = f"{self.name} for {self.topology}"
        if self.device_kind:
            head += f" ({self.device_kind})"
        lines = [head, *self._verdict()]
        lines += self.notes
        lines += self._figures()
        if self.instructions:
            lines.append("")
            lines += _table("estimated cycles by operator", self.cycles_by_operator(), str)
            lines += _table("estimated cycles by line", self.cycles_by_line(), str)
            lines += _table("largest results", self.largest_buffers(), _size)
        return "\n".join(lines)

    def _verdict(self) -> list[str]:
        verdict = [f"compiles, in {self.seconds:.1f} s"] if self.error is None else ["does not compile:", self.error]
        if self.memory is not None and self.device_bytes is not None:
            fits = "fits" if self.fits else "does not fit"
            total, available = self.memory.total / _GIB, self.device_bytes / _GIB
            verdict.append(f"{fits}: needs {total:.3g} of {available:.3g} GiB on one device")
        return verdict

    def _figures(self) -> list[str]:
        lines = []
        if self.memory is not None:
            m = self.memory
            lines.append(
                f"memory: arguments {_size(m.arguments)}, outputs {_size(m.outputs)} (of which {_size(m.aliased)} take "
                f"the place of arguments), temporaries {_size(m.temporaries)}, code {_size(m.code)}"
            )
        if self.flops is not None and self.bytes_accessed is not None:
            lines.append(f"XLA's cost analysis: {self.flops:.4g} FLOPs, {self.bytes_accessed:.4g} bytes accessed")
        if self.instructions:
            lines.append(f"estimated by the compiler, not measured: {self.estimated_cycles:.4g} cycles")
        if self.not_estimated:
            missing = ", ".join(f"{n} {opcode}" for opcode, n in list(self.not_estimated.items())[:_SHOWN])
            lines.append(f"without an estimate: {missing}")
        return lines

    def save_html(self, path: str | pathlib.Path) -> None:
        """Writes a page: the text, and a bar for each line of the program whose width is its share of the cycles,
        divided by operator."""
        by_line: dict[str, dict[str, int]] = collections.defaultdict(lambda: collections.defaultdict(int))
        for i in self.instructions:
            if i.cycles is not None:
                by_line[i.line or "(no line)"][i.operator or i.opcode] += i.cycles * i.times
        total = max(self.estimated_cycles, 1)
        bars = []
        for line, operators in sorted(by_line.items(), key=lambda entry: -sum(entry[1].values())):
            cells = "".join(
                f'<span style="width:{100 * cycles / total:.3f}%" title="{html.escape(operator)}: {cycles:,} cycles">'
                f"{html.escape(operator)}</span>"
                for operator, cycles in sorted(operators.items(), key=lambda entry: -entry[1])
            )
            share = 100 * sum(operators.values()) / total
            bars.append(f"<div><label>{share:5.1f}% {html.escape(line)}</label><p>{cells}</p></div>")
        page = _PAGE.format(title=html.escape(self.name), text=html.escape(str(self)), bars="\n".join(bars))
        pathlib.Path(path).write_text(page)


_PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px sans-serif; margin: 2em }} pre {{ background: #f4f4f4; padding: 1em; overflow-x: auto }}
p {{ display: flex; margin: 0 0 .5em; height: 1.6em }} label {{ font: 12px monospace }}
span {{ background: #e8a33d; border-right: 1px solid #fff; overflow: hidden; white-space: nowrap; font-size: 11px }}
</style></head><body><h1>{title}</h1><pre>{text}</pre>
<h2>Estimated cycles by line and operator</h2>
<p>Estimates of the compiler. Nothing was run.</p>
{bars}
</body></html>
"""


def out_of_memory(error: str) -> bool:
    """Whether the compiler refused a program because it does not fit."""
    return "RESOURCE_EXHAUSTED" in error


def _rows(amounts: dict[str, int], total: int) -> list[Row]:
    ordered = sorted(((name, n) for name, n in amounts.items() if n > 0), key=lambda entry: -entry[1])
    return [Row(name, amount, amount / total if total else 0.0) for name, amount in ordered]


def _table(title: str, rows: Sequence[Row], show: Callable[[int], str]) -> Iterable[str]:
    if not rows:
        return
    yield title
    for row in rows[:_SHOWN]:
        yield f"  {100 * row.share:5.1f}%  {show(row.amount):>12}  {row.name}"
    rest = rows[_SHOWN:]
    if rest:
        yield f"  and {len(rest)} more"


def _size(amount: int) -> str:
    for unit, name in ((_GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(amount) >= unit:
            return f"{amount / unit:.3g} {name}"
    return f"{amount} B"
