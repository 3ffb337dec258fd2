"""The outcome of a search: plain networks of the frontier, judged once on test, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from esper.growing.data import GrowData
from esper.growing.folder import RESULT, GrowFolder, GrowInfo
from esper.growing.measuring import judge
from esper.growing.parts import map_inputs
from esper.growing.problem import Problem
from esper.growing.progress import ProgressPrinter
from esper.growing.records import GROWN_ORIGINS, Candidate
from esper.growing.result import GrowResult, NetworkRecord, ResultRecord
from esper.growing.search import Search, control_numbers, frontier_numbers
from esper.growing.stored import plain_path
from esper.kasmina.counting import count_parameters
from esper.kasmina.member import MorphogeneticModel
from esper.kasmina.plain_saves import save_plain
from esper.kasmina.tracing import plain_model
from esper.leyline.errors import EsperError


def make_result(
    problem: Problem,
    info: GrowInfo,
    search: Search,
    folder: GrowFolder,
    complete: bool,
    printer: ProgressPrinter,
    files: bool = True,
) -> GrowResult:
    """Judge the networks of the frontier and write the result; what cannot be written is a warning.

    `files`: the networks themselves and the report as well, which takes seconds.
    """
    data = problem.data
    candidates = search.state.candidates
    wanted = sorted(frontier_numbers(candidates) | control_numbers(candidates))
    if not wanted:
        raise EsperError(
            f"stopped before any network was trained; resume with resume={str(folder.path)!r}"
        )
    models: dict[int, nn.Module] = {}
    records: dict[int, NetworkRecord] = {}
    for number in wanted:
        trace = search.variants[candidates[number].host].trace
        member = MorphogeneticModel.load(folder.network_path(number), trace.factory)
        models[number] = plain_model(trace, member)
        records[number] = _judged(models[number], candidates[number], problem, info)
        printer.say(
            f"test: network {number}, {records[number].params:,} parameters, "
            f"{info.metric} {records[number].test_score:.4f}"
        )
    front = frontier_numbers(candidates)
    networks = sorted((records[n] for n in wanted if n in front), key=lambda r: r.params)
    host = records[next(iter(control_numbers(candidates)))]
    pick = max((*networks, host), key=lambda record: info.rank(record.val_score, record.params))
    static = tuple(
        _record(c, info) for c in candidates if c.finished and c.origin not in GROWN_ORIGINS
    )
    record = ResultRecord(
        networks=tuple(networks),
        host=host,
        static=static,
        pick=pick.number,
        verdict=verdict(pick, host, static, info.metric),
        runs=search.runs,
        seconds=search.seconds,
        complete=complete,
    )
    result = GrowResult(
        record, info, folder.path, lambda n: models[n.number], lambda _: data.example().inputs
    )
    writes: list[Callable[[], object]] = [lambda: folder.write(RESULT, record)]
    if files:
        writes += [lambda: _store_all(models, data, folder, printer.say), result.report]
    for write in writes:
        try:
            write()
        except EsperError as error:  # a full disk: the networks are in memory, and returned
            printer.warn(f"{error}; nothing is lost: resume={str(folder.path)!r} writes it again")
    return result


def _record(
    candidate: Candidate, info: GrowInfo, test_score: float = math.nan, test_se: float = math.nan
) -> NetworkRecord:
    return NetworkRecord(
        number=candidate.number,
        variant=info.variants[candidate.host],
        topology=candidate.topology,
        origin=candidate.origin,
        rate=candidate.rate,
        params=candidate.params,
        macs=candidate.macs,
        val_score=candidate.score,
        test_score=test_score,
        test_se=test_se,
        runs=candidate.compute / info.length,
    )


def _judged(
    model: nn.Module, candidate: Candidate, problem: Problem, info: GrowInfo
) -> NetworkRecord:
    inputs, test = problem.trace.inputs, problem.data.test

    def run(some: slice) -> Tensor:
        raw = map_inputs(lambda value: value[some], test.inputs)
        out: Tensor = inputs.call(model, inputs.values(raw))
        return out

    found = judge(problem.metric, run, test.targets)
    counted = replace(candidate, params=count_parameters(model))
    return _record(counted, info, found.value, found.error)


def _store_all(
    models: dict[int, nn.Module], data: GrowData, folder: GrowFolder, say: Callable[[str], None]
) -> None:
    example: Any = data.example().inputs
    others: dict[str, list[str]] = {}
    for number, model in models.items():
        reason = save_plain(plain_path(folder.path, number), model, example)
        if reason:
            others.setdefault(reason, []).append(str(number))
    for reason, numbers in others.items():
        say(f"network {', '.join(numbers)} needs your code to be loaded again: {reason}")


def verdict(
    pick: NetworkRecord, host: NetworkRecord, static: Sequence[NetworkRecord], metric: str
) -> str:
    """The outcome in one line."""
    if pick.number == host.number:
        return (
            f"your model is already right: {host.params:,} parameters, test {metric} "
            f"{host.test_score:.4f}; nothing grown was better on validation"
        )
    gain = 100.0 * (pick.test_score - host.test_score)
    error = 100.0 * math.hypot(pick.test_se, host.test_se)
    how = "grown" if any(pick.topology) else f"{pick.variant} as wide,"
    if any(pick.topology) and pick.variant:
        how = f"{pick.variant} as wide and grown"
    over = "level with" if abs(gain) <= error else f"{gain:+.1f} points over"
    if gain < -error:
        over = f"{gain:+.1f} points against"
    line = (
        f"{how} to {pick.params:,} parameters (your model: {host.params:,}), test {metric} "
        f"{pick.test_score:.4f}, {over} your model"
    )
    if pick.origin not in GROWN_ORIGINS:
        return line
    same_size = [r for r in static if r.number != host.number and r.params <= pick.params]
    if not same_size:
        return line
    best = max(same_size, key=lambda r: np.nan_to_num(r.val_score, nan=-math.inf))
    ahead = 100.0 * (pick.val_score - best.val_score)
    return f"{line}; {ahead:+.1f} points on validation over the best static one of that size"
