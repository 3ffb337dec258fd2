"""Records of an audit: the learning curve of every (context, host, topology), and what they cost.

An audit folder holds `audit.json` (what was run) and one Parquet file per context, written whole
or not at all. In memory all of it is arrays.

Scores are not stored: they follow from accuracy, size, compute and a price (`scores`).

Shape letters: C contexts, H hosts (weights and order of batches), K topologies, T observations
(before the first step and after each), S slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Floats, Ints
from esper.leyline.context import ContextSpec
from esper.leyline.prices import ScoreConstants

SCHEMA: Final = 1
"""Version of the files."""
INFO: Final = "audit.json"


@dataclass(frozen=True, slots=True)
class AuditInfo:
    """What an audit ran."""

    task: str
    seed: int
    contexts: int
    hosts: int
    spec: ContextSpec
    """Distribution that contexts were drawn from."""
    slots: tuple[str, ...]
    blueprints: tuple[str, ...]
    topologies: tuple[tuple[str, ...], ...]
    """Blueprint of every slot, "" for an empty one; the first is the bare host."""
    host_params: int
    host_macs: int
    params: tuple[int, ...]
    """Of each topology, host included."""
    macs: tuple[int, ...]
    cost: tuple[float, ...]
    """Training compute of a batch of each topology, relative to the bare host's."""
    classes: int
    samples: int
    """Training samples of the task."""
    steps: int
    """T - 1."""
    constants: ScoreConstants
    """Price of growth at factor 1."""
    device: str
    versions: dict[str, str]
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, eq=False)
class AuditContexts(ArrayStruct):
    """Contexts that were drawn; price and caps are left to the analysis, as they do not change the
    training of a planted topology."""

    budget_C: Doubles
    """Compute in training runs of the bare host."""
    groups_C: Ints
    """Classes to tell apart."""
    samples_C: Ints
    """Training samples in use."""
    learning_rate_C: Doubles
    """Factor on the task's rates."""
    pixel_noise_C: Doubles
    """Hidden from policies, as are the following."""
    permuted_C: Bools
    label_noise_C: Doubles


@dataclass(frozen=True, slots=True, eq=False)
class AuditRecords(ArrayStruct):
    """All that an audit measured; NaN where a context was not run yet."""

    accuracy_CHKT: Floats
    """On `val_score`: what scores are made of."""
    control_CHKT: Floats
    """Accuracy on `val_control`: what policies see."""
    loss_CHKT: Floats
    """Loss on `val_control`."""
    train_loss_CHKT: Floats
    """Mean over the step; NaN before the first."""
    compute_CHKT: Floats
    """Spent so far, in training runs of the bare host."""
    test_CHK: Floats
    """Accuracy on `test`, at the end."""
    contribution_CHKS: Floats
    """Leave-one-out contribution of each seed on `val_control` at the end; NaN for empty slots."""


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """An audit folder in memory."""

    info: AuditInfo
    contexts: AuditContexts
    records: AuditRecords


def scores(
    info: AuditInfo, accuracy: Floats | Doubles, compute: Floats | Doubles, price: float
) -> Doubles:
    """Scores `[..., K]` of accuracies `[..., K]` that took compute `[..., K]`, at a price factor.

    >>> # accuracy - price * (c_p log2(1 + dP / P0) + c_m log2(1 + dM / M0) + c_f (compute - 1))
    """
    params_K = np.array(info.params) / info.host_params - 1.0
    macs_K = np.array(info.macs) / max(1, info.host_macs) - 1.0
    rent = info.constants.rent(params_K, macs_K, np.asarray(compute, dtype=np.float64) - 1.0)
    return np.asarray(np.asarray(accuracy, dtype=np.float64) - price * rent)


def read_audit(path: Path) -> Audit:
    """Read an audit folder; contexts that are missing are NaN."""
    raise NotImplementedError
