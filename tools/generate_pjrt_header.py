#!/usr/bin/env python3
"""Writes a C header with the PJRT C API declarations from the layout tables of the `pypjrt` package.

The tables (structs with field offsets and sizes, function slots, enum values) are a description of a binary
interface. This tool turns the part that we use into declarations of our own and into static assertions, so
that the compiler checks every offset and size against the tables. The file of tables is parsed, never
imported or run. docs/pjrt.md says why the header is generated instead of kept in the tree.

    python tools/generate_pjrt_header.py --output build/generated/pjrt/c_api.h
    python tools/generate_pjrt_header.py --tables pjrt_0_114.py --output c_api.h
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "pypjrt"
# Versions whose tables this tool was checked with, and the range of C API minors it accepts from them.
PACKAGE_RANGE = ((0, 1, 1), (0, 2))
API_MAJOR = 0
API_MINOR_RANGE = (106, 199)

HANDLES = (
    "Error",
    "Client",
    "Device",
    "DeviceDescription",
    "Memory",
    "Buffer",
    "Event",
    "Executable",
    "LoadedExecutable",
    "SerializedExecutable",
    "TopologyDescription",
    "ExecuteContext",
)

# The tables know that a field is a pointer, not what it points to. Types of the fields we touch; a field
# that is not listed stays `void*`. A "Struct.field" entry wins over a "field" entry.
FIELD_TYPES = {
    "addressable_device": "PJRT_Device*",
    "addressable_devices": "PJRT_Device* const*",
    "argument_lists": "PJRT_Buffer* const* const*",
    "attributes": "const PJRT_NamedValue*",
    "buffer": "PJRT_Buffer*",
    "byte_strides": "const int64_t*",
    "client": "PJRT_Client*",
    "compile_options": "const char*",
    "create_options": "const PJRT_NamedValue*",
    "data": "const void*",
    "debug_string": "const char*",
    "descriptions": "PJRT_DeviceDescription* const*",
    "device": "PJRT_Device*",
    "device_complete_events": "PJRT_Event**",
    "device_description": "PJRT_DeviceDescription*",
    "device_kind": "const char*",
    "device_layout": "PJRT_Buffer_MemoryLayout*",
    "devices": "PJRT_Device* const*",
    "dims": "const int64_t*",
    "done_with_host_buffer": "PJRT_Event*",
    "dst_buffer": "PJRT_Buffer*",
    "dst_device": "PJRT_Device*",
    "error": "PJRT_Error*",
    "event": "PJRT_Event*",
    "execute_device": "PJRT_Device*",
    "extension_start": "PJRT_Extension_Base*",
    "format": "const char*",
    "host_layout": "PJRT_Buffer_MemoryLayout*",
    "int64_array_value": "const int64_t*",
    "loaded_executable": "PJRT_LoadedExecutable*",
    "memory": "PJRT_Memory*",
    "message": "const char*",
    "minor_to_major": "const int64_t*",
    "name": "const char*",
    "next": "PJRT_Extension_Base*",
    "non_donatable_input_indices": "const int64_t*",
    "output_lists": "PJRT_Buffer** const*",
    "platform_name": "const char*",
    "platform_version": "const char*",
    "serialized_bytes": "const char*",
    "string_value": "const char*",
    "target_name": "const char*",
    "topology": "PJRT_TopologyDescription*",
    "topology_name": "const char*",
    "PJRT_Buffer_ToHostBuffer_Args.src": "PJRT_Buffer*",
    "PJRT_Client_Compile_Args.executable": "PJRT_LoadedExecutable*",
    "PJRT_Client_Compile_Args.program": "const PJRT_Program*",
    "PJRT_Compile_Args.executable": "PJRT_Executable*",
    "PJRT_Compile_Args.program": "const PJRT_Program*",
    "PJRT_Event_OnReady_Args.callback": "PJRT_Event_OnReadyCallback",
    "PJRT_Executable_DeserializeAndLoad_Args.serialized_executable": "const char*",
    "PJRT_Executable_OptimizedProgram_Args.program": "PJRT_Program*",
    "PJRT_Executable_Serialize_Args.serialized_executable": "PJRT_SerializedExecutable*",
    "PJRT_Executable_Serialize_Args.serialized_executable_deleter": "PJRT_SerializedExecutableDeleter",
    "PJRT_FFI_Extension.register_handler": "PJRT_FFI_RegisterHandler",
    "PJRT_LoadedExecutable_Execute_Args.options": "PJRT_ExecuteOptions*",
    "PJRT_LoadedExecutable_GetExecutable_Args.executable": "PJRT_Executable*",
    "PJRT_Program.code": "char*",
}

# Every other entry returns PJRT_Error*.
VOID_ENTRIES = ("PJRT_Error_Destroy", "PJRT_Error_Message")

ENUM_PREFIXES = (
    "PJRT_Buffer_Type_",
    "PJRT_Buffer_MemoryLayout_Type_",
    "PJRT_Error_Code_",
    "PJRT_Extension_Type_",
    "PJRT_HostBufferSemantics_",
    "PJRT_NamedValue_k",
)

EXTRA_STRUCTS = (
    "PJRT_NamedValue",
    "PJRT_Program",
    "PJRT_ExecuteOptions",
    "PJRT_Buffer_MemoryLayout",
    "PJRT_FFI_Register_Handler_Args",
    "PJRT_FFI_Extension",
)

SCALARS = {
    "c_bool": "bool",
    "c_float": "float",
    "c_double": "double",
    "c_int32": "int32_t",
    "c_uint32": "uint32_t",
    "c_int": "int32_t",
    "c_uint": "uint32_t",
    "c_int64": "int64_t",
    "c_uint64": "uint64_t",
    "c_long": "int64_t",
    "c_ulong": "size_t",
    "c_size_t": "size_t",
}

CODE_START = """\
/* Generated by tools/generate_pjrt_header.py: do not edit. PJRT C API {major}.{minor}, the part that we use. */
#ifndef TORCH_TPU_GENERATED_PJRT_C_API_H_
#define TORCH_TPU_GENERATED_PJRT_C_API_H_

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define PJRT_API_MAJOR {major}
#define PJRT_API_MINOR {minor}

