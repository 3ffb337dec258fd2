"""Programs that run under any executor, and what they compute: the same under each of them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine_support import CALM, Diary, histories, random_policy, small_engine, small_task
from esper.kasmina import MLPHost, OptimConfig, Population, PopulationConfig, SignalHost
from esper.kasmina.activation_gradients import slot_gradient_norms
from esper.kasmina.saving.saving import population_tensors
from esper.kasmina.snapshot import MemberSnapshots, finite_members
from esper.leyline import BlendStyle, InjectionSpec, LifecycleOp, SeedStage
from esper.leyline.records import StepRecord
from support import KINDS, BatchNormHost, batch, good_signals, make_population

ADAMW = OptimConfig(kind="adamw", weight_decay=0.1, clip_norm=0.5)
SGD = OptimConfig(clip_norm=0.5)
Result = dict[str, Tensor]


def measured(stats: Any) -> Tensor:
    """All numbers of a train batch."""
    parts = (
        stats.loss_E,
        stats.shadow_loss_ES,
        stats.host_grad_norm_E,
        stats.grad_norm_ES,
        stats.correct_E,
    )
    return torch.cat([part.flatten().float() for part in parts])


def train_step(population: Population, number: int, kind: str, size: int = 7) -> list[Tensor]:
    """One step of two batches, of a size that no number of ranks divides."""
    population.begin_step()
    found = []
    for place in (0, 1):
        x, y = batch(population.members, 2 * number + place, size, kind=kind)
        found.append(measured(population.train_batch(x, y)))
    population.end_step(good_signals(population))
    return found


def weights(population: Population, member: int = 0) -> Result:
    """Parameters and buffers of a member; copies."""
    state = population.member(member).state_dict()
    return {f"member/{name}": value.detach().clone() for name, value in state.items()}


def whole_life(
    executor: str,
    kind: str = "cnn",
    optim: OptimConfig = SGD,
    lr: float = 0.05,
    members: int = 2,
) -> Result:
    """20 batches: one seed grows until it is permanent, another one is pruned on its way."""
    made = KINDS[kind]
    rates = {"seed_lr_scaling": "weight_norm", "host_lr": lr, "seed_lr": lr}
    population = make_population(members, executor, optim=optim, kind=kind, **rates)
    life, last = population.lifecycle, members - 1
    seen: set[SeedStage] = set()
    rows: list[Tensor] = []
    for number in range(10):
        rows += train_step(population, number, kind)
        if number == 0:
            population.germinate([0], made.slots[0], made.seed, BlendStyle.GATE)
            population.germinate([last], made.slots[1], made.blueprints[0], BlendStyle.MULTIPLY)
        seen |= {SeedStage(code) for code in np.unique(life.stage_ES)}
        legal_ESO = life.legal_ops()
        for member, slot in np.argwhere(legal_ESO[..., LifecycleOp.ADVANCE]).tolist():
            population.advance([member], slot)
        if legal_ESO[0, 0, LifecycleOp.FOSSILIZE]:
            population.fossilize([0], 0)
        if number == 5:
            population.prune([last], made.slots[1], speed=3)
    x, y = batch(members, 99, 5, kind=kind)
    out = population.evaluate(x, y)
    wanted = {SeedStage.GERMINATED, SeedStage.BLENDING, SeedStage.HOLDING, SeedStage.FOSSILIZED}
    assert wanted | {SeedStage.EMBARGOED} <= seen, seen
    assert not torch.stack(rows)[:, members : members + life.stage_ES.size].isnan().all()  # shadows
    return {"batches": torch.stack(rows), "validation": out.loss_R} | weights(population)


def rollback(executor: str) -> Result:
    """A permanent seed, a snapshot, a live seed, a poisoned host, and back."""
    population = make_population(2, executor, optim=ADAMW)
    population.plant([0, 1], "r0c0", "conv_light")
    rows = train_step(population, 0, "cnn")
    snapshots = MemberSnapshots(population)
    snapshots.take(np.array([True, True]))
    population.germinate([1], "r0c1", "norm")
    rows += train_step(population, 1, "cnn")
    shards = population.network.shards
    if shards is None or shards.rank == shards.size - 1:  # one rank alone has the bad number
        population.network.host.flat_EP.detach()[1, -5] = float("nan")
    finite = finite_members(population)
    removed = snapshots.restore(np.array([False, True]))
    rows += train_step(population, 2, "cnn")
    result = {"batches": torch.stack(rows), "finite": finite, "removed": torch.tensor(removed)}
    return result | weights(population, 1)


class HalfFrozen(BatchNormHost):
    """A host whose first block does not train."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.blocks[0].parameters():
            parameter.requires_grad_(False)


