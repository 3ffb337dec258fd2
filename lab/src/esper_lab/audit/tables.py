"""Audit results as text: regrets, gates, searches and the leaderboard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from esper.leyline.statistics import Estimate
from esper_lab.audit.leaderboard import Row
from esper_lab.audit.live_report import TIMES, LiveComparison, LiveGate
from esper_lab.audit.records import AuditInfo
from esper_lab.audit.regrets import STOP, Gate, Regrets
from esper_lab.audit.search_lookup import matching_runs


def regrets_table(regrets: Regrets) -> str:
    """Mean score, minus that of `best`, N*, size and compute of every contender, best first."""
    rows = []
    for name, contender in sorted(
        regrets.contenders.items(), key=lambda item: -item[1].score.value
    ):
        runs = matching_runs(regrets.search, contender.score.value) if regrets.search else math.nan
        rows.append(
            (
                name,
                estimate_text(contender.score, sign=False),
                "" if name == "best" else estimate_text(regrets.minus_best(name)),
                _runs_text(runs),
                f"{contender.params_CD.mean():,.0f}",
                f"{contender.test_CD.mean():.3f}",
                f"{contender.compute_CD.mean():.2f}",
            )
        )
    head = ("contender", "score", "minus best", "N*", "parameters", "test", "compute")
    return text_table(head, rows)


def gates_table(gates: Sequence[Gate]) -> str:
    """Margins of the best topology per context, and whether they suffice."""
    rows = [
        (
            f"best{STOP if gate.against.endswith(STOP) else ''} - {gate.against} >= {gate.least:g}",
            gate_verdict(gate),
            estimate_text(gate.margin),
            estimate_text(gate.shrunk),
            estimate_text(gate.most),
        )
        for gate in gates
    ]
    return text_table(("gate", "verdict", "margin", "best_shrunk", "oracle (at most)"), rows)


def gate_verdict(gate: Gate) -> str:
    """`pass` or `fail`, with a question mark where the interval holds both."""
    return ("pass" if gate.passed else "fail") + ("" if gate.certain else " ?")


def noise_text(regrets: Regrets) -> str:
    """The noise floor in two sentences."""
    noise = regrets.noise
    return (
        f"Hosts differ by {noise.host_sd:.4f} (s.d. of accuracy), by {noise.topology_sd:.4f} "
        f"without what all topologies of a host share. `best` loses "
        f"{estimate_text(noise.selection)} to a choice that knows the judging hosts."
    )


def price_table(regrets: Regrets, info: AuditInfo) -> str:
    """The table price -> topology, without caps."""
    rows = [
        (
            f"{price:.2f}",
            f"{info.params[k]:,}",
            ", ".join(name or "-" for name in info.topologies[k]),
        )
        for price, k in regrets.table
    ]
    return text_table(("price", "parameters", "topology"), rows)


def search_table(regrets: Regrets) -> str:
    """Score and compute of ASHA by size."""
    rows = [
        (f"asha:{p.topologies}", f"{p.score:.4f}", f"{p.compute:.2f}", f"{p.runs:.2f}")
        for p in regrets.search
    ]
    return text_table(("search", "score", "compute", "single runs"), rows)


def leaderboard_table(rows: Sequence[Row]) -> str:
    """The leaderboard; yardsticks that look into the records are marked with *."""
    cells = [
        (
            row.name + ("*" if row.sees_all else ""),
            estimate_text(row.score, sign=False),
            estimate_text(row.above_one),
            f"{row.gap_closed:+.2f}",
            f"{row.compute:.2f}",
            f"{row.params:,.0f}",
            f"{row.stopped:.0%}",
            f"{row.n:,}",
        )
        for row in rows
    ]
    head = ("policy", "score", "minus one", "gap closed", "compute", "parameters", "stopped", "n")
    return text_table(head, cells)


def live_table(found: LiveComparison) -> str:
    """Live policies and contenders from records, on the same cases, best first."""
    cells = [
        (
            row.name + (" (live)" if row.live else ""),
            estimate_text(row.score, sign=False),
            estimate_text(row.above),
            _runs_text(row.runs),
            f"{row.params:,.0f}",
            f"{row.test:.3f}",
            f"{row.compute:.2f}",
        )
        for row in found.rows
    ]
    head = ("contender", "score", "minus regression", "N*", "parameters", "test", "compute")
    return (
        f"{found.cases} cases in {found.contexts} contexts; (live): trained, the others from "
        f"records.\n\n{text_table(head, cells)}"
    )


def live_gates_table(found: LiveComparison) -> str:
    """Whether deciding in training beats (c), and matches a search of 4 times its compute."""
    rows = []
    for gate in found.gates:
        beats, beats_stopping, matches = live_verdicts(gate)
        what = f"matches a search of {gate.times:.1f} times its compute"
        if gate.times < TIMES:
            what += " (the largest)"
        rows.append((f"{gate.policy} beats regression (c)", beats, estimate_text(gate.beats)))
        stopping = f"{gate.policy} beats regression{STOP}"
        rows.append((stopping, beats_stopping, estimate_text(gate.beats_stopping)))
        rows.append((f"{gate.policy} {what}", matches, estimate_text(gate.matches)))
        if gate.beats_static is not None:
            verdict = _above_zero(gate.beats_static)
            what = f"{gate.policy} beats its final topology, planted"
            rows.append((what, verdict, estimate_text(gate.beats_static)))
    slots = f"{found.slots} slots; the gate of searches is meant for hosts with 8 or more."
    return f"{text_table(('gate', 'verdict', 'margin'), rows)}\n\n{slots}"


def live_verdicts(gate: LiveGate) -> tuple[str, str, str]:
    """`pass` or `fail` of the gates, with a question mark where the interval holds both, or where
    a search that is matched takes less compute than the gate asks for."""
    matched = gate.passed[2]
    unsure = gate.matches.low < 0 <= gate.matches.high or (matched and gate.times < TIMES)
    third = ("pass" if matched else "fail") + (" ?" if unsure else "")
    return _above_zero(gate.beats), _above_zero(gate.beats_stopping), third


def _above_zero(margin: Estimate) -> str:
    """Whether the whole interval is above 0."""
    if margin.low > 0:
        return "pass"
    return "fail ?" if margin.high > 0 else "fail"


def agreement_table(found: LiveComparison) -> str:
    """Scores of policies of the bench by training against those from records."""
    rows = [
        (
            it.policy,
            "pass" if it.passed else "fail",
            estimate_text(it.difference),
            f"{it.largest:.4f}",
            f"{it.host_sd:.4f}",
            f"{it.pairs}",
        )
        for it in found.agreements
    ]
    head = ("policy", "verdict", "trained minus records", "largest", "s.d. between hosts", "pairs")
    return text_table(head, rows)


def gaps_table(boards: Mapping[str, Sequence[Row]]) -> str:
    """Gap closed of every policy on several records, and its mean, best first."""
    closed = {
        name: [row.gap_closed for rows in boards.values() for row in rows if row.name == name]
        for name in {row.name: None for rows in boards.values() for row in rows}
    }
    marked = {row.name for rows in boards.values() for row in rows if row.sees_all}
    cells = [
        (
            name + ("*" if name in marked else ""),
            *(f"{gap:+.2f}" for gap in gaps),
            f"{sum(gaps) / len(gaps):+.2f}",
        )
        for name, gaps in sorted(closed.items(), key=lambda item: -sum(item[1]))
    ]
    return text_table(("gap closed", *boards, "mean"), cells)


# ---- helpers -----------------------------------------------------------------------------------


def estimate_text(estimate: Estimate, sign: bool = True) -> str:
    """A value with its interval.

    >>> estimate_text(Estimate(0.0123, 0.01, 0.02))
    '+0.0123 (+0.0100 to +0.0200)'
    """
    form = "+.4f" if sign else ".4f"
    value = format(estimate.value, form)
    if math.isnan(estimate.low):
        return value
    return f"{value} ({format(estimate.low, form)} to {format(estimate.high, form)})"


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left, the others to the right.

    >>> print(text_table(("a", "b"), [("x", "10"), ("yy", "2")]))
    a    b
    x   10
    yy   2
    """
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _runs_text(runs: float) -> str:
    if math.isnan(runs):
        return ""
    return "no search" if math.isinf(runs) else f"{runs:.1f}"
