"""Wrong input gets one line that names the value and the valid choices; nothing is changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import (
    BlueprintRegistry,
    CNNHost,
    LifecycleConfig,
    MLPHost,
    OptimConfig,
    Population,
    PopulationConfig,
    TransformerHost,
    blueprint,
)
from esper.kasmina.lifecycle import advance_active_seed, resolve_target_slot
from esper.kasmina.lifecycle.gates import GateConfig
from esper.leyline import InjectionSpec, SeedStage
from support import (
    BLOCK,
    CNN_BLUEPRINTS,
    KINDS,
    ROW_0,
    batch,
    bring_to,
    good_signals,
    make_population,
    refused,
    tiny_host,
)


def snapshot(population: Population) -> tuple[object, ...]:
    life = population.lifecycle
    arrays = {k: v.copy() for k, v in vars(life).items() if isinstance(v, np.ndarray)}
    values = [population.network.host.flat_EP.detach().clone()]
    values += [bank.flat_EP.detach().clone() for bank in population.network.banks.values()]
    return arrays, values, life.version


def assert_unchanged(population: Population, before: tuple[object, ...]) -> None:
    arrays, values, version = snapshot(population)
    assert version == before[2]
    for name, value in arrays.items():
        np.testing.assert_array_equal(value, before[0][name])
    assert len(values) == len(before[1])
    assert all(torch.equal(a, b) for a, b in zip(values, before[1], strict=True))


def build(**changes: object) -> Population:
    choices = {"slots": ROW_0, "blueprints": CNN_BLUEPRINTS, "members": 2} | changes
    host = choices.pop("host", tiny_host)
    return Population(host, **choices)  # type: ignore[arg-type]


def test_unknown_blueprint_names_the_nearest():
    line = refused(lambda: build(blueprints=("conv_hevy",)))
    assert "'conv_hevy'" in line
    assert "did you mean 'conv_heavy'" in line
    assert "norm" in line
    population = make_population()
    before = snapshot(population)
    line = refused(lambda: population.germinate([0], "r0c1", "conv_lihgt"))
    assert "did you mean 'conv_light'" in line
    assert_unchanged(population, before)


def test_slot_the_host_lacks_names_the_ones_it_has():
    line = refused(lambda: build(slots=("r0c7",)))
    assert "'r0c7'" in line
    assert "CNNHost" in line
    assert "r0c0, r1c0, r0c1, r1c1, r0c2, r1c2" in line
    population = make_population()
    before = snapshot(population)
    line = refused(lambda: population.germinate([0], "r1c0", "norm"))
    assert "'r1c0'" in line
    assert "r0c0, r0c1, r0c2" in line, "the enabled ones"
    assert_unchanged(population, before)


class WrongWidth(CNNHost):
    """Promises one channel more than its segments give."""

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return tuple(
            InjectionSpec(s.slot_id, s.channels + 1, s.position, s.surface)
            for s in super().injection_specs()
        )


class DropsBatch(CNNHost):
    """A segment that loses the batch axis."""

    def __init__(self) -> None:
        super().__init__(5, 1, 3, 4)
        self.blocks[1] = Flat()


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten()


class SkipsHead(CNNHost):
    """forward() does more than the chain of segments."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize(
    ("host", "words"),
    [
        (lambda: WrongWidth(5, 1, 3, 4), ["WrongWidth", "segment 0", "r0c0", "5 channels"]),
        (DropsBatch, ["DropsBatch", "segment 2", "batch first"]),
        (lambda: SkipsHead(5, 1, 3, 4), ["SkipsHead", "forward(x) differs"]),
    ],
)
def test_host_whose_segment_changes_the_promised_shape(host, words, executor):
    population = build(host=host, config=PopulationConfig(executor=executor))
    before = snapshot(population)
    line = refused(lambda: population.train_batch(*batch(2)))
    for word in words:
        assert word in line
    assert_unchanged(population, before)


def test_host_with_a_parameter_outside_its_segments():
    class Loose(CNNHost):
        def __init__(self) -> None:
            super().__init__(5, 1, 3, 4)
            self.extra = nn.Parameter(torch.zeros(3))

    line = refused(lambda: build(host=Loose))
    assert "'extra' is in none of its segments" in line


def test_module_that_is_no_host():
    line = refused(lambda: build(host=lambda: nn.Linear(2, 2)))
    assert "Linear is not a host" in line
    assert "segments, injection_specs" in line


def test_seed_that_changes_shape():
    @blueprint("test_shrinks", topologies=("cnn",))
    class Shrinks(nn.Module):
        """Halves the resolution."""

        def __init__(self, width: int) -> None:
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            return x[..., ::2]

    try:
        population = build(blueprints=("norm", "test_shrinks"))
        before = snapshot(population)
        line = refused(lambda: population.germinate([0, 1], "r0c1", "test_shrinks"))
        assert "'test_shrinks'" in line
        assert "(2, 8, 4, 4) into (2, 8, 4, 2)" in line
        assert_unchanged(population, before)
        assert not population.network.banks
    finally:
        BlueprintRegistry.unregister("test_shrinks")


