"""A seed's optimiser state, through the real engine: born empty, trains, carries over, is cleared.

Moments are read at the end of each step, after its actions. `conv_light` in slot r0c1 throughout;
G5 is held open, because whether a seed is worth keeping is not the question here.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from engine_support import CALM, Diary, small_engine, small_task
from esper.kasmina.lifecycle import lifecycle
from esper.kasmina.training.training import HOST_KEY
from esper.leyline import LifecycleOp, SeedStage
from esper.tasks.spec import OptimSettings
from growth_support import Wishes

Op = LifecycleOp
SLOT, GROWER, BYSTANDER = 1, 0, 1
BATCHES = 2
BORN_TO_STAY = (Op.GERMINATE, Op.ADVANCE, Op.FOSSILIZE)
BORN_TO_GO = (Op.GERMINATE, Op.PRUNE, Op.GERMINATE)


def measured(config, signals) -> np.ndarray:
    """G5, open as soon as there is a contribution, whatever it is."""
    return np.isfinite(signals.contribution_ES)


class Run:
    """An episode under wishes, and the moments of every step."""

    def __init__(self, ops, kind: str = "adamw", who=(GROWER,), steps: int = 13, **config) -> None:
        settings = OptimSettings(kind, host_lr=0.02, seed_lr=0.02)
        spec = small_task(episode_length=steps, batches_per_step=BATCHES, validation=120)
        spec = dataclasses.replace(spec, optim=settings)
        self.diary = Diary(watch=self.after_step)
        config = {"members": 3, "executor": "loop", "governor": CALM, "seed": 2} | config
        self.engine = small_engine(spec, self.diary, **config)
        self.policy = Wishes(who, ops, SLOT, before=self.before_actions)
        self.before: list[dict] = []
        self.after: list[dict] = []
        self.hosts: list[dict] = []
        self.faults: dict[int, int] = {}
        """Step at the end of which a weight breaks -> member."""

    def run(self) -> Run:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lifecycle, "worth_keeping", measured)
            self.engine.run_rollout(self.policy)
        return self

    def moments(self, key) -> dict[str, np.ndarray]:
        trainer = self.engine.env.model.trainer
        optimizer = trainer.host_optimizer if key == HOST_KEY else trainer.seed_optimizer
        return {name: value.numpy().copy() for name, value in optimizer.state.get(key, {}).items()}

    @property
    def key(self) -> tuple[int, int]:
        return SLOT, self.engine.env.model.blueprints.index("conv_light")

    def before_actions(self) -> None:
        self.before.append(self.moments(self.key))

    def after_step(self, record) -> None:
        self.after.append(self.moments(self.key))
        self.hosts.append(self.moments(HOST_KEY))
        if record.signals.step in self.faults:
            member = self.faults[record.signals.step]
            self.engine.env.model.network.host.flat_EP.detach()[member, 0] = torch.nan

    def stage(self, step: int, member: int = GROWER) -> SeedStage:
        return SeedStage(self.diary.records[step].signals.slots.stage_ES[member, SLOT])


def empty(moments: dict[str, np.ndarray], member: int) -> bool:
    """No state at all, or nothing but zeros."""
    return all((value[member] == 0).all() for value in moments.values())


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray], member: int) -> bool:
    assert left.keys() == right.keys()
    return all(np.array_equal(left[name][member], right[name][member]) for name in left)


@pytest.fixture(scope="module", params=["sgd", "adamw"])
def stays(request) -> Run:
    """A seed that is made permanent."""
    return Run(BORN_TO_STAY, request.param).run()


def test_a_seed_is_born_with_an_empty_state(stays):
    born = stays.policy.step_of(GROWER, Op.GERMINATE)
    assert empty(stays.after[born], GROWER)


def test_its_state_fills_as_it_trains_and_no_one_elses_does(stays):
    born = stays.policy.step_of(GROWER, Op.GERMINATE)
    assert stays.stage(born + 1) is SeedStage.TRAINING
    assert not empty(stays.after[born + 1], GROWER)
    for step in range(born + 2, len(stays.after)):
        assert not same(stays.after[step], stays.after[step - 1], GROWER)
    assert all(empty(moments, BYSTANDER) for moments in stays.after)


def test_fossilisation_carries_the_state_over(stays):
    kept = stays.policy.step_of(GROWER, Op.FOSSILIZE)
    assert stays.stage(kept + 1) is SeedStage.FOSSILIZED
    assert not empty(stays.before[kept], GROWER)
    assert same(stays.before[kept], stays.after[kept], GROWER)
    assert not same(stays.after[kept], stays.after[kept + 1], GROWER), "it goes on training"


@pytest.mark.parametrize("stays", ["adamw"], indirect=True)
def test_no_update_is_lost_from_birth_to_the_end(stays):
    """AdamW counts its steps: one per batch, blending and fossilisation included."""
    born = stays.policy.step_of(GROWER, Op.GERMINATE)
    stays.policy.step_of(GROWER, Op.FOSSILIZE)
    for step in range(born + 1, len(stays.after)):
        assert stays.after[step]["steps"][GROWER] == BATCHES * (step - born)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_seed_after_a_pruned_one_starts_empty(kind, executor):
    run = Run(BORN_TO_GO, kind, executor=executor).run()
    pruned = run.policy.step_of(GROWER, Op.PRUNE)
    reborn = run.policy.step_of(GROWER, Op.GERMINATE, 1)
    assert not empty(run.before[pruned], GROWER), "there was something to clear"
    assert empty(run.after[reborn], GROWER)
    assert not empty(run.after[reborn + 1], GROWER)
    if kind == "adamw":
        assert run.after[-1]["steps"][GROWER] == BATCHES * (len(run.after) - 1 - reborn)


def test_what_is_left_of_a_pruned_seed_does_not_move():
    """It may be cleared at once or when the next seed is born; nothing may read or train it."""
    run = Run(BORN_TO_GO).run()
    pruned = run.policy.step_of(GROWER, Op.PRUNE)
    reborn = run.policy.step_of(GROWER, Op.GERMINATE, 1)
    for step in range(pruned + 1, reborn):
        assert empty(run.after[step], GROWER) or same(run.after[pruned], run.after[step], GROWER)


def test_clearing_one_members_state_leaves_the_others_alone():
    """Member 0 prunes and grows again, member 1 keeps its seed: as if member 0 were not there."""
    pair = Run(BORN_TO_GO, who=(0, 1))
    pair.policy.left[1] = [Op.GERMINATE]
    pair.run()
    alone = Run((Op.GERMINATE,), who=(1,)).run()
    assert len(pair.policy.done[0]) == 3
    for step in range(1, len(pair.after)):
        assert same(pair.after[step], alone.after[step], 1)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_rollback_clears_the_state_of_seeds_on_trial(kind):
    run = Run((Op.GERMINATE,), kind, who=(0, 1))
    run.faults[4] = GROWER
    run.run()
    healthy = Run((Op.GERMINATE,), kind, who=(0, 1)).run()
    assert run.diary.records[5].governor.rolled_back_E.tolist() == [True, False, False]
    assert run.diary.records[5].governor.seeds_pruned_E[GROWER] == 1
    assert not empty(run.after[4], GROWER), "there was something to clear"
    assert empty(run.after[5], GROWER)
    assert empty(run.after[-1], GROWER), "and no one fills it again"
    for step in range(1, len(run.after)):
        assert same(run.after[step], healthy.after[step], 1)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_rollback_sets_the_hosts_state_back_with_its_weights(kind):
    """To the snapshot's; to nothing where the snapshot is of the fresh host."""
    for snapshot_steps, fresh in ((2, False), (50, True)):
        governor = dataclasses.replace(CALM, snapshot_steps=snapshot_steps)
        run = Run((), kind, who=(), governor=governor)
        run.faults[6] = GROWER
        run.run()
        assert run.diary.records[7].governor.rolled_back_E[GROWER]
        back_to = int(run.diary.records[7].governor.snapshot_step_E[GROWER])
        assert (back_to == -1) is fresh
        if fresh:
            assert empty(run.hosts[7], GROWER)
        else:
            assert same(run.hosts[7], run.hosts[back_to], GROWER)
        assert not same(run.hosts[7], run.hosts[6], GROWER)


def test_a_permanent_seeds_state_goes_back_with_it():
    run = Run(BORN_TO_STAY)
    run.faults[10] = GROWER
    run.run()
    kept = run.policy.step_of(GROWER, Op.FOSSILIZE)
    record = run.diary.records[11]
    assert record.governor.rolled_back_E[GROWER]
    assert record.governor.snapshot_step_E[GROWER] == kept < 10, "taken when it became permanent"
    assert not same(run.after[10], run.after[kept], GROWER)
    assert same(run.after[11], run.after[kept], GROWER)
    assert run.stage(11) is SeedStage.FOSSILIZED


def test_a_new_episode_starts_with_no_state():
    run = Run(BORN_TO_STAY).run()
    run.after.clear()
    run.hosts.clear()
    run.engine.run_rollout(Wishes((), ()))
    assert all(moments == {} or empty(moments, GROWER) for moments in run.after)
    assert run.hosts[0]["steps"].ravel().tolist() == [BATCHES] * 3
