"""One growth run: populations of the same hosts, trained side by side, one of them grown.

The gardener follows a script. It asks the lifecycle what is legal and acts only there; whether a
seed stays is decided by what its absence costs on `val_control`.

Shape letters: E members, S slots, R rows, B batch, M batches of a step, N images, T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from esper.kasmina import CNNHost, Population, PopulationConfig
from esper.kasmina.gates import gate_signals
from esper.kasmina.training import TrainBatch
from esper.leyline.actions import LifecycleOp
from esper.leyline.arrays import Bools, Codes, Floats, Ints
from esper.leyline.signals import GateSignals
from esper.leyline.stages import LIVE_STAGES, SeedStage
from esper.scripts.growth_config import BLUEPRINTS, Arm, GrowDigits
from esper.tasks.digits import CLASSES, DigitsPart, DigitsSplit
from esper.tasks.order import epoch_order
from esper.tolaria.runtime import parse_device


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Images and labels on the device."""

    x_NCHW: Tensor
    y_N: Tensor

    @classmethod
    def of(cls, split: DigitsSplit, part: DigitsPart, device: torch.device) -> Examples:
        """A part of the split, normalised."""
        x_NCHW = torch.from_numpy(split.normalised(part)).to(device)
        return cls(x_NCHW, torch.from_numpy(part.labels_N).to(device))

    def __len__(self) -> int:
        return len(self.y_N)


@dataclass(frozen=True, slots=True, eq=False)
class DigitsOnDevice:
    """The task as the device holds it."""

    train: Examples
    val_control: Examples
    val_score: Examples
    test: Examples

    @classmethod
    def of(cls, split: DigitsSplit, device: str) -> DigitsOnDevice:
        """All parts of a split."""
        place = parse_device(device)
        parts = (split.train, split.val_control, split.val_score, split.test)
        return cls(*(Examples.of(split, part, place) for part in parts))


@dataclass(frozen=True, slots=True, eq=False)
class ArmResult:
    """What became of one population."""

    train_loss_TE: Floats
    """Mean loss on the batches of each step."""
    val_score_TE: Floats
    """Accuracy on `val_score` after each step."""
    test_E: Floats
    """Accuracy on `test` after the last step."""
    parameters_E: Ints
    macs_E: Ints
    """Multiply-accumulates per image."""


@dataclass(frozen=True, slots=True, eq=False)
class SeedLives:
    """What became of the seeds of the grown population."""

    slots: tuple[str, ...]
    stage_TES: Codes
    """`SeedStage` while each step trained."""
    leaving_TES: Bools
    """A pruned seed whose alpha was falling."""
    final_ES: Codes
    """`SeedStage` after the last action."""
    pruned_ES: Bools
    """Rejected when it was judged."""
    contribution_ES: Floats
    """What it was worth on `val_control` when it was judged; NaN: never judged."""
    contribution_se_ES: Floats


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """All populations of one run seed."""

    seed: int
    arms: Mapping[Arm, ArmResult]
    lives: SeedLives


class Gardener:
    """The script: when seeds are germinated, advanced, and judged."""

    def __init__(self, config: GrowDigits, population: Population) -> None:
        self.config = config
        self.population = population
        shape = population.lifecycle.stage_ES.shape
        self.pruned_ES: Bools = np.zeros(shape, dtype=np.bool_)
        self.contribution_ES: Floats = np.full(shape, np.nan, dtype=np.float32)
        self.contribution_se_ES: Floats = np.full(shape, np.nan, dtype=np.float32)

    def act(self, step: int) -> None:
        """What is done after step `step` (counted from 0) has trained and was validated."""
        done = step + 1
        if done == self.config.host_steps:
            self.germinate()
        if done >= self.config.host_steps + self.config.incubate_steps:
            self.advance()
        self.judge()

    def germinate(self) -> None:
        """A seed into every slot."""
        everyone = np.arange(self.population.members)
        for slot in self.population.slots:
            self.population.germinate(
                everyone, slot, self.config.blueprint, tempo=self.config.blend_steps
            )

    def advance(self) -> None:
        """Blend every seed whose gate is open."""
        may = self.population.lifecycle.legal_ops()[..., LifecycleOp.ADVANCE]
        if may.any():
            members, slots = np.nonzero(may)
            self.population.advance(members, slots)

    def judge(self) -> None:
        """Make permanent what G5 lets through, prune the rest, once probation is over."""
        life = self.population.lifecycle
        served = life.steps_in_stage_ES >= self.config.probation_steps
        due = (life.stage_ES == SeedStage.HOLDING) & served
        legal = life.legal_ops()
        keep = due & legal[..., LifecycleOp.FOSSILIZE]
        drop = due & ~keep & legal[..., LifecycleOp.PRUNE]
        judged = keep | drop
        self.contribution_ES[judged] = life.signals.contribution_ES[judged]
        self.contribution_se_ES[judged] = life.signals.contribution_se_ES[judged]
        self.pruned_ES |= drop
        if keep.any():
            members, slots = np.nonzero(keep)
            self.population.fossilize(members, slots)
        if drop.any():
            members, slots = np.nonzero(drop)
            self.population.prune(members, slots, speed=self.config.prune_steps)


