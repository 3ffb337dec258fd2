"""`code()`: a network of a search as a plain PyTorch script that trains it again."""

from __future__ import annotations

import contextlib
import math
import re
import subprocess
import sys
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import esper
import user_models
from code_support import (
    BUILT,
    CASES,
    RECIPE,
    Case,
    ResNet,
    Written,
    images,
    mlp,
    rows,
    run_here,
    written,
)
from esper.growing.api import prepare_run
from esper.growing.code.augmentation import augment_lines
from esper.growing.code.constants import ANGLES, constant_source
from esper.growing.code.expressions import Imports, function_name
from esper.growing.code.objectives import loss_lines, metric_lines
from esper.growing.code.script import Subject, network_script
from esper.growing.code.scripts import Scripts
from esper.growing.code.training import Training
from esper.growing.folder import GrowFolder, weights_path
from esper.growing.progress import ProgressPrinter
from esper.growing.run import GrowRun
from esper.growing.runs import Recipe
from esper.growing.settings import GrowSettings
from esper.growing.topologies import with_seed
from esper.growing.trainers.augment import LEVELS, OPERATIONS, Augmentation
from esper.growing.trainers.data import ResidentOrder
from esper.growing.trainers.task import scalar_loss
from esper.kasmina.tracing import finished_model, planted_model, trace_model
from esper.leyline.errors import EsperError
from esper.tasks.metrics import make_metric
from esper.tasks.objectives import make_training_loss, with_sample_weights
from support import refused

DRAWS = 12


@cache
def script(name: str) -> Written:
    return written(BUILT[name])


def moved(network: nn.Module) -> nn.Module:
    """Change all weights and statistics, as training does."""
    with torch.no_grad():
        for value in network.state_dict().values():
            if value.is_floating_point():
                value.add_(0.1 * torch.rand_like(value))
    return network


# ---- the network --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT)
def test_with_the_weights_of_a_run_the_script_has_its_network(name, monkeypatch):
    found = script(name)
    network = moved(found.build(3))
    made = run_here(found.text, monkeypatch)["make_model"]()
    made.load_state_dict(network.state_dict())
    x, _ = found.case.data(9)
    with torch.no_grad():
        expected = finished_model(network)(x)
        assert torch.allclose(made.eval()(x), expected, rtol=1e-5, atol=1e-6)
        assert expected.std() > 1e-3, "a test that can fail"


@pytest.mark.parametrize("name", BUILT)
def test_initial_weights_are_drawn_as_the_search_draws_them(name, monkeypatch):
    found = script(name)
    make = run_here(found.text, monkeypatch)["make_model"]
    ours = [found.build(seed).state_dict() for seed in range(20, 20 + DRAWS)]
    theirs = [make(seed).state_dict() for seed in range(DRAWS)]
    for key in ours[0]:
        one, other = (torch.stack([state[key].float() for state in s]) for s in (ours, theirs))
        near = 6.0 / math.sqrt(one.numel())
        spread = float(one.std(correction=0))
        assert float(other.std(correction=0)) == pytest.approx(spread, rel=max(near, 0.05)), key
        assert abs(float(other.mean() - one.mean())) <= near * spread + 1e-7, key


def table_of(name: str) -> torch.Tensor:
    turns = torch.outer(torch.arange(40.0), 10_000.0 ** (-torch.arange(0, 16, 2) / 16))
    return {
        "mask": torch.ones(1, 1, 20, 20).tril().bool(),
        "additive mask": torch.full((30, 30), -math.inf).triu(1),
        "numbers": torch.arange(300)[None],
        "waves": torch.stack([turns.sin(), turns.cos()], 2).flatten(1)[None],
        "rotations": turns.cos(),
        "both halves": torch.cat([turns, turns], 1).sin()[None, None],
        "identity": torch.eye(20),
        "one number": torch.tensor(3),
        "a few": torch.tensor([[0.1, math.inf], [1e-30, -2.0]]),
    }[name]


