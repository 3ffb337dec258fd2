"""A planted network is the user's model with seeds in it: it computes, trains and ends as that."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina import Population
from esper.kasmina.counting import count_parameters
from esper.kasmina.plain_saves.describe import describe
from esper.kasmina.plain_saves.rebuild import rebuild
from esper.kasmina.tracing import (
    HostTrace,
    carry_weights,
    finished_model,
    fitting_blueprints,
    plain_model,
    planted_model,
    silence,
    trace_model,
)
from esper.leyline.errors import EsperError
from hooked_models import HOOKED
from user_models import CASES as TRACED

CASES: dict[str, Any] = {**TRACED, **{f"hooked_{name}": case for name, case in HOOKED.items()}}


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


def seeds_for(trace: HostTrace, turn: int) -> dict[str, str]:
    """A blueprint in every slot; turns go through all that fit."""
    fits = fitting_blueprints(trace)
    return {
        slot: names[(turn + index) % len(names)] for index, (slot, names) in enumerate(fits.items())
    }


@pytest.mark.parametrize("name", CASES)
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


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("name", CASES)
def test_with_seeds_it_computes_what_a_member_does_and_finishes_as_its_plain_model(name, turn):
    _, example, trace = traced(name)
    seeds = seeds_for(trace, turn)
    population = Population(trace.factory, trace.slots, trace.blueprints, 1)
    for slot, kind in seeds.items():
        population.plant([0], slot, kind)
    member = population.member(0)
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
    x = trace.inputs.pack(example)
    with torch.no_grad():
        for training in (False, True):
            with forked_rng(2):
                expected = copy.deepcopy(member).train(training)(x.clone())
            with forked_rng(2):
                found = call(CASES[name], copy.deepcopy(network).train(training), example)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        plain, finished = plain_model(trace, member), finished_model(network)
        before = call(CASES[name], network.eval(), example)
        torch.testing.assert_close(
            call(CASES[name], finished, example), before, rtol=1e-5, atol=1e-5
        )
    assert not finished.training
    shapes = {n: (p.shape, p.requires_grad) for n, p in plain.named_parameters()}
    assert {n: (p.shape, p.requires_grad) for n, p in finished.named_parameters()} == shapes
    assert type(finished).__name__ == type(plain).__name__
    assert getattr(finished, "meta", {}).get("untraced") == getattr(plain, "meta", {}).get(
        "untraced"
    )
    assert {type(part).__module__.split(".")[0] for part in finished.modules()} == {
        type(part).__module__.split(".")[0] for part in plain.modules()
    }
    assert {id(p) for p in network.parameters()}.isdisjoint(id(p) for p in finished.parameters())
