"""`flat`: an environment with one `Discrete` action instead of one choice per head.

    env = esper.gym.flat(gymnasium.make("esper/digits_impaired-v0", frozen_heads="plain"))
    env.action_space                 Discrete(N): every composite action that can ever be legal
    env.action_masks()               [N]: which are legal now; also in info["action_mask"]

Freeze the heads that should not be decided (`frozen_heads`): with all of them open, a task of three
slots and six blueprints has thousands of actions.

Shape letters: E members, N actions.
"""

from __future__ import annotations

from typing import Any, overload

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from esper.gym.flat_actions import FlatActions
from esper.gym.single_env import EsperEnv
from esper.gym.vector_env import EsperVectorEnv, Info, Observations
from esper.leyline.arrays import Bools, Ints
from esper.leyline.errors import EsperError, shown

_MASK = "action_mask"


class _Flat:
    """What both wrappers share."""

    env: Any
    _members: EsperVectorEnv

    @property
    def actions(self) -> FlatActions:
        """The actions by index."""
        return self._members.actions

    def _masks(self) -> Bools:
        if self._members.masks is None:
            raise gymnasium.error.ResetNeeded("action_masks before reset: call reset first")
        return self.actions.mask(self._members.masks)

    def action_masks(self) -> Bools:
        """`[E, N]`: actions that are legal now."""
        return self._masks()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Info]:
        """Start an episode; see `EsperVectorEnv.reset`."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, self._with_mask(info)

    def _with_mask(self, info: Info) -> Info:
        return info | {_MASK: self.action_masks().astype(np.int8)}


class FlatVectorEnv(_Flat, VectorWrapper[Any, Any, Any, Any, Any]):
    """An `EsperVectorEnv` with flat actions `[E]`."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._members = _vector(env)
        self.single_action_space = spaces.Discrete(len(self.actions))
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def step(
        self, actions: Ints
    ) -> tuple[Observations, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], Info]:
        """Take the actions with these indices `[E]`; what is illegal becomes WAIT."""
        index_E = _indices(actions, (self.num_envs,))
        obs, reward, terminated, truncated, info = self.env.step(self.actions.heads(index_E))
        return obs, reward, terminated, truncated, self._with_mask(info)


class FlatEnv(_Flat, gymnasium.Wrapper[Any, Any, Any, Any]):
    """An `EsperEnv` with flat actions."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._members = _vector(env)
        self.action_space = spaces.Discrete(len(self.actions))

    def action_masks(self) -> Bools:
        """`[N]`: actions that are legal now."""
        return np.asarray(self._masks()[0])

    def step(self, action: int) -> tuple[Any, Any, bool, bool, Info]:
        """Take the action with this index; what is illegal becomes WAIT."""
        index = _indices(action, ())
        heads_A = self.actions.heads(index[None])[0]
        obs, reward, terminated, truncated, info = self.env.step(heads_A)
        return obs, reward, terminated, truncated, self._with_mask(info)


@overload
def flat(env: gymnasium.Env[Any, Any]) -> FlatEnv: ...
@overload
def flat(env: VectorEnv[Any, Any, Any]) -> FlatVectorEnv: ...
def flat(env: Any) -> FlatEnv | FlatVectorEnv:
    """Wrap an environment of Esper, single or vector, so that an action is one index."""
    if isinstance(env, VectorEnv):
        return FlatVectorEnv(env)
    if isinstance(env, gymnasium.Env):
        return FlatEnv(env)
    raise EsperError(f"flat of {shown(env)}: give an environment of esper.gym")


def _vector(env: Any) -> EsperVectorEnv:
    """The vector environment inside an environment of Esper."""
    inner = env.unwrapped
    if isinstance(inner, EsperEnv):
        return inner.vector
    if not isinstance(inner, EsperVectorEnv):
        raise EsperError(f"flat of {type(inner).__name__}: give an environment of esper.gym")
    return inner


def _indices(given: Any, shape: tuple[int, ...]) -> Ints:
    found = np.asarray(given)
    if found.shape != shape or found.dtype.kind not in "iu":
        raise EsperError(
            f"actions of shape {found.shape}, {found.dtype}: expected integers of shape {shape}"
        )
    return found.astype(np.int64)
