"""Score of a member: accuracy minus the rent of its growth.

    score = acc - c_p * log2(1 + dP / P0) - c_m * log2(1 + dM / M0) - c_f * (FLOPs / host's - 1)

dP and dM count the seeds with alpha above 0 in full: a seed being pruned pays until its alpha is 0.
The rent is defined in leyline/prices.py, because policies may use it too. Everything here is numpy,
except `suffix_macs`.

Shape letters: E members, S slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from esper.leyline.arrays import Bools, Codes, Doubles, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.prices import ScoreConstants
from esper.leyline.stage_masks import IS_LIVE
from esper.leyline.stages import SeedStage

if TYPE_CHECKING:
    from torch import Tensor

    from esper.kasmina.population import Population

MAIN_PASSES: Final = 3
"""Forward, gradient of the activations, gradient of the weights: MACs times three."""
SHADOW_PASSES: Final = 2
"""The suffix after a training seed runs forward and backward, without weight gradients."""

LIFE_STEPS: Final = 14
"""Steps of a seed's normal life: germinated 1, training 5, blending 3, holding 5."""
SIZE_SCORE: Final = ScoreConstants(c_p=0.005, c_m=0.00125, c_f=0.002)
"""For tasks that are about how large a network should be. At a price of 1, twice the size must gain
0.6 points of accuracy; over the prices of varied contexts, 0.06 to 2.5. Chosen on the records of
digits_tiny8, where there was more to decide than at four times as much (docs/audit-results.md)."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Cost per step of a live seed that is not permanent, charged in the reward.

    A seed with the host's MACs pays the cap, a smaller one proportionally, a larger one no more.
    The cap spreads a tenth of a good seed's gain over the steps of a normal life: it discourages
    lingering seeds but never decides whether a good one is grown.
    """

    good_gain: float = 0.05
    """Accuracy gained by a good seed (measured: 4 to 10 points on baseline hosts)."""

    def __post_init__(self) -> None:
        if not 0 <= self.good_gain <= 1:
            raise EsperError(f"upkeep good_gain={self.good_gain}: must be in 0..1")

    @property
    def cap(self) -> float:
        """Maximum cost of one seed in one step."""
        return 0.1 * self.good_gain / LIFE_STEPS


# ---- accuracy --------------------------------------------------------------------------------


def language_accuracy(loss_E: Floats | Doubles, vocab: int) -> Doubles:
    """Return 1 - loss / ln(vocab), clipped to 0..1: 0 is guessing, 1 is certainty.

    Losses above ln(vocab) and non-finite losses give 0, so that the score stays finite and has the
    same range as for classification.

    >>> language_accuracy(np.array([np.log(65), np.log(65) / 2, 0.0, np.nan]), vocab=65).tolist()
    [0.0, 0.5, 1.0, 0.0]
    """
    share_E = np.clip(1.0 - np.asarray(loss_E, dtype=np.float64) / math.log(vocab), 0.0, 1.0)
    return np.where(np.isfinite(loss_E), share_E, 0.0)


# ---- score -----------------------------------------------------------------------------------


def added(alpha_ES: Floats, count_ES: Ints) -> Doubles:
    """Return dP or dM `[E]`: counts of the seeds with alpha above 0, summed in full."""
    return np.asarray(np.where(alpha_ES > 0, count_ES, 0).sum(axis=1), dtype=np.float64)


def score(
    accuracy_E: Floats | Doubles,
    alpha_ES: Floats,
    params_ES: Ints,
    macs_ES: Ints,
    host_params: int,
    host_macs: int,
    constants: ScoreConstants,
    flops_ratio_E: Doubles | float = 1.0,
    price_E: Doubles | float = 1.0,
) -> Doubles:
    """Return the score `[E]` from the population's arrays (see `slot_reports()`).

    `host_params`, `host_macs`: P0, M0. `flops_ratio_E`: training FLOPs relative to the host,
    from `TrainingFlops.ratio_E` or the compute clock. `price_E`: factor on all constants.
    """
    rent_E = constants.rent(
        added(alpha_ES, params_ES) / host_params,
        added(alpha_ES, macs_ES) / host_macs,
        np.asarray(flops_ratio_E, dtype=np.float64) - 1.0,
    )
    return np.asarray(np.asarray(accuracy_E, dtype=np.float64) - price_E * rent_E)


# ---- upkeep ----------------------------------------------------------------------------------


def charge_length(
    score: Doubles,
    flops_ratio_E: Doubles,
    length: float,
    constants: ScoreConstants,
    price_E: Doubles | float = 1.0,
) -> tuple[Doubles, Doubles]:
    """Score and FLOPs ratio of episodes `length` times as long as the task's.

    A longer episode is paid for like any other training compute, at the member's price.
    """
    unpaid_E = constants.c_f * (length - 1.0) * flops_ratio_E * price_E
    return np.asarray(score - unpaid_E), np.asarray(flops_ratio_E * length)


