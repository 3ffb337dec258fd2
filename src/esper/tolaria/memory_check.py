"""Lower bound on the memory of a run, checked before anything is allocated.

Only what every run holds at the same time is counted, so a run that fits is never rejected; one
that passes may still fail to allocate. Without this check a system that overcommits memory would
kill the process without an error message.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from esper.device.memory import free_bytes
from esper.leyline.errors import EsperError
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData

_INDEX_BYTES: Final = 8
"""Bytes of an index and of a history entry (int64, float64)."""
_INPUT_BYTES: Final = 2
"""Least bytes per input element (half precision)."""
_HISTORIES: Final = 7
"""Values kept per member and step by `EpisodeTracker`."""
_ALWAYS_ALLOWED: Final = 2**30
"""Sizes up to this are allowed without checking free memory."""


def require_memory(
    spec: TaskSpec, data: TaskData, members: int, device: torch.device, flag: str = "--envs"
) -> None:
    """Raise if the run cannot fit in memory; `flag` is the option to lower."""
    needed = {device: input_bytes(spec, members)}
    host = torch.device("cpu")
    orders = _permutation_bytes(spec, data, members) if device == host else 0
    needed[host] = needed.get(host, 0) + orders + _history_bytes(spec, members)
    for place, size in needed.items():
        if size > _ALWAYS_ALLOWED and size > (free := free_bytes(place)):
            raise EsperError(
                f"out of memory on {place} with E={members} members and batch size "
                f"B={spec.batch_size}: a step needs at least {_gib(size)}, {_gib(free)} is free; "
                f"lower {flag}, --batch-size, --batches-per-step or --episode-length"
            )


def input_bytes(spec: TaskSpec, members: int) -> int:
    """Bytes of the inputs and sample indices of one train batch, on the device."""
    return members * spec.batch_size * (_INPUT_BYTES * math.prod(spec.input_shape) + _INDEX_BYTES)


def _permutation_bytes(spec: TaskSpec, data: TaskData, members: int) -> int:
    """Bytes of the sample order of an epoch, its sort keys, and the order of a step."""
    step = spec.batches_per_step * spec.batch_size
    return members * _INDEX_BYTES * (2 * len(data.train) + step)


def _history_bytes(spec: TaskSpec, members: int) -> int:
    """Bytes of the histories of an episode."""
    return _HISTORIES * _INDEX_BYTES * members * (spec.episode_length + 1)


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
