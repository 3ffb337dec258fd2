"""Captured CUDA graphs: what a replay computes is what the same work computes eagerly.

The fake of `graph_support` runs the same padded plans in the same buffers without a graph, so
that under `exact` nothing but the capture differs: both must agree bit for bit.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cuda_support import (
    DEVICE,
    NEEDS_CUDA,
    SHORT,
    assert_close,
    assert_same,
    engine_on_gpu,
    state_of,
    watched_episode,
)
from engine_support import CALM, Diary, histories, random_policy, small_task
from esper.device.graphs import CudaRecorder, GraphCache
from esper.kasmina import CNNHost, OptimConfig, Population, PopulationConfig
from esper.kasmina.lifecycle.gates import GateConfig
from esper.kasmina.lifecycle.lifecycle import LifecycleConfig
from esper.kasmina.training.scaling import MemberScaler
from esper.leyline import BlendStyle, SeedStage
from esper.tamiyo.baselines import StaticTopology, WaitPolicy
from esper.tolaria.batch_ops import TrainTotals, process_train_batch
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.runtime import autocast
from esper.tolaria.setup import LOOP_PATIENCE
from graph_support import Rerun
from support import CLASSES, KINDS, ROW_0, batch, bring_to, make_population

pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("exact")]

STEPS, BATCHES = 4, 2


def cuda_cache(**settings) -> GraphCache:
    return GraphCache(CudaRecorder(DEVICE), **settings)


def on_gpu(spec=SHORT, listener=None, **config) -> VectorizedEngine:
    return engine_on_gpu(spec, listener, **({"executor": "vmap"} | config))


def grown(kind: str = "cnn", **settings: object) -> Population:
    """Seeds that blend, one that incubates, one that is permanent."""
    population = make_population(5, device="cuda", kind=kind, **settings)
    slots = population.slots
    first, second = population.blueprints[:2]
    bring_to(population, SeedStage.FOSSILIZED, [1], slots[0], first, style=BlendStyle.GATE)
    bring_to(population, SeedStage.BLENDING, [2, 3], slots[1], second, tempo=8)
    population.germinate([0, 4], slots[2], first)
    return population


def totals_of(population: Population) -> TrainTotals:
    return TrainTotals.zeros(population.members, len(population.slots), DEVICE)


def numbers(totals: TrainTotals) -> dict[str, Tensor]:
    names = ("loss_E", "correct_E", "shadow_loss_ES", "host_grad_norm_E", "grad_norm_ES")
    return {name: getattr(totals, name) for name in names}


def train_steps(
    population: Population,
    cache: GraphCache | None,
    kind: str = "cnn",
    precision: str = "fp32",
    scaler: MemberScaler | None = None,
) -> TrainTotals:
    """Four steps of two batches; rates, moments, weights and alphas change in between."""
    totals = totals_of(population)
    for step in range(STEPS):
        population.begin_step()
        population.set_rates(0.05 / (step + 1), [0.01 * step] * population.members)
        if step == 2:
            population.trainer.reset()
        if step == 3:
            population.network.host.flat_EP.detach()[1].mul_(0.5)
        for index in range(BATCHES):
            x, y = batch(population.members, 10 * step + index, device="cuda", kind=kind)
            with autocast(DEVICE, precision, cached=False):
                process_train_batch(population, x, y, totals, scaler, cache)
    return totals


# ---- a population -------------------------------------------------------------------------


def ended(kind: str, law: str, cache: GraphCache | None) -> dict[str, Tensor]:
    """Where a population gets to; but for the warm-up every batch was replayed."""
    population = grown(kind, optim=OptimConfig(kind=law))
    totals = train_steps(population, cache, kind)
    if cache is not None:
        assert cache.on, cache.problem
        assert (cache.eager, cache.replays) == (1, STEPS * BATCHES - 1)
    return state_of(population) | numbers(totals)


@functools.cache
def replayed(kind: str, law: str = "sgd") -> dict[str, Tensor]:
    """Computed once for all tests that compare with it."""
    return ended(kind, law, cuda_cache())


@pytest.mark.parametrize(
    ("kind", "law"), [("cnn", "sgd"), ("cnn", "adamw"), ("batchnorm", "sgd"), ("mlp", "adamw")]
)
def test_replays_are_the_work_bit_for_bit(kind, law):
    assert_same(replayed(kind, law), ended(kind, law, GraphCache(Rerun())))


@pytest.mark.parametrize(
    ("kind", "law"),
    [("cnn", "sgd"), ("batchnorm", "sgd"), ("mlp", "adamw"), ("transformer", "sgd")],
)
def test_replays_agree_with_exact_plans(kind, law):
    """No padding, no buffers, no graph on the other side."""
    if kind == "transformer":
        torch.use_deterministic_algorithms(False)
    assert_close(replayed(kind, law), ended(kind, law, None), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_is_captured_too(precision):
    ends = []
    for cache in (cuda_cache(), GraphCache(Rerun())):
        population = grown()
        scaler = MemberScaler(5, DEVICE) if precision == "fp16" else None
        totals = train_steps(population, cache, precision=precision, scaler=scaler)
        assert cache.on, cache.problem
        assert cache.replays == STEPS * BATCHES - 1
        ends.append(state_of(population) | numbers(totals))
        if scaler is not None:
            ends[-1] |= {"scale": scaler.scale_E, "good": scaler.good_E}
    assert_same(*ends)


def all_kinds(device: str) -> Population:
    """Two members of each blueprint, fossilised in two slots and incubating in a third."""
    blueprints = ("norm", "depthwise", "conv_small", "conv_light", "conv_heavy", "attention")
    made = KINDS["cnn"]
    config = PopulationConfig(lifecycle=LifecycleConfig(gates=GateConfig(min_training_steps=1)))
    population = Population(made.host, made.slots, blueprints, 12, 0, device, config)
    for index, blueprint in enumerate(blueprints):
        for number, slot in enumerate(made.slots[:2]):
            style, members = BlendStyle((index + number) % 3), [index, index + 6]
            bring_to(population, SeedStage.FOSSILIZED, members, slot, blueprint, style=style)
    for index, blueprint in enumerate(blueprints):
        population.germinate([index, index + 6], made.slots[2], blueprint)
    population.begin_step()
    return population


@pytest.mark.filterwarnings("error:The AccumulateGrad node's stream")
def test_branches_of_a_graph_compute_what_one_stream_does_bit_for_bit():
    """Groups of seeds overlap in a capture; a tensor reused too early would show in some replay."""
    ends = []
    for cache in (cuda_cache(), GraphCache(Rerun())):
        population = all_kinds("cuda")
        totals = totals_of(population)
        for seed in range(40):
            x, y = batch(12, seed, 128, device="cuda")
            with autocast(DEVICE, "bf16", cached=False):
                process_train_batch(population, x, y, totals, None, cache)
        assert cache.on, cache.problem
        assert cache.replays == 39
        ends.append(state_of(population) | numbers(totals))
    assert_same(*ends)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_graph_of_an_earlier_pass_that_still_lives_does_not_break_a_capture(executor):
    """Its nodes belong to the default stream, which no capture may wait for."""
    population = grown(executor=executor)
    cache = cuda_cache()
    host = population.network.host
    held = [torch.autograd.graph.get_gradient_edge(host.flat_EP)]
    leaves = [leaf for member in range(5) for leaf in host.member_leaves(member).values()]
    held += [torch.autograd.graph.get_gradient_edge(leaf) for leaf in leaves]
    train_steps(population, cache)
    assert cache.on, cache.problem
    assert cache.replays > 0
    assert len(held) > 5


def test_a_capture_computes_nothing():
    population = grown()
    population.begin_step()
    x, y = batch(5, device="cuda")
    totals = totals_of(population)
    plan = population.train_plan(padded=True)

    def work() -> None:
        batch_stats = population.train_rows(plan, x, y)
        totals.loss_E += batch_stats.loss_E

    work()
    before = state_of(population) | {"totals": totals.loss_E.clone()}
    graph = CudaRecorder(DEVICE).capture(work)
    assert_same(before, state_of(population) | {"totals": totals.loss_E.clone()})
    graph.replay()
    after = state_of(population)
    assert not torch.equal(after["host"], before["host"])


def test_a_sick_member_0_stays_alone_in_replays():
    """Padding rows read member 0; with NaN there all of them are NaN."""
    ends = []
    for cache in (cuda_cache(), None):
        population = grown()
        population.network.host.flat_EP.detach()[0] = float("nan")
        train_steps(population, cache)
        ends.append({name: value[1:] for name, value in state_of(population).items()})
    assert_close(*ends, rtol=1e-3, atol=1e-4)
    assert ends[0]["host"].isfinite().all()


class Waiting(nn.Module):
    """Waits for the device, which no graph can."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            torch.cuda.current_stream().synchronize()
        return x


