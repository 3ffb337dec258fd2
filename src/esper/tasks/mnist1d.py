"""MNIST-1D tasks: 5,000 signals of 40 points in ten classes.

Architecture matters on it: a linear model reaches 32 %, an MLP 68 %, a convolutional network 94 %.

In `mnist1d` a signal is an image of one row, so the convolutional host and seeds apply unchanged;
only the middle row of a 3x3 kernel meets anything but padding. `mnist1d_signal` has the same host
with kernels of 3 points, on signals `[C, L]`, with half the parameters.

The host of 2-4-8 channels reaches 67 % in an episode (learning rates of 0.1, 0.2 and 0.4: 65, 67
and 63 %; 4 members each), which leaves room for growth.

`mnist1d_signal8` has eight slots and a host of 238 parameters that is short of capacity at a budget
of 4: 75 passes reach 80.9 %, four times as many 82.7 %, with conv_heavy in the first two slots
88.8 % at that compute (4 hosts each; docs/contexts.md). A training run is 60 passes; in one run
seeds only cost training. Rates of 0.1, 0.2 and 0.4: 75.8, 78.1
and 72.4 % (4 hosts, 40 passes).

Shape letters: N signals, W points.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from esper.leyline.errors import EsperError, parse_error_line
from esper.leyline.prices import ScoreConstants
from esper.tasks.data_locations import DataSet, damaged, pick_file, read_file
from esper.tasks.hosts import CNN_BLUEPRINTS, SIGNAL_BLUEPRINTS, CNNFactory, SignalFactory
from esper.tasks.registry import register_task
from esper.tasks.scoring import SIZE_SCORE
from esper.tasks.spec import OptimSettings, TaskSpec
from esper.tasks.splits import split_validation
from esper.tasks.statistics import value_statistics
from esper.tasks.task_data import TaskData, TaskPart

MNIST1D: Final = DataSet(
    "MNIST-1D",
    ("mnist1d",),
    "https://github.com/greydanus/mnist1d (saved with numpy.savez as mnist1d.npz: x, y, x_test, "
    "y_test)",
)
FILE: Final = "mnist1d.npz"
CLASSES: Final = 10
POINTS: Final = 40
VALIDATION: Final = 400
"""Signals in val_control and in val_score."""


@dataclass(frozen=True, slots=True)
class Mnist1dFiles:
    """Reads the file and splits the validation parts off the training signals."""

    dataset: ClassVar[DataSet] = MNIST1D
    validation: int = VALIDATION
    """Signals in each of val_control and val_score, stratified."""
    train_signals: int = 4000
    """Training signals before the split."""
    test_signals: int = 1000
    """Signals in the test set."""
    as_images: bool = True
    """Samples of shape (1, 1, 40), images of one row, or signals of shape (1, 40)."""

    @property
    def nominal_sizes(self) -> tuple[int, int]:
        """Training signals after the split, and signals in each validation part."""
        return self.train_signals - 2 * self.validation, self.validation

    def read(self, folder: Path) -> TaskData:
        """Return the four parts; `test` is the published test set."""
        path = pick_file(folder, (FILE,), MNIST1D)
        signals = self.train_signals + self.test_signals
        content = read_file(path, 4 * 8 * (POINTS + 1) * signals + 2**16, MNIST1D)
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                whole = _part(archive, "x", "y", self.train_signals)
                test = _part(archive, "x_test", "y_test", self.test_signals)
        except EsperError as error:
            raise damaged(path, str(error), MNIST1D) from None
        except Exception as error:  # zip, zlib, numpy: whatever a damaged file raises
            why = parse_error_line(ValueError(error)) or type(error).__name__
            raise damaged(path, f"is not a complete npz file ({why})", MNIST1D) from None
        if not self.as_images:
            whole, test = (TaskPart(part.inputs[:, 0], part.labels) for part in (whole, test))
        statistics = partial(value_statistics, axes=None if self.as_images else (0, 2))
        return split_validation(whole, test, self.validation, statistics)


def _part(archive: Mapping[str, Any], signals: str, labels: str, count: int) -> TaskPart:
    x_NW = _read_array(archive, signals, (count, POINTS), "f")
    y_N = _read_array(archive, labels, (count,), "i").astype(np.int64)
    if not np.isfinite(x_NW).all() or np.abs(x_NW).max() > np.finfo(np.float32).max:
        raise EsperError(f"{signals!r} holds values that are not finite")
    if y_N.min() < 0 or y_N.max() >= CLASSES:
        raise EsperError(f"{labels!r} holds {y_N.min()} to {y_N.max()}, valid are 0 to 9")
    return TaskPart(x_NW.astype(np.float32)[:, None, None, :], y_N)


def _read_array(
    archive: Mapping[str, Any], name: str, shape: tuple[int, ...], kind: str
) -> npt.NDArray[Any]:
    """Read one array of an npz file."""
    if name not in archive:
        raise EsperError(f"holds no array {name!r}")
    found: npt.NDArray[Any] = archive[name]
    if found.shape != shape or found.dtype.kind != kind:
        raise EsperError(
            f"array {name!r} is {found.shape} of {found.dtype}, expected {shape} of {kind}8"
        )
    return found


SCORE: Final = ScoreConstants(c_p=0.03, c_m=0.005, c_f=0.002)
"""Of 64 topologies conv_light in r0c0 (.703) beats every full one (.693) and the host (.691),
by about the standard error of these figures (docs/growth.md). Not searched for signals."""
_HOST: Final = CNNFactory(CLASSES, in_channels=1, base_channels=2, kernel_size=3)

_IMAGES: Final = register_task(
    TaskSpec(
        name="mnist1d",
        description="MNIST-1D, signals of 40 points, 2-4-8 channels, kernels of 3 points",
        load_data=Mnist1dFiles(),
        host_factory=_HOST,
        topology="cnn",
        slots=_HOST.slots,
        blueprints=CNN_BLUEPRINTS,
        num_classes=CLASSES,
        input_shape=(1, 1, POINTS),
        batch_size=100,
        batches_per_step=16,
        episode_length=30,
        chance=1 / CLASSES,
        optim=OptimSettings(host_lr=0.2, seed_lr=0.2, schedule="cosine"),
        score=SCORE,
    )
)

_SIGNAL_HOST: Final = SignalFactory(CLASSES, in_channels=1, base_channels=2, kernel_size=3)
_SIGNAL8_HOST: Final = replace(
    _SIGNAL_HOST, base_channels=4, n_blocks=4, pool_layers=3, max_channels=4, rows=2
)

_SIGNAL: Final = register_task(
    replace(
        _IMAGES,
        name="mnist1d_signal",
        description="MNIST-1D as signals, 2-4-8 channels, 1-D kernels of 3 points",
        load_data=Mnist1dFiles(as_images=False),
        host_factory=_SIGNAL_HOST,
        topology="signal",
        slots=_SIGNAL_HOST.slots,
        blueprints=SIGNAL_BLUEPRINTS,
        input_shape=(1, POINTS),
    )
)
register_task(
    replace(
        _SIGNAL,
        name="mnist1d_signal8",
        description="MNIST-1D as signals, four blocks of 4 channels, three pool, eight slots",
        host_factory=_SIGNAL8_HOST,
        slots=_SIGNAL8_HOST.slots,
        batches_per_step=80,
        episode_length=24,
        score=SIZE_SCORE,
    )
)
