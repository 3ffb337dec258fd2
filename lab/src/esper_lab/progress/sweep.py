"""Progress display of a sweep: one bar over the rounds of all trials."""

from __future__ import annotations

from rich.console import Console

from esper.karn.compare_progress import ProgressBar


class SweepProgress(ProgressBar):
    """Shows every round of the trials, which may run at the same time."""

    def __init__(self, rounds: int, console: Console | None = None) -> None:
        """`rounds`: of all trials; pruned ones have fewer."""
        self._rounds, self._done = max(1, rounds), 0
        super().__init__(self._rounds, self._rounds, console, shows_elapsed=True)

    def round_done(self, label: str, score: float) -> None:
        """Show a round of a trial."""
        self._done = min(self._done + 1, self._rounds)
        self.pace.tick(self._done)
        left = f"at most {self.pace.left(self._done)} left"
        self._display.show(self._done, label, left, f"score {score:.4f} in training")
