"""Task specification: data in four parts, host, training settings and score constants.

A spec holds settings and callables; creating one loads neither data nor torch.

Shape letters: N samples, C channels, H height, W width, L length, F features, T tokens.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    Protocol,
    get_args,
    runtime_checkable,
)

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Floats, Ints
from esper.leyline.context import FIXED, ContextSpec
from esper.leyline.errors import EsperError, shown, unknown_name
from esper.leyline.optim import OptimConfig
from esper.leyline.prices import ScoreConstants
from esper.leyline.slots import TOPOLOGIES, Topology, parse_slot_id
from esper.leyline.user_errors import user_code
from esper.tasks.data_locations import DataSet, locate_data
from esper.tasks.scoring import Upkeep

if TYPE_CHECKING:
    import torch
    from torch import nn

    from esper.kasmina.population import Population, PopulationConfig
    from esper.leyline.compute import ExecutorName
    from esper.tasks.objectives import Objective

Inputs = npt.NDArray[Any]
InputKind = Literal["images", "signals", "vectors", "tokens"]
Schedule = Literal["constant", "cosine"]
Augmentation = Literal["none", "flip", "crop_flip"]

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


@dataclass(frozen=True, slots=True)
class OptimSettings(OptimConfig):
    """Optimiser settings of a task's members: update rule, learning rates and their schedule."""

    host_lr: float = 0.05
    """Initial learning rate of hosts and permanent seeds."""
    seed_lr: float = 0.05
    """Initial learning rate of seeds until they are permanent."""
    schedule: Schedule = "constant"
    """Constant rates, or cosine annealing to 0 over the episode."""

    def __post_init__(self) -> None:
        OptimConfig.__post_init__(self)  # super() does not work in a dataclass with slots
        if self.schedule not in get_args(Schedule):
            raise unknown_name("schedule", self.schedule, get_args(Schedule))
        for name in ("host_lr", "seed_lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise EsperError(f"{name}={getattr(self, name)}: must be above 0, and finite")

    def rates_at(self, step: int, episode_length: int) -> tuple[float, float]:
        """Return the (host, seed) learning rates of a step, counted from 0.

        >>> OptimSettings(host_lr=0.5, seed_lr=0.25, schedule="cosine").rates_at(5, 10)
        (0.25, 0.125)
        """
        if not 0 <= step < episode_length:
            raise EsperError(f"step {step}: valid are 0 to {episode_length - 1}")
        share = 1.0
        if self.schedule == "cosine":
            share = 0.5 * (1.0 + math.cos(math.pi * step / episode_length))
        return self.host_lr * share, self.seed_lr * share

    def population_config(self, executor: ExecutorName = "auto") -> PopulationConfig:
        """Convert to kasmina's `PopulationConfig`."""
        from esper.kasmina import PopulationConfig

        rule = {field.name: getattr(self, field.name) for field in fields(OptimConfig)}
        return PopulationConfig(
            executor=executor,
            host_lr=self.host_lr,
            seed_lr=self.seed_lr,
            optim=OptimConfig(**rule),
        )


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Complete description of a task."""

    name: str
    """Name on the command line."""
    description: str
    """One-line description."""
    load_data: Callable[[], TaskData] | DataFiles
    """Creates the data, or describes the files that hold them; called once per run by `load`."""
    host_factory: Callable[[], nn.Module]
    """Builds one host; imports torch when called."""
    topology: Topology
    """Kind of host; decides which blueprints fit."""
    slots: tuple[str, ...]
    """Enabled slots."""
    blueprints: tuple[str, ...]
    """Available blueprints."""
    num_classes: int
    """Outputs of the host; for language models the vocabulary."""
    input_shape: tuple[int, ...]
    """Shape of one sample."""
    batch_size: int
    """Samples per batch and member."""
    batches_per_step: int
    """Training batches between two decisions."""
    episode_length: int
    """T: steps per episode."""
    chance: float
    """Accuracy (0..1) of guessing; 0 for language models, by definition of their accuracy."""
    optim: OptimSettings = field(default_factory=OptimSettings)
    """Optimiser settings."""
    augmentation: Augmentation = "none"
    """Augmentation of training images: none, random mirroring, or random shift and mirroring."""
    score: ScoreConstants = field(default_factory=ScoreConstants)
    """Price of growth in the score."""
    upkeep: Upkeep = field(default_factory=Upkeep)
    """Price of live seeds in the reward."""
    context: ContextSpec = FIXED
    """Distribution of prices, caps, budgets and data; the action space and the clock."""
    loss: str | Callable[..., Any] | None = None
    """Own loss: a name of `objectives.LOSSES`, "auto", or a function of (outputs, targets) of one
    network; None: cross-entropy. Outputs are then `num_classes` numbers."""
    metric: str | Callable[..., Any] = "auto"
    """Metric for an own loss: a name of `objectives.METRICS`, or a function, higher is better."""

    def __post_init__(self) -> None:
        self._check_callables()
        self._convert_tuples()
        for name in ("num_classes", "batch_size", "batches_per_step", "episode_length"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise EsperError(f"task {self.name}: {name}={value!r}, must be 1 or more")
        if self.topology not in TOPOLOGIES:
            raise unknown_name("topology", self.topology, TOPOLOGIES, f"in task {self.name}")
        if self.augmentation not in get_args(Augmentation):
            raise unknown_name("augmentation", self.augmentation, get_args(Augmentation))
        if self.augmentation != "none" and len(self.input_shape) != 3:
            raise EsperError(
                f"task {self.name}: augmentation {self.augmentation} is for images, samples are "
                f"{self.input_shape}"
            )
        if not self.slots or not self.blueprints:
            raise EsperError(f"task {self.name}: name at least one slot and one blueprint")
        for slot in self.slots:
            parse_slot_id(slot)
        if self.loss is None and self.metric != "auto":
            raise EsperError(
                f"task {self.name}: metric={shown(self.metric)} without a loss; give both, as in "
                f"loss='cross_entropy'"
            )
        if not 0 <= self.chance < 1:
            raise EsperError(f"task {self.name}: chance={self.chance}, must be from 0 to below 1")

    def _convert_tuples(self) -> None:
        """Convert lists to tuples; a single string raises."""
        for name in ("slots", "blueprints", "input_shape"):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise EsperError(f"task {self.name}: {name}={given!r}, give a tuple: ({given!r},)")
            object.__setattr__(self, name, tuple(given))

    def _check_callables(self) -> None:
        """Raise unless data and host are given as functions: they are created when a run starts."""
        for name, made in (("load_data", "data"), ("host_factory", "host")):
            value = getattr(self, name)
            built = hasattr(value, "named_parameters") and not isinstance(value, type)
            if built or not (callable(value) or isinstance(value, DataFiles)):
                raise EsperError(
                    f"task {self.name}: {name} is a {type(value).__name__}, already made; give a "
                    f"function that makes the {made}, as in lambda: {type(value).__name__}(...)"
                )

    @property
    def episode_samples(self) -> int:
        """Training samples per member and episode."""
        return self.batch_size * self.batches_per_step * self.episode_length

    def lengthened(self, factor: float) -> TaskSpec:
        """The same task with episodes `factor` times as long, to whole steps."""
        if factor == 1.0:
            return self
        return replace(self, episode_length=max(1, round(factor * self.episode_length)))

    def load(self, data_dir: Path | None = None) -> TaskData:
        """Load the data and check them against this spec; `data_dir`: see `data_locations`."""
        source = self.load_data
        if isinstance(source, DataFiles):
            data = source.read(locate_data(source.dataset, data_dir))
        else:
            with user_code(f"task {self.name}: load_data fails"):
                data = source()
            if not isinstance(data, TaskData):
                raise EsperError(
                    f"task {self.name}: load_data returns a {type(data).__name__}, not a TaskData"
                )
        data.check(self.name, self.num_classes, self.input_shape, self.batch_size)
        return data

    def objective(self, data: TaskData) -> Objective | None:
        """Return the task's own loss and metric for its data; None: cross-entropy."""
        if self.loss is None:
            if data.own_targets:
                raise EsperError(
                    f"task {self.name}: its data are OwnTargetData; give the task a loss that "
                    f"takes their targets, as in loss='mse'"
                )
            return None
        import torch

        from esper.tasks.objectives import make_objective

        targets = torch.from_numpy(data.train.labels)
        shape = self.output_shape(tuple(targets.shape[1:]))
        try:
            objective = make_objective(self.loss, self.metric, targets=targets, output_shape=shape)
            for name in PARTS[1:]:
                objective.check_targets(torch.from_numpy(getattr(data, name).labels), name)
        except EsperError as error:
            raise EsperError(f"task {self.name}: {error}") from error
        return objective

    def population(
        self,
        members: int,
        seed: int = 0,
        device: str | torch.device = "cpu",
        executor: ExecutorName = "auto",
    ) -> Population:
        """Return a fresh population with this task's host, slots, blueprints and optimiser."""
        from esper.kasmina import Population

        config = self.optim.population_config(executor)
        population = Population(
            self.host_factory, self.slots, self.blueprints, members, seed, device, config
        )
        network = population.network
        if network.topology != self.topology:
            raise EsperError(
                f"task {self.name}: topology {self.topology!r}, its host declares "
                f"{network.topology!r}; give both the same"
            )
        if not network.host.parameters_per_member:
            raise EsperError(
                f"task {self.name}: no parameter of its host trains, and growth is priced against "
                f"those; leave requires_grad on for some"
            )
        return population

    def check_outputs(self, shape: tuple[int, ...], places: tuple[int, ...]) -> None:
        """Raise unless the output shape of one sample is `places` plus the number of classes."""
        wanted = self.output_shape(places)
        if shape != wanted:
            raise EsperError(
                f"task {self.name}: the host gives outputs {shape} for a sample, "
                f"num_classes={self.num_classes} means {wanted}; change its head or num_classes"
            )

    def output_shape(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """Return the outputs of a sample for targets of shape `places`.

        Losses that pair outputs with targets have `num_classes` outputs, those of classes have as
        many at every place.
        """
        paired = self.loss in ("binary", "multilabel", "mse", "mae", "huber")
        if self.loss not in (None, "cross_entropy", "language"):
            paired = paired or places == (self.num_classes,)
        return (self.num_classes,) if paired else (*places, self.num_classes)


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
