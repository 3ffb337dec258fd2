"""What a search asks of the processes that hold its networks together (executor `sharded`).

All of them run the same search on the same data, so that whatever one of them measures, the clock
above all, has to be agreed on. Rank 0 prints, calls back and writes the run folder; the others keep
what they need of it in a temporary one. A search in one process is `ONE_PROCESS`.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import torch

from esper.device.selection import parse_device
from esper.device.shards import Shards, join_shards

T = TypeVar("T")


class Ranks:
    """A search in one process; the base of one in several."""

    first = True
    """Whether this process prints and writes."""
    size = 1
    device: torch.device | None = None
    """Device of this rank; None: as the settings say."""
    stopped = False
    """Whether the ranks have agreed on stopping."""
    shards: Shards | None = None
    """Messages to the other processes; None: there are none."""

    def now(self) -> float:
        """Seconds on the clock of the search."""
        return time.monotonic()

    def measured(self, value: float) -> float:
        """A number as rank 0 has measured it."""
        return value if self.shards is None else self.shards.number(value)

    def together(self, work: Callable[[], T]) -> T:
        """Run `work`, which sends no message; if it fails on one rank, all raise."""
        return work() if self.shards is None else self.shards.together(work)

    def on_first(self, work: Callable[[], None]) -> None:
        """Run `work` on rank 0; if it fails there, all raise."""
        self.together(work if self.first else lambda: None)

    def text(self, text: str) -> str:
        """The text of rank 0."""
        return text if self.shards is None else self.shards.say(text)

    def require_same(self, what: str, text: str) -> None:
        """Raise on all ranks unless all have the same text."""
        if self.shards is not None:
            self.shards.require_same(what, text)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Catch Ctrl-C inside the block where `stop` asks for it."""
        yield


ONE_PROCESS: Final = Ranks()


class ShardRanks(Ranks):
    """One of several processes that hold the networks of a search together."""

    shards: Shards

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.first, self.size, self.device = shards.rank == 0, shards.size, shards.device
        self._stopping = False
        self._now = self.measured(time.monotonic())

    def now(self) -> float:
        """Seconds on the clock of rank 0, when the ranks last agreed."""
        return self._now

    def stop(self, mine: bool) -> bool:
        """Agree on the time, and on stopping: True on all ranks if one has to.

        All ranks call it at the same point; it raises nothing.
        """
        flag = float(mine or self._stopping)
        both = [flag, time.monotonic() if self.first else 0.0]
        # SYNC: between chunks of batches
        stopping, self._now = self.shards.add_(
            torch.tensor(both, dtype=torch.float64, device=self.device)
        ).tolist()
        if stopping:
            self._stopping, self.stopped = False, True
        return bool(stopping)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Note Ctrl-C and SIGTERM inside the block: `stop` then stops all ranks."""

        def note() -> None:
            self._stopping = True

        with noted((signal.SIGINT, signal.SIGTERM), note):
            yield


@contextlib.contextmanager
def noted(kinds: Sequence[signal.Signals], note: Callable[[], None]) -> Iterator[None]:
    """Call `note` on signals inside the block; only the main thread can handle them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.signal(kind, lambda *_: note()) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextlib.contextmanager
def scratch_folder(copied: Path | None) -> Iterator[Path]:
    """A folder for a rank that does not write the run's; `copied`: a run to start from."""
    with tempfile.TemporaryDirectory(prefix="esper-rank-") as folder:
        home = Path(folder)
        if copied is not None:
            home = home / copied.name
            shutil.copytree(copied, home)
        yield home


def ranks_of(executor: str, device: str | torch.device) -> Ranks:
    """The processes of a search under an executor."""
    return ShardRanks(join_shards(parse_device(device))) if executor == "sharded" else ONE_PROCESS