@pytest.mark.parametrize(
    "name",
    ["mask", "additive mask", "numbers", "waves", "rotations", "both halves", "identity",
     "one number", "a few"],
)  # fmt: skip
def test_tables_and_masks_are_formulas(name):
    table = table_of(name)
    source = constant_source(table)
    space = {"torch": torch, "math": math}
    exec(ANGLES, space)
    made = eval(source, space)
    assert made.dtype == table.dtype
    assert torch.allclose(made, table, atol=1e-5)
    assert len(source) < 120


def test_a_large_table_without_a_formula_is_refused():
    torch.manual_seed(0)
    drawn = torch.randn(4, 100)

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", drawn.clone())
            self.out = nn.Linear(100, 3)

        def forward(self, x):
            return self.out(torch.relu(x @ self.table))

    assert "table holds 400 fixed numbers that are no formula" in refused(
        lambda: written(Case(Fixed, rows))
    )


class Features(nn.Module):
    """Random features that do not train."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", 3.0 * torch.randn(4, 100))
        self.out = nn.Linear(100, 3)

    def forward(self, x):
        return self.out(torch.cos(x @ self.rates))


def test_random_buffers_are_drawn_anew(monkeypatch):
    make = run_here(written(Case(Features, rows)).text, monkeypatch)["make_model"]
    one, other = make(0), make(1)
    assert not one.rates.equal(other.rates)
    assert float(one.rates.std()) == pytest.approx(3.0, rel=0.1)


class Scaled(nn.Module):
    """A parameter of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.layer, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.scale * torch.relu(self.layer(x)))


@pytest.mark.parametrize("width", [1.0, 2.0])
def test_a_parameter_of_one_number_starts_as_in_the_model(width, monkeypatch):
    made = run_here(written(Case(Scaled, rows, width)).text, monkeypatch)["make_model"]()
    assert made.scale.item() == 2.0
    assert made.layer.out_features == 8 * width


class InPlace(nn.Module):
    """What it computes depends on the order of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.layer(x)
        before = h.sigmoid()
        after = h.mul_(2.0)
        return self.out(after - before)


def test_calls_stay_in_order():
    text = written(Case(InPlace, rows)).text
    assert text.index(".sigmoid()") < text.index(".mul_(2.0)")


@pytest.mark.parametrize(
    "name", [name for name, case in user_models.CASES.items() if not case.output]
)
def test_networks_of_many_kinds_can_be_written(name, monkeypatch):
    """What a script computes is compared as it is written."""
    case = user_models.CASES[name]
    example = case.example(4)
    trace = trace_model(case.build, example)
    seeds = {slot: trace.fitting[slot][0] for slot in trace.slots[:1]}
    values = trace.inputs.values(example)
    shape = tuple(trace.inputs.call(planted_model(trace, seeds, 0), values).shape[1:])
    targets = torch.randn(4, *shape)
    loss = make_training_loss("mse", targets=targets, output_shape=shape)
    metric = make_metric("r2", loss, targets, targets)
    training = Training(trace.inputs, loss, metric, False, None, False, None)
    subject = Subject(name, [], trace.name, lambda key: planted_model(trace, seeds, key), RECIPE)
    run_here(network_script(subject, training, values), monkeypatch)["make_model"]()


def test_constants_of_the_initialisation_stay_constants(monkeypatch):
    made = run_here(script("own parameters").text, monkeypatch)["make_model"](5)
    assert bool((made.lstm.bias_ih_l0[8:16] == 1.0).all())
    assert [float(p.detach().mean()) for p in made.scale] == [0.5, 0.5]
    resnet = run_here(script("resnet with a seed").text, monkeypatch)["make_model"](5)
    assert not resnet.head.weight.any()


def test_scripts_read_like_code_by_hand():
    text = script("resnet with a seed").text
    assert "self.blocks = nn.ModuleList([" in text
    assert text.count("class Block(nn.Module):") == 1, "equal blocks share a class"
    assert 'nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")' in text
    gpt = script("gpt").text
    assert "q, k, v = self.qkv(x).chunk(3, -1)" in gpt
    assert "return self.head(self.norm(self.layers(x)))" in gpt
    assert "self.head.weight = self.tokens.weight" in gpt
    assert max(map(len, gpt.splitlines())) <= 100
    assert not re.search(r"\besper\b", text.split('"""')[2])


