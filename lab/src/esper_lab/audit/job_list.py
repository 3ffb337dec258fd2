"""`JobList`: jobs of `esper.jobs` that are known from the start."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from esper.jobs.run import JobSource

J = TypeVar("J")
R = TypeVar("R")


class JobList(JobSource[J, R]):
    """Jobs in their order, which ask nothing."""

    def __init__(
        self, jobs: Sequence[J], label: Callable[[J], str], keep: Callable[[R], None]
    ) -> None:
        self._waiting, self._label, self._keep = deque(jobs), label, keep
        self.most = len(jobs)

    def next(self) -> J | None:
        """The next job."""
        return self._waiting.popleft() if self._waiting else None

    def label(self, job: J) -> str:
        """The job in messages."""
        return self._label(job)

    def keep(self, job: J, result: R) -> None:
        """Pass the result on."""
        self._keep(result)
