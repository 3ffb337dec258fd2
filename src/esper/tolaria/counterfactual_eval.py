"""Counterfactual evaluation: plans coalitions of seeds and attributes contributions to seeds.

A coalition turns some of a member's blended seeds off (alpha 0). Coalitions are extra rows after
the members in one validation pass; a row starts at the first slot it turns off, from its member's
activation there. Everything here is numpy on the host.

With n seeds, a coalition is an n-bit code; bit j is set if the j-th seed (in execution order) is
on. Code 2**n - 1 is the member itself.

Shape letters: E members, R rows, S slots; G members with equally many seeds, J their seeds,
L coalitions of a group, M sampled permutations, K = J + 1 coalitions along a permutation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.kasmina.population import Population
from esper.kasmina.rows.rows import FROM_INPUT, RowTable
from esper.leyline.arrays import Bools, Codes, Doubles, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.signals import CounterfactualGap, Counterfactuals
from esper.leyline.stage_masks import stage_mask
from esper.leyline.stages import BLENDED_STAGES
from esper.leyline.streams import stream_keys

EXACT_SEEDS: Final = 3
"""Up to this many seeds all coalitions are evaluated, regardless of the budget."""
MAX_SEEDS: Final = 62
"""Limit of an int64 coalition code."""

_BLENDED: Final = stage_mask(BLENDED_STAGES)


@dataclass(frozen=True, slots=True)
class CounterfactualConfig:
    """Frequency and budget of counterfactual evaluation."""

    stride: int = 1
    """Seeds are measured at steps 0, stride, 2 * stride, ... of an episode."""
    budget: int = 16
    """Most coalitions per member with more than 3 seeds, itself included. All are evaluated if they
    fit; at least one pair of permutations is evaluated regardless."""
    images: int | None = None
    """Use the first `images` samples of `val_control`; None: all."""

    def __post_init__(self) -> None:
        for name in ("stride", "budget", "images"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EsperError(f"counterfactual {name}={value}: must be 1 or more")


@dataclass(frozen=True, slots=True, eq=False)
class _CoalitionGroup:
    """Coalitions of the members with the same number of blended seeds.

    Columns of L: all seeds, no seed, each seed left out; the body (all coalitions by code, or those
    along sampled permutations); each pair left out.
    """

    member_G: Ints
    slot_GJ: Ints
    """Slots of their seeds."""
    code_GL: Ints
    required_GL: Bools
    """False for coalitions used only if another column evaluates them anyway."""
    order_GM2J: Ints | None = None
    """The seed that joins between one coalition and the next of a permutation, each followed by its
    reverse; None: every coalition is evaluated."""
    kept_GM: Bools | None = None
    """Pairs of permutations within the budget; always a prefix."""
    row_GL: Ints | None = None
    """Row of each column, -1 where it is not evaluated; None: not assigned yet."""

    @property
    def seeds(self) -> int:
        """J."""
        return int(self.slot_GJ.shape[1])

    @property
    def rows(self) -> tuple[Ints, Ints, Ints]:
        """Rows without each seed `[G, J]`, of the body, and without each pair `[G, J, J]`."""
        assert self.row_GL is not None, "assigned by `plan_coalitions`"
        one_GJ, body_GL, pair_GL = np.split(
            self.row_GL[:, 2:], [self.seeds, -self.seeds * self.seeds], axis=1
        )
        return one_GJ, body_GL, pair_GL.reshape(-1, self.seeds, self.seeds)


@dataclass(frozen=True, slots=True, eq=False)
class CoalitionPlan:
    """Rows of one validation pass and their meaning."""

    table: RowTable
    """Members, then the other coalitions."""
    due: bool
    """Whether contributions are measured at this step."""
    seeds_E: Ints
    """Number of blended seeds."""
    slots: int
    """S, the number of slots."""
    groups: tuple[_CoalitionGroup, ...]

    @property
    def members(self) -> int:
        """E, the number of members."""
        return len(self.seeds_E)

    @property
    def coalitions_E(self) -> Ints:
        """Number of distinct coalitions of each member, itself included."""
        return np.bincount(self.table.member_R, minlength=self.members).astype(np.int64)

    @property
    def exact_E(self) -> Bools:
        """Members with at least one seed whose coalitions are all evaluated."""
        exact_E = np.zeros(self.members, dtype=np.bool_)
        for group in self.groups:
            exact_E[group.member_G] = group.order_GM2J is None
        return exact_E


# ---- planning -----------------------------------------------------------------------------


def plan_coalitions(
    population: Population, config: CounterfactualConfig, seed: int, round_index: int, step: int
) -> CoalitionPlan:
    """Plan the rows to validate at a step. A member's coalitions do not depend on other members."""
    life = population.lifecycle
    blended_ES = _BLENDED[life.stage_ES] & (life.alpha_ES > 0)
    seeds_E = blended_ES.sum(axis=1)
    due = step % config.stride == 0
    if due and seeds_E.max() > MAX_SEEDS:
        raise EsperError(
            f"member {seeds_E.argmax()} has {seeds_E.max()} blended seeds: counterfactuals support "
            f"at most {MAX_SEEDS}; set a seed_budget"
        )
    groups = []
    for count in np.unique(seeds_E[seeds_E > 0]).tolist() if due else []:
        member_G = np.flatnonzero(seeds_E == count)
        slot_GJ = np.argsort(~blended_ES[member_G], axis=1, kind="stable")[:, :count]
        if count <= EXACT_SEEDS or 1 << count <= config.budget:
            groups.append(_all_coalitions(member_G, slot_GJ))
        else:
            path = ("round", round_index, "counterfactual", "step", step)
            names_G = population.member_ids[member_G]
            groups.append(_sampled(member_G, names_G, slot_GJ, config.budget, seed, path))
    table, planned = _assign_rows(life, groups)
    return CoalitionPlan(table, due, seeds_E.astype(np.int64), len(life.slots), planned)


