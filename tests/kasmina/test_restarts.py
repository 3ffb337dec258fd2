"""RESTART: a member begins anew, and nobody else notices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.kasmina import Population
from esper.kasmina.training.optim import OptimConfig
from esper.leyline import LifecycleOp, SeedStage, VetoReason
from esper.leyline.errors import IllegalActionError
from esper.leyline.streams import stream_keys
from support import KINDS, batch, bring_to, make_population

STAGES = [stage for stage in SeedStage if stage not in (SeedStage.DORMANT, SeedStage.PLANTED)]
COUNTED = {"births_ES", "restarts_E", "restartable_E"}


def restartable(population: Population) -> Population:
    """The members may begin anew."""
    life = population.lifecycle
    life.action_space = "grow+restart"
    life.trained_E[:] = life.restartable_E[:] = True
    return population


def trained(executor: str = "loop", members: int = 3) -> Population:
    """Members with a blended seed each, after a few batches."""
    optim = OptimConfig(kind="adamw")
    population = make_population(members, executor, seed=5, optim=optim)
    for slot in population.slots[:2]:
        bring_to(population, SeedStage.HOLDING, list(range(members)), slot, style=2)
    for _ in range(2):
        population.train_batch(*batch(members))
    return restartable(population)


def values_of(population: Population, member: int) -> dict[str, torch.Tensor]:
    """All numbers of one member: weights, buffers, moments, slots."""
    trainer, network = population.trainer, population.network
    stores = {"host": network.host, **network.banks, **network.gates}
    out = {str(key): store.flat_EP[member].detach().clone() for key, store in stores.items()}
    for optimizer in (trainer.host_optimizer, trainer.seed_optimizer):
        for key, moments in optimizer.state.items():
            out |= {f"{key} {name}": value[member].clone() for name, value in moments.items()}
    arrays = population.lifecycle.arrays().items()
    return out | {name: torch.from_numpy(np.array(array[member])) for name, array in arrays}


def fresh_host(population: Population, member: int, restart: int) -> torch.Tensor:
    """The host of the documented stream, drawn beside the population."""
    path = ("round", population.round, "member", population.member_ids[member], "host", "restart")
    keys = stream_keys(population.seed, *path[:3], np.array([path[3]]), *path[4:], restart)
    other = Population(KINDS["cnn"].host, population.slots, (), 1, population.seed)
    other.network.host.draw(keys, torch.tensor([0]))
    return other.network.host.flat_EP[0].detach()


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_the_kth_restart_of_a_member_is_a_fresh_member_of_its_own_stream(executor):
    """Whatever its neighbours do, and whatever number of members there are."""
    population = trained(executor)
    population.restart([1])
    host_EP = population.network.host.flat_EP
    assert torch.equal(host_EP[1], fresh_host(population, 1, 1))
    restartable(population).restart([0, 1])
    assert torch.equal(host_EP[0], fresh_host(population, 0, 1))
    assert torch.equal(host_EP[1], fresh_host(population, 1, 2))
    hosts = {tuple(fresh_host(population, member, k).tolist()) for member in (0, 1) for k in (1, 2)}
    assert len(hosts) == 4


def test_no_moments_no_seeds_and_no_gates_are_left():
    population = trained()
    population.restart([1])
    trainer = population.trainer
    for optimizer in (trainer.host_optimizer, trainer.seed_optimizer):
        assert optimizer.state
        for moments in optimizer.state.values():
            assert all(not value[1].any() and value[0].any() for value in moments.values())
    stores = (*population.network.banks.values(), *population.network.gates.values())
    assert all(not store.flat_EP[1].any() and store.flat_EP[0].any() for store in stores)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_the_others_keep_every_bit(executor):
    population = trained(executor)
    before = [values_of(population, member) for member in (0, 2)]
    population.restart([1])
    for old, member in zip(before, (0, 2), strict=True):
        now = values_of(population, member)
        assert old.keys() == now.keys()
        assert all(torch.equal(old[n].nan_to_num(7), now[n].nan_to_num(7)) for n in old)


def test_every_slot_is_empty_whatever_its_stage():
    population = restartable(make_population(len(STAGES)))
    empty = {name: array.copy() for name, array in population.lifecycle.arrays().items()}
    life = population.lifecycle
    for member, stage in enumerate(STAGES):
        bring_to(population, SeedStage.HOLDING, [member], "r0c1")
        life.stage_ES[member, 1], life.pruning_ES[member, 1] = stage, stage is SeedStage.BLENDING
    restartable(population).restart(np.arange(len(STAGES)))
    for name, array in life.arrays().items():
        if name not in (*COUNTED, "trained_E", "host_loss_E"):
            assert np.array_equal(array, empty[name], equal_nan=array.dtype.kind == "f"), name
    assert life.restarts_E.tolist() == [1] * len(STAGES)
    assert (life.births_ES[:, 1] == 1).all()
    population.germinate(0, "r0c1", "conv_light")
    population.train_batch(*batch(len(STAGES)))


def test_a_closed_slot_stays_closed():
    population = restartable(make_population(2))
    population.lifecycle.action_space = "full+restart"
    population.lifecycle.close(0, 1)
    population.restart([0, 1])
    assert np.argwhere(population.lifecycle.closed_ES).tolist() == [[0, 1]]


def test_who_may_not_restart_is_told_why():
    population = restartable(make_population(5))
    life = population.lifecycle
    life.stopped_E[0], life.trained_E[1], life.restartable_E[2] = True, False, False
    found = life.veto(LifecycleOp.RESTART)
    why = (VetoReason.STOPPED, VetoReason.NOTHING_TRAINED, VetoReason.TOO_LITTLE_LEFT)
    assert found[:, 0].tolist() == [*why, VetoReason.NONE, VetoReason.NONE]
    assert (found == found[:, :1]).all()
    with pytest.raises(IllegalActionError, match=r"RESTART of member 2.*TOO_LITTLE_LEFT"):
        population.restart([2, 3])
    life.planning = True
    assert (life.veto(LifecycleOp.RESTART) == VetoReason.NOT_IN_PHASE).all()


@pytest.mark.parametrize("actions", ["grow", "full"])
def test_other_action_spaces_have_no_restart(actions):
    life = restartable(make_population(2)).lifecycle
    life.action_space = actions
    assert (life.veto(LifecycleOp.RESTART) == VetoReason.NOT_IN_PHASE).all()


def test_a_saved_population_restarts_as_if_it_had_not_been_saved(tmp_path):
    population = trained()
    population.restart([0])
    population.save(tmp_path / "saved")
    loaded = Population.load(tmp_path / "saved", KINDS["cnn"].host)
    for each in (population, loaded):
        restartable(each).restart([0])
    assert torch.equal(population.network.host.flat_EP, loaded.network.host.flat_EP)
