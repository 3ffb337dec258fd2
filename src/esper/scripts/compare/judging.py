"""What is a controller worth? One episode of it, and of others, on the same fresh members.

Each policy plays under its own settings (`policies.py`), so that the numbers are those that
`esper compare` finds on the same hosts.

Shape letters: E members.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from esper.leyline.arrays import Doubles
from esper.leyline.codec import Json, to_json
from esper.leyline.seeds import EVALUATION_SEEDS
from esper.leyline.statistics import t_interval
from esper.scripts.compare.policies import Contender, learned, static_final, unlearned
from esper.simic.agent.agent import PPOAgent
from esper.simic.rewards.factory import make_reward
from esper.simic.training.config import TrainingConfig
from esper.tamiyo.grammar import ParsedPolicy, parse
from esper.tasks.spec import TaskData, TaskSpec
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.round_results import (
    RoundResult,
    RunResult,
    StageRecorder,
    make_run_result,
    run_round,
)

BASELINES: Final[tuple[str, ...]] = ("wait", "random", "heuristic")
EVALUATION_SEED: Final = EVALUATION_SEEDS[0]
"""The fresh members are drawn from it."""
LEARNED: Final = "ppo"
"""Its likeliest actions."""
SAMPLED: Final = "ppo, sampled"
"""Actions drawn as while learning, without exploration."""
STATIC: Final = "static-final"
"""Member by member the topology that `LEARNED` ended with, planted from the start."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What policies did with the same fresh members."""

    by_policy: dict[str, RoundResult]
    """In the order they are shown; `LEARNED` first."""
    blueprints: dict[str, tuple[str, ...]]
    """What each could grow: the names behind the indices in its outcome."""
    result: RunResult
    """The learned policy's, as for policies that do not learn."""

    @property
    def members(self) -> int:
        """E: how many fresh members each of them had."""
        return len(self.by_policy[LEARNED].test_E)

    def ahead(self, other: str) -> Doubles:
        """Score of the learned policy minus another's, member by member `[E]`."""
        mine, theirs = self.by_policy[LEARNED].outcome, self.by_policy[other].outcome
        return np.asarray(mine.score_E - theirs.score_E)

    def growing_line(self) -> str:
        """Whether growing was worth more than its own result without growth, in words."""
        mean, low, high = (float(x) for x in t_interval(self.ahead(STATIC)))
        if self.members > 1 and low > 0:
            verdict = "growing is ahead of the same networks trained from the start"
        elif self.members > 1 and high < 0:
            verdict = "the same networks trained from the start are ahead of growing them"
        else:
            verdict = "growing and the same networks trained from the start are not told apart"
        return f"{STATIC} plants what {LEARNED} ended with: {verdict} ({mean:+.4f})"

    def numbers(self) -> dict[str, Json]:
        """Every outcome, for programs."""
        return {
            name: {
                "outcome": to_json(done.outcome),
                "test_E": done.test_E.tolist(),
                "blueprints": list(self.blueprints[name]),
            }
            for name, done in self.by_policy.items()
        }


def judge(
    training: TrainingConfig, agent: PPOAgent, spec: TaskSpec, data: TaskData, members: int
) -> Judged:
    """One episode of each policy on the same fresh members, drawn from `EVALUATION_SEED`."""
    reward = make_reward(training.reward, spec.upkeep)
    contenders = _contenders(training, agent, spec)
    found: dict[str, RoundResult] = {}
    result: RunResult | None = None
    for contender in contenders:
        diary = StageRecorder()
        settings = contender.engine_config(training.population, EVALUATION_SEED, members)
        engine = VectorizedEngine(contender.spec, settings, data=data)
        by = contender.found_by
        planted_ES = None if by is None else found[by.label].outcome.blueprint_ES
        done = run_round(engine, contender.policy(EVALUATION_SEED, reward, planted_ES), diary)
        found[contender.label] = done
        result = result or make_run_result(engine, [done], diary, "")
    assert result is not None  # the learned policy is always among them
    return Judged(found, {it.label: it.spec.blueprints for it in contenders}, result)


def _contenders(training: TrainingConfig, agent: PPOAgent, spec: TaskSpec) -> list[Contender]:
    """The learned policy first. The others may grow all that the task has."""
    words = [ParsedPolicy(LEARNED, LEARNED, "controller")]
    words.append(ParsedPolicy(SAMPLED, SAMPLED, "controller", sampled=True))
    controllers = [learned(word, spec, agent, training.population) for word in words]
    planted = static_final(controllers[0], ParsedPolicy(STATIC, STATIC, "static-final"))
    whole = replace(training.task, blueprints=()).spec()
    return [*controllers, planted, *(unlearned(parse(name), whole) for name in BASELINES)]


def judgement_table(judged: Judged) -> Table:
    """Every policy on the same members, and how far the learned one is ahead of it, in pairs."""
    title = f"{judged.members} fresh members (seed {EVALUATION_SEED}), same for all"
    table = Table(title=title, box=SIMPLE_HEAD)
    columns = ("policy", "score", "on test", "accuracy, test", "parameters / host's",
               "ppo ahead by", "95 %")  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "policy" else "right")
    host = judged.result.host_params
    for name, done in judged.by_policy.items():
        outcome = done.outcome
        row = [
            name,
            f"{outcome.score_E.mean():.4f}",
            f"{(outcome.score_E - outcome.accuracy_E + done.test_E).mean():.4f}",
            f"{done.test_E.mean():.1%}",
            f"{1 + outcome.added_params_E.mean() / host:.2f}",
        ]
        if name != LEARNED:
            mean, low, high = (float(x) for x in t_interval(judged.ahead(name)))
            known = judged.members > 1  # one difference has no spread
            row += [f"{mean:+.4f}", f"{low:+.4f} to {high:+.4f}" if known else "-"]
        table.add_row(*row)
    return table
