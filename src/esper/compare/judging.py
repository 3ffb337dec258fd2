"""Evaluates a controller and baselines for one episode on the same fresh members.

Each policy runs with its own settings (`policies.py`), so the numbers equal those of
`esper compare` on the same hosts. The score on test is the score with the accuracy on the task's
test data, which the engine measures at the end of an episode (tolaria/validation.py: `run_test`).

Shape letters: E members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from esper.compare.config import HOSTS_PER_CONTEXT, Populations, split_hosts
from esper.compare.host_runs import HostRun, HostRunner, draw_limits
from esper.compare.policies import (
    Limits,
    PolicyEntry,
    baseline_entry,
    controller_entry,
    search_entry,
    static_final_entry,
)
from esper.karn.heartbeat import phase
from esper.leyline.arrays import Doubles, Ints
from esper.leyline.codec import Json, to_json
from esper.leyline.seeds import EVALUATION_SEEDS
from esper.leyline.statistics import group_means, t_interval
from esper.simic.agent.agent import PPOAgent
from esper.simic.client import policy_spec
from esper.simic.rewards.factory import make_reward
from esper.simic.training.config import TrainingConfig
from esper.storage.run_files import JUDGED_LEARNER, JUDGED_SIMPLE, JUDGED_STATIC
from esper.tamiyo.grammar import ParsedPolicy, parse
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.round_results import RoundResult, RunResult, make_run_result
from esper.tolaria.runtime import parse_device

BASELINES: Final = JUDGED_SIMPLE
EVALUATION_SEED: Final = EVALUATION_SEEDS[0]
"""Seed of the fresh members."""
LEARNED: Final = JUDGED_LEARNER
SAMPLED: Final = "ppo, sampled"
"""The controller, sampled without exploration."""
UNTRAINED: Final = "untrained"
"""The controller as it began, greedy: the same settings and first weights, no learning."""
STATIC: Final = JUDGED_STATIC
SEARCH: Final = "asha:2"
"""The best of a few topologies; more would take most of the time of `make run`."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRun:
    """One episode of a policy on the fresh members."""

    result: RoundResult
    compute_E: Doubles
    """Training compute of each member in runs of the host, search included."""
    blueprints: tuple[str, ...]
    """Blueprint names, by the indices in the outcome."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Results of all policies on the same fresh members."""

    by_policy: dict[str, PolicyRun]
    """In display order; `LEARNED` first."""
    result: RunResult
    """Run result of the learned policy."""
    draw_E: Ints
    """Number of the context of each member: members of one number share its draws."""

    @property
    def members(self) -> int:
        """E: number of fresh members."""
        return len(self.draw_E)

    @property
    def draws(self) -> int:
        """n of intervals: members, or contexts that members share."""
        return len(np.unique(self.draw_E))

    def mean(self, values_E: Doubles | Ints) -> float:
        """Mean over `draws`, as differences are: those of two policies subtract to theirs."""
        return float(group_means(np.asarray(values_E, np.float64), self.draw_E).mean())

    def difference(self, other: str) -> Doubles:
        """Score of another policy minus that of the learned one, for each of `draws`."""
        mine, theirs = (self.by_policy[name].result.outcome for name in (LEARNED, other))
        return group_means(theirs.score_E - mine.score_E, self.draw_E)

    def verdict_line(self) -> str:
        """One line: does growing beat planting its final topology from the start?"""
        mean, low, high = (float(x) for x in t_interval(self.difference(STATIC)))
        if self.draws > 1 and high < 0:
            verdict = "growing beats training the same networks from the start"
        elif self.draws > 1 and low > 0:
            verdict = "training the same networks from the start beats growing them"
        else:
            verdict = (
                "growing and training the same networks from the start do not differ significantly"
            )
        how = f"{STATIC} minus {LEARNED}: {mean:+.4f}"
        return f"{STATIC} plants the final topologies of {LEARNED}: {verdict} ({how})"

    def numbers(self) -> dict[str, Json]:
        """All outcomes, for JSON."""
        return {
            name: {
                "outcome": to_json(run.result.outcome),
                "test_E": run.result.test_E.tolist(),
                "score_test_E": _score_on_test(run.result).tolist(),
                "compute_E": run.compute_E.tolist(),
                "blueprints": list(run.blueprints),
                "draw_E": self.draw_E.tolist(),
            }
            for name, run in self.by_policy.items()
        }


def judge(
    training: TrainingConfig,
    agent: PPOAgent,
    spec: TaskSpec,
    data: TaskData,
    members: int,
    baselines: Callable[[], dict[str, PolicyRun] | None] = lambda: None,
) -> Judged:
    """Run one episode of each policy on the same fresh members, from `EVALUATION_SEED` on.

    `baselines`: gives the runs of `judge_baselines` if somebody else has made them.
    """
    greedy, sampled = _acting(training, agent, spec, (LEARNED, SAMPLED))
    static = static_final_entry(greedy, ParsedPolicy(STATIC, STATIC, "static-final"))
    runner = _runner(training, spec, data, members)
    mine = _run(runner, greedy, members)
    found = {LEARNED: _policy_run(greedy, mine)}
    found[SAMPLED] = _policy_run(sampled, _run(runner, sampled, members))
    planted_ES = mine.result.outcome.blueprint_ES
    found[STATIC] = _policy_run(static, _run(runner, static, members, planted_ES))
    with phase("judging the baselines on fresh hosts"):
        others = baselines()
    found |= judge_baselines(training, spec, data, members) if others is None else others
    result = make_run_result(mine.engine, [mine.result], mine.timer, "")
    return Judged(found, result, _draw_numbers(spec, members))


