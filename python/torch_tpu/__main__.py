"""``python -m torch_tpu doctor``: what is installed, what works, and what to do about the rest;
``python -m torch_tpu aot``: whether a model compiles for a TPU that is not there, and fits."""

from __future__ import annotations

import argparse
import sys

from torch_tpu._internal import doctor


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torch_tpu", description="PyTorch on PJRT plugins, device 'tpu'.")
    commands = parser.add_subparsers(dest="command", required=True)
    examine = commands.add_parser("doctor", help="examine the installation; exit status 1 if something does not work")
    examine.add_argument("--timeout", type=float, default=None, help="seconds each trial may take (default 60)")
    examine.add_argument("--json", action="store_true", help="print facts and problems as JSON")
    arguments = sys.argv[1:] if arguments is None else arguments
    compile_ahead = commands.add_parser("aot", help="compile a model for a TPU that is not there")
    if arguments[:1] == ["aot"]:  # needs torch, which the doctor must not
        from torch_tpu.aot import command

        command.add_arguments(compile_ahead)
        return command.run(parser.parse_args(arguments))
    options = parser.parse_args(arguments)
    return doctor.run(timeout=options.timeout, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