def test_seed_that_changes_shape_at_the_real_resolution_only():
    @blueprint("test_odd", topologies=("cnn",))
    class Odd(nn.Module):
        """Keeps 4x4 and nothing else."""

        def __init__(self, width: int) -> None:
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            return 0.0 * x[..., :4, :4]

    try:
        for executor in ("vmap", "loop"):
            population = build(blueprints=("test_odd",), config=PopulationConfig(executor=executor))
            population.plant([0], "r0c0", "test_odd")
            line = refused(lambda p=population: p.forward(batch(2)[0]))
            assert "'test_odd'" in line
            assert "r0c0" in line
    finally:
        BlueprintRegistry.unregister("test_odd")


def test_blueprint_below_its_min_width():
    population = build(host=lambda: CNNHost(5, 1, 3, base_channels=1))
    before = snapshot(population)
    line = refused(lambda: population.germinate([0, 1], "r0c0", "attention"))
    assert "'attention' needs a width of at least 2, the slot has 1" in line
    assert "r0c0 takes norm, conv_light, conv_heavy" in line
    assert_unchanged(population, before)
    population.germinate([0, 1], "r0c1", "attention")


@pytest.mark.parametrize(
    ("stage", "action"),
    [
        (SeedStage.TRAINING, lambda p: p.germinate([1], "r0c1", "norm")),
        (SeedStage.TRAINING, lambda p: p.fossilize([1], "r0c1")),
        (SeedStage.TRAINING, lambda p: p.set_alpha_target([1], "r0c1", 0.5)),
        (SeedStage.BLENDING, lambda p: p.advance([1], "r0c1")),
        (SeedStage.BLENDING, lambda p: p.prune([1], "r0c1")),
        (SeedStage.FOSSILIZED, lambda p: p.prune([1], "r0c1")),
        (SeedStage.FOSSILIZED, lambda p: p.germinate([1], "r0c1", "norm")),
        (SeedStage.DORMANT, lambda p: p.advance([1], "r0c1")),
        (SeedStage.DORMANT, lambda p: p.prune([0, 1], "r0c1")),
    ],
)
def test_illegal_transition_says_where_and_what_is_legal(stage, action):
    population = make_population()
    if stage is not SeedStage.DORMANT:
        bring_to(population, stage, [1], "r0c1")
    before = snapshot(population)
    line = refused(lambda: action(population))
    assert "slot r0c1" in line
    assert stage.name in line
    assert "legal there now: WAIT" in line
    assert_unchanged(population, before)


def test_one_bad_member_stops_the_whole_call():
    population = make_population()
    bring_to(population, SeedStage.TRAINING, [1], "r0c1")
    before = snapshot(population)
    line = refused(lambda: population.germinate([0, 1, 2], "r0c1", "norm"))
    assert "member 1" in line
    assert_unchanged(population, before)


@pytest.mark.parametrize(
    ("action", "word"),
    [
        (lambda p: p.germinate([3], "r0c1", "norm"), "member 3: valid are 0 to 2"),
        (lambda p: p.germinate([-1], "r0c1", "norm"), "member -1"),
        (lambda p: p.germinate([0, 0], "r0c1", "norm"), "appears twice"),
        (lambda p: p.germinate([0], 9, "norm"), "slot index 9: 3 slots are enabled"),
        (lambda p: p.germinate([0], "r0c1", 7), "blueprint index 7: valid are 0 to 3"),
        (lambda p: p.germinate([0], "r0c1", "norm", tempo=4), "tempo 4: choose from 3, 5, 8"),
        (lambda p: p.germinate([0], "r0c1", "norm", alpha_target=0.6), "0.5, 0.7, 1.0"),
        (lambda p: p.germinate([0], "r0c1", "norm", style=5), "style 5: choose from 0, 1, 2"),
        (lambda p: p.germinate([0], "r0c1", "norm", curve=9), "curve 9"),
        (lambda p: p.germinate([0], "r0c1", "norm", tempo=3.0), "expected integers"),
        (lambda p: p.member(3), "member 3: valid are 0 to 2"),
        (lambda p: p.set_rates(-0.1, 0.1), "host_lr"),
        (lambda p: p.set_rates(0.1, [0.1, float("nan"), 0.1]), "seed_lr"),
        (lambda p: p.set_rates([0.1, 0.2], 0.1), "give one rate, or 3"),
        (lambda p: p.forward(torch.zeros(2, 4, 1, 8, 8)), "the 3 members, or 1"),
        (lambda p: p.forward(batch(3)[0], [0], np.zeros((2, 3))), "rows x slots"),
        (lambda p: p.forward(batch(3)[0], [0], np.ones((1, 3))), "which holds no seed"),
        (lambda p: p.forward(batch(3)[0], [5]), "member 5"),
        (lambda p: p.macs_E(), "after the first batch"),
    ],
)
def test_bad_argument_is_named(action, word):
    population = make_population()
    before = snapshot(population)
    assert word in refused(lambda: action(population))
    assert_unchanged(population, before)


