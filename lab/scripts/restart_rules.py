"""What choosing an initialisation is worth: rules of restarting, by look-up in records of an audit.

    python lab/scripts/restart_rules.py digits_tiny8
    python lab/scripts/restart_rules.py out/budget1 --longer out/budget2

The hosts of a context are its initialisations. A rule sees them in random order, as accuracy on
`val_control`, and keeps one; accuracy on `val_score` at its end counts. Compute is that of all runs
it began, in whole runs. `--longer`: the same audit with a larger budget, so that a rule is also
compared with one run of its own compute (logarithmic in between). "By its curve": by a linear
forecast of the end from accuracies and losses so far, fitted to the other contexts.

Shape letters: C contexts, H hosts, K topologies, T observations, R random orders, M hosts that a
rule may begin, X runs of other contexts, F numbers that say how a curve has gone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import tyro

from esper.leyline.arrays import Bools, Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.limits import require_counts
from esper.scripts.cli.command import run_command
from esper.tamiyo.asha import ETA, rung_steps
from esper_lab.audit.packed import find_records
from esper_lab.audit.records import Audit, read_audit

MEMBERS: Final = (2, 3, 4, 8)
SHARES: Final = (1 / 12, 1 / 6, 1 / 3, 1 / 2)
"""Parts of a run after which a rule decides."""
QUANTILES: Final = (0.25, 0.5, 0.75)
RESTARTS: Final = 3
PENALTIES: Final = tuple(10.0**power for power in range(-3, 4))
"""Of the forecast, to choose from by cross-validation."""
MIN_KNOWN: Final = 4
"""Fewest runs that the quantile of a context is taken from."""


@dataclass(frozen=True)
class RestartRules:
    """Compare rules of restarting with one run, by look-up in records."""

    records: Annotated[str, tyro.conf.Positional]
    """Folder of an audit, or the name of records that ship with the lab."""
    longer: Path | None = None
    """Folder of the same audit with a larger budget."""
    draws: int = 400
    """Random orders of the hosts of each context."""
    seed: int = 0
    """Of these orders."""


@dataclass(frozen=True, slots=True, eq=False)
class Orders:
    """The runs of a context in random orders."""

    control_HKT: Doubles
    final_HK: Doubles
    order_RH: Ints
    others_XKT: Doubles
    """Runs of the other contexts, on `val_control`."""
    forecast: Callable[[int], Doubles]
    """`[H, K]`: after a step, from the curve so far; it only ranks the hosts."""

    @property
    def steps(self) -> int:
        """Steps of a run."""
        return int(self.control_HKT.shape[-1]) - 1

    def control(self, members: int, step: int) -> Doubles:
        """`[R, M, K]`: on `val_control` after a step."""
        return np.asarray(self.control_HKT[self.order_RH[:, :members], :, step])

    def spared(self, members: int, step: int) -> Doubles:
        """`[R, H - M, K]`: the same of the hosts that a rule does not begin."""
        return np.asarray(self.control_HKT[self.order_RH[:, members:], :, step])

    def final(self, members: int) -> Doubles:
        """`[R, M, K]`: on `val_score` at the end."""
        return np.asarray(self.final_HK[self.order_RH[:, :members]])


Played = tuple[Ints, Doubles]
"""Which of its runs a rule keeps, and how many whole runs it took, `[R, K]` each."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to choose one of several runs."""

    name: str
    members: int
    """M."""
    play: Callable[[Orders], Played]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Results of a rule by context."""

    name: str
    runs_C: Doubles
    """Compute in runs."""
    gain_C: Doubles
    """Accuracy minus that of one run."""
    priced_C: Doubles
    """The same minus the price of the further compute."""
    equal_C: Doubles | None
    """Accuracy minus that of one run with the same compute; NaN beyond the longer audit."""


def best_of(members: int, step: int, by_curve: bool = False) -> Rule:
    """The best on `val_control` after a step goes on; `by_curve`: the best by its forecast."""

    def play(orders: Orders) -> Played:
        if by_curve:
            seen_RMK = orders.forecast(step)[orders.order_RH[:, :members]]
        else:
            seen_RMK = orders.control(members, step)
        kept_RK = seen_RMK.argmax(axis=1)
        return kept_RK, np.full(kept_RK.shape, 1 + (members - 1) * step / orders.steps)

    return Rule(f"best of {members} after step {step}{by_curve * ', by its curve'}", members, play)


def quantile(share: float, step: int, by_context: bool) -> Rule:
    """Begin anew after a step below a quantile of single runs, at most RESTARTS times.

    `by_context`: of runs in the same context, which are not among those begun; else of runs in the
    other contexts.
    """
    members = RESTARTS + 1

    def play(orders: Orders) -> Played:
        known = orders.spared(members, step) if by_context else orders.others_XKT[None, ..., step]
        least_R1K = np.quantile(known, share, axis=1, keepdims=True)
        passes_RMK = orders.control(members, step) >= least_R1K
        passes_RMK[:, -1] = True
        kept_RK = passes_RMK.argmax(axis=1)
        return kept_RK, 1 + kept_RK * step / orders.steps

    where = "the context" if by_context else "the task"
    return Rule(f"below quantile {share} of {where} at step {step}", members, play)


def halving(members: int) -> Rule:
    """ASHA over initialisations: the worse half stops at each rung."""

    def play(orders: Orders) -> Played:
        rungs = rung_steps(members, orders.steps)
        running = members
        best_first_RMK = np.argsort(-orders.control(members, rungs[0]), axis=1, kind="stable")
        spent = 0.0
        for at, rung in enumerate(rungs):
            if at:
                seen_RMK = np.take_along_axis(orders.control(members, rung), best_first_RMK, 1)
                again_RMK = np.argsort(-seen_RMK, axis=1, kind="stable")
                best_first_RMK = np.take_along_axis(best_first_RMK, again_RMK, 1)
            left = -(-running // ETA)
            spent += (running - left) * rung / orders.steps
            running, best_first_RMK = left, best_first_RMK[:, :left]
        kept_RK = best_first_RMK[:, 0]
        return kept_RK, np.full(kept_RK.shape, 1 + spent)

    return Rule(f"asha over {members}", members, play)


def oracle(members: int) -> Rule:
    """The best at the end on `val_score`, which no rule may see."""

    def play(orders: Orders) -> Played:
        kept_RK = orders.final(members).argmax(axis=1)
        return kept_RK, np.full(kept_RK.shape, float(members))

    return Rule(f"oracle: best of {members} at the end", members, play)


def rules(hosts: int, steps: int) -> list[Rule]:
    """All rules that so many hosts allow."""
    at = sorted({max(1, round(share * steps)) for share in SHARES})
    fit = [members for members in MEMBERS if members <= hosts]
    found = [best_of(members, step) for members in fit for step in (*at, steps)]
    found += [best_of(members, step, by_curve=True) for members in fit for step in at]
    if hosts > RESTARTS:
        known = (True, False) if hosts - RESTARTS - 1 >= MIN_KNOWN else (False,)
        found += [quantile(q, step, by) for by in known for q in QUANTILES for step in at[1:3]]
    found += [halving(members) for members in fit if members in (4, 8)]
    return found + [oracle(members) for members in fit]


# ---- look-up -----------------------------------------------------------------------------------


def judge(config: RestartRules, audit: Audit, longer: Audit | None) -> tuple[int, list[Row]]:
    """Number of contexts, and a row for each rule."""
    there_C = np.asarray(np.isfinite(audit.records.accuracy_CHKT).all(axis=(1, 2, 3)))
    if longer is not None:
        there_C = there_C & _same_contexts(audit, longer)
    at = np.flatnonzero(there_C)
    if len(at) < 2:
        raise EsperError(
            f"{config.records}: {len(at)} finished contexts; intervals need 2 or more, so run more"
        )
    generator = np.random.default_rng(config.seed)
    found = rules(audit.info.hosts, audit.info.steps)
    played = [[_played(rule, o) for rule in found] for o in _orders(config, audit, at, generator)]
    mean_C = audit.records.accuracy_CHKT[at, :, :, -1].mean(axis=(1, 2), dtype=np.float64)
    run_C = audit.records.compute_CHKT[at, ..., -1].mean(axis=(1, 2), dtype=np.float64)
    rows = []
    for place, rule in enumerate(found):
        runs_C, accuracy_C = np.array([by_rule[place] for by_rule in played]).T
        gain_C = accuracy_C - mean_C
        price_C = audit.info.constants.c_f * (runs_C - 1) * run_C
        equal_C = None if longer is None else gain_C - _of_longer(audit, longer, at, runs_C)
        rows.append(Row(rule.name, runs_C, gain_C, gain_C - price_C, equal_C))
    return len(at), rows


def _orders(
    config: RestartRules, audit: Audit, at: Ints, generator: np.random.Generator
) -> list[Orders]:
    control_CHKT = audit.records.control_CHKT.astype(np.float64)
    hosts, topologies, observations = control_CHKT.shape[1:]
    found = []
    for context in at:
        rest = at[at != context]
        others = control_CHKT[rest].reshape(-1, topologies, observations)
        order_RH = np.argsort(generator.random((config.draws, hosts)), axis=1)
        final_HK = audit.records.accuracy_CHKT[context, :, :, -1].astype(np.float64)
        forecast = partial(forecasts, audit, rest, int(context))
        found.append(Orders(control_CHKT[context], final_HK, order_RH, others, forecast))
    return found


def forecasts(audit: Audit, known: Ints, context: int, step: int) -> Doubles:
    """`[H, K]`: how each host of a context will end, from its curve up to a step.

    Fitted to the contexts that are known, where curves and ends count by how they differ from those
    of the other hosts with the same topology.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    curves_CHKF = curve_features(audit, step)
    ends_CHK = audit.records.accuracy_CHKT[..., -1].astype(np.float64)
    seen = curves_CHKF[known] - curves_CHKF[known].mean(axis=1, keepdims=True)
    ends = ends_CHK[known] - ends_CHK[known].mean(axis=1, keepdims=True)
    model = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
    model.fit(seen.reshape(-1, seen.shape[-1]), ends.ravel())
    new_HKF = curves_CHKF[context]
    return np.asarray(model.predict(new_HKF.reshape(-1, new_HKF.shape[-1]))).reshape(
        new_HKF.shape[:-1]
    )


