"""Users' models of all kinds trace, train, grow and come back as plain modules."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina import OptimConfig, Population, PopulationConfig
from esper.kasmina.export.export import export_onnx, export_pt2
from esper.kasmina.plain_saves import load_plain, save_plain
from esper.kasmina.tracing import (
    HostTrace,
    finished_model,
    fitting_blueprints,
    planted_model,
    trace_model,
)
from esper.leyline import BlendStyle
from support import good_signals
from user_models import CASES, Case

SAMPLES = 4
NAMES = tuple(CASES)
EXPORTED_FAST = ("tabular", "dict_input")


@cache
def traced(name: str) -> tuple[nn.Module, Any, HostTrace]:
    """An instance of a model, a batch for it, and its trace; made once."""
    case = CASES[name]
    with forked_rng(1):
        model, example = case.build(), case.example(SAMPLES)
    return model, example, trace_model(model, example, output=case.output)


def call(model: nn.Module, raw: Any) -> Any:
    """Call a model as its user would; a model may write over its input."""
    if isinstance(raw, Tensor):
        return model(raw.clone())
    return model(**raw) if isinstance(raw, dict) else model(*raw)


def picked(case: Case, out: Any) -> Tensor:
    if isinstance(out, dict):
        return out[case.output]
    return out[0] if isinstance(out, tuple) else out


def batch(case: Case, host: HostTrace, example: Any) -> tuple[Tensor, Tensor]:
    with forked_rng(2):
        return host.inputs.pack(example)[None], case.labels(SAMPLES)[None]


def fitting(population: Population, slot: int) -> list[str]:
    fits = population.network.fits_SK[slot]
    return [name for name, fit in zip(population.blueprints, fits, strict=True) if fit]


@cache
def grown(name: str, executor: str = "auto") -> Population:
    """Three members with different seeds in every slot, trained for two batches; made once."""
    _, example, host = traced(name)
    config = PopulationConfig(executor=executor)  # type: ignore[arg-type]
    population = Population(host.factory, host.slots, host.blueprints, 3, config=config)
    x, y = batch(CASES[name], host, example)
    population.train_batch(x, y)
    for slot, slot_id in enumerate(host.slots):
        kinds = fitting(population, slot)
        for member in range(3):
            kind = kinds[(2 * slot + member) % len(kinds)]
            population.plant([member], slot_id, kind, list(BlendStyle)[member % 2])
    for _ in range(2):
        population.train_batch(x, y)
    return population


def finished(name: str) -> nn.Module:
    """A seed in every slot, as its user gets the network."""
    host = traced(name)[2]
    fits = fitting_blueprints(host).items()
    seeds = {slot: kinds[2 * n % len(kinds)] for n, (slot, kinds) in enumerate(fits)}
    network = planted_model(host, seeds, 3)
    with forked_rng(5), torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape))
    return finished_model(network)


@pytest.mark.parametrize("name", NAMES)
def test_untouched_host_equals_model(name: str):
    model, example, host = traced(name)
    fresh = host.factory()
    with torch.no_grad():
        expected = picked(CASES[name], call(copy.deepcopy(model).eval(), example))
        found = fresh.eval()(host.inputs.pack(example))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert host.topology == CASES[name].topology
    assert host.slots == tuple(f"r0c{col}" for col in range(len(host.places)))
    named = {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert {n: tuple(p.shape) for n, p in fresh.named_parameters()} == named


@pytest.mark.parametrize("name", NAMES)
def test_seeds_train_and_leave_as_plain_modules(name: str):
    _, example, host = traced(name)
    population = grown(name)
    assert population.choice is not None
    assert population.choice.executor.name == CASES[name].executor, population.choice.reason
    x = host.inputs.pack(example)
    with torch.no_grad():
        rows = population.forward(x[None])
        for index in range(3):
            member = population.member(index)
            plain = member.to_plain()
            torch.testing.assert_close(plain(x), rows[index], rtol=1e-5, atol=1e-5)
            assert {type(part).__module__.split(".")[0] for part in plain.modules()} == {"torch"}


def _ties(module: nn.Module) -> set[str]:
    every = [n for n, _ in module.named_parameters(remove_duplicate=False)]
    tensors = [p for _, p in module.named_parameters(remove_duplicate=False)]
    return {n for n, p in zip(every, tensors, strict=True) if sum(q is p for q in tensors) > 1}


WATCHED = ("sequential", "resnet", "densenet", "gpt", "tabular", "functional_dropout", "in_place",
           "buffers")  # fmt: skip
"""With in-place layers, running statistics, random layers or buffers."""


@pytest.mark.parametrize(
    "name",
    [
        name if name in WATCHED else pytest.param(name, marks=pytest.mark.slow)
        for name in NAMES
        if name not in {"python_random", "lstm"}
    ],
)
def test_executors_agree_in_training(name: str):
    """In-place layers right after a slot included; random layers draw the same numbers."""
    losses = []
    for executor in ("auto", "loop"):  # auto is vmap for these
        population = grown(name) if executor == "auto" else grown(name, executor)
        _, example, host = traced(name)
        losses.append(population.evaluate(*batch(CASES[name], host, example)).loss_R)
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["sequential", "mobilenet", "vit", "gpt", "conv1d", "two_inputs"])
def test_seed_germinates_and_is_pruned(name: str):
    _, example, host = traced(name)
    population = Population(host.factory, host.slots, host.blueprints, 3)
    x, y = batch(CASES[name], host, example)
    population.germinate([0, 1], host.slots[-1], fitting(population, len(host.slots) - 1)[0])
    for _ in range(3):
        population.begin_step()
        stats = population.train_batch(x, y)
        population.end_step(good_signals(population))
    assert torch.isfinite(stats.loss_E).all()
    population.prune([0], host.slots[-1])
    population.begin_step()
    population.train_batch(x, y)
    assert population.lifecycle.alpha_ES[0, -1] == 0


DETERMINISTIC = [n for n in NAMES if n not in {
    "mobilenet", "vit", "gpt", "tabular", "functional_dropout", "python_random", "encoder"
}]  # fmt: skip


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_host_without_seeds_trains_as_the_model(name: str):
    case = CASES[name]
    model, _, host = traced(name)
    model = copy.deepcopy(model).train()
    config = PopulationConfig(
        optim=OptimConfig(kind="sgd", momentum=0.9, weight_decay=0.01, clip_norm=None),
        host_lr=0.05,
    )
    population = Population(host.factory, host.slots, host.blueprints, 2, config=config)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9, weight_decay=0.01)
    with forked_rng(3):
        batches = [(case.example(SAMPLES), case.labels(SAMPLES)) for _ in range(3)]
    for raw, labels in batches:
        population.train_batch(host.inputs.pack(raw)[None], labels[None])
        optimizer.zero_grad()
        logits = picked(case, call(model, raw))
        F.cross_entropy(logits.flatten(0, -2), labels.flatten()).backward()
        optimizer.step()
    trained = population.member(1).host.state_dict()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(trained[key], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", [n if n in EXPORTED_FAST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_exports_equal_the_network(name: str, tmp_path: Path):
    _, example, host = traced(name)
    plain = finished(name)
    with torch.no_grad():
        expected = call(plain, example)
    export_pt2(plain, tmp_path / "model.pt2", example)
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(call(loaded, example), expected, rtol=1e-5, atol=1e-5)
    runtime = pytest.importorskip("onnxruntime")
    export_onnx(plain, tmp_path / "model.onnx", example)
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    values = host.inputs.values(example)
    names = [given.name for given in session.get_inputs()]
    (found,) = session.run(None, {n: v.numpy() for n, v in zip(names, values, strict=True)})
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet", "gpt", "dict_input", "unused", "tied"])
def test_finished_model_survives_copy_and_pickle(name: str):
    model, example, _ = traced(name)
    plain = finished(name)
    with torch.no_grad():
        expected = call(plain, example)
        for other in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
            torch.testing.assert_close(call(other, example), expected)
            assert set(dict(model.named_parameters())) <= set(dict(other.named_parameters()))


@pytest.mark.parametrize("name", NAMES)
def test_finished_model_comes_back_from_its_description(name: str, tmp_path: Path):
    """Outputs bit for bit in both modes; names, ties, memory layout and what is trained, too."""
    _, example, _ = traced(name)
    plain = finished(name)
    assert save_plain(tmp_path, plain, example) == ""
    again = load_plain(tmp_path)
    assert not again.training
    for mode in (False, True):
        with torch.no_grad(), forked_rng(4):
            expected = call(plain.train(mode), example)
        with torch.no_grad(), forked_rng(4):
            assert torch.equal(call(again.train(mode), example), expected)
    state, found = plain.state_dict(), again.state_dict()
    assert state.keys() == found.keys()
    assert all(found[key].stride() == value.stride() for key, value in state.items())
    wanted = {n: p.requires_grad for n, p in plain.named_parameters()}
    assert {n: p.requires_grad for n, p in again.named_parameters()} == wanted
    assert _ties(again) == _ties(plain)
    copied = pickle.loads(pickle.dumps(again.eval()))
    torch.testing.assert_close(call(copied, example), call(again, example))
