"""Reads what is needed here of an optimised XLA program: its instructions, and where in the user's program they come
from. The messages are those of xla/service/hlo.proto, in protobuf's wire format
(https://protobuf.dev/programming-guides/encoding/)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

# Field numbers of xla/service/hlo.proto and xla/xla_data.proto.
_WITH_CONFIG_MODULE = 1
_MODULE_COMPUTATIONS, _MODULE_ENTRY_ID, _MODULE_STACK_FRAMES = 3, 6, 17
_COMPUTATION_INSTRUCTIONS, _COMPUTATION_ID = 2, 5
_NAME, _OPCODE, _SHAPE, _METADATA = 1, 2, 3, 7
_TARGET, _CALLED, _CONFIG = 28, 38, 43
_META_OP_NAME, _META_FILE, _META_LINE, _META_FRAME = 2, 3, 4, 15
_SHAPE_TYPE, _SHAPE_DIMENSIONS, _SHAPE_TUPLE = 2, 3, 4
_INDEX_FILES, _INDEX_LOCATIONS, _INDEX_FRAMES = 1, 3, 4

# xla.PrimitiveType -> bits of an element; those of narrow and new types are left out and count as bytes.
_BITS = {
    1: 8, 2: 8, 3: 16, 4: 32, 5: 64, 6: 8, 7: 16, 8: 32, 9: 64, 10: 16, 11: 32, 12: 64, 15: 64, 16: 16, 18: 128,
    21: 4, 22: 4,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of the entry computation, or of a loop's body, after optimisation."""

    name: str
    opcode: str
    operator: str  # what it was part of: "add.Tensor", "" if the compiler does not say
    line: str  # "file.py:12", ""  if the compiler does not say
    bytes: int  # of its result
    cycles: int | None  # the compiler's estimate for one time; None where it has none
    times: int  # how often it runs: the trip count of the loops around it


def instructions(program: bytes) -> list[Instruction]:
    """What runs, in order, of an HloModuleProtoWithConfig: the entry computation with the bodies of its loops."""
    module = _message(_one(_message(program), _WITH_CONFIG_MODULE))
    frames = _stack_frames(module)
    computations = {}
    for encoded in module.get(_MODULE_COMPUTATIONS, []):
        computation = _message(encoded)
        computations[_one(computation, _COMPUTATION_ID)] = computation
    found: list[Instruction] = []

    def visit(identity: int, times: int) -> None:
        for encoded in computations[identity].get(_COMPUTATION_INSTRUCTIONS, []):
            fields = _message(encoded)
            opcode = _text(fields, _OPCODE)
            config = _json(_text(fields, _CONFIG))
            found.append(_instruction(fields, opcode, config, times, frames))
            if opcode in ("while", "conditional", "call"):
                trips = int(config.get("known_trip_count", {}).get("n", 1)) if opcode == "while" else 1
                for called in _numbers(fields, _CALLED):
                    visit(called, times * trips)

    visit(_one(module, _MODULE_ENTRY_ID), 1)
    return found


def _instruction(
    fields: dict[int, list[Any]], opcode: str, config: dict[str, Any], times: int, frames: dict[int, str]
) -> Instruction:
    metadata = _message(_one(fields, _METADATA, b""))
    line = ""
    if _META_FILE in metadata:
        line = f"{_text(metadata, _META_FILE)}:{_one(metadata, _META_LINE, 0)}"
    elif _META_FRAME in metadata:
        line = frames.get(_one(metadata, _META_FRAME), "")
    cycles = config.get("window_config", {}).get("estimated_cycles", config.get("estimated_cycles"))
    target = _text(fields, _TARGET)
    return Instruction(
        name=_text(fields, _NAME),
        opcode=f"{opcode} {target}" if target else opcode,
        operator=_text(metadata, _META_OP_NAME),
        line=line,
        bytes=_shape_bytes(_one(fields, _SHAPE, b"")),
        cycles=int(cycles) if cycles is not None and int(cycles) > 0 else None,
        times=times,
    )


def _stack_frames(module: dict[int, list[Any]]) -> dict[int, str]:
    """Number of a frame -> "file:line"; numbers count from 1."""
    index = _message(_one(module, _MODULE_STACK_FRAMES, b""))
    files = [name.decode() for name in index.get(_INDEX_FILES, [])]
    locations = [_message(encoded) for encoded in index.get(_INDEX_LOCATIONS, [])]
    lines = {}
    for number, encoded in enumerate(index.get(_INDEX_FRAMES, []), start=1):
        location = _one(_message(encoded), 1, 0)
        if 0 < location <= len(locations):
            file, line = _one(locations[location - 1], 1, 0), _one(locations[location - 1], 3, 0)
            lines[number] = f"{files[file - 1]}:{line}" if 0 < file <= len(files) else ""
    return lines


def _shape_bytes(encoded: bytes) -> int:
    shape = _message(encoded)
    parts = shape.get(_SHAPE_TUPLE, [])
    if parts:
        return sum(map(_shape_bytes, parts))
    count = 1
    for size in _numbers(shape, _SHAPE_DIMENSIONS):
        count *= size
    return count * _BITS.get(_one(shape, _SHAPE_TYPE, 0), 8) // 8


# ---- the wire format


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}[kind]
        yield key >> 3, data[at : at + length]
        at += length


def _message(data: bytes) -> dict[int, list[Any]]:
    message: dict[int, list[Any]] = {}
    for number, value in _fields(data):
        message.setdefault(number, []).append(value)
    return message


def _one(message: dict[int, list[Any]], number: int, default: Any = None) -> Any:
    values = message.get(number)
    return values[-1] if values else default


def _text(message: dict[int, list[Any]], number: int) -> str:
    value: bytes = _one(message, number, b"")
    return value.decode(errors="replace")


def _numbers(message: dict[int, list[Any]], number: int) -> list[int]:
    """A repeated integer, which may be packed."""
    found: list[int] = []
    for value in message.get(number, []):
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            found.append(one)
    return found


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text.startswith("{") else {}
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
