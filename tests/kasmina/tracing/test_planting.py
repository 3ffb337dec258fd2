"""A planted network is the user's model with seeds in it: it computes, trains and ends as that."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from esper.device.rng import forked_rng
from esper.kasmina.blueprints.registry import BlueprintRegistry
from esper.kasmina.blueprints.seed_places import build_seed
from esper.kasmina.layers.counting import count_parameters
from esper.kasmina.plain.plain_graph import Added
from esper.kasmina.plain_saves.describe import describe
from esper.kasmina.plain_saves.rebuild import rebuild
from esper.kasmina.tracing import (
    HostTrace,
    carry_weights,
    finished_model,
    planted_model,
    silence,
    trace_model,
)
from esper.leyline.errors import EsperError
from hooked_models import HOOKED
from user_models import CASES as TRACED

QUICK = {
    "sequential", "conv1d", "tabular", "encoder", "two_inputs", "tied", "unused", "frozen",
    "functional_dropout", "channels_last", "hooked_mlp",
}  # fmt: skip
CASES: dict[str, Any] = {**TRACED, **{f"hooked_{name}": case for name, case in HOOKED.items()}}

NAMES = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CASES]
KINDS = ("sequential", "conv1d", "tabular", "encoder", "hooked_mlp")


@cache
def traced(name: str) -> tuple[nn.Module, Any, HostTrace]:
    """An instance of a model without dropout, a batch for it, and its trace; made once."""
    case = CASES[name]
    with forked_rng(1):
        model, example = case.build(), case.example(4)
    for part in model.modules():
        for rate in ("p", "dropout", "rate"):
            if isinstance(getattr(part, rate, None), float):
                setattr(part, rate, 0.0)
    return model, example, trace_model(model, example, output=getattr(case, "output", None))


def call(case: Any, model: nn.Module, raw: Any) -> Tensor:
    """Call a model as its user would, and pick the output that is trained on."""
    raw = copy.deepcopy(raw)
    if isinstance(raw, Tensor):
        out: Any = model(raw)
    else:
        out = model(**raw) if isinstance(raw, dict) else model(*raw)
    if isinstance(out, dict):
        return out[getattr(case, "output", None) or "logits"]
    if hasattr(out, "logits"):
        return out.logits
    return out[0] if isinstance(out, tuple) else out


def stir(network: nn.Module) -> None:
    """Move every parameter, so that no zero hides a mistake."""
    with forked_rng(5), torch.no_grad():
        for parameter in network.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.1 * torch.randn(parameter.shape))


def descend(network: nn.Module, loss: Tensor) -> None:
    """A step of gradient descent; torch.optim would load torch's compiler."""
    network.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter -= 1e-3 * parameter.grad


def seeds_for(trace: HostTrace, turn: int) -> dict[str, str]:
    """A blueprint in every slot; turns go through all that fit."""
    fits = trace.fitting
    return {
        slot: names[(turn + index) % len(names)] for index, (slot, names) in enumerate(fits.items())
    }


def mlp(first: int, second: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 3)
    )


@pytest.mark.parametrize("name", NAMES)
def test_without_seeds_it_computes_and_learns_what_the_model_does(name):
    model, example, trace = traced(name)
    for training in (False, True):
        theirs = copy.deepcopy(model).train(training)
        ours = planted_model(trace, {}, 3)
        assert ours.training
        ours.train(training)
        outs = []
        for network in (theirs, ours):
            with forked_rng(2):
                out = call(CASES[name], network, example)
                out.square().sum().backward()
            outs.append(out.detach())
        torch.testing.assert_close(outs[1], outs[0], rtol=1e-5, atol=1e-6)
        expected = dict(theirs.named_parameters(remove_duplicate=False))
        for path, parameter in ours.named_parameters():
            assert parameter.requires_grad == expected[path].requires_grad, path
            torch.testing.assert_close(parameter.grad, expected[path].grad, rtol=1e-4, atol=1e-5)
        assert {id(p) for p in theirs.parameters()}.isdisjoint(id(p) for p in ours.parameters())
        assert count_parameters(ours) == count_parameters(theirs)


