"""Sections of a report, each from one or two views: a picture, and the same as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from esper.karn import views
from esper.karn.report import lineage
from esper.karn.report.growth_picture import growth_picture
from esper.karn.report.life_lines import MAX_MEMBERS, life_lines
from esper.karn.report.network_picture import before_and_after
from esper.karn.views.curves import CurvePoint
from esper.karn.views.documents import objects, read_entries, real, texts
from esper.karn.views.plain import thinned
from esper.leyline.errors import shorten
from esper.leyline.statistics import Estimate
from esper.leyline.variants import describe_variant
from esper.plotting.durations import duration
from esper.plotting.frontier_plot import Dot, frontier_plot
from esper.plotting.html import Markup, code, details, table, tag
from esper.plotting.line_plot import Series, line_plot
from esper.plotting.numbers import interval, number, percent, signed, signed_interval
from esper.storage import run_files as f
from esper.storage.sessions import utc_time

MAX_ROWS: Final = 400
"""Rows of a table; a longer one is thinned out, so that the page stays small."""
MAX_CURVES: Final = 3
"""Networks whose curves are drawn, as many as the legend has room for."""
MAX_LEGEND: Final = 16
"""Characters of each in it."""


Section = tuple[str, list[Markup]]
"""Title and content."""
LONG_CODE: Final = 20
"""Lines of code from which on it is shown on demand."""


def note_section(note: views.Note) -> Section:
    """A section of text."""
    lines = [tag("p", line) for line in note.lines]
    rows = [table(note.title, ("what", "value"), note.rows)] if note.rows else []
    shown = code(*note.code.splitlines()) if note.code else None
    if shown is not None and note.code.count("\n") >= LONG_CODE:
        shown = details("Show it", shown)
    return note.title, [*lines, *rows, *([] if shown is None else [shown])]


def _as_table(
    title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]], figures: Sequence[int] = ()
) -> Markup:
    """A table that is shown on demand."""
    every = list(rows)
    kept = thinned(every, MAX_ROWS)
    left_out = len(kept) < len(every)
    note = f" ({len(kept)} of {len(every):,} rows; esper query has all)" if left_out else ""
    return details(
        f"{title} as a table", table(title + note, head, kept, figures or range(len(head)))
    )


def _picture(drawn: Markup, caption: str, kind: str = "plot") -> Markup:
    """A plot with its caption; on a phone it is scrolled, so that its texts can be read."""
    about = caption.partition(";")[0].partition(".")[0]
    plot = tag("section", drawn, class_=kind, tabindex="0", aria_label=about)
    return tag("figure", plot, tag("figcaption", caption))


# ---- training ----------------------------------------------------------------------------------


def _learning(run: Path) -> Section:
    """Scores by round."""
    rounds = views.read_rounds(run)
    scores = Series("training score", tuple((p.round + 1.0, p.score) for p in rounds))
    accuracy = Series("accuracy, held out", tuple((p.round + 1.0, p.accuracy) for p in rounds))
    head = ("round", "training score (95 %)", "accuracy (95 %)", "train accuracy",
            "added parameters", "seeds grown", "made permanent", "pruned", "rollbacks", "restarts",
            "seconds")  # fmt: skip
    rows = [
        (str(p.round + 1), interval(p.score), interval(p.accuracy), number(p.train_accuracy),
         number(p.added_params), number(p.germinated), number(p.fossilized),
         number(p.pruned), str(p.rollbacks), str(p.restarts),
         number(p.seconds))
        for p in rounds
    ]  # fmt: skip
    label = f"Training score and accuracy of {len(rounds)} rounds; the table below has the values"
    return "Learning curve", [
        _picture(
            line_plot([scores, accuracy], "round", "training score, accuracy", label),
            "Means over the members of a round; bands are 95 % intervals.",
        ),
        _as_table("Rounds", head, rows),
    ]


def _seeds(run: Path) -> Section:
    """Life lines of the newest round."""
    lives, setup = views.read_seeds(run), views.read_setup(run)
    steps, measured = views.read_steps(run), views.read_contributions(run)
    slots = setup.slots if setup else sorted({life.slot for life in lives})
    seeds, length = views.seed_growth(lives, measured), setup.episode_length if setup else 0
    drawn = life_lines(seeds, slots, steps, measured, length)
    caption = (
        f"The newest round, its first {MAX_MEMBERS} members with seeds: one row per slot. A seed "
        f"fills more of its row the further it is. Contribution: accuracy lost without the seed, "
        f"mean over seeds; the band holds the middle half."
    )
    head = ("member", "slot", "seed", "fate", "contribution", "parameters", "stages by steps done")
    rows = [
        (str(one.member), one.slot, one.blueprint, one.end, number(one.contribution),
         f"{one.params:,}", ", ".join(f"{s.first}: {s.stage.lower()}" for s in one.stages))
        for one in seeds
    ]  # fmt: skip
    measures = [
        (str(one.step + 1), str(one.member), one.slot, one.blueprint, number(one.contribution),
         number(one.se), number(one.shapley))
        for one in measured
    ]  # fmt: skip
    return "Life lines of seeds", [
        _picture(drawn, caption),
        _as_table("Seeds", head, rows, (0, 4, 5)),
        _as_table("Contributions", ("steps done", "member", "slot", "seed", "contribution",
                                   "standard error", "Shapley value"), measures, (0, 1, 4, 5, 6)),
    ]  # fmt: skip


def _grown(run: Path) -> Section:
    """How the best member of the newest round grew."""
    found = views.read_growth(run)
    title = f"How member {found.member} grew" if found.round >= 0 else "How a member grew"
    added = found.added_params[-1]
    caption = (
        f"The best member of round {found.round + 1}: {added:,} parameters added to the host's "
        f"{found.host_params:,}. Below, the stages of a seed; above them the accuracy that is lost "
        f"without it, in points, with 95 % intervals."
    )
    rows = [("-" if one.step is None else str(one.step + 1), one.what) for one in found.happened]
    happened = _as_table("What happened", ("step", "what happened"), rows, (0,))
    return title, [_picture(growth_picture(found), caption), happened]


def _actions(run: Path) -> Section:
    """What the controller did."""
    rounds = views.read_actions(run)
    ops = dict.fromkeys(count.op for one in rounds for count in one.ops)
    used = [op for op in ops if any(_share(one, op) > 0 for one in rounds)]
    main = sorted(used, key=lambda op: -sum(_share(one, op) for one in rounds))[:4]
    series = [
        Series(op.lower(), tuple((one.round + 1.0, _exact(_share(one, op))) for one in rounds))
        for op in main
    ]
    rows = [
        (str(one.round + 1), count.op.lower(), str(count.chosen), str(count.executed),
         str(count.legal), number(count.probability))
        for one in rounds
        for count in one.ops
        if count.chosen or count.legal
    ]  # fmt: skip
    slots = [
        (str(one.round + 1), slot.slot, str(slot.chosen), str(slot.executed), number(slot.reward),
         number(slot.reward / slot.chosen if slot.chosen else math.nan))
        for one in rounds
        for slot in one.slots
    ]  # fmt: skip
    label = f"Share of decisions by operation over {len(rounds)} rounds; the table has the values"
    return "What the controller did", [
        _picture(line_plot(series, "round", "share of decisions", label),
                "The operations that were chosen most."),
        _as_table("Operations", ("round", "operation", "chosen", "executed", "legal",
                                "mean probability"), rows, (0, 2, 3, 4, 5)),
        _as_table("Operations by slot", ("round", "slot", "chosen", "executed", "reward",
                                        "reward each"), slots, (0, 2, 3, 4, 5)),
    ]  # fmt: skip


def _share(one: views.RoundActions, op: str) -> float:
    total = sum(count.chosen for count in one.ops)
    return sum(count.chosen for count in one.ops if count.op == op) / total if total else 0.0


def _exact(value: float) -> Estimate:
    return Estimate(value, math.nan, math.nan)


def _learner(run: Path) -> Section:
    """Health of PPO."""
    points = views.read_ppo(run)
    if not points:
        return "Learner", [tag("p", "Nothing learns under this policy.")]

    def line(name: str, label: str) -> Series:
        found = ((p.round + 1.0, _exact(getattr(p, name))) for p in points)
        return Series(label, tuple(found))

    plots = [
        ("entropy", "entropy, nats", "Entropy of the action; it falls as the policy grows sure."),
        ("approx_kl", "KL divergence", "How far each update moved the policy."),
        ("explained_variance", "explained variance",
         "Share of the variance of returns that the value estimate explains; 1 is all of it."),
    ]  # fmt: skip
    drawn = [
        _picture(
            line_plot(
                [line(name, title)],
                "round",
                title,
                f"{title} of {len(points)} updates; the table below has the values",
                220.0,
            ),
            caption,
        )
        for name, title, caption in plots
    ]
    head = ("round", "policy loss", "value loss", "entropy", "KL", "clipped", "explained variance",
            "gradient norm", "learning rate")  # fmt: skip
    rows = [
        (str(p.round + 1), number(p.policy_loss), number(p.value_loss), number(p.entropy),
         number(p.approx_kl), number(p.clip_fraction), number(p.explained_variance),
         number(p.grad_norm), number(p.learning_rate))
        for p in points
    ]  # fmt: skip
    found = [(str(a.round + 1), a.kind.lower(), a.detail) for a in views.read_anomalies(run)]
    odd = (
        _as_table("Anomalies", ("round", "kind", "what"), found, (0,))
        if found
        else tag("p", "No anomaly was found.")
    )
    return "Learner", [*drawn, _as_table("Updates", head, rows), odd]


def _speed(run: Path) -> Section:
    """Throughput and phases."""
    points = views.read_throughput(run)
    series = Series("", tuple((p.round + 1.0, _exact(p.member_steps_per_second)) for p in points))
    head = ("round", "member-steps/s", "samples/s", "step p50, s", "step p95, s", "rows per member",
            "device busy", "GPU utilisation", "GPU memory, GB", "phases, s")  # fmt: skip
    rows = [
        (str(p.round + 1), number(p.member_steps_per_second),
         number(p.samples_per_second), number(p.step_seconds_p50),
         number(p.step_seconds_p95), number(p.rows_per_member),
         percent(p.device_share), percent(p.gpu_utilization),
         number(p.gpu_memory / 1e9),
         ", ".join(f"{name.lower()} {seconds:.2f}" for name, seconds in p.phases))
        for p in points
    ]  # fmt: skip
    label = f"Member-steps a second of {len(points)} rounds; the table below has the values"
    return "Throughput", [
        _picture(line_plot([series], "round", "member-steps/s", label, 220.0),
                "Steps of members a second, set-up left out."),
        _as_table("Speed", head, rows, range(9)),
    ]  # fmt: skip


def _best_network(run: Path) -> Section:
    """The best member that was kept, before and after."""
    setup, path = views.read_setup(run), run / f.MEMBERS / f.MEMBER_LIST
    kept = objects(read_entries(path), "members") if path.exists() else []
    if setup is None or not kept:
        return "Best network", [tag("p", "No member was kept.")]
    pairs = [word.partition("=") for word in texts(kept[0], "topology")]
    held = {slot: seed for slot, _, seed in pairs}
    placed = [held.get(slot, "") for slot in setup.slots]
    params = real(kept[0], "parameters")
    rows = [
        (slot, "nothing", seed or "nothing") for slot, seed in zip(setup.slots, placed, strict=True)
    ]
    drawn = before_and_after(setup.slots, placed, f"the host, {setup.host_params:,}",
                             f"the best member, {params:,.0f}")  # fmt: skip
    caption = (
        f"Member {real(kept[0], 'member'):.0f} of round {real(kept[0], 'round'):.0f}: score "
        f"{real(kept[0], 'score'):.4f}, accuracy {real(kept[0], 'accuracy'):.4f}; numbers are "
        f"parameters."
    )
    return "Best network", [
        _picture(drawn, caption),
        table("Slots in order", ("slot", "the host", "the best member"), rows),
    ]


# ---- compare, audit, grow ----------------------------------------------------------------------


def _judged(run: Path) -> Section:
    """The learner beside others on fresh hosts; nothing for policies that do not learn."""
    found = views.read_contenders(run)
    title = "Judged on fresh hosts"
    if found:
        return title, _contender_parts(found)
    learns = views.run_summary(run).policy == "ppo"
    return title, [tag("p", "The controller is judged when training ends.")] if learns else []


def _contenders(run: Path) -> Section:
    """Policies with intervals, by score and size."""
    found = views.read_contenders(run)
    return "Policies", _contender_parts(found) or [tag("p", "None was judged yet.")]


_HOST: Final = ("wait", "restart:", "best-of:")
"""Policies that never grow; frontier.js of the dashboard has the same lists."""
_STATIC: Final = ("static-", "asha", "table:")
"""Policies that plant their networks from the start."""


def _mark(one: views.Contender) -> str:
    name = one.policy
    if name == "bare" or name.startswith(_HOST):
        return "host"
    return "static" if name.startswith(_STATIC) else "front"


def _contender_parts(found: Sequence[views.Contender]) -> list[Markup]:
    if not found:
        return []
    dots = [Dot(one.label, one.params, one.score, _mark(one)) for one in found]
    note = (
        "Mean score with 95 % intervals against mean size; the line joins those that no smaller "
        "one beats. Differences are of means. Compute: training runs of the host."
    )
    return [
        _picture(frontier_plot(dots, "score", named=True), note),
        table("Policies, best first", contender_head(found), contender_rows(found), range(1, 7)),
    ]


def contender_head(found: Sequence[views.Contender]) -> tuple[str, ...]:
    """Names of the columns of `contender_rows`."""
    reference = next((one.label for one in found if one.is_reference), "the reference")
    return ("policy", "mean score (95 %)", f"minus {reference} (95 %)", "test", "parameters",
            "compute", "n")  # fmt: skip


def contender_rows(found: Sequence[views.Contender]) -> list[tuple[str, ...]]:
    """Label, score, difference, test, parameters, compute and n of policies."""
    return [
        (one.label, interval(one.score),
         "the reference" if one.is_reference else signed_interval(one.difference),
         number(one.test.value), number(one.params), number(one.compute), str(one.n))
        for one in found
    ]  # fmt: skip


def _topologies(run: Path) -> Section:
    """Topologies of an audit by size and test score."""
    found = views.read_frontier(run)
    words = {"host": "host", "front": "on the frontier", "others": "others"}
    dots = [Dot(_seed_names(one), one.params, one.score, _kind(one)) for one in found]
    head = ("network", "test (interval)", "validation", "parameters", "MACs", "number")
    rows = [
        (_seed_names(one), interval(one.score), number(one.val_score), f"{one.params:,}",
         f"{one.macs:,}", one.label)
        for one in found
    ]  # fmt: skip
    return "Frontier", [
        _picture(frontier_plot(dots, "test score", words=words),
                "Test score against size; the line joins those that no smaller one beats."),
        _as_table("Networks", head, rows, range(1, 6)),
    ]  # fmt: skip


def _kind(one: views.FrontierPoint) -> str:
    if one.is_host:
        return "host"
    return "front" if one.on_frontier else "others"


_GROWN: Final = {
    "pick": "the pick", "host": "your model", "front": "judged on test",
    "others": "validation only", "under-way": "under way",
}  # fmt: skip
"""Kinds of networks of a search in its pictures."""


def _networks(run: Path) -> Section:
    """Networks of a search: judged ones on test, all of them on validation."""
    found = views.read_frontier(run)
    judged = [one for one in found if math.isfinite(one.score.value)]
    line = "the line joins those that no smaller one beats on validation."
    judged_dots = [_grown_dot(one, one.score) for one in judged]
    every_dot = [_grown_dot(one, _exact(one.val_score)) for one in found]
    on_test = _picture(
        frontier_plot(judged_dots, "test score", words=_GROWN),
        f"Networks that were judged on test, with one standard error; {line}",
    )
    on_validation = _picture(
        frontier_plot(every_dot, "validation score", words=_GROWN),
        f"Every run by its validation score; filled: judged on test as well; {line}",
    )
    head = ("network", "test (standard error)", "gain on test", "validation", "parameters", "MACs",
            "ms a sample", "recipe", "from", "number")  # fmt: skip
    rows = [
        (_seed_names(one), interval(one.score), signed(one.gain), number(one.val_score),
         f"{one.params:,}", f"{one.macs:,}", interval(one.latency), one.recipe, one.parent,
         one.label)
        for one in found
    ]  # fmt: skip
    pictures = [on_test, on_validation] if judged else [on_validation]
    return "Frontier", [*pictures, _as_table("Networks", head, rows, (1, 2, 3, 4, 5, 6, 8, 9))]


def _grown_dot(one: views.FrontierPoint, score: Estimate) -> Dot:
    is_judged = math.isfinite(one.score.value)
    kind = "under-way" if one.under_way else "front" if is_judged else "others"
    kind = "pick" if one.is_pick else "host" if one.is_host else kind
    return Dot(_seed_names(one), one.params, score, kind, not is_judged, one.on_frontier)


def _lineage(run: Path) -> Section:
    """What came from what, and why."""
    found = views.read_lineage(run)
    if not found:
        return "Lineage", []
    rows = [
        (f"#{one.label}", str(one.rung), one.network, one.recipe, one.parent and f"#{one.parent}",
         one.made, number(one.val_score), one.ended)
        for one in found
    ]  # fmt: skip
    head = ("run", "rung", "network", "recipe", "from", "why it was made", "validation",
            "why it ended")  # fmt: skip
    note = (
        "A line leads from a run to those that came from it: solid, trained again for another "
        "length; dotted, something was changed; green, the way to the pick."
    )
    return "Lineage", [
        _picture(lineage.lineage_plot(found), note, "plot tall"),
        _as_table("Runs", head, rows, (1, 6)),
    ]


def _best(run: Path) -> Section:
    """The best validation score against the time that was trained."""
    found = views.read_best(run)
    ends = [one.elapsed for one in views.read_frontier(run) if math.isfinite(one.elapsed)]
    steps: list[tuple[float, Estimate]] = []
    for one in found:
        steps += [(one.elapsed, step) for _, step in steps[-1:]]
        steps.append((one.elapsed, _exact(one.val_score)))
    steps += [(max(ends), step) for _, step in steps[-1:] if ends]
    rows = [
        (number(one.elapsed), number(one.val_score), one.label, f"{one.params:,}") for one in found
    ]
    label = f"The best validation score rose {len(found)} times; the table has the values"
    return "Best score so far", [
        _picture(line_plot([Series("", tuple(steps))], "seconds",
                           "validation score", label, 240.0),
                 "Validation score of the best network within the budget."),
        _as_table("Best scores", ("seconds", "validation score", "number", "parameters"), rows),
    ]  # fmt: skip


def _seed_names(one: views.FrontierPoint | views.NetworkCurve) -> str:
    """What a network is, in words."""
    held = [name for name in one.topology if name]
    parts = ([describe_variant(one.variant)] if one.variant else []) + held
    return ", ".join(parts) or ("your model" if one.origin == "given" else "the host")


def _network_curves(run: Path) -> Section:
    """Scores of networks by length of training."""
    every = views.read_curves(run)
    best: dict[str, list[CurvePoint]] = {}
    for one in every:  # the best ones first
        name = shorten(_seed_names(one), MAX_LEGEND)
        if name in best or len(best) < MAX_CURVES:
            best.setdefault(name, []).extend(one.points)
    series = [Series(name, _by_length(points)) for name, points in best.items()]
    rows = [
        (_seed_names(one), f"{one.params:,}", one.recipe or "-",
         ", ".join(f"{p.length:.2f}: {number(p.score)}" for p in one.points[-6:]))
        for one in every
    ]  # fmt: skip
    label = f"Scores of {len(series)} networks by length; the table below has the values"
    return "Score by length", [
        _picture(line_plot(series, "length of training, 1: in full", "validation score", label),
                "The best networks, each by the best of its recipes; the table has all of them."),
        _as_table("Networks and their last scores by length",
                 ("network", "parameters", "recipe, if another", "scores"), rows, (1,)),
    ]  # fmt: skip


def _by_length(points: Iterable[CurvePoint]) -> tuple[tuple[float, Estimate], ...]:
    """A curve; of several scores at one length, the first."""
    found: dict[float, Estimate] = {}
    for p in points:
        found.setdefault(round(p.length, 2), Estimate(p.score, p.low, p.high))
    return tuple(sorted(found.items(), key=lambda pair: pair[0]))


def _log(run: Path) -> Section:
    """What happened, oldest first."""
    lines = views.read_log(run)
    timed = [(_when(line), "-" if line.round is None else str(line.round)) for line in lines]
    is_search = views.kind_of(run) is views.RunKind.GROW
    columns = ("training time", "rung") if is_search else ("time (UTC)",)
    rows = [(*at[: len(columns)], line.text) for at, line in zip(timed, lines, strict=True)]
    return "Log", [
        _as_table("What happened", (*columns, "what happened"), rows, (0,))
    ] if rows else []


def _when(line: views.LogLine) -> str:
    if math.isfinite(line.elapsed):
        return duration(line.elapsed)
    return utc_time(line.time) if math.isfinite(line.time) else "-"


SECTIONS: Final[Mapping[views.RunKind, Sequence[Callable[[Path], Section]]]] = {
    views.RunKind.TRAIN: (
        _learning,
        _judged,
        _grown,
        _seeds,
        _best_network,
        _actions,
        _learner,
        _speed,
    ),
    views.RunKind.GROW: (
        _networks,
        _best,
        _lineage,
        _network_curves,
        _log,
    ),
    views.RunKind.COMPARE: (_contenders, _log),
    views.RunKind.AUDIT: (_contenders, _topologies, _network_curves, _log),
}
"""Sections of each kind of run, in order."""
