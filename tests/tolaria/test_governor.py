"""When the governor steps in, what it keeps, and what becomes of the seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.kasmina import Population
from esper.kasmina.saving.saving import population_tensors
from esper.leyline import BlendStyle, LifecycleOp, SeedStage
from esper.leyline.context import PLANNED, VARIED
from esper.leyline.signals import PanicKind
from esper.tasks.registry import get_task_spec
from esper.tolaria.governor import GovernorConfig, TolariaGovernor, default_governor
from support import CLASSES, KINDS, batch, good_signals, make_population

E = 4
CHANCE = 1 / CLASSES
COOLDOWN = 7


def each(value: float, members: int = E) -> np.ndarray:
    return np.full(members, value)


def flags(*members: int, size: int = E) -> np.ndarray:
    out = np.zeros(size, dtype=np.bool_)
    out[list(members)] = True
    return out


def dump(population: Population) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in population_tensors(population).items()}


# ---- lifecycle ----------------------------------------------------------------------------


def alone(executor: str = "vmap", **settings_: object) -> tuple[Population, TolariaGovernor]:
    population = make_population(2, executor)
    governor = TolariaGovernor(population, CHANCE, GovernorConfig(**settings_))
    governor.reset(each(0.1, 2))
    return population, governor


def tell(governor: TolariaGovernor, step: int, loss=1.0, accuracy=0.3, finite=True, score=0.5):
    """Review two members; values for both, or one for each."""
    pair = [np.broadcast_to(np.asarray(v), (2,)) for v in (loss, loss, accuracy, finite, score)]
    return governor.review(step, *pair)


def bring_fossil(population: Population, slot: str) -> None:
    population.germinate([0, 1], slot, "conv_light", BlendStyle.GATE)
    for _ in range(10):
        population.begin_step()
        population.train_batch(*batch(2))
        population.end_step(good_signals(population))
        legal = population.lifecycle.legal_ops()[0, population.slots.index(slot)]
        if legal[LifecycleOp.ADVANCE]:
            population.advance([0, 1], slot)
        if legal[LifecycleOp.FOSSILIZE]:
            population.fossilize([0, 1], slot)
            return
    raise AssertionError("no fossil")


def test_a_seed_fossilised_just_before_is_kept():
    population, governor = alone()
    bring_fossil(population, "r0c0")
    governor.after_actions(6, flags(0, size=2), np.array([0.6, 0.6]))
    assert governor.snapshot_step_E.tolist() == [6, -1]
    assert governor.snapshot_score_E.tolist() == [0.6, 0.1]
    then = dump(population)
    for store in (*population.network.banks.values(), *population.network.gates.values()):
        store.flat_EP.detach()[:] = float("nan")
    verdict = tell(governor, 7, loss=np.nan)
    assert verdict.seeds_pruned_E.tolist() == [0, 1]
    assert verdict.snapshot_step_E.tolist() == [6, -1]
    life, now = population.lifecycle, dump(population)
    assert life.stage_ES[:, 0].tolist() == [SeedStage.FOSSILIZED, SeedStage.PRUNED]
    assert life.cooldown_left()[1, 0] == COOLDOWN
    for name in ("bank/r0c0/conv_light/values", "gate/r0c0/values", "host/values"):
        assert torch.equal(now[name][0], then[name][0])
    assert torch.isfinite(population.forward(batch(2)[0])).all()


def test_a_fossil_without_a_finite_score_is_not_kept():
    population, governor = alone()
    bring_fossil(population, "r0c0")
    governor.after_actions(6, flags(0, 1, size=2), np.array([np.nan, 0.6]))
    assert governor.snapshot_step_E.tolist() == [-1, 6]
    tell(governor, 7, loss=np.nan)
    stages = population.lifecycle.stage_ES[:, 0].tolist()
    assert stages == [SeedStage.PRUNED, SeedStage.FOSSILIZED]


def test_validation_that_is_broken_from_the_start():
    """No score is ever finite, and still every rollback has a finite one to go to."""
    population = make_population(E)
    governor = TolariaGovernor(population, CHANCE)
    broken = np.array([0.2, np.nan, 0.2, np.inf])
    governor.reset(broken)
    assert governor.snapshot_score_E.tolist() == [0.2, CHANCE, 0.2, CHANCE]
    for step in range(12):
        verdict = governor.review(step, each(1.0), 5 * broken, each(0.3), flags(0, 1, 2, 3), broken)
        assert verdict.rolled_back_E.tolist() == [False, True, False, True]
        assert np.isfinite(verdict.snapshot_score_E).all()
    assert governor.snapshot_step_E.tolist() == [9, -1, 9, -1]


def test_a_new_episode_starts_afresh():
    population, governor = alone(min_window=1, spike_steps=1)
    bring_fossil(population, "r0c0")
    governor.after_actions(3, flags(0, size=2), each(0.7, 2))
    tell(governor, 4, accuracy=0.9)
    tell(governor, 5, loss=[99.0, np.nan])
    assert governor.rollbacks_E.tolist() == [1, 1]
    population.reset(1)
    governor.reset(each(0.15, 2))
    fresh = dump(population)
    assert governor.rollbacks_E.tolist() == [0, 0]
    assert governor.snapshot_step_E.tolist() == [-1, -1]
    assert governor.snapshot_score_E.tolist() == [0.15, 0.15]
    population.begin_step()
    population.train_batch(*batch(2))
    population.end_step(good_signals(population))
    verdict = tell(governor, 0, loss=[99.0, np.nan], accuracy=CHANCE)
    assert verdict.panic_E.tolist() == [PanicKind.NONE, PanicKind.NON_FINITE_LOSS]
    assert np.isnan(verdict.loss_limit_E).all()
    assert torch.equal(dump(population)["host/values"][1], fresh["host/values"][1])
    assert (population.lifecycle.stage_ES == SeedStage.DORMANT).all()


def test_planted_seeds_are_in_the_first_snapshot():
    population = make_population(2)
    population.plant([0, 1], "r0c0", "conv_light")
    governor = TolariaGovernor(population, CHANCE)
    governor.reset(each(0.2, 2))
    verdict = tell(governor, 0, loss=[np.nan, 1.0])
    assert verdict.seeds_pruned_E.tolist() == [0, 0]
    assert (population.lifecycle.stage_ES[:, 0] == SeedStage.FOSSILIZED).all()


# ---- panics -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["train", "val"])
def test_a_loss_that_is_not_finite_panics_at_once(bad, which):
    _, governor = alone()
    good, broken = np.array([1.0, 1.0]), np.array([1.0, bad])
    losses = (broken, good) if which == "train" else (good, broken)
    verdict = governor.review(0, *losses, each(0.3, 2), flags(0, 1, size=2), each(0.5, 2))
    assert verdict.panic_E.tolist() == [PanicKind.NONE, PanicKind.NON_FINITE_LOSS]


def test_gradients_that_are_not_finite_panic_at_once():
    _, governor = alone()
    verdict = tell(governor, 0, finite=[False, True])
    assert verdict.panic_E.tolist() == [PanicKind.NON_FINITE_GRADIENT, PanicKind.NONE]
    assert verdict.rolled_back_E.tolist() == [True, False]


def test_a_loss_above_its_limit_panics_after_m_steps():
    _, governor = alone(
        window=4, min_window=3, spike_deviations=2.0, min_deviation=0.25, spike_steps=3
    )
    limits = [tell(governor, step).loss_limit_E[0] for step in range(4)]
    assert np.isnan(limits[:3]).all()
    assert limits[3] == 1.5
    seen = [tell(governor, 4 + i, loss=[2.0, 1.5]) for i in range(3)]
    assert [v.strikes_E.tolist() for v in seen] == [[1, 0], [2, 0], [3, 0]]
    assert [v.panic_E[0] for v in seen] == [0, 0, PanicKind.LOSS_SPIKE]
    assert [v.rolled_back_E.tolist() for v in seen][-1] == [True, False]
    assert governor.strikes_E.tolist() == [0, 0]
    assert np.isnan(tell(governor, 7, loss=9.0).loss_limit_E[0]), "its window starts afresh"


def test_a_loss_that_comes_back_is_forgiven():
    _, governor = alone(window=4, min_window=3, spike_steps=2)
    for step in range(4):
        tell(governor, step)
    for step in range(4, 10):
        verdict = tell(governor, step, loss=50.0 if step % 2 else 1.0)
        assert not verdict.panic_E.any()
        assert verdict.strikes_E.tolist() == 2 * [step % 2]
        assert verdict.loss_limit_E[0] < 2, "strikes do not enter the window"


def test_accuracy_back_at_chance_panics_once_it_had_learnt():
    _, governor = alone()
    low, high = CHANCE + 0.01, CHANCE + 0.2 * (1 - CHANCE) + 0.01
    assert not tell(governor, 0, accuracy=low).panic_E.any()
    assert not tell(governor, 1, accuracy=[high, high - 0.02]).panic_E.any()
    verdict = tell(governor, 2, accuracy=low)
    assert verdict.panic_E.tolist() == [PanicKind.ACCURACY_COLLAPSE, PanicKind.NONE]
    assert not tell(governor, 3, accuracy=low).panic_E.any(), "its snapshot had not learnt"
    tell(governor, 4, accuracy=high)
    assert not tell(governor, 5, accuracy=CHANCE + 0.02 * (1 - CHANCE) + 0.01).panic_E.any()
    assert tell(governor, 6, accuracy=0.0).panic_E.tolist() == 2 * [PanicKind.ACCURACY_COLLAPSE]


def test_language_models_whose_chance_is_0():
    population = make_population(2)
    governor = TolariaGovernor(population, 0.0)
    governor.reset(each(0.0, 2))
    tell(governor, 0, accuracy=[0.4, 0.1])
    verdict = tell(governor, 1, accuracy=-0.3)
    assert verdict.panic_E.tolist() == [PanicKind.ACCURACY_COLLAPSE, PanicKind.NONE]


def test_snapshots_come_every_k_good_steps():
    _, governor = alone(snapshot_steps=3, min_window=1, window=2, spike_steps=9)
    taken = []
    for step in range(8):
        verdict = tell(governor, step, loss=[1.0, 9.0 if step in (1, 2) else 1.0], score=step)
        taken.append(verdict.snapshot_step_E.tolist())
        since = governor.steps_since_snapshot(step)
        assert since.tolist() == [step - t for t in taken[-1]]
    assert [t[0] for t in taken] == [-1, -1, 2, 2, 2, 5, 5, 5]
    assert [t[1] for t in taken] == [-1, -1, -1, -1, 4, 4, 4, 7], "strikes are not good steps"
    assert governor.snapshot_score_E.tolist() == [5.0, 7.0]


def test_a_fossil_snapshot_restarts_the_count():
    _, governor = alone(snapshot_steps=3)
    tell(governor, 0)
    governor.after_actions(0, flags(0, size=2), each(0.5, 2))
    steps = [tell(governor, step).snapshot_step_E.tolist() for step in range(1, 4)]
    assert steps == [[0, -1], [0, 2], [3, 2]]


class PlainGovernor:
    """One member's governor as a textbook would write it."""

    def __init__(self, config: GovernorConfig, chance: float, score: float) -> None:
        self.config, self.chance = config, chance
        self.losses: list[float] = []
        self.strikes = self.good = self.rollbacks = 0
        self.learnt = False
        self.step, self.score = -1, score

    def review(self, step, train_loss, val_loss, accuracy, finite, score):
        c = self.config
        limit = np.nan
        if len(self.losses) >= c.min_window:
            median = np.median(self.losses)
            mad = np.median([abs(loss - median) for loss in self.losses])
            limit = median + c.spike_deviations * max(mad, c.min_deviation)
        above = bool(val_loss > limit)
        self.strikes = strikes = self.strikes + 1 if above else 0
        panic = PanicKind.NONE
        if not (np.isfinite(train_loss) and np.isfinite(val_loss)):
            panic = PanicKind.NON_FINITE_LOSS
        elif not finite:
            panic = PanicKind.NON_FINITE_GRADIENT
        elif strikes >= c.spike_steps:
            panic = PanicKind.LOSS_SPIKE
        elif self.learnt and accuracy <= self.chance + c.collapse_share * (1 - self.chance):
            panic = PanicKind.ACCURACY_COLLAPSE
        if panic:
            self.rollbacks += 1
            self.losses, self.strikes, self.good, self.learnt = [], 0, 0, False
        elif not above:
            self.losses = [*self.losses, val_loss][-c.window :]
            self.good += 1
            if accuracy >= self.chance + c.learnt_share * (1 - self.chance):
                self.learnt = True
            if self.good >= c.snapshot_steps and np.isfinite(score):
                self.snapshot(step, score)
        return panic, limit, strikes

    def snapshot(self, step, score):
        self.step, self.score, self.good = step, score, 0


