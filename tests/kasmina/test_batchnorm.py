"""Hosts with running statistics: each member's follow its own main rows, as in a plain module."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina import BlueprintRegistry, Population, PopulationConfig, blueprint
from esper.kasmina.rows.rows import FROM_INPUT, RowTable
from esper.leyline import BlendStyle, SeedStage
from support import BatchNormHost, batch, bring_to, host_state, make_population

EXECUTORS = ["vmap", "loop"]
COUNTERS = [
    "blocks.0.norm.num_batches_tracked",
    "blocks.1.norm.num_batches_tracked",
    "last.0.norm.num_batches_tracked",
]


def incubating(executor: str) -> Population:
    """Three members: two with seeds in TRAINING, so that shadow rows run beside the main rows."""
    population = make_population(3, executor, kind="batchnorm")
    bring_to(population, SeedStage.TRAINING, [0, 2], "r0c0", "depthwise")
    bring_to(population, SeedStage.TRAINING, [2], "r0c1", "bottleneck", style=BlendStyle.GATE)
    return population


def plain_copies(population: Population) -> list[nn.Module]:
    """The members' hosts as ordinary modules with their own memory."""
    return [copy.deepcopy(population.member(i).host) for i in range(population.members)]


def train_plain(model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    model.train()
    optimiser.zero_grad()
    F.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


@pytest.mark.parametrize(("executor", "shared"), [("vmap", False), ("loop", True)])
def test_members_follow_plain_modules_trained_on_the_same_batches(executor, shared):
    """Parameters and statistics; shadow rows and counterfactuals run in between, unseen."""
    population = incubating(executor)
    plain = plain_copies(population)
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in plain]
    for seed in range(5):
        x, y = batch(1 if shared else 3, seed, kind="batchnorm")
        population.train_batch(x, y)
        population.evaluate(x, y, rows=[0, 2, 2], alpha_RS=[[1, 0, 0], [1, 1, 0], [0, 0, 0]])
        for i, (model, optimiser) in enumerate(zip(plain, optimisers, strict=True)):
            train_plain(model, optimiser, x[0 if shared else i], y[0 if shared else i])
    for i, model in enumerate(plain):
        ours = population.member(i).host.state_dict()
        for name, theirs in model.state_dict().items():
            torch.testing.assert_close(ours[name], theirs, rtol=1e-4, atol=1e-5, msg=name)
        assert [int(ours[name]) for name in COUNTERS] == [5, 5, 5]
    x, _ = batch(3, seed=9, kind="batchnorm")
    out = population.forward(x)
    for i, model in enumerate(plain):
        torch.testing.assert_close(out[i], model.eval()(x[i]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_evaluation_uses_the_statistics_and_leaves_them_alone(executor):
    population = incubating(executor)
    population.train_batch(*batch(3, kind="batchnorm"))
    before = host_state(population)
    x, y = batch(3, seed=3, kind="batchnorm")
    whole = population.forward(x)
    population.evaluate(x, y)
    single = population.forward(x[:, :1])
    torch.testing.assert_close(whole[:, :1], single, rtol=1e-5, atol=1e-6)
    for name, value in host_state(population).items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("executor", EXECUTORS)
def test_only_a_member_as_it_stands_writes_statistics_and_only_once(executor):
    """Rows in training mode: repeated members, other alphas, rows that begin at a slot."""
    population = make_population(4, executor, kind="batchnorm")
    bring_to(population, SeedStage.HOLDING, [0, 1, 2], "r0c0", "depthwise")
    x, _ = batch(4, kind="batchnorm")
    wanted = make_population(4, executor, kind="batchnorm")
    bring_to(wanted, SeedStage.HOLDING, [0, 1, 2], "r0c0", "depthwise")
    wanted.forward(x, rows=[0, 2], training=True)
    on, off = [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    table = RowTable(
        member_R=np.array([2, 1, 0, 2, 0, 1, 0]),
        alpha_RS=np.array([on, off, on, on, [0.5, 0, 0], on, off], dtype=np.float32),
        start_R=np.array([FROM_INPUT] * 5 + [1, 1]),
        source_R=np.array([0, 0, 0, 0, 0, 1, 2]),
        shadow_R=np.zeros(7, dtype=np.bool_),
    )
    population.forward(x, table, training=True)
    state, expected = host_state(population), host_state(wanted)
    for name in COUNTERS:
        assert state[name].tolist() == [1, 0, 1, 0]
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_new_episode_starts_with_fresh_statistics(executor):
    population = make_population(2, executor, kind="batchnorm")
    fresh = host_state(population)
    population.train_batch(*batch(2, kind="batchnorm"))
    trained = host_state(population)
    assert not torch.equal(
        trained["blocks.0.norm.running_mean"], fresh["blocks.0.norm.running_mean"]
    )
    population.reset(round_index=0)
    for name, value in host_state(population).items():
        assert torch.equal(value, fresh[name]), name


class NormFirst(BatchNormHost):
    """Statistics of the input itself, before anything tells the members apart."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[0] = nn.Sequential(nn.BatchNorm2d(1), self.blocks[0])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_norm_of_a_shared_input(executor):
    config = PopulationConfig(executor=executor)
    population = Population(NormFirst, ("r0c0",), ("norm",), 3, config=config)
    x, y = batch(1, kind="batchnorm")
    plain = nn.BatchNorm2d(1)
    for _ in range(2):
        population.train_batch(x + 3.0, y)
        plain(x[0] + 3.0)
    fixed = population.network.host.fixed
    torch.testing.assert_close(fixed["blocks.0.0.running_mean"], plain.running_mean.expand(3, 1))
    torch.testing.assert_close(fixed["blocks.0.0.running_var"], plain.running_var.expand(3, 1))


@pytest.fixture
def normed_seed():
    """A user's own seed with running statistics."""

    @blueprint("test_normed", topologies=("cnn",))
    class Normed(nn.Module):
        """Batch norm, scaled."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(width)
            self.scale = nn.Parameter(torch.full((width, 1, 1), 0.1))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * self.norm(x)

    yield "test_normed"
    BlueprintRegistry.unregister("test_normed")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_seed_gathers_statistics_from_the_rows_that_train_it(executor, normed_seed):
    """Its own shadow row while it incubates, the main row afterwards, none while it is removed."""
    config = PopulationConfig(executor=executor, lifecycle=make_population().config.lifecycle)
    population = Population(BatchNormHost, ("r0c0", "r0c1"), (normed_seed,), 3, config=config)

    def counts(slot: int) -> list[int]:
        return population.network.banks[slot, 0].fixed["norm.num_batches_tracked"].tolist()

    bring_to(population, SeedStage.HOLDING, [0, 1], "r0c1", normed_seed)
    bring_to(population, SeedStage.TRAINING, [1], "r0c0", normed_seed)
    x, y = batch(3, kind="batchnorm")
    host = plain_copies(population)[1].train()
    population.train_batch(x, y)
    assert counts(0) == [0, 1, 0], "the shadow row's own seed"
    assert counts(1) == [1, 1, 0], "the main rows' seeds, once: not by the shadow row as well"
    expected = nn.BatchNorm2d(4)
    expected(host.blocks[0](x[1]))
    mean = population.network.banks[0, 0].fixed["norm.running_mean"][1]
    torch.testing.assert_close(mean, expected.running_mean, rtol=1e-4, atol=1e-5)
    population.prune([0], "r0c1", speed=5)
    population.begin_step()
    population.train_batch(x, y)
    assert counts(1) == [1, 2, 0], "a seed on its way out is frozen"
    population.evaluate(x, y)
    assert counts(1) == [1, 2, 0]
