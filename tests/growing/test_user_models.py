"""Models that were not written for Esper: one call, and a plain network comes back."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import esper
from esper.growing.data.parts import map_inputs
from esper.growing.data.reading import read_data
from esper.growing.problem import make_problem
from esper.growing.settings import GrowSettings
from esper.growing.trainers.program import Program
from grow_support import every_batch, runs_of, same_weights
from hooked_models import HOOKED
from support import refused
from user_models import CASES, Case

NO_ONNX = any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime"))
KINDS = ("sequential", "resnet", "mobilenet", "densenet", "vit", "gpt", "conv1d", "tabular")
FAST = ("dict_input",)
SAMPLES = 60


def data(case: Case):
    torch.manual_seed(0)
    return case.example(SAMPLES), case.labels(SAMPLES)


def grown(kind: str, folder: Path) -> esper.GrowResult:
    case = CASES[kind]
    return esper.grow(
        case.build, data(case), budget=esper.Budget(host_runs=8), epochs=2, batch_size=8,
        output=case.output, folder=folder, verbose=False, device="cpu", widths=(), depths=(),
        lr=0.01, weight_decay=0.0, augment="none", label_smoothing=0.0,  # what is left are seeds
    )  # fmt: skip


def call(model, inputs):
    with torch.no_grad():
        if isinstance(inputs, dict):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in FAST else [pytest.mark.slow])
        for kind in (*KINDS, "dict_input", "two_inputs", "lstm", "frozen", "tied")
    ],
)
def test_a_users_model_is_grown_and_comes_back_as_a_plain_network(kind, tmp_path):
    """Trained, with seeds; as good as its record says, and read from its folder alone."""
    case, result = CASES[kind], grown(kind, tmp_path)
    inputs, _ = data(case)
    few = map_inputs(lambda value: value[:7], inputs)
    stored = {network.params: network for network in esper.GrowResult.load(result.folder).frontier}
    for network in result.frontier:
        again = stored[network.params].model
        assert torch.equal(call(again, few), call(network.model, few)), "bit for bit"
        assert trains(again, few)
        classes = {type(part).__module__.split(".")[0] for part in network.model.modules()}
        assert "esper" not in classes
        trained = [p.numel() for p in network.model.parameters() if p.requires_grad]
        assert network.params == sum(trained)
    assert {row.origin for row in runs_of(result.folder)} >= {"given", "seeds"}
    assert len(result.info.slots) >= 1


def trains(model, inputs) -> bool:
    """Whether a step in training mode changes the model, which then evaluates again."""
    before = call(model, inputs)
    model.train()
    out = (
        model(**inputs)
        if isinstance(inputs, dict)
        else (model(*inputs) if isinstance(inputs, tuple) else model(inputs))
    )
    (out**2).sum().backward()
    torch.optim.SGD([p for p in model.parameters() if p.grad is not None], lr=1e-3).step()
    return not torch.equal(call(model.eval(), inputs), before)


def grown_by_hooks(kind: str, folder: Path, **settings) -> esper.GrowResult:
    case = HOOKED[kind]
    torch.manual_seed(0)
    samples, labels = case.example(SAMPLES), case.labels(SAMPLES)
    return esper.grow(
        case.build, (samples, labels), budget=esper.Budget(host_runs=6), epochs=4, batch_size=8,
        folder=folder, device="cpu", widths=(), **settings,
    )  # fmt: skip


@pytest.mark.parametrize("kind", HOOKED)
def test_a_model_that_cannot_be_traced_is_grown(kind, tmp_path, capsys):
    """Its networks are of the user's class, and the run says so."""
    case, result = HOOKED[kind], grown_by_hooks(kind, tmp_path)
    assert f"kept whole: {result.info.model} (" in capsys.readouterr().err
    torch.manual_seed(0)
    few = map_inputs(lambda value: value[:7], case.example(SAMPLES))
    assert result.info.places == case.places
    for network in (*result.frontier, result.host):
        assert type(network.model) is type(case.build())
        if any(network.record.topology):
            assert "seeds" in dict(network.model.named_children())
        network.export(tmp_path / "weights.safetensors")
    assert result.report(tmp_path / "report.html").is_file()
    again = esper.GrowResult.load(result.folder)  # as `esper show` does
    assert str(again) == str(result)
    said = refused(lambda: again.model)
    assert f"your class {type(case.build()).__name__}" in said
    assert "model=" in said
    mine = esper.GrowResult.load(result.folder, model=case.build).model
    assert torch.equal(call(mine, few), call(result.model, few)), "bit for bit"


def test_a_killed_search_by_hooks_resumes_bit_for_bit(tmp_path, monkeypatch):
    whole = grown_by_hooks("mlp", tmp_path / "whole", verbose=False)
    every_batch(monkeypatch)
    train = Program.run_eager

    def interrupted(self):
        train(self)
        if self.job.number == 2 and self.trained == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Program, "run_eager", interrupted)
        early = grown_by_hooks("mlp", tmp_path / "killed", verbose=False)
    assert not early.record.complete
    assert runs_of(early.folder)[2].trained == 5
    again = grown_by_hooks("mlp", tmp_path, verbose=False, resume=early.folder)
    assert runs_of(again.folder) == runs_of(whole.folder)
    assert same_weights(whole, again)


@pytest.mark.slow
@pytest.mark.skipif(NO_ONNX, reason="needs the extra: pip install '.[export]'")
@pytest.mark.parametrize("kind", KINDS)
def test_the_onnx_file_gives_the_networks_outputs(kind, tmp_path):
    import onnxruntime

    result = grown(kind, tmp_path)
    best = result.frontier[-1]
    file = best.export(tmp_path / "model.onnx")
    inputs, _ = data(CASES[kind])
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for size in (1, 5):
        few = inputs[:size]
        (out,) = session.run(None, {session.get_inputs()[0].name: few.numpy()})
        np.testing.assert_allclose(out, call(best.model, few).numpy(), atol=1e-4, rtol=1e-3)


def test_the_users_model_is_left_as_it_was():
    case = CASES["resnet"]
    model = case.build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    make_problem(model, read_data(data(case)), GrowSettings())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
