"""Every emitter is called by a real run, anomalies raise the level, training is unaffected.

Nothing is patched: a profiler notes which functions of `esper` the trainer's run enters.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from engine_support import Diary
from esper.leyline import TelemetryConfig, TelemetryLevel
from esper.leyline.payloads import AnomalyKind
from esper.leyline.telemetry import TelemetryEventType as Kind
from esper.nissa import MemorySink, TelemetryHub
from esper.simic.telemetry import anomaly, emitters, gradients
from esper.simic.telemetry.anomaly import AnomalyConfig
from esper.simic.telemetry.gradients import inspect_network
from esper.simic.telemetry.listener import TelemetryListener
from esper.tasks.spec import OptimSettings
from loop_support import ANYTHING_GOES, same_agents, tiny_config, tiny_trainer, untimed

OFF, MINIMAL, NORMAL, DEBUG = TelemetryLevel
SOURCE = str(Path(esper.__file__).parent)
NAMED = (
    "emit_with_env_context", "emit_batch_completed", "emit_last_action",
    "compute_grad_norm_surrogate", "aggregate_layer_gradient_health", "emit_ppo_update_event",
    "emit_action_distribution", "emit_cf_unavailable", "emit_throughput", "emit_reward_summary",
    "emit_mask_hit_rates", "check_performance_degradation", "apply_slot_telemetry",
)  # fmt: skip
"""Emitters the founding documents fixed."""
AROUND = {
    anomaly: ("detect_anomalies", "handle_telemetry_escalation", "emit_anomaly_diagnostics"),
    gradients: ("collect_per_layer_gradients", "check_numerical_stability"),
}
ANY_KL = replace(ANYTHING_GOES, max_kl=0.0)
"""Every update that moves the policy is an anomaly."""


@dataclass
class Watched:
    """A run of the trainer at one level, and what it entered and recorded."""

    level: TelemetryLevel
    rounds: int = 2
    anomalies: AnomalyConfig = ANYTHING_GOES
    escalation_rounds: int = 5
    strike: bool = False
    """A member's host breaks in the first round."""
    hooks: Sequence[Any] = ()
    entered: set[tuple[str, str]] = field(default_factory=set)
    """(file, function) that code of `esper` called."""

    def run(self) -> Watched:
        self.sink, diary = MemorySink(), Diary()
        config = TelemetryConfig(level=self.level, escalation_rounds=self.escalation_rounds)
        if self.strike:
            diary.watch = self._break
        with TelemetryHub([self.sink], self.level) as hub:
            listener = TelemetryListener(
                hub, config, "cpu", self.rounds,
                batches_per_step=1, batch_size=16, optim=OptimSettings(),
                anomalies=self.anomalies,
            )  # fmt: skip
            self.trainer = tiny_trainer(
                tiny_config(rounds=self.rounds), listeners=[diary, listener], hooks=self.hooks
            )
            sys.setprofile(self._note)
            try:
                self.history = self.trainer.run()
            finally:
                sys.setprofile(None)
        return self

    def _note(self, frame, event, arg) -> None:
        caller = frame.f_back
        if event == "call" and caller is not None:
            code, by = frame.f_code, caller.f_code
            if code.co_filename.startswith(SOURCE) and by.co_filename.startswith(SOURCE):
                self.entered.add((code.co_filename, code.co_name))

    def _break(self, record) -> None:
        if (record.signals.round_index, record.signals.step) == (0, 3):
            self.trainer.engine.env.model.network.host.flat_EP.detach()[1, 3] = float("nan")

    def called(self, module, name: str) -> bool:
        return (inspect.getsourcefile(module), name) in self.entered

    def counts(self, round_index: int | None = None) -> Counter[Kind]:
        events = self.sink.events
        return Counter(e.type for e in events if round_index in (None, e.round_index))


@pytest.fixture(scope="module")
def loud() -> Watched:
    return Watched(DEBUG, anomalies=ANY_KL, strike=True).run()


def public_functions(module) -> list[str]:
    tree = ast.parse(inspect.getsource(module))
    found = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in found if not name.startswith("_")]