def curve_features(audit: Audit, step: int) -> Doubles:
    """`[C, H, K, F]`: accuracy, loss and training loss at a step, two before it and on average."""
    records = audit.records
    curves = (records.control_CHKT, records.loss_CHKT, records.train_loss_CHKT)
    columns = [
        column
        for curve_CHKT in curves
        for column in (
            curve_CHKT[..., step],
            curve_CHKT[..., max(1, step - 2)],
            curve_CHKT[..., 1 : step + 1].mean(axis=-1),
        )
    ]
    return np.nan_to_num(np.stack(columns, axis=-1).astype(np.float64))


def _played(rule: Rule, orders: Orders) -> tuple[float, float]:
    """Mean compute and accuracy over orders and topologies."""
    kept_RK, runs_RK = rule.play(orders)
    final_RK = np.take_along_axis(orders.final(rule.members), kept_RK[:, None], 1)[:, 0]
    return float(runs_RK.mean()), float(final_RK.mean())


def _same_contexts(audit: Audit, longer: Audit) -> Bools:
    """Contexts that the longer audit has as well; raises if they are others."""
    ours, theirs = audit.contexts, longer.contexts
    there_C = np.zeros(audit.info.contexts, dtype=np.bool_)
    both = min(audit.info.contexts, longer.info.contexts)
    there_C[:both] = np.isfinite(longer.records.accuracy_CHKT[:both]).all(axis=(1, 2, 3))
    there_C &= np.isfinite(ours.budget_C)
    same = audit.info.task == longer.info.task and audit.info.seed == longer.info.seed
    for name in ("groups_C", "samples_C", "label_noise_C"):
        first, second = getattr(ours, name)[there_C], getattr(theirs, name)[:both][there_C[:both]]
        same = same and np.array_equal(first, second)
    if not same or (theirs.budget_C[:both] <= ours.budget_C[:both])[there_C[:both]].any():
        raise EsperError("--longer: give an audit of the same task and seed with a larger budget")
    return there_C