def test_functions_have_their_public_names():
    for function in (F.threshold, F.max_pool2d, torch.add, F.scaled_dot_product_attention):
        assert function_name(function, Imports()).rpartition(".")[2].isidentifier()
        assert "._" not in function_name(function, Imports())


# ---- training -----------------------------------------------------------------------------------


def same_batches(found: Written, samples: int, space: dict, monkeypatch) -> None:
    """Let a script see the batches of a run of the search with seed 0."""
    order = ResidentOrder(found.task(samples).train, found.case.recipe.batch_size, 0)
    epochs = iter(range(1000))

    def permutation(*_, **__):
        return order._permutation(next(epochs))

    monkeypatch.setattr(torch, "randperm", permutation)
    assert space["torch"] is torch


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_on_the_same_batches_a_script_makes_the_same_steps(optimizer, monkeypatch):
    recipe = Recipe(optimizer, 0.02, 0.05, 0.5, 16, 25, label_smoothing=0.1)
    found = written(replace(CASES["mlp"], recipe=recipe))
    space = run_here(found.text, monkeypatch)
    x, y = found.case.data(70)
    model = found.build(0)
    expected = found.outcome(0, 70).weights
    with monkeypatch.context() as patched:
        same_batches(found, 70, space, patched)
        space["train"](model, x, y)
    for name, value in model.state_dict().items():
        assert torch.allclose(value, expected[name], rtol=1e-3, atol=1e-5), name


def test_the_learning_rate_is_that_of_the_recipe(monkeypatch):
    found = script("mlp")
    schedule = run_here(found.text, monkeypatch)["schedule"]
    recipe = found.case.recipe
    for batch in (0, 3, 7, 8, 80, 149):
        assert recipe.lr * schedule(batch) == pytest.approx(recipe.rate(batch), abs=1e-9)


def scores(
    found: Written, space: dict, samples: int, seeds: int
) -> tuple[list[float], list[float]]:
    """Test scores of networks of the search, and of the script."""
    x, y = found.case.data(samples)
    test = found.case.data(400)
    ours, theirs = [], []
    for seed in range(seeds):
        ours.append(space["evaluate"](found.trained(seed, samples), *test))
        model = space["make_model"](seed)
        space["train"](model, x, y, seed)
        theirs.append(space["evaluate"](model, *test))
    return ours, theirs


def same_scores(ours: list[float], theirs: list[float]) -> bool:
    spread = math.hypot(np.std(ours, ddof=1), np.std(theirs, ddof=1)) / math.sqrt(len(ours))
    return abs(np.mean(ours) - np.mean(theirs)) <= 3 * spread + 0.02


@pytest.mark.parametrize("name", CASES)
def test_a_script_reaches_the_score_of_the_search(name, monkeypatch):
    found = script(name)
    space = run_here(found.text, monkeypatch)
    ours, theirs = scores(found, space, 300, 3)
    assert same_scores(ours, theirs), (ours, theirs)
    assert min(np.mean(ours), np.mean(theirs)) > 0.55, (ours, theirs)


def test_every_field_of_a_recipe_is_followed():
    followed = {"optimizer", "lr", "weight_decay", "clip", "batch_size", "batches"}
    assert {field.name for field in fields(Recipe)} == followed | {"augment", "label_smoothing"}


