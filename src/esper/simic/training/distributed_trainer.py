"""`DistributedTrainer`: the training loop of one rank of several.

Every rank runs its own members. Before and after each update the ranks agree whether all of them
can continue, so that an error or a stop signal of one ends all. Records, and what listeners receive
at the end of a round, are those of the members of all ranks; listeners and hooks run where they
are given, which is rank 0.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import StructT, map_member_arrays
from esper.leyline.errors import EsperError
from esper.leyline.payloads import EpisodeOutcome, PPOUpdateMetrics
from esper.leyline.protocols import EngineListener
from esper.leyline.records import Rollout
from esper.simic.agent.agent import PPOAgent
from esper.simic.client import SimicClient
from esper.simic.distributed.stragglers import StragglerRule
from esper.simic.distributed.world import PeerInterrupted, World
from esper.simic.telemetry.listener import ListenerGroup
from esper.simic.training.history import RoundRecord
from esper.simic.training.runs.interrupts import Interrupted
from esper.simic.training.runs.kept_members import KeptMember, KeptMembers, save_member
from esper.simic.training.vectorized_trainer import EngineState, RoundHook, VectorizedPPOTrainer
from esper.storage.atomic import write_atomic
from esper.storage.saves import MANIFEST
from esper.tamiyo.network import PolicyState
from esper.tolaria.engine import VectorizedEngine

T = TypeVar("T")


class DistributedTrainer(VectorizedPPOTrainer):
    """Trains the members of one rank, in step with the other ranks."""

    def __init__(
        self,
        world: World,
        engine: VectorizedEngine,
        client: SimicClient,
        rounds: int,
        listeners: Sequence[EngineListener] = (),
        hooks: Sequence[RoundHook] = (),
        cut_stragglers: float | None = None,
    ) -> None:
        """See `VectorizedPPOTrainer`; `KeptMembers` among the hooks keep members of all ranks.

        `cut_stragglers`: share of the ranks whose finished rollouts end those of the others; None:
        all rollouts are whole.
        """
        super().__init__(engine, client, rounds, listeners, [self._end_round])
        self.world = world
        self._own_hooks = [hook for hook in hooks if not isinstance(hook, KeptMembers)]
        self.kept = next((hook for hook in hooks if isinstance(hook, KeptMembers)), None)
        self._during_round = _WithoutRoundEnd(self._all_listeners.listeners)
        self._whole: Rollout[PolicyState] | None = None
        """The last rollout, of all ranks."""
        self._rule: StragglerRule | None = None
        if cut_stragglers is not None:
            self._rule = StragglerRule(world, cut_stragglers, engine.spec.episode_length)

    @property
    def members(self) -> int:
        """Members of all ranks."""
        return self.world.members_total

    def share_progress(self) -> None:
        """Send rank 0's round and agent to the other ranks, which may not see its folder."""
        engine, agent = self.engine, self.client.agent
        engine.round = int(self.world.broadcast_bytes(str(engine.round).encode()))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "agent"
            if not self.world.rank:
                agent.save(path)
            packed = self.world.broadcast_bytes(b"" if self.world.rank else _pack_folder(path))
            if not self.world.rank:
                return
            _unpack_folder(packed, path)
            self.client.agent = PPOAgent.load(path, agent.device, agent.spec, agent.config)
        self.client.agent.ranks = self.world
        if agent.graphs is None:
            self.client.agent.use_graphs(None)

    def engine_state(self) -> EngineState:
        """State of the engine, as one with all members has it."""
        return self.engine.state_dict() | {"members": self.members}

    def load_engine_state(self, state: EngineState) -> None:
        """Resume from `engine_state`; the number of ranks may differ."""
        members = state.get("members")
        if members != self.members:
            raise EsperError(
                f"engine state: members is {members!r}, expected {self.members!r}; resume with the "
                f"same members"
            )
        self.engine.load_state_dict(state | {"members": self.engine.env.members})

    def run_rollout(self) -> Rollout[PolicyState]:
        """The next rollout of this rank, once all ranks have theirs."""
        rollout = self._agree(self._run_own_rollout)
        self._whole = _gather_rollout(rollout, self.world)
        self._all_listeners.on_round_end(self._whole)
        return rollout

    def _run_own_rollout(self) -> Rollout[PolicyState]:
        rule = self._rule
        ends_early = None if rule is None else rule.ends_early
        rollout: Rollout[PolicyState] = self.engine.run_rollout(
            self.client, self._during_round, ends_early
        )
        if rule is not None:
            rule.finish()
        return rollout

    def _record(
        self, rollout: Rollout[PolicyState], metrics: PPOUpdateMetrics, seconds: float
    ) -> RoundRecord:
        assert self._whole is not None  # set by `run_rollout`
        record = super()._record(self._whole, metrics, seconds)
        names = ("waited", "stopped", "restarted")
        counts = [getattr(record, name) for name in names]
        mine = np.array([[*counts, *record.chosen_OZ.ravel()]])
        every = self.world.gather(mine).sum(axis=0)
        chosen_OZ = every[len(names) :].reshape(record.chosen_OZ.shape)
        # SYNC: arrays of numpy, between rounds
        whole = dict(zip(names, every[: len(names)].tolist(), strict=True))
        return replace(record, **whole, chosen_OZ=chosen_OZ)

    def _end_round(self, trainer: VectorizedPPOTrainer, record: RoundRecord, /) -> None:
        """The hook of all ranks: best members, then each rank's own hooks."""
        members = {} if self.engine.step else self._collect_members()
        self._agree(partial(self._save_round, record, members))

    def _save_round(self, record: RoundRecord, members: dict[int, bytes]) -> None:
        """Rank 0 saves the best members, then every rank calls its hooks."""
        if self.kept is not None and not self.engine.step:
            assert self._whole is not None  # set by `run_rollout`
            outcome = _completed_scores(self._whole)
            self.kept.add_round(self.engine, outcome, partial(_write_member, members))
        for hook in self._own_hooks:
            hook(self, record)

    def _collect_members(self) -> dict[int, bytes]:
        """Saves of the members of this round that rank 0 keeps, by number, on every rank."""
        wanted: list[KeptMember] = []
        if self.kept is not None:
            assert self._whole is not None  # set by `run_rollout`
            best = self.kept.best(self.engine, _completed_scores(self._whole))
            wanted = [kept for kept in best if kept.round == self.engine.round]
        numbers = json.dumps([kept.member for kept in wanted]).encode()
        found: dict[int, bytes] = {}
        for number in json.loads(self.world.broadcast_bytes(numbers)):
            owner = self.world.owner_of(number)
            own = owner == self.world.rank
            packed = self._agree(partial(self._pack_member, number) if own else bytes)
            found[number] = self.world.broadcast_bytes(packed, owner)
        return found

    def _pack_member(self, number: int) -> bytes:
        """The save of one of this rank's members."""
        with tempfile.TemporaryDirectory() as folder:
            save_member(self.engine, number - self.world.first_member, Path(folder))
            return _pack_folder(Path(folder))

    def _agree(self, work: Callable[[], T]) -> T:
        """Run `work` on all ranks; raises `Interrupted` if one of them is stopped."""
        try:
            return self.world.together(work)
        except PeerInterrupted as stopped:
            raise Interrupted(str(stopped)) from None


