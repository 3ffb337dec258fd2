"""Replace a task's data by synthetic data of the same shape and size.

Images come from `synthetic_images.py`, signals are such images of one row. Sequences come from a
Markov chain in which each token has a few likely successors, so that there is something to learn.
All are the same in every run.

Shape letters: N sequences, T tokens, K successors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper.tasks.spec import TaskSpec
from esper.tasks.synthetic_images import SyntheticImages
from esper.tasks.task_data import PARTS, DataFiles, TaskData, TaskPart

SUCCESSORS: Final = 4
"""Likely next tokens of each token."""
LIKELY: Final = 0.9
"""Probability that the next token is one of them; otherwise it is uniform."""


def _synthetic_tokens(vocab: int, context: int, train: int, validation: int) -> TaskData:
    """Create sequences; `validation`: those in each of val_control, val_score and test."""
    generator = np.random.default_rng(stream_seed(0, "synthetic", "successors"))
    next_VK = generator.integers(0, vocab, (vocab, SUCCESSORS))
    counts = (train, *(validation,) * 3)
    parts = {
        name: _tokens_of_part(name, count, context, next_VK)
        for name, count in zip(PARTS, counts, strict=True)
    }
    none = np.zeros(0, dtype=np.float32)
    return TaskData(**parts, mean=none, std=none)


def _tokens_of_part(name: str, count: int, context: int, next_VK: Ints) -> TaskPart:
    generator = np.random.default_rng(stream_seed(0, "synthetic", name))
    tokens_NT = generator.integers(0, len(next_VK), (count, context + 1))
    likely_NT = generator.random(tokens_NT.shape) < LIKELY
    choice_NT = generator.integers(0, SUCCESSORS, tokens_NT.shape)
    for at in range(1, context + 1):
        successor_N = next_VK[tokens_NT[:, at - 1], choice_NT[:, at]]
        tokens_NT[:, at] = np.where(likely_NT[:, at], successor_N, tokens_NT[:, at])
    return TaskPart(tokens_NT[:, :-1].copy(), tokens_NT[:, 1:].copy())


def _synthetic_signals(images: SyntheticImages) -> TaskData:
    """Create signals: images of height 1."""
    data = images()
    parts = {name: getattr(data, name) for name in PARTS}
    signals = {
        name: TaskPart(part.inputs[:, :, 0].astype(np.float32), part.labels)
        for name, part in parts.items()
    }
    return TaskData(**signals, mean=data.mean, std=data.std)


def with_synthetic_data(
    spec: TaskSpec, train: int | None = None, validation: int | None = None
) -> TaskSpec:
    """Return the task on synthetic data; sizes default to those of the real data."""
    nominal = _nominal_sizes(spec)
    sizes = (
        nominal[0] if train is None else train,
        nominal[1] if validation is None else validation,
    )
    maker: Callable[[], TaskData]
    if len(spec.input_shape) == 3:
        channels, height, width = spec.input_shape
        maker = SyntheticImages(spec.num_classes, channels, height, *sizes, width=width)
    elif spec.topology == "signal" and len(spec.input_shape) == 2:
        channels, length = spec.input_shape
        images = SyntheticImages(spec.num_classes, channels, 1, *sizes, width=length)
        maker = partial(_synthetic_signals, images)
    elif spec.topology == "transformer" and len(spec.input_shape) == 1:
        maker = partial(_synthetic_tokens, spec.num_classes, spec.input_shape[0], *sizes)
    else:
        raise EsperError(
            f"task {spec.name}: no synthetic data for samples of {spec.input_shape} and a "
            f"{spec.topology} host, only for images, signals and tokens; leave --data synthetic out"
        )
    return replace(spec, load_data=maker, description=f"{spec.description} (synthetic data)")


def _nominal_sizes(spec: TaskSpec) -> tuple[int, int]:
    if isinstance(spec.load_data, DataFiles):
        return spec.load_data.nominal_sizes
    return 20 * max(spec.batch_size, spec.num_classes), 20 * spec.num_classes