@dataclass(slots=True)
class Diary:
    """What was seen of a population, step by step."""

    train_loss: list[Floats] = field(default_factory=list)
    val_score: list[Floats] = field(default_factory=list)
    stages: list[Codes] = field(default_factory=list)
    leaving: list[Bools] = field(default_factory=list)


class ArmRun:
    """One population under one treatment."""

    def __init__(self, config: GrowDigits, arm: Arm, seed: int, data: DigitsOnDevice) -> None:
        self.config = config
        self.arm = arm
        self.data = data
        self.population = _population(config, seed)
        self.gardener = Gardener(config, self.population)
        self.diary = Diary()
        if arm is Arm.FULL:
            for slot in self.population.slots:
                self.population.plant(np.arange(config.members), slot, config.blueprint)

    def step(self, step: int, order_EMB: Tensor) -> None:
        """Train on the batches of one step, validate, pass the gates, act."""
        population, life = self.population, self.population.lifecycle
        rate = self.config.rate(self.arm).at(step, self.config.steps)
        population.set_rates(rate, rate)
        population.begin_step()
        self.diary.stages.append(life.stage_ES.copy())
        self.diary.leaving.append(life.pruning_ES.copy())
        train = self.data.train
        batches = [
            population.train_batch(train.x_NCHW[index_EB], train.y_N[index_EB])
            for index_EB in order_EMB.unbind(1)
        ]
        self.diary.val_score.append(accuracy(population, self.data.val_score))
        contribution = leave_one_out(population, self.data.val_control)
        signals = step_signals(population, batches, contribution)
        self.diary.train_loss.append(signals.host_loss_E)
        population.end_step(signals)
        if self.arm is Arm.GROWN:
            self.gardener.act(step)

    def result(self) -> ArmResult:
        """The end of the run; this is the one time the test images are read."""
        return ArmResult(
            train_loss_TE=np.stack(self.diary.train_loss),
            val_score_TE=np.stack(self.diary.val_score),
            test_E=accuracy(self.population, self.data.test),
            parameters_E=self.population.parameters_E(),
            macs_E=self.population.macs_E(),
        )

    def lives(self) -> SeedLives:
        """What became of the seeds."""
        return SeedLives(
            slots=self.population.slots,
            stage_TES=np.stack(self.diary.stages),
            leaving_TES=np.stack(self.diary.leaving),
            final_ES=self.population.lifecycle.stage_ES.copy(),
            pruned_ES=self.gardener.pruned_ES,
            contribution_ES=self.gardener.contribution_ES,
            contribution_se_ES=self.gardener.contribution_se_ES,
        )


def _population(config: GrowDigits, seed: int) -> Population:
    """Hosts that see single pixels only (1x1 kernels), and slots in which more can be grown."""
    enabled = tuple(dict.fromkeys((*BLUEPRINTS, config.blueprint)))
    population = Population(
        lambda: CNNHost(
            num_classes=CLASSES, in_channels=1, n_blocks=3, base_channels=2, kernel_size=1
        ),
        config.slots,
        enabled,
        config.members,
        seed,
        config.device,
        PopulationConfig(executor=config.executor),
    )
    for slot in range(len(population.slots)):
        population.network.check_fit(slot, enabled.index(config.blueprint))
    return population


