"""Random layers draw from the streams of their rows: repeatable, in training only."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.device import rng
from esper.kasmina import CNNHost, Population
from esper.kasmina.layers.random_layers import RowDraws, row_keys
from esper.kasmina.rows.rows import training_rows
from esper.leyline import InjectionSpec
from esper.tolaria.batch_ops import TrainTotals, process_train_batch
from graph_support import rerun_cache
from random_support import (
    LAYERS,
    RandomHost,
    blueprints_of,
    grow,
    random_population,
    random_seed,
    train,
    weights,
)
from support import KINDS, ROW_0, batch, make_population

EXECUTORS = ["vmap", "loop"]
P = 0.3


class Masks(nn.Module):
    """Shows the masks of two dropout layers: inputs of 1 come out as 0 or 1 / (1 - P)."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Dropout(P), nn.Dropout(P)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.other(x)], dim=-1) * self.scale


class MaskHost(nn.Module):
    """Shows them, or what another module makes of them."""

    topology = "mlp"

    def __init__(self, second: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second = Masks(), second or nn.Identity()

    def segments(self):
        return (self.first, self.second)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return ()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def masks(population: Population, rows: list[int], size: int = 64) -> Tensor:
    """`[R, 2, B, C]`: what both layers make of ones."""
    ones = torch.ones(1, size, 50)
    out = population.forward(ones, rows, training=True).detach()
    return torch.stack(out.chunk(2, dim=-1), dim=1)


def mask_population(members: int = 3, executor: str = "vmap", host=MaskHost) -> Population:
    return random_population(members, executor, host, (), ())


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


# ---- what is drawn ------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
def test_dropout_keeps_the_right_share_and_scales_it(executor):
    out = masks(mask_population(4, executor), [0, 1, 2, 3], size=500)
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - P)))
    error = (P * (1 - P) / kept[0, 0].numel()) ** 0.5
    share = kept.double().mean(dim=(2, 3))
    assert (share - (1 - P)).abs().max() < 4 * error
    for axis in (2, 3):  # no sample and no feature is favoured
        each = kept.double().mean(dim=axis)
        z = (each - (1 - P)) / (P * (1 - P) / kept.shape[axis]) ** 0.5
        assert abs(z.std() - 1) < 0.15
        assert z.abs().max() < 5


@pytest.mark.parametrize("executor", EXECUTORS)
def test_members_rows_layers_and_batches_have_masks_of_their_own(executor):
    population = mask_population(3, executor)
    seen = [
        *masks(population, [0, 1, 1]).flatten(0, 1),
        *masks(population, [0, 1, 1]).flatten(0, 1),
    ]
    population.reset(1)
    seen += masks(population, [0]).flatten(0, 1)
    seen += masks(random_population(3, executor, MaskHost, (), (), seed=1), [0]).flatten(0, 1)
    agree = (1 - P) ** 2 + P**2
    for i, left in enumerate(seen):
        for right in seen[:i]:
            share = ((left == 0) == (right == 0)).double().mean()
            assert abs(share - agree) < 0.05, "as of two masks that know nothing of each other"


def test_an_episode_draws_the_same_again():
    population = mask_population()
    first = [masks(population, [0, 1, 2]) for _ in range(2)]
    population.reset(0)
    assert torch.equal(masks(population, [0, 1, 2]), first[0])
    assert torch.equal(masks(population, [0, 1, 2]), first[1])


@pytest.mark.parametrize("kind", ["uniform", "normal", "exponential", "integers"])
def test_other_numbers_have_their_distribution(kind):
    class Numbers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return x
            numbers = {
                "uniform": lambda: torch.rand_like(x),
                "normal": lambda: torch.randn(x.shape, device=x.device),
                "exponential": lambda: torch.empty_like(x).exponential_(2.0),
                "integers": lambda: torch.randint(3, 7, x.shape),
            }[kind]()
            return 0 * x + numbers

    population = mask_population(2, host=lambda: MaskHost(Numbers()))
    out = population.forward(torch.ones(1, 500, 10), training=True)
    mean, deviation = {
        "uniform": (0.5, 12**-0.5),
        "normal": (0.0, 1.0),
        "exponential": (0.5, 0.5),
        "integers": (4.5, 1.25**0.5),
    }[kind]
    count = out.numel()
    assert abs(out.double().mean() - mean) < 4 * deviation / count**0.5
    assert abs(out.double().std() / deviation - 1) < 0.05


