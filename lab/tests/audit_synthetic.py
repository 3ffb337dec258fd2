"""Audits in closed form: accuracy is a saturating function of capacity, so the best topology of
every context and price is known.

    capacity_k = log2(params_k / host's)
    accuracy(c, k) at the end = 0.2 + gain_c * capacity_k / (capacity_k + 1)

The gain of a context follows from its number of groups where contexts matter, and from what is
hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from esper.leyline.context import PLANNED, ContextSpec
from esper.leyline.prices import ScoreConstants
from esper_lab.audit.records import Audit, AuditContexts, AuditInfo, AuditRecords

SIZES = {"": (0, 0), "small": (50, 400), "large": (300, 1500)}
"""Parameters and MACs that a seed adds to a host of 100 parameters and 1000 MACs."""
PRICED = ScoreConstants(c_p=0.04, c_m=0.0, c_f=0.01)


@dataclass(frozen=True)
class Made:
    """How an audit is made."""

    contexts: int = 20
    hosts: int = 4
    slots: int = 3
    steps: int = 8
    noise: float = 0.0
    """Standard deviation of accuracy between hosts, for each topology on its own."""
    matters: bool = True
    """The gain of capacity depends on the number of groups."""
    hidden: float = 0.0
    """Standard deviation of the part of the gain that nobody sees."""
    rate: float = 4.0
    """How early the curve saturates."""
    constants: ScoreConstants = PRICED
    spec: ContextSpec = PLANNED
    seed: int = 0


def made_audit(made: Made = Made(), **changes) -> Audit:  # noqa: B008
    made = replace(made, **changes)
    generator = np.random.default_rng(made.seed)
    info = made_info(made)
    contexts = made_contexts(made, generator)
    shape = (made.contexts, made.hosts, len(info.topologies), made.steps + 1)
    final_CK = final_accuracy(info, contexts, made)
    noise = [generator.normal(0, made.noise, (*shape[:3], 1)) for _ in range(2)]
    rise_T = 1 - np.exp(-made.rate * np.arange(shape[3]) / made.steps)
    rise_T /= rise_T[-1]
    accuracy = 0.1 + (final_CK[:, None, :, None] + noise[0] - 0.1) * rise_T
    test = final_CK[:, None] + noise[1][..., 0]
    share_T = np.arange(shape[3]) / made.steps
    compute = np.broadcast_to(contexts.budget_C[:, None, None, None] * share_T, shape)
    if made.spec.clock == "steps":
        cost_K1 = np.array(info.cost)[:, None]
        compute = np.broadcast_to(cost_K1 * share_T, shape)
    train_loss = 1.0 - accuracy
    train_loss[..., 0] = np.nan
    arrays = (accuracy, accuracy, 1.0 - accuracy, train_loss, compute, test)
    records = AuditRecords(
        *(np.array(values, dtype=np.float32) for values in arrays),
        np.full((*shape[:3], made.slots), np.nan, dtype=np.float32),
    )
    return Audit(info, contexts, records)


def made_info(made: Made) -> AuditInfo:
    topologies = tuple(product(SIZES, repeat=made.slots))
    params = tuple(100 + sum(SIZES[name][0] for name in names) for names in topologies)
    macs = tuple(1000 + sum(SIZES[name][1] for name in names) for names in topologies)
    return AuditInfo(
        task="made",
        seed=made.seed,
        contexts=made.contexts,
        hosts=made.hosts,
        spec=made.spec,
        slots=tuple(f"r0c{i}" for i in range(made.slots)),
        blueprints=("small", "large"),
        topologies=topologies,
        host_params=100,
        host_macs=1000,
        params=params,
        macs=macs,
        cost=tuple(m / 1000 for m in macs),
        classes=10,
        samples=1000,
        steps=made.steps,
        constants=made.constants,
        device="cpu",
        versions={},
    )


def made_contexts(made: Made, generator: np.random.Generator) -> AuditContexts:
    count = made.contexts
    return AuditContexts(
        budget_C=2.0 ** generator.uniform(0, 2, count),
        groups_C=generator.integers(2, 11, count),
        samples_C=np.round(10 ** generator.uniform(2, 3, count)).astype(np.int64),
        learning_rate_C=2.0 ** generator.uniform(-1, 1, count),
        pixel_noise_C=generator.normal(size=count),
        permuted_C=np.zeros(count, dtype=np.bool_),
        label_noise_C=np.zeros(count),
    )


def final_accuracy(info: AuditInfo, contexts: AuditContexts, made: Made) -> np.ndarray:
    """`[C, K]`, in closed form."""
    capacity_K = np.log2(np.array(info.params) / info.host_params)
    gain_C = 0.08 * (contexts.groups_C - 2) if made.matters else np.full(made.contexts, 0.3)
    gain_C = gain_C + made.hidden * contexts.pixel_noise_C
    return 0.2 + gain_C[:, None] * (capacity_K / (capacity_K + 1))


def overfitting_audit(seen: bool, contexts: int = 24) -> Audit:
    """Accuracy rises to a peak and falls by 0.4 over a whole episode; where the peak is follows
    from the number of groups, or from what nobody sees."""
    audit = made_audit(contexts=contexts, hosts=2, slots=1, matters=False)
    groups_C = audit.contexts.groups_C
    if not seen:
        groups_C = np.random.default_rng(5).permutation(groups_C)
    peak_C = groups_C / 11.0
    share_T = np.linspace(0, 1, audit.info.steps + 1)
    fallen_CT = 0.4 * np.abs(share_T - peak_C[:, None])
    for name in ("accuracy_CHKT", "control_CHKT"):
        getattr(audit.records, name)[:] = (0.8 - fallen_CT)[:, None, None, :]
    return audit
