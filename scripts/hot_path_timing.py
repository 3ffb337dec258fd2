"""Statistics of interleaved timings: speeds, shares and ratios of configurations.

All engines take a turn, then the next, so that background load hits all of them. Ratios are taken
within each round of turns; medians and quartiles are over the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from esper.leyline.compute import ExecutorName
from esper.leyline.payloads import StepPhase
from esper.tasks.task_data import TaskData
from hot_path_config import HotPath, TelemetryName
from hot_path_engine import build_engine
from memory_floor import train_batch_bytes
from plain_loop import PlainLoop
from timed_engine import StepTimings, TimedEngine


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration to time."""

    members: int
    executor: ExecutorName | Literal["plain"]
    """plain: not an engine but plain torch modules in a loop."""
    telemetry: TelemetryName = "off"
    empty: bool = False
    """The same step with 1 sample per batch and 1 validation sample, to measure overhead."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Results of one configuration."""

    members: int
    executor: str
    """Executor that was used."""
    executor_asked: str
    executor_reason: str
    telemetry: str
    precision: str
    batch_size: int
    batches_per_step: int
    val_images: int
    steps: int
    """Timed steps of all turns."""
    member_steps_per_second: float
    """Median over turns, as are the other speeds."""
    member_steps_per_second_quartiles: tuple[float, float]
    """First and third quartile."""
    cpu_ms_per_member_step: float
    """CPU time of the process, median over turns."""
    cpu_ms_quartiles: tuple[float, float]
    """First and third quartile."""
    episodes_per_second: float
    """Episodes of the task's length."""
    images_per_second: float
    """Training images."""
    step_ms_p50: float
    step_ms_p95: float
    phase_share: dict[str, float]
    """Share of wall time by the host clock; OTHER is between phases and after the last step."""
    device_share: dict[str, float]
    """Share of wall time of training and validation by the device clock."""
    overhead_share: float
    """Share of wall time outside training and validation by the device clock: Python, transfers."""
    empty_step_share: float | None
    """Time of the step with minimal data, relative to this one: the overhead."""
    rows_per_member: float
    """Main, shadow and counterfactual rows per step."""
    train_rows_per_member: float
    validation_rows_per_member: float
    row_batch_us: float
    """Training time per row and batch."""
    train_batch_bytes: int | None
    """Minimum memory traffic of a training batch of all members; None if seeds change."""
    floor_ratio: float | None
    """Training time relative to a copy of that many bytes."""
    stages_unchanged: bool
    """Whether all seeds kept their stage."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two speeds, paired by round."""

    name: str
    median: float
    lower: float
    """First quartile."""
    upper: float
    """Third quartile."""
    pairs: int


def list_cases(
    members: Sequence[int],
    executors: Sequence[ExecutorName],
    telemetry: Sequence[TelemetryName],
    empty: bool,
) -> list[Case]:
    """All combinations; with `empty`, also each size and executor with minimal data."""
    places = [(e, x) for e in members for x in executors]
    full = [Case(e, x, t) for e, x in places for t in telemetry]
    return full + [Case(e, x, empty=True) for e, x in places if empty]


def start_case(
    config: HotPath, case: Case, data: TaskData, steps: int, folder: Path
) -> TimedEngine:
    """Engine of a configuration; `folder`: for its telemetry."""
    if case.empty:
        config = replace(config, batch_size=1, val_images=1)
    place = folder / f"{case.members}-{case.executor}"
    telemetry = place if case.telemetry == "normal" else None
    assert case.executor != "plain", "the yardstick is no engine"
    return build_engine(config, case.members, case.executor, data, steps, telemetry)


def take_turns(
    engines: Mapping[Case, TimedEngine | PlainLoop], warmup: int, steps: int, rounds: int
) -> dict[Case, list[StepTimings]]:
    """Time all in turn, `rounds` times, after warm-up."""
    for engine in engines.values():
        engine.time_steps(warmup)
    turns: dict[Case, list[StepTimings]] = {case: [] for case in engines}
    for _ in range(rounds):
        for case, engine in engines.items():
            turns[case].append(engine.time_steps(steps))
    return turns


# ---- one configuration --------------------------------------------------------------------


def summarise_all(
    engines: Mapping[Case, TimedEngine],
    turns: Mapping[Case, Sequence[StepTimings]],
    episode_length: int,
    bytes_per_second: float,
) -> list[CaseResult]:
    """Results of all configurations with data; `episode_length`: the task's."""
    return [
        summarise(
            case,
            engine,
            turns[case],
            turns.get(replace(case, telemetry="off", empty=True)),
            episode_length,
            bytes_per_second,
        )
        for case, engine in engines.items()
        if not case.empty
    ]


