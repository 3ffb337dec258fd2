"""Export a member to `.pt2` and ONNX, for any batch size."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from esper.kasmina.member import MorphogeneticModel
from esper.leyline.errors import EsperError
from esper.storage.atomic import require_writable, write_atomic

PathLike = str | os.PathLike[str]
T = TypeVar("T")

_ONNX_PACKAGES = ("onnx", "onnxscript")
_INSTALL = "pip install 'esper-morph[export]'"


def export_pt2(model: nn.Module, path: PathLike, example: Tensor) -> None:
    """Write `model` (a member, or the result of `to_plain`) for `torch.export.load`.

    `example` is a batch of inputs; the file accepts any batch size. It runs without Esper.
    """
    target = _checked_path(path)
    plain, batch = _checked_model(model, example)
    program = _run_exporter("torch.export", lambda: _program(plain, batch))
    content = io.BytesIO()
    torch.export.save(program, content)
    _write(target, content.getvalue())


def export_onnx(model: nn.Module, path: PathLike, example: Tensor) -> None:
    """Write `model` (a member, or the result of `to_plain`) as ONNX, input `x`, output `y`.

    `example` is a batch of inputs; the file accepts any batch size. Needs the extra `export`.
    """
    missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise EsperError(f"ONNX export needs {' and '.join(missing)}: {_INSTALL}")
    target = _checked_path(path)
    plain, batch = _checked_model(model, example)
    _write(target, _run_exporter("torch.onnx", lambda: _onnx(plain, batch)))


def _program(plain: nn.Module, batch: Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(plain, (batch,), dynamic_shapes=_any_batch())


def _onnx(plain: nn.Module, batch: Tensor) -> bytes:
    program = torch.onnx.export(
        plain,
        (batch,),
        dynamo=True,
        dynamic_shapes=_any_batch(),
        input_names=["x"],
        output_names=["y"],
        verbose=False,
    )
    assert program is not None, "the dynamo exporter returns its program"
    content: bytes = program.model_proto.SerializeToString()
    return content


def _any_batch() -> tuple[dict[int, object]]:
    """Return the dynamic shapes of one input whose batch size is free."""
    return ({0: torch.export.Dim("batch", min=1)},)


def _checked_path(path: PathLike) -> Path:
    target = Path(path)
    require_writable(target, "export to")
    return target


def _checked_model(model: nn.Module, example: Tensor) -> tuple[nn.Module, Tensor]:
    """Return the plain model in eval mode and a batch of two, because torch specialises on 1."""
    if not isinstance(example, Tensor) or example.ndim < 1 or len(example) < 1:
        raise EsperError(f"example {_shape(example)}: give a tensor, batch first, of 1 or more")
    plain = model.to_plain() if isinstance(model, MorphogeneticModel) else copy.deepcopy(model)
    batch = example[:1].expand(2, *example.shape[1:]).clone()
    try:
        with torch.no_grad():
            out = plain.eval()(batch)
    except Exception as error:  # whatever the model raises
        raise EsperError(
            f"example of shape {tuple(example.shape)} does not go through the model "
            f"({_first_line(error)}): give a batch like those it is trained on"
        ) from error
    if not isinstance(out, Tensor) or out.shape[:1] != batch.shape[:1]:
        raise EsperError(
            f"a batch of 2 becomes {_shape(out)}: the output must be a tensor, batch first"
        )
    return plain, batch


def _run_exporter(exporter: str, export: Callable[[], T]) -> T:
    """Run an exporter of torch and turn its errors into one line."""
    try:
        with _quiet():
            return export()
    except Exception as error:  # exporters raise many types of errors
        raise EsperError(
            f"{exporter} cannot take this model ({_first_line(error)}): "
            f"see to_plain().meta['untraced'] for parts that depend on the data"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of torch's exporters about their own deprecated calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def _write(target: Path, content: bytes) -> None:
    try:
        write_atomic(target, content)
    except OSError as error:
        raise EsperError(
            f"export to {target} failed ({error.strerror}): an existing file was kept"
        ) from error


def _shape(value: object) -> object:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