class SeedsByHand(nn.Module):
    """A host, and seeds for its places."""

    def __init__(self, trace: HostTrace, kinds: dict[str, str]) -> None:
        super().__init__()
        self.host, self.seeds = trace.factory(), nn.ModuleDict()
        for spec in trace.plan.specs:
            recipe = BlueprintRegistry.get(kinds[spec.slot_id], trace.topology)
            self.seeds[spec.slot_id] = Added(build_seed(recipe, spec, None))

    def run(self, trace: HostTrace, raw: Any) -> Tensor:
        """Run the host node by node or by hooks, with each seed behind its place."""
        seeds = list(self.seeds.values())
        if trace.hooked:
            return self._by_hooks(trace, seeds, raw)
        nodes = NodeByNode(self.host, graph=trace.plan.graph)
        nodes.seeds = dict(zip(trace.plan.nodes, seeds, strict=True))
        return trace.inputs.call(lambda *args, **named: nodes.run(*args, *named.values()), raw)

    def _by_hooks(self, trace: HostTrace, seeds: list[nn.Module], raw: Any) -> Tensor:
        def behind(seed: nn.Module) -> Any:
            def hook(_: nn.Module, __: Any, out: Any) -> Any:
                return (seed(out[0]), *out[1:]) if isinstance(out, tuple) else seed(out)

            return hook

        for seed, place in zip(seeds, trace.plan.places, strict=True):
            self.host.get_submodule(place.path).register_forward_hook(behind(seed))
        return trace.plan.key.pick(trace.inputs.call(self.host, raw))


class NodeByNode(fx.Interpreter):
    seeds: dict[fx.Node, nn.Module]

    def run_node(self, n: fx.Node) -> Any:
        out = super().run_node(n)
        return self.seeds[n](out) if n in self.seeds else out


@pytest.mark.parametrize(
    "turn", [0, *(pytest.param(turn, marks=[pytest.mark.slow]) for turn in range(1, 8))]
)
@pytest.mark.parametrize("name", NAMES)
def test_with_seeds_it_computes_what_seeds_behind_their_places_do_and_so_when_finished(name, turn):
    model, example, trace = traced(name)
    seeds = seeds_for(trace, turn)
    member = SeedsByHand(trace, seeds)
    stir(member)
    network = planted_model(trace, seeds, 3)
    state = dict((*member.host.named_parameters(), *member.host.named_buffers()))
    state |= {
        f"seeds.{n}": t
        for n, t in (*member.seeds.named_parameters(), *member.seeds.named_buffers())
    }
    own = dict((*network.named_parameters(), *network.named_buffers()))
    with torch.no_grad():
        for path, value in own.items():
            value.copy_(state[path])
    values = trace.inputs.values(example)
    with torch.no_grad():
        for training in (False, True):
            with forked_rng(2):
                made = copy.deepcopy(member).train(training)
                expected = made.run(trace, [v.clone() for v in values])
            with forked_rng(2):
                found = call(CASES[name], copy.deepcopy(network).train(training), example)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        finished = finished_model(network)
        before = call(CASES[name], network.eval(), example)
        torch.testing.assert_close(
            call(CASES[name], finished, example), before, rtol=1e-5, atol=1e-5
        )
    assert not finished.training
    assert type(finished).__name__ == type(network).__name__
    ours = {n: (p.shape, p.requires_grad) for n, p in network.named_parameters()}
    theirs = {n: (p.shape, p.requires_grad) for n, p in finished.named_parameters()}
    assert {n: v for n, v in theirs.items() if not n.startswith("seeds.")} == {
        n: v for n, v in ours.items() if not n.startswith("seeds.")
    }
    assert count_parameters(finished) <= count_parameters(network)
    own = type(model).__module__.split(".")[0]
    assert {type(part).__module__.split(".")[0] for part in finished.modules()} <= {"torch", own}
    assert {id(p) for p in network.parameters()}.isdisjoint(id(p) for p in finished.parameters())


@pytest.mark.parametrize("name", KINDS)
def test_a_silent_seed_changes_nothing_and_all_of_it_learns_in_two_steps(name):
    """For every blueprint: the child of a trained network, with one seed more."""
    _, example, trace = traced(name)
    first, other = trace.slots[:2] if len(trace.slots) > 1 else (trace.slots[0], None)
    parent = planted_model(trace, {other: trace.fitting[other][0]} if other else {}, 1)
    stir(parent)
    with torch.no_grad():
        expected = call(CASES[name], parent.eval(), example)
    for kind in trace.fitting[first]:
        seeds = {first: kind} | ({other: trace.fitting[other][0]} if other else {})
        child = planted_model(trace, seeds, 2)
        stir(child)
        carry_weights(child, parent.state_dict())
        silence(child, first)
        with torch.no_grad():
            assert torch.equal(call(CASES[name], child.eval(), example), expected), kind
        child.train()
        learnt = set()
        for _ in range(2):
            descend(child, call(CASES[name], child, example).square().sum())
            learnt |= {
                n for n, p in child.named_parameters() if p.grad is not None and p.grad.any()
            }
        own = {n for n, p in child.named_parameters() if n.startswith(f"seeds.{first}.")}
        assert own, kind
        # Biases and scales in front of a norm have no gradient at all.
        assert {n for n in own if "weight" in n or "gamma" in n} <= learnt, kind