def _all_coalitions(member_G: Ints, slot_GJ: Ints) -> _CoalitionGroup:
    seeds = slot_GJ.shape[1]
    code_L = np.concatenate([_base_codes(seeds), np.arange(1 << seeds), _pair_codes(seeds)])
    code_GL = np.tile(code_L, (len(member_G), 1))
    return _CoalitionGroup(member_G, slot_GJ, code_GL, np.ones_like(code_GL, dtype=np.bool_))


def _sampled(
    member_G: Ints,
    names_G: Ints,
    slot_GJ: Ints,
    budget: int,
    seed: int,
    path: tuple[str | int, ...],
) -> _CoalitionGroup:
    """Leave-one-out coalitions and as many antithetic permutation pairs as fit.

    `names_G`: numbers of the members in the names of their random streams.
    """
    group, seeds = slot_GJ.shape
    pairs = max(1, (budget - seeds) // 2)  # more would add fewer than two coalitions each
    keys_GMJ = stream_keys(
        seed,
        *path,
        "member",
        names_G[:, None, None],
        "permutation",
        np.arange(pairs)[:, None],
        "seed",
        np.arange(seeds),
    )
    order_GMJ = np.argsort(keys_GMJ, axis=-1, kind="stable")
    joined_GMJ = np.cumsum(np.int64(1) << order_GMJ, axis=-1)
    up_GMK = np.concatenate([np.zeros_like(joined_GMJ[..., :1]), joined_GMJ], axis=-1)
    down_GMK = ((1 << seeds) - 1) - up_GMK[..., ::-1]
    body_GML = np.concatenate([up_GMK, down_GMK], axis=-1)
    fixed = [np.tile(c, (group, 1)) for c in (_base_codes(seeds), _pair_codes(seeds))]
    code_GL = np.concatenate([fixed[0], body_GML.reshape(group, -1), fixed[1]], axis=1)

    base, width = fixed[0].shape[1], body_GML.shape[-1]
    new_GL = _first_occurrence(code_GL) == np.arange(code_GL.shape[1])
    end_M = base + width * np.arange(1, pairs + 1) - 1
    kept_GM = np.cumsum(new_GL, axis=1)[:, end_M] <= budget
    kept_GM[:, 0] = True
    required_GL = np.concatenate(
        [
            np.ones_like(fixed[0], dtype=np.bool_),
            np.repeat(kept_GM, width, axis=1),
            np.zeros_like(fixed[1], dtype=np.bool_),
        ],
        axis=1,
    )
    order_GM2J = np.stack([order_GMJ, order_GMJ[..., ::-1]], axis=2)
    return _CoalitionGroup(member_G, slot_GJ, code_GL, required_GL, order_GM2J, kept_GM)


def _base_codes(seeds: int) -> Ints:
    """Codes of all seeds, no seed, and each seed left out."""
    full = (1 << seeds) - 1
    alone = np.int64(1) << np.arange(seeds)
    return np.concatenate([np.array([full, 0], dtype=np.int64), full - alone])


def _pair_codes(seeds: int) -> Ints:
    """Codes of each pair of seeds left out (diagonal: one seed)."""
    alone = np.int64(1) << np.arange(seeds)
    return np.asarray(((1 << seeds) - 1 - (alone[:, None] | alone)).ravel(), dtype=np.int64)


def _first_occurrence(code_GL: Ints) -> Ints:
    """For each column, the first column of the same member with the same code."""
    order_GL = np.argsort(code_GL, axis=1, kind="stable")
    sorted_GL = np.take_along_axis(code_GL, order_GL, axis=1)
    fresh_GL = np.ones_like(sorted_GL, dtype=np.bool_)
    fresh_GL[:, 1:] = sorted_GL[:, 1:] != sorted_GL[:, :-1]
    begin_GL = np.maximum.accumulate(np.where(fresh_GL, np.arange(code_GL.shape[1]), 0), axis=1)
    first_GL = np.empty_like(order_GL)
    np.put_along_axis(first_GL, order_GL, np.take_along_axis(order_GL, begin_GL, axis=1), axis=1)
    return first_GL


def _assign_rows(
    life: Lifecycle, groups: Sequence[_CoalitionGroup]
) -> tuple[RowTable, tuple[_CoalitionGroup, ...]]:
    """Assign a row to each distinct coalition; returns the table and the groups with their rows."""
    firsts = [_first_occurrence(group.code_GL) for group in groups]
    pairs = zip(groups, firsts, strict=True)
    found = [_new_rows(group, first_GL, len(life.slots)) for group, first_GL in pairs]
    none = (np.zeros(0, dtype=np.int64), np.zeros((0, len(life.slots)), dtype=np.bool_))
    member_N = np.concatenate([none[0], *(members for members, _ in found)])
    off_NS = np.concatenate([none[1], *(off for _, off in found)])
    start_N = off_NS.argmax(axis=1)
    order_N = np.lexsort((member_N, start_N))
    row_N = np.empty_like(order_N)
    row_N[order_N] = life.members + np.arange(len(order_N))
    member_E = np.arange(life.members)
    member_N, off_NS, start_N = member_N[order_N], off_NS[order_N], start_N[order_N]
    alpha_NS = np.where(off_NS, np.float32(0.0), life.alpha_ES[member_N])
    table = RowTable(
        member_R=np.concatenate([member_E, member_N]),
        alpha_RS=np.concatenate([life.alpha_ES, alpha_NS]).astype(np.float32),
        start_R=np.concatenate([np.full(life.members, FROM_INPUT, dtype=np.int64), start_N]),
        source_R=np.concatenate([member_E, member_N]),
        shadow_R=np.zeros(life.members + len(member_N), dtype=np.bool_),
    )
    ends = np.cumsum([len(members) for members, _ in found], dtype=np.int64)
    rows = np.split(row_N, ends[:-1]) if groups else []
    return table, tuple(
        replace(group, row_GL=_row_of_columns(group, first_GL, row_GN))
        for group, first_GL, row_GN in zip(groups, firsts, rows, strict=True)
    )


def _is_new(group: _CoalitionGroup, first_GL: Ints) -> Bools:
    """Columns that need a new row; column 0 is the member's own row."""
    column_L = np.arange(first_GL.shape[1])
    return np.asarray(group.required_GL & (first_GL == column_L) & (column_L > 0))


def _new_rows(group: _CoalitionGroup, first_GL: Ints, slots: int) -> tuple[Ints, Bools]:
    """Member of each new row, and the slots it turns off."""
    g_N, l_N = np.nonzero(_is_new(group, first_GL))
    off_NJ = (group.code_GL[g_N, l_N][:, None] >> np.arange(group.seeds)) & 1 == 0
    off_NS = np.zeros((len(g_N), slots), dtype=np.bool_)
    np.put_along_axis(off_NS, group.slot_GJ[g_N], off_NJ, axis=1)
    return group.member_G[g_N], off_NS


def _row_of_columns(group: _CoalitionGroup, first_GL: Ints, row_N: Ints) -> Ints:
    """Row of each column of a group; -1 if it has none."""
    own_GL = np.full_like(first_GL, -1)
    own_GL[:, 0] = group.member_G
    own_GL[_is_new(group, first_GL)] = row_N
    return np.take_along_axis(own_GL, first_GL, axis=1)


# ---- attribution --------------------------------------------------------------------------


def attribute(
    plan: CoalitionPlan,
    merit_R: Doubles,
    gain_R: Doubles,
    gain_square_R: Doubles,
    samples: int,
    loss_R: Doubles | None = None,
) -> Counterfactuals:
    """Compute contributions, Shapley values and interactions from the pass's `RowTotals`.

    The standard error of a contribution is that of a mean of paired differences, with n - 1 in the
    variance (NaN for one sample). Pass `loss_R` to detect non-finite outputs: argmax hides them
    from the merit.
    """
    totals = [merit_R, gain_R, gain_square_R] + ([] if loss_R is None else [loss_R])
    broken_R = ~np.isfinite(totals).all(axis=0)
    broken_E = np.bincount(plan.table.member_R, broken_R, minlength=plan.members) > 0
    value_R = np.where(broken_R, np.nan, merit_R / samples)
    with np.errstate(invalid="ignore", over="ignore"):
        mean_R = gain_R / samples
        spread_R = np.maximum(gain_square_R / samples - mean_R**2, 0.0)
        error_R = np.sqrt(spread_R / (samples - 1 or np.nan))
    contribution_ES, error_ES, shapley_ES, interaction_ES = np.full(
        (4, plan.members, plan.slots), np.nan, dtype=np.float32
    )
    for group in plan.groups:
        at = (group.member_G[:, None], group.slot_GJ)
        without_GJ, _, _ = group.rows
        contribution_ES[at] = mean_R[without_GJ]
        error_ES[at] = error_R[without_GJ]
        shapley_ES[at] = _shapley(group, value_R)
        interaction_ES[at] = _interactions(group, value_R)
    for values_ES in (contribution_ES, error_ES, shapley_ES, interaction_ES):
        values_ES[broken_E] = np.nan
    gap_E = _gaps(plan, broken_E)
    return Counterfactuals(
        contribution_ES=contribution_ES,
        contribution_se_ES=error_ES,
        shapley_ES=shapley_ES,
        interaction_ES=interaction_ES,
        coalitions_E=plan.coalitions_E,
        exact_E=plan.exact_E & (gap_E == CounterfactualGap.NONE),
        gap_E=gap_E,
    )


def _gaps(plan: CoalitionPlan, broken_E: Bools) -> Codes:
    gap_E = np.where(broken_E, CounterfactualGap.NON_FINITE, CounterfactualGap.NONE)
    gap_E = np.where(plan.seeds_E == 0, CounterfactualGap.NO_SEED, gap_E)
    return (gap_E if plan.due else np.full_like(gap_E, CounterfactualGap.STRIDE)).astype(np.int8)


def _shapley(group: _CoalitionGroup, value_R: Doubles) -> Doubles:
    """Shapley values: mean gain when a seed joins, over all or the sampled orders."""
    _, body_GL, _ = group.rows
    if group.order_GM2J is None or group.kept_GM is None:
        terms_GLJ = value_R[body_GL][:, :, None] * _shapley_weights(group.seeds)
        return np.asarray(terms_GLJ.sum(axis=1))
    row_GM2K = body_GL.reshape(len(body_GL), -1, 2, group.seeds + 1)
    joining_GM2J = np.diff(value_R[row_GM2K], axis=-1)
    joining_GM2J = np.where(group.kept_GM[:, :, None, None], joining_GM2J, 0.0)
    by_seed_GM2J = np.empty_like(joining_GM2J)
    np.put_along_axis(by_seed_GM2J, group.order_GM2J, joining_GM2J, axis=-1)
    return np.asarray(by_seed_GM2J.sum(axis=(1, 2)) / (2 * group.kept_GM.sum(axis=1))[:, None])


@lru_cache(maxsize=16)
def _shapley_weights(seeds: int) -> Doubles:
    """`[2**J, J]`: weight of each coalition's value in each seed's Shapley value."""
    code_L1 = np.arange(1 << seeds)[:, None]
    has_LJ = code_L1 >> np.arange(seeds) & 1
    size_L1 = has_LJ.sum(axis=1, keepdims=True)
    orders = [math.factorial(k) * math.factorial(seeds - 1 - k) for k in range(seeds)]
    share_K = np.array([*orders, 0]) / math.factorial(seeds)
    return np.asarray(np.where(has_LJ == 1, share_K[size_L1 - 1], -share_K[size_L1]))


def _interactions(group: _CoalitionGroup, value_R: Doubles) -> Floats:
    """Per seed i: sum over j of v(all) - v(-i) - v(-j) + v(-i-j); NaN if one is unknown."""
    without_GJ, _, without_both_GJJ = group.rows
    all_G11 = value_R[group.member_G][:, None, None]
    one_GJ = value_R[without_GJ]
    both_GJJ = np.where(without_both_GJJ < 0, np.nan, value_R[without_both_GJJ])
    pair_GJJ = all_G11 - one_GJ[:, :, None] - one_GJ[:, None, :] + both_GJJ
    itself_JJ = np.eye(group.seeds, dtype=np.bool_)
    return np.asarray(np.where(itself_JJ, 0.0, pair_GJJ).sum(axis=2), dtype=np.float32)