def test_words_of_neighbouring_elements_rows_and_keys_are_not_related():
    keys = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, 64))
    bits_RN = rng.random_words(keys, 4096).double()
    bits_RN = (bits_RN - bits_RN.mean()) / bits_RN.std()
    others = {
        "the next element": (bits_RN[:, :-1], bits_RN[:, 1:]),
        "a row of pixels on": (bits_RN[:, :-32], bits_RN[:, 32:]),
        "another row": (bits_RN[:-1], bits_RN[1:]),
        "the same key, next part": (
            bits_RN,
            _standard(rng.random_words(rng.derive_keys(keys, 1), 4096)),
        ),
    }
    for name, (left, right) in others.items():
        assert abs((left * right).mean()) * left.numel() ** 0.5 < 4, name


def test_every_bit_of_a_key_matters():
    keys = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, 64))
    half = rng.random_words(keys, 512) < 0
    for bit in range(64):
        flipped = rng.random_words(keys ^ (-(2**63) if bit == 63 else 1 << bit), 512) < 0
        assert 0.4 < (half ^ flipped).double().mean() < 0.6, f"bit {bit}"


def _standard(bits: Tensor) -> Tensor:
    values = bits.double()
    return (values - values.mean()) / values.std()


# ---- in training only ---------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
def test_evaluation_is_without_dropout(executor):
    population = mask_population(3, executor, lambda: MaskHost(nn.Dropout(P)))
    x = torch.randn(1, 8, 5)
    out = population.forward(x)
    assert torch.equal(out, torch.cat([x, x], dim=-1).expand_as(out))
    population.evaluate(torch.ones(1, 8, 5), torch.zeros(1, 8, dtype=torch.int64))
    assert not population.passes_E.any(), "validation does not move what training draws"


def test_hosts_without_random_layers_run_as_before(monkeypatch):
    population = make_population(3)
    population.forward(batch(3)[0])
    monkeypatch.setattr(RowDraws, "__enter__", lambda self: pytest.fail("entered"))
    population.train_batch(*batch(3))
    assert population.network.sites == {}


def test_only_segments_that_draw_are_watched(monkeypatch):
    population = random_population()
    population.forward(batch(3)[0])
    entered = []
    original = RowDraws.__enter__

    def noted(self):
        entered.append(self.site.name)
        return original(self)

    monkeypatch.setattr(RowDraws, "__enter__", noted)
    population.forward(batch(3)[0])
    assert not entered, "in evaluation none is"
    population.train_batch(*batch(3))
    assert entered == ["segment 1", "segment 2", "segment 3"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_global_generators_are_left_alone(executor):
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    with blueprints_of(t_random=random_seed(LAYERS["dropout"])) as names:
        population = random_population(2, executor, blueprints=names)
        grow(population, "t_random")
        train(population, [0, 1])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


# ---- the same whatever computes it --------------------------------------------------------


@pytest.mark.parametrize(
    "layer",
    [
        n if n in ("dropout", "functional") else pytest.param(n, marks=pytest.mark.slow)
        for n in LAYERS
    ],
)
def test_vmap_agrees_with_loop(layer, caplog):
    """Main rows, shadow rows from three slots, seeds with random layers; nothing to complain of."""
    ends = []
    with blueprints_of(t_random=random_seed(LAYERS[layer])) as names:
        for executor in EXECUTORS:
            torch.manual_seed(len(ends))
            population = random_population(3, executor, lambda: RandomHost(LAYERS[layer]), names)
            grow(population, "t_random")
            losses = train(population, [0, 1, 2])
            ends.append((losses, weights(population)))
            assert population.choice.executor.name == executor
    (fused, left), (plain, right) = ends
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=1e-3, atol=1e-5, msg=name)
    assert not caplog.records


