"""Random programs: 60 legal ones, on five hosts, each under vmap and under loop.

A seed draws a population, its settings, perhaps seeds planted from the start, and twelve steps:
train batches, validation, gate signals and legal operations (germinate, advance, set an alpha
target, prune, fossilize) on some members. Both executors agree on losses, gradient norms, outputs,
parameters, moments and running statistics after every batch, to 2e-5 relative and 2e-6 absolute;
lifecycles, parameter counts and MACs agree exactly. After a batch one population continues from the
other's numbers, so that rounding does not add up and a difference is of that batch. Hosts and
programs: `program_support.py`.

Repeat one case (all that it did is printed where it fails), or try others:

    ESPER_FUZZ_SEEDS=17 python -m pytest -m slow tests/fuzz/test_programs.py -k executors
    ESPER_FUZZ_SEEDS=100:400 python -m pytest -m slow tests/fuzz/test_programs.py -k executors
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.kasmina import Population
from esper.leyline import BlendStyle, SeedStage
from fuzz_support import require_none, seeds
from program_support import (
    HOSTS,
    Program,
    make_program,
    own_blueprint,
    random_action,
    random_batch,
    random_rows,
    random_signals,
)

HERE = "tests/fuzz/test_programs.py"
STEPS = 12
NEAR = {"rtol": 2e-5, "atol": 2e-6, "equal_nan": True}
MEASURED = ("loss_E", "correct_E", "shadow_loss_ES", "host_grad_norm_E", "grad_norm_ES")


@pytest.fixture(autouse=True)
def blueprint_of_a_user():
    with own_blueprint():
        yield


def same(what: str, left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, msg=lambda text: f"{what}: {text}", **NEAR)


def run_step(program: Program, pair: tuple[Population, Population], step: int) -> None:
    """A step of both, as the engine takes it: train, validate, gates, actions."""
    fused, looped = pair
    for population in pair:
        population.begin_step()
    for _ in range(program.chance.choice((1, 1, 2))):
        x, y = random_batch(program, size=6)
        left, right = (population.train_batch(x, y) for population in pair)
        program.note(f"  train on {tuple(x.shape)}")
        for name in MEASURED:
            same(f"step {step}, {name}", getattr(left, name), getattr(right, name))
        level(step, *pair)
    compare_outputs(program, pair, step)
    signals = random_signals(program)
    for population in pair:
        population.end_step(signals)
    act(program, pair)
    same_lifecycles(fused, looped)


def compare_outputs(program: Program, pair: tuple[Population, Population], step: int) -> None:
    """Of members as they stand, and of rows with some seeds off or weaker."""
    x, y = random_batch(program, size=4)
    left, right = (population.evaluate(x, y) for population in pair)
    same(f"step {step}, validation loss", left.loss_R, right.loss_R)
    rows, alpha_RS = random_rows(program, pair[0])
    with torch.no_grad():
        outputs = [population.forward(x, rows, alpha_RS) for population in pair]
    same(f"step {step}, rows {rows.tolist()} at {alpha_RS.tolist()}", *outputs)


def plant(program: Program, pair: tuple[Population, Population]) -> None:
    """Plant a seed in some members, permanent or to be pruned later."""
    chance = program.chance
    s, members = chance.randrange(len(program.slots)), range(program.members)
    blueprint = chance.choice(list(np.flatnonzero(pair[0].lifecycle.fits_SK[s])))
    given = {
        "members": sorted(chance.sample(members, chance.randint(1, program.members))),
        "slot": pair[0].slots[s],
        "blueprint": pair[0].blueprints[blueprint],
        "style": int(chance.choice(list(BlendStyle))),
        "prunable": chance.random() < 0.7,
    }
    program.note(f"plant {given}")
    for population in pair:
        population.plant(**given)


def act(program: Program, pair: tuple[Population, Population]) -> None:
    for _ in range(program.chance.randrange(4)):
        action = random_action(program, pair[0])
        if action is None:
            return
        program.note(f"  {action}")
        for population in pair:
            action.apply(population)


def same_lifecycles(left: Population, right: Population) -> None:
    mine, other = left.lifecycle.arrays(), right.lifecycle.arrays()
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def state_of(population: Population) -> dict[str, Tensor]:
    """Parameters, moments and buffers of hosts, seeds and gates."""
    network, trainer = population.network, population.trainer
    stores = {"host": network.host}
    stores |= {f"seed {key}": store for key, store in network.banks.items()}
    stores |= {f"gate {key}": store for key, store in network.gates.items()}
    state = {}
    for name, store in stores.items():
        state[name] = store.flat_EP.detach()
        state |= {f"{name} {inner}": value for inner, value in store.fixed.items()}
    for name, optimizer in (("host", trainer.host_optimizer), ("seed", trainer.seed_optimizer)):
        for key, moments in optimizer.state.items():
            state |= {f"{name} optimiser {key} {inner}": it for inner, it in moments.items()}
    return state


def level(step: int, left: Population, right: Population) -> None:
    """Both are the same; then the right one is exactly as the left one."""
    mine, other = state_of(left), state_of(right)
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        same(f"step {step}, {name}", value, other[name])
        other[name].copy_(value)


def same_costs(left: Population, right: Population) -> None:
    assert left.parameters_E().tolist() == right.parameters_E().tolist()
    assert left.macs_E().tolist() == right.macs_E().tolist()
    assert left.slot_reports() == right.slot_reports()


def run_program(seed: int, steps: int = STEPS) -> tuple[str, Counter]:
    """What the executors did not agree on (empty: nothing), and what came to pass."""
    program, seen = make_program(seed), Counter()
    pair = program.population("vmap"), program.population("loop")
    try:
        if program.chance.random() < 0.5:
            plant(program, pair)
        for step in range(steps):
            program.note(f"step {step}")
            stages = pair[0].lifecycle.stage_ES.copy()
            run_step(program, pair, step)
            seen.update(SeedStage(stage).name for stage in np.unique(stages))
            if program.chance.random() < 0.05:
                program.note("reset")
                for population in pair:
                    population.reset(step)
        same_costs(*pair)
    except AssertionError as error:
        return f"seed {seed}: {error}\n{program}", seen
    assert [population.choice.executor.name for population in pair] == ["vmap", "loop"]
    seen[program.host] += 1
    return "", seen


def fuzz(chosen: list[int], steps: int = STEPS) -> tuple[list[str], Counter]:
    broken, seen = [], Counter()
    for seed in chosen:
        problem, found = run_program(seed, steps)
        broken += [problem] if problem else []
        seen += found
    return broken, seen


def test_executors_agree_on_a_program_for_each_host():
    broken, seen = fuzz(list(range(len(HOSTS))), steps=5)
    require_none(broken, HERE, "executors")
    assert [seen[host] for host in HOSTS] == [1] * len(HOSTS)


@pytest.mark.slow
def test_executors_agree_on_sixty_programs():
    chosen = seeds(0, 60)
    broken, seen = fuzz(chosen)
    require_none(broken, HERE, "executors")
    if len(chosen) == 60:  # all hosts, and seeds in every stage of a life
        assert {seen[host] for host in HOSTS} == {12}
        assert all(seen[stage.name] >= 10 for stage in SeedStage), seen