class _WithoutRoundEnd(ListenerGroup):
    """Leaves out the end of a round, which is reported once it is known of all ranks."""

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """No-op."""


def _write_member(packed: dict[int, bytes], kept: KeptMember, folder: Path) -> None:
    _unpack_folder(packed[kept.member], folder)


def _completed_scores(rollout: Rollout[PolicyState]) -> EpisodeOutcome:
    """The outcome, without the scores of members that were cut: none of them is kept."""
    score_E = np.where(rollout.whole_E, rollout.outcome.score_E, np.nan)
    return replace(rollout.outcome, score_E=score_E)


def _gather_rollout(rollout: Rollout[PolicyState], world: World) -> Rollout[PolicyState]:
    """The rollout of all ranks: arrays over members are joined, its time is that of the slowest.

    Its steps are those of the ranks that were not cut.
    The recurrent state and the bootstrap targets stay this rank's: only the learner needs them.
    """
    whole = _gather_struct(rollout, world)
    # SYNC: arrays of numpy, between rounds
    seconds = float(world.gather(np.array([rollout.seconds])).max())
    members = np.arange(len(whole.outcome.score_E), dtype=np.int64)
    steps = int(whole.steps_E.max())
    outcome = replace(whole.outcome, member_E=members)
    return replace(whole, outcome=outcome, seconds=seconds, steps=steps)


def _gather_struct(struct: StructT, world: World) -> StructT:
    """Join the arrays over members of all ranks, in one message."""
    arrays: list[npt.NDArray[Any]] = []
    map_member_arrays(struct, partial(_collect, arrays))
    joined = iter(world.gather_arrays(arrays))
    return map_member_arrays(struct, lambda array: next(joined))


def _collect(arrays: list[npt.NDArray[Any]], array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    arrays.append(array)
    return array


def _pack_folder(folder: Path) -> bytes:
    """The files of a save as one message: names and sizes as JSON, then the contents."""
    paths = sorted(folder.iterdir(), key=lambda path: (path.name == MANIFEST, path.name))
    bodies = [path.read_bytes() for path in paths]
    names = [(path.name, len(body)) for path, body in zip(paths, bodies, strict=True)]
    return json.dumps(names).encode() + b"\n" + b"".join(bodies)


def _unpack_folder(message: bytes, folder: Path) -> None:
    """Write what `_pack_folder` packed to `folder`, its manifest last."""
    folder.mkdir(parents=True, exist_ok=True)
    line, _, body = message.partition(b"\n")
    start = 0
    for name, size in json.loads(line):
        write_atomic(folder / Path(name).name, body[start : start + size])
        start += size
