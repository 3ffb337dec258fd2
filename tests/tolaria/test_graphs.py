"""Captured batches: each is computed once, with the values of now, and the run ends the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from engine_support import CALM, Diary, histories, random_policy, small_engine, small_task
from esper.device.graphs import GraphCache, reason_against_graphs
from esper.kasmina import OptimConfig
from esper.leyline import LifecycleOp, SeedStage
from esper.leyline.context import ContextSpec
from esper.tamiyo.baselines import StaticTopology, WaitPolicy
from esper.tolaria.batch_ops import TrainTotals, process_train_batch
from esper.tolaria.engine import VectorizedEngine
from graph_support import Rerun, rerun_cache
from support import batch, bring_to, make_population, refused

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


class Recorded(list[str]):
    """A recorder that writes down what it was asked."""

    def capture(self, work: Callable[[], None]) -> Recorded:
        self.append("capture")
        self.work = work
        return self

    def replay(self) -> None:
        self.append("replay")
        self.work()


# ---- the cache ----------------------------------------------------------------------------


def test_work_runs_once_each_time_warm_up_capture_replay():
    reported, done = Recorded(), []
    cache = GraphCache(reported)
    for round_index in range(4):
        cache.run("key", lambda: done.append("worked"))
        assert len(done) == round_index + 1
    assert reported == ["capture", "replay", "replay", "replay"]
    report = cache.report()
    assert (report.eager, report.captures, report.replays, report.held) == (1, 1, 3, 1)
    assert report.capture_seconds > 0


def test_work_that_rarely_comes_again_is_captured_only_after_some_eager_runs():
    reported = Recorded()
    cache = GraphCache(reported, patience=3)
    for key in ("a", "b", "a", "b", "a", "a", "a", "b"):
        cache.run(key, lambda: None)
    assert reported == ["capture", "replay", "replay"], "a at its fourth run; b came three times"
    report = cache.report()
    assert (report.eager, report.captures, report.replays, report.held) == (6, 1, 2, 1)


def test_a_replay_runs_what_was_captured_and_no_other_python():
    cache, done = GraphCache(Recorded()), []
    for name in ("first", "second", "third"):
        cache.run("key", partial(done.append, name))
    assert done == ["first", "second", "second"]


def test_keys_have_graphs_of_their_own_and_the_oldest_goes():
    reported = Recorded()
    cache = GraphCache(reported, limit=2)
    for key in ("a", "a", "b", "b", "a", "c", "c", "a", "b"):
        cache.run(key, lambda: None)
    # b was used least recently when c came, so it begins anew at the end.
    assert reported == ["capture", "replay"] * 2 + ["replay"] + ["capture", "replay"] + ["replay"]
    assert cache.report().held <= 2


class Failing:
    """A recorder for work that waits for the device."""

    def capture(self, work: Callable[[], None]) -> Rerun:
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")


def test_a_failed_capture_is_told_once_and_all_work_is_still_done_once(caplog):
    cache, done = GraphCache(Failing()), []
    with caplog.at_level(logging.WARNING):
        for count in range(5):
            cache.run("key", partial(done.append, count))
    assert done == list(range(5))
    assert not cache.on
    assert len(caplog.records) == 1
    report = cache.report()
    assert "not permitted when stream is capturing" in report.reason
    assert "more lines" not in report.reason
    assert (report.on, report.captures, report.replays, report.eager) == (False, 0, 0, 5)


def test_an_error_of_the_work_itself_is_not_swallowed():
    def broken() -> None:
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        GraphCache(Recorded()).run("key", broken)


def test_held_inputs_keep_their_place_and_take_new_values():
    cache = GraphCache(Recorded())
    first = cache.static_input("x", torch.arange(6.0).view(2, 3))
    place = first.data_ptr()
    again = cache.static_input("x", torch.ones(2, 3))
    assert again.data_ptr() == place
    assert torch.equal(first, torch.ones(2, 3))
    other = cache.static_input("x", torch.ones(2, 3, dtype=torch.int64))
    assert other.data_ptr() != place, "another type, another buffer"
    assert cache.static_input("y", torch.ones(2, 3)).data_ptr() != place
    turned = cache.static_input("x", torch.ones(3, 2).T)
    assert turned.data_ptr() != place, "another layout, another buffer"
    assert turned.stride() == (1, 2)


@pytest.mark.parametrize(
    ("mode", "device", "executor", "reason"),
    [
        ("auto", "cpu", "vmap", "cpu"),
        ("auto", "cuda", "sharded", "messages"),
        ("auto", "cuda", "loop", None),
        ("auto", "cuda", "vmap", None),
        ("on", "cuda", "vmap", None),
        ("on", "cuda", "loop", None),
        ("off", "cuda", "vmap", "requested"),
        ("off", "cpu", "loop", "requested"),
    ],
)
def test_graphs_are_for_cuda_without_messages_between_ranks(mode, device, executor, reason):
    why = reason_against_graphs(mode, torch.device(device), executor)
    assert why is None if reason is None else reason in (why or "")


def test_insisting_where_there_are_none_is_refused():
    assert "cpu" in refused(lambda: small_engine(graphs="on"))
    assert "messages" in refused(lambda: reason_against_graphs("on", CUDA, "sharded"))
    assert "always" in refused(lambda: small_engine(graphs="always"))


def test_the_engine_says_what_it_decided():
    report = small_engine().graph_report()
    assert not report.on
    assert "cpu" in report.reason
    engine = small_engine()
    engine.use_graphs(rerun_cache())
    assert engine.graph_report().on


# ---- a population -------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "executor"), [("sgd", "loop"), ("adamw", "vmap")])
def test_what_changes_between_replays_is_what_they_see(kind, executor):
    """Rates, moments, weights, data: all new values, all at the old addresses.

    Under vmap alphas, too; the loop executor captures anew while they move.
    """
    optim = OptimConfig(kind=kind, weight_decay=0.01)
    graphed, plain = (make_population(4, executor, optim=optim) for _ in range(2))
    cache = rerun_cache()
    totals = [TrainTotals.zeros(4, 3, CPU) for _ in range(2)]
    for population in (graphed, plain):
        bring_to(population, SeedStage.BLENDING, [0, 2], "r0c1", tempo=8)
        population.germinate([1], "r0c2", "norm")
    for step in range(6):
        for population, total, graphs in ((graphed, totals[0], cache), (plain, totals[1], None)):
            population.begin_step()
            population.set_rates(0.05 / (step + 1), [0.01 * step] * 4)
            if step == 3:
                population.trainer.reset()
            if step == 4:
                population.network.host.flat_EP.detach()[1].mul_(0.5)
            for index in range(3):
                x, y = batch(4, 10 * step + index)
                process_train_batch(population, x, y, total, None, graphs)
    assert [total.batches_E.tolist() for total in totals] == [[18] * 4] * 2
    assert totals[0].predictions == totals[1].predictions
    assert cache.replays >= (15 if executor == "vmap" else 8)
    torch.testing.assert_close(
        graphed.network.host.flat_EP, plain.network.host.flat_EP, rtol=1e-5, atol=1e-6
    )
    for name in ("loss_E", "correct_E", "shadow_loss_ES", "host_grad_norm_E", "grad_norm_ES"):
        torch.testing.assert_close(
            getattr(totals[0], name), getattr(totals[1], name), rtol=1e-5, atol=1e-5, equal_nan=True
        )


def test_the_fake_capture_notices_what_moves():
    population, cache = make_population(3), rerun_cache()
    totals = TrainTotals.zeros(3, 3, CPU)
    for _ in range(3):
        process_train_batch(population, *batch(3), totals, None, cache)
    population.trainer.host_lr_E = population.trainer.host_lr_E.clone()
    with pytest.raises(AssertionError, match="host_lr"):
        process_train_batch(population, *batch(3), totals, None, cache)


# ---- the engine ---------------------------------------------------------------------------


def weights_of(engine: VectorizedEngine) -> dict[str, torch.Tensor]:
    network = engine.env.model.network
    stores = {"host": network.host}
    stores |= {str(key): bank for key, bank in network.banks.items()}
    stores |= {f"gate {key}": gate for key, gate in network.gates.items()}
    out = {name: store.flat_EP.detach().clone() for name, store in stores.items()}
    for name, store in stores.items():
        out |= {f"{name}/{part}": value.clone() for part, value in store.fixed.items()}
    return out


def run_both(spec, rounds: int, policy, **config) -> list[tuple[VectorizedEngine, Diary]]:
    runs = []
    for graphed in (True, False):
        diary = Diary()
        engine = small_engine(spec, diary, **config)
        if graphed:
            engine.use_graphs(rerun_cache())
        client = policy()
        books = []
        for _ in range(rounds):
            engine.run_rollout(client)
            books.append(histories(engine.episode))
        engine.episodes = books  # type: ignore[attr-defined]
        runs.append((engine, diary))
    return runs


def assert_same_run(runs: list[tuple[VectorizedEngine, Diary]]) -> None:
    (graphed, one), (plain, two) = runs
    for a, b in zip(one.records, two.records, strict=True):
        assert np.array_equal(a.decision.actions.op, b.decision.actions.op)
        assert np.array_equal(a.signals.slots.stage_ES, b.signals.slots.stage_ES)
        assert a.rows == b.rows
        np.testing.assert_allclose(
            a.counterfactuals.contribution_ES, b.counterfactuals.contribution_ES, atol=1e-6
        )
    for left, right in zip(graphed.episodes, plain.episodes, strict=True):
        for name, values in left.items():
            np.testing.assert_allclose(values, right[name], rtol=1e-4, atol=1e-5, err_msg=name)
    left, right = weights_of(graphed), weights_of(plain)
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(
            value, right[name], rtol=1e-4, atol=2e-5, equal_nan=True, msg=name
        )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_whole_episodes_of_random_growth_end_with_equal_weights(executor):
    """Germination, blending, pruning, fossils, resets between rounds, new banks on the way."""
    spec = small_task(episode_length=14, kernel_size=3)
    runs = run_both(
        spec, 2, lambda: random_policy(3, spec), members=5, governor=CALM, executor=executor
    )
    assert_same_run(runs)
    engine, diary = runs[0]
    report = engine.graph_report()
    stages = {s for r in diary.records for s in r.signals.slots.stage_ES.ravel().tolist()}
    assert stages >= {SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.HOLDING}
    assert report.on
    assert report.replays > report.captures > 3
    assert engine.env.model.choice.executor.name == executor
    passes = 2 * 14 * (spec.batches_per_step + 2) + 2 * 2
    assert report.replays + report.eager == passes, "every batch and every pass once"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_many_episodes_of_random_growth_end_with_equal_weights(seed):
    spec = small_task(episode_length=25, batches_per_step=3)
    runs = run_both(spec, 2, lambda: random_policy(seed, spec), members=6, governor=CALM, seed=seed)
    assert_same_run(runs)


def test_captured_batches_train_on_after_a_restart():
    """Hosts drawn anew in place, outside the captured work."""
    spec = replace(small_task(episode_length=6), context=ContextSpec(actions="grow+restart"))
    runs = run_both(spec, 1, lambda: random_policy(3, spec), members=3, governor=CALM)
    assert_same_run(runs)
    engine, diary = runs[0]
    assert engine.outcome().restarts_E.sum() > 1
    assert engine.graph_report().replays > 0
    anew = [r.decision.actions.op == LifecycleOp.RESTART for r in diary.records]
    assert any(restarted_E.any() and not restarted_E.all() for restarted_E in anew)


def test_rollbacks_continue_from_restored_values():
    """NaN planted in one member: set back in place, and the captured batches train on."""
    spec = small_task(episode_length=8, batches_per_step=4)
    runs = []
    for graphed in (True, False):
        diary = Diary()
        engine = small_engine(spec, diary, members=3)
        if graphed:
            engine.use_graphs(rerun_cache())

        def plant(record, engine=engine) -> None:
            if record.signals.step == 3:
                engine.env.model.network.host.flat_EP.detach()[1, 0] = float("nan")

        diary.watch = plant
        engine.run_rollout(StaticTopology(dict.fromkeys(("r0c1",), "conv_light")))
        engine.episodes = [histories(engine.episode)]
        assert engine.env.governor.rollbacks_E.tolist() == [0, 1, 0]
        runs.append((engine, diary))
    assert_same_run(runs)


def test_after_a_failed_capture_the_run_is_the_plain_one():
    """Not one batch more or less, and exact plans from there on."""
    spec = small_task(episode_length=6)
    engine, plain = small_engine(spec), small_engine(spec)
    engine.use_graphs(GraphCache(Failing()))
    for one in (engine, plain):
        one.run_rollout(random_policy(1, spec))
    assert not engine.graph_report().on
    for name, values in histories(engine.episode).items():
        np.testing.assert_allclose(
            values, getattr(plain.episode, name), rtol=1e-4, atol=1e-5, err_msg=name
        )
    torch.testing.assert_close(
        engine.env.model.network.host.flat_EP,
        plain.env.model.network.host.flat_EP,
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_waiting_needs_three_graphs(executor):
    """Train, control and score without seeds: shapes that never change are captured once."""
    engine = small_engine(small_task(episode_length=5), executor=executor)
    engine.use_graphs(rerun_cache())
    for _ in range(2):
        engine.run_rollout(WaitPolicy())
    report = engine.graph_report()
    assert (report.captures, report.held, report.eager) == (3, 3, 3)
