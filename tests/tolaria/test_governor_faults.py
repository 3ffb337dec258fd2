"""One member breaks down in the middle of training: it goes back, and no one else notices."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.kasmina import OptimConfig, Population
from esper.kasmina.saving.saving import population_tensors
from esper.kasmina.snapshot import finite_members
from esper.kasmina.training.losses import cross_entropy
from esper.leyline import BlendStyle, LifecycleOp, SeedStage
from esper.leyline.signals import GovernorVerdicts, PanicKind
from esper.tolaria.governor import FRESH_STEP, GovernorConfig, TolariaGovernor
from fault_support import spoil_next_gradient
from support import CLASSES, batch, good_signals, make_population

E, VICTIM = 4, 1
CHANCE = 1 / CLASSES
OTHERS = [e for e in range(E) if e != VICTIM]
COOLDOWN = 7
EXECUTORS = ["vmap", "loop"]


def dump(population: Population) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in population_tensors(population).items()}


def rows_agree(one: Population, two: Population, members: list[int], exact: bool) -> None:
    """These members are the same in two populations (NaN equals NaN)."""
    left, right = dump(one), dump(two)
    assert left.keys() == right.keys()
    for name in left:
        a, b = left[name][members].double(), right[name][members].double()
        tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(
            a, b, equal_nan=True, **tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


# ---- a small training loop with faults ----------------------------------------------------


@dataclass
class Loop:
    """Train, validate, review, act: what the engine does, in the order it does it."""

    executor: str
    fault: str = "none"
    fault_steps: tuple[int, ...] = ()
    optim: OptimConfig = field(default_factory=OptimConfig)
    config: GovernorConfig = field(
        # labels are noise: accuracy means nothing here
        default_factory=lambda: GovernorConfig(snapshot_steps=2, learnt_share=0.99)
    )
    verdicts: list[GovernorVerdicts] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.population = make_population(E, self.executor, optim=self.optim)
        self.population.loss = self.loss
        self.governor = TolariaGovernor(self.population, CHANCE, self.config)
        self.now = -1
        self.spoilt_target: Tensor | None = None
        self.snapshots: dict[int, dict[str, Tensor]] = {FRESH_STEP: dump(self.population)}
        self.governor.reset(np.full(E, 0.2))

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        loss_R = cross_entropy(logits, target)
        if self.spoilt_target is not None:  # executors give all rows at once, or a member's
            spoilt_R = (target == self.spoilt_target).all(dim=1)
            loss_R = loss_R * torch.where(spoilt_R, torch.nan, 1.0)
        return loss_R

    def run(self, steps: int) -> Loop:
        for _ in range(steps):
            self.step()
        return self

    def step(self) -> None:
        self.now += 1
        population = self.population
        broken = self.now in self.fault_steps
        population.begin_step()
        result = self.train_batch(broken)
        seen = population.evaluate(*batch(1, seed=77, size=20))
        val_loss = seen.loss_R.double().numpy()
        accuracy = seen.correct_R.double().numpy() / 20
        finite = result.host_grad_norm_E.isfinite() & finite_members(population)
        population.end_step(good_signals(population))
        score = accuracy.astype(np.float64)
        verdict = self.governor.review(
            self.now,
            result.loss_E.double().numpy(),
            val_loss,
            accuracy,
            finite.numpy(),
            score,
        )
        self.verdicts.append(verdict)
        self.snapshots[self.now] = dump(population)
        self.governor.after_actions(self.now, self.act(), score)

    def train_batch(self, broken: bool):
        """The batch of a step; with a fault in the victim, if it is broken."""
        x, y = batch(E, seed=self.now)
        host = self.population.network.host.flat_EP
        if broken and self.fault == "weights":
            host.detach()[VICTIM, 3] = float("nan")
        elif broken and self.fault == "data":
            x[VICTIM] = float("nan")
        elif broken and self.fault == "gradients":
            spoil_next_gradient(self.population, VICTIM, 3, torch.inf)
        self.spoilt_target = y[VICTIM] if broken and self.fault == "loss" else None
        result = self.population.train_batch(x, y)
        self.spoilt_target = None  # the validation is whole
        return result

    def act(self) -> np.ndarray:
        """A script that grows, in every slot, whatever the gates let through."""
        population = self.population
        legal = population.lifecycle.legal_ops()
        holding = legal[..., LifecycleOp.FOSSILIZE]
        holding[:, 1] = False  # one slot is never made permanent
        forward = legal[..., LifecycleOp.ADVANCE]
        if forward.any():
            population.advance(*np.nonzero(forward))
        if holding.any():
            population.fossilize(*np.nonzero(holding))
        for s, style in ((0, BlendStyle.GATE), (1, BlendStyle.ADD)):
            ready = np.flatnonzero(legal[:, s, LifecycleOp.GERMINATE])
            if self.now >= s and ready.size:
                population.germinate(ready, s, "conv_light", style)
        return holding.any(axis=1)


FIRST, MIDDLE, LAST = 0, 5, 9
FAULTS = ["weights", "gradients", "data", "loss"]


@pytest.fixture(scope="module")
def undisturbed():
    """The same runs without a fault."""
    return {executor: Loop(executor).run(LAST + 1) for executor in EXECUTORS}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("when", [FIRST, MIDDLE, LAST])
def test_one_breaks_down_and_no_one_else_notices(undisturbed, executor, fault, when):
    loop = Loop(executor, fault, (when,)).run(LAST + 1)
    verdict = loop.verdicts[when]
    # Broken gradients led to an update that was validated: the loss shows it first.
    assert verdict.panic_E[VICTIM] == PanicKind.NON_FINITE_LOSS
    assert verdict.rolled_back_E.tolist() == [False, True, False, False]
    assert loop.governor.rollbacks_E.tolist() == [0, 1, 0, 0]
    rows_agree(loop.population, undisturbed[executor].population, OTHERS, executor == "loop")
    for name in ("panic_E", "strikes_E", "snapshot_step_E", "seeds_pruned_E"):
        for mine, plain in zip(loop.verdicts, undisturbed[executor].verdicts, strict=True):
            assert np.array_equal(getattr(mine, name)[OTHERS], getattr(plain, name)[OTHERS])
    assert finite_members(loop.population).all()


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("when", [FIRST, MIDDLE, LAST])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_weights_are_those_of_the_snapshot(executor, when, kind):
    loop = Loop(executor, "weights", (when,), OptimConfig(kind=kind)).run(when + 1)
    verdict = loop.verdicts[-1]
    taken = int(verdict.snapshot_step_E[VICTIM])
    assert taken == {FIRST: FRESH_STEP, MIDDLE: 4, LAST: 8}[when]
    then, now = loop.snapshots[taken], loop.snapshots[when]
    names = [n for n in now if n.startswith("host/")]
    assert len(names) >= 2
    for name in names:
        before = then.get(name, torch.zeros_like(now[name]))
        assert torch.equal(now[name][VICTIM], before[VICTIM]), name
    if taken >= 0:
        assert verdict.snapshot_score_E[VICTIM] == pytest.approx(
            float(then_score(loop, taken)), abs=1e-12
        )
    else:
        assert verdict.snapshot_score_E[VICTIM] == 0.2


def then_score(loop: Loop, step: int) -> float:
    """The victim's score at a step, from a run that stopped there."""
    other = Loop(loop.executor, optim=loop.optim).run(step + 1)
    return float(other.governor.snapshot_score_E[VICTIM])


