"""`esper.Policy`: helpers build legal actions, and mistakes are one line."""

from __future__ import annotations

import sys
from dataclasses import fields

import numpy as np
import pytest
import torch

import esper
from context_support import planned_engine
from engine_support import Diary, small_engine, small_task
from esper.leyline import ActionHead, EsperError, LifecycleOp, SeedStage
from esper.leyline.arrays import ArrayStruct
from esper.simic.rewards.score import ScoreReward
from esper.tamiyo.policy import PolicyClient
from support import refused

MEMBERS = 3


def run(policy: esper.Policy, engine=None) -> Diary:
    """One episode of a policy."""
    engine = engine or small_engine(small_task(episode_length=8), members=MEMBERS, executor="loop")
    diary = Diary()
    diary.outcome = engine.run_rollout(
        PolicyClient(policy, ScoreReward(engine.spec.upkeep)), diary
    ).outcome
    return diary


class Grow(esper.Policy):
    """Grows in the first two members, slot by slot."""

    def act(self, signals, masks):
        where = np.arange(self.members) < 2
        return self.first(
            self.fossilize(),
            self.advance(),
            self.germinate(where[:, None] & self.legal("GERMINATE"), blueprint="norm"),
        )


def ops(diary: Diary) -> np.ndarray:
    """Operations `[T, E]`."""
    return np.stack([record.decision.actions.op for record in diary.records])


def test_a_policy_grows_where_it_says_and_nowhere_else():
    diary = run(Grow())
    found_TE = ops(diary)
    assert found_TE[0].tolist() == [LifecycleOp.GERMINATE] * 2 + [LifecycleOp.WAIT]
    assert (found_TE[:, 2] == LifecycleOp.WAIT).all()
    assert (diary.outcome.germinated_E == [3, 3, 0]).all()
    names = diary.records[0].signals.slots.blueprints
    actions = diary.records[0].decision.actions
    assert names[actions.blueprint[0]] == "norm"
    assert all(record.result.outcome.executed.all() for record in diary.records)


def test_a_slot_and_a_blueprint_may_be_given_for_each_member():
    class Chosen(esper.Policy):
        def act(self, signals, masks):
            return self.germinate(True, [2, 1, 0], [0, 1, 0], style="GATE", tempo=8)

    actions = run(Chosen()).records[0].decision.actions
    assert actions.op.tolist() == [LifecycleOp.GERMINATE] * 3
    assert (actions.slot.tolist(), actions.blueprint.tolist()) == ([2, 1, 0], [0, 1, 0])
    assert (actions.style.tolist(), actions.tempo.tolist()) == ([2] * 3, [2] * 3)


def test_what_is_illegal_becomes_wait():
    class Stubborn(esper.Policy):
        def act(self, signals, masks):
            return self.prune(True, "r0c0")

    diary = run(Stubborn())
    assert (ops(diary) == LifecycleOp.WAIT).all()


def test_the_first_legal_choice_counts():
    class Choosy(esper.Policy):
        def act(self, signals, masks):
            nobody = np.zeros(self.members, dtype=bool)
            return self.first(
                self.germinate(nobody, "r0c0", 0),
                self.fossilize(True, "r0c0"),
                self.germinate(True, "r0c1", 1),
            )

    actions = run(Choosy()).records[0].decision.actions
    assert actions.op.tolist() == [LifecycleOp.GERMINATE] * MEMBERS
    assert actions.slot.tolist() == [1] * MEMBERS


def test_a_plan_is_planted_and_training_stops():
    class Planner(esper.Policy):
        plans = True

        def act(self, signals, masks):
            if signals.planning:
                return self.plant(np.array([True, False, True]), "norm")
            return self.stop(np.full(self.members, signals.step == 1))

    diary = run(Planner(), planned_engine())
    stage = diary.records[0].signals.slots.stage_ES
    assert (stage[[0, 2]] == SeedStage.PLANTED).all()
    assert (stage[1] == SeedStage.DORMANT).all()
    assert ops(diary)[1].tolist() == [LifecycleOp.STOP] * 3
    assert diary.records[-1].signals.context.stopped_E.all()


def test_begin_is_called_before_every_episode():
    begun = []

    class Counting(esper.Policy):
        def begin(self, members):
            begun.append(members)

        def act(self, signals, masks):
            return self.wait()

    engine = small_engine(small_task(episode_length=2), members=2, executor="loop")
    client = PolicyClient(Counting())
    engine.run_rollout(client)
    engine.run_rollout(client)
    assert begun == [2, 2]


