"""The outcome of a search in one line, which says no more than was seen.

diverged           the outputs of every network became NaN or infinite
below a constant   predicting the same for every sample is as good
inconclusive       nothing beats the model, but too little was tried to call it right
already right      nothing beats it: other sizes and rates were trained in full
better, level, worse   the pick against the model, paired over the same test samples
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from esper.growing.folder import GrowInfo
from esper.growing.moves import SAME
from esper.growing.result import NetworkRecord
from esper.growing.runs import Row
from esper.leyline.statistics import Estimate
from esper.leyline.variants import describe_variant
from esper.tasks.measuring import Difference
from esper.tasks.metric_forms import Metric

SAME_LENGTH: Final = 1.25
"""A network that was trained for fewer times as long was trained as long as the other."""
CAP_SHARE: Final = 0.5
"""A cap on parameters counts as reached from this share of it on."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What a search has tried."""

    networks: int
    in_full: int
    """Networks trained to the end of a full run."""
    host_in_full: bool
    """Whether the model as given is among them."""
    diverged: int
    """Networks whose outputs became NaN or infinite."""
    sizes: tuple[int, ...]
    """Parameters of those trained in full within the budget, distinct and sorted."""
    rates: tuple[float, ...]
    """Learning rates of those trained in full, distinct and sorted."""
    cap: int | None
    """Most parameters that the budget allows."""
    batches: int
    """Of a training run."""
    wanted_batches: int
    """Of a training run if there had been time."""
    complete: bool
    """Whether the search came to its end."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a verdict depends on."""

    metric: Metric
    pick: NetworkRecord
    host: NetworkRecord
    """The model as given; the pick may be the same."""
    constant: float
    """Test score of the best constant prediction; NaN: not known."""
    difference: Difference
    """Pick minus host on test."""
    tried: Tried
    reference: bool = False
    """Whether the model exceeds the budget, and is what the pick gives up against."""


def tried_of(rows: Sequence[Row], info: GrowInfo, complete: bool) -> Tried:
    """What a search has tried."""
    batches = info.length
    trained = [one for one in rows if one.ended]
    full = [one for one in trained if one.status == "finished" and _in_full(one, info)]
    picked = [one for one in full if info.budget.allows(one.params, one.macs, one.latency)]
    return Tried(
        networks=len(trained),
        in_full=len(full),
        host_in_full=any(one.origin == "given" for one in full),
        diverged=sum(one.diverged or math.isnan(one.score) for one in trained),
        sizes=tuple(sorted({one.params for one in picked})),
        rates=tuple(sorted({one.recipe.lr for one in full})),
        cap=info.budget.params,
        batches=batches,
        wanted_batches=max(batches, info.full_length),
        complete=complete,
    )


def _in_full(row: Row, info: GrowInfo) -> bool:
    """Whether a run had as many samples as a full one, up to whole batches of its size."""
    wanted = info.length * info.batch_size / row.recipe.batch_size
    return wanted - row.trained <= max(SAME * wanted, 0.5)


def verdict(facts: Facts) -> str:
    """The outcome in one line."""
    if not math.isfinite(facts.pick.test_score):
        return _diverged(facts.tried)
    if facts.metric.merit(facts.pick.test_score - facts.constant) <= 0:
        return _below_a_constant(facts)
    if facts.pick.number == facts.host.number:
        return _host_is_best(facts)
    return "; ".join([_compared(facts), *_longer(facts), *_limits(facts.tried)])


def gain_of(facts: Facts) -> Estimate:
    """How much better the pick is than the model, so that positive is better."""
    apart, merit = facts.difference, facts.metric.merit
    low, high = sorted(merit(value) for value in (apart.low, apart.high))
    return Estimate(merit(apart.value), low, high)


# ---- the outcomes --------------------------------------------------------------------------------


def _diverged(tried: Tried) -> str:
    who = (
        "your model"
        if tried.networks == 1
        else f"{max(1, tried.diverged)} of {tried.networks} networks"
    )
    return (
        f"diverged: outputs of {who} became NaN or infinite; lower lr= or clip=, or scale "
        f"inputs and targets"
    )


def _below_a_constant(facts: Facts) -> str:
    score = facts.pick.test_score
    level = score == facts.constant
    said = "no better than a constant predictor" if level else "below a constant predictor"
    line = (
        f"{said}: test {facts.metric.name} {score:.4f}, predicting the same for every sample "
        f"has {facts.constant:.4f} (n = {facts.difference.samples:,})"
    )
    limits = [_count(facts.tried), *_limits(facts.tried)]
    return f"{line}; {', '.join(limits)}; train longer, try other rates, or check the targets"


