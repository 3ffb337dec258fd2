"""Telemetry of one run: listeners for its sinks and the process hub, start and end events.

with run_telemetry(sinks, TelemetryConfig(), spec, device, rounds) as telemetry:
    engine = VectorizedEngine(...)
    telemetry.run_started(engine, "heuristic")
    ...                                     rollouts with `telemetry.listeners`
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from esper.leyline.payloads import RunStarted, RunStatus
from esper.leyline.protocols import SinkProtocol
from esper.leyline.telemetry import TelemetryConfig, TelemetryLevel
from esper.nissa.hub import TelemetryHub, get_hub
from esper.simic.telemetry.anomaly import AnomalyConfig
from esper.simic.telemetry.listener import RunTally, TelemetryListener
from esper.tasks.spec import TaskSpec
from esper.tolaria.device_info import describe_device
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.env_factory import configure_slot_telemetry


class RunTelemetry:
    """The telemetry listeners of one run, one per hub."""

    def __init__(
        self,
        hubs: Sequence[TelemetryHub],
        config: TelemetryConfig,
        spec: TaskSpec,
        device: torch.device,
        rounds: int,
        tally: RunTally | None = None,
    ) -> None:
        self._config, self._rounds = config, rounds
        self._started = False
        # Where every round draws its own problem, a lower accuracy says nothing of the policy.
        anomalies = AnomalyConfig(max_degradation=1.0) if spec.context.varies_rounds else None
        self.listeners = tuple(
            TelemetryListener(
                hub,
                config,
                str(device),
                rounds,
                batches_per_step=spec.batches_per_step,
                batch_size=spec.batch_size,
                optim=spec.optim,
                tally=tally,
                anomalies=anomalies,
                ranked=not spec.context.varies_rounds,
            )
            for hub in hubs
        )

    def run_started(
        self, engine: VectorizedEngine, policy: str, members: int | None = None
    ) -> None:
        """Emit RUN_STARTED; `members`: those of all ranks, default: the engine's."""
        configure_slot_telemetry(engine.slot_events, self._config)
        started = _describe_run(engine, policy, self._rounds)
        started = replace(started, members=members or started.members)
        for listener in self.listeners:
            listener.run_started(started)
        self._started = True

    def run_finished(self, status: RunStatus, seconds: float) -> None:
        """Emit RUN_FINISHED, unless the run never started."""
        if self._started:
            for listener in self.listeners:
                listener.run_finished(status, seconds)


@contextmanager
def run_telemetry(
    sinks: Sequence[SinkProtocol] | TelemetryHub,
    config: TelemetryConfig,
    spec: TaskSpec,
    device: torch.device,
    rounds: int,
    tally: RunTally | None = None,
) -> Iterator[RunTelemetry]:
    """Context of a run's telemetry; enter before the engine is built, emits RUN_FINISHED at exit.

    `sinks` get a hub at the level of `config`, closed at the end; a hub that is passed in is left
    open. The process hub (`get_hub`) gets the events, too. `tally`: progress of a resumed run.
    """
    own = sinks if isinstance(sinks, TelemetryHub) else TelemetryHub.from_config(sinks, config)
    hubs = [hub for hub in (get_hub(), own) if hub.level is not TelemetryLevel.OFF]
    telemetry = RunTelemetry(hubs, config, spec, device, rounds, tally)
    began, status = time.monotonic(), RunStatus.FAILED
    try:
        yield telemetry
        status = RunStatus.COMPLETED
    except KeyboardInterrupt:
        status = RunStatus.INTERRUPTED
        raise
    finally:
        telemetry.run_finished(status, time.monotonic() - began)
        if own is not sinks:
            own.close()


def _describe_run(engine: VectorizedEngine, policy: str, rounds: int) -> RunStarted:
    """Build the payload of RUN_STARTED."""
    spec, config, choice = engine.spec, engine.config, engine.env.model.choice
    assert choice is not None  # chosen when the engine was built
    machine = describe_device(engine.device)
    return RunStarted(
        run_name=f"{policy} on {spec.name}",
        task=spec.name,
        policy=policy,
        seed=config.seed,
        rounds=rounds,
        members=config.members,
        episode_length=spec.episode_length,
        batches_per_step=spec.batches_per_step,
        batch_size=spec.batch_size,
        control_images=len(engine.validator.control),
        score_images=len(engine.validator.score),
        profile=config.profile,
        executor=choice.executor.name,
        executor_reason=choice.reason,
        device=machine["device"],
        versions=(("python", machine["python"]), ("torch", machine["torch"])),
        slot_ids=engine.env.model.slots,
        blueprints=engine.env.model.blueprints,
        host_params=engine.episode.host_params,
        host_macs=engine.episode.host_macs,
    )