@pytest.mark.parametrize(
    ("action", "word"),
    [
        (lambda: build(members=0), "members=0"),
        (lambda: build(slots=("r0c0", "r0c0")), "named twice"),
        (lambda: build(blueprints=("norm", "norm")), "named twice"),
        (lambda: PopulationConfig(executor="vmapp"), "did you mean 'vmap'"),  # type: ignore[arg-type]
        (lambda: OptimConfig(kind="adam"), "choose sgd or adamw"),  # type: ignore[arg-type]
        (lambda: OptimConfig(clip_norm=0.0), "clip_norm=0.0"),
        (lambda: GateConfig(mode="loose"), "permissive or strict"),  # type: ignore[arg-type]
        (lambda: LifecycleConfig(seed_budget=-1), "seed_budget=-1"),
        (lambda: CNNHost(kernel_size=2), "must be odd"),
        (lambda: CNNHost(pool_layers=4), "between 0 and n_blocks=3"),
        (lambda: CNNHost(base_channels=0), "base_channels=0"),
        (lambda: TransformerHost(n_embd=10, n_head=4), "n_embd=10, n_head=4"),
        (lambda: TransformerHost(vocab=1), "vocab=1: must be 2 or more"),
        (lambda: TransformerHost(n_layer=0), "n_layer=0: must be 1 or more"),
        (lambda: TransformerHost(block_size=0), "block_size=0"),
        (lambda: TransformerHost(dropout=1.0), "dropout=1.0"),
        (lambda: MLPHost(width=1), "width=1: must be 2 or more"),
        (lambda: MLPHost(n_layers=0), "n_layers=0"),
        (lambda: MLPHost(in_features=0), "in_features=0"),
    ],
)
def test_bad_settings_are_named(action, word):
    assert word in refused(action)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(3, 2, BLOCK + 1, dtype=torch.int64), ["7 tokens", "block_size=6"]),
        (torch.zeros(3, 2, BLOCK), ["float32", "token ids [batch, time]"]),
        (torch.zeros(3, BLOCK, dtype=torch.int64), ["int64", "token ids [batch, time]"]),
    ],
)
def test_text_a_transformer_cannot_take(x, words):
    population = make_population(kind="transformer")
    before = snapshot(population)
    line = refused(lambda: population.forward(x))
    for word in words:
        assert word in line
    assert_unchanged(population, before)
    population.forward(torch.zeros(3, 2, BLOCK, dtype=torch.int64))
    line = refused(lambda: population.forward(x))
    assert words[-1] in line, "after the first batch too"


def test_blueprint_of_another_topology():
    host = KINDS["mlp"].host
    line = refused(lambda: build(host=host, slots=("r0c0",), blueprints=("lora",)))
    assert "unknown blueprint 'lora' for mlp hosts" in line
    line = refused(lambda: build(blueprints=("mlp",)))
    assert "for cnn hosts" in line


def test_seed_budget_is_checked_over_the_whole_call():
    config = LifecycleConfig(gates=GateConfig(min_training_steps=1), seed_budget=1)
    population = make_population(lifecycle=config)
    before = snapshot(population)
    line = refused(lambda: population.germinate([0, 0], np.array([0, 1]), "norm"))
    assert "member 0: 2 seeds requested, budget left 1" in line
    assert_unchanged(population, before)


def test_resolve_target_slot():
    specs = tiny_host().injection_specs()
    assert resolve_target_slot(1, ROW_0, specs) == ("r0c1", 2)
    assert "slot index 3" in refused(lambda: resolve_target_slot(3, ROW_0, specs))
    assert "slot index -1" in refused(lambda: resolve_target_slot(-1, ROW_0, specs))
    assert "'r9c9' is not in the host" in refused(lambda: resolve_target_slot(0, ["r9c9"], specs))


def test_advance_active_seed_advances_where_the_gate_passes():
    population = make_population()
    bring_to(population, SeedStage.TRAINING, [0, 2], "r0c1")
    population.end_step(good_signals(population))
    advanced = advance_active_seed(population, [0, 1, 2], 1)
    assert advanced.tolist() == [True, False, True]
    assert population.lifecycle.stage_ES[:, 1].tolist() == [
        SeedStage.BLENDING,
        SeedStage.DORMANT,
        SeedStage.BLENDING,
    ]