def test_the_named_emitters_are_there():
    assert set(NAMED) <= set(public_functions(emitters))
    for module, names in AROUND.items():
        assert set(names) <= set(public_functions(module))


@pytest.mark.parametrize("name", public_functions(emitters))
def test_every_emitter_is_called_in_production(name, loud):
    assert loud.called(emitters, name)


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in AROUND.items() for n in names])
def test_anomalies_and_gradients_are_looked_at_in_production(module, name, loud):
    assert loud.called(module, name)


def test_every_kind_of_event_a_trainer_can_cause_was_recorded(loud):
    """Checkpoints and the run's own start and end are told by those who make them."""
    elsewhere = {Kind.RUN_STARTED, Kind.RUN_FINISHED, Kind.CHECKPOINT_SAVED, Kind.CHECKPOINT_LOADED}
    never_here = {Kind.SEED_FOSSILIZED, Kind.MEMBER_RESTARTED}
    assert set(loud.counts()) >= set(Kind) - elsewhere - never_here
    (update, _) = (e.payload for e in loud.sink.events if e.type is Kind.PPO_UPDATED)
    names = [name for name, p in loud.trainer.client.agent.network.named_parameters()]
    assert {layer.layer for layer in update.layers} <= set(names)
    assert update.layers


@pytest.fixture(scope="module")
def raised() -> Watched:
    """MINIMAL, escalated for one round by the first update; calm from then on."""
    levels: list[TelemetryLevel] = []

    def calm_down(trainer, record) -> None:
        (listener,) = trainer.listeners
        listener.anomalies = ANYTHING_GOES
        levels.append(listener.level)

    run = Watched(MINIMAL, rounds=3, anomalies=ANY_KL, escalation_rounds=1, hooks=[calm_down])
    run.levels = levels
    return run.run()


def test_an_anomaly_raises_the_level_and_shows_what_was_not_recorded(raised):
    assert raised.levels == [DEBUG, MINIMAL, MINIMAL]
    (found,) = (e for e in raised.sink.events if e.type is Kind.ANOMALY_DETECTED)
    assert found.payload.kind is AnomalyKind.KL_EXPLOSION
    assert found.round_index == 0
    assert found.payload.value == raised.history[0].metrics.approx_kl
    closely = (Kind.SEED_GATE_EVALUATED, Kind.SEED_STAGE_CHANGED, Kind.LAST_ACTION)
    for kind in (*closely, Kind.STEP_COMPLETED, Kind.PPO_UPDATED):
        assert [raised.counts(r)[kind] > 0 for r in range(3)] == [False, True, False], kind
    assert raised.counts(1)[Kind.STEP_COMPLETED] == 8
    (update,) = (e.payload for e in raised.sink.events if e.type is Kind.PPO_UPDATED)
    assert update.layers


def test_a_gradient_that_is_not_finite_is_looked_into_at_any_level_that_records_updates():
    network = torch.nn.Linear(3, 2)
    network(torch.ones(1, 3)).sum().backward()
    assert inspect_network(network, NORMAL).layers == ()
    assert len(inspect_network(network, DEBUG).layers) == 2
    network.weight.grad[0, 0] = float("inf")
    found = inspect_network(network, NORMAL)
    assert found.non_finite == {"gradient weight": 1}
    assert [layer.inf_count for layer in found.layers] == [1, 0]
    assert inspect_network(network, MINIMAL).layers == ()


def test_recording_everything_changes_nothing(loud):
    """Raised level, provoked anomalies, a broken member: bit for bit the run nobody listens to."""
    diary = Diary()
    silent = tiny_trainer(tiny_config(rounds=2), listeners=[diary])

    def strike(record) -> None:
        if (record.signals.round_index, record.signals.step) == (0, 3):
            silent.engine.env.model.network.host.flat_EP.detach()[1, 3] = float("nan")

    diary.watch = strike
    assert untimed(silent.run()) == untimed(loud.history)
    assert same_agents(silent.client.agent, loud.trainer.client.agent)