def frozen(executor: str) -> Result:
    """Frozen parameters, batch norm, three samples, one sample."""
    config = PopulationConfig(executor=executor, optim=SGD)  # type: ignore[arg-type]
    population = Population(HalfFrozen, ["r0c0"], ["depthwise"], 1, config=config)
    population.plant([0], "r0c0", "depthwise")
    rows = [measured(population.train_batch(*batch(1, 0, size, kind="batchnorm")))
            for size in (3, 1)]  # fmt: skip
    norms = slot_gradient_norms(population, *batch(1, 1, 5))
    return {"batches": torch.stack(rows), "slot gradients": norms} | weights(population)


class Dropping(MLPHost):
    """A host with dropout between its segments."""

    def __init__(self) -> None:
        super().__init__(in_features=9, num_classes=5, width=12, n_layers=3)
        self.drop = nn.Dropout(0.3)

    def segments(self) -> tuple[nn.Module, ...]:
        first, *others = super().segments()
        return (nn.Sequential(first, self.drop), *others)

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x


def random_layers(executor: str) -> Result:
    """Dropout: every sample draws the same numbers, whoever computes it."""
    config = PopulationConfig(executor=executor, optim=SGD)  # type: ignore[arg-type]
    population = Population(Dropping, ["r0c0"], ["mlp"], 2, config=config)
    return {"batches": torch.stack(train_step(population, 0, "mlp"))} | weights(population)


def recovered(executor: str) -> Result:
    """A loss that fails once, after the first of two rows; then training goes on."""
    population = make_population(1, executor, optim=SGD)
    population.germinate([0], "r0c0", "conv_light")
    rows, plain, calls = train_step(population, 0, "cnn"), population.loss, [0]

    def failing(outputs: Tensor, targets: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == 2:
            raise OSError("once")
        return plain(outputs, targets)

    population.loss = failing
    with contextlib.suppress(OSError):
        train_step(population, 1, "cnn")
    assert calls == [2]
    population.loss = plain
    rows.append(measured(population.train_batch(*batch(1, 3, 7))))
    return {"batches": torch.stack(rows)} | weights(population)


def twins(executor: str) -> Result:
    """Seeds that start as copies of the host's weights."""
    population = make_population(2, executor, kind="resnet", optim=SGD)
    train_step(population, 0, "resnet", 4)
    population.germinate([0, 1], "r0c1", "twin")
    rows = train_step(population, 1, "resnet", 4)
    return {"batches": torch.stack(rows)} | weights(population)


def engine_round(executor: str) -> Result:
    """An episode of the engine under random actions: gates, counterfactuals and a rollback."""
    spec = small_task(episode_length=8, batches_per_step=1, kernel_size=3)

    def poison(record: StepRecord) -> None:
        if record.signals.step == 5:
            population.network.host.flat_EP.detach()[0] = float("nan")

    diary = Diary(poison)
    engine = small_engine(spec, diary, members=2, executor=executor, governor=CALM)
    population = engine.env.model
    engine.train(random_policy(3, spec), 1)
    found = {name: torch.tensor(values) for name, values in histories(engine.episode).items()}
    found["rewards"] = torch.tensor(np.stack([r.rewards.total for r in diary.records]))
    found["rollbacks"] = torch.tensor(np.stack([r.governor.rolled_back_E for r in diary.records]))
    found["stages"] = torch.tensor(population.lifecycle.stage_ES)
    assert found["rollbacks"].any()
    return found


def saved(executor: str, folder: Path) -> Result:
    """Train, save, train on; the save goes to `folder / executor`."""
    population = make_population(2, executor, optim=ADAMW)
    population.plant([0], "r0c0", "conv_light")
    population.germinate([1], "r0c1", "norm", BlendStyle.GATE)
    train_step(population, 0, "cnn")
    population.save(folder / executor)
    return {"batches": torch.stack(train_step(population, 1, "cnn"))} | weights(population, 1)


def loaded(executor: str, path: Path) -> Result:
    """Train on from a save."""
    population = Population.load(path, KINDS["cnn"].host, executor=executor)  # type: ignore[arg-type]
    return {"batches": torch.stack(train_step(population, 1, "cnn"))} | weights(population, 1)


def memory(executor: str) -> Result:
    """Bytes of parameters and optimiser state, and most bytes of host units that are whole."""
    population = make_population(1, executor, optim=ADAMW, kind="transformer")
    host = population.network.host
    units = getattr(host, "_modules", {})  # none under other executors
    most = [0]

    def look(*_: Any) -> None:
        whole = [unit.flat for unit in units.values() if not hasattr(unit.flat, "to_local")]
        most[0] = max(most[0], sum(flat.numel() * flat.element_size() for flat in whole))

    def look_twice(module: nn.Module, given: Any, out: Tensor) -> None:
        look()
        if out.requires_grad:
            out.register_hook(look)

    train_step(population, 0, "transformer", 2)
    for segment in population.network.segments:
        segment.module.register_forward_hook(look_twice)
    train_step(population, 1, "transformer", 2)
    rows = [t for n, t in population_tensors(population).items() if "values" in n or "optim" in n]
    held = sum(t.numel() * t.element_size() for t in rows)
    sizes = {"held": held, "gathered": most[0], "host": 4 * host.parameters_per_member}
    return {name: torch.tensor(size) for name, size in sizes.items()}


class Mixing(nn.Module):
    """A host whose outputs depend on the other samples of a batch."""

    topology = "mlp"

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(9, 12), Centred()

    def segments(self) -> tuple[nn.Module, ...]:
        return self.first, self.last

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return (InjectionSpec("r0c0", 12, 0, "after_layer"),)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x - x.mean(dim=0))


