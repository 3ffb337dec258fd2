"""`sb3`: a vector environment for Stable-Baselines3, without a process per environment.

    envs = esper.gym.sb3("digits_impaired", num_envs=16, frozen_heads="plain", rent=0.25)
    MaskablePPO("MultiInputPolicy", envs, n_steps=24).learn(10_000)

Actions are flat, with masks for sb3-contrib's `MaskablePPO`. Stable-Baselines3 resets within the
step that ends an episode, so that step returns the first observation of the next one; the last of
the old one is in its info.

Shape letters: E members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from esper.gym.flat_env import FlatVectorEnv, flat
from esper.gym.vector_env import EsperVectorEnv
from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError
from esper.tasks.spec import TaskSpec

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    raise EsperError(
        f"esper.gym.sb3 needs {error.name}: pip install stable-baselines3 sb3-contrib"
    ) from None

Indices = None | int | Iterable[int]


def sb3(
    task: str | TaskSpec | VectorEnv[Any, Any, Any], num_envs: int = 16, **settings: Any
) -> Sb3VecEnv:
    """A task, or a vector environment of Esper, for Stable-Baselines3.

    `settings`: fields of `EnvSettings`; for an environment that is already made, none.
    """
    if not isinstance(task, VectorEnv):
        task = EsperVectorEnv(task, num_envs, **settings)
    elif settings:
        name = next(iter(settings))
        raise EsperError(f"sb3: the environment is already made; leave {name} out")
    return Sb3VecEnv(task if isinstance(task, FlatVectorEnv) else flat(task))


class Sb3VecEnv(VecEnv):
    """Drives one `FlatVectorEnv` by the interface of Stable-Baselines3."""

    def __init__(self, envs: FlatVectorEnv) -> None:
        self.envs = envs
        self._chosen_E: Ints | None = None
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> dict[str, npt.NDArray[Any]]:
        """Start an episode; `seed` sets the seed of the next one."""
        obs, _ = self.envs.reset(seed=self._seeds[0])
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_async(self, actions: Ints) -> None:
        """Remember the actions of the next `step_wait`."""
        self._chosen_E = np.asarray(actions)

    def step_wait(self) -> tuple[dict[str, npt.NDArray[Any]], Any, Any, list[dict[str, Any]]]:
        """Take the step; if it ends the episode, begin the next one."""
        if self._chosen_E is None:
            raise EsperError("step_wait before step_async")
        obs, reward_E, over_E, _, info = self.envs.step(self._chosen_E)
        self._chosen_E = None
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if over_E.any():
            infos = [self._last(obs, info, member) for member in range(self.num_envs)]
            obs, _ = self.envs.reset()
        return obs, reward_E.astype(np.float32), over_E, infos

    def _last(
        self, obs: dict[str, npt.NDArray[Any]], info: dict[str, Any], member: int
    ) -> dict[str, Any]:
        """Info of a member whose episode ended."""
        return {
            "terminal_observation": {name: values[member] for name, values in obs.items()},
            "TimeLimit.truncated": False,
            "outcome": {name: values[member] for name, values in info["outcome"].items()},
        }

    def close(self) -> None:
        """Close the environment."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of the environment, once for each member asked for."""
        value = getattr(self.envs, attr_name)
        return [value for _ in self._members(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Refuse: members share one environment."""
        raise EsperError(f"set_attr {attr_name}: the members share one environment")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method that returns one row for each member."""
        rows = getattr(self.envs, method_name)(*method_args, **method_kwargs)
        return [rows[member] for member in self._members(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """False for every member: none has a wrapper of its own."""
        return [False for _ in self._members(indices)]

    def _members(self, indices: Indices) -> Sequence[int]:
        return list(self._get_indices(indices))