def test_weights_of_a_network_with_another_seed_or_one_less_are_carried():
    trace = traced("sequential")[2]
    parent = planted_model(trace, {"r0c0": "conv_light"}, 1)
    stir(parent)
    bare = planted_model(trace, {}, 2)
    carry_weights(bare, parent.state_dict())
    other = planted_model(trace, {"r0c0": "norm", "r0c1": "conv_light"}, 2)
    born = {n: t.clone() for n, t in other.state_dict().items() if n.startswith("seeds.")}
    carry_weights(other, parent.state_dict())
    for network in (bare, other):
        for name, value in network.state_dict().items():
            expected = born[name] if name.startswith("seeds.") else parent.state_dict()[name]
            assert torch.equal(value, expected), name
    with pytest.raises(EsperError, match=r"weights of another network: 0.weight is missing, not"):
        carry_weights(bare, {})


def test_host_weights_depend_on_the_key_alone_and_seeds_on_slot_and_blueprint():
    trace = trace_model(lambda: mlp(8, 8), torch.randn(4, 6))
    state = torch.get_rng_state()
    bare, again = planted_model(trace, {}, 4).state_dict(), planted_model(trace, {}, 5).state_dict()
    one = planted_model(trace, {"r0c0": "gate"}, 4).state_dict()
    two = planted_model(trace, {"r0c0": "gate", "r0c1": "gate"}, 4).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(bare["0.weight"], again["0.weight"])
    assert all(torch.equal(one[name], value) for name, value in bare.items())
    assert all(torch.equal(two[name], value) for name, value in one.items())
    first, second = (two[f"seeds.{slot}.delta.value.weight"] for slot in ("r0c0", "r0c1"))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ["sequential", "conv1d", "tabular", "two_inputs", "unused"])
def test_a_rebuilt_network_trains_bit_for_bit_the_same(name):
    _, example, trace = traced(name)
    network = planted_model(trace, seeds_for(trace, 1), 4)
    record, values = describe(network)
    again = rebuild(record, values, "a test").train()
    losses = []
    for one in (network, again):
        losses.append([])
        for _ in range(3):
            loss = call(CASES[name], one, example).square().sum()
            descend(one, loss)
            losses[-1].append(loss.item())
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 3
    state = network.state_dict()
    assert all(torch.equal(state[path], value) for path, value in again.state_dict().items())
    finished, other = finished_model(network), finished_model(again)
    assert count_parameters(finished) == count_parameters(other)


class FrozenNorm(nn.Sequential):
    """Its norm stays in eval mode, whatever is asked for."""

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self[1].eval()
        return self


