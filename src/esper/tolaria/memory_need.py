"""Would a population fit into memory at all? Asked before any of it is built.

Only what every run holds at the same time is counted, so that nothing is refused that could run: a
population that passes may still be too large, and is refused when an allocation fails. Without this
a machine that promises more memory than it has would end the process without a word.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import torch

from esper.leyline.errors import EsperError
from esper.tasks.spec import TaskData, TaskSpec

_WORD: Final = 8
"""Bytes of an index, and of a figure in a history."""
_HALF: Final = 2
"""Bytes of a number in an input, at least."""
_HISTORIES: Final = 7
"""Figures that are kept of each member and step (`EpisodeBook`)."""
_NEVER_TOO_MUCH: Final = 2**30
"""Bytes that are asked for without looking how many are free."""
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_MEMORY: Final = Path("/proc/meminfo")


def require_memory(
    spec: TaskSpec, data: TaskData, members: int, device: torch.device, flag: str = "--envs"
) -> None:
    """Refuse more members than can fit; `flag` is what to lower."""
    needed = {device: input_bytes(spec, members)}
    host = torch.device("cpu")
    orders = order_bytes(spec, data, members) if device == host else 0
    needed[host] = needed.get(host, 0) + orders + history_bytes(spec, members)
    for place, size in needed.items():
        if size > _NEVER_TOO_MUCH and size > (free := free_bytes(place)):
            raise EsperError(
                f"out of memory on {place} with E={members} members and batch size "
                f"B={spec.batch_size}: a step takes at least {_gib(size)}, {_gib(free)} are free; "
                f"lower {flag}, --batch-size, --batches-per-step or --episode-length"
            )


def input_bytes(spec: TaskSpec, members: int) -> int:
    """The inputs of one train batch and which samples they are, on the device."""
    return members * spec.batch_size * (_HALF * math.prod(spec.input_shape) + _WORD)


def order_bytes(spec: TaskSpec, data: TaskData, members: int) -> int:
    """The order of an epoch, what it is sorted by, and that of a step."""
    step = spec.batches_per_step * spec.batch_size
    return members * _WORD * (2 * len(data.train) + step)


def history_bytes(spec: TaskSpec, members: int) -> int:
    """What is kept of every step of an episode."""
    return _HISTORIES * _WORD * members * (spec.episode_length + 1)


def free_bytes(device: torch.device) -> float:
    """Memory that could be taken now; infinite where nobody knows."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + unused)
    return min(_free_of_machine(), _limit_of_container())


def _free_of_machine() -> float:
    try:
        rows = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        return sum(1024.0 * int(rows[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):  # not Linux
        return math.inf


def _limit_of_container() -> float:
    try:
        return float(_CGROUP_LIMIT.read_text())  # "max" where there is none
    except (OSError, ValueError):
        return math.inf


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
