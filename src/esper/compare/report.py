"""Report of a comparison: tables, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from esper.compare.comparison import METRICS, ComparedPolicy, Comparison, Metric, PolicyResult
from esper.compare.matching import matching_compute
from esper.leyline.codec import Json, to_json
from esper.leyline.context import FIXED, NAMED_CONTEXTS, ContextSpec
from esper.leyline.errors import shorten
from esper.plotting.numbers import interval, number, signed_interval

TOPOLOGIES_SHOWN: Final = 3
LABEL_SHOWN: Final = 24
"""Maximum characters of a label on the console."""


def _title_of(found: Comparison) -> str:
    """`7 policies on digits_impaired, the same 20 hosts each`"""
    settings = found.settings
    rent = "" if settings.rent == 1 else f", rent {settings.rent:g} times the task's"
    many = f"{len(found.policies)} policies" if len(found.policies) > 1 else "1 policy"
    contexts = "" if settings.context == FIXED else f", contexts {_contexts_name(settings.context)}"
    if settings.context.varies_rounds:
        contexts += f" ({found.draws} draws)"
    return f"{many} on {settings.task}, the same {settings.seeds} hosts for each{rent}{contexts}"


def _contexts_name(spec: ContextSpec) -> str:
    """`planned`, `varied`, or `of its own`."""
    return next((name for name, known in NAMED_CONTEXTS.items() if known == spec), "of its own")


# ---- formatting --------------------------------------------------------------------------------


def _wins(policy: ComparedPolicy, metric: Metric) -> str:
    """`17 of 20`: hosts on which it is better than the reference, and ties."""
    difference = policy.standing(metric.name).difference
    if difference is None:
        return ""
    better = difference.above if metric.higher_is_better else difference.below
    ties = f", {difference.equal} equal" if difference.equal else ""
    return f"{better} of {difference.above + difference.equal + difference.below}{ties}"


# ---- console -----------------------------------------------------------------------------------


def score_table(found: Comparison) -> Table:
    """Mean score of every policy, and minus that of the reference: the columns subtract."""
    score = METRICS[0]
    table = Table(title=escape(_title_of(found)), box=SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    first = escape(shorten(found.policies[0].label, LABEL_SHOWN // 2))
    for name in ("mean score (95 %)", f"minus {first} (95 %)", "P(better)", "better on"):
        table.add_column(name, justify="right")
    for policy in found.policies:
        standing = policy.standing(score.name)
        row = [shorten(policy.label, LABEL_SHOWN), interval(standing.mean)]
        if standing.difference is not None and standing.improvement is not None:
            row += [
                signed_interval(standing.difference.student),
                number(standing.improvement.value),
                _wins(policy, score),
            ]
        table.add_row(*map(escape, row))
    return table


def cost_table(found: Comparison) -> Table:
    """Mean accuracy, size and cost of every policy."""
    over = "contexts" if found.settings.context.varies_rounds else "hosts"
    table = Table(title=f"means over {over}", box=SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    names = {"score_test": "score on test", "test": "test", "accuracy": "val_score",
             "parameters": "parameters", "macs": "MACs",
             "flops_ratio": "FLOPs / host's"}  # fmt: skip
    if any(policy.result.search is not None for policy in found.policies):
        names["compute"] = "with search"
    for name in (*names.values(), "s / host"):
        table.add_column(name, justify="right")
    for policy in found.policies:
        values = [
            number(policy.standing(metric.name).mean.value)
            for metric in METRICS
            if metric.name in names
        ]
        label = escape(shorten(policy.label, LABEL_SHOWN))
        table.add_row(label, *values, f"{policy.result.seconds_per_host:.2f}")
    return table


# ---- numbers -----------------------------------------------------------------------------------


def numbers(found: Comparison) -> Json:
    """All results per host and their statistics, for compare.json."""
    return {
        "format": "esper-comparison",
        "schema": 2,
        "reference": found.policies[0].label,
        "settings": to_json(found.settings),
        "policies": [_policy_numbers(policy) for policy in found.policies],
        "matching_compute": [to_json(match) for match in matching_compute(found)],
    }


def _policy_numbers(policy: ComparedPolicy) -> Json:
    """The record of a policy, and what is derived per host."""
    record = to_json(policy)
    assert isinstance(record, dict)  # a record
    result = policy.result
    return record | {
        "score_test_N": to_json(result.score_test_N),
        "compute_N": to_json(result.compute_N),
    }


# ---- Markdown ----------------------------------------------------------------------------------


def markdown(found: Comparison) -> str:
    """The Markdown report."""
    parts = [
        f"# {_title_of(found)}",
        *(_metric_part(found, metric) for metric in METRICS),
        *_matching_part(found),
        *_context_part(found),
        _wall_time_part(found),
        _topology_part(found),
        _settings_part(found),
        _reading_part(found),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    lines = [list(head), ["---", *["---:"] * (len(head) - 1)], *(list(row) for row in rows)]
    cells = ([text.replace("|", "\\|") for text in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _metric_part(found: Comparison, metric: Metric) -> str:
    first = found.policies[0].label
    better = "higher" if metric.higher_is_better else "lower"
    head = ("policy", "mean (t)", f"mean, minus {first} (t)", f"mean, minus {first} (bootstrap)",
            "IQM (bootstrap)", f"P({better})", "better on")  # fmt: skip
    rows = []
    for policy in found.policies:
        standing = policy.standing(metric.name)
        iqm = interval(standing.iqm)
        row = [policy.label, interval(standing.mean)]
        if standing.difference is None or standing.improvement is None:
            row += ["the reference", "", iqm, "", ""]
        else:
            row += [
                signed_interval(standing.difference.student),
                signed_interval(standing.difference.bootstrap),
                iqm,
                interval(standing.improvement),
                _wins(policy, metric),
            ]
        rows.append(row)
    return f"## {metric.words} ({better} is better)\n\n{_table(head, rows)}"


def _matching_part(found: Comparison) -> list[str]:
    """Compute of asha that matches a controller; nothing without at least two searches."""
    matches = matching_compute(found)
    if not matches:
        return []
    rows = [(match.label, match.metric, str(match)) for match in matches]
    table = _table(("policy", "metric", "N*"), rows)
    return [
        f"## N*\n\nCompute of asha, in runs of the policy, at which its mean score is the same; "
        f"interpolated between the searches of this comparison.\n\n{table}"
    ]


def _context_part(found: Comparison) -> list[str]:
    """Contexts of the hosts, which are the same for all policies; nothing if they are fixed."""
    contexts = found.policies[0].result.contexts
    if contexts is None or found.settings.context == FIXED:
        return []
    columns = {
        "price of growth": contexts.price_N,
        "learning rate": contexts.learning_rate_N,
        "parameter cap": contexts.params_cap_N,
        "MAC cap": contexts.macs_cap_N,
        "budget, host runs": contexts.budget_N,
        "classes": contexts.groups_N,
    }
    rows = []
    for name, values_N in columns.items():
        drawn_N = values_N[np.isfinite(values_N)]
        ends = [f"{drawn_N.min():.4g}", f"{drawn_N.max():.4g}"] if drawn_N.size else ["none"] * 2
        rows.append((name, *ends, f"{drawn_N.size} of {values_N.size}"))
    table = _table(("drawn", "least", "most", "hosts"), rows)
    draws = (
        f" Budget and data were drawn {found.draws} times." * found.settings.context.varies_rounds
    )
    return [f"## Contexts\n\nFactors are relative to the task's.{draws}\n\n{table}"]


def _wall_time_part(found: Comparison) -> str:
    rows = [
        (c.label, f"{c.result.seconds_per_host:.3f}", c.result.executor, c.result.device)
        for c in found.policies
    ]
    table = _table(("policy", "seconds per host", "executor", "device"), rows)
    return (
        f"## Wall time\n\nOf one episode, including validation and the measurement of seeds, "
        f"excluding set-up. Hosts of a population share it, so there is no interval. Meaningful "
        f"only on an otherwise idle machine.\n\n{table}"
    )


def _topology_part(found: Comparison) -> str:
    restarts = any(policy.result.restarts is not None for policy in found.policies)
    rows = []
    for policy in found.policies:
        result = policy.result
        common = result.topologies().most_common(TOPOLOGIES_SHOWN)
        counts = (result.germinated_N, result.fossilized_N, result.pruned_N, result.rollbacks_N)
        rows.append(
            [
                policy.label,
                *(f"{count_N.mean():.2f}" for count_N in counts),
                *([_restarts_text(result)] if restarts else []),
                "; ".join(f"{count} x {words}" for words, count in common),
            ]
        )
    head = ["policy", "germinated", "permanent", "pruned", "rollbacks"]
    head += [*(["restarts"] if restarts else []), "most frequent topologies"]
    return f"## Growth per host\n\n{_table(head, rows)}"


def _restarts_text(result: PolicyResult) -> str:
    return "" if result.restarts is None else f"{result.restarts.count_N.mean():.2f}"


def _settings_part(found: Comparison) -> str:
    entries = to_json(found.settings)
    assert isinstance(entries, dict)  # a record
    rows = [(name, f"`{value}`") for name, value in entries.items()]
    policies = [(c.label, f"`{c.policy}`, grows {', '.join(c.result.blueprints)}")
                for c in found.policies]  # fmt: skip
    return f"## Settings\n\n{_table(('setting', 'value'), [*rows, *policies])}"


def _units(found: Comparison) -> str:
    """What intervals are over: `n = 20 hosts`."""
    if not found.settings.context.varies_rounds:
        return f"n = {found.settings.seeds} hosts"
    return f"n = {found.draws} contexts, the means of the hosts that share their budget and data"


def _reading_part(found: Comparison) -> str:
    settings = found.settings
    return (
        f"## How to read it\n\n{settings.seeds} hosts, each with its own initial weights and "
        f"batches, from run seeds reserved for evaluation; host i is the same for every policy. "
        f"Figures are over {_units(found)}. "
        f"Intervals are 95 % and hold for one comparison at a time. IQM: mean of the middle half. "
        f"Differences are paired. P: probability that one of the policy is "
        f"better than one of {found.policies[0].label}, ties half, not paired. "
        f"See docs/compare.md."
    )