def batch_order(config: GrowDigits, seed: int, images: int, device: torch.device) -> Tensor:
    """`order_TEMB`: which training images each member sees in each batch of each step."""
    shape = (config.members, config.steps, config.batches, config.batch_size)
    order_EL = epoch_order(seed, config.members, images, int(np.prod(shape[1:])))
    return torch.from_numpy(order_EL.reshape(shape)).to(device).transpose(0, 1)


def accuracy(population: Population, examples: Examples) -> Floats:
    """Share of right answers of every member as it stands."""
    correct_E = population.evaluate(examples.x_NCHW[None], examples.y_N[None]).correct_R
    return (correct_E / len(examples)).cpu().numpy().astype(np.float32)


def leave_one_out(population: Population, examples: Examples) -> tuple[Floats, Floats]:
    """Contribution of every seed on probation and its standard error, `[E, S]` each.

    Accuracy with the seed minus accuracy with its alpha at 0; the error is paired over images.
    """
    life = population.lifecycle
    contribution_ES = np.full(life.stage_ES.shape, np.nan, dtype=np.float32)
    error_ES = contribution_ES.copy()
    member_K, slot_K = np.nonzero(life.stage_ES == SeedStage.HOLDING)
    if member_K.size == 0:
        return contribution_ES, error_ES
    without_KS = life.alpha_ES[member_K]
    without_KS[np.arange(len(slot_K)), slot_K] = 0.0
    rows_R = np.concatenate([np.arange(population.members), member_K])
    alpha_RS = np.concatenate([life.alpha_ES, without_KS])
    with torch.no_grad():
        logits_RNC = population.forward(examples.x_NCHW[None], rows_R, alpha_RS)
    right_RN = (logits_RNC.argmax(dim=-1) == examples.y_N).cpu().numpy().astype(np.float64)
    gain_KN = right_RN[member_K] - right_RN[population.members :]
    contribution_ES[member_K, slot_K] = gain_KN.mean(axis=1)
    error_ES[member_K, slot_K] = gain_KN.std(axis=1, ddof=1) / np.sqrt(len(examples))
    return contribution_ES, error_ES


def step_signals(
    population: Population, batches: Sequence[TrainBatch], contribution: tuple[Floats, Floats]
) -> GateSignals:
    """Means over the batches of a step, as the gates read them."""

    def mean(name: str) -> Floats:
        stacked = torch.stack([getattr(batch, name) for batch in batches])
        values: Floats = stacked.mean(dim=0).cpu().numpy()  # waits for the device, once a name
        return values

    stages = population.lifecycle.stage_ES, population.trainer.training()
    losses = mean("loss_E"), mean("shadow_loss_ES")
    return gate_signals(*stages, *losses, mean("grad_norm_ES"), *contribution)


def seeds_by_stage(stage_ES: Codes) -> dict[SeedStage, int]:
    """How many seeds stand in each stage."""
    occupied = (*sorted(LIVE_STAGES), SeedStage.FOSSILIZED)
    return {stage: int((stage_ES == stage).sum()) for stage in occupied}


Watch = Callable[[Mapping[Arm, float], Mapping[SeedStage, int]], None]
"""Told after each step: mean held-out accuracy of each population, seeds by stage."""


def run_growth(config: GrowDigits, seed: int, data: DigitsOnDevice, watch: Watch) -> RunResult:
    """Train all populations of one run seed; they see the same initial hosts and batches."""
    runs = {arm: ArmRun(config, arm, seed, data) for arm in config.arms}
    order_TEMB = batch_order(config, seed, len(data.train), data.train.y_N.device)
    for step, order_EMB in enumerate(order_TEMB.unbind(0)):
        for run in runs.values():
            run.step(step, order_EMB)
        score = {arm: float(run.diary.val_score[-1].mean()) for arm, run in runs.items()}
        watch(score, seeds_by_stage(runs[Arm.GROWN].population.lifecycle.stage_ES))
    results = {arm: run.result() for arm, run in runs.items()}
    return RunResult(seed, results, runs[Arm.GROWN].lives())
