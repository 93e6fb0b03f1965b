"""Programs in files: StableHLO text and weights that run without the Python code, or any Python, that made them.

    program = torch.export.export(model, (x,))
    torch_tpu.export.save(program, "model")     # program.mlir, weights.safetensors, signature.json

    run = torch_tpu.export.load("model")        # in another process, without the model's code
    y = run(x.to("tpu"))

examples/export runs such a folder from C++. docs/export.md describes the files. Needs the safetensors package:
``pip install torch-pjrt[export]``.
"""

from __future__ import annotations

from torch_tpu.export.loading import LoadedProgram, load
from torch_tpu.export.saving import save

__all__ = ["LoadedProgram", "load", "save"]
