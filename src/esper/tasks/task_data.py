"""Data of a task in four parts, checked when they are made.

Shape letters: N samples, C channels, H height, W width, L length, F features, T tokens.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Floats, Ints
from esper.leyline.errors import EsperError
from esper.tasks.data_locations import DataSet

Inputs = npt.NDArray[Any]
InputKind = Literal["images", "signals", "vectors", "tokens"]

PARTS: Final = ("train", "val_control", "val_score", "test")
"""Names of the four parts."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskPart:
    """Inputs and labels of one part: numpy arrays, or CPU tensors, which are converted."""

    inputs: Inputs
    """Images `[N, C, H, W]` (uint8 or float), float signals `[N, C, L]`, float vectors `[N, F]` or
    token ids `[N, T]`."""
    labels: npt.NDArray[Any]
    """Class of each sample `[N]`; for tokens the next token at each position `[N, T]`. With
    `OwnTargetData`: float32 or int64 of any shape, as the task's loss takes them."""

    def __post_init__(self) -> None:
        for name in ("inputs", "labels"):
            object.__setattr__(self, name, _as_array(f"TaskPart {name}", getattr(self, name)))

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, slots=True, eq=False)
class TaskData:
    """Arrays of a task; no sample is in two parts."""

    train: TaskPart
    """Training data."""
    val_control: TaskPart
    """Controls growth: used by observations, gates and counterfactuals."""
    val_score: TaskPart
    """Used for the score."""
    test: TaskPart
    """Used once, at the end."""
    mean: Floats
    """Of the training inputs: per channel or feature, or one value; empty for tokens."""
    std: Floats
    """Standard deviation, shaped as `mean`."""
    own_targets: ClassVar[bool] = False
    """Whether labels may be anything that the task's own loss takes, not only class indices."""

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _as_constants(name, getattr(self, name)))
        for name in PARTS:
            part = getattr(self, name)
            if not isinstance(part, TaskPart):
                raise EsperError(
                    f"{name}: got a {type(part).__name__}, give TaskPart(inputs, labels)"
                )
        for name in PARTS:
            self._check_part(name, getattr(self, name))
        self._check_constants()

    def _check_part(self, name: str, part: TaskPart) -> None:
        inputs, labels = part.inputs, part.labels
        if not len(part):
            raise EsperError(f"{name} is empty: every part needs at least one sample")
        if len(inputs) != len(labels):
            raise EsperError(f"{name}: {len(inputs)} inputs, {len(labels)} labels")
        if inputs.dtype != self.train.inputs.dtype or inputs.shape[1:] != self.sample_shape:
            raise EsperError(
                f"{name}: samples {inputs.shape[1:]} {inputs.dtype}, in train "
                f"{self.sample_shape} {self.train.inputs.dtype}"
            )
        if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
            raise _not_finite(name, inputs)
        if self.own_targets:
            self._check_targets(name, labels)
            return
        wanted = self.sample_shape if self.kind == "tokens" else ()
        if labels.shape[1:] != wanted or labels.dtype != np.int64:
            raise EsperError(
                f"{name}: labels of shape {labels.shape}, {labels.dtype}; for {self.kind} give "
                f"int64 of shape {(len(inputs), *wanted)}, or OwnTargetData and a loss"
            )

    def _check_targets(self, name: str, labels: npt.NDArray[Any]) -> None:
        """Raise if targets of any kind are not finite, or differ from those of train."""
        train = self.train.labels
        if labels.dtype not in (np.float32, np.int64):
            raise EsperError(f"{name}: targets of {labels.dtype}, give float32 or int64")
        if labels.dtype != train.dtype or labels.shape[1:] != train.shape[1:]:
            raise EsperError(
                f"{name}: targets {labels.shape[1:]} {labels.dtype}, in train {train.shape[1:]} "
                f"{train.dtype}"
            )
        if not np.isfinite(labels).all():
            sample = int(np.argwhere(~np.isfinite(labels))[0][0])
            raise EsperError(f"{name}: the target of sample {sample} is not finite; leave it out")

    def _check_constants(self) -> None:
        sizes = [0] if self.kind == "tokens" else sorted({1, self.sample_shape[0]})
        if self.mean.shape != self.std.shape or self.mean.shape not in [(n,) for n in sizes]:
            raise EsperError(
                f"mean {self.mean.shape} and std {self.std.shape}: for {self.kind} of "
                f"{self.sample_shape} both have {' or '.join(map(str, sizes))} values"
            )
        sound = np.isfinite(self.mean) & np.isfinite(self.std) & (self.std > 0)
        if not sound.all():
            raise EsperError(self._invalid_constants(np.flatnonzero(~sound)))

    def _invalid_constants(self, places: Ints) -> str:
        """Describe the first invalid mean or std; usually a constant column."""
        first = places[0]
        found = f"mean {self.mean[first]:g}, std {self.std[first]:g}"
        if self.mean.size == 1:
            return f"{found}: mean must be finite and std above 0; the training inputs are constant"
        word = "column" if self.kind == "vectors" else "channel"
        more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
        return (
            f"{word} {first}{more} has {found}: mean must be finite and std above 0; leave a "
            f"constant {word} out of the inputs, or set its std to 1"
        )

    @property
    def kind(self) -> InputKind:
        """Kind of the inputs, by dtype and rank."""
        inputs = self.train.inputs
        found: dict[tuple[str, int], InputKind] = {
            ("u", 4): "images", ("f", 4): "images", ("f", 3): "signals", ("f", 2): "vectors",
            ("i", 2): "tokens",
        }  # fmt: skip
        key = (inputs.dtype.kind, inputs.ndim)
        if key not in found or (key[0] == "u" and inputs.dtype != np.uint8):
            raise EsperError(
                f"inputs of shape {inputs.shape}, {inputs.dtype}: give images [N, C, H, W] of "
                f"uint8 or floats, float signals [N, C, L], float vectors [N, F] or int64 token "
                f"ids [N, T]"
            )
        return found[key]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the sample axis."""
        return self.train.inputs.shape[1:]

    def normalised(self, part: TaskPart) -> Inputs:
        """Return inputs as float32, normalised over the training part; tokens unchanged."""
        if self.kind == "tokens":
            return part.inputs
        axes = (-1, *(1,) * (len(self.sample_shape) - 1))
        mean, std = self.mean.reshape(axes), self.std.reshape(axes)
        return ((part.inputs.astype(np.float32) - mean) / std).astype(np.float32)

    def check(self, name: str, classes: int, input_shape: tuple[int, ...], batch: int) -> None:
        """Raise if a task with these sizes cannot use the data."""
        if self.sample_shape != input_shape:
            raise EsperError(f"task {name}: samples of {self.sample_shape}, expected {input_shape}")
        for part_name in PARTS:
            part: TaskPart = getattr(self, part_name)
            if not self.own_targets:
                _check_range(f"task {name}: labels", part_name, part.labels, classes)
            if self.kind == "tokens" and not self.own_targets:
                _check_range(f"task {name}: tokens", part_name, part.inputs, classes)
        if batch > len(self.train):
            raise EsperError(
                f"task {name}: batch size {batch} is larger than the {len(self.train)} training "
                f"samples; set it to {len(self.train)} or less"
            )


@dataclass(frozen=True, slots=True, eq=False)
class OwnTargetData(TaskData):
    """Arrays of a task with its own loss: labels are float32 or int64 of any shape."""

    own_targets: ClassVar[bool] = True


def _not_finite(name: str, inputs: Inputs) -> EsperError:
    bad = ~np.isfinite(inputs)
    broken = int(bad.reshape(len(inputs), -1).any(axis=1).sum())
    sample, *place = (int(i) for i in np.argwhere(bad)[0])
    return EsperError(
        f"{name}: {broken} of {len(inputs)} inputs hold numbers that are not finite, the first is "
        f"sample {sample} at {place}; leave them out"
    )


def _check_range(what: str, part_name: str, values: Ints, classes: int) -> None:
    if values.min() < 0 or values.max() >= classes:
        raise EsperError(
            f"{what} {values.min()} to {values.max()} in {part_name}, valid are 0 to {classes - 1}"
        )


@runtime_checkable
class DataFiles(Protocol):
    """Protocol of `load_data` when the data come from files."""

    @property
    def dataset(self) -> DataSet:
        """The data set it reads."""
        ...

    @property
    def nominal_sizes(self) -> tuple[int, int]:
        """Expected number of training samples and of samples in a validation part."""
        ...

    def read(self, folder: Path) -> TaskData:
        """Read the files in that folder."""
        ...


# ---- arrays and CPU tensors of users -------------------------------------------------------------


def _as_array(what: str, value: object) -> npt.NDArray[Any]:
    """Return an array with a sample axis; a tensor is converted without a copy."""
    array = _from_tensor(what, value) if _is_tensor(value) else value
    if not isinstance(array, np.ndarray):
        raise EsperError(
            f"{what}: got a {type(value).__name__}, give a numpy array or a tensor on the CPU"
        )
    if not array.ndim:
        raise EsperError(f"{what}: a scalar, give an array with one entry per sample")
    return array


def _as_constants(what: str, values: object) -> Floats:
    """Convert numbers to float32: `mean` and `std` may be lists."""
    given = _from_tensor(what, values) if _is_tensor(values) else values
    try:
        return np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError):
        raise EsperError(
            f"{what}: got a {type(values).__name__}, give an array of numbers"
        ) from None


def _is_tensor(value: object) -> bool:
    """Whether `value` is a tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _from_tensor(what: str, tensor: Any) -> npt.NDArray[Any]:
    if tensor.device.type != "cpu":
        raise EsperError(f"{what}: a tensor on {tensor.device}, move it, as in .cpu()")
    try:
        array: npt.NDArray[Any] = tensor.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError):
        kind = f"{tensor.layout} {tensor.dtype}".replace("torch.", "")
        raise EsperError(f"{what}: a tensor of {kind}, give a dense one of float32") from None
    return array
