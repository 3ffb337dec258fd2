"""Export a member to `.pt2` and ONNX, for any batch size, and to safetensors."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import inspect
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, fx, nn

from esper.kasmina.export.member import MorphogeneticModel
from esper.leyline.errors import EsperError, install_hint
from esper.storage.atomic import require_writable, write_atomic

PathLike = str | os.PathLike[str]
Example = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""A batch of inputs: one tensor, positional arguments, or keywords."""
T = TypeVar("T")

_SUFFIXES: Final = (".pt2", ".onnx", ".safetensors")
_ONNX_PACKAGES = ("onnx", "onnxscript")
_EXPORT_LOGGERS = ("torch.onnx", "torch.export", "torch.fx.experimental.symbolic_shapes")


@dataclass(frozen=True, slots=True)
class _Call:
    """Arguments of one call of the model, with a batch of two."""

    args: tuple[Any, ...]
    kwargs: dict[str, Tensor]
    names: list[str]
    """Of all tensors, in order."""

    def run(self, model: nn.Module) -> Any:
        return model(*self.args, **self.kwargs)

    def dynamic_shapes(self) -> Any:
        """Return the shapes for torch's exporters, with a free batch size."""
        batch = {0: torch.export.Dim("batch", min=1)}
        if self.kwargs:
            return dict.fromkeys(self.kwargs, batch)
        return tuple(dict.fromkeys(a, batch) if isinstance(a, dict) else batch for a in self.args)


def require_suffix(target: Path) -> None:
    """Raise unless the suffix of a file names a format."""
    if target.suffix not in _SUFFIXES:
        raise EsperError(
            f"export to {target}: the suffix decides the format; use .pt2, .onnx or .safetensors"
        )


def export_model(model: nn.Module, example: Example, target: Path) -> None:
    """Write a model in the format of the suffix of `target`."""
    require_suffix(target)
    if target.suffix == ".onnx":
        export_onnx(model, target, example)
    elif target.suffix == ".pt2":
        export_pt2(model, target, example)
    else:
        _save_weights(model, target)


def _save_weights(model: nn.Module, target: Path) -> None:
    """Write only the weights, as safetensors."""
    from safetensors.torch import save_model

    save_model(model, str(_checked_path(target)))


def export_pt2(model: nn.Module, path: PathLike, example: Example) -> None:
    """Write `model` (a member, or the result of `to_plain`) for `torch.export.load`.

    `example` is a batch of inputs (several as a tuple or dict); the file accepts any batch size. It
    runs without Esper.
    """
    target = _checked_path(path)
    plain, call = _checked_model(model, example)
    program = _run_exporter("torch.export", lambda: _program(plain, call))
    content = io.BytesIO()
    torch.export.save(program, content)
    _write(target, content.getvalue())


def export_onnx(model: nn.Module, path: PathLike, example: Example) -> None:
    """Write `model` (a member, or the result of `to_plain`) as ONNX, input `x`, output `y`.

    `example` is a batch of inputs; several, as a tuple or dict, are named as the model's arguments.
    The file accepts any batch size. Needs the extra `export`.
    """
    _require_onnx()
    target = _checked_path(path)
    plain, call = _checked_model(model, example)
    content = _run_exporter("torch.onnx", lambda: _onnx(_program(plain, call), call.names))
    _write(target, content)


def _require_onnx() -> None:
    missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise EsperError(f"ONNX export needs {' and '.join(missing)}: {install_hint('export')}")


def _program(plain: nn.Module, call: _Call) -> torch.export.ExportedProgram:
    shapes = call.dynamic_shapes()
    return torch.export.export(plain, call.args, call.kwargs, dynamic_shapes=shapes)


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


def _checked_model(model: nn.Module, example: Example) -> tuple[nn.Module, _Call]:
    """Return the plain model in eval mode and a call of it with a batch of two."""
    plain = model.to_plain() if isinstance(model, MorphogeneticModel) else copy.deepcopy(model)
    call = call_of(plain, example)
    try:
        with torch.no_grad():
            out = call.run(plain.eval())
    except Exception as error:  # whatever the model raises
        raise EsperError(
            f"example of shape {_shapes(example)} does not go through the model "
            f"({_first_line(error)}): give a batch like those it is trained on"
        ) from error
    if not isinstance(out, Tensor) or out.shape[:1] != (_PAIR,):
        raise EsperError(
            f"a batch of 2 becomes {_shape(out)}: the output must be a tensor, batch first"
        )
    takes = inspect.signature(plain.forward).parameters
    if any(name not in takes for name in call.kwargs):
        return _with_keywords(plain, call.names), call
    return plain, call


def _with_keywords(plain: nn.Module, names: Sequence[str]) -> nn.Module:
    """Return a model of `**kwargs` with a signature: torch.export gives those no free sizes."""
    root, graph = nn.Module(), fx.Graph()
    root.add_module("model", plain)
    graph.output(graph.call_module("model", (), {name: graph.placeholder(name) for name in names}))
    return fx.GraphModule(root, graph).eval()


def call_of(plain: nn.Module, example: Example) -> _Call:
    """Return a call of a model with a batch of two like the first sample of the example."""
    if isinstance(example, Mapping):
        pairs = {name: _pair(value) for name, value in example.items()}
        try:
            inspect.signature(plain.forward).bind(**pairs)
        except TypeError:
            return _Call((pairs,), {}, list(pairs))
        return _Call((), pairs, list(pairs))
    if isinstance(example, tuple | list):
        if not example or not all(isinstance(value, Tensor) for value in example):
            raise _no_batch(example)
        names = list(inspect.signature(plain.forward).parameters)[: len(example)]
        return _Call(tuple(_pair(value) for value in example), {}, names)
    return _Call((_pair(example),), {}, ["x"])


_PAIR = 2
"""Samples of the batch that is exported, because torch specialises on 1."""


def _pair(value: object) -> Tensor:
    """Return a batch of two of the first sample."""
    if not isinstance(value, Tensor) or value.ndim < 1 or len(value) < 1:
        raise _no_batch(value)
    return value[:1].expand(_PAIR, *value.shape[1:]).clone()


def _no_batch(value: object) -> EsperError:
    return EsperError(f"example {_shape(value)}: give a tensor, batch first, of 1 or more")


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
    """Silence torch's exporters, which warn about their own calls and print graphs that fail."""
    loggers = [logging.getLogger(name) for name in _EXPORT_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)  # errors are raised, too
    try:
        # What torch.export had traced before it failed is printed to stderr.
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", "# The axis name", UserWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _write(target: Path, content: bytes) -> None:
    try:
        write_atomic(target, content)
    except OSError as error:
        raise EsperError(
            f"export to {target} failed ({error.strerror}): an existing file was kept"
        ) from error


def _shapes(example: Example) -> object:
    if isinstance(example, Tensor):
        return tuple(example.shape)
    values = example.values() if isinstance(example, Mapping) else example
    return [_shape(value) for value in values]


def _shape(value: object) -> object:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