class WaitingHost(CNNHost):
    def __init__(self) -> None:
        super().__init__(num_classes=CLASSES, in_channels=1, n_blocks=3, base_channels=4)
        self.wait = Waiting()

    def segments(self):
        first, *others = super().segments()
        return (nn.Sequential(first, self.wait), *others)


def test_a_host_that_waits_goes_on_without_graphs():
    def make() -> Population:
        gates = LifecycleConfig(gates=GateConfig(min_training_steps=1))
        config = PopulationConfig(executor="vmap", lifecycle=gates)
        return Population(WaitingHost, ROW_0, ("norm",), 3, 0, "cuda", config)

    ends = []
    cache = cuda_cache()
    for graphs in (cache, None):
        population = make()
        totals = totals_of(population)
        for seed in range(5):
            process_train_batch(population, *batch(3, seed, device="cuda"), totals, None, graphs)
        assert totals.batches_E.tolist() == [5, 5, 5]
        ends.append(state_of(population))
    assert not cache.on
    assert cache.problem
    assert cache.replays == 0
    assert cache.eager == 2, "the warm-up, and the batch whose capture failed"
    assert_close(*ends, rtol=1e-4, atol=1e-5)


def test_a_pool_outlives_its_graphs():
    """All graphs gone, the next capture still goes into the same pool."""
    recorder = CudaRecorder(DEVICE)
    values = torch.zeros(1000, device="cuda")

    def work() -> None:
        values.add_(torch.ones_like(values))

    for count in range(1, 4):
        graph = recorder.capture(work)
        graph.replay()
        assert values[0].item() == count
        del graph


