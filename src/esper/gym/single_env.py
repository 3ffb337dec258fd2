"""`EsperEnv`: one member as a plain Gymnasium environment.

    env = gymnasium.make("esper/digits_impaired-v0")

A vector environment of one member; several members in one `EsperVectorEnv` are much faster than
several of these.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from esper.gym.vector_env import EsperVectorEnv, Info
from esper.leyline.actions import ActionHead
from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError
from esper.tasks.spec import TaskSpec

Observation = dict[str, npt.NDArray[Any]]


class EsperEnv(gymnasium.Env[Observation, Ints]):
    """One member of a task."""

    metadata = {"render_modes": []}  # noqa: RUF012  # gymnasium declares it so

    def __init__(self, task: str | TaskSpec = "digits_impaired", **settings: Any) -> None:
        """`settings`: fields of `EnvSettings`."""
        self.vector = EsperVectorEnv(task, 1, **settings)
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space
        self._over = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode of a fresh member; see `EsperVectorEnv.reset`."""
        super().reset(seed=seed)
        obs, info = self.vector.reset(seed=seed, options=options)
        self._over = False
        return _first(obs), _first(info)

    def step(self, action: Ints) -> tuple[Observation, float, bool, bool, Info]:
        """Decide; `action` `[A]`, one choice per head."""
        if self._over:
            raise ResetNeeded("the episode is over: call reset")
        heads_A = np.asarray(action)
        if heads_A.shape != (len(ActionHead),):
            raise EsperError(f"action of shape {heads_A.shape}: expected ({len(ActionHead)},)")
        obs, reward_E, terminated_E, truncated_E, info = self.vector.step(heads_A[None])
        self._over = bool(terminated_E[0])
        return (
            _first(obs),
            float(reward_E[0]),
            self._over,
            bool(truncated_E[0]),
            _first(info),
        )


def _first(batched: dict[str, Any]) -> dict[str, Any]:
    """The entries of the first member, without Gymnasium's `_name` entries."""
    return {
        name: _first(values) if isinstance(values, dict) else values[0]
        for name, values in batched.items()
        if not name.startswith("_")
    }
