"""Data of a comparison: shared settings, results per policy and their statistics.

Shape letters: N hosts, S slots, G populations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from esper.leyline.arrays import ArrayStruct, Doubles, Ints
from esper.leyline.codec import LATER
from esper.leyline.context import FIXED, ContextSpec
from esper.leyline.errors import shorten
from esper.leyline.prices import ScoreConstants
from esper.leyline.signals import NO_BLUEPRINT
from esper.leyline.statistics import (
    Estimate,
    PairedDifference,
    group_means,
    improvement_estimate,
    interquartile_estimate,
    paired_difference,
    student_estimate,
)
from esper.tasks.spec import OptimSettings
from esper.tolaria.round_results import HostContexts


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """Settings shared by all policies of a comparison; results of other settings are not mixed."""

    task: str
    """Task name."""
    data: str
    """`files`, or `synthetic`."""
    seeds: int
    """n: hosts per policy."""
    first_seed: int
    """Run seed of the first population."""
    envs: int
    """Hosts per population."""
    slots: tuple[str, ...]
    """Slots of the host."""
    blueprints: tuple[str, ...]
    """Blueprints of policies that do not learn."""
    episode_length: int
    """Steps per episode."""
    batches_per_step: int
    """Training batches per step."""
    batch_size: int
    """Samples per batch."""
    rent: float
    """Factor on the task's score constants."""
    score: ScoreConstants
    """Score constants, with `rent` applied."""
    optim: OptimSettings
    """Optimiser settings of the hosts."""
    augmentation: str
    """Augmentation of training images."""
    device: str
    """Device type: cpu, cuda."""
    profile: str
    """exact or fast."""
    executor: str
    """As configured."""
    precision: str
    """As configured."""
    esper: str
    """Version."""
    torch: str
    """Version."""
    kernels: str = "auto"
    """As configured."""
    context: ContextSpec = FIXED
    """Distribution of contexts."""
    host: str = field(default="", metadata=LATER)
    """Shape of the host, if another than the task's."""
    task_file: str = field(default="", metadata=LATER)
    """SHA-256 of the file of a task of the user's."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchCompute(ArrayStruct):
    """Compute of a search."""

    compute_N: Doubles
    """Training compute of all members of a host, in runs of the host."""


@dataclass(frozen=True, slots=True, eq=False)
class Restarts(ArrayStruct):
    """Restarts of hosts whose actions have RESTART."""

    count_N: Ints


@dataclass(frozen=True, slots=True, eq=False)
class PolicyResult(ArrayStruct):
    """Results of the hosts of one policy."""

    seed_N: Ints
    """Run seed of each host."""
    member_N: Ints
    """Index in its population; seed and member identify a host."""
    score_N: Doubles
    """Score on `val_score`, net of rent."""
    accuracy_N: Doubles
    """Accuracy on `val_score`."""
    test_N: Doubles
    """Accuracy on the test data."""
    parameters_N: Ints
    """Parameters of the network that would be exported."""
    macs_N: Ints
    """MACs of that network per sample."""
    flops_ratio_N: Doubles
    """Training FLOPs over those of the host."""
    germinated_N: Ints
    fossilized_N: Ints
    pruned_N: Ints
    rollbacks_N: Ints
    blueprint_NS: Ints
    """Blueprint index per slot of the network that would be exported; -1 for none."""
    slots: tuple[str, ...]
    """Names of the slots."""
    blueprints: tuple[str, ...]
    """Names of the blueprints."""
    seconds_G: Doubles
    """Wall time of each population's episode, excluding set-up."""
    host_params: int
    host_macs: int
    executor: str
    """Executor that was used."""
    device: str
    """Device name."""
    contexts: HostContexts | None = None
    """Contexts of the hosts; None: all were fixed."""
    search: SearchCompute | None = None
    """Compute of a search over several members per host; None for other policies."""
    restarts: Restarts | None = field(default=None, metadata=LATER)
    """None where RESTART is not among the actions."""

    @property
    def compute_N(self) -> Doubles:
        """Training compute of a host in runs of the host; of all its members for a search."""
        return self.flops_ratio_N if self.search is None else self.search.compute_N

    @property
    def hosts(self) -> int:
        """n."""
        return len(self.score_N)

    @property
    def score_test_N(self) -> Doubles:
        """Score with test accuracy instead of accuracy on `val_score`.

        The rent is the same, at the host's own price. Rewards, score constants and checkpoints are
        selected on `val_score`; nothing is selected on test.
        """
        return self.score_N - self.accuracy_N + self.test_N

    @property
    def seconds_per_host(self) -> float:
        """Wall time of all populations divided by the number of hosts."""
        return float(self.seconds_G.sum()) / self.hosts

    def by_draw(self, values_N: Doubles, context: ContextSpec) -> Doubles:
        """The values; where hosts share draws of budget and data, their mean over each draw."""
        return group_means(values_N, self.seed_N) if context.varies_rounds else values_N

    def topologies(self) -> Counter[str]:
        """Count the topologies that would be exported."""
        found: Counter[str] = Counter()
        for kind_S in self.blueprint_NS:
            seeds = [
                f"{slot}={self.blueprints[kind]}"
                for slot, kind in zip(self.slots, kind_S, strict=True)
                if kind != NO_BLUEPRINT
            ]
            found[",".join(seeds) or "the host"] += 1
        return found


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of every host."""

    name: str
    """Name in compare.json."""
    words: str
    """Name in tables."""
    field: str
    """Attribute of `PolicyResult`."""
    higher_is_better: bool


METRICS: Final = (
    Metric("score", "score", "score_N", True),
    Metric("score_test", "score on test", "score_test_N", True),
    Metric("test", "accuracy, test", "test_N", True),
    Metric("accuracy", "accuracy, val_score", "accuracy_N", True),
    Metric("parameters", "parameters", "parameters_N", False),
    Metric("macs", "MACs", "macs_N", False),
    Metric("flops_ratio", "training FLOPs / host's", "flops_ratio_N", False),
    Metric("compute", "training FLOPs with search", "compute_N", False),
)
"""Compared metrics, in display order. Wall time is shared by the hosts of a population, so it has
no interval."""


@dataclass(frozen=True, slots=True)
class PolicyDone:
    """A policy that ran on all its hosts, and is saved; given to `on_round`."""

    label: str
    policy: str
    """Canonical text of the policy."""
    round: int
    """Results in the folder before this one."""
    done: int
    """Policies that ran so far, this one included."""
    policies: int
    """Policies to run, without those whose results are reused."""
    hosts: int
    seconds: float
    """Wall time of its episodes."""
    means: Mapping[str, float]
    """Mean of each of `METRICS` as in the tables, by its name."""

    def figures(self) -> dict[str, float]:
        """Its means as `METRIC/POLICY`, for trackers, which take few special characters."""
        label = shorten(re.sub(r"[^A-Za-z0-9_.:-]+", "-", self.label).strip("-."), 200)
        return {f"{name}/{label}": value for name, value in self.means.items()}


def metric_means(result: PolicyResult, context: ContextSpec) -> dict[str, float]:
    """Mean of each of `METRICS` by its name: over draws where hosts share them."""
    return {
        metric.name: float(result.by_draw(_values(metric, result), context).mean())
        for metric in METRICS
    }


@dataclass(frozen=True, slots=True)
class _Standing:
    """Statistics of one metric of one policy, relative to the reference."""

    metric: str
    mean: Estimate
    """Mean with Student t interval."""
    iqm: Estimate
    """Interquartile mean with bootstrap interval."""
    difference: PairedDifference | None
    """Paired difference to the reference; None for the reference itself."""
    improvement: Estimate | None
    """Probability that a host of this policy is better than one of the reference."""


@dataclass(frozen=True, slots=True, eq=False)
class ComparedPolicy:
    """A policy with its results and statistics."""

    label: str
    policy: str
    """Canonical text of the policy."""
    result: PolicyResult
    standings: tuple[_Standing, ...]
    """In the order of `METRICS`."""

    def standing(self, metric: str) -> _Standing:
        """Statistics of one metric."""
        return next(found for found in self.standings if found.metric == metric)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Compared policies; the first is the reference."""

    settings: ComparisonSettings
    policies: tuple[ComparedPolicy, ...]

    @property
    def draws(self) -> int:
        """Populations of a policy, each with a draw of budget and data."""
        return len(np.unique(self.policies[0].result.seed_N))

    def __getitem__(self, label: str) -> ComparedPolicy:
        return {found.label: found for found in self.policies}[label]


