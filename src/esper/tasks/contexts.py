"""Drawing of contexts, and whether they fit a task.

Every draw is a hash of (run seed, round, name) or (run seed, round, member, name): it depends
neither on the number of members nor on other draws.

`context_data` applies them to the data.

Shape letters: E members, S slots, K blueprints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from esper.kasmina.lifecycle.caps import SeedCosts
from esper.leyline.arrays import Bools, Doubles, Ints
from esper.leyline.context import ContextSpec, MemberContexts, Range, RoundContext
from esper.leyline.errors import EsperError, shown
from esper.leyline.streams import stream_keys, stream_seed
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData

MIN_BATCHES: Final = 2
"""The data share of a round never leaves less than this many batches."""


def _uniform(seed: int, *path: str | int | Ints) -> Doubles:
    """Uniform numbers in [0, 1), one for each stream."""
    return np.asarray((stream_keys(seed, "context", *path) >> np.uint64(11)) * 2.0**-53)


# ---- draws -----------------------------------------------------------------------------------


def draw_round(
    spec: ContextSpec,
    task: TaskSpec,
    seed: int,
    round_index: int,
    fullest_cost: float,
    hidden_seed: int | None = None,
) -> RoundContext:
    """Draw what all members of a round share.

    `fullest_cost`: training cost of the fullest legal topology, relative to the host's.
    `hidden_seed`: seed of what policies do not see (noise, which classes form a group); None:
    `seed`.
    """
    hidden_seed = seed if hidden_seed is None else hidden_seed

    def uniform(name: str, seed: int = seed) -> float:
        return float(_uniform(seed, "round", round_index, name))

    budget = spec.budget or Range(1.0, fullest_cost)
    return RoundContext(
        budget=float(budget.log_uniform(uniform("budget"))),
        label_map=_draw_label_map(spec, task, seed, round_index, hidden_seed),
        pixel_noise=float(spec.pixel_noise.uniform(uniform("pixel noise", hidden_seed))),
        permuted=uniform("permuted", hidden_seed) < spec.permuted,
        data_share=float(spec.data_share.log_uniform(uniform("data share"))),
        label_noise=float(spec.label_noise.uniform(uniform("label noise", hidden_seed))),
    )


def _draw_label_map(
    spec: ContextSpec, task: TaskSpec, seed: int, round_index: int, hidden_seed: int
) -> tuple[int, ...] | None:
    """Group the classes at random, no group empty; None if every class is its own group."""
    if spec.min_groups is None:
        return None
    classes = task.num_classes
    if spec.min_groups > classes:
        raise EsperError(
            f"context min_groups={spec.min_groups}: task {task.name} has {classes} classes"
        )
    choices = classes - spec.min_groups + 1
    drawn = float(_uniform(seed, "round", round_index, "groups"))
    groups = spec.min_groups + int(drawn * choices)
    if groups == classes:
        return None
    generator = np.random.default_rng(stream_seed(hidden_seed, "context", round_index, "label map"))
    group_of = np.concatenate(
        [np.arange(groups), generator.integers(groups, size=classes - groups)]
    )
    return tuple(generator.permutation(group_of).tolist())


def draw_members(
    spec: ContextSpec,
    seed: int,
    round_index: int,
    member_ids: Ints,
    costs: SeedCosts,
    fits_SK: Bools,
) -> MemberContexts:
    """Draw the contexts of members, by their numbers."""

    def uniform(name: str) -> Doubles:
        return _uniform(seed, "round", round_index, "member", member_ids, name)

    capped_E = uniform("capped") < spec.capped
    full_params, full_macs = costs.fullest(fits_SK)
    caps = []
    for name, host, full in (
        ("parameter cap", costs.host_params, full_params),
        ("MAC cap", costs.host_macs, full_macs),
    ):
        place_E = spec.cap.uniform(uniform(name))
        drawn_E = Range(float(host), float(max(host, full))).log_uniform(place_E)
        caps.append(np.where(capped_E, np.maximum(np.ceil(drawn_E), host), np.inf))
    return MemberContexts(
        price_E=spec.price.log_uniform(uniform("price")),
        learning_rate_E=spec.learning_rate.log_uniform(uniform("learning rate")),
        params_cap_E=caps[0],
        macs_cap_E=caps[1],
    )


# ---- chance ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chance:
    """What guessing achieves in a context."""

    accuracy: float
    loss: float
    groups: int


def chance_of(task: TaskSpec, context: RoundContext, constant_loss: float | None = None) -> Chance:
    """Chance level of a context; classes are taken as equally frequent.

    `constant_loss`: of the best constant prediction, under the task's own loss.
    """
    if context.label_map is None:
        loss = math.log(max(task.num_classes, 2))
        if constant_loss is not None and constant_loss > 0:  # NaN if not measured
            loss = constant_loss
        return Chance(task.chance, loss, task.num_classes)
    share_G = np.bincount(context.label_map) / len(context.label_map)
    loss = float(-(share_G * np.log(share_G)).sum())
    return Chance(float(share_G.max()), loss, len(share_G))


# ---- data ------------------------------------------------------------------------------------


def require_contexts_fit(spec: ContextSpec, task: TaskSpec, data: TaskData) -> None:
    """Raise if a spec cannot apply to a task."""
    if task.loss not in (None, "cross_entropy"):
        for name in ("min_groups", "label_noise"):
            if getattr(spec, name) != getattr(ContextSpec(), name):
                raise EsperError(
                    f"context {name}: task {task.name} has loss {shown(task.loss)}, and only class "
                    f"labels can be changed this way; leave {name} out"
                )
    if data.kind == "tokens":
        for name in ("min_groups", "pixel_noise", "permuted", "label_noise"):
            if getattr(spec, name) != getattr(ContextSpec(), name):
                raise EsperError(
                    f"context {name}: task {task.name} is a language model, whose tokens cannot be "
                    f"changed this way; leave {name} out"
                )
    needed = MIN_BATCHES * task.batch_size
    if spec.data_share != ContextSpec().data_share and len(data.train) < needed:
        raise EsperError(
            f"context data_share: task {task.name} has {len(data.train)} training samples, and a "
            f"share needs at least {MIN_BATCHES} batches of {task.batch_size}; lower the batch size"
        )


def train_samples(task: TaskSpec, data: TaskData, context: RoundContext) -> int:
    """Training samples used in a context."""
    samples = len(data.train)
    if context.data_share >= 1.0:
        return samples
    wanted = round(context.data_share * samples)
    return min(samples, max(wanted, MIN_BATCHES * task.batch_size))
