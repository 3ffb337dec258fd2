"""The outcome of a search: plain networks of the frontier, judged once on test, and a verdict."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.backends import cudnn

from esper.growing.code.scripts import Scripts
from esper.growing.data.reading import GrowData
from esper.growing.folder import RESULT, GrowFolder, GrowInfo
from esper.growing.problem import Problem
from esper.growing.progress import ProgressPrinter
from esper.growing.refit import Refit
from esper.growing.result import GrowResult, NetworkRecord, ResultRecord
from esper.growing.runs import Row
from esper.growing.search import Search, control_numbers, frontier_numbers, judged, within
from esper.growing.stored import keep_script, kept_script, plain_path
from esper.growing.verdict import Facts, gain_of, tried_of, verdict
from esper.kasmina.layers.counting import count_parameters
from esper.kasmina.plain_saves import save_plain
from esper.kasmina.tracing import finished_model
from esper.leyline.errors import EsperError
from esper.tasks.measuring import Measured, difference, judge

_log: Final = logging.getLogger(__name__)
CPU: Final = torch.device("cpu")


def make_result(
    problem: Problem,
    info: GrowInfo,
    search: Search,
    folder: GrowFolder,
    complete: bool,
    printer: ProgressPrinter,
    files: bool,
    refit: Refit | None,
    device: torch.device,
) -> GrowResult:
    """Judge the networks of the frontier and write the result; what cannot be written is a warning.

    `files`: the networks themselves as well, which takes seconds; `refit`: trains the pick and the
    user's model once more before they are judged; `device`: where they are judged.
    """
    rows = search.table.rows
    front, host_number = _frontier(rows, info, folder)
    best = _best(rows, front | {host_number} if info.host_fits else front, info)
    again = {} if refit is None else refit.weights(_finished(rows, {best, host_number}), rows)
    printer.phase("judging on test")
    models = {
        number: finished_model(search.networks.trained(rows[number], again.get(number)))
        for number in sorted(front | {host_number})
    }
    measured = {number: judge_on_test(model, problem, device) for number, model in models.items()}
    records = _records(search, info, models, measured, again)
    _warn_of_latency(records[best], info, printer)
    facts = Facts(
        metric=problem.metric,
        pick=records[best],
        host=records[host_number],
        constant=problem.constant_score(problem.data.test),
        difference=difference(measured[best], measured[host_number]),
        tried=tried_of(rows, info, complete),
        reference=not info.host_fits,
    )
    record = ResultRecord(
        networks=tuple(sorted((records[n] for n in front), key=lambda r: r.params)),
        host=facts.host,
        others=tuple(_record(row, info) for row in judged(rows) if row.number not in records),
        pick=best,
        verdict=verdict(facts),
        runs=search.runs,
        seconds=search.clock.seconds,
        complete=complete,
        ended=search.table.ended,
        gain=None if best == host_number else gain_of(facts),
    )
    printer.phase("writing the networks")
    scripts = Scripts(problem, info, search.networks, rows)
    writes: list[Callable[[], object]] = [
        lambda: folder.write(RESULT, record),
        lambda: folder.save_test_samples(measured[best].sample_N, measured[host_number].sample_N),
    ]
    if files:
        writes.append(lambda: _store_all(models, problem.data, folder, printer.say))
        writes.append(lambda: keep_script(folder.path, best, lambda: scripts.of(records[best])))
    _write_all(writes, folder, printer)
    return _with_networks(record, info, folder, models, scripts)


def _frontier(rows: Sequence[Row], info: GrowInfo, folder: GrowFolder) -> tuple[set[int], int]:
    """Numbers of the networks of the frontier, and that of the user's model."""
    # Under another budget a network may be on the frontier whose weights were not kept.
    returned = [row for row in within(rows, info.budget) if row.saved]
    front, hosts = frontier_numbers(returned), control_numbers(rows)
    if not front | hosts:
        raise EsperError(
            f"stopped before any network was trained; resume with resume={str(folder.path)!r}"
        )
    if not front and not info.host_fits:
        raise _nothing_fits(info, rows, folder)
    return front, next(iter(hosts))


def _best(rows: Sequence[Row], numbers: set[int], info: GrowInfo) -> int:
    """Number of the best of some networks on validation."""
    return max(sorted(numbers), key=lambda n: info.rank(rows[n].score, rows[n].params))


