"""Export a member to `.pt2` and ONNX, for any batch size."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from esper.kasmina.member import MorphogeneticModel
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.leyline.errors import EsperError
from esper.storage.atomic import require_writable, write_atomic

PathLike = str | os.PathLike[str]
T = TypeVar("T")

_ONNX_PACKAGES = ("onnx", "onnxscript")
_INSTALL = "pip install 'esper-morph[export]'"


def export_pt2(model: nn.Module, path: PathLike, example: Raw) -> None:
    """Write `model` (a member, or the result of `to_plain`) for `torch.export.load`.

    `example` is a batch of inputs: a tensor, a tuple of them for several arguments, or a dict. The
    file accepts any batch size. It runs without Esper.
    """
    target = _checked_path(path)
    plain, call = _checked_model(model, example)
    program = _run_exporter("torch.export", lambda: _program(plain, call))
    content = io.BytesIO()
    torch.export.save(program, content)
    _write(target, content.getvalue())


def export_onnx(model: nn.Module, path: PathLike, example: Raw) -> None:
    """Write `model` (a member, or the result of `to_plain`) as ONNX, output `y`.

    The input is `x`; several are named like the model's arguments, or by the keys of a dict.
    `example` as for `export_pt2`; the file accepts any batch size. Needs the extra `export`.
    """
    _require_onnx()
    target = _checked_path(path)
    plain, call = _checked_model(model, example)
    _write(target, _run_exporter("torch.onnx", lambda: _onnx(_program(plain, call), call.names)))


def program_to_onnx(program: torch.export.ExportedProgram, path: PathLike) -> None:
    """Write a program that `torch.export.load` has read as ONNX; inputs are named as it names them.

    A single input is `x`, the output `y`. Needs the extra `export`.
    """
    _require_onnx()
    target = _checked_path(path)
    inputs = program.graph_signature.user_inputs
    names = ["x"] if len(inputs) == 1 else [str(name) for name in inputs]
    _write(target, _run_exporter("torch.onnx", lambda: _onnx(program, names)))


def _require_onnx() -> None:
    missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise EsperError(f"ONNX export needs {' and '.join(missing)}: {_INSTALL}")


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a model, with a batch whose size is free."""

    inputs: Inputs
    values: list[Tensor]

    @property
    def args(self) -> tuple[Any, ...]:
        if self.inputs.form == "keywords":
            return ()
        return (self._named(self.values),) if self.inputs.form == "dict" else tuple(self.values)

    @property
    def kwargs(self) -> dict[str, Any]:
        return self._named(self.values) if self.inputs.form == "keywords" else {}

    @property
    def names(self) -> list[str]:
        """Names of the inputs in ONNX."""
        return ["x"] if len(self.values) == 1 else [spec.name for spec in self.inputs.specs]

    def dynamic_shapes(self) -> Any:
        """The free batch size, in the form of the inputs."""
        shapes = [{0: torch.export.Dim("batch", min=1)}] * len(self.values)
        if self.inputs.form == "keywords":
            return self._named(shapes)
        return (self._named(shapes),) if self.inputs.form == "dict" else tuple(shapes)

    def _named(self, values: list[T]) -> dict[str, T]:
        return {spec.name: value for spec, value in zip(self.inputs.specs, values, strict=True)}


def _program(plain: nn.Module, call: _Call) -> torch.export.ExportedProgram:
    return torch.export.export(plain, call.args, call.kwargs, dynamic_shapes=call.dynamic_shapes())


def _onnx(exported: torch.export.ExportedProgram, names: list[str]) -> bytes:
    """From a program, because torch.onnx takes a dict at the end of the inputs for keywords."""
    program = torch.onnx.export(
        exported, dynamo=True, input_names=names, output_names=["y"], verbose=False
    )
    assert program is not None, "the dynamo exporter returns its program"
    content: bytes = program.model_proto.SerializeToString()
    return content


def _checked_path(path: PathLike) -> Path:
    target = Path(path)
    require_writable(target, "export to")
    return target


def _checked_model(model: nn.Module, example: Raw) -> tuple[nn.Module, _Call]:
    """Return the plain model in eval mode and a batch of two, because torch specialises on 1."""
    if not all(isinstance(v, Tensor) and v.ndim and len(v) for v in _values(example)):
        raise EsperError(f"example {_shape(example)}: give a tensor, batch first, of 1 or more")
    plain = model.to_plain() if isinstance(model, MorphogeneticModel) else copy.deepcopy(model)
    inputs = Inputs.of(plain, example)
    batch = [v[:1].expand(2, *v.shape[1:]).clone() for v in inputs.values(example)]
    try:
        with torch.no_grad():
            out = inputs.call(plain.eval(), batch)
    except Exception as error:  # whatever the model raises
        raise EsperError(
            f"example of shape {_shapes(example)} does not go through the model "
            f"({_first_line(error)}): give a batch like those it is trained on"
        ) from error
    if not isinstance(out, Tensor) or out.shape[:1] != (2,):
        raise EsperError(
            f"a batch of 2 becomes {_shape(out)}: the output must be a tensor, batch first"
        )
    return plain, _Call(inputs, batch)


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


def _values(example: object) -> list[object]:
    if isinstance(example, Mapping):
        return list(example.values())
    return list(example) if isinstance(example, tuple | list) else [example]


def _shapes(example: Raw) -> str:
    return ", ".join(str(_shape(value)) for value in _values(example))


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