"""

CALLBACK_TYPES = """\
typedef void (*PJRT_Event_OnReadyCallback)(PJRT_Error* error, void* user_arg);
typedef void (*PJRT_SerializedExecutableDeleter)(PJRT_SerializedExecutable* executable);
typedef PJRT_Error* (*PJRT_FFI_RegisterHandler)(PJRT_FFI_Register_Handler_Args* args);
"""


class TableError(Exception):
    """The tables lack something or are not of the expected form."""


@dataclass
class Record:
    """One struct or union of the tables; a field's type is a C scalar, "void*" or another record's name."""

    name: str
    is_union: bool
    fields: list[tuple[str, str, int]] = field(default_factory=list)  # name, type, array length (0: none)
    anonymous: tuple[str, ...] = ()
    offsets: dict[str, int] = field(default_factory=dict)
    size: int = 0


@dataclass
class Tables:
    """All records in order of definition, all integer constants, and the slots of the function table."""

    records: dict[str, Record] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)


def field_type(node: ast.expr) -> tuple[str, int]:
    """C type and array length (0: none) of a ctypes expression; raises TableError for an unknown one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
        return field_type(node.left)[0], int(node.right.value)
    if isinstance(node, ast.Name):
        return node.id, 0
    if isinstance(node, ast.Attribute):
        if node.attr == "c_void_p":
            return "void*", 0
        if node.attr in SCALARS:
            return SCALARS[node.attr], 0
    raise TableError(f"unknown field type `{ast.unparse(node)}`")


def parse_record(node: ast.ClassDef) -> Record | None:
    """The record of a ctypes class; None for a class of another kind."""
    bases = {base.attr for base in node.bases if isinstance(base, ast.Attribute)}
    if not bases & {"Structure", "Union"}:
        return None
    record = Record(node.name, "Union" in bases)
    for statement in node.body:
        if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
            continue
        if statement.targets[0].id == "_anonymous_":
            record.anonymous = tuple(ast.literal_eval(statement.value))
        elif statement.targets[0].id == "_fields_" and isinstance(statement.value, ast.List):
            for entry in statement.value.elts:
                if not isinstance(entry, ast.Tuple) or len(entry.elts) != 2:
                    raise TableError(f"{node.name}: a field is not a pair")
                record.fields.append((ast.literal_eval(entry.elts[0]), *field_type(entry.elts[1])))
    return record


