"""asha:N, best-of:M: a search inside one population is that of separate runs, counted exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine_support import small_task
from esper.compare.host_runs import HostRun, HostRunner
from esper.compare.policies import baseline_entry, planted_limits, search_entry
from esper.leyline import LifecycleOp
from esper.leyline.context import ContextSpec, Range
from esper.leyline.seeds import EVALUATION_SEEDS
from esper.leyline.signals import NO_BLUEPRINT
from esper.simic.training.config import PopulationConfig
from esper.tamiyo.asha import AshaState, rung_steps
from esper.tamiyo.grammar import parse
from esper.tamiyo.planning import PlannedTopology
from esper.tamiyo.replay import ActionRecorder
from esper.tolaria import EngineConfig, VectorizedEngine
from support import refused

SEED, HOSTS, STEPS = EVALUATION_SEEDS[0], 2, 8
CLOCKS = {
    "steps": ContextSpec(price=Range(0.2, 2.0)),
    "compute": ContextSpec(clock="compute", price=Range(0.2, 2.0), budget=Range(3.0, 3.0)),
}
every_clock = pytest.mark.parametrize("clock", CLOCKS)


def task(context: ContextSpec):
    return replace(small_task(episode_length=STEPS), context=context)


def searched(
    context: ContextSpec,
    topologies: int,
    envs: int = 64,
    hosts: int = HOSTS,
    listener: ActionRecorder | None = None,
) -> HostRun:
    return ran(f"asha:{topologies}", context, envs, hosts, listener)


def ran(
    text: str,
    context: ContextSpec,
    envs: int = 64,
    hosts: int = HOSTS,
    listener: ActionRecorder | None = None,
) -> HostRun:
    spec = task(context)
    population = PopulationConfig(envs=envs, device="cpu")
    runner = HostRunner(population, spec.load(), listener=listener)
    parsed = parse(text)
    make = search_entry if parsed.searches else baseline_entry
    return runner.run(make(parsed, spec), SEED, hosts)


def state_of(run: HostRun) -> AshaState:
    state = run.engine.env.lstm_hidden
    assert isinstance(state, AshaState)
    return state


def alone(run: HostRun, member: int) -> VectorizedEngine:
    """The same member in an engine of its own, to the end."""
    spec, config = run.engine.spec, run.engine.config
    assert config.member_ids is not None
    settings = EngineConfig(
        members=1,
        seed=SEED,
        member_ids=(config.member_ids[member],),
        frozen_heads=planted_limits(spec).frozen_heads,
        device="cpu",
    )
    engine = VectorizedEngine(spec, settings)
    engine.run_rollout(PlannedTopology(state_of(run).topology_ES[member]))
    return engine


def values_of(engine: VectorizedEngine) -> np.ndarray:
    """What a topology is ranked by after each step: control accuracy minus rent."""
    slots, episode, context = engine.env.model.slot_reports(), engine.episode, engine.context
    over = slots.params_ES.sum() / episode.host_params, slots.macs_ES.sum() / episode.host_macs
    extra = 0.0 if context.clock is not None else context.cost_E()[0] - 1.0
    rent = context.constants.rent(*(np.array([x]) for x in (*over, extra)))[0]
    return episode.accuracy_TE[:, 0] - context.members.price_E[0] * rent


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["steps", pytest.param("compute", marks=pytest.mark.slow)])
@pytest.mark.parametrize("topologies", [pytest.param(4, marks=pytest.mark.slow), 5])
def test_one_population_ranks_as_separate_runs_do(clock, topologies):
    run = searched(CLOCKS[clock], topologies)
    state, steps = state_of(run), rung_steps(topologies, STEPS)
    engines = [alone(run, member) for member in range(HOSTS * topologies)]
    value_ET = np.stack([values_of(engine) for engine in engines])
    for host in range(HOSTS):
        members = list(range(host * topologies, (host + 1) * topologies))
        for step in steps:
            members.sort(key=lambda member, step=step: -value_ET[member, step])
            kept = -(-len(members) // 2)
            near = abs(value_ET[members[kept - 1], step] - value_ET[members[kept], step])
            assert near > 1e-5, "a tie: choose another seed for this test"
            members = members[:kept]
        (winner,) = members
        assert np.flatnonzero(state.running_E).tolist()[host] == winner
        outcome = run.result.outcome
        assert outcome.score_E[host] == engines[winner].episode.score_TE[-1, 0]
        assert run.result.test_E[host] == engines[winner].test()[0]
    assert run.result.outcome.member_E.tolist() == list(range(HOSTS))


@every_clock
def test_its_compute_is_counted_to_the_batch(clock):
    """Closed form: a member that stops at a rung trained on the batches up to there."""
    context, topologies, recorder = CLOCKS[clock], 6, ActionRecorder()
    if clock == "compute":  # the costliest trains in the first step, so that it may stop there
        context = replace(context, budget=Range(20.0, 20.0))
    run = searched(context, topologies, listener=recorder)
    state, spec, engine = state_of(run), run.engine.spec, run.engine
    costs = engine.context.training_costs
    cost_E = costs.relative(
        state.topology_ES, np.ones(state.topology_ES.shape, dtype=np.float32),
        np.zeros(state.topology_ES.shape, dtype=np.bool_),
    )  # fmt: skip
    alive = [6, 3, 2, 1]
    ends = (*rung_steps(topologies, STEPS), STEPS)
    stops_TE = np.stack([actions.op == LifecycleOp.STOP for actions in recorder.recording.steps])
    stopped_E = np.where(stops_TE.any(axis=0), stops_TE.argmax(axis=0) + 1, STEPS)
    for host in range(HOSTS):
        mine = slice(host * topologies, (host + 1) * topologies)
        assert [(stopped_E[mine] >= end).sum() for end in ends] == alive
    granted_E = stopped_E * spec.batches_per_step * engine.context.round.budget
    batches_E = np.floor(granted_E / cost_E + 1e-9)
    if clock == "steps":
        batches_E = stopped_E * spec.batches_per_step
    else:
        assert engine.context.clock is not None
        assert engine.context.clock.trained_E.tolist() == batches_E.tolist()
    runs_E = batches_E * cost_E / (spec.batches_per_step * STEPS)
    assert run.compute_E == pytest.approx(runs_E.reshape(HOSTS, -1).sum(axis=1), abs=1e-12)


def test_hosts_do_not_depend_on_how_many_run_at_once():
    together, apart = searched(CLOCKS["steps"], 4), searched(CLOCKS["steps"], 4, envs=4)
    assert together.result.outcome == apart.result.outcome
    assert together.compute_E.tolist() == apart.compute_E.tolist()
    assert together.result.contexts == apart.result.contexts
    assert apart.engine.config.members == 4


def test_topologies_are_distinct_within_the_caps_and_nested():
    context = ContextSpec(capped=1.0, cap=Range(0.3, 0.8))
    small, large = (searched(context, count, hosts=2) for count in (8, 16))
    kinds = len(large.engine.spec.blueprints)
    for run, count in ((small, 8), (large, 16)):
        engine, state = run.engine, state_of(run)
        assert state.searched_E.all()
        params_E, macs_E = engine.context.costs.reserved(
            state.topology_ES, np.zeros_like(state.topology_ES, dtype=np.int8)
        )
        assert (params_E <= engine.context.members.params_cap_E).all()
        assert (macs_E <= engine.context.members.macs_cap_E).all()
        for host in range(2):
            mine = state.topology_ES[host * count : (host + 1) * count]
            assert len(np.unique(mine, axis=0)) == count
            assert (mine[0] == NO_BLUEPRINT).all()
            alike = [len({kind for kind in row if kind != NO_BLUEPRINT}) == 1 for row in mine]
            assert sum(alike[1:kinds]) >= 2, "full ones, as far as the caps allow"
    for host in range(2):
        few, many = (
            state_of(run).topology_ES[host * count : (host + 1) * count].tolist()
            for run, count in ((small, 8), (large, 16))
        )
        assert many[:8] == few


def test_a_host_with_fewer_legal_topologies_leaves_the_rest_unused():
    context = ContextSpec(clock="compute", capped=1.0, cap=Range(0.0, 0.0))
    run = searched(context, 4)
    assert state_of(run).searched_E.tolist() == [True, False, False, False] * HOSTS
    assert run.compute_E == pytest.approx(1.0), "only the host"
    assert (run.result.outcome.blueprint_ES == NO_BLUEPRINT).all()


def test_rungs_halve_the_episode_and_too_many_are_refused():
    assert rung_steps(1, 10) == ()
    assert rung_steps(2, 10) == (5,)
    assert rung_steps(8, 50) == (7, 13, 25)
    assert rung_steps(16, 5) == (1, 2, 3, 4)
    for length in range(1, 40):
        for topologies in range(1, 40):
            rungs = (topologies - 1).bit_length()
            if rungs >= length:
                assert "halvings need an episode of at least" in refused(
                    lambda n=topologies, t=length: rung_steps(n, t)
                )
                continue
            steps = rung_steps(topologies, length)
            assert len(steps) == rungs
            assert all(0 < step < length for step in steps)
            assert list(steps) == sorted(set(steps))


# ---- best-of -----------------------------------------------------------------------------------


@every_clock
def test_the_best_initialisation_after_a_step_goes_on_and_all_are_counted(clock):
    context = replace(CLOCKS[clock], budget=Range(1.0, 1.0))
    run = ran("best-of:3,2", context)
    state, engine = state_of(run), run.engine
    control_E = engine.episode.accuracy_TE[2].reshape(HOSTS, 3)
    best_E = control_E.argmax(axis=1)
    assert state.running_E.reshape(HOSTS, 3).argmax(axis=1).tolist() == best_E.tolist()
    assert state.running_E.sum() == HOSTS
    assert run.compute_E == pytest.approx(1 + 2 * 2 / STEPS)
    assert run.result.outcome.flops_ratio_E == pytest.approx(1.0), "of the one that is kept"
    assert (run.result.outcome.blueprint_ES == NO_BLUEPRINT).all()
    assert run.result.outcome.member_E.tolist() == list(range(HOSTS))


def test_initialisations_differ_in_the_same_context_and_the_first_is_the_host():
    context = ContextSpec(price=Range(0.2, 2.0))
    alone, three = ran("wait", context), ran("best-of:3,2", context)
    accuracy_THM = three.engine.episode.accuracy_TE.reshape(-1, HOSTS, 3)
    assert accuracy_THM[:3, :, 0].tolist() == alone.engine.episode.accuracy_TE[:3].tolist()
    loss_HM = three.engine.episode.loss_TE[1].reshape(HOSTS, 3)
    assert all(len(set(loss_M)) == 3 for loss_M in loss_HM.tolist())
    assert three.result.contexts == alone.result.contexts


def test_initialisations_do_not_depend_on_how_many_hosts_run_at_once():
    together, apart = (ran("best-of:2,2", ContextSpec(), envs=envs) for envs in (64, 2))
    assert together.result.outcome == apart.result.outcome
    assert apart.engine.config.members == 2


def test_without_a_step_initialisations_are_halved_as_asha_halves():
    run = ran("best-of:4", ContextSpec())
    first, second = rung_steps(4, STEPS)
    assert run.compute_E == pytest.approx(1 + 2 * first / STEPS + second / STEPS)
    spec = task(ContextSpec())
    assert "halvings need" in refused(lambda: search_entry(parse("best-of:512"), spec))
    late = refused(lambda: search_entry(parse("best-of:4,8"), spec))
    assert "too late for an episode of 8 steps" in late
