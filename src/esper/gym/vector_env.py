"""`EsperVectorEnv`: E members of one engine as a Gymnasium vector environment.

    envs = gymnasium.make_vec("esper/digits_impaired-v0", num_envs=16)
    obs, info = envs.reset(seed=0)
    obs, reward, terminated, truncated, info = envs.step(envs.action_space.sample())

All members train side by side in one population, and all episodes end together.

Shape letters: E members, A action heads.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from esper.gym.flat_actions import FlatActions
from esper.gym.settings import EnvSettings
from esper.gym.spaces import action_space, head_sizes, mask_arrays, observation_space, observations
from esper.leyline.actions import ActionHead, ActionSpec, LifecycleOp
from esper.leyline.arrays import Bools, Ints
from esper.leyline.errors import EsperError, shown
from esper.leyline.limits import is_integer
from esper.leyline.masks import ActionMasks
from esper.leyline.payloads import EpisodeOutcome
from esper.leyline.signals import TrainingSignals
from esper.tamiyo.actions import parse_sampled_action
from esper.tamiyo.scripted import legal_members
from esper.tasks.spec import TaskSpec
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.runtime import set_deterministic_cublas
from esper.tolaria.stepping import Decided, EngineStepper

Info = dict[str, Any]
Observations = dict[str, npt.NDArray[Any]]
DRAWN_SEEDS: Final = 10_000_000
"""Seeds drawn for a first `reset` without one; below those reserved for evaluation."""


class EsperVectorEnv(VectorEnv[Observations, Ints, npt.NDArray[Any]]):
    """Members of a task; see docs/gym.md for observations, actions and infos."""

    metadata = {  # noqa: RUF012  # gymnasium declares it so
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self, task: str | TaskSpec = "digits_impaired", num_envs: int = 1, **settings: Any
    ) -> None:
        """`settings`: fields of `EnvSettings`."""
        self.settings = EnvSettings.of(settings)
        self.task = self.settings.spec(task)
        self.population = self.settings.population(self.task, num_envs)
        self.settings.make_reward(self.task)  # raises before anything is loaded
        if self.settings.profile == "exact":
            set_deterministic_cublas()  # read at the first use of cuBLAS
        folder = self.settings.data_dir
        self._data = self.task.load(None if folder is None else Path(folder))
        self.num_envs, self.render_mode = num_envs, None
        self.engine = self._make_engine(0)
        slots, blueprints = len(self.task.slots), len(self.task.blueprints)
        sizes = slots, blueprints, self.task.context.restarts
        self.single_observation_space = observation_space(*sizes)
        self.single_action_space = action_space(*sizes)
        self._head_sizes = head_sizes(*sizes)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        life = self.engine.env.model.lifecycle
        self.actions = FlatActions(
            life.fits_SK, dict(self.population.frozen_heads), self.task.context.actions
        )
        """Every action that can ever be legal."""
        self.masks: ActionMasks | None = None
        """Masks of the last observation."""
        self._seed: int | None = None
        self._over = False

    def _make_engine(self, seed: int) -> VectorizedEngine:
        engine = VectorizedEngine(self.task, self.population.engine_config(seed), data=self._data)
        self._stepper = EngineStepper(
            engine, self.settings.make_reward(self.task), self.settings.activation_gradients
        )
        return engine

    # ---- gymnasium ------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Info]:
        """Start an episode of fresh members.

        `seed`: of all random numbers from here on; the same seed repeats the same episodes bit for
        bit, given the same actions. Without one, the next episode of the current seed begins.
        """
        if options:
            raise EsperError(f"reset options {shown(options)}: there are none")
        if seed is not None and not is_integer(seed):
            raise EsperError(
                f"reset seed {shown(seed)}: give one integer, the members' draws follow from it"
            )
        super().reset(seed=None if seed is None else int(seed))
        if seed is None and self._seed is None:
            seed = int(self.np_random.integers(DRAWN_SEEDS))
        if seed is not None:
            self._use_seed(int(seed))
        elif self.masks is not None and not self._over:
            self.engine.end_episode()  # abandoned; the next one has other hosts
        return self._begin()

    def _use_seed(self, seed: int) -> None:
        """Begin with the first round of a seed."""
        if self.engine.config.seed != seed:
            self.engine = self._make_engine(seed)
        self._seed, self.engine.round = seed, 0

    def _begin(self) -> tuple[Observations, Info]:
        self._over = False
        signals, self.masks = self._stepper.begin()
        return observations(signals), self._info(signals, self.masks)

    def step(
        self, actions: Ints
    ) -> tuple[Observations, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], Info]:
        """Decide for all members; `actions` `[E, A]`, one column per head.

        An illegal action becomes WAIT and is reported in `info["illegal"]`. After the end of an
        episode, the next step ignores its actions and starts a new one (autoreset NEXT_STEP).
        """
        if self.masks is None:
            raise ResetNeeded("step before reset: call reset first")
        nobody_E = np.zeros(self.num_envs, dtype=np.bool_)
        if self._over:
            obs, info = self._begin()
            return obs, np.zeros(self.num_envs), nobody_E, nobody_E.copy(), info
        if not self._stepper.running:
            raise ResetNeeded("the last step failed: call reset")
        chosen, illegal_E = self._legal(actions, self.masks)
        decided = self._stepper.act(chosen)
        self.masks, self._over = decided.masks, decided.episode is not None
        info = self._info(decided.signals, decided.masks) | self._report(decided, illegal_E)
        over_E = np.full(self.num_envs, self._over)
        return observations(decided.signals), decided.rewards.total, over_E, nobody_E, info

    def _legal(self, actions: Ints, masks: ActionMasks) -> tuple[ActionSpec, Bools]:
        """The actions with WAIT for what the masks forbid, and where that was."""
        heads_EA = np.asarray(actions)
        if heads_EA.shape != (self.num_envs, len(ActionHead)):
            raise EsperError(
                f"actions of shape {heads_EA.shape}: expected ({self.num_envs}, {len(ActionHead)}),"
                f" one column for each of {', '.join(head.name for head in ActionHead)}"
            )
        if not self.action_space.contains(heads_EA.astype(np.int64)):
            raise EsperError(
                f"actions out of range: choices per head are {self._head_sizes}, counted from 0"
            )
        chosen = parse_sampled_action(heads_EA)
        legal_E = legal_members(masks, chosen)
        op_E = np.where(legal_E, chosen.op, int(LifecycleOp.WAIT))
        return replace(chosen, op=op_E), ~legal_E

    # ---- infos ----------------------------------------------------------------------------

    def _info(self, signals: TrainingSignals, masks: ActionMasks) -> Info:
        """What every observation comes with."""
        row = 0 if signals.planning else signals.step + 1
        found: Info = {
            "action_mask": mask_arrays(masks, self.task.context.restarts),
            "score": self.engine.episode.score_TE[row].copy(),
            "step": np.full(self.num_envs, signals.step),
            "planning": np.full(self.num_envs, signals.planning),
        }
        return _present(found, self.num_envs)

    def _report(self, decided: Decided, illegal_E: Bools) -> Info:
        """What happened to the actions of a step."""
        rewards = decided.rewards
        found: Info = {
            "illegal": illegal_E,
            "executed": decided.outcome.executed,
            "veto": decided.outcome.veto.copy(),
            "rolled_back": decided.rolled_back_E.copy(),
            "reward_parts": {name: rewards.part(name).copy() for name in rewards.names},
        }
        if decided.episode is not None:
            found["outcome"] = _outcome(decided.episode)
        return _present(found, self.num_envs)


def _outcome(episode: EpisodeOutcome) -> dict[str, npt.NDArray[Any]]:
    """The outcome of an episode by name, without the member letter: `score`, `accuracy`, ..."""
    names = [field.name for field in fields(episode) if field.name != "member_E"]
    return {name.rpartition("_")[0]: np.array(getattr(episode, name)) for name in names}


def _present(info: Info, members: int) -> Info:
    """Add Gymnasium's `_name`: which members the information is for, here always all."""
    return info | {f"_{name}": np.ones(members, dtype=np.bool_) for name in info}
