"""The tool that generates the PJRT C API header: what it writes and which tables it refuses."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys
import types

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "generate_pjrt_header.py"


def load_tool() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("generate_pjrt_header", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


tool = load_tool()


@pytest.fixture(scope="module")
def source() -> str:
    if importlib.util.find_spec("pypjrt") is None:
        pytest.skip("pypjrt, a requirement of the build, is not installed")
    return tool.find_tables().read_text(encoding="utf-8")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True, check=False)


def test_every_entry_is_typed_and_asserted(source: str) -> None:
    tables = tool.parse_tables(source)
    text = tool.render(tables)
    for entry, slot in tables.slots.items():
        result = "void" if entry in tool.VOID_ENTRIES else "PJRT_Error*"
        assert f"  {result} (*{entry})({entry}_Args* args);" in text
        assert f"static_assert(offsetof(PJRT_Api, {entry}) == {40 + 8 * slot}," in text
        assert f"static_assert(sizeof({entry}_Args) == {tables.records[entry + '_Args'].size}," in text


def test_output_is_left_alone_when_equal(source: str, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "deep" / "c_api.h"
    assert run("--output", str(output)).returncode == 0
    before = output.stat().st_mtime_ns
    assert run("--output", str(output)).returncode == 0
    assert output.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"PJRT_API_MAJOR = 0", "PJRT_API_MAJOR = 1", "PJRT C API 1."),
        (r"PJRT_API_MINOR = \d+", "PJRT_API_MINOR = 9999", "9999"),
        (r"\bPJRT_ExecuteOptions\b", "PJRT_OtherOptions", "PJRT_ExecuteOptions"),
        (r"'non_donatable_input_indices'", "'renamed'", "non_donatable_input_indices"),
        (r"\bSLOT = ", "SLOTS = ", "SLOT"),
        (r"_OFFSETS_PJRT_Program\b", "_OTHER", "PJRT_Program"),
        (r"ctypes\.c_float", "ctypes.c_unheard_of", "c_unheard_of"),
        (r"PJRT_Error_Code_", "PJRT_ErrorCode_", "PJRT_Error_Code_"),
    ],
)
def test_tables_that_changed_are_refused(
    source: str, tmp_path: pathlib.Path, pattern: str, replacement: str, message: str
) -> None:
    changed, count = re.subn(pattern, replacement, source)
    assert count > 0
    tables = tmp_path / "tables.py"
    tables.write_text(changed, encoding="utf-8")
    result = run("--tables", str(tables), "--output", str(tmp_path / "c_api.h"))
    assert result.returncode == 1
    assert message in result.stderr
    assert not (tmp_path / "c_api.h").exists()


def test_tables_are_not_run(source: str, tmp_path: pathlib.Path) -> None:
    marker = tmp_path / "ran"
    tables = tmp_path / "tables.py"
    tables.write_text(f"{source}\nopen({str(marker)!r}, 'w').close()\n", encoding="utf-8")
    assert run("--tables", str(tables), "--output", str(tmp_path / "c_api.h")).returncode == 0
    assert not marker.exists()


def test_unreadable_tables_are_an_error(tmp_path: pathlib.Path) -> None:
    broken = tmp_path / "tables.py"
    broken.write_text("class (", encoding="utf-8")
    for path in (broken, tmp_path / "missing.py"):
        result = run("--tables", str(path), "--output", str(tmp_path / "c_api.h"))
        assert result.returncode == 1
        assert "generate_pjrt_header: " in result.stderr
        assert "Traceback" not in result.stderr
