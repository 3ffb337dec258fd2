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
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina.export.export import export_onnx, export_pt2
from esper.kasmina.plain_saves import load_plain, save_plain
from esper.kasmina.tracing import (
    HostTrace,
    finished_model,
    planted_model,
    trace_model,
)
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


def finished(name: str) -> nn.Module:
    """A seed in every slot, as its user gets the network."""
    host = traced(name)[2]
    fits = host.fitting.items()
    seeds = {slot: kinds[2 * n % len(kinds)] for n, (slot, kinds) in enumerate(fits)}
    network = planted_model(host, seeds, 3)
    with forked_rng(5), torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape))
    return finished_model(network)


@pytest.mark.parametrize("name", NAMES)
def test_network_without_seeds_equals_the_model(name: str):
    model, example, host = traced(name)
    fresh = planted_model(host, {}, 1)
    with torch.no_grad():
        expected = picked(CASES[name], call(copy.deepcopy(model).eval(), example))
        found = call(fresh.eval(), example)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert host.topology == CASES[name].topology
    assert host.slots == tuple(f"r0c{col}" for col in range(len(host.places)))
    named = {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert {n: tuple(p.shape) for n, p in fresh.named_parameters()} == named


def _ties(module: nn.Module) -> set[str]:
    every = [n for n, _ in module.named_parameters(remove_duplicate=False)]
    tensors = [p for _, p in module.named_parameters(remove_duplicate=False)]
    return {n for n, p in zip(every, tensors, strict=True) if sum(q is p for q in tensors) > 1}


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