def live_seeds(stage_ES: Codes) -> Ints:
    """Return the number of live seeds `[E]`, without permanent ones."""
    return np.asarray(IS_LIVE[stage_ES].sum(axis=1), dtype=np.int64)


def live_mac_share(stage_ES: Codes, macs_ES: Ints, host_macs: int) -> Doubles:
    """Return the MACs of live seeds `[E]` relative to the host's, training ones included."""
    return np.asarray(np.where(IS_LIVE[stage_ES], macs_ES, 0).sum(axis=1) / host_macs)


def upkeep(live_mac_share_E: Doubles, live_seeds_E: Ints, rule: Upkeep) -> Doubles:
    """Return the cost `[E]` of live seeds in one step, 0 or more.

    The cap applies to a member's seeds jointly: n seeds pay at most n caps, however their sizes
    differ.
    """
    return np.asarray(rule.cap * np.minimum(live_mac_share_E, live_seeds_E))


# ---- training FLOPs --------------------------------------------------------------------------


class TrainingFlops:
    """Training FLOPs of each member in an episode, relative to its host.

    The rule, per training sample:
    - a main row costs 3 x the MACs of the host and of every seed with alpha above 0 (a seed being
      pruned as well: it is still computed);
    - a shadow row costs 3 x the MACs of its training seed, and 2 x those of the suffix, which is
      the host after that slot and the blended seeds in later slots. The prefix is the main row's,
      and the suffix trains no weights.
    Validation, counterfactuals and element-wise operations do not count.

    `ratio_E` divides by the host's FLOPs for the WHOLE episode, not for the elapsed part: extra
    work is charged when it is done, and waiting afterwards does not dilute it. At the end of the
    episode both definitions agree.
    """

    def __init__(
        self, members: int, host_macs: int, suffix_macs_S: Ints, episode_samples: int
    ) -> None:
        """`episode_samples`: training samples per member and episode."""
        self.host_macs = host_macs
        self.suffix_macs_S = np.asarray(suffix_macs_S, dtype=np.int64)
        self.episode_samples = episode_samples
        self.samples = 0
        """Training samples per member so far."""
        self.extra_E: Doubles = np.zeros(members, dtype=np.float64)
        """MACs spent on seeds so far."""
        self.saved_E: Doubles = np.zeros(members, dtype=np.float64)
        """Share of the host's run that members who stopped do not train."""

    def add(
        self,
        samples: int,
        stage_ES: Codes,
        alpha_ES: Floats,
        macs_ES: Ints,
        stopped_E: Bools | None = None,
    ) -> None:
        """Count a step of `samples` samples, with the stages and alphas it was trained with.

        `stopped_E`: members that do not train any more.
        """
        blended_ES = np.where(alpha_ES > 0, macs_ES, 0)
        later_ES = blended_ES.sum(axis=1, keepdims=True) - np.cumsum(blended_ES, axis=1)
        shadow_ES = MAIN_PASSES * macs_ES + SHADOW_PASSES * (self.suffix_macs_S + later_ES)
        training_ES = stage_ES == SeedStage.TRAINING
        per_sample_ES = MAIN_PASSES * blended_ES + np.where(training_ES, shadow_ES, 0)
        per_sample_E = per_sample_ES.sum(axis=1)
        if stopped_E is not None:
            per_sample_E = np.where(stopped_E, 0, per_sample_E)
        self.extra_E = self.extra_E + float(samples) * per_sample_E
        self.samples += samples

    def reset(self) -> None:
        """Start a new episode."""
        self.samples = 0
        self.extra_E = np.zeros_like(self.extra_E)
        self.saved_E = np.zeros_like(self.extra_E)

    def save(self, members_E: Bools, share: float) -> None:
        """Credit the share of the host's run that these members will not train."""
        self.saved_E[members_E] = share

    @property
    def ratio_E(self) -> Doubles:
        """1 + FLOPs spent on seeds so far / the host's for the episode, less what was saved."""
        planned = max(self.episode_samples, self.samples)
        return 1.0 + self.extra_E / (float(MAIN_PASSES) * self.host_macs * planned) - self.saved_E


def suffix_macs(population: Population, x: Tensor) -> Ints:
    """Return `[S]` MACs per sample of the host's segments after each slot; `x` is `[B, ...]`."""
    import torch

    from esper.kasmina.layers.counting import flop_counter
    from esper.kasmina.layers.modes import in_mode

    network = population.network
    macs_until = []  # of the segments up to each
    h = x[:1]
    # In eval mode no running statistics change.
    still = in_mode(network.host.template, training=False)
    with still, torch.no_grad(), flop_counter() as counter:
        for segment in network.segments:
            h = segment.module(h)
            macs_until.append(counter.total // 2)
    behind = [macs_until[-1] - macs_until[slot.position] for slot in network.slots]
    return np.array(behind, dtype=np.int64)
