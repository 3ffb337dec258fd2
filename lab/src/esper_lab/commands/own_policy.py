"""Policies of the bench in a user's Python file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper.leyline.errors import EsperError
from esper.leyline.user_errors import user_code

if TYPE_CHECKING:
    from esper.leyline.arrays import Bools, Ints
    from esper.tasks.user_objects import UserFiles
    from esper_lab.audit.bench import Bench, Observation, SimulatedEpisodes
    from esper_lab.audit.leaderboard import PolicyMaker
    from esper_lab.audit.policies import Policy


def own_policy(files: UserFiles, reference: str) -> tuple[str, PolicyMaker]:
    """Name of the policy that `FILE.py:NAME` names, and what makes it."""
    made = files.find(reference)
    if not callable(made):
        raise EsperError(f"--policy {reference}: name a class that is made with (bench, contexts)")

    def make(bench: Bench, contexts: Ints) -> Policy:
        with user_code("it cannot be made", "it is called with (bench, contexts)", TypeError):
            policy = made(bench, contexts)
        missing = [f for f in ("plan", "stop") if not callable(getattr(policy, f, None))]
        if missing:
            raise EsperError(f"{reference} has no method {missing[0]}; docs/bench.md shows both")
        return _YardstickPolicy(policy) if hasattr(policy, "reveal") else _OwnPolicy(policy)

    return reference.rpartition(":")[2], make


class _OwnPolicy:
    """A user's policy, whose errors are one line."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def plan(self, obs: Observation) -> Ints:
        with user_code("plan fails"):
            chosen_N: Ints = self.policy.plan(obs)
        return chosen_N

    def stop(self, obs: Observation, step: int) -> Bools:
        with user_code("stop fails"):
            stop_N: Bools = self.policy.stop(obs, step)
        return stop_N


class _YardstickPolicy(_OwnPolicy):
    """One that asks to see the records."""

    def reveal(self, episodes: SimulatedEpisodes) -> None:
        with user_code("reveal fails"):
            self.policy.reveal(episodes)