@pytest.mark.parametrize(
    ("name", "axes"),
    [(name, axes) for name, every in OPERATIONS.items() for axes in every if name != "mixup"]
    + [(LEVELS[axes][-1], axes) for axes in LEVELS],
)
def test_augmentation_is_that_of_the_search(name, axes):
    space: dict = {"torch": torch, "F": F}
    exec("\n".join(augment_lines(name, axes)), space)
    shape = {1: (6,), 2: (2, 16), 3: (2, 8, 8)}[axes]
    sample = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    others = torch.randn(64, *shape, generator=torch.Generator().manual_seed(2))
    x = (
        torch.cat([sample.expand(4000, *shape), others])
        if "noise" in name
        else sample.expand(4000, *shape)
    )
    plain = "+".join(part for part in name.split("+") if part != "mixup")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = space["augment"](x)[:4000]
    ours = Augmentation(plain, 0, torch.device("cpu"))(x, 0)[:4000]
    for measure in (torch.mean, torch.std):
        assert torch.allclose(measure(ours, 0), measure(theirs, 0), atol=0.12)
    assert not theirs[0].equal(x[0]) or not theirs[1].equal(x[0])


def test_mixed_samples_have_mixed_targets(monkeypatch):
    recipe = Recipe("adamw", 0.01, 0.01, 1.0, 32, 3, "mixup")
    found = written(Case(ResNet, images, recipe=recipe))
    space = run_here(found.text, monkeypatch)
    x, y = images(64)
    space["train"](space["make_model"](), x, y)
    assert "loss = kept * loss_fn(outputs, y[index])" in found.text
    assert "torch.lerp(inputs.flip(0), inputs, kept)" in found.text


# ---- losses and metrics -------------------------------------------------------------------------

LABELS = torch.tensor([0, 1, 2, 1, 0, 2, 2, 1])
GENERATOR = torch.Generator().manual_seed(3)
LOSSES = [
    ((3,), LABELS, {}, ["accuracy", "balanced_accuracy", "f1_macro", "roc_auc", "log_loss"]),
    ((3,), LABELS, {"class_weights": [1.0, 2.0, 0.5], "label_smoothing": 0.1},
     ["average_precision"]),
    ((2,), LABELS % 2, {}, ["f1", "roc_auc"]),
    ((5, 3), torch.randint(0, 3, (8, 5), generator=GENERATOR), {}, ["explained", "perplexity"]),
    ((3, 4, 4), torch.randint(0, 3, (8, 4, 4), generator=GENERATOR), {}, ["accuracy"]),
    ((1,), (LABELS > 0).float(), {}, ["accuracy", "log_loss", "f1", "roc_auc"]),
    ((), (LABELS > 0).long(), {"class_weights": [1.0, 3.0]}, ["accuracy", "balanced_accuracy"]),
    ((3,), (torch.eye(3)[LABELS] + torch.eye(3)[LABELS.flip(0)] > 0).float(), {},
     ["label_accuracy", "accuracy", "f1_macro", "average_precision"]),
    ((2,), torch.randn(8, 2, generator=GENERATOR), {}, ["r2", "mae", "rmse", "explained"]),
    ((1,), torch.randn(8, generator=GENERATOR), {"loss": "huber", "huber_delta": 0.5}, ["r2"]),
    ((1,), torch.randn(8, 1, generator=GENERATOR), {"loss": "mae"}, ["explained"]),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "targets", "options", "metrics"), LOSSES)
def test_losses_and_metrics_are_those_of_the_search(shape, targets, options, metrics):
    chosen = {"loss": "auto", "targets": targets, "output_shape": shape} | options
    loss = make_training_loss(**chosen)
    outputs = torch.randn(8, *shape, generator=torch.Generator().manual_seed(4))
    imports, recipe = Imports(), Recipe("adamw", 0.01, 0.0, 0.0, 8, 10)
    lines = loss_lines(loss, recipe, imports)
    for name in metrics:
        metric = make_metric(name, loss, targets, targets)
        own = Imports()
        lines_too = [*lines, *metric_lines(metric, own)]
        space: dict = {"torch": torch, "F": F}
        exec("\n".join([*own.lines.values(), *lines_too]), space)
        expected = metric.value(metric.keep(outputs[None], targets[None])[0], targets)
        assert space["score"](outputs, targets) == pytest.approx(expected, abs=1e-6), name
        found = space["loss_fn"](outputs, targets)
        assert float(found) == pytest.approx(float(scalar_loss(loss)(outputs, targets)), abs=1e-6)


