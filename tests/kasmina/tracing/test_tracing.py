"""What `trace_model` promises: places, names, modes, an untouched model, errors in one line."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.tracing import finished_model, planted_model, trace_model
from esper.leyline import EsperError
from peculiar_models import (
    ChannelsLast,
    DictInput,
    DictOutput,
    FrozenTrunk,
    FunctionalDropout,
    Llama,
    UnusedParameters,
)
from user_models import CASES, GPT, Conv1dNet, MobileNet, ResNet, sequential_cnn

IMAGES = torch.randn(4, 3, 8, 8)
VECTORS = torch.randn(4, 6)


def refusal(model: object, example: object, **options: object) -> str:
    with pytest.raises(EsperError) as info:
        trace_model(model, example, **options)  # type: ignore[arg-type]
    line = str(info.value)
    assert "\n" not in line
    return line


# ---- places ----------------------------------------------------------------------------------


def test_slots_are_at_ends_of_blocks_and_stages():
    host = trace_model(ResNet(blocks=3), IMAGES)
    ends = set(host.places.values())
    assert len(host.slots) == 8
    assert {"after layer1", "after layer2", "after layer3"} <= ends
    assert not any(".conv" in place or ".bn" in place for place in ends)


def test_number_of_slots_spreads_over_depth():
    host = trace_model(ResNet(blocks=3), IMAGES, slots=3)
    assert list(host.places.values()) == ["after layer1", "after layer2", "after layer3"]
    assert trace_model(sequential_cnn(), IMAGES, slots=1).slots == ("r0c0",)


def test_named_slots():
    host = trace_model(ResNet(), IMAGES, slots=["layer2", "layer1.0"])
    assert host.places == {"r0c0": "after layer1.0", "r0c1": "after layer2"}
    by_label = trace_model(ResNet(), IMAGES, slots=["after relu behind bn1"])
    assert by_label.places == {"r0c0": "after relu behind bn1"}


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        (["layer9"], ("'layer9'", "no module of that name", "layer")),
        ([], ("slots=[]",)),
        (-1, ("slots=-1",)),
        ("layer1", ("slots='layer1'", "list")),
    ],
)
def test_slots_that_cannot_be(slots: object, words: tuple[str, ...]):
    line = refusal(ResNet(), IMAGES, slots=slots)
    assert all(word in line for word in words), line


def test_slots_only_where_one_tensor_passes():
    for slots, words in [
        (["layer1.0.conv1"], ("'layer1.0.conv1'", "more than one tensor", "layer1.0")),
        (["layer1", "fc"], ("'fc'",)),
        (["layer1", "layer1.2"], ("one place",)),
    ]:
        line = refusal(ResNet(), IMAGES, slots=slots)
        assert all(word in line for word in words), line
    host = trace_model(ResNet(), IMAGES, slots=["layer1.0.relu"])  # runs twice, at the end as well
    assert host.places == {"r0c0": "after layer1.0"}


def test_slots_of_two_layouts_are_refused():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 2)
    )
    line = refusal(model, IMAGES, slots=["1", "4"])
    assert "'1' is cnn" in line
    assert "'4' is mlp" in line
    assert trace_model(model, IMAGES).topology == "cnn"  # one place each: the trunk


def test_layouts_of_three_and_four_axes():
    assert trace_model(Conv1dNet(), torch.randn(4, 2, 16)).topology == "signal"
    pooled = nn.Sequential(
        nn.Conv1d(2, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    )
    assert trace_model(pooled, torch.randn(4, 2, 16)).topology == "signal"
    host = trace_model(ChannelsLast(), IMAGES)
    assert host.topology == "cnn"
    linear = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    assert trace_model(linear, torch.randn(4, 8, 8, 3)).topology == "cnn"
    assert not trace_model(linear, torch.randn(4, 2, 8, 8, 3)).slots


def test_time_first_activations_are_no_places():
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.b(F.relu(self.a(x.transpose(0, 1)))))
            return self.head(x.mean(0))

    host = trace_model(TimeFirst(), torch.randn(4, 5, 6))
    assert host.topology == "mlp"  # behind the mean over time only


class Lengths(nn.Module):
    """Reads in the end the size of a tensor that nothing else needs by then."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([x, x[: self.extra]] if self.extra else [x, x])
        h = F.relu(self.b(F.relu(self.a(x))))
        return self.c(h + torch.ones(both.size(0), 8)[: len(h)])


