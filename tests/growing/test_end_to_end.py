"""Each capability of `esper.grow` once, through its door, as small as it can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import esper
from esper.growing.folder import read_table
from esper.growing.trainers.program import Program
from grow_support import every_batch, runs_of, same_weights
from tracker_support import fake_wandb

X = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, 0] > 0).long()
SUMS = X.sum(1, keepdim=True)


class Rows(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples one after the other; nobody knows how many."""

    def __iter__(self):
        return iter(zip(X[:80], LABELS[:80], strict=True))


def model(outputs: int = 2) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, outputs)
    )


def grow(folder: Path, made: Any = model, train: Any = (X, LABELS), **settings) -> esper.GrowResult:
    chosen = {
        "budget": esper.Budget(host_runs=1),
        "epochs": 12,
        "lr": 0.03,
        "widths": (),
    } | settings
    return esper.grow(made, train, folder=folder, verbose=False, device="cpu", **chosen)


def weights(result: esper.GrowResult) -> dict[str, Tensor]:
    return result.model.state_dict()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> esper.GrowResult:
    return grow(tmp_path_factory.mktemp("whole"))


def test_arrays_are_learnt_and_a_plain_network_comes_back(whole):
    assert whole.record.complete
    assert whole.best.test_score > 0.8
    assert whole.best.val_score >= whole.host.val_score
    predicted = whole.model(X).argmax(1)
    assert (predicted == LABELS).float().mean() > 0.8


@pytest.mark.parametrize("kind", ["loader", "stream"])
def test_loaders_and_streams_are_learnt(tmp_path, kind):
    held_out = X[80:], LABELS[80:]
    train = Rows() if kind == "stream" else DataLoader(TensorDataset(X[:80], LABELS[:80]), 10)
    found = grow(tmp_path, train=train, val=held_out, test=held_out, epochs=8)
    assert (found.info.batch_size == 10) == (kind == "loader")
    assert found.best.test_score > 0.8
    assert found.best.test_score == found.best.val_score, "the same samples"


def test_numbers_are_predicted(tmp_path):
    found = grow(tmp_path, lambda: model(1), (X, SUMS), epochs=10)
    assert found.info.loss == "mse"
    error = (found.model(X) - SUMS).square().mean() / SUMS.var()
    assert float(error.detach()) < 0.5


def test_a_trained_instance_keeps_its_weights_and_is_left_as_it_was(tmp_path):
    """At a rate of nearly nothing the network that comes back is the one that was given."""
    made = model()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    found = grow(tmp_path, made, lr=1e-12, weight_decay=0.0, budget=esper.Budget(host_runs=1))
    torch.testing.assert_close(found.host.model(X), made(X), atol=1e-4, rtol=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


class Stop(BaseException):
    """Ends a search like a kill: nothing catches it."""


def test_a_killed_search_resumes_bit_for_bit(whole, tmp_path, monkeypatch):
    """A checkpoint after every batch, killed in the middle of the first run."""
    every_batch(monkeypatch, saves=True)
    train, batches = Program.run_eager, []

    def killed(self):
        if len(batches) == 9:
            raise Stop
        train(self)

    def counted(self):
        batches.append(self.trained)
        train(self)

    with monkeypatch.context() as patch:
        patch.setattr(Program, "run_eager", lambda self: (killed(self), batches.append(0)))
        with pytest.raises(Stop):
            grow(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert [row.status for row in read_table(folder).rows] == ["planned"]
    batches.clear()
    monkeypatch.setattr(Program, "run_eager", counted)
    again = grow(tmp_path, resume=folder)
    assert batches[0] == 9, "from its checkpoint"
    assert runs_of(again.folder) == runs_of(whole.folder)
    assert same_weights(again, whole)


def test_trackers_and_on_round_get_every_rung_and_networks_are_the_same(
    whole, tmp_path, monkeypatch
):
    library, seen = fake_wandb(monkeypatch), []
    found = grow(tmp_path, track=["wandb"], on_round=seen.append)
    assert [progress.round for progress in seen] == list(range(len(seen)))
    assert library.steps == [progress.round for progress in seen] != []
    scores = [progress.best_score for progress in seen]
    assert scores == sorted(scores), "the best so far never falls"
    assert same_weights(found, whole)


def test_bfloat16_trains_float32_weights(whole, tmp_path):
    found = grow(tmp_path, amp=True)
    assert {value.dtype for value in weights(found).values()} == {torch.float32}
    assert not same_weights(found, whole)
    assert found.best.test_score > 0.8


def test_files_hold_the_network_and_the_folder_the_result(whole, tmp_path):
    from onnxruntime import InferenceSession
    from safetensors.torch import load_file

    expected = whole.model(X).detach()
    network = whole.best
    pt2 = torch.export.load(network.export(tmp_path / "net.pt2")).module()
    torch.testing.assert_close(pt2(X), expected)
    stored = load_file(network.export(tmp_path / "net.safetensors"))
    assert all(torch.equal(value, stored[name]) for name, value in weights(whole).items())
    session = InferenceSession(network.export(tmp_path / "net.onnx"))
    (found,) = session.run(None, {"x": X.numpy()})
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
    again = esper.GrowResult.load(whole.folder)
    assert str(again) == str(whole)
    assert whole.verdict in whole.report(tmp_path / "page.html").read_text()
