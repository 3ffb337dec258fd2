"""How large are the numbers the learner sees? Running statistics that scale them, in float64.

What normalises a rollout does not change while it is gathered: new observations wait until
`commit`, and rewards are scaled when the rollout is complete, all by one factor. Every normaliser
gives its state as named arrays and takes it back, so that a loaded run goes on bit for bit.

Shape letters: E members, T steps, D features; G, F features of a member, of a slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Bools, Doubles
from esper.leyline.errors import EsperError
from esper.tamiyo.inputs import Observation

Arrays = dict[str, Doubles]

OBSERVATION_LIMIT: Final = 10.0
"""Normalised observations are cut off here: no feature may shout the others down."""
MIN_DEVIATION: Final = 1e-8
"""Where a quantity varies less than this, it is not divided by its deviation."""


class RunningMeanStd:
    """Mean and variance of everything seen so far, per feature (Welford's method, merged in bulk).

    >>> seen = RunningMeanStd(1)
    >>> seen.update(np.array([[1.0], [3.0]])); seen.update(np.array([[5.0]]))
    >>> float(seen.mean_D[0]), round(float(seen.variance_D[0]), 6)
    (3.0, 2.666667)
    """

    def __init__(self, features: int) -> None:
        self.count = 0.0
        self.mean_D: Doubles = np.zeros(features)
        self.squares_D: Doubles = np.zeros(features)
        """Sum of squared distances from the mean."""

    @property
    def variance_D(self) -> Doubles:
        """Over everything seen; 1 before anything was."""
        return self.squares_D / self.count if self.count else np.ones_like(self.mean_D)

    @property
    def deviation_D(self) -> Doubles:
        """Square root of the variance; 1 where nothing varies."""
        deviation_D = np.sqrt(self.variance_D)
        return np.where(deviation_D > MIN_DEVIATION, deviation_D, 1.0)

    def update(self, x: npt.NDArray[np.floating]) -> None:
        """Take in values `[.., D]`."""
        flat = np.asarray(x, dtype=np.float64).reshape(-1, len(self.mean_D))
        if not np.isfinite(flat).all():
            raise EsperError("running statistics of a value that is not finite: it would stay")
        batch = RunningMeanStd(len(self.mean_D))
        batch.count = float(len(flat))
        batch.mean_D = flat.mean(axis=0)
        batch.squares_D = ((flat - batch.mean_D) ** 2).sum(axis=0)
        self.merge(batch)

    def merge(self, other: RunningMeanStd) -> None:
        """As if everything the other has seen had been seen here too."""
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
        """Everything it knows, by name."""
        return {
            "count": np.array([self.count]),
            "mean": self.mean_D.copy(),
            "squares": self.squares_D.copy(),
        }

    def restore(self, state: Mapping[str, Doubles]) -> None:
        """Go on from what `state` gave."""
        self.count = float(state["count"][0])
        self.mean_D, self.squares_D = state["mean"].copy(), state["squares"].copy()


class ObservationNormalizer:
    """Observations to mean 0 and deviation 1 per feature, all members (and slots) together."""

    def __init__(self, global_features: int, slot_features: int) -> None:
        self.parts = {
            "global": RunningMeanStd(global_features),
            "slot": RunningMeanStd(slot_features),
        }
        self.pending = {name: RunningMeanStd(len(part.mean_D)) for name, part in self.parts.items()}

    def observe(self, obs: Observation) -> None:
        """Remember what was seen; it counts from the next `commit` on."""
        self.pending["global"].update(obs.global_EG)
        self.pending["slot"].update(obs.slot_ESF)

    def normalize(self, obs: Observation) -> Observation:
        """The observation in deviations from the mean, by the statistics last committed."""
        whole, slots = self.parts["global"], self.parts["slot"]
        return Observation(
            _scaled(obs.global_EG, whole), _scaled(obs.slot_ESF, slots), obs.blueprint_ES
        )

    def commit(self) -> None:
        """Between rollouts: let what was seen count."""
        for name, pending in self.pending.items():
            self.parts[name].merge(pending)
            self.pending[name] = RunningMeanStd(len(pending.mean_D))

    def state(self) -> Arrays:
        """Everything it knows, what is pending included, by name."""
        groups = {"": self.parts, "pending_": self.pending}
        return {
            f"{prefix}{name}_{key}": array
            for prefix, group in groups.items()
            for name, part in group.items()
            for key, array in part.state().items()
        }

    def restore(self, state: Mapping[str, Doubles]) -> None:
        """Go on from what `state` gave."""
        for prefix, group in (("", self.parts), ("pending_", self.pending)):
            for name, part in group.items():
                part.restore({k: state[f"{prefix}{name}_{k}"] for k in part.state()})


def _scaled(x: npt.NDArray[np.floating], seen: RunningMeanStd) -> npt.NDArray[np.float32]:
    scaled = (x - seen.mean_D) / seen.deviation_D
    return np.clip(scaled, -OBSERVATION_LIMIT, OBSERVATION_LIMIT).astype(np.float32)


class RewardNormalizer:
    """Divides rewards by the running deviation of the return; never shifts them.

    The return of a member so far, `g = gamma * g + r`, begins again at 0 behind each end. Shifting
    would pay for, or punish, merely going on; dividing leaves the best policy what it was.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.seen = RunningMeanStd(1)
        self.return_E: Doubles = np.zeros(0)
        """Return so far of each member's running episode; empty before the first rollout."""

    @property
    def scale(self) -> float:
        """What rewards are divided by: 1 until returns vary."""
        return float(self.seen.deviation_D[0])

    def update(self, reward_TE: Doubles, ended_TE: Bools) -> None:
        """Take in a whole rollout. Another number of members begins anew at returns of 0."""
        members = reward_TE.shape[1]
        running_E = self.return_E if len(self.return_E) == members else np.zeros(members)
        returns_TE = np.empty_like(reward_TE, dtype=np.float64)
        for t, (reward_E, ended_E) in enumerate(zip(reward_TE, ended_TE, strict=True)):
            returns_TE[t] = running_E = self.gamma * running_E + reward_E
            running_E = np.where(ended_E, 0.0, running_E)
        self.return_E = running_E
        self.seen.update(returns_TE[..., None])

    def normalize(self, reward_TE: Doubles) -> Doubles:
        """Rewards in deviations of the return."""
        return np.asarray(reward_TE / self.scale)

    def state(self) -> Arrays:
        """Everything it knows, by name."""
        return self.seen.state() | {"return": self.return_E.copy()}

    def restore(self, state: Mapping[str, Doubles]) -> None:
        """Go on from what `state` gave."""
        self.seen.restore(state)
        self.return_E = state["return"].copy()