@pytest.mark.parametrize(("shape", "targets", "options", "metrics"), LOSSES)
def test_losses_of_weighted_samples_are_those_of_the_search(shape, targets, options, metrics):
    chosen = {"loss": "auto", "targets": targets, "output_shape": shape} | options
    loss = make_training_loss(**chosen)
    terms = replace(loss.terms, weighted=True)
    weights = torch.linspace(0.1, 2.0, 8)
    outputs = torch.randn(8, *shape, generator=torch.Generator().manual_seed(4))
    recipe, space = Recipe("adamw", 0.01, 0.0, 0.0, 8, 10), {"torch": torch, "F": F}
    exec("\n".join(loss_lines(replace(loss, terms=terms), recipe, Imports())), space)
    expected = terms(outputs[None], with_sample_weights(targets, weights)[None])[0]
    assert float(space["loss_fn"](outputs, targets, weights)) == pytest.approx(float(expected))


# ---- from a search ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> esper.GrowResult:
    x, y = rows(300)
    return esper.grow(
        mlp, (x, y), test=rows(400), budget=esper.Budget(host_runs=2), epochs=10, lr=0.03,
        widths=(0.5,), folder=tmp_path_factory.mktemp("runs"), verbose=False, device="cpu",
    )  # fmt: skip


def test_the_code_of_a_result_trains_its_network_to_the_same_score(result, tmp_path):
    """The whole of it, as a command, in a process that has no Esper."""
    train, test = rows(300), rows(400)
    for name, (x, y) in (("train", train), ("test", test)):
        np.savez(tmp_path / f"{name}.npz", x=x.numpy(), y=y.numpy())
    (tmp_path / "script.py").write_text(result.best.code())
    blocked = (
        "import runpy, sys; sys.modules['esper'] = None; "
        "runpy.run_path('script.py', run_name='__main__')"
    )
    arguments = ["train.npz", "test.npz", "--save", "net.pt"]
    done = subprocess.run(
        [sys.executable, "-c", blocked, *arguments],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    score = float(done.stdout.removeprefix("test accuracy "))
    assert score == pytest.approx(result.best.test_score, abs=0.08)
    assert torch.load(tmp_path / "net.pt", weights_only=True)


def test_weights_in_the_run_folder_fit_the_script(result, monkeypatch):
    made = run_here(result.best.code(), monkeypatch)["make_model"]()
    made.load_state_dict(load_file(weights_path(result.folder, result.record.pick)))
    x, _ = rows(50)
    assert torch.allclose(made.eval()(x), result.best.model(x), atol=1e-6)


WORDS = np.array(["no", "yes"])[(rows(80)[0][:, 0] > 0).numpy().astype(int)]
NAMED = {"a": rows(80)[0], "b": rows(80)[0][:, :2]}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(2, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, a, b):
        return self.out(torch.relu(self.first(a) + self.second(b)))


@pytest.mark.parametrize(
    ("model", "x", "y", "settings"),
    [
        (mlp, rows(80)[0], rows(80)[1], {"sample_weights": np.linspace(0.1, 1.0, 80)}),
        (TwoInputs, tuple(NAMED.values()), WORDS, {}),
        (TwoInputs, NAMED, WORDS, {"metric": "f1"}),
        (lambda: nn.Linear(4, 1), rows(80)[0], rows(80)[0].sum(1), {"amp": True}),
    ],
    ids=["weights", "positions", "names", "bfloat16"],
)
def test_scripts_take_the_data_of_the_search(model, x, y, settings, tmp_path, monkeypatch):
    found = esper.grow(
        model, (x, y), budget=esper.Budget(host_runs=1), epochs=1, widths=(), folder=tmp_path,
        verbose=False, device="cpu", augment="none", **settings,
    )  # fmt: skip
    space = run_here(found.best.code(), monkeypatch)
    named = {"x": x} if isinstance(x, torch.Tensor) else NAMED
    np.savez(tmp_path / "data.npz", **{name: v.numpy() for name, v in named.items()}, y=y)
    values, targets = space["make_data"](tmp_path / "data.npz")
    weights = [torch.ones(len(y))] if "sample_weights" in settings else []
    space["BATCHES"] = 30
    model = space["make_model"]()
    before = space["evaluate"](model, values, targets)
    space["train"](model, values, targets, *weights)
    assert space["evaluate"](model, values, targets) > before


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> tuple[GrowRun, esper.GrowResult]:
    settings = GrowSettings(device="cpu", epochs=1, widths=(), refit=False)
    given = (rows(300), None, None)
    budget, printer = esper.Budget(host_runs=1), ProgressPrinter(verbose=False)
    run = prepare_run(mlp, given, budget, settings, printer)
    root = tmp_path_factory.mktemp("runs")
    with contextlib.closing(GrowFolder.create(root, "quick", 0)) as home:
        return run, run.search(home, resumed=False, files=False)


def test_the_script_of_a_refit_takes_more_samples_for_as_many_epochs(searched):
    run, result = searched
    scripts = Scripts(run.problem, result.info, run.networks, result.table().rows)
    plain, refit = (scripts.of(replace(result.record.host, refit=one)) for one in (False, True))
    assert f"BATCHES = {result.host.recipe.batches}  # 1 epochs of 180 samples" in plain
    longer = round(result.host.recipe.batches * 240 / 180)
    assert f"BATCHES = {longer}  # " in refit
    assert "epochs of 240 samples" in refit
    assert "0000.refit.safetensors" in refit


def test_a_grown_network_starts_from_the_weights_of_another(searched, monkeypatch):
    run, result = searched
    first = result.table().rows[0]
    topology = with_seed(run.networks.base.bare, 0, "gate")
    grown = replace(first, number=1, topology=topology, start=0, origin="grown")
    scripts = Scripts(run.problem, result.info, run.networks, (first, grown))
    text = scripts.of(replace(result.record.host, number=1))
    assert 'default="networks/0000.safetensors"' in text
    run_here(text, monkeypatch)
    (silent,) = re.findall(r"for name in \[(.*)\]:  # a new seed", text)
    network = run.networks.build(grown, (first, grown))
    zero = [n for n, p in network.named_parameters() if n.startswith("seeds") and not p.any()]
    assert {name.strip(' "') for name in silent.split(",")} <= set(zero)


def test_the_script_of_the_pick_is_kept_and_others_when_they_were_asked_for(result):
    again = esper.GrowResult.load(result.folder)
    assert again.best.code() == result.best.code()
    others = [n for n in result.frontier if n.record.number != result.record.pick]
    assert others
    for live in others[:1]:
        stored = again.pick(params=live.params)
        assert "code() of the result that esper.grow returned" in refused(stored.code)
        assert live.code() == stored.code()


# ---- refusals -----------------------------------------------------------------------------------


class Wavering(nn.Module):
    """Control flow on the data: no graph holds it. It keeps its argument."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        h = self.layer(x)
        return h if h.sum() > 0 else 2 * h


class Forgetful(Wavering):
    """It does not keep its argument."""

    def __init__(self, size: int) -> None:
        super().__init__(size)


def with_layer(layer: type[nn.Module]) -> Case:
    made = lambda: nn.Sequential(nn.Linear(4, 8), layer(8), nn.Linear(8, 3))  # noqa: E731
    return Case(made, rows)


def test_a_layer_of_the_users_that_cannot_be_traced_is_imported(monkeypatch):
    found = written(with_layer(Wavering))
    assert f"from {__name__} import Wavering" in found.text
    made = run_here(found.text, monkeypatch)["make_model"]()
    assert type(made[1]) is Wavering


@pytest.mark.parametrize("where", ["__main__", __name__])
def test_a_layer_that_cannot_be_built_is_refused_in_one_line(where, monkeypatch):
    kind = Forgetful if where == __name__ else Wavering
    monkeypatch.setattr(kind, "__module__", where)
    with pytest.raises(EsperError, match=r"code\(\): .*export\(\"net.pt2\"\)") as caught:
        written(with_layer(kind))
    assert "\n" not in str(caught.value)
