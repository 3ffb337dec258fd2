"""What a comparison is: the settings all policies share, what each came to, and what that says.

Shape letters: N hosts, S slots, G populations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from esper.leyline.arrays import ArrayStruct, Doubles, Ints
from esper.leyline.prices import ScoreConstants
from esper.leyline.signals import NO_BLUEPRINT
from esper.leyline.statistics import (
    Estimate,
    PairedDifference,
    improvement_estimate,
    interquartile_estimate,
    paired_difference,
    student_estimate,
)
from esper.tasks.spec import OptimSettings


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """What all policies of a comparison share; numbers under other settings are not mixed in."""

    task: str
    """What the task calls itself."""
    data: str
    """`files`, or `synthetic`."""
    seeds: int
    """n: hosts of each policy."""
    first_seed: int
    """Run seed of the first population."""
    envs: int
    """Hosts of a full population."""
    slots: tuple[str, ...]
    """Where seeds may be grown."""
    blueprints: tuple[str, ...]
    """What policies that do not learn may grow."""
    episode_length: int
    """Steps from a fresh host to the end."""
    batches_per_step: int
    """Train batches in a step."""
    batch_size: int
    """Samples in a batch."""
    rent: float
    """Multiple of the task's own score constants."""
    score: ScoreConstants
    """What growth costs, rent included."""
    optim: OptimSettings
    """How hosts learn."""
    augmentation: str
    """What is done to training images."""
    device: str
    """Kind of device: cpu, cuda."""
    profile: str
    """exact or fast."""
    executor: str
    """As asked for."""
    precision: str
    """As asked for."""
    esper: str
    """Version."""
    torch: str
    """Version."""
    kernels: str = "auto"
    """As asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyResult(ArrayStruct):
    """What became of the hosts of one policy."""

    seed_N: Ints
    """Run seed of each host."""
    member_N: Ints
    """Its number in its population; seed and member say which host it is."""
    score_N: Doubles
    """On `val_score`, rent included."""
    accuracy_N: Doubles
    """On `val_score`."""
    test_N: Doubles
    """Accuracy on the test data."""
    parameters_N: Ints
    """Of the network that would be exported."""
    macs_N: Ints
    """Multiply-accumulates of that network for one sample."""
    flops_ratio_N: Doubles
    """Training FLOPs over those of the host alone."""
    germinated_N: Ints
    fossilized_N: Ints
    pruned_N: Ints
    rollbacks_N: Ints
    blueprint_NS: Ints
    """What would be exported: blueprint per slot, -1 where there is none."""
    slots: tuple[str, ...]
    """Names of the slots."""
    blueprints: tuple[str, ...]
    """Names of the blueprints."""
    seconds_G: Doubles
    """Wall time of the episodes of each population, set-up left out."""
    host_params: int
    host_macs: int
    executor: str
    """The one that ran."""
    device: str
    """What it ran on, in words."""

    @property
    def hosts(self) -> int:
        """n."""
        return len(self.score_N)

    @property
    def score_test_N(self) -> Doubles:
        """The score with test accuracy in place of that on `val_score`.

        Rewards, score constants and checkpoints are chosen on `val_score`; nothing is chosen here.
        """
        return self.score_N - self.accuracy_N + self.test_N

    @property
    def seconds_per_host(self) -> float:
        """Wall time of all populations over their hosts, which share it."""
        return float(self.seconds_G.sum()) / self.hosts

    def topologies(self) -> Counter[str]:
        """What would be exported, in words, and how often."""
        found: Counter[str] = Counter()
        for kind_S in self.blueprint_NS:
            seeds = [
                f"{slot}={self.blueprints[kind]}"
                for slot, kind in zip(self.slots, kind_S, strict=True)
                if kind != NO_BLUEPRINT
            ]
            found[",".join(seeds) or "the host alone"] += 1
        return found


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of every host."""

    name: str
    """In the records."""
    words: str
    """For people."""
    field: str
    """Where `PolicyResult` has it."""
    higher_is_better: bool
    form: str
    """How a value is written."""
    difference: str
    """How a difference is written."""


METRICS: Final = (
    Metric("score", "score", "score_N", True, "{:.4f}", "{:+.4f}"),
    Metric("score_test", "score on test", "score_test_N", True, "{:.4f}", "{:+.4f}"),
    Metric("test", "accuracy, test", "test_N", True, "{:.2%}", "{:+.2%}"),
    Metric("accuracy", "accuracy, val_score", "accuracy_N", True, "{:.2%}", "{:+.2%}"),
    Metric("parameters", "parameters", "parameters_N", False, "{:,.0f}", "{:+,.0f}"),
    Metric("macs", "MACs", "macs_N", False, "{:,.0f}", "{:+,.0f}"),
    Metric("flops_ratio", "training FLOPs / host's", "flops_ratio_N", False, "{:.3f}", "{:+.3f}"),
)
"""What is compared, in the order it is shown. Wall time is shared by the hosts of a population: one
number for each, without an interval."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One metric of one policy, and how it stands to the reference."""

    metric: str
    mean: Estimate
    """Interval of Student's t."""
    iqm: Estimate
    """Interquartile mean, bootstrap interval."""
    difference: PairedDifference | None
    """Minus the reference, host by host; None for the reference itself."""
    improvement: Estimate | None
    """Chance that a host of this policy is better than one of the reference."""


@dataclass(frozen=True, slots=True, eq=False)
class Contestant:
    """A policy, its numbers and what they say."""

    label: str
    policy: str
    """In words."""
    result: PolicyResult
    standings: tuple[Standing, ...]
    """In the order of `METRICS`."""

    def standing(self, metric: str) -> Standing:
        """That of one metric."""
        return next(found for found in self.standings if found.metric == metric)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Policies on the same hosts; the first is the reference."""

    settings: ComparisonSettings
    contestants: tuple[Contestant, ...]

    def __getitem__(self, label: str) -> Contestant:
        return {found.label: found for found in self.contestants}[label]


def judge(
    settings: ComparisonSettings, results: Sequence[tuple[str, str, PolicyResult]]
) -> Comparison:
    """The comparison of (label, policy, result), each held against the first."""
    reference = results[0][2]
    contestants = [
        Contestant(label, policy, result, _standings(result, reference if place else None))
        for place, (label, policy, result) in enumerate(results)
    ]
    return Comparison(settings, tuple(contestants))


def _standings(result: PolicyResult, reference: PolicyResult | None) -> tuple[Standing, ...]:
    return tuple(_standing(metric, result, reference) for metric in METRICS)


def _standing(metric: Metric, result: PolicyResult, reference: PolicyResult | None) -> Standing:
    ours_N = _values(metric, result)
    mean, iqm = student_estimate(ours_N), interquartile_estimate(ours_N)
    if reference is None:
        return Standing(metric.name, mean, iqm, None, None)
    theirs_N = _values(metric, reference)
    sign = 1.0 if metric.higher_is_better else -1.0
    improvement = improvement_estimate(sign * ours_N, sign * theirs_N)
    return Standing(metric.name, mean, iqm, paired_difference(ours_N, theirs_N), improvement)


def _values(metric: Metric, result: PolicyResult) -> Doubles:
    return np.asarray(getattr(result, metric.field), dtype=np.float64)