def test_joined_segments_and_slots_that_are_not_in_use_change_no_number():
    """Our own host joins a block with its pool; the slots in use decide where it is cut."""

    class Dropping(CNNHost):
        def __init__(self) -> None:
            super().__init__(5, 1, 3, 4)
            self.pools[1] = nn.Sequential(nn.MaxPool2d(2), nn.Dropout(0.5))
            self.blocks[2].norm = nn.Sequential(self.blocks[2].norm, nn.Dropout(0.5))

    ends = []
    for executor, slots in (("vmap", ROW_0), ("loop", ROW_0), ("vmap", ("r0c2",)), ("loop", ())):
        population = random_population(3, executor, Dropping, slots=slots)
        population.forward(batch(3)[0])
        assert set(population.network.fused_pairs) == {0, 4}
        assert set(population.network.usable_fused_pairs()) == {0}, "what draws is not joined"
        ends.append(torch.stack([population.train_batch(*batch(3, s)).loss_E for s in range(3)]))
    for other in ends[1:]:
        torch.testing.assert_close(other, ends[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_members_numbers_do_not_depend_on_how_many_there_are(executor):
    assert torch.equal(
        masks(mask_population(1, executor), [0])[0], masks(mask_population(4, executor), [0, 1])[0]
    )
    ends = []
    with blueprints_of(t_random=random_seed(LAYERS["dropout"])) as names:
        for members in (1, 4):
            population = random_population(members, executor, blueprints=names)
            grow(population, "t_random")
            ends.append([loss[0] for loss in train(population, [0, 1, 2])])
    for alone, among in zip(*ends, strict=True):
        torch.testing.assert_close(alone, among, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_seeds_draw_the_same_whenever_others_came():
    """A member's second seed does not depend on whether a random one was there before."""
    ends = []
    with blueprints_of(t_random=random_seed(LAYERS["dropout"])) as names:
        for early in ([], [1]):
            host = lambda: RandomHost(nn.Identity)  # noqa: E731
            population = random_population(2, "loop", host, names)
            if early:
                population.germinate(early, "r0c0", "t_random")
            population.begin_step()
            train(population, [0, 1])
            population.germinate([0], "r0c0", "t_random")
            population.begin_step()
            ends.append([loss[0] for loss in train(population, [2, 3])])
    for one, other in zip(*ends, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def test_padded_and_captured_batches_draw_the_same():
    ends = []
    with blueprints_of(t_random=random_seed(LAYERS["dropout"])) as names:
        for cache in (None, rerun_cache()):
            population = random_population(3, blueprints=names)
            totals = TrainTotals.zeros(3, 3, torch.device("cpu"))
            for round_index in range(2):
                population.reset(round_index)
                grow(population, "t_random")
                for seed in range(4):
                    process_train_batch(population, *batch(3, seed), totals, None, cache)
            ends.append(weights(population) | {"loss": totals.loss_E, "s": totals.shadow_loss_ES})
            assert cache is None or cache.replays >= 4
    for name, value in ends[0].items():
        torch.testing.assert_close(
            ends[1][name], value, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name
        )


def test_row_keys_do_not_depend_on_padding_or_on_other_rows():
    population = make_population(5)
    population.germinate([0, 3], "r0c1", "norm")
    population.begin_step()
    table = training_rows(population.lifecycle)
    plan = population.train_plan(padded=True)
    keys = row_keys(0, 0, table, np.arange(5))
    assert len(set(keys.tolist())) == table.rows
    assert plan.table.rows > table.rows
    assert np.array_equal(plan.key_R.numpy()[plan.real_R], keys)


def test_plans_hold_keys_as_soon_as_a_seed_draws():
    with blueprints_of(t_random=random_seed(LAYERS["dropout"])) as names:
        population = random_population(3, host=KINDS["cnn"].host, blueprints=("norm", *names))
        population.train_batch(*batch(3))
        assert not population.train_plan().key_R.any(), "nothing draws: keys cost time for nothing"
        population.germinate([1], "r0c1", "t_random")
        population.begin_step()
        keys = row_keys(0, 0, training_rows(population.lifecycle), np.arange(3))
        assert np.array_equal(population.train_plan().key_R.numpy(), keys)


# ---- over time ----------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_save_in_the_middle_of_an_episode_resumes_bit_for_bit(executor, tmp_path):
    with blueprints_of(t_random=random_seed(LAYERS["dropout"])) as names:
        population = random_population(3, executor, blueprints=names)
        population.reset(2)
        grow(population, "t_random")
        train(population, [0, 1])
        population.save(tmp_path)
        torch.manual_seed(1)
        expected = train(population, [2, 3])
        torch.manual_seed(2)
        loaded = Population.load(tmp_path, RandomHost)
        for a, b in zip(train(loaded, [2, 3]), expected, strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num())
        assert same(weights(loaded), weights(population))


def test_a_save_from_before_anything_was_random_resumes_too(tmp_path):
    """The first random seed comes after the load; how far the episode was must be known."""
    with blueprints_of(t_random=random_seed(LAYERS["dropout"])) as names:
        population = random_population(2, host=lambda: RandomHost(nn.Identity), blueprints=names)
        train(population, [0, 1])
        population.save(tmp_path)
        loaded = Population.load(tmp_path, lambda: RandomHost(nn.Identity))
        for each in (population, loaded):
            each.germinate([0, 1], "r0c1", "t_random")
            each.begin_step()
            train(each, [2, 3])
        assert same(weights(loaded), weights(population))


def test_a_member_taken_away_keeps_its_dropout_layers():
    population = random_population()
    population.train_batch(*batch(3))
    kinds = [type(part) for part in population.member(0).modules()]
    assert kinds.count(nn.Dropout) == 4
    plain = population.member(0).to_plain().train()
    assert any(type(part) is nn.Dropout and part.training for part in plain.modules())
    x = batch(3)[0][0]
    assert not torch.equal(plain(x), plain(x)), "an ordinary module, from torch's generator"
