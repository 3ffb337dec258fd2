"""Synthetic images of any shape for tests and benchmarks: class prototypes plus noise.

A prototype is a coarse random pattern; an image is its class's prototype plus noise. Data are
deterministic in the seed and created when loaded.

Shape letters: N images, K classes, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from esper.leyline.arrays import Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper.tasks.hosts import CNN_BLUEPRINTS, CNNFactory
from esper.tasks.registry import register_task
from esper.tasks.spec import OptimSettings, TaskSpec
from esper.tasks.statistics import channel_statistics
from esper.tasks.task_data import PARTS, TaskData, TaskPart

GRID: Final = 4
"""Maximum patches per side of a prototype."""
GREY: Final = 128.0
CONTRAST: Final = 24.0
"""Standard deviation of the prototypes around grey."""
NOISE: Final = 48.0
"""Standard deviation of the noise: one pixel tells little, a whole image enough."""
CHUNK: Final = 4096
"""Images created at a time, which bounds the size of float intermediates."""


@dataclass(frozen=True, slots=True)
class SyntheticImages:
    """Creates the data of a synthetic image task when called."""

    classes: int
    """K; class counts in each part differ by at most one."""
    channels: int
    """Channels of an image."""
    size: int
    """Height of an image, and its width unless given."""
    train: int
    """Training images."""
    validation: int
    """Images in each of val_control, val_score and test."""
    seed: int = 0
    """Determines all data."""
    width: int | None = None
    """Width of an image; None: same as the height."""

    def __post_init__(self) -> None:
        width = self.size if self.width is None else self.width
        if min(self.channels, self.size, width) < 1:
            raise EsperError(
                f"synthetic channels={self.channels}, size={self.size}, width={width}: must be 1 "
                f"or more"
            )
        if self.classes < 2:
            raise EsperError(f"synthetic classes={self.classes}: must be 2 or more")
        if min(self.train, self.validation) < self.classes:
            raise EsperError(
                f"synthetic train={self.train}, validation={self.validation}: at least one image "
                f"of each of the {self.classes} classes is needed"
            )

    def __call__(self) -> TaskData:
        prototypes_KCHW = self._prototypes()
        counts = (self.train, *(self.validation,) * 3)
        parts = {
            name: self._part(name, count, prototypes_KCHW)
            for name, count in zip(PARTS, counts, strict=True)
        }
        mean_C, std_C = channel_statistics(parts["train"].inputs)
        return TaskData(**parts, mean=mean_C, std=std_C)

    def _prototypes(self) -> Floats:
        generator = np.random.default_rng(stream_seed(self.seed, "synthetic", "prototypes"))
        sides = (self.size, self.size if self.width is None else self.width)
        grid = tuple(min(GRID, side) for side in sides)
        coarse = generator.standard_normal((self.classes, self.channels, *grid))
        row, column = (np.arange(side) * few // side for side, few in zip(sides, grid, strict=True))
        return (CONTRAST * coarse[:, :, row][:, :, :, column]).astype(np.float32)

    def _part(self, name: str, count: int, prototypes_KCHW: Floats) -> TaskPart:
        """Create a part from its own random stream, so that parts are independent."""
        generator = np.random.default_rng(stream_seed(self.seed, "synthetic", name))
        labels_N: Ints = generator.permutation(np.arange(count, dtype=np.int64) % self.classes)
        images = np.empty((count, *prototypes_KCHW.shape[1:]), dtype=np.uint8)
        for start in range(0, count, CHUNK):
            some = labels_N[start : start + CHUNK]
            noise = generator.standard_normal((len(some), *images.shape[1:]), dtype=np.float32)
            pixels = GREY + prototypes_KCHW[some] + NOISE * noise
            images[start : start + CHUNK] = np.clip(np.rint(pixels), 0, 255)
        return TaskPart(images, labels_N)


def synthetic_spec(
    classes: int = 10,
    channels: int = 1,
    size: int = 8,
    train: int = 1000,
    validation: int = 200,
    base_channels: int = 2,
    kernel_size: int = 3,
    n_blocks: int = 3,
    batch_size: int = 64,
    batches_per_step: int = 4,
    episode_length: int = 20,
    seed: int = 0,
    name: str = "synthetic",
) -> TaskSpec:
    """Return a synthetic image task; `validation`: images in each of the other three parts."""
    host = CNNFactory(classes, channels, base_channels, kernel_size, n_blocks)
    return TaskSpec(
        name=name,
        description=f"{classes} synthetic classes of {channels}x{size}x{size} images",
        load_data=SyntheticImages(classes, channels, size, train, validation, seed),
        host_factory=host,
        topology="cnn",
        slots=host.slots,
        blueprints=CNN_BLUEPRINTS,
        num_classes=classes,
        input_shape=(channels, size, size),
        batch_size=batch_size,
        batches_per_step=batches_per_step,
        episode_length=episode_length,
        chance=1 / classes,
        optim=OptimSettings(host_lr=0.1, seed_lr=0.1),
    )


register_task(synthetic_spec())
register_task(
    synthetic_spec(
        channels=3,
        size=32,
        train=50_000 - 2 * 2048,
        validation=2048,
        base_channels=8,
        batch_size=512,
        batches_per_step=24,
        episode_length=25,
        name="synthetic_cifar",
    )
)