def test_the_script_of_these_tests_grows():
    loop = Loop("vmap").run(LAST + 1)
    stages = loop.population.lifecycle.stage_ES
    assert (stages[:, 0] == SeedStage.FOSSILIZED).all()
    assert (stages[:, 1] == SeedStage.HOLDING).all()
    assert all((v.panic_E == PanicKind.NONE).all() for v in loop.verdicts)
    loop = Loop("vmap", "weights", (LAST,)).run(LAST + 1)
    assert loop.verdicts[-1].seeds_pruned_E.tolist() == [0, 1, 0, 0]
    stages = loop.population.lifecycle.stage_ES
    assert stages[VICTIM, 0] == SeedStage.FOSSILIZED, "it is in the snapshot"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_data_that_stay_broken_do_not_stop_the_run(undisturbed, executor):
    """It fails again at every step: back to a finite snapshot every time, and on."""
    every = tuple(range(MIDDLE, LAST + 1))
    loop = Loop(executor, "data", every).run(LAST + 1)
    assert loop.governor.rollbacks_E[VICTIM] == len(every)
    assert {int(v.snapshot_step_E[VICTIM]) for v in loop.verdicts[MIDDLE:]} == {4}
    assert finite_members(loop.population).all()
    rows_agree(loop.population, undisturbed[executor].population, OTHERS, executor == "loop")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_member_set_back_trains_on_as_its_snapshot_would(executor):
    """No trace of the breakdown is left: the same batches lead to the same weights."""
    loop = Loop(executor, "weights", (LAST,)).run(LAST + 1)
    population, taken = loop.population, int(loop.verdicts[-1].snapshot_step_E[VICTIM])
    assert taken == 8
    other = Loop(executor).run(taken + 1)
    mask = np.zeros((E, 3), dtype=np.bool_)
    mask[VICTIM] = True
    other.population.lifecycle.force_remove(mask)
    x, y = batch(E, seed=99)
    for one in (population, other.population):
        one.begin_step()
        one.train_batch(x, y)
    left, right = dump(population), dump(other.population)
    for name in ("host/values", "bank/r0c0/conv_light/values", "gate/r0c0/values"):
        assert torch.allclose(left[name][VICTIM], right[name][VICTIM], atol=1e-6), name


def test_uprooted_seeds_serve_the_full_cooldown_in_the_loop():
    loop = Loop("vmap", "weights", (3,)).run(4)
    life = loop.population.lifecycle
    assert life.stage_ES[VICTIM, 0] == SeedStage.PRUNED
    germinated = []
    for _ in range(COOLDOWN + 1):
        loop.step()
        germinated.append(life.stage_ES[VICTIM, 0] == SeedStage.GERMINATED)
    assert germinated.index(True) == COOLDOWN - 1, "the action of the step in which it woke"
    assert life.births_ES[VICTIM, 0] == 2