def mixing(executor: str) -> Result:
    """Refused: a rank that has some of the samples cannot compute them."""
    config = PopulationConfig(executor=executor)  # type: ignore[arg-type]
    population = Population(Mixing, ["r0c0"], ["mlp"], 1, config=config)
    return {"batches": torch.stack(train_step(population, 0, "mlp"))}


class Tracking(SignalHost):
    """A host with statistics that no executor but loop and vmap keeps."""

    def __init__(self) -> None:
        super().__init__(5, in_channels=2, n_blocks=3, base_channels=4)
        self.norm = nn.InstanceNorm1d(2, track_running_stats=True)

    def segments(self) -> tuple[nn.Module, ...]:
        first, *others = super().segments()
        return (nn.Sequential(self.norm, first), *others)

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x


def uneven(executor: str) -> Result:
    """Refused: running statistics of the samples that a rank happens to have."""
    config = PopulationConfig(executor=executor)  # type: ignore[arg-type]
    population = Population(Tracking, ["r0c0"], ["norm"], 1, config=config)
    return {"batches": torch.stack(train_step(population, 0, "signal"))}


def killed(executor: str) -> Result:
    """The last rank dies between two steps."""
    population = make_population(1, executor)
    train_step(population, 0, "cnn")
    shards = population.network.shards
    if shards is not None and shards.rank == shards.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"batches": torch.stack(train_step(population, 1, "cnn"))}


def unlike(executor: str) -> Result:
    """Ranks that are given different members, as by a distributed learner."""
    from esper.tasks.registry import get_task_spec
    from esper.tolaria.engine import VectorizedEngine
    from esper.tolaria.engine_config import EngineConfig

    ids = (int(os.environ["RANK"]),)
    config = EngineConfig(members=1, executor=executor, member_ids=ids)  # type: ignore[arg-type]
    VectorizedEngine(get_task_spec("synthetic"), config)
    return {}


def restart(executor: str) -> Result:
    """One member begins anew beside another that keeps its seed."""
    population = make_population(2, executor, optim=ADAMW)
    population.plant([0, 1], "r0c0", "conv_light")
    rows = train_step(population, 0, "cnn")
    life = population.lifecycle
    life.action_space = "grow+restart"
    life.trained_E[:] = life.restartable_E[:] = True
    population.restart([1])
    rows += train_step(population, 1, "cnn")
    return {"batches": torch.stack(rows)} | weights(population, 1)


FAILING: dict[str, Callable[[str], Result]] = {
    "mixing": mixing,
    "killed": killed,
    "unlike": unlike,
    "uneven": uneven,
}
CASES: dict[str, Callable[[str], Result]] = {
    "life": lambda executor: whole_life(executor, members=1),
    "cnn": whole_life,
    "transformer": lambda executor: whole_life(executor, "transformer"),
    "adamw": lambda executor: whole_life(executor, "mlp", ADAMW, 0.003),
    "batchnorm": lambda executor: whole_life(executor, "batchnorm"),
    "signal": lambda executor: whole_life(executor, "signal"),
    "rollback": rollback,
    "restart": restart,
    "frozen": frozen,
    "random_layers": random_layers,
    "recovered": recovered,
    "engine": engine_round,
    "twins": twins,
    "memory": memory,
}