@pytest.mark.parametrize("extra", [0, 1])
def test_a_place_may_be_between_a_tensor_and_what_reads_its_size(extra: int):
    host = trace_model(model := Lengths(extra), VECTORS)
    assert list(host.places.values()) == ["after relu behind a", "after relu behind b"]
    x = torch.randn(7, 6)
    assert torch.equal(planted_model(host, {}, 1)(x), model(x))


# ---- the user's model ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["functional_dropout", "in_place", "buffers"])
def test_model_example_and_generators_stay_as_they_are(name: str):
    case = CASES[name]
    model, example = case.build(), case.example(4)
    state = copy.deepcopy(model.state_dict())
    modules, kept = dict(model.named_modules()), example.clone()
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    model.eval()
    trace_model(model, example)
    assert not model.training
    assert dict(model.named_modules()) == modules
    assert torch.equal(example, kept)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert np.array_equal(np.random.get_state()[1], generators[2])
    assert "training" not in vars(nn.Module)


def test_instance_gives_its_weights_and_factory_new_ones():
    model = ResNet(blocks=1)
    for given, equal in ((model, True), (lambda: ResNet(blocks=1), False), (ResNet, False)):
        host = trace_model(given, IMAGES)
        first, second = (planted_model(host, {}, key).fc.weight for key in (0, 1))
        assert torch.equal(first, second) == equal
        assert torch.equal(first, model.fc.weight) == equal


def test_frozen_parameters_stay():
    host = trace_model(FrozenTrunk(), IMAGES)
    network = planted_model(host, {host.slots[0]: "conv_light"}, 3)
    for plain in (network, finished_model(network)):
        assert not plain.get_parameter("trunk.0.weight").requires_grad


def test_unused_parameters_are_kept():
    model = UnusedParameters()
    host = trace_model(model, VECTORS)
    network = planted_model(host, {}, 3)
    network(VECTORS).sum().backward()
    assert network.get_parameter("old_head.weight").grad is None
    plain = finished_model(planted_model(host, {}, 3))
    assert torch.equal(plain.get_parameter("old_head.weight"), model.old_head.weight)
    assert plain.get_parameter("old_head.weight").requires_grad
    assert set(model.state_dict()) <= set(plain.state_dict())


def test_frozen_norms_of_a_train_method_stay_in_eval_mode():
    class FrozenNorms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()
            )
            self.head = nn.Linear(4, 3)

        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            self.net[1].eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.net(x).mean((2, 3)))

    host = trace_model(FrozenNorms(), IMAGES)
    network = planted_model(host, {}, 1).train()
    network(IMAGES)
    assert torch.equal(network.get_submodule("net.1").running_mean, torch.zeros(4))


@pytest.mark.parametrize("name", ["vit", "gpt", "careful", "unused"])
def test_network_moves_as_one(name: str):
    """Tensors that graphs read directly follow the network to another device or type."""
    case = CASES[name]
    example = case.example(4)
    host = planted_model(trace_model(case.build(), example), {}, 1).eval()
    before = host(example)
    host.double()
    after = host(example.double() if example.is_floating_point() else example)
    if name != "careful":  # converts its input to float32 itself
        assert after.dtype == torch.float64
    torch.testing.assert_close(after.float(), before)
    torch.testing.assert_close(copy.deepcopy(host.float())(example), before)


# ---- modes -----------------------------------------------------------------------------------


def test_functional_dropout_works_in_both_modes():
    host = planted_model(trace_model(FunctionalDropout(), IMAGES), {}, 1)
    assert torch.equal(host.eval()(IMAGES), host.eval()(IMAGES))
    assert not torch.equal(host.train()(IMAGES), host.train()(IMAGES))


def test_finished_model_keeps_functional_dropout():
    host = trace_model(FunctionalDropout(), IMAGES)
    plain = finished_model(planted_model(host, {}, 3)).train()
    assert not torch.equal(plain(IMAGES), plain(IMAGES))


def test_stochastic_depth_works_in_both_modes():
    host = trace_model(MobileNet(), IMAGES)
    assert all("training" in reason for reason in host.untraced.values())
    network = planted_model(host, {}, 1).eval()
    assert torch.equal(network(IMAGES), network(IMAGES))