def _host_is_best(facts: Facts) -> str:
    host, tried = facts.host, facts.tried
    of = f"{host.params:,} parameters, test {facts.metric.name} {host.test_score:.4f}"
    lacking = _lacking(facts)
    if lacking:
        return f"inconclusive: {', '.join(lacking)}; your model ({of}) was not beaten on validation"
    sizes = f"{tried.sizes[0]:,} to {tried.sizes[-1]:,} parameters"
    return (
        f"your model is already right: {of}; none of {tried.in_full} networks of {sizes} that were "
        f"trained in full was better on validation"
    )


def _compared(facts: Facts) -> str:
    pick, host, apart = facts.pick, facts.host, facts.difference
    line = (
        f"{_change(pick)}: {pick.params:,} parameters (your model: {host.params:,}), test "
        f"{facts.metric.name} {pick.test_score:.4f}"
    )
    if not math.isfinite(host.test_score):
        return f"{line}; your model diverged: its outputs became NaN or infinite"
    found = gain_of(facts)
    gain, low, high = found.value, found.low, found.high
    if not math.isfinite(low) or not math.isfinite(high):
        apart_by = _amount(facts, gain, signed=True)
        return f"{line}, {apart_by} against your model (n = {apart.samples:,})"
    ends = (_amount(facts, end, signed=True, unit=False) for end in (low, high))
    interval = f"95 % {' to '.join(ends)}, n = {apart.samples:,}"
    if low <= 0 <= high:
        apart_by = _amount(facts, gain, signed=True)
        return f"{line}, level with your model ({apart_by}, {interval})"
    if gain < 0 and facts.reference:
        return f"{line}, {_amount(facts, -gain)} below your model ({interval})"
    word = "better" if gain > 0 else "worse"
    return f"{line}, {word} than your model by {_amount(facts, abs(gain))} ({interval})"


def _change(pick: NetworkRecord) -> str:
    """How a network differs from the model as given."""
    seeds = ", ".join(f"seed {name}" for name in pick.topology if name)
    parts = [part for part in (describe_variant(pick.variant), seeds) if part]
    return ", ".join(parts) or "your model, another recipe"


def _samples(network: NetworkRecord) -> int:
    """Samples that it was trained on, each as often as it was."""
    return network.recipe.batches * network.recipe.batch_size


def _longer(facts: Facts) -> list[str]:
    """That the model was not trained for as long."""
    times = _samples(facts.pick) / max(1, _samples(facts.host))
    return [f"trained {times:.1f} times as long as your model"] if times >= SAME_LENGTH else []


# ---- what was tried ------------------------------------------------------------------------------


def _lacking(facts: Facts) -> list[str]:
    """Why nothing follows from that no network was better than the model."""
    tried, host = facts.tried, facts.host
    room = tried.cap is None or tried.cap > host.params
    found = []
    if tried.networks < 2:
        found.append("only your model was trained, at one learning rate")
    elif not tried.sizes or set(tried.sizes) == {host.params}:
        found.append(f"{_count(tried)}, none of another size")
    elif room and tried.sizes[-1] <= host.params:
        found.append(f"{_count(tried)}, none larger than your model")
    if tried.networks > 1 and len(tried.rates) < 2:
        found.append("only one learning rate in full")
    if not tried.host_in_full:
        found.append("your model itself was not trained in full")
    return [*found, *_limits(tried)]


def _limits(tried: Tried) -> list[str]:
    """What kept the search from seeing more."""
    found = []
    if tried.batches < tried.wanted_batches:
        share = 100.0 * tried.batches / tried.wanted_batches
        found.append(
            f"training runs were cut to {share:.0f} % of their length ({tried.batches:,} of "
            f"{tried.wanted_batches:,} batches)"
        )
    largest = tried.sizes[-1] if tried.sizes else 0
    if tried.cap is not None and largest < CAP_SHARE * tried.cap:
        found.append(
            f"the largest network trained in full has {largest:,} of {tried.cap:,} parameters"
            if largest
            else "no network was trained in full"
        )
    if tried.diverged:
        found.append(f"{tried.diverged} of {tried.networks} networks diverged")
    if not tried.complete:
        found.append("the search was interrupted")
    return found


def _count(tried: Tried) -> str:
    word = "network" if tried.networks == 1 else "networks"
    return f"{tried.networks} {word} tried, {tried.in_full} in full"


def _amount(facts: Facts, value: float, signed: bool = False, unit: bool = True) -> str:
    """A difference in points, or in the unit of the metric."""
    sign = "+" if signed else ""
    if facts.metric.in_points:
        return f"{100.0 * value + 0.0:{sign}.1f}{' points' if unit else ''}"
    return f"{value + 0.0:{sign}.4g}"
