"""``python -m torch_tpu aot script.py --topology v5e:2x2``: reports on a model that a script defines."""

from __future__ import annotations

import argparse
import pathlib
import runpy
from typing import Any

import torch

from torch_tpu import aot

_HELP = """\
compile a model for a TPU that is not there, and report memory and estimated cost

The script is run under torch.device("meta"), so that no weights are allocated, and with a __name__ other than
"__main__". It leaves these names:

  model            a module or a function
  example_inputs   a tuple of its arguments, or a dict of them by name
  loss             optional: makes a number of what the model returns; by default its .loss, or the sum of all
  optimizer        optional: makes an optimizer of the parameters, which --training then includes
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.description = _HELP
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("script", type=pathlib.Path)
    parser.add_argument("--topology", nargs="+", default=["v5e:2x2"], help="one or more; default v5e:2x2")
    parser.add_argument("--training", action="store_true", help="a training step instead of a forward pass")
    parser.add_argument("--html", type=pathlib.Path, help="also write a page, of the last topology")
    parser.add_argument("--save", type=pathlib.Path, help="also write the executable, of the last topology")
    parser.add_argument("--whole", action="store_true", help="compile all layers also where they are alike")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds that a compile may take")


def run(options: argparse.Namespace) -> int:
    """The command: 0 if the program compiles for every topology and fits."""
    with torch.device("meta"):
        names = runpy.run_path(str(options.script), run_name="__torch_tpu_aot__")
    model, inputs = _wanted(names, "model"), _wanted(names, "example_inputs")
    keywords = dict(inputs) if isinstance(inputs, dict) else {}
    arguments = () if isinstance(inputs, dict) else inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    good = True
    for topology in options.topology:
        report = aot.compile(
            model,
            arguments,
            keywords,
            topology=topology,
            training=options.training,
            loss=names.get("loss"),
            optimizer=names.get("optimizer") if options.training else None,
            timeout=options.timeout,
            whole=options.whole,
            keep_executable=options.save is not None,
        )
        print(report, flush=True)
        good = good and report.compiles and report.fits is not False
    if options.html is not None:
        report.save_html(options.html)
    if options.save is not None and report.executable:
        options.save.write_bytes(report.executable)
    return 0 if good else 1


def _wanted(names: dict[str, Any], name: str) -> Any:
    if name not in names:
        raise SystemExit(f"the script defines no {name!r}; see python -m torch_tpu aot --help")
    return names[name]
