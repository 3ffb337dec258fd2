"""Running mean and variance, and the normalisers of observations and rewards, in float64.

The statistics do not change during a rollout: new observations are pending until `commit`, and
rewards are scaled by one factor when the rollout is complete. Every normaliser saves and restores
its state as named arrays, so that a loaded run resumes bit for bit.

Shape letters: E members, T steps, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Bools, Doubles
from esper.leyline.errors import EsperError
from esper.simic.distributed.ranks import SINGLE_PROCESS, Ranks
from esper.tamiyo.inputs import Observation
from esper.tamiyo.network_config import PolicySpec

Arrays = dict[str, Doubles]

OBSERVATION_LIMIT: Final = 10.0
"""Clip range of normalised observations."""
MIN_DEVIATION: Final = 1e-8
"""Features with a smaller standard deviation are not scaled."""


class RunningMeanStd:
    """Running mean and variance per feature (Welford's method, batched).

    >>> seen = RunningMeanStd(1)
    >>> seen.update(np.array([[1.0], [3.0]])); seen.update(np.array([[5.0]]))
    >>> float(seen.mean_D[0]), round(float(seen.variance_D[0]), 6)
    (3.0, 2.666667)
    """

    def __init__(self, features: int) -> None:
        self.count = 0.0
        self.mean_D: Doubles = np.zeros(features)
        self.squares_D: Doubles = np.zeros(features)
        """Sum of squared deviations from the mean."""

    @property
    def variance_D(self) -> Doubles:
        """Variance; 1 before the first update."""
        return self.squares_D / self.count if self.count else np.ones_like(self.mean_D)

    @property
    def deviation_D(self) -> Doubles:
        """Standard deviation; 1 for constant features."""
        deviation_D = np.sqrt(self.variance_D)
        return np.where(deviation_D > MIN_DEVIATION, deviation_D, 1.0)

    def update(self, x: npt.NDArray[np.floating], ranks: Ranks = SINGLE_PROCESS) -> None:
        """Add values `[.., D]`, those of the other ranks included."""
        flat = np.asarray(x, dtype=np.float64).reshape(-1, len(self.mean_D))
        if not np.isfinite(flat).all():
            raise EsperError("running statistics got a value that is not finite")
        batch = RunningMeanStd(len(self.mean_D))
        batch.count = float(len(flat))
        batch.mean_D = flat.mean(axis=0)
        batch.squares_D = ((flat - batch.mean_D) ** 2).sum(axis=0)
        self.merge(batch.over(ranks))

    def over(self, ranks: Ranks) -> RunningMeanStd:
        """The statistics of all ranks together, merged in rank order."""
        if ranks.size == 1:
            return self
        features = len(self.mean_D)
        whole = RunningMeanStd(features)
        mine = np.concatenate([[self.count], self.mean_D, self.squares_D])
        for row in ranks.gather(mine[None]):
            part = RunningMeanStd(features)
            part.count, part.mean_D = float(row[0]), row[1 : features + 1]
            part.squares_D = row[features + 1 :]
            whole.merge(part)
        return whole

    def merge(self, other: RunningMeanStd) -> None:
        """Add the statistics of `other`."""
        total = self.count + other.count
        if not other.count:
            return
        apart_D = other.mean_D - self.mean_D
        self.mean_D = self.mean_D + apart_D * (other.count / total)
        self.squares_D = (
            self.squares_D + other.squares_D + apart_D**2 * (self.count * other.count / total)
        )
        self.count = total

    def state(self) -> Arrays:
        """State as named arrays."""
        return {
            "count": np.array([self.count]),
            "mean": self.mean_D.copy(),
            "squares": self.squares_D.copy(),
        }

    def restore(self, state: Mapping[str, Doubles]) -> None:
        """Restore what `state` returned."""
        self.count = float(state["count"][0])
        self.mean_D, self.squares_D = state["mean"].copy(), state["squares"].copy()


class ObservationNormalizer:
    """Normalises each feature to mean 0 and standard deviation 1 over members, slots and
    candidates."""

    def __init__(self, spec: PolicySpec) -> None:
        self.parts = {
            "global": RunningMeanStd(spec.global_features),
            "slot": RunningMeanStd(spec.slot_features),
            "candidate": RunningMeanStd(spec.candidate_features),
        }
        self.pending = {name: RunningMeanStd(len(part.mean_D)) for name, part in self.parts.items()}

    def observe(self, obs: Observation) -> None:
        """Add an observation to the pending statistics."""
        self.pending["global"].update(obs.global_EG)
        self.pending["slot"].update(obs.slot_ESF)
        self.pending["candidate"].update(obs.candidate_ESKD)

    def normalize(self, obs: Observation) -> Observation:
        """Normalise by the committed statistics."""
        return Observation(
            _scaled(obs.global_EG, self.parts["global"]),
            _scaled(obs.slot_ESF, self.parts["slot"]),
            _scaled(obs.candidate_ESKD, self.parts["candidate"]),
            obs.blueprint_ES,
        )

    def commit(self, ranks: Ranks = SINGLE_PROCESS) -> None:
        """Merge the pending statistics of all ranks; call between rollouts."""
        for name, pending in self.pending.items():
            self.parts[name].merge(pending.over(ranks))
            self.pending[name] = RunningMeanStd(len(pending.mean_D))

    def state(self) -> Arrays:
        """State as named arrays, including pending statistics."""
        groups = {"": self.parts, "pending_": self.pending}
        return {
            f"{prefix}{name}_{key}": array
            for prefix, group in groups.items()
            for name, part in group.items()
            for key, array in part.state().items()
        }

    def restore(self, state: Mapping[str, Doubles]) -> None:
        """Restore what `state` returned."""
        for prefix, group in (("", self.parts), ("pending_", self.pending)):
            for name, part in group.items():
                part.restore({k: state[f"{prefix}{name}_{k}"] for k in part.state()})


def _scaled(x: npt.NDArray[np.floating], seen: RunningMeanStd) -> npt.NDArray[np.float32]:
    scaled = (x - seen.mean_D) / seen.deviation_D
    return np.clip(scaled, -OBSERVATION_LIMIT, OBSERVATION_LIMIT).astype(np.float32)


class RewardNormalizer:
    """Divides rewards by the running standard deviation of the return, without shifting them.

    The return so far, `g = gamma * g + r`, is reset to 0 at each episode end. Shifting rewards
    would change the value of longer episodes; scaling leaves the optimal policy unchanged.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.seen = RunningMeanStd(1)
        self.return_E: Doubles = np.zeros(0)
        """Return so far of each member's current episode; empty before the first rollout."""

    @property
    def scale(self) -> float:
        """Divisor of rewards; 1 until returns vary."""
        return float(self.seen.deviation_D[0])

    def update(self, reward_TE: Doubles, ended_TE: Bools, ranks: Ranks = SINGLE_PROCESS) -> None:
        """Add a rollout of all ranks; if the number of members changed, returns start at 0."""
        members = reward_TE.shape[1]
        running_E = self.return_E if len(self.return_E) == members else np.zeros(members)
        returns_TE = np.empty_like(reward_TE, dtype=np.float64)
        for t, (reward_E, ended_E) in enumerate(zip(reward_TE, ended_TE, strict=True)):
            returns_TE[t] = running_E = self.gamma * running_E + reward_E
            running_E = np.where(ended_E, 0.0, running_E)
        self.return_E = running_E
        self.seen.update(returns_TE[..., None], ranks)

    def normalize(self, reward_TE: Doubles) -> Doubles:
        """Scale rewards."""
        return np.asarray(reward_TE / self.scale)

    def state(self) -> Arrays:
        """State as named arrays."""
        return self.seen.state() | {"return": self.return_E.copy()}

    def restore(self, state: Mapping[str, Doubles]) -> None:
        """Restore what `state` returned."""
        self.seen.restore(state)
        self.return_E = state["return"].copy()
