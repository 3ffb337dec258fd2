"""What a comparison says at its end: the table, the picture, the report, the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from esper.karn.display import say
from esper.karn.frontier_picture import PolicyPoint, draw_frontier, shorten_label
from esper.leyline.codec import Json, to_json
from esper.leyline.statistics import Estimate
from esper.scripts.cli.console import console_for_report
from esper.scripts.cli.report_files import ReportFile, json_file, written_first
from esper.scripts.compare.comparison import METRICS, Comparison, Contestant, Metric
from esper.scripts.compare.run import ReportPlaces, report_places, unwritable
from esper.storage.atomic import write_atomic

TOPOLOGIES_SHOWN: Final = 3
LABEL_SHOWN: Final = 24
"""Characters of a label on the console."""
NOTE: Final = (
    "Above: interquartile means over hosts, 95 % bootstrap intervals; dashed: policies that no "
    "other beats in both. P: chance that a host is better than one of the reference."
)


def report(found: Comparison, folder: Path) -> None:
    """Draw the picture, write report and numbers into the folder, then print the tables."""
    places = report_places(folder)
    text = markdown(found, places.picture.name).encode(errors="backslashreplace")
    files: tuple[ReportFile, ...] = (
        json_file(places.numbers, numbers(found)),
        (places.report, lambda path: write_atomic(path, text)),
        (places.picture, lambda path: draw(path, found)),
    )
    try:
        with written_first(*files):
            _print(found, places)
    except OSError as error:
        raise unwritable(folder, error) from error


def _print(found: Comparison, places: ReportPlaces) -> None:
    console = console_for_report()
    console.print(score_table(found))
    console.print(cost_table(found))
    for word, path in places._asdict().items():
        say(console, f"{word}: {path}")


def title_of(found: Comparison) -> str:
    """`7 policies on digits_impaired, the same 20 hosts each`"""
    settings = found.settings
    rent = "" if settings.rent == 1 else f", rent {settings.rent:g} times the task's"
    many = f"{len(found.contestants)} policies" if len(found.contestants) > 1 else "1 policy"
    return f"{many} on {settings.task}, the same {settings.seeds} hosts for each{rent}"


# ---- words for figures -------------------------------------------------------------------------


def with_interval(estimate: Estimate, form: str) -> str:
    """`0.3412 (0.3280 to 0.3501)`; without the ends where they are unknown."""
    value = form.format(estimate.value)
    if math.isnan(estimate.low):
        return value
    return f"{value} ({form.format(estimate.low)} to {form.format(estimate.high)})"


def _beaten(contestant: Contestant, metric: Metric) -> str:
    """`17 of 20`: hosts on which it is better than the reference; ties are named."""
    difference = contestant.standing(metric.name).difference
    if difference is None:
        return ""
    better = difference.above if metric.higher_is_better else difference.below
    ties = f", {difference.equal} equal" if difference.equal else ""
    return f"{better} of {difference.above + difference.equal + difference.below}{ties}"


# ---- the console -------------------------------------------------------------------------------


def score_table(found: Comparison) -> Table:
    """Every policy's score, and how far it is ahead of the first."""
    score = METRICS[0]
    table = Table(title=escape(title_of(found)), box=SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    first = escape(shorten_label(found.contestants[0].label, LABEL_SHOWN // 2))
    for name in ("score, IQM (95 %)", f"minus {first} (95 %)", "P(better)", "better on"):
        table.add_column(name, justify="right")
    for contestant in found.contestants:
        standing = contestant.standing(score.name)
        row = [shorten_label(contestant.label, LABEL_SHOWN), with_interval(standing.iqm, "{:.3f}")]
        if standing.difference is not None and standing.improvement is not None:
            row += [
                with_interval(standing.difference.student, "{:+.3f}"),
                f"{standing.improvement.value:.2f}",
                _beaten(contestant, score),
            ]
        table.add_row(*map(escape, row))
    return table


def cost_table(found: Comparison) -> Table:
    """What the networks are and what they cost, as means."""
    table = Table(title="means over hosts", box=SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    names = {"score_test": "score on test", "test": "test", "accuracy": "val_score",
             "parameters": "parameters", "macs": "MACs",
             "flops_ratio": "FLOPs / host's"}  # fmt: skip
    for name in (*names.values(), "s / host"):
        table.add_column(name, justify="right")
    for contestant in found.contestants:
        values = [
            metric.form.format(contestant.standing(metric.name).mean.value)
            for metric in METRICS
            if metric.name in names
        ]
        label = escape(shorten_label(contestant.label, LABEL_SHOWN))
        table.add_row(label, *values, f"{contestant.result.seconds_per_host:.2f}")
    return table


# ---- picture and numbers -----------------------------------------------------------------------


def draw(path: Path, found: Comparison) -> None:
    """The frontier and the differences."""
    draw_frontier(path, [_point(contestant) for contestant in found.contestants],
                  title_of(found), NOTE)  # fmt: skip


def _point(contestant: Contestant) -> PolicyPoint:
    score = contestant.standing("score")
    return PolicyPoint(
        label=contestant.label,
        accuracy=contestant.standing("test").iqm,
        parameters=contestant.standing("parameters").iqm,
        flops_ratio=contestant.standing("flops_ratio").iqm,
        difference=None if score.difference is None else score.difference.student,
        improvement=score.improvement,
    )


def numbers(found: Comparison) -> Json:
    """Everything that was measured, host by host, and all that was made of it."""
    return {
        "format": "esper-comparison",
        "schema": 2,
        "reference": found.contestants[0].label,
        "settings": to_json(found.settings),
        "policies": [to_json(contestant) for contestant in found.contestants],
    }


# ---- the report --------------------------------------------------------------------------------


def markdown(found: Comparison, picture: str) -> str:
    """The report; `picture`: its file, beside the report."""
    parts = [
        f"# {title_of(found)}",
        f"![accuracy against cost, and paired score differences]({picture})",
        *(_metric_part(found, metric) for metric in METRICS),
        _wall_time_part(found),
        _topology_part(found),
        _settings_part(found),
        _reading_part(found),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column holds words, the others figures."""
    lines = [list(head), ["---", *["---:"] * (len(head) - 1)], *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _metric_part(found: Comparison, metric: Metric) -> str:
    first = found.contestants[0].label
    better = "higher" if metric.higher_is_better else "lower"
    head = ("policy", "mean (t)", "IQM (bootstrap)", f"minus {first} (t)",
            f"minus {first} (bootstrap)", f"P({better})", "better on")  # fmt: skip
    rows = []
    for contestant in found.contestants:
        standing = contestant.standing(metric.name)
        row = [
            contestant.label,
            with_interval(standing.mean, metric.form),
            with_interval(standing.iqm, metric.form),
        ]
        if standing.difference is None or standing.improvement is None:
            row += ["the reference", "", "", ""]
        else:
            row += [
                with_interval(standing.difference.student, metric.difference),
                with_interval(standing.difference.bootstrap, metric.difference),
                with_interval(standing.improvement, "{:.2f}"),
                _beaten(contestant, metric),
            ]
        rows.append(row)
    return f"## {metric.words} ({better} is better)\n\n{_table(head, rows)}"


def _wall_time_part(found: Comparison) -> str:
    rows = [
        (c.label, f"{c.result.seconds_per_host:.3f}", c.result.executor, c.result.device)
        for c in found.contestants
    ]
    table = _table(("policy", "seconds a host", "executor", "device"), rows)
    return (
        f"## Wall time\n\nOf one episode, validation and the measurement of seeds included, set-up "
        f"left out; hosts of a population share it, so there is no interval. Meaningful only where "
        f"the machine did nothing else.\n\n{table}"
    )


def _topology_part(found: Comparison) -> str:
    rows = []
    for contestant in found.contestants:
        result = contestant.result
        common = result.topologies().most_common(TOPOLOGIES_SHOWN)
        counts = (result.germinated_N, result.fossilized_N, result.pruned_N, result.rollbacks_N)
        rows.append(
            [
                contestant.label,
                *(f"{count_N.mean():.2f}" for count_N in counts),
                "; ".join(f"{count} x {words}" for words, count in common),
            ]
        )
    head = ("policy", "germinated", "permanent", "pruned", "rollbacks", "most frequent at the end")
    return f"## What was grown, a host\n\n{_table(head, rows)}"


def _settings_part(found: Comparison) -> str:
    entries = to_json(found.settings)
    assert isinstance(entries, dict)  # a record
    rows = [(name, f"`{value}`") for name, value in entries.items()]
    policies = [(c.label, f"`{c.policy}`, grows {', '.join(c.result.blueprints)}")
                for c in found.contestants]  # fmt: skip
    return f"## Settings\n\n{_table(('setting', 'value'), [*rows, *policies])}"


def _reading_part(found: Comparison) -> str:
    settings = found.settings
    return (
        f"## How to read it\n\nn = {settings.seeds} hosts, each with initial weights and batches "
        f"of its own, drawn from run seeds that nothing is trained on; host i is the same for "
        f"every policy. Intervals are 95 % and hold for one comparison at a time. IQM: mean of the "
        f"middle half. Differences are taken host by host. P: chance that a host of the policy is "
        f"better than a host of {found.contestants[0].label}, ties half, hosts not paired. "
        f"docs/compare.md says the rest."
    )