def test_another_length_than_the_example():
    """Sizes that are not the batch's are read from the activation, not frozen."""
    for model in (GPT(length=16), Llama()):
        host = trace_model(model, torch.randint(0, 13, (4, 8)))
        short = torch.randint(0, 13, (3, 5))
        expected = model.eval()(short)
        expected = expected[0] if isinstance(expected, tuple) else expected
        network = planted_model(host, {}, 1).eval()
        torch.testing.assert_close(network(short), expected)


# ---- inputs and outputs ----------------------------------------------------------------------


def test_batches_of_other_inputs_are_refused():
    host = trace_model(DictInput(), CASES["dict_input"].example(4))
    raw = CASES["dict_input"].example(5)
    with pytest.raises(EsperError, match="'category'"):
        host.inputs.values({"numbers": raw["numbers"], "mask": raw["mask"]})
    with pytest.raises(EsperError, match="'numbers'"):
        host.inputs.values(raw | {"numbers": torch.randn(5, 4)})


def test_one_dict_as_the_only_argument():
    class Batch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = DictInput()

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.inner(batch["category"], batch["numbers"], batch["mask"])

    example = CASES["dict_input"].example(4)
    model = Batch()
    host = trace_model(model, example)
    plain = finished_model(planted_model(host, {}, 3))
    torch.testing.assert_close(plain(example), model.eval()(example))


def test_output_is_picked():
    sizes = {None: 2, "aux": 2, "logits": 5}
    for output, size in sizes.items():
        host = trace_model(DictOutput(), VECTORS, output=output)
        assert planted_model(host, {}, 1)(VECTORS).shape == (4, size)
    assert "'loss'" in refusal(DictOutput(), VECTORS, output="loss")
    assert trace_model(GPT(), torch.randint(0, 13, (4, 8)), output=0).topology == "transformer"


# ---- what a user sees ------------------------------------------------------------------------


def test_a_network_is_named_after_the_class_of_the_user():
    host = trace_model(ResNet(blocks=1), IMAGES)
    assert host.name == "ResNet"
    assert type(planted_model(host, {}, 1)).__name__ == "PlainResNet"


# ---- what cannot be --------------------------------------------------------------------------


class ModeAtRoot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        if self.training:
            x = x + 1
        return self.b(x)


class DataAtRoot(ModeAtRoot):
    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.b(x) if x.sum() > 0 else self.b(-x)


class RandomAtRoot(ModeAtRoot):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) * random.random())


class ViewAtRoot(ModeAtRoot):
    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x) * 1
        x[:, :1].zero_()
        return self.b(x)


class Alone(ModeAtRoot):
    def forward(self, x: Tensor) -> Tensor:
        return self.a(x)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (ModeAtRoot, "control flow on self.training"),
        (DataAtRoot, "test_tracing.py"),
        (RandomAtRoot, "random numbers"),
        (ViewAtRoot, "in place"),
    ],
)
def test_models_that_cannot_be_traced_run_by_hooks(model: type[nn.Module], word: str):
    host = trace_model(model, VECTORS)
    assert word in host.hooked
    assert host.places == {"r0c0": "after a"}


class WithoutModules(ModeAtRoot):
    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.a.weight)
        return self.b(x + 1) if self.training else self.b(x)


@pytest.mark.parametrize("model", [WithoutModules, Alone])
def test_models_without_a_place_for_a_seed_have_no_slots(model: type[nn.Module]):
    host = trace_model(model, VECTORS)
    assert (host.slots, host.blueprints) == ((), ())
    assert bool(host.hooked) == (model is WithoutModules)


class FailsInTraining(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("no labels given")
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Linear(5, 3), ("fails on an example (2, 6)",)),
        (lambda: FailsInTraining(6, 3), ("in training mode", "no labels given")),
        (lambda: "no model", ("returns str",)),
    ],
)
def test_models_that_cannot_be_grown(model: object, words: tuple[str, ...]):
    line = refusal(model, VECTORS)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("example", "word"),
    [
        ("text", "give a tensor"),
        ((VECTORS, 3), "int"),
        ((VECTORS, VECTORS[:2]), "2 samples"),
        ({}, "without tensors"),
    ],
)
def test_examples_that_cannot_be(example: object, word: str):
    assert word in refusal(ModeAtRoot(), example)
