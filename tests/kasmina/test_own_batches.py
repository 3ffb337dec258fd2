"""Batches that users bring: each mistake is one line, at the first batch and at a later one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina import Population
from own_host import (
    BATCH,
    EXECUTORS,
    OwnHost,
    images,
    labels,
    own_population,
    refused_before_training,
)
from support import refused

X, Y = images(), labels()

INPUTS: dict[str, tuple[object, str]] = {
    "numpy": (X.numpy(), "input of type ndarray: give a tensor, as in torch.as_tensor(...)"),
    "list": (X.tolist(), "input of type list: give a tensor"),
    "other channels": (images(3, 8, 8), "expected input[1, 3, 8, 8] to have 1 channels"),
    "channels last": (X.permute(0, 1, 3, 4, 2), "fails on (1, 8, 8, 1), float32"),
    "float64": (X.double(), "its parameters are float32: convert the input, as in x.float()"),
    "float16": (X.half(), "fails on (1, 1, 8, 8), float16"),
    "bytes": ((255 * X).byte(), "its parameters are float32: convert the input, as in x.float()"),
    "bool": (X > 0, "fails on (1, 1, 8, 8), bool"),
    "another device": (X.to("meta"), "input on meta, the members are on cpu: move them"),
    "sparse": (X.to_sparse(), "give a dense tensor"),
    "no member axis": (X[0], "the first axis must be the 2 members, or 1"),
    "no batch axis": (X[:, 0], "inputs are [members, batch, ...]"),
    "no axes": (torch.zeros(2), "the first axis must be the 2 members"),
    "empty": (X[:, :0], "a batch of 0 samples"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_do_not_fit_are_one_line_at_any_time(name):
    x, words = INPUTS[name]
    population = own_population(executor="loop")
    assert words in refused_before_training(population, x, Y)  # type: ignore[arg-type]
    assert words in refused(lambda: population.forward(x))  # type: ignore[arg-type]
    population.train_batch(X, Y)
    before = population.network.host.flat_EP.detach().clone()
    for action in (population.train_batch, population.evaluate):
        assert words in refused(lambda action=action: action(x, Y))
    assert torch.equal(population.network.host.flat_EP.detach(), before)


TARGETS: dict[str, tuple[object, str]] = {
    "numpy": (Y.numpy(), "targets of type ndarray: give a tensor"),
    "too large": (Y + 1, "label 4: the host has 4 outputs, so labels are 0 to 3"),
    "negative": (Y - 1, "label -1: the host has 4 outputs"),
    "float": (Y.float(), "targets of float32: labels are class indices of int64"),
    "int32": (Y.int(), "as in y.long()"),
    "one-hot": (F.one_hot(Y, 4), "outputs are (6, 4) for each member, so give labels (6,)"),
    "a column": (Y[..., None], "targets of shape (2, 6, 1)"),
    "no member axis": (Y[0], "expected [2 members, or 1, 6 samples, ...]"),
    "fewer": (Y[:, 1:], "expected [2 members, or 1, 6 samples, ...]"),
    "another device": (Y.to("meta"), "targets on meta, the members are on cpu"),
}


class Normed(OwnHost):
    """Has running statistics, which a refused batch must not touch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(self.first, torch.nn.BatchNorm2d(4))


@pytest.mark.parametrize("name", TARGETS)
def test_targets_that_do_not_fit_are_one_line_and_change_nothing(name):
    y, words = TARGETS[name]
    population = own_population(Normed, "vmap")
    population.begin_step()
    for _ in range(2):  # at the first batch, and at a later one
        before = state(population)
        for action in (population.train_batch, population.evaluate):
            assert words in refused(lambda action=action: action(X, y))
        assert all(torch.equal(a, b) for a, b in zip(before, state(population), strict=True))
        population.train_batch(X, Y)


def state(population: Population) -> list[Tensor]:
    host = population.network.host
    return [t.clone() for t in (host.flat_EP.detach(), *host.fixed.values())]


def test_labels_that_torch_ignores_are_taken():
    population = own_population()
    y = Y.clone()
    y[:, 0] = -100
    assert torch.isfinite(population.train_batch(X, y).loss_E).all()


def test_a_loss_of_ones_own_takes_targets_of_its_own():
    def squares(outputs_RBK: Tensor, target_RBK: Tensor) -> Tensor:
        return (outputs_RBK - target_RBK).square().flatten(1).mean(dim=1)

    population = own_population(lambda: OwnHost(BATCH), loss=squares)
    target = torch.zeros(2, BATCH, BATCH)
    first = population.train_batch(X, target).loss_E
    assert (population.train_batch(X, target).loss_E < first).all()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_images_of_another_size_are_checked_and_taken(executor):
    population = own_population(executor=executor)
    population.germinate([0], "r0c1", "norm")
    population.begin_step()
    population.train_batch(X, Y)
    assert torch.isfinite(population.train_batch(images(1, 12, 10), Y).loss_E).all()


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("gpu", "device 'gpu': did you mean 'cuda'?"),
        ("gpu:0", "did you mean 'cuda'?"),
        ("mps", "device 'mps': Esper runs on cpu and cuda"),
        ("meta", "Esper runs on cpu and cuda"),
        (None, "device 'None': choose cpu, cuda, cuda:<number> or auto"),
        (torch.device("meta"), "Esper runs on cpu and cuda"),
    ],
)
def test_a_device_there_is_none_of_is_one_line(device, words, tmp_path):
    assert words in refused(lambda: own_population(device=device))
    own_population().save(tmp_path)
    assert words in refused(lambda: Population.load(tmp_path, OwnHost, device=device))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_gpu_that_is_not_here_is_one_line():
    assert "no CUDA device" in refused(lambda: own_population(device="cuda"))
