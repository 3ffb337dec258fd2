"""Networks in a run folder: `.pt2` files, read and exported without the user's code."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from esper.kasmina.export import export_onnx, export_pt2, program_to_onnx
from esper.leyline.errors import EsperError
from esper.storage.atomic import require_writable, write_atomic

SUFFIXES: Final = (".pt2", ".onnx", ".safetensors")


def require_suffix(target: Path) -> None:
    """Raise unless the suffix of a file names a format."""
    if target.suffix not in SUFFIXES:
        raise EsperError(
            f"export to {target}: the suffix decides the format; use .pt2, .onnx or .safetensors"
        )


def load_program(file: Path) -> torch.export.ExportedProgram:
    """Read a network; raises in one line if it is missing or damaged."""
    if not file.is_file():
        raise EsperError(f"{file} is missing: the run could not export this network")
    try:
        return torch.export.load(file)
    except Exception as error:  # whatever a damaged archive raises
        raise EsperError(
            f"{file} is damaged ({type(error).__name__}): restore it from a copy, or run again"
        ) from error


def example_of(program: torch.export.ExportedProgram) -> Any:
    """The inputs it was exported with: a tensor, a tuple or a dict."""
    args, kwargs = program.example_inputs
    return kwargs or (args[0] if len(args) == 1 else args)


def export_stored(file: Path, target: Path) -> None:
    """Write a stored network in the format of the suffix of `target`."""
    require_suffix(target)
    program = load_program(file)
    if target.suffix == ".onnx":
        program_to_onnx(program, target)
    elif target.suffix == ".pt2":
        require_writable(target, "export to")
        write_atomic(target, file.read_bytes())
    else:
        with warnings.catch_warnings():  # torch warns about its own deprecated calls
            warnings.simplefilter("ignore", FutureWarning)
            save_weights(program.module(), target)


def export_model(model: nn.Module, example: Any, target: Path) -> None:
    """Write a model in the format of the suffix of `target`."""
    require_suffix(target)
    if target.suffix == ".onnx":
        export_onnx(model, target, example)
    elif target.suffix == ".pt2":
        export_pt2(model, target, example)
    else:
        save_weights(model, target)


def save_weights(model: nn.Module, target: Path) -> None:
    """Write the weights alone, as safetensors."""
    from safetensors.torch import save_model

    require_writable(target, "export to")
    save_model(model, str(target))