def compare_results(
    settings: ComparisonSettings, results: Sequence[tuple[str, str, PolicyResult]]
) -> Comparison:
    """Compare (label, policy, result) triples with the first as reference."""
    policies = []
    for place, (label, policy, result) in enumerate(results):
        reference = results[0][2] if place else None
        found = tuple(_standing(it, result, reference, settings.context) for it in METRICS)
        policies.append(ComparedPolicy(label, policy, result, found))
    return Comparison(settings, tuple(policies))


def _standing(
    metric: Metric, result: PolicyResult, reference: PolicyResult | None, context: ContextSpec
) -> _Standing:
    ours_N = result.by_draw(_values(metric, result), context)
    mean, iqm = student_estimate(ours_N), interquartile_estimate(ours_N)
    if reference is None:
        return _Standing(metric.name, mean, iqm, None, None)
    theirs_N = reference.by_draw(_values(metric, reference), context)
    sign = 1.0 if metric.higher_is_better else -1.0
    improvement = improvement_estimate(sign * ours_N, sign * theirs_N)
    return _Standing(metric.name, mean, iqm, paired_difference(ours_N, theirs_N), improvement)


def _values(metric: Metric, result: PolicyResult) -> Doubles:
    return np.asarray(getattr(result, metric.field), dtype=np.float64)
