"""PPO losses, and the loop over epochs and minibatches.

The value loss is averaged over all steps, policy terms over the steps at which the policy had a
choice and its action was executed (`RolloutBuffer.decided_TE`). Minibatches are drawn from the
members of all ranks; each rank evaluates its own, weighted by their share, so that the sum over
ranks is the mean over the minibatch.

Shape letters: T steps, E members, U members of all ranks, M members of a minibatch, A heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from esper.leyline.actions import ActionHead
from esper.leyline.arrays import Bools, Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper.simic.agent.buffer import Minibatch, RolloutBuffer
from esper.simic.agent.config import PPOConfig
from esper.simic.distributed.ranks import SINGLE_PROCESS, Ranks, moments
from esper.simic.telemetry.aggregation import Figure
from esper.tamiyo.heads import Chooser
from esper.tamiyo.network import PolicyNetwork, PolicyOutput

Row = dict[str, Figure]

_LOG_RATIO_LIMIT: Final = 20.0
"""Log-ratios are clamped to this, far beyond the clip range, so that `exp` does not overflow."""
_FIGURES: Final = (
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "ratio_mean",
    "ratio_min",
    "ratio_max",
    "grad_norm",
)
"""Metrics of a minibatch, in tensor order; followed by the entropy of each head."""


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """Training targets of a rollout, computed once for all passes."""

    advantage_TE: Tensor
    """Normalised over `decided_TE` if the config says so."""
    return_TE: Tensor
    value_TE: Tensor
    """Estimated during the rollout."""
    decided_TE: Tensor
    """See `RolloutBuffer.decided_TE`."""
    figures: Row
    """Metrics of the whole rollout, before normalisation."""


@dataclass(frozen=True, slots=True)
class PassSettings:
    """Scheduled settings of one pass."""

    number: int
    """Passes the agent has done before this one."""
    seed: int
    learning_rate: float
    entropy_coef: float
    use_amp: bool


@dataclass(frozen=True, slots=True)
class _Share:
    """Fractions of a minibatch that belong to this rank."""

    decided: float = 1.0
    """Of the steps with a decision."""
    steps: float = 1.0
    """Of all steps; 0 if no member of the minibatch is on this rank."""


WHOLE: Final = _Share()


@dataclass(frozen=True, slots=True, eq=False)
class _Losses:
    """Loss and metrics of one minibatch: this rank's part, or that of all ranks."""

    total: Tensor
    parts_5: Tensor
    """Policy loss, value loss, KL, clipped fraction, mean of the ratio minus 1."""
    heads_XA: Tensor
    """Entropy of each head, and how often it was used: X = 2 rows."""
    extremes_2: Tensor
    """Minus the least, and the largest, of the ratio minus 1."""

    def over(self, ranks: Ranks) -> _Losses:
        """The same with the metrics of all ranks; `total` stays this rank's."""
        if ranks.size == 1:
            return self
        summed = ranks.add_(torch.cat([self.parts_5, self.heads_XA.flatten()]))
        heads_XA = summed[len(self.parts_5) :].view_as(self.heads_XA)
        extremes_2 = ranks.maximum_(self.extremes_2)
        return _Losses(self.total, summed[: len(self.parts_5)], heads_XA, extremes_2)

    @property
    def approx_kl(self) -> Tensor:
        """KL divergence from the policy of the rollout."""
        return self.parts_5[2]

    @property
    def figures(self) -> list[Tensor]:
        """Metrics in the order of `_FIGURES`, without `grad_norm`."""
        policy_loss, value_loss, approx_kl, clip_fraction, moved = self.parts_5
        entropy, (least, most) = self.heads_XA[0].sum(), (-self.extremes_2[0], self.extremes_2[1])
        ratios = [1.0 + x for x in (moved, least, most)]
        return [policy_loss, value_loss, entropy, approx_kl, clip_fraction, *ratios]

    @property
    def head_entropy_A(self) -> Tensor:
        """Entropy of each head where it was used; NaN for heads that were not (0 / 0)."""
        return self.heads_XA[0] / self.heads_XA[1]