def parse_tables(source: str) -> Tables:
    """Reads a module of tables without running it."""
    tables = Tables()
    offsets: dict[str, dict[str, int]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            record = parse_record(node)
            if record is not None:
                tables.records[record.name] = record
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name == "SLOT":
                tables.slots = ast.literal_eval(node.value)
            elif name.startswith("_OFFSETS_"):
                offsets[name.removeprefix("_OFFSETS_")] = dict(ast.literal_eval(node.value))
            elif isinstance(node.value, ast.Constant) and isinstance(node.value.value, int):
                tables.constants[name] = node.value.value
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            if isinstance(call.func, ast.Name) and call.func.id == "_check" and len(call.args) == 3:
                name = ast.unparse(call.args[0])
                if name not in tables.records or name not in offsets:
                    continue  # check_tables() reports it if it is one that we need
                tables.records[name].offsets = offsets[name]
                tables.records[name].size = ast.literal_eval(call.args[2])
    return tables


def check_tables(tables: Tables) -> None:
    """Raises TableError unless the tables are of an API version we accept and hold all we need."""
    major = tables.constants.get("PJRT_API_MAJOR")
    minor = tables.constants.get("PJRT_API_MINOR", -1)
    if major != API_MAJOR or not API_MINOR_RANGE[0] <= minor <= API_MINOR_RANGE[1]:
        low, high = API_MINOR_RANGE
        raise TableError(f"tables of PJRT C API {major}.{minor}; expected {API_MAJOR}.{low} to {API_MAJOR}.{high}")
    missing = [name for name in ("PJRT_Api", *EXTRA_STRUCTS) if name not in tables.records]
    missing += [f"{entry}_Args" for entry in tables.slots if f"{entry}_Args" not in tables.records]
    if missing or not tables.slots:
        raise TableError("missing from the tables: " + ", ".join(missing or ["SLOT"]))
    unchecked = [record.name for record in wanted_records(tables) if record.size == 0]
    if unchecked:
        raise TableError("without offsets and size in the tables: " + ", ".join(unchecked))
    for prefix in ENUM_PREFIXES:
        if not any(name.startswith(prefix) for name in tables.constants):
            raise TableError(f"missing from the tables: the constants {prefix}*")
    known = {name for record in tables.records.values() for name, _, _ in record.fields}
    stale = [key for key in FIELD_TYPES if key.rpartition(".")[2] not in known]
    if stale:
        raise TableError("fields that the tables no longer have: " + ", ".join(stale))


def wanted_records(tables: Tables) -> list[Record]:
    """The records to declare, each after those it contains."""
    order: dict[str, Record] = {}

    def visit(name: str) -> None:
        if name in order:
            return
        record = tables.records[name]
        for _, type_name, _ in record.fields:
            if type_name in tables.records:
                visit(type_name)
        order[name] = record

    for name in EXTRA_STRUCTS:
        visit(name)
    for entry in tables.slots:
        visit(f"{entry}_Args")
    visit("PJRT_Api")
    return list(order.values())


def executable_type(struct: str) -> str:
    """Type of a field named `executable` that FIELD_TYPES does not settle: the prefix of the struct says it."""
    return "PJRT_LoadedExecutable*" if struct.startswith("PJRT_LoadedExecutable_") else "PJRT_Executable*"


def member_type(tables: Tables, record: Record, name: str, type_name: str) -> str:
    """C type of one member; function slots of PJRT_Api are handled by declare_member."""
    if type_name != "void*":
        return type_name
    exact = FIELD_TYPES.get(f"{record.name}.{name}")
    if exact:
        return exact
    if name == "executable":
        return executable_type(record.name)
    return FIELD_TYPES.get(name, "void*")


def declare_member(tables: Tables, record: Record, name: str, type_name: str, length: int) -> list[str]:
    if record.name == "PJRT_Api" and name in tables.slots:
        result = "void" if name in VOID_ENTRIES else "PJRT_Error*"
        return [f"  {result} (*{name})({name}_Args* args);"]
    if name in record.anonymous:
        inner = tables.records[type_name]
        lines = ["  union {" if inner.is_union else "  struct {"]
        for inner_name, inner_type, inner_length in inner.fields:
            lines += ["  " + line for line in declare_member(tables, inner, inner_name, inner_type, inner_length)]
        return [*lines, "  };"]
    suffix = f"[{length}]" if length else ""
    return [f"  {member_type(tables, record, name, type_name)} {name}{suffix};"]


def declare_record(tables: Tables, record: Record) -> list[str]:
    lines = [f"struct {record.name} {{"]
    for name, type_name, length in record.fields:
        lines += declare_member(tables, record, name, type_name, length)
    lines.append("};")
    for name, offset in record.offsets.items():
        lines.append(f'static_assert(offsetof({record.name}, {name}) == {offset}, "{record.name}.{name}");')
    lines.append(f'static_assert(sizeof({record.name}) == {record.size}, "{record.name}");')
    return [*lines, ""]


def struct_size(tables: Tables, record: Record) -> int | None:
    return tables.constants.get(f"{record.name}_STRUCT_SIZE")


def render(tables: Tables) -> str:
    """The text of the header."""
    records = wanted_records(tables)
    anonymous = {type_name for record in records for name, type_name, _ in record.fields if name in record.anonymous}
    records = [record for record in records if record.name not in anonymous]
    lines = [CODE_START.format(major=tables.constants["PJRT_API_MAJOR"], minor=tables.constants["PJRT_API_MINOR"])]
    names = [f"PJRT_{handle}" for handle in HANDLES] + [record.name for record in records]
    lines += [f"typedef struct {name} {name};" for name in names]
    lines += ["", CALLBACK_TYPES]
    for prefix in ENUM_PREFIXES:
        lines.append("enum {")
        for name, value in tables.constants.items():
            if name.startswith(prefix) and not name.endswith("_STRUCT_SIZE"):
                lines.append(f"  {name} = {value},")
        lines += ["};", ""]
    for record in records:
        lines += declare_record(tables, record)
    lines.append("/* What a caller writes into struct_size: the end of the last field, without padding. */")
    lines.append("enum {")
    sized = [record for record in records if struct_size(tables, record) is not None]
    lines += [f"  {record.name}_STRUCT_SIZE = {struct_size(tables, record)}," for record in sized]
    lines += ["};", "", "/* The function table: offset of its first entry, number of entries. */"]
    count = max(tables.slots.values()) + 1
    first = tables.constants["VTABLE_OFFSET"]
    lines.append(f"enum {{ PJRT_Api_kFirstEntry = {first}, PJRT_Api_kEntryCount = {count} }};")
    lines += ["", "#ifdef __cplusplus", '}  // extern "C"', ""]
    lines.append("// Names of the entries in the order of the function table.")
    lines.append("inline constexpr const char* PJRT_Api_kEntryNames[PJRT_Api_kEntryCount] = {")
    by_slot = {slot: name for name, slot in tables.slots.items()}
    lines += [f'    "{by_slot[slot]}",' for slot in range(count)]
    lines += ["};", ""]
    lines.append("template <typename Struct>")
    lines.append("inline constexpr size_t PJRT_kStructSize = 0;  // 0: not a struct that carries its size")
    lines += [
        f"template <>\ninline constexpr size_t PJRT_kStructSize<{record.name}> = {record.name}_STRUCT_SIZE;"
        for record in sized
    ]
    lines += ["#endif", "", "#endif", ""]
    return "\n".join(lines)


def version_tuple(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def find_tables() -> Path:
    """Newest table file of the installed package; TableError says what to install."""
    low, high = PACKAGE_RANGE
    wanted = f"{PACKAGE}>={'.'.join(map(str, low))},<{'.'.join(map(str, high))}"
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise TableError(f"package {PACKAGE} is not installed: pip install '{wanted}'") from None
    if not low <= version_tuple(distribution.version) < high:
        raise TableError(f"{PACKAGE} {distribution.version} was not checked with this tool: pip install '{wanted}'")
    found = []
    for entry in distribution.files or []:
        match = re.fullmatch(rf"{PACKAGE}/_abi/pjrt_(\d+)_(\d+)\.py", entry.as_posix())
        if match and int(match[1]) == API_MAJOR and API_MINOR_RANGE[0] <= int(match[2]) <= API_MINOR_RANGE[1]:
            found.append((int(match[2]), Path(str(distribution.locate_file(entry)))))
    if not found:
        raise TableError(f"{PACKAGE} {distribution.version} holds no tables of PJRT C API {API_MAJOR}.x that fit")
    return max(found)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the PJRT C API header from the tables of pypjrt.")
    parser.add_argument("--output", type=Path, required=True, help="header to write")
    parser.add_argument("--tables", type=Path, help="table module to read instead of the installed package's")
    arguments = parser.parse_args()
    try:
        source = arguments.tables or find_tables()
        tables = parse_tables(source.read_text(encoding="utf-8"))
        check_tables(tables)
        text = render(tables)
    except (TableError, OSError, SyntaxError, ValueError) as error:
        print(f"generate_pjrt_header: {error}", file=sys.stderr)
        return 1
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    # Left alone when equal, so that nothing is rebuilt.
    if not arguments.output.exists() or arguments.output.read_text(encoding="utf-8") != text:
        arguments.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
