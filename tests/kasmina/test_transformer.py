"""The language-model host: causal, tied, born GPT-2's way; it learns text and grows on it."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina import LifecycleConfig, OptimConfig, Population, PopulationConfig
from esper.kasmina.hosts.transformer import TransformerHost
from esper.kasmina.lifecycle.gates import GateConfig
from esper.kasmina.training.training import TrainBatch
from esper.leyline import BlendStyle, LifecycleOp, SeedStage
from esper.leyline.signals import GateSignals
from support import BLOCK, KINDS, VOCAB, batch, make_population

EXECUTORS = ["vmap", "loop"]
TIED = "embedding.tokens.weight"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_later_tokens_do_not_change_earlier_logits(executor):
    """With every seed a transformer can grow, trained a little so that none is at 0."""
    population = make_population(6, executor, kind="transformer")
    for member, name in enumerate(KINDS["transformer"].blueprints):
        for slot in population.slots:
            population.plant([member], slot, name, style=BlendStyle(member % 3))
    for seed in range(4):
        population.train_batch(*batch(6, seed, kind="transformer"))
    x, _ = batch(6, seed=9, kind="transformer")
    changed = x.clone()
    changed[..., 3:] = (changed[..., 3:] + 1) % VOCAB
    before, after = population.forward(x), population.forward(changed)
    torch.testing.assert_close(before[:, :, :3], after[:, :, :3], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, :, 3:], after[:, :, 3:], atol=1e-3)


def test_a_position_knows_the_order_of_its_past():
    host = TransformerHost(VOCAB, 16, 2, 1, BLOCK)  # deeper ones could tell from the mask alone
    for parameter in host.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = torch.tensor([[1, 2, 3, 4], [2, 1, 3, 4]])
    out = host(x)
    assert not torch.allclose(out[0, -1], out[1, -1], atol=1e-3)


# ---- tied head ------------------------------------------------------------------------------


def gradient_of(host: TransformerHost, x: Tensor, y: Tensor, embed: bool, head: bool) -> Tensor:
    """The gradient of the tied weight through one or both of its uses."""
    weight = host.embedding.tokens.weight
    first, last = (weight if use else weight.detach() for use in (embed, head))
    h = F.embedding(x, first) + host.embedding.positions.weight[: x.shape[1]]
    for step in host.steps:
        h = step(h)
    loss = F.cross_entropy(F.linear(host.head.norm(h), last).flatten(0, 1), y.flatten())
    return torch.autograd.grad(loss, weight)[0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_gradient_of_the_tied_weight_comes_from_both_ends(executor):
    population = make_population(3, executor, kind="transformer")
    x, y = batch(3, kind="transformer")
    population.loss(population.forward(x, training=True), y).sum().backward()
    store = population.network.host
    grad_E = store.named(store.flat_EP.grad)[TIED]
    for i in range(3):
        host = population.member(i).host
        both = gradient_of(host, x[i], y[i], embed=True, head=True)
        parts = [gradient_of(host, x[i], y[i], embed=e, head=not e) for e in (True, False)]
        torch.testing.assert_close(both, parts[0] + parts[1], rtol=1e-4, atol=1e-6)
        assert min(part.abs().max() for part in parts) > 1e-4, "both ends count"
        torch.testing.assert_close(grad_E[i], both, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_head_stays_tied_while_it_trains_like_a_plain_model(executor):
    """Each member follows the path of an ordinary GPT under torch's own optimiser."""
    population = make_population(3, executor, kind="transformer", host_lr=0.1)
    assert "head.weight" not in population.network.host.shapes, "one full-name parameter"
    plain = [copy.deepcopy(population.member(i).host) for i in range(3)]
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in plain]
    start = plain[0].embedding.tokens.weight.detach().clone()
    for seed in range(6):
        x, y = batch(3, seed, kind="transformer")
        population.train_batch(x, y)
        for i, (model, optimiser) in enumerate(zip(plain, optimisers, strict=True)):
            optimiser.zero_grad()
            F.cross_entropy(model(x[i]).flatten(0, 1), y[i].flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
    for i, model in enumerate(plain):
        host = population.member(i).host
        assert host.head.weight is host.embedding.tokens.weight
        for (name, ours), theirs in zip(host.named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)
    assert not torch.allclose(plain[0].embedding.tokens.weight, start, atol=1e-3), "it did train"


# ---- birth and dropout ------------------------------------------------------------------------


def test_initial_values_are_gpt2s_and_drawn_for_all_members_at_once():
    built = []

    def factory() -> TransformerHost:
        built.append(1)
        return TransformerHost(vocab=50, n_embd=32, n_head=4, n_layer=3, block_size=40)

    store = Population(factory, (), (), members=16).network.host
    assert len(built) == 2, "two to compare, none per member"
    for name, value in store.named(store.flat_EP.detach()).items():
        last = name.endswith(("out.weight", "down.weight"))
        expected = 0.02 / math.sqrt(6) if last else 0.02
        if name.endswith("norm.weight"):
            assert (value == 1).all(), name
        elif name.endswith("bias"):
            assert not value.any(), name
        else:
            assert abs(value.std() / expected - 1) < 0.05, name
            assert not torch.equal(value[0], value[1]), name


@pytest.mark.parametrize("executor", EXECUTORS)
def test_dropout_is_each_members_own_and_off_in_evaluation(executor):
    config = PopulationConfig(executor=executor)
    host = lambda: TransformerHost(VOCAB, 16, 2, 1, BLOCK, dropout=0.5)  # noqa: E731
    population = Population(host, ("r0c0",), ("mlp",), 3, config=config)
    flat = population.network.host.flat_EP.detach()
    flat.copy_(flat[:1].expand_as(flat).clone())  # three copies of one member
    x, y = batch(1, kind="transformer")
    trained = population.forward(x, training=True).detach()
    assert not torch.allclose(trained[0], trained[1], atol=1e-4)
    still = population.forward(x).detach()
    torch.testing.assert_close(still[0], still[1], rtol=1e-5, atol=1e-6)
    assert torch.equal(still, population.forward(x))
    population.germinate([0, 1, 2], "r0c0", "mlp")
    population.begin_step()
    stats = population.train_batch(x, y)
    assert torch.isfinite(stats.loss_E).all()
    assert torch.isfinite(stats.shadow_loss_ES).all()


# ---- learning and growing ---------------------------------------------------------------------

LETTERS, CONTEXT = 8, 12


def text(length: int, seed: int) -> np.ndarray:
    """A chain of letters: the two before decide the next one in 9 of 10 cases."""
    rules = np.random.default_rng(0)
    table = np.stack([rules.permutation(LETTERS) for _ in range(LETTERS)])
    generator = np.random.default_rng(seed)
    surprise_L = generator.random(length) < 0.1
    letter_L = generator.integers(0, LETTERS, length)
    out = [0, 1]
    for surprise, letter in zip(surprise_L, letter_L, strict=True):
        out.append(int(letter if surprise else table[out[-2], out[-1]]))
    return np.array(out)


def unigram_entropy(tokens: np.ndarray) -> float:
    """Loss of the best model that does not look at the context, in nats."""
    share = np.bincount(tokens) / len(tokens)
    share = share[share > 0]
    return float(-(share * np.log(share)).sum())


def pieces(tokens: np.ndarray, members: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random pieces of the text, `[E, B, T]`, and the same pieces one letter later."""
    starts = np.random.default_rng(seed).integers(0, len(tokens) - CONTEXT - 1, (members, count))
    piece = tokens[starts[..., None] + np.arange(CONTEXT + 1)]
    return torch.from_numpy(piece[..., :-1]), torch.from_numpy(piece[..., 1:])


@dataclass
class Growth:
    """What a run of growth left behind."""

    population: Population
    losses: list[float]
    """Validation loss after each step, mean over members."""
    stages: list[list[list[str]]]
    """Stage of every slot after each step."""


def measured_signals(population: Population, last: TrainBatch, x: Tensor, y: Tensor) -> GateSignals:
    """Signals as the engine will measure them: losses, gradients, and each seed switched off."""
    alpha_ES = population.lifecycle.alpha_ES
    on = population.evaluate(x, y).correct_R.numpy() / y[0].numel()
    contribution = np.full(alpha_ES.shape, np.nan, dtype=np.float32)
    for s in range(alpha_ES.shape[1]):
        off = alpha_ES.copy()
        off[:, s] = 0.0
        without = population.evaluate(x, y, alpha_RS=off).correct_R.numpy() / y[0].numel()
        contribution[:, s] = np.where(alpha_ES[:, s] > 0, on - without, np.nan)
    error = np.sqrt(on * (1 - on) / y[0].numel())
    return GateSignals(
        host_loss_E=last.loss_E.numpy(),
        shadow_loss_ES=last.shadow_loss_ES.numpy(),
        grad_norm_ES=last.grad_norm_ES.numpy(),
        contribution_ES=contribution,
        contribution_se_ES=np.broadcast_to(error[:, None], contribution.shape).astype(np.float32),
    )


def act(population: Population, step: int) -> None:
    """Germinate an attention seed and an MLP seed, then move every seed on where it may."""
    if step == 3:
        population.germinate([0, 1], "r0c0", "attention", style=BlendStyle.GATE)
        population.germinate([0, 1], "r1c0", "mlp")
    legal = population.lifecycle.legal_ops()
    for s, slot in enumerate(population.slots):
        for op, move in (
            (LifecycleOp.FOSSILIZE, population.fossilize),
            (LifecycleOp.ADVANCE, population.advance),
        ):
            members = np.flatnonzero(legal[:, s, op])
            if members.size:
                move(members, slot)
                break


def grow(executor: str, steps: int = 22) -> Growth:
    """A one-layer GPT on the text: two members, seeds grown under strict gates."""
    gates = GateConfig(mode="strict", min_training_steps=3)
    config = PopulationConfig(
        executor=executor,
        host_lr=0.01,
        seed_lr=0.01,
        optim=OptimConfig(kind="adamw"),
        lifecycle=LifecycleConfig(gates=gates),
    )
    host = lambda: TransformerHost(LETTERS, 8, 1, 1, CONTEXT)  # noqa: E731
    population = Population(host, ("r0c0", "r1c0"), ("attention", "mlp"), 2, config=config)
    train, validation = text(4000, seed=1), text(2000, seed=2)
    x_val, y_val = pieces(validation, members=1, count=120, seed=0)
    out = Growth(population, [], [])
    for step in range(steps):
        population.begin_step()
        for b in range(6):
            last = population.train_batch(*pieces(train, 2, 16, seed=100 * step + b))
        population.end_step(measured_signals(population, last, x_val, y_val))
        act(population, step)
        out.losses.append(population.evaluate(x_val, y_val).loss_R.mean().item())
        stage_ES = population.lifecycle.stage_ES
        out.stages.append([[SeedStage(s).name for s in row] for row in stage_ES])
    return out


def test_a_transformer_learns_text_and_grows_through_every_stage():
    """Below the unigram entropy, so the context is used; vmap and loop take the same path."""
    fused = grow("vmap")
    chance, entropy = math.log(LETTERS), unigram_entropy(text(4000, seed=1))
    assert entropy < chance
    assert fused.losses[2] > fused.losses[-1]
    assert fused.losses[-1] < entropy - 0.5, "the context says much about the next letter"
    seen = {name for stages in fused.stages for row in stages for name in row}
    lived = {"DORMANT", "GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED"}
    assert seen == lived
    for slot in range(2):
        ends = {row[slot] for row in fused.stages[-1]}
        assert "FOSSILIZED" in ends, "attention and MLP both earn their place in a member"
        assert ends <= {"FOSSILIZED", "HOLDING"}
    plain = grow("loop")
    assert plain.stages[:10] == fused.stages[:10]
    np.testing.assert_allclose(fused.losses[:10], plain.losses[:10], atol=1e-3)
    np.testing.assert_allclose(fused.losses, plain.losses, atol=2e-2)