def make_targets(
    advantage_TE: Doubles,
    value_TE: Doubles,
    decided_TE: Bools,
    normalize: bool,
    device: torch.device,
    ranks: Ranks = SINGLE_PROCESS,
) -> Targets:
    """Build the targets and their metrics, which are those of all ranks."""
    return_TE = advantage_TE + value_TE
    decided, returned, estimated = (
        moments(x, ranks) for x in (advantage_TE[decided_TE], return_TE, value_TE)
    )
    unexplained, variance = moments(return_TE - value_TE, ranks).variance, returned.variance
    figures: Row = {
        "explained_variance": 1.0 - unexplained / variance if variance > 0.0 else math.nan,
        "value_mean": estimated.mean,
        "value_std": estimated.deviation,
        "return_mean": returned.mean,
        "return_std": returned.deviation,
        "advantage_mean": decided.mean,
        "advantage_std": decided.deviation,
    }
    if normalize:
        advantage_TE = (advantage_TE - decided.mean) / (decided.deviation + 1e-8)
    wanted = (advantage_TE, return_TE, value_TE)
    advantage, returns, value = (torch.from_numpy(a.astype(np.float32)).to(device) for a in wanted)
    return Targets(advantage, returns, value, torch.from_numpy(decided_TE).to(device), figures)


def run_pass(
    network: PolicyNetwork,
    optimizer: torch.optim.Optimizer,
    rollout: RolloutBuffer,
    targets: Targets,
    config: PPOConfig,
    settings: PassSettings,
    ranks: Ranks = SINGLE_PROCESS,
) -> list[Row]:
    """Run up to `config.epochs` epochs, fewer if the KL limit stops; returns metric rows."""
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate
    figures: list[Tensor] = []
    coef, limit = settings.entropy_coef, config.target_kl
    stopped, epoch, members = False, 0, _Members.of(targets, ranks)
    for epoch in range(config.epochs):
        for part_M in _minibatches(members.count, config.minibatches, settings, epoch):
            own_M, share = members.own_part(part_M)
            own_M = own_M.to(rollout.device)
            batch = rollout.minibatch(own_M)
            output = evaluate(network, batch, settings.use_amp)
            losses = ppo_losses(output, batch, targets, own_M, config, coef, share).over(ranks)
            # SYNC: once a minibatch of the update, and only where there is a limit on KL.
            stopped = limit is not None and losses.approx_kl.item() > limit
            grad_norm = losses.total.new_full((), torch.nan)
            if not stopped:
                grad_norm = _step(network, optimizer, losses, config, ranks)
            figures.append(torch.stack([*losses.figures, grad_norm, *losses.head_entropy_A]))
            if stopped:
                break
        if stopped:
            break
    about: Row = {
        "learning_rate": settings.learning_rate,
        "entropy_coef": settings.entropy_coef,
        "exploration": float(rollout.epsilon_T11[rollout.filled - 1]),
        "epochs_run": epoch + 1,
        "early_stopped": stopped,
    }
    return [*_rows(torch.stack(figures), settings.number), targets.figures | about]


def _minibatches(members: int, parts: int, settings: PassSettings, epoch: int) -> Iterator[Ints]:
    """Yield a random partition of the members into minibatches of near-equal size."""
    seed = stream_seed(settings.seed, "minibatch", settings.number, epoch)
    order = np.random.default_rng(seed).permutation(members)
    yield from np.array_split(order, min(parts, members))


@dataclass(frozen=True, slots=True, eq=False)
class _Members:
    """Members of all ranks, and which of a minibatch are this rank's."""

    first: int
    """Number of this rank's first member."""
    members: int
    """Members of this rank."""
    decided_U: Ints
    """Steps with a decision of each member."""
    steps_U: Ints

    @classmethod
    def of(cls, targets: Targets, ranks: Ranks) -> _Members:
        """Gather the counts of all members."""
        steps, members = targets.decided_TE.shape
        if ranks.size == 1:
            empty_U = np.zeros(members, dtype=np.int64)
            return cls(0, members, empty_U, empty_U)
        # SYNC: one small copy per pass, and only with several ranks.
        decided_E = targets.decided_TE.sum(0).cpu().numpy()
        count_U2 = ranks.gather(np.stack([decided_E, np.full(members, steps)], axis=1))
        return cls(ranks.first_member, members, count_U2[:, 0], count_U2[:, 1])

    @property
    def count(self) -> int:
        """Members of all ranks."""
        return len(self.steps_U)

    def own_part(self, part_M: Ints) -> tuple[Tensor, _Share]:
        """Indices of this rank's members of a minibatch, and their share of it.

        Without any, the rank's first member with a share of 0: every rank computes gradients of
        the same parameters.
        """
        if self.members == self.count:
            return torch.from_numpy(part_M), WHOLE
        own_M = part_M[(part_M >= self.first) & (part_M < self.first + self.members)]
        decided, steps = (
            float(count_U[own_M].sum() / max(1, count_U[part_M].sum()))
            for count_U in (self.decided_U, self.steps_U)
        )
        index_M = own_M - self.first if len(own_M) else np.zeros(1, dtype=np.int64)
        return torch.from_numpy(index_M), _Share(decided, steps)