def frozen_norm() -> nn.Module:
    return FrozenNorm(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip


def test_parts_that_the_users_train_keeps_in_eval_mode_stay_there():
    x = torch.randn(4, 3, 8, 8)
    model = frozen_norm()
    model(x)
    trace = trace_model(model, x)
    network = planted_model(trace, {"r0c0": "norm"}, 1)
    for one in (network, copy.deepcopy(network), network.eval().train()):
        modes = {path: part.training for path, part in one.named_modules()}
        assert [path for path, mode in modes.items() if not mode] == ["1"]
    before = (
        network.get_buffer("1.running_mean").clone(),
        network.get_buffer("5.running_mean").clone(),
    )
    network(x)
    assert torch.equal(network.get_buffer("1.running_mean"), before[0])
    assert not torch.equal(network.get_buffer("5.running_mean"), before[1])
    with pytest.raises(EsperError, match=r"its train\(\) keeps 1 in eval mode"):
        describe(network)
    describe(finished_model(network))


def test_dropout_is_kept_while_it_trains():
    x = torch.randn(4, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    network = planted_model(trace_model(model, x), {"r0c0": "norm"}, 1)
    with forked_rng(3):
        expected = model(x)
    with forked_rng(3):
        silence(network, "r0c0")
        torch.testing.assert_close(network(x), expected)
    assert not torch.equal(network(x), network(x))


class Mixing(nn.Module):
    """Attention as it is often written; the dropout of its trace must follow the mode."""

    def __init__(self, rate: float, rest: float = 0) -> None:
        super().__init__()
        self.project, self.rate, self.rest = nn.Linear(8, 24), rate, rest

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).chunk(3, dim=-1)
        rate = self.rate if self.training else self.rest
        return x + F.scaled_dot_product_attention(q, k, v, dropout_p=rate)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_module_whose_mode_changes_a_rate_alone_is_part_of_the_graph(rate):
    x = torch.randn(4, 5, 8)
    model = nn.Sequential(nn.Linear(8, 8), Mixing(rate), Mixing(rate), nn.Linear(8, 3))
    trace = trace_model(model, x)
    assert list(trace.untraced) == ["1", "2"]
    network = planted_model(trace, {}, 1)
    again = rebuild(*describe(network), "a test")
    for one in (network, again, planted_model(trace, {}, 1)):
        assert [n for n, _ in one.named_parameters()] == [n for n, _ in model.named_parameters()]
        for training in (True, False):
            with torch.no_grad(), forked_rng(3):
                expected = model.train(training)(x)
            with torch.no_grad(), forked_rng(3):
                assert torch.equal(one.train(training)(x), expected)
    finished = finished_model(network)
    assert finished.meta["untraced"] == ()
    assert all(type(part).__module__.startswith("torch.") for part in finished.modules())


def test_a_module_that_the_mode_changes_otherwise_stays_whole():
    x = torch.randn(4, 5, 8)
    odd = nn.Sequential(nn.Linear(8, 8), Mixing(0.5, 0.25), nn.Linear(8, 3))
    assert planted_model(trace_model(odd, x), {}, 1).meta["untraced"] == ("1",)


def test_fitting_blueprints_can_be_planted():
    narrow = trace_model(mlp(1, 8), torch.randn(4, 6))
    assert "norm" not in narrow.fitting["r0c0"]
    assert "norm" in narrow.fitting["r0c1"]
    for name in KINDS:
        trace = traced(name)[2]
        for slot, names in trace.fitting.items():
            for kind in names:
                planted_model(trace, {slot: kind}, 1)


class Stubborn(nn.Module):
    """One layer; or control flow on the data, writes over the input, auxiliary outputs."""

    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.branches, self.layer = branches, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor] | Tensor:
        out = self.layer(x.mul_(2.0) if self.branches else x)
        if self.branches and out.sum() > 0:
            out = 2 * out
        return (out, x.sum()) if self.training and self.branches else out


@pytest.mark.parametrize("branches", [False, True])
def test_a_model_without_a_place_for_a_seed_trains_as_it_is(branches):
    x, model = torch.randn(8, 6), Stubborn(branches)
    for slots in (0, 8):
        trace = trace_model(model, x, slots)
        assert (trace.slots, trace.blueprints, bool(trace.hooked)) == ((), (), branches)
        network = planted_model(trace, {}, 1)
        with torch.no_grad():
            kept, out = x.clone(), model.train()(x.clone())
            assert torch.equal(network(x), out[0] if branches else out)
            assert torch.equal(x, kept), "the data are the trainer's"
            finished = finished_model(network)
            assert torch.equal(finished(x.clone()), model.eval()(x.clone()))
            assert not finished._forward_pre_hooks, "a plain module"
    with pytest.raises(EsperError, match="nowhere"):
        trace_model(model, x, ["nowhere"])


def test_wrong_seeds_are_refused_in_one_line():
    trace = traced("sequential")[2]
    with pytest.raises(EsperError, match=r"unknown slot 'r9c9'"):
        planted_model(trace, {"r9c9": "norm"}, 1)
    with pytest.raises(EsperError, match=r"unknown blueprint 'nrom'.*norm"):
        planted_model(trace, {"r0c0": "nrom"}, 1)
    assert "twin" not in trace.blueprints, "it copies a segment of a host"
    with pytest.raises(EsperError, match=r"slot r0c0: blueprint 'twin' copies a segment"):
        planted_model(trace, {"r0c0": "twin"}, 1)
    with pytest.raises(EsperError, match=r"unknown slot 'r0c1'"):
        silence(planted_model(trace, {"r0c0": "norm"}, 1), "r0c1")