def _of_longer(audit: Audit, longer: Audit, at: Ints, runs_C: Doubles) -> Doubles:
    """`[C]`: what one run gains from so much compute; NaN beyond the longer runs."""
    ratio_C = longer.contexts.budget_C[at] / audit.contexts.budget_C[at]
    ends = [a.records.accuracy_CHKT[at, :, :, -1].mean(axis=(1, 2)) for a in (audit, longer)]
    part_C = np.log(runs_C) / np.log(ratio_C)
    return np.where(part_C <= 1 + 1e-9, part_C * (ends[1] - ends[0]), np.nan)


# ---- table -------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Markdown: means over contexts with their standard errors."""
    with_longer = any(row.equal_C is not None for row in rows)
    head = ["rule", "runs", "minus one run (s.e.)", "at the price (s.e.)"]
    head += ["minus one run of its compute (s.e.)"] * with_longer
    lines = [head, ["---"] * len(head)]
    for row in rows:
        gains = [row.gain_C, row.priced_C, *([] if row.equal_C is None else [row.equal_C])]
        lines.append([row.name, f"{row.runs_C.mean():.2f}", *map(_with_error, gains)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _with_error(values_C: Doubles) -> str:
    if not np.isfinite(values_C).all():
        return ""
    return f"{values_C.mean():+.3f} ({values_C.std(ddof=1) / len(values_C) ** 0.5:.3f})"


def show(config: RestartRules) -> None:
    """Read the records and print the table."""
    require_counts(draws=config.draws)
    audit = read_audit(find_records(config.records))
    longer = None if config.longer is None else read_audit(config.longer)
    contexts, rows = judge(config, audit, longer)
    info = audit.info
    one = np.nanmean(audit.records.accuracy_CHKT[..., -1])
    print(
        f"{info.task}: {contexts} contexts, {info.hosts} initialisations, "
        f"{len(info.topologies)} topologies, {info.steps} steps; one run {one:.3f}\n"
    )
    print(table(rows))


def main() -> int:
    """Entry point of the command."""
    return run_command(RestartRules, show)


if __name__ == "__main__":
    sys.exit(main())
