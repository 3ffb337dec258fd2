"""PPO losses, and the loop over epochs and minibatches.

The value loss is averaged over all steps, policy terms over the steps at which the policy had a
choice and its action was executed (`RolloutBuffer.decided_TE`).

Shape letters: T steps, E members, M members of a minibatch, A heads.
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
from esper.leyline.arrays import Bools, Doubles
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper.simic.agent.buffer import Minibatch, RolloutBuffer
from esper.simic.agent.config import PPOConfig
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


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """Loss and metrics of one minibatch."""

    total: Tensor
    approx_kl: Tensor
    figures: list[Tensor]
    """In the order of `_FIGURES`, without `grad_norm`."""
    head_entropy_A: Tensor
    """NaN for heads that were not used."""


def make_targets(
    advantage_TE: Doubles,
    value_TE: Doubles,
    decided_TE: Bools,
    normalize: bool,
    device: torch.device,
) -> Targets:
    """Build the targets and their metrics."""
    return_TE = advantage_TE + value_TE
    decided_N = advantage_TE[decided_TE]
    mean, deviation = (decided_N.mean(), decided_N.std()) if decided_N.size else (0.0, 0.0)
    unexplained, variance = float(np.var(return_TE - value_TE)), float(np.var(return_TE))
    figures: Row = {
        "explained_variance": 1.0 - unexplained / variance if variance > 0.0 else math.nan,
        "value_mean": float(value_TE.mean()),
        "value_std": float(value_TE.std()),
        "return_mean": float(return_TE.mean()),
        "return_std": float(return_TE.std()),
        "advantage_mean": float(mean),
        "advantage_std": float(deviation),
    }
    if normalize:
        advantage_TE = (advantage_TE - mean) / (deviation + 1e-8)
    wanted = (advantage_TE, return_TE, value_TE)
    advantage, returned, value = (torch.from_numpy(a.astype(np.float32)).to(device) for a in wanted)
    return Targets(advantage, returned, value, torch.from_numpy(decided_TE).to(device), figures)


def run_pass(
    network: PolicyNetwork,
    optimizer: torch.optim.Optimizer,
    rollout: RolloutBuffer,
    targets: Targets,
    config: PPOConfig,
    settings: PassSettings,
) -> list[Row]:
    """Run up to `config.epochs` epochs, fewer if the KL limit stops; returns metric rows."""
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate
    figures: list[Tensor] = []
    stopped, epoch = False, 0
    for epoch in range(config.epochs):
        for members in _minibatches(rollout.members, config.minibatches, settings, epoch):
            members = members.to(rollout.device)
            batch = rollout.minibatch(members)
            output = evaluate(network, batch, settings.use_amp)
            losses = ppo_losses(output, batch, targets, members, config, settings.entropy_coef)
            limit = config.target_kl
            # SYNC: once a minibatch of the update, and only where there is a limit on KL.
            stopped = limit is not None and losses.approx_kl.item() > limit
            grad_norm = _no_step(losses) if stopped else _step(network, optimizer, losses, config)
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


def _minibatches(members: int, parts: int, settings: PassSettings, epoch: int) -> Iterator[Tensor]:
    """Yield a random partition of the members into minibatches of near-equal size."""
    seed = stream_seed(settings.seed, "minibatch", settings.number, epoch)
    order = np.random.default_rng(seed).permutation(members)
    for part in np.array_split(order, min(parts, members)):
        yield torch.from_numpy(part)


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
) -> Losses:
    """Clipped surrogate, value loss and entropy bonus of one minibatch."""
    choices, decided_TM = output.choices, targets.decided_TE.index_select(1, members)
    log_ratio_TMA = choices.log_prob_A - batch.log_prob_TMA
    log_ratio_TMA = log_ratio_TMA.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    ratio_TM = log_ratio_TMA.sum(-1).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT).exp()
    advantage_TM = targets.advantage_TE.index_select(1, members)
    clipped_TM = ratio_TM.clamp(1.0 - config.clip, 1.0 + config.clip)
    surrogate_TM = torch.minimum(ratio_TM * advantage_TM, clipped_TM * advantage_TM)
    policy_loss = -_mean(surrogate_TM, decided_TM)
    value_loss = _value_loss(output.value, targets, members, config.value_clip)
    entropy_A = _mean(choices.entropy_A, decided_TM)
    bonus = (entropy_A.new_tensor(config.head_entropy) * entropy_A).sum()
    total = policy_loss + config.value_coef * value_loss - entropy_coef * bonus
    with torch.no_grad():
        approx_kl = _mean((log_ratio_TMA.exp() - 1.0 - log_ratio_TMA).sum(-1), decided_TM)
        moved_TM = torch.where(decided_TM, ratio_TM - 1.0, 0.0)
        clip_fraction = _mean((moved_TM.abs() > config.clip).float(), decided_TM)
        figures = [policy_loss, value_loss, entropy_A.sum(), approx_kl, clip_fraction]
        figures += [1.0 + x for x in (_mean(moved_TM, decided_TM), moved_TM.min(), moved_TM.max())]
        used_A = _mean(choices.used_A.float(), decided_TM)  # 0 / 0 = NaN for unused heads
    known_A = entropy_A.detach() / used_A
    return Losses(total, approx_kl, [figure.detach() for figure in figures], known_A)


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
    network: nn.Module, optimizer: torch.optim.Optimizer, losses: Losses, config: PPOConfig
) -> Tensor:
    """Take an optimizer step; returns the gradient norm before clipping."""
    optimizer.zero_grad(set_to_none=True)
    losses.total.backward()  # type: ignore[no-untyped-call]
    grad_norm = nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
    optimizer.step()
    return grad_norm


def _no_step(losses: Losses) -> Tensor:
    return losses.total.new_full((), torch.nan)


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
