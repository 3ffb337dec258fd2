"""A plain network in a folder, read without its author's code.

    folder/manifest.json, tensors-<hash>.safetensors    a save (`storage/saves.py`)
    folder/program.pt2                                  only if the network has no description

The save holds the description, all tensors and one sample of the inputs. torch reads `.pt2` files
by unpickling parts of them, which can run code: that needs `trust`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from esper.kasmina.export.export import Example, call_of, export_pt2
from esper.kasmina.plain_saves.describe import describe, same_outputs
from esper.kasmina.plain_saves.rebuild import rebuild
from esper.kasmina.plain_saves.records import GraphRecord, PlainContent
from esper.leyline.codec import read_record
from esper.leyline.errors import EsperError
from esper.storage.manifest import check_file, read_bytes, record_of
from esper.storage.saves import Saved, read_save, write_save

_PROGRAM: Final = "program.pt2"
_WEIGHT, _INPUT = "weight ", "input "


def save_plain(path: str | os.PathLike[str], model: nn.Module, example: Example) -> str:
    """Save a plain network, replacing an existing save; returns why it has no description, or "".

    `example`: a batch of inputs, whose first sample is kept. A network without a description is
    kept as `.pt2`, if torch can export it.
    """
    folder, inputs = Path(path), _inputs(example)
    reason, graph, values = "", None, dict[str, Tensor]()
    try:
        graph, values = _described(model, example)
    except EsperError as error:
        reason = str(error)
    program = None
    if reason:
        with contextlib.suppress(EsperError):
            export_pt2(model, folder / _PROGRAM, example)
            program = record_of(_PROGRAM, (folder / _PROGRAM).read_bytes())
    names = tuple(example) if isinstance(example, Mapping) else ()
    form = "dict" if names else "tensor" if isinstance(example, Tensor) else "tuple"
    content = PlainContent(form, names, graph, reason, program)  # type: ignore[arg-type]
    tensors = {f"{_WEIGHT}{key}": value for key, value in values.items()}
    tensors |= {f"{_INPUT}{index}": value for index, value in enumerate(inputs)}
    write_save(folder, "network", content, tensors)
    if program is None:
        with contextlib.suppress(OSError):
            (folder / _PROGRAM).unlink(missing_ok=True)
    return reason


def load_plain(path: str | os.PathLike[str], trust: bool = False, ways: str = "") -> nn.Module:
    """Return a saved network, in eval mode; nothing in the folder runs without `trust`.

    `ways`: what else to do about a network without a description, for the error.
    """
    saved, content = _read(path)
    if content.graph is not None:
        return rebuild(content.graph, _tensors(saved, _WEIGHT), saved.where)
    if content.program is None:
        raise EsperError(f"{saved.where} holds no network: {content.reason}{ways}")
    if not trust:
        raise EsperError(
            f"{saved.where} holds a .pt2 file, which can run code ({content.reason}): if it is "
            f"yours, trust it (trust=True, --trust){ways}"
        )
    file = Path(saved.where) / _PROGRAM
    check_file(content.program, file, read_bytes(file))
    return _trusted(file)


def plain_example(path: str | os.PathLike[str]) -> Any:
    """Return one sample of the inputs of a saved network, as a batch of one."""
    saved, content = _read(path)
    found = _tensors(saved, _INPUT)
    values = [found[name] for name in sorted(found, key=lambda name: (len(name), name))]
    if content.inputs == "dict" and len(content.names) == len(values):
        return dict(zip(content.names, values, strict=True))
    if content.inputs == "tensor" and len(values) == 1:
        return values[0]
    if content.inputs == "tuple" and values:
        return tuple(values)
    raise EsperError(f"{saved.where}: {len(values)} inputs for a {content.inputs}")


def _described(model: nn.Module, example: Example) -> tuple[GraphRecord, dict[str, Tensor]]:
    """Return a description and its tensors; raises unless it gives the outputs of the model."""
    graph, values = describe(model)
    again, call = rebuild(graph, values, "the description"), call_of(model, example)
    with torch.no_grad():
        if not same_outputs(call.run(model), call.run(again)):
            raise EsperError("its description gives other outputs")
    return graph, values


def _inputs(example: Example) -> list[Tensor]:
    values = example.values() if isinstance(example, Mapping) else example
    found = [values] if isinstance(values, Tensor) else list(values)
    return [value[:1].clone() for value in found]


def _read(path: str | os.PathLike[str]) -> tuple[Saved, PlainContent]:
    saved = read_save(path, "network")
    return saved, read_record(PlainContent, saved.content, saved.where)


def _tensors(saved: Saved, prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in saved.tensors.items()
        if name.startswith(prefix)
    }


def _trusted(file: Path) -> nn.Module:
    """Read a `.pt2` file, by unpickling; it stays as it was exported, in eval mode."""
    try:
        model = torch.export.load(file).module()
    except Exception as error:  # whatever a damaged archive raises
        raise EsperError(f"{file} is damaged ({type(error).__name__}): run again") from error
    assert isinstance(model, fx.GraphModule)
    for name in ("train", "eval"):  # torch's own raise
        vars(model).pop(name, None)
    return model.eval()