def summarise(
    case: Case,
    timed: TimedEngine,
    turns: Sequence[StepTimings],
    empty: Sequence[StepTimings] | None,
    episode_length: int,
    bytes_per_second: float,
) -> CaseResult:
    """Result of one configuration; `empty`: turns of the step with minimal data."""
    engine, spec = timed.engine, timed.engine.spec
    choice = engine.env.model.choice
    assert choice is not None  # chosen when the engine was built
    wall = sum(turn.seconds for turn in turns)
    steps = sum(turn.steps for turn in turns)
    device = {n: sum(t.device_seconds[n] for t in turns) for n in turns[0].device_seconds}
    speed, slow, high = quartiles([speed_of(turn, case) for turn in turns])
    cpu, cpu_low, cpu_high = quartiles([1000 / cpu_speed_of(turn, case) for turn in turns])
    step_ms = 1000 * np.array([s for turn in turns for s in turn.step_seconds])
    train_rows = sum(turn.train_rows for turn in turns)
    validation_rows = sum(turn.validation_rows for turn in turns)
    member_steps = steps * case.members
    row_batch = device["train"] / (train_rows * spec.batches_per_step)
    moved = _bytes_of(timed)
    floor = None if moved is None else moved / bytes_per_second * steps * spec.batches_per_step
    return CaseResult(
        members=case.members,
        executor=choice.executor.name,
        executor_asked=case.executor,
        executor_reason=choice.reason,
        telemetry=case.telemetry,
        precision=engine.precision,
        batch_size=spec.batch_size,
        batches_per_step=spec.batches_per_step,
        val_images=len(engine.validator.control),
        steps=steps,
        member_steps_per_second=speed,
        member_steps_per_second_quartiles=(slow, high),
        cpu_ms_per_member_step=cpu,
        cpu_ms_quartiles=(cpu_low, cpu_high),
        episodes_per_second=speed / episode_length,
        images_per_second=speed * spec.batches_per_step * spec.batch_size,
        step_ms_p50=float(np.percentile(step_ms, 50)),
        step_ms_p95=float(np.percentile(step_ms, 95)),
        phase_share=_phase_share(turns, wall),
        device_share={name: seconds / wall for name, seconds in device.items()},
        overhead_share=1.0 - sum(device.values()) / wall,
        empty_step_share=None if empty is None else _empty_share(turns, empty),
        rows_per_member=(train_rows + validation_rows) / member_steps - 1,
        train_rows_per_member=train_rows / member_steps,
        validation_rows_per_member=validation_rows / member_steps,
        row_batch_us=1e6 * row_batch,
        train_batch_bytes=moved,
        floor_ratio=None if floor is None else device["train"] / floor,
        stages_unchanged=timed.stages_unchanged,
    )


def speed_of(turn: StepTimings, case: Case) -> float:
    """Member-steps per second."""
    return turn.steps * case.members / turn.seconds


def cpu_speed_of(turn: StepTimings, case: Case) -> float:
    """Member-steps per second of CPU time."""
    return turn.steps * case.members / turn.cpu_seconds


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, first and third quartile."""
    lower, median, upper = np.percentile(values, [25, 50, 75]).tolist()
    return median, lower, upper


def _phase_share(turns: Sequence[StepTimings], wall: float) -> dict[str, float]:
    share = {p.name: sum(t.phase_seconds[p] for t in turns) / wall for p in StepPhase}
    share = {name: value for name, value in share.items() if value > 0}
    return share | {"OTHER": 1.0 - sum(share.values())}


def _empty_share(turns: Sequence[StepTimings], empty: Sequence[StepTimings]) -> float:
    pairs = zip(empty, turns, strict=True)
    return float(np.median([e.seconds / e.steps / (t.seconds / t.steps) for e, t in pairs]))


def _bytes_of(timed: TimedEngine) -> int | None:
    engine = timed.engine
    if not timed.stages_unchanged:
        return None
    sample = engine.validator.control.sample
    return train_batch_bytes(engine.env.model, sample, engine.spec.batch_size, engine.precision)


# ---- ratios -------------------------------------------------------------------------------


def ratios(turns: Mapping[Case, Sequence[StepTimings]], on_cpu: bool = False) -> list[Ratio]:
    """Ratios between configurations: vmap / loop, either / plain loop, more / fewer members,
    telemetry / none.

    `on_cpu`: also by CPU time.
    """
    cases = [case for case in turns if not case.empty]
    sizes = sorted({case.members for case in cases})
    found = []
    for case in cases:
        suffix = ", telemetry normal" if case.telemetry == "normal" else ""
        where = f"E={case.members}{suffix}"
        if case.executor == "vmap":
            rival = replace(case, executor="loop")
            found.append((f"vmap / loop, {where}", case, rival))
        if case.executor != "plain":
            found.append(
                (f"{case.executor} / plain loop, {where}", case, Case(case.members, "plain"))
            )
        if case.telemetry == "normal":
            rival = replace(case, telemetry="off")
            found.append(
                (f"telemetry normal / off, E={case.members}, {case.executor}", case, rival)
            )
    for small, large in combinations(sizes, 2):
        for case in cases:
            if case.members == large and case.telemetry == "off":
                name = f"E={large} / E={small}, {case.executor}"
                found.append((name, case, replace(case, members=small)))
    both = [(name, a, b) for name, a, b in found if a in turns and b in turns]
    by_wall = [_ratio(name, turns, a, b, speed_of) for name, a, b in both]
    by_cpu = [
        _ratio(f"{name}, by CPU time", turns, a, b, cpu_speed_of) for name, a, b in both if on_cpu
    ]
    return by_wall + by_cpu


def _ratio(
    name: str,
    turns: Mapping[Case, Sequence[StepTimings]],
    over: Case,
    under: Case,
    speed: Callable[[StepTimings, Case], float],
) -> Ratio:
    pairs = zip(turns[over], turns[under], strict=True)
    values = [speed(a, over) / speed(b, under) for a, b in pairs]
    median, lower, upper = quartiles(values)
    return Ratio(name, median, lower, upper, len(values))