configs = st.builds(
    GovernorConfig,
    window=st.integers(3, 8),
    min_window=st.integers(1, 3),
    spike_deviations=st.sampled_from([0.5, 1.0, 3.0]),
    min_deviation=st.sampled_from([0.0, 0.05, 0.5]),
    spike_steps=st.integers(1, 3),
    snapshot_steps=st.integers(1, 4),
)


@settings(max_examples=40)
@given(configs, st.integers(0, 2**32 - 1))
def test_equal_to_a_plain_governor_of_each_member(config, seed):
    rng = np.random.default_rng(seed)
    members = 5
    population = make_population(members, kind="mlp")
    governor = TolariaGovernor(population, CHANCE, config)
    score_E = rng.normal(size=members)
    governor.reset(score_E)
    plain = [PlainGovernor(config, CHANCE, float(s)) for s in score_E]
    for step in range(25):
        val_E = np.exp(rng.normal(0, 0.5, members)).round(1)  # ties and flat stretches
        val_E[rng.random(members) < 0.05] = rng.choice([np.nan, np.inf])
        train_E = np.where(rng.random(members) < 0.03, np.nan, 1.0)
        accuracy_E = rng.random(members) ** 2
        finite_E = rng.random(members) > 0.03
        score_E = np.where(rng.random(members) < 0.1, np.nan, rng.normal(size=members))
        verdict = governor.review(step, train_E, val_E, accuracy_E, finite_E, score_E)
        for e, one in enumerate(plain):
            reported = (train_E[e], val_E[e], accuracy_E[e], finite_E[e], score_E[e])
            panic, limit, strikes = one.review(step, *reported)
            assert verdict.panic_E[e] == panic
            assert verdict.rolled_back_E[e] == bool(panic)
            assert verdict.strikes_E[e] == strikes
            assert np.array_equal(verdict.loss_limit_E[e], np.float32(limit), equal_nan=True)
            assert verdict.snapshot_step_E[e] == one.step
            assert verdict.snapshot_score_E[e] == one.score
        fossilized_E = rng.random(members) < 0.1
        governor.after_actions(step, fossilized_E, score_E)
        for e, one in enumerate(plain):
            if fossilized_E[e] and np.isfinite(score_E[e]):
                one.snapshot(step, score_E[e])
        assert governor.snapshot_step_E.tolist() == [one.step for one in plain]
        assert governor.rollbacks_E.tolist() == [one.rollbacks for one in plain]
        assert governor.strikes_E.tolist() == [one.strikes for one in plain]


