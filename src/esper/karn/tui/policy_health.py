"""Health of the policy: metrics of its updates, operations it chose, anomalies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from esper.karn.tui.formats import middle, sparkline
from esper.karn.tui.panel import Panel, hint, plain_table
from esper.karn.tui.reader import RunShot
from esper.karn.views import PPOPoint
from esper.plotting.numbers import fixed

_METRICS: Final[tuple[tuple[str, Callable[[PPOPoint], float]], ...]] = (
    ("entropy", lambda one: one.entropy),
    ("KL divergence", lambda one: one.approx_kl),
    ("clipped share", lambda one: one.clip_fraction),
    ("explained variance", lambda one: one.explained_variance),
    ("value loss", lambda one: one.value_loss),
    ("policy loss", lambda one: one.policy_loss),
    ("gradient norm", lambda one: one.grad_norm),
    ("ratio, largest", lambda one: one.ratio_max),
    ("mean return", lambda one: one.return_mean),
)
WARNING_STYLE: Final = "bold #e69f00"
_SHOWN_ANOMALIES: Final = 5
_LEAST_POINTS: Final = 4
"""Of a line over rounds."""
_FIGURES: Final = 19
"""Columns of the figures of an operation."""
_WITH_PROBABILITY: Final = 34
"""Columns from which on the probability has room."""


class PolicyHealth(Panel):
    """What the learner does, and what was found unusual."""

    TITLE = "Policy"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """Anomalies first, then metrics, operations and slots."""
        parts = [*_anomalies(shot), *_metrics(shot, width)]
        parts += [*_operations(shot, width), *_slots(shot)]
        return Group(*parts) if parts else hint("no update yet")


def _anomalies(shot: RunShot) -> list[RenderableType]:
    found = shot.anomalies[-_SHOWN_ANOMALIES:]
    return [
        Text(f"! round {one.round + 1}: {one.detail or one.kind.lower()}", style=WARNING_STYLE)
        for one in reversed(found)
    ]


def _metrics(shot: RunShot, width: int) -> list[RenderableType]:
    if not shot.ppo:
        policy = shot.summary.policy
        learns = policy == "ppo"
        return [hint("no update yet" if learns else f"{policy} does not learn")]
    last = shot.ppo[-1]
    figures = [fixed(metric(last)) for _, metric in _METRICS]
    room = width - max(map(len, figures)) - 3
    points = max(_LEAST_POINTS, room - max(len(name) for name, _ in _METRICS))
    table = plain_table(f"round {last.round + 1}", "now", middle("by round", points), right=(1,))
    for (name, metric), figure in zip(_METRICS, figures, strict=True):
        line = sparkline([metric(one) for one in shot.ppo], points)
        table.add_row(middle(name, room - points), figure, Text(line))
    return [table]


def _operations(shot: RunShot, width: int) -> list[RenderableType]:
    if not shot.actions:
        return []
    last = shot.actions[-1]
    total = max(1, sum(one.chosen for one in last.ops))
    heads = ["operation", "chosen", "done", *(["prob."] if width >= _WITH_PROBABILITY else [])]
    table = plain_table(*heads, right=(1, 2, 3)[: len(heads) - 1])
    for one in last.ops:
        if one.chosen or one.legal:
            cells = [
                middle(one.op.lower().replace("_", " "), width - _FIGURES),
                f"{100 * one.chosen / total:.0f} %",
                str(one.executed),
                fixed(one.probability),
            ]
            table.add_row(*cells[: len(heads)])
    return [Text(""), table]


def _slots(shot: RunShot) -> list[RenderableType]:
    """Where the operations of the newest round went, and what a step with one earned."""
    if not shot.actions or not shot.actions[-1].slots:
        return []
    slots = shot.actions[-1].slots
    total = max(1, sum(one.chosen for one in slots))
    table = plain_table("slot", "chosen", "done", "reward each", right=(1, 2, 3))
    for one in slots:
        reward = one.reward / one.chosen if one.chosen else math.nan
        share = f"{100 * one.chosen / total:.0f} %"
        table.add_row(one.slot, share, str(one.executed), fixed(reward))
    return [Text(""), table]
