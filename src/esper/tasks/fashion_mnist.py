"""Fashion-MNIST tasks: 70,000 grey images of clothes, 28x28, in ten classes.

The files are idx: two zero bytes, a type (8: bytes), the number of axes, their lengths, the bytes.
They are read compressed (`.gz`, as published) or plain.

The host of `fashion_mnist` has 4-8-16 channels and reaches 80 % in an episode (79 % at a rate of
0.1; one member each). No mirroring: all shoes point the same way, and it keeps the task light on a
CPU. The score constants are provisional, those of `digits_baseline`, until a search confirms them.

The other tasks are for audits, at budgets of 2 to 8 training runs: `fashion_resnet8` (4 passes in a
run) and `fashion_resnet8_narrow` (9) as the tasks on CIFAR-10, and `fashion_tiny8` (9), a CNN of
1.6k parameters with eight slots. With 2 passes no topology was worth its compute on the last two
(docs/audit-results.md). Their rates are those of the siblings on CIFAR-10 and here.

Shape letters: N images, C channels, H height, W width.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from esper.leyline.prices import ScoreConstants
from esper.tasks.data_locations import DataSet, check_sha1, damaged, pick_file, read_file
from esper.tasks.hosts import (
    CNN_BLUEPRINTS,
    RESNET_BLUEPRINTS,
    TINY_BLUEPRINTS,
    CNNFactory,
    ResNetFactory,
)
from esper.tasks.registry import register_task
from esper.tasks.scoring import SIZE_SCORE
from esper.tasks.spec import OptimSettings, TaskSpec
from esper.tasks.splits import split_validation
from esper.tasks.statistics import channel_statistics
from esper.tasks.task_data import TaskData, TaskPart

FASHION: Final = DataSet(
    "Fashion-MNIST",
    ("fashion-mnist", "FashionMNIST/raw"),
    "https://github.com/zalandoresearch/fashion-mnist (data/fashion/*.gz)",
)
CLASSES: Final = 10
SIDE: Final = 28
VALIDATION: Final = 2000
"""Images in val_control and in val_score."""

CONTENT_SHA1: Final = {
    "train-images-idx3-ubyte": "b9bd999c0106c9b8b4b0cefce58c9a6060f27095",
    "train-labels-idx1-ubyte": "4bccf37222e01638381eaa326bf730337a597267",
    "t10k-images-idx3-ubyte": "880056926db704f9f713097915f99da346f5b1d1",
    "t10k-labels-idx1-ubyte": "958122e8b4b97fd4e71eca2d08ef754ed77c3ad9",
}
"""SHA-1 of each file's uncompressed content (zcat | sha1sum), taken from files whose md5 sums match
the published ones (8d4fb7e6..., 25c81989..., bef4ecab..., bb300cfd...); valid for both forms."""

_MAX_HEAD: Final = 1024
"""Bytes besides the images or labels: those of the format, and of a file that did not shrink."""


@dataclass(frozen=True, slots=True)
class FashionFiles:
    """Reads the four idx files and splits the validation parts off the training set."""

    dataset: ClassVar[DataSet] = FASHION
    validation: int = VALIDATION
    """Images in each of val_control and val_score, stratified."""
    train_images: int = 60_000
    """Images in the training files."""
    test_images: int = 10_000
    """Images in the test files."""

    @property
    def nominal_sizes(self) -> tuple[int, int]:
        """Training images after the split, and images in each validation part."""
        return self.train_images - 2 * self.validation, self.validation

    def read(self, folder: Path) -> TaskData:
        """Return the four parts; `test` is the published test set."""
        whole = self._part(folder, "train", self.train_images)
        test = self._part(folder, "t10k", self.test_images)
        return split_validation(whole, test, self.validation, channel_statistics)

    def _part(self, folder: Path, stem: str, count: int) -> TaskPart:
        images_NCHW = _read(folder, f"{stem}-images-idx3-ubyte", (count, 1, SIDE, SIDE))
        labels_N = _read(folder, f"{stem}-labels-idx1-ubyte", (count,))
        return TaskPart(images_NCHW, labels_N.astype(np.int64))


def _read(folder: Path, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Read and verify one file; what is damaged has another checksum."""
    path, size = pick_file(folder, (f"{name}.gz", name), FASHION), math.prod(shape)
    content = read_file(path, _MAX_HEAD + size, FASHION)
    if path.suffix == ".gz":
        try:
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(_MAX_HEAD + size + 1)  # however much a damaged one holds
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise damaged(path, f"cannot be unpacked ({error})", FASHION) from None
    check_sha1(path, content, CONTENT_SHA1[name], FASHION)
    return np.frombuffer(content, dtype=np.uint8, offset=len(content) - size).reshape(shape)


_HOST: Final = CNNFactory(CLASSES, in_channels=1, base_channels=4, kernel_size=3)
_TINY: Final = replace(_HOST, n_blocks=4, pool_layers=3, max_channels=8, rows=2)

_BASELINE: Final = register_task(
    TaskSpec(
        name="fashion_mnist",
        description="Fashion-MNIST, 4-8-16 channels, 3x3 kernels",
        load_data=FashionFiles(),
        host_factory=_HOST,
        topology="cnn",
        slots=_HOST.slots,
        blueprints=CNN_BLUEPRINTS,
        num_classes=CLASSES,
        input_shape=(1, SIDE, SIDE),
        batch_size=256,
        batches_per_step=20,
        episode_length=30,
        chance=1 / CLASSES,
        optim=OptimSettings(host_lr=0.3, seed_lr=0.3, schedule="cosine"),
        score=ScoreConstants(c_p=0.02, c_m=0.005, c_f=0.002),
    )
)
register_task(
    replace(
        _BASELINE,
        name="fashion_tiny8",
        description="Fashion-MNIST, four blocks of 4 to 8 channels, three pool, eight slots",
        host_factory=_TINY,
        slots=_TINY.slots,
        blueprints=TINY_BLUEPRINTS,
        batch_size=256,
        batches_per_step=96,
        episode_length=20,
        score=SIZE_SCORE,
    )
)


def _resnet(name: str, channels: str, host: ResNetFactory, batches_per_step: int) -> TaskSpec:
    return replace(
        _BASELINE,
        name=name,
        description=f"Fashion-MNIST, ResNet-8 of {channels} channels, two slots after each stage",
        host_factory=host,
        slots=host.slots,
        blueprints=RESNET_BLUEPRINTS,
        batch_size=256,
        batches_per_step=batches_per_step,
        episode_length=20,
        optim=OptimSettings(
            host_lr=0.1, seed_lr=0.1, schedule="cosine", weight_decay=5e-4, clip_norm=None
        ),
        score=SIZE_SCORE,
    )


register_task(_resnet("fashion_resnet8", "16-32-64", ResNetFactory(CLASSES, 1), 44))
register_task(
    _resnet("fashion_resnet8_narrow", "4-8-16", ResNetFactory(CLASSES, 1, base_channels=4), 96)
)
