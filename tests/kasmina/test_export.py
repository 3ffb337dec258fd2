"""An exported member runs without Esper, at any batch size; a file is whole or not there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina import MorphogeneticModel
from esper.kasmina.export.export import export_onnx, export_pt2
from esper.leyline import BlendStyle
from esper.leyline.errors import install_hint
from support import make_population, refused

BATCHES = (1, 5)
onnx_installed = all(importlib.util.find_spec(n) for n in ("onnx", "onnxruntime", "onnxscript"))
needs_onnx = pytest.mark.skipif(
    not onnx_installed, reason="needs the extra: pip install '.[export]'"
)

WITHOUT_ESPER = """
import sys

class NoEsper:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "esper":
            raise ModuleNotFoundError(f"{name} is kept out")

sys.meta_path.insert(0, NoEsper())
try:
    import esper
except ModuleNotFoundError:
    pass
else:
    sys.exit("esper is not kept out")

import numpy as np
import torch

inputs = np.load("inputs.npz")
models = {
    "pt2": torch.export.load("member.pt2").module(),
    "pickled": torch.load("plain.pt", weights_only=False),
}
outputs = {
    f"{name} {batch}": model(torch.from_numpy(inputs[batch])).detach().numpy()
    for name, model in models.items() for batch in inputs
}
assert not [name for name in sys.modules if name.split(".")[0] == "esper"]
np.savez("outputs.npz", **outputs)
"""


def member() -> MorphogeneticModel:
    """Seeds of each style at alphas between 0 and 1."""
    population = make_population(members=2, slots=("r0c0", "r1c0", "r0c1", "r0c2"))
    seeds = [("r0c0", "attention"), ("r1c0", "norm"), ("r0c1", "conv_light")]
    for (slot, name), style, alpha in zip(seeds, BlendStyle, (0.4, 0.6, 1.0), strict=True):
        population.plant([0, 1], slot, name, style)
        population.lifecycle.alpha_ES[:, population.slots.index(slot)] = alpha
    network = population.network
    with forked_rng(2), torch.no_grad():
        for store in (network.host, *network.banks.values(), *network.gates.values()):
            store.flat_EP.add_(0.2 * torch.randn(store.flat_EP.shape))
    return population.member(1).eval()


def images(size: int = 4) -> Tensor:
    with forked_rng(size):
        return torch.randn(size, 1, 8, 8)


def output(model: nn.Module, size: int) -> np.ndarray:
    with torch.no_grad():
        return model(images(size)).numpy()


def test_exported_member_runs_in_a_process_without_esper(tmp_path):
    model = member()
    export_pt2(model, tmp_path / "member.pt2", images())
    torch.save(model.to_plain(), tmp_path / "plain.pt")
    np.savez(tmp_path / "inputs.npz", **{str(b): images(b).numpy() for b in BATCHES})
    done = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_ESPER], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    outputs = np.load(tmp_path / "outputs.npz")
    assert len(outputs.files) == 2 * len(BATCHES)
    for name in outputs.files:
        expected = output(model, int(name.split()[1]))
        np.testing.assert_allclose(outputs[name], expected, rtol=0, atol=1e-5)


def test_an_example_of_one_gives_any_batch_size_in_a_new_folder(tmp_path):
    plain = member().to_plain().train()
    export_pt2(plain, tmp_path / "new" / "member.pt2", images(1))
    assert plain.training, "left as it was"
    assert os.listdir(tmp_path / "new") == ["member.pt2"]
    loaded = torch.export.load(tmp_path / "new" / "member.pt2").module()
    for size in BATCHES:
        np.testing.assert_allclose(output(loaded, size), output(plain.eval(), size), atol=1e-5)


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in packages else find(name, *a)
    )


def test_missing_extra_is_named_with_the_command(tmp_path, monkeypatch):
    without(monkeypatch, "onnx", "onnxscript")
    line = refused(lambda: export_onnx(member(), tmp_path / "member.onnx", images()))
    assert line == f"ONNX export needs onnx and onnxscript: {install_hint('export')}"
    assert os.listdir(tmp_path) == []


def exporters() -> list[object]:
    return [pytest.param(export_pt2), pytest.param(export_onnx, marks=needs_onnx)]


@pytest.mark.parametrize("export", exporters())
def test_wrong_example_is_refused_in_one_line(export, tmp_path):
    model, path = member(), tmp_path / "member"
    for example, words in [
        (torch.zeros(4, 3, 8, 8), "example of shape (4, 3, 8, 8) does not go through"),
        (torch.zeros(4, 8), "example of shape (4, 8) does not go through"),
        (torch.zeros(0, 1, 8, 8), "example (0, 1, 8, 8): give a tensor, batch first"),
        (torch.tensor(1.0), "example (): give a tensor"),
        ([1.0], "example list: give a tensor"),
    ]:
        assert words in refused(lambda example=example: export(model, path, example))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("export", exporters())
def test_place_that_cannot_be_written_is_refused_in_one_line(export, tmp_path):
    (tmp_path / "file").write_text("here")
    line = refused(lambda: export(member(), tmp_path / "file" / "member", images()))
    assert "cannot be written (File exists)" in line
    assert "is a folder" in refused(lambda: export(member(), tmp_path, images()))


@pytest.mark.parametrize("export", exporters())
def test_failed_export_leaves_the_old_file(export, tmp_path, monkeypatch):
    path = tmp_path / "member"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refused(lambda: export(member(), path, images()))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["member"]


class Wavering(nn.Module):
    """Python that depends on the data: runs, but cannot be exported."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize("export", exporters())