MISTAKES = {
    "no act": (lambda self: esper.Policy.act(self, None, None), "has no act"),
    "nothing": (lambda self: None, "one action for each"),
    "a list": (lambda self: [0, 1, 2], "one action for each"),
    "slot": (lambda self: self.germinate(True, "r9c9", 0), "r9c9"),
    "blueprint": (lambda self: self.germinate(True, 0, "nrm"), "norm"),
    "index": (lambda self: self.germinate(True, 7, 0), "valid are 0 to 2"),
    "style": (lambda self: self.germinate(True, 0, 0, style="SUM"), "ADD"),
    "where": (lambda self: self.prune([1, 0, 1]), "where"),
    "length": (lambda self: self.stop(np.ones(5, dtype=bool)), "shape \\(3,\\)"),
    "operation": (lambda self: self.legal("GROW"), "GERMINATE"),
    "their own": (lambda self: 1 / 0, "Broken.act fails: ZeroDivisionError"),
}


@pytest.mark.parametrize(
    "case",
    [
        c if c in ("index", "operation") else pytest.param(c, marks=pytest.mark.slow)
        for c in MISTAKES
    ],
)
def test_a_mistake_is_one_line(case):
    act, expected = MISTAKES[case]

    class Broken(esper.Policy):
        def act(self, signals, masks):
            return act(self)

    with pytest.raises(EsperError, match=expected) as refused:
        run(Broken())
    assert "\n" not in str(refused.value)


def arrays_of(struct: ArrayStruct) -> dict[str, np.ndarray]:
    """All arrays of a struct and those within it."""
    found = {}
    for field in fields(struct):
        value = getattr(struct, field.name)
        if isinstance(value, np.ndarray):
            found[field.name] = value
        elif isinstance(value, ArrayStruct):
            found |= {f"{field.name}.{name}": v for name, v in arrays_of(value).items()}
    return found


@pytest.mark.parametrize("plans", [False, True])
def test_everything_a_policy_gets_is_read_only(plans):
    writable = set()

    class Curious(Grow):
        def act(self, signals, masks):
            given = arrays_of(signals) | arrays_of(masks)
            assert len(given) > 60
            writable.update(name for name, values in given.items() if values.flags.writeable)
            return self.wait() if signals.planning else super().act(signals, masks)

        def forget(self, reset_E):
            writable.update(["reset_E"] if reset_E.flags.writeable else [])

    run(Curious(), planned_engine() if plans else None)
    PolicyClient(Curious()).reset_state(None, np.ones(MEMBERS, dtype=bool))
    assert writable == set()


def test_a_policy_cannot_change_its_own_reported_sizes():
    class Cheat(Grow):
        def act(self, signals, masks):
            chosen = super().act(signals, masks)
            signals.slots.params_ES[:] = 1
            return chosen

    line = refused(lambda: run(Cheat()))
    assert line.startswith("Cheat.act fails: ValueError at test_policy.py:")
    assert line.endswith("read-only")
    diary, sizes = run(Grow()), []

    class Copies(Grow):
        def act(self, signals, masks):
            sizes.append(np.array(signals.slots.params_ES))
            sizes[-1][:] = 1
            return super().act(signals, masks)

    assert run(Copies()).outcome == diary.outcome


def test_a_policy_cannot_change_how_members_train(caplog):
    class Careless(Grow):
        def act(self, signals, masks):
            torch.set_grad_enabled(False)
            torch.set_default_dtype(torch.float64)
            return super().act(signals, masks)

    expected, found = run(Grow()), run(Careless())
    assert found.outcome == expected.outcome
    said = [record.getMessage() for record in caplog.records if "torch_" in record.name]
    assert [line.split(":")[0] for line in said] == [
        "Careless.act calls torch.set_grad_enabled(False)",
        "Careless.act calls torch.set_default_dtype(torch.float64)",
    ]


def test_a_policy_cannot_end_the_process():
    class Leaves(Grow):
        def act(self, signals, masks):
            sys.exit(0)

    assert "Leaves.act fails: SystemExit at test_policy.py:" in refused(lambda: run(Leaves()))


def test_the_helpers_respect_frozen_heads():
    class Quick(esper.Policy):
        def act(self, signals, masks):
            return self.germinate(True, 0, 0, style="GATE", tempo=8)

    frozen = ((ActionHead.STYLE, 0), (ActionHead.TEMPO, 1))
    task = small_task(episode_length=3)
    engine = small_engine(task, members=3, executor="loop", frozen_heads=frozen)
    actions = run(Quick(), engine).records[0].decision.actions
    assert actions.op.tolist() == [LifecycleOp.GERMINATE] * 3
    assert (actions.style.tolist(), actions.tempo.tolist()) == ([0] * 3, [1] * 3)