def test_verdicts_do_not_change_afterwards():
    _, governor = alone(snapshot_steps=1)
    verdict = tell(governor, 0)
    kept = (verdict.snapshot_step_E.tolist(), verdict.snapshot_score_E.tolist())
    tell(governor, 1, score=0.9)
    assert (verdict.snapshot_step_E.tolist(), verdict.snapshot_score_E.tolist()) == kept


@pytest.mark.parametrize("kind", ["transformer", "mlp", "batchnorm"])
def test_every_kind_of_host_can_be_set_back(kind):
    population = make_population(2, "vmap", kind=kind)
    made = KINDS[kind]
    governor = TolariaGovernor(population, 0.1)
    governor.reset(each(0.1, 2))
    fresh = dump(population)
    population.germinate([0, 1], made.slots[0], made.seed, BlendStyle.GATE)
    for step in range(3):
        population.begin_step()
        population.train_batch(*batch(2, seed=step, kind=kind))
        population.end_step(good_signals(population))
    trained = dump(population)
    tell(governor, 3, loss=[np.nan, 1.0])
    now = dump(population)
    for name in (n for n in fresh if n.startswith("host/")):
        assert torch.equal(now[name][0], fresh[name][0]), name
        assert torch.equal(now[name][1], trained[name][1]), name
    assert not torch.equal(trained["host/values"][0], fresh["host/values"][0])


# ---- contexts that change the data ---------------------------------------------------------


def rising_losses(config: GovernorConfig) -> tuple[TolariaGovernor, list[PanicKind]]:
    """A member that learns, then overfits: its loss rises tenfold, its accuracy stays."""
    governor = TolariaGovernor(make_population(2, "vmap"), CHANCE, config)
    governor.reset(each(0.1, 2))
    losses = [1.0] * 6 + np.linspace(1.0, 10.0, 20).tolist()
    found = [tell(governor, step, loss=loss).panic_E for step, loss in enumerate(losses)]
    return governor, [PanicKind(int(kind)) for panic_E in found for kind in panic_E]


def test_overfitting_is_no_failure_where_contexts_change_the_data():
    varied = replace(get_task_spec("digits_baseline"), context=VARIED)
    governor, found = rising_losses(default_governor(varied))
    assert set(found) == {PanicKind.NONE}
    assert tell(governor, 26, loss=np.nan).rolled_back_E.all()  # true failures still are
    unchanged = replace(varied, context=PLANNED)
    assert PanicKind.LOSS_SPIKE in rising_losses(default_governor(unchanged))[1]