def test_model_that_cannot_be_exported_is_refused_in_one_line(export, tmp_path):
    path = tmp_path / "member"
    path.write_text("old")
    assert "cannot take this model" in refused(lambda: export(Wavering(), path, images()))
    assert path.read_text() == "old"


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten()


def test_output_without_a_batch_axis_is_refused(tmp_path):
    path = tmp_path / "member"
    line = refused(lambda: export_pt2(Flat(), path, images()))
    assert "a batch of 2 becomes (128,)" in line


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) * self.right(b.float())


class FromDict(Pair):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(batch["a"], batch["b"])


def pair(size: int) -> dict[str, Tensor]:
    with forked_rng(size):
        return {"a": torch.randn(size, 3), "b": torch.randint(0, 5, (size, 2))}


CALLS = {
    "positional": (Pair, lambda raw: tuple(raw.values()), lambda f, raw: f(*raw.values())),
    "keywords": (Pair, lambda raw: raw, lambda f, raw: f(**raw)),
    "dict": (FromDict, lambda raw: raw, lambda f, raw: f(raw)),
}


@pytest.mark.parametrize("form", CALLS)
def test_several_inputs_are_exported_as_the_model_takes_them(form, tmp_path):
    kind, example, call = CALLS[form]
    model = kind()
    export_pt2(model, tmp_path / "pair.pt2", example(pair(1)))
    program = torch.export.load(tmp_path / "pair.pt2")
    for size in BATCHES:
        expected = call(model, pair(size))
        torch.testing.assert_close(call(program.module(), pair(size)), expected)


@needs_onnx
@pytest.mark.parametrize("form", CALLS)
def test_several_inputs_have_names_in_onnx(form, tmp_path):
    import onnxruntime

    kind, example, call = CALLS[form]
    model = kind()
    export_onnx(model, tmp_path / "pair.onnx", example(pair(1)))
    session = onnxruntime.InferenceSession(tmp_path / "pair.onnx")
    assert [held.name for held in session.get_inputs()] == ["a", "b"]
    for size in BATCHES:
        (found,) = session.run(["y"], {name: v.numpy() for name, v in pair(size).items()})
        expected = call(model, pair(size)).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_wrong_examples_of_several_inputs_are_refused_in_one_line(tmp_path):
    for example, words in [
        ((torch.zeros(2, 3), 5), "example tuple: give a tensor"),
        ((torch.zeros(2, 3), torch.zeros(2, 9)), "shape [(2, 3), (2, 9)] does not go through"),
    ]:
        line = refused(lambda e=example: export_pt2(Pair(), tmp_path / "pair.pt2", e))
        assert words in line