def changing_shapes(cache: GraphCache) -> tuple[Population, list[int]]:
    """Five rounds through three shapes, three batches each; memory held after each round."""
    population = make_population(8, device="cuda")
    totals, used = totals_of(population), []
    for round_index in range(5):
        population.reset(round_index)
        for count in (0, 2, 8):
            dormant = np.flatnonzero(population.lifecycle.stage_ES[:count, 1] == SeedStage.DORMANT)
            if dormant.size:
                population.germinate(dormant, "r0c1", "conv_light")
            population.begin_step()
            for seed in range(3):
                x, y = batch(8, seed, device="cuda")
                process_train_batch(population, x, y, totals, None, cache)
        used.append(torch.cuda.memory_reserved())
    return population, used


def test_dropped_graphs_are_captured_again_and_memory_does_not_grow():
    cache, rerun = cuda_cache(limit=1), GraphCache(Rerun(), limit=1)
    population, used = changing_shapes(cache)
    assert cache.on, cache.problem
    assert cache.captures >= 12, "one graph is held at a time"
    assert used[-1] <= used[2] + 2**21
    assert_same(state_of(population), state_of(changing_shapes(rerun)[0]))
    assert rerun.captures == cache.captures


# ---- the engine ---------------------------------------------------------------------------


def test_auto_is_on_for_cuda_with_vmap_and_with_loop_for_plans_that_stay():
    assert on_gpu().graph_report().on
    assert on_gpu(graphs="on").graph_report().on
    off = on_gpu(graphs="off").graph_report()
    assert (off.on, off.reason) == (False, "requested")
    assert on_gpu(executor="loop", graphs="on").graph_report().on
    engine = on_gpu(executor="loop")
    engine.run_rollout(WaitPolicy())
    report = engine.graph_report()
    assert report.reason == "CUDA and loop"
    assert report.eager >= LOOP_PATIENCE
    assert report.replays > report.eager


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_episodes_of_random_growth_are_those_without_graphs_bit_for_bit(precision):
    """Resets, new banks, stages, ramps, coalitions: two rounds, other growth in each."""
    spec = small_task(episode_length=8, kernel_size=3)
    runs = []
    for recorder in (CudaRecorder(DEVICE), Rerun()):
        diary = Diary()
        engine = on_gpu(spec, diary, precision=precision, governor=CALM)
        engine.use_graphs(GraphCache(recorder))
        policy = random_policy(3, spec)
        books = []
        for _ in range(2):
            engine.run_rollout(policy)
            books.append(histories(engine.episode))
        report = engine.graph_report()
        assert report.on, report.reason
        assert report.replays > report.captures > 3
        passes = 2 * 8 * (2 + 2) + 2 * 2
        assert report.replays + report.eager == passes, "every batch and every pass once"
        runs.append((books, diary, state_of(engine.env.model)))
    (left, one, end), (right, two, other) = runs
    for a, b in zip(one.records, two.records, strict=True):
        assert np.array_equal(a.decision.actions.op, b.decision.actions.op)
        assert np.array_equal(
            a.counterfactuals.contribution_ES, b.counterfactuals.contribution_ES, equal_nan=True
        )
    for book, again in zip(left, right, strict=True):
        assert_same(book, again)
    assert_same(end, other)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_rollout_agrees_with_one_without_graphs(seed):
    runs = []
    for graphs in ("on", "off"):
        diary = Diary()
        engine = on_gpu(listener=diary, graphs=graphs, seed=seed, governor=CALM)
        engine.run_rollout(random_policy(seed))
        losses = ("train_loss_TE", "loss_TE", "score_loss_TE")
        runs.append(({name: getattr(engine.episode, name) for name in losses}, diary))
    (graphed, one), (plain, two) = runs
    for a, b in zip(one.records, two.records, strict=True):
        assert np.array_equal(a.decision.actions.op, b.decision.actions.op)
        assert np.array_equal(a.signals.slots.stage_ES, b.signals.slots.stage_ES)
        assert a.rows == b.rows
    assert_close(graphed, plain, rtol=5e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_exact_is_bit_reproducible_with_graphs(precision):
    runs = []
    for _ in range(2):
        engine = on_gpu(graphs="on", precision=precision)
        for _ in range(2):
            engine.run_rollout(random_policy())
        assert engine.graph_report().replays > 0
        runs.append(histories(engine.episode))
    assert_same(*runs)


def test_a_rollback_goes_on_from_restored_values():
    ends = []
    for recorder in (CudaRecorder(DEVICE), Rerun()):
        diary = Diary()
        engine = on_gpu(listener=diary)
        engine.use_graphs(GraphCache(recorder))

        def plant(record, engine=engine) -> None:
            if record.signals.step == 3:
                engine.env.model.network.host.flat_EP.detach()[1, 0] = float("nan")

        diary.watch = plant
        engine.run_rollout(StaticTopology(dict.fromkeys(("r0c1",), "conv_light")))
        assert engine.env.governor.rollbacks_E.tolist() == [0, 1, 0]
        assert engine.graph_report().on
        ends.append(state_of(engine.env.model))
    assert_same(*ends)
    assert ends[0]["host"].isfinite().all()


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_capturing_and_replaying_wait_for_nothing(placement):
    """A fresh cache, so that the steps watched warm up, capture and replay."""
    engine = on_gpu(data_placement=placement)
    policy = random_policy(3, SHORT)
    engine.run_rollout(policy)  # kernels, banks and moments are set up
    engine.use_graphs(cuda_cache())
    assert watched_episode(engine, policy) == SHORT.episode_length
    report = engine.graph_report()
    assert report.on, report.reason
    assert report.captures > 3
    assert report.replays > report.captures


def test_waiting_needs_three_graphs_and_memory_stays_constant():
    engine = on_gpu(small_task(episode_length=2))
    used = []
    for _ in range(6):
        engine.run_rollout(WaitPolicy())
        used.append(torch.cuda.memory_reserved())
    report = engine.graph_report()
    assert (report.captures, report.held, report.eager) == (3, 3, 3)
    assert used[-1] <= used[2] + 2**21


def test_a_profile_that_tunes_kernels_is_captured_too():
    """`fast`: cuDNN tries its kernels in the warm-up, never in a capture."""
    engine = on_gpu(small_task(episode_length=8, kernel_size=3), profile="fast")
    engine.run_rollout(random_policy())
    report = engine.graph_report()
    assert report.on, report.reason
    assert report.replays > report.captures > 0


def test_two_engines_take_turns():
    """Each has its own pool; neither writes into the other's."""
    spec = small_task(episode_length=2)
    alone = on_gpu(spec, seed=1)
    for _ in range(2):
        alone.run_rollout(WaitPolicy())
    first, second = on_gpu(spec, seed=1), on_gpu(spec, seed=2)
    for _ in range(2):
        first.run_rollout(WaitPolicy())
        second.run_rollout(WaitPolicy())
    assert_same(histories(alone.episode), histories(first.episode))


def test_work_given_as_a_partial_is_all_a_graph_needs():
    """Results of earlier replays are not disturbed by later captures in the same pool."""
    cache = cuda_cache()
    source, total = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    other = torch.zeros(1024, 1024, device="cuda")

    def add(values: Tensor, into: Tensor) -> None:
        into += (values * 2.0 + 1.0).square()

    for value in range(4):
        source.fill_(float(value))
        cache.run("small", partial(add, source, total))
        cache.run("large", partial(add, other, other))
    expected = sum((2.0 * value + 1.0) ** 2 for value in range(4))
    assert total.tolist() == [expected] * 4
    assert cache.captures == 2


FAILED = """
import sys
sys.path[:0] = {paths!r}
import torch
from esper.device.graphs import record_graph

held = torch.ones(4, device="cuda")
def raises(): held.add_(1); raise RuntimeError("ours")
def waits(): held.add_(1); held.sum().item()
def allocates(): waits(torch.ones(8, device="cuda"))

with torch.cuda.stream(torch.cuda.Stream()):
    shared = torch.cuda.graph_pool_handle()
    kept = record_graph(lambda: held.add_(1), shared)
    for work in (raises, waits, allocates):
        for pool in (None, shared):
            try: record_graph(work, pool)
            except (RuntimeError, TypeError): pass
            else: raise SystemExit("it was captured")
    kept.replay()
    torch.cuda.synchronize()
    assert held[0].item() == 2.0
"""


def test_a_process_whose_captures_failed_exits_cleanly():
    """A pool that is released twice aborts it at its end."""
    done = subprocess.run(
        [sys.executable, "-c", FAILED.format(paths=sys.path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