def _acting(
    training: TrainingConfig,
    agent: PPOAgent,
    spec: TaskSpec,
    labels: tuple[str, str],
) -> list[PolicyEntry]:
    """Entries of a controller under these labels: greedy, and sampled."""
    parsed = [
        ParsedPolicy(label, label, "controller", sampled=sampled)
        for label, sampled in zip(labels, (False, True), strict=True)
    ]
    limits = Limits.of(spec, training.population)
    return [controller_entry(it, spec, agent, limits) for it in parsed]


def judge_baselines(
    training: TrainingConfig, spec: TaskSpec, data: TaskData, members: int
) -> dict[str, PolicyRun]:
    """Run the policies that need no training; all but the untrained controller may use all
    blueprints of the task."""
    start = PPOAgent(
        policy_spec(spec.context.restarts),
        training.ppo,
        training.seed,
        parse_device(training.population.device),
    )
    training.population.configure_graphs(start)
    labels = UNTRAINED, f"{UNTRAINED}, sampled"
    whole = _whole_task(training)
    # An episode of one step has no room for a rung.
    searches = [search_entry(parse(SEARCH), whole)] if whole.episode_length > 1 else []
    entries = [
        *_acting(training, start, spec, labels),
        *searches,
        *(baseline_entry(parse(name), whole) for name in BASELINES),
    ]
    runner = _runner(training, spec, data, members)
    return {it.label: _policy_run(it, _run(runner, it, members)) for it in entries}


def _whole_task(training: TrainingConfig) -> TaskSpec:
    """The task with all its blueprints."""
    return replace(training.task, blueprints=()).spec()


def _runner(training: TrainingConfig, spec: TaskSpec, data: TaskData, members: int) -> HostRunner:
    population = replace(training.population, envs=members)
    with phase("judging on fresh hosts"):
        limits = draw_limits(_whole_task(training), population, data)
    reward = replace(training.reward, own="")  # judging runs no file of the user's
    return HostRunner(population, data, limits, make_reward(reward, spec.upkeep))


def _run(
    runner: HostRunner, entry: PolicyEntry, members: int, planted_ES: Ints | None = None
) -> HostRun:
    parts, at = [], 0
    with phase(f"judging {entry.label} on fresh hosts"):
        for seed, hosts in _populations(entry.spec, members):
            planted = None if planted_ES is None else planted_ES[at : at + hosts]
            parts.append(runner.run(entry, seed, hosts, planted))
            at += hosts
    return HostRun.joined(parts)


def _populations(spec: TaskSpec, members: int) -> Populations:
    """Populations as in `esper compare`: few members to a draw of budget and data."""
    shared = HOSTS_PER_CONTEXT if spec.context.varies_rounds else members
    return split_hosts(members, min(shared, members), EVALUATION_SEED)


def _draw_numbers(spec: TaskSpec, members: int) -> Ints:
    if not spec.context.varies_rounds:
        return np.arange(members)
    sizes = [hosts for _, hosts in _populations(spec, members)]
    return np.repeat(np.arange(len(sizes)), sizes)


def _policy_run(entry: PolicyEntry, run: HostRun) -> PolicyRun:
    return PolicyRun(run.result, run.compute_E, entry.spec.blueprints)


def _score_on_test(done: RoundResult) -> Doubles:
    """Score `[E]` with the accuracy on the test data; the rent is the same."""
    return np.asarray(done.outcome.score_E - done.outcome.accuracy_E + done.test_E)


def judgement_table(judged: Judged) -> Table:
    """Table of all policies, with paired differences to the learned one."""
    within = f" in {judged.draws} contexts" if judged.draws < judged.members else ""
    fresh = f"{judged.members} fresh members{within} (seed {EVALUATION_SEED})"
    title = f"{fresh}, the same for all policies; params and compute over the host's"
    table = Table(title=title, box=SIMPLE_HEAD)
    columns = ("policy", "score", "on test", "test acc.", "params", "compute",
               f"minus {LEARNED}", "95 % CI")  # fmt: skip
    for column in columns:
        table.add_column(column, no_wrap=True, justify="left" if column == "policy" else "right")
    host = judged.result.host_params
    for name, run in judged.by_policy.items():
        done, outcome = run.result, run.result.outcome
        row = [
            name,
            f"{judged.mean(outcome.score_E):.4f}",
            f"{judged.mean(_score_on_test(done)):.4f}",
            f"{judged.mean(done.test_E):.1%}",
            f"{1 + judged.mean(outcome.added_params_E) / host:.2f}",
            f"{judged.mean(run.compute_E):.2f}",
        ]
        if name != LEARNED:
            mean, low, high = (float(x) for x in t_interval(judged.difference(name)))
            known = judged.draws > 1  # a single difference has no interval
            row += [f"{mean:+.4f}", f"{low:+.4f} to {high:+.4f}" if known else "-"]
        table.add_row(*row)
    return table