def _records(
    search: Search,
    info: GrowInfo,
    models: Mapping[int, nn.Module],
    measured: Mapping[int, Measured],
    refitted: Container[int],
) -> dict[int, NetworkRecord]:
    """What is kept of each network that was judged on test."""
    records = {}
    for number, found in measured.items():
        model = models[number]
        one = replace(
            _record(search.table.rows[number], info), params=count_parameters(model),
            test_score=found.value, test_se=found.error, refit=number in refitted,
        )  # fmt: skip
        if info.budget.latency_ms is not None:  # nothing trains beside it now
            took = search.networks.timed(model)
            one = replace(one, latency=took.median, latency_low=took.low, latency_high=took.high)
        records[number] = one
    return records


def _warn_of_latency(pick: NetworkRecord, info: GrowInfo, printer: ProgressPrinter) -> None:
    """The machine may be busier now than when the pick was timed first."""
    limit = info.budget.latency_ms
    if limit is not None and pick.latency_low > limit:
        printer.warn(f"the pick now takes {pick.latency:.3g} ms a sample, above {limit:g}")


def _with_networks(
    record: ResultRecord,
    info: GrowInfo,
    folder: GrowFolder,
    models: dict[int, nn.Module],
    scripts: Scripts,
) -> GrowResult:
    """The result of a search that has just ended, with its networks in memory."""
    example: Any = scripts.problem.data.example().inputs
    return GrowResult(
        record,
        info,
        folder.path,
        lambda network: models[network.number],
        lambda _: example,
        lambda network: kept_script(folder.path, network.number, scripts.of(network)),
    )


def _nothing_fits(info: GrowInfo, rows: Sequence[Row], folder: GrowFolder) -> EsperError:
    """The model is only the reference, and nothing smaller has a score."""
    name, size = info.budget.excess(info.host_params, info.host_macs, info.host_latency)
    smaller = [row for row in within(rows, info.budget) if row.ended]
    said = "all that were trained diverged" if smaller else "none was trained yet"
    return EsperError(
        f"budget {name}={getattr(info.budget, name):g}: your model, the reference, has {size:,}; "
        f"of networks within the limit {said}; give the search more host_runs or minutes, "
        f"with resume={str(folder.path)!r}"
    )


def _write_all(
    writes: Sequence[Callable[[], object]], folder: GrowFolder, printer: ProgressPrinter
) -> None:
    """Write what can be written; on a full disk the networks are in memory, and returned."""
    for write in writes:
        try:
            write()
        except EsperError as error:
            printer.warn(f"{error}; nothing is lost: resume={str(folder.path)!r} writes it again")


def _record(row: Row, info: GrowInfo) -> NetworkRecord:
    """What is kept of a network that was not judged on test."""
    return NetworkRecord(
        number=row.number,
        variant=info.variants[row.variant],
        topology=row.topology,
        origin=row.origin,
        recipe=row.recipe,
        params=row.params,
        macs=row.macs,
        val_score=row.score,
        test_score=math.nan,
        test_se=math.nan,
        runs=row.compute / info.length,
        cut=row.status == "cut",
        seed=row.seed,
        latency=row.latency,
    )


def _finished(rows: Sequence[Row], numbers: set[int]) -> list[Row]:
    """Runs of some numbers; none if one of them has not come to its end."""
    some = [rows[number] for number in sorted(numbers)]
    return some if all(row.status == "finished" and not row.diverged for row in some) else []


def judge_on_test(model: nn.Module, problem: Problem, device: torch.device) -> Measured:
    """The test score of a plain network in float32, which stays on the CPU itself.

    A network that cannot be judged on the device, for lack of memory, say, is judged on the CPU.
    """
    if device.type != "cpu":
        try:
            with cudnn.flags(enabled=cudnn.enabled, deterministic=True, allow_tf32=False):
                return _judged(copy.deepcopy(model).to(device), problem, device)
        except RuntimeError as error:
            _log.info("judged on the CPU, as %s cannot: %s", device, error)
    return _judged(model, problem, CPU)


def _judged(model: nn.Module, problem: Problem, device: torch.device) -> Measured:
    inputs, test = problem.trace.inputs, problem.data.test
    values = inputs.values(test.inputs)

    def run(some: slice) -> Tensor:
        out: Tensor = inputs.call(model, [value[some].to(device) for value in values])
        return out.cpu()

    return judge(problem.metric, run, test.targets)


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
