"""Digits tasks: scikit-learn's 1,797 handwritten digits of 8x8 pixels, in four parts.

`val_control` and `val_score` are split off the training data; `test` is only for the final report.
The split is stratified and does not depend on the run's seed.

`digits_baseline` has a host that can learn the task; the host of `digits_impaired` sees only single
pixels (1x1 kernels), so growth can gain much there.

`digits_tiny8` has eight slots and a host of 456 parameters that is short of capacity, not of steps:
a training run is 62 passes, and in four runs of 78 seeds gained five points (docs/contexts.md).
Its rate is the best of 0.1, 0.2 and 0.4 (88.6, 87.9, 82.8 %; 4 hosts, 62 passes). AdamW at 0.01 was
slower (92.1 and 84.3 % at a budget of 8 of 16 passes; 4 hosts). Eight narrow blocks in a row,
instead of four with two slots each, hardly trained. `digits_tiny8_lean` makes compute dear enough
that training to the end and keeping the best step costs more than it gains (docs/audit-results.md).

Shape letters: N images, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from esper.leyline.arrays import Ints
from esper.leyline.prices import ScoreConstants
from esper.leyline.streams import stream_seed
from esper.tasks.hosts import CNN_BLUEPRINTS, TINY_BLUEPRINTS, CNNFactory
from esper.tasks.registry import register_task
from esper.tasks.scoring import SIZE_SCORE
from esper.tasks.spec import OptimSettings, TaskSpec
from esper.tasks.statistics import value_statistics
from esper.tasks.task_data import TaskData, TaskPart

CLASSES: Final = 10

SHARES: Final = {"train": 0.55, "val_control": 0.125, "val_score": 0.125, "test": 0.2}
"""Fraction of each class per part."""


def load_digits_data() -> TaskData:
    """Load the data, split always alike."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images_NCHW = np.asarray(data.images, dtype=np.uint8)[:, None]
    labels_N = np.asarray(data.target, dtype=np.int64)
    cut = zip(SHARES, _split_indices(labels_N), strict=True)
    parts = {name: TaskPart(images_NCHW[index], labels_N[index]) for name, index in cut}
    mean, std = value_statistics(parts["train"].inputs)
    return TaskData(**parts, mean=mean, std=std)


def _split_indices(labels_N: Ints) -> tuple[Ints, ...]:
    """Return sorted indices of each part; every class is split by `SHARES`."""
    edges = np.cumsum(list(SHARES.values()))[:-1]
    parts: list[list[Ints]] = [[] for _ in SHARES]
    for label in np.unique(labels_N):
        members = np.flatnonzero(labels_N == label)
        generator = np.random.default_rng(stream_seed(0, "split", "class", int(label)))
        shuffled = generator.permutation(members)
        pieces = np.split(shuffled, np.rint(edges * len(members)).astype(np.int64))
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    return tuple(np.sort(np.concatenate(pieces)) for pieces in parts)


BASELINE_SCORE: Final = ScoreConstants(c_p=0.02, c_m=0.005, c_f=0.002)
"""Calibrated with seeds planted at step 0 (docs/growth.md): of 27 topologies, conv_light in r0c0
with depthwise in r0c1 beats the host and every topology that fills all slots."""
IMPAIRED_SCORE: Final = ScoreConstants(c_p=0.15, c_m=0.015, c_f=0.002)
"""Calibrated the same way: of 64 topologies, conv_light in r0c0 with depthwise in r0c1 beats the
host and every topology that fills all slots."""


def _digits_spec(
    name: str, description: str, kernel_size: int, batches_per_step: int, score: ScoreConstants
) -> TaskSpec:
    host = CNNFactory(CLASSES, in_channels=1, base_channels=2, kernel_size=kernel_size)
    return TaskSpec(
        name=name,
        description=description,
        load_data=load_digits_data,
        host_factory=host,
        topology="cnn",
        slots=host.slots,
        blueprints=CNN_BLUEPRINTS,
        num_classes=CLASSES,
        input_shape=(1, 8, 8),
        batch_size=64,
        batches_per_step=batches_per_step,
        episode_length=24,
        chance=1 / CLASSES,
        optim=OptimSettings(host_lr=0.1, seed_lr=0.1),
        score=score,
    )


_BASELINE: Final = register_task(
    _digits_spec(
        "digits_baseline",
        "8x8 digits, 2-4-8 channels, 3x3 kernels",
        kernel_size=3,
        batches_per_step=6,
        score=BASELINE_SCORE,
    )
)
register_task(
    _digits_spec(
        "digits_impaired",
        "8x8 digits, 2-4-8 channels, 1x1 kernels",
        kernel_size=1,
        batches_per_step=10,  # with 6, seeds have too little time to pay off within an episode
        score=IMPAIRED_SCORE,
    )
)

_TINY: Final = CNNFactory(
    CLASSES,
    in_channels=1,
    base_channels=2,
    kernel_size=3,
    n_blocks=4,
    pool_layers=2,
    max_channels=4,
    rows=2,
)

_TINY8: Final = register_task(
    replace(
        _BASELINE,
        name="digits_tiny8",
        description="8x8 digits, four blocks of 2 to 4 channels, two pool, eight slots",
        host_factory=_TINY,
        slots=_TINY.slots,
        blueprints=TINY_BLUEPRINTS,
        batches_per_step=40,
        optim=OptimSettings(host_lr=0.1, seed_lr=0.1, schedule="cosine"),
        score=SIZE_SCORE,
    )
)

register_task(
    replace(
        _TINY8,
        name="digits_tiny8_lean",
        description="As digits_tiny8, with training compute at four times its price",
        score=replace(SIZE_SCORE, c_f=4 * SIZE_SCORE.c_f),
    )
)