def evaluate(network: PolicyNetwork, batch: Minibatch, use_amp: bool) -> PolicyOutput:
    """Evaluate the rollout's choices under the current weights."""
    device = batch.choice_TMA.device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=use_amp):
        chooser = Chooser(given_A=batch.choice_TMA)
        output: PolicyOutput = network.unroll(
            batch.inputs, batch.start, batch.split, batch.epsilon_T11, chooser, batch.needed
        )
    return output


def ppo_losses(
    output: PolicyOutput,
    batch: Minibatch,
    targets: Targets,
    members: Tensor,
    config: PPOConfig,
    entropy_coef: float,
    share: _Share = WHOLE,
) -> _Losses:
    """Clipped surrogate, value loss and entropy bonus of one minibatch; `share`: weight of it."""
    choices, decided_TM = output.choices, targets.decided_TE.index_select(1, members)
    log_ratio_TMA = choices.log_prob_A - batch.log_prob_TMA
    log_ratio_TMA = log_ratio_TMA.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    ratio_TM = log_ratio_TMA.sum(-1).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT).exp()
    advantage_TM = targets.advantage_TE.index_select(1, members)
    clipped_TM = ratio_TM.clamp(1.0 - config.clip, 1.0 + config.clip)
    surrogate_TM = torch.minimum(ratio_TM * advantage_TM, clipped_TM * advantage_TM)
    policy_loss = -share.decided * _mean(surrogate_TM, decided_TM)
    value_loss = share.steps * _value_loss(output.value, targets, members, config.value_clip)
    entropy_A = share.decided * _mean(choices.entropy_A, decided_TM)
    bonus = (entropy_A.new_tensor(config.head_entropy) * entropy_A).sum()
    total = policy_loss + config.value_coef * value_loss - entropy_coef * bonus
    with torch.no_grad():
        kl_TM = (log_ratio_TMA.exp() - 1.0 - log_ratio_TMA).sum(-1)
        moved_TM = torch.where(decided_TM, ratio_TM - 1.0, 0.0)
        clipped_TM = (moved_TM.abs() > config.clip).float()
        measured = [share.decided * _mean(x, decided_TM) for x in (kl_TM, clipped_TM, moved_TM)]
        used_A = share.decided * _mean(choices.used_A.float(), decided_TM)
        extremes_2 = torch.stack([-moved_TM.min(), moved_TM.max()])
        if not share.steps:
            extremes_2.fill_(-math.inf)
        parts_5 = torch.stack([policy_loss, value_loss, *measured])
        return _Losses(total, parts_5, torch.stack([entropy_A, used_A]), extremes_2)


def _mean(x: Tensor, decided_TM: Tensor) -> Tensor:
    """Mean over the decided steps of `[T, M]`, or per head of `[T, M, A]`."""
    weight = decided_TM if x.dim() == decided_TM.dim() else decided_TM.unsqueeze(-1)
    return torch.where(weight, x, 0.0).sum((0, 1)) / decided_TM.sum().clamp(min=1)


def _value_loss(value_TM: Tensor, targets: Targets, members: Tensor, clip: float | None) -> Tensor:
    """Mean squared error; with `clip`, the larger of clipped and unclipped error."""
    return_TM = targets.return_TE.index_select(1, members)
    error_TM = (value_TM - return_TM) ** 2
    if clip is not None:
        before_TM = targets.value_TE.index_select(1, members)
        clipped_TM = before_TM + (value_TM - before_TM).clamp(-clip, clip)
        error_TM = torch.maximum(error_TM, (clipped_TM - return_TM) ** 2)
    return error_TM.mean()


def _step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: _Losses,
    config: PPOConfig,
    ranks: Ranks,
) -> Tensor:
    """Take an optimizer step; returns the gradient norm before clipping."""
    optimizer.zero_grad(set_to_none=True)
    losses.total.backward()  # type: ignore[no-untyped-call]
    ranks.add_gradients_(network.parameters())
    grad_norm = nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
    optimizer.step()
    return grad_norm


def _rows(figures: Tensor, number: int) -> Iterator[Row]:
    """Yield one metric row per minibatch; one copy to the host."""
    for line in figures.tolist():  # SYNC: one copy a pass of the update; never in the step
        row: Row = dict(zip(_FIGURES, line, strict=False))
        row["head_entropy"] = tuple(line[len(_FIGURES) :])
        assert len(line) == len(_FIGURES) + len(ActionHead)
        for name in ("policy_loss", "value_loss", "entropy"):
            if not math.isfinite(line[_FIGURES.index(name)]):
                raise EsperError(
                    f"PPO update {number}: {name} is {line[_FIGURES.index(name)]}, so the weights "
                    f"are lost; resume from a checkpoint with a lower learning_rate"
                )
        yield row
