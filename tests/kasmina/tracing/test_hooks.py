"""Models that torch.fx cannot trace run by hooks as they run by themselves, and grow."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina.export.export import export_pt2
from esper.kasmina.tracing import (
    HostTrace,
    finished_model,
    planted_model,
    trace_model,
)
from esper.leyline import EsperError
from hooked_models import CLASSES, HOOKED, BranchingCNN, Encoder, LoopingMLP

NAMES = tuple(HOOKED)
SAMPLES = 4


@cache
def traced(name: str) -> tuple[nn.Module, Any, HostTrace]:
    """An instance of a model, a batch for it, and its host; made once."""
    case = HOOKED[name]
    with forked_rng(1):
        model, example = case.build(), case.example(SAMPLES)
    return model, example, trace_model(model, example)


def call(model: nn.Module, raw: Any) -> Any:
    return model(raw) if isinstance(raw, Tensor) else model(**raw)


def picked(name: str, model: nn.Module, raw: Any) -> Tensor:
    return HOOKED[name].pick(call(model, raw))


def seeds_for(host: HostTrace) -> dict[str, str]:
    fits = host.fitting.items()
    return {slot: kinds[n % len(kinds)] for n, (slot, kinds) in enumerate(fits)}


def grown(name: str) -> nn.Module:
    """A seed in every slot, as its user gets the network."""
    host = traced(name)[2]
    network = planted_model(host, seeds_for(host), 3)
    with forked_rng(5), torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape))
    return finished_model(network)


# ---- the host is the model --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_places_are_found_by_repetition(name: str):
    model, _, host = traced(name)
    assert tuple(host.places.values()) == HOOKED[name].places
    assert host.topology == HOOKED[name].topology
    assert "control flow on a value of the data" in host.hooked
    assert not host.untraced
    fresh = planted_model(host, {}, 1)
    assert type(fresh).__name__ == type(model).__name__
    assert set(fresh.state_dict()) == set(model.state_dict())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_host_computes_what_the_model_computes(name: str, training: bool):
    """Outputs, gradients and buffers, in both modes, with the same dropout: bit for bit."""
    model, example, host = traced(name)
    own, hooked = copy.deepcopy(model).train(training), planted_model(host, {}, 1).train(training)
    with forked_rng(3):
        expected = picked(name, own, example)
    with forked_rng(3):
        found = call(hooked, example)
    assert torch.equal(found, expected)
    for out in (expected, found):
        out.square().sum().backward()
    for (_, a), (_, b) in zip(own.named_parameters(), hooked.named_parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    assert all(torch.equal(v, hooked.state_dict()[n]) for n, v in own.state_dict().items())


# ---- what leaves ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_finished_model_is_of_the_users_class_and_survives_copies(name: str):
    model, example, _ = traced(name)
    plain = grown(name)
    assert type(plain) is type(model)
    assert not plain.training
    kept = {n for n, _ in plain.named_parameters() if not n.startswith("seeds.")}
    assert kept == {n for n, _ in model.named_parameters()}
    assert "esper" not in {type(part).__module__.split(".")[0] for part in plain.modules()}
    with torch.no_grad():
        expected = call(plain, example)
        assert expected.shape == (SAMPLES, CLASSES)
        for other in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
            assert torch.equal(call(other, example), expected)
    assert b"esper" not in pickle.dumps(plain)


def test_a_finished_model_trains_further():
    example = traced("cnn")[1]
    plain = grown("cnn").train()
    plain(example).square().sum().backward()
    seeds = [p for n, p in plain.named_parameters() if n.startswith("seeds.")]
    assert seeds
    assert all(p.grad is not None for p in plain.parameters())


class Result:
    """Neither a dict nor a dataclass."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Wraps(BranchingCNN):
    def forward(self, x: Tensor) -> Result:  # type: ignore[override]
        return Result(super().forward(x))


def test_output_names_an_attribute_or_a_key():
    images = torch.randn(SAMPLES, 3, 8, 8)
    host = trace_model(Wraps, images, output="logits")
    network = planted_model(host, {}, 3).eval()
    plain = finished_model(network)
    assert torch.equal(plain(images), network(images))
    with pytest.raises(EsperError, match="output="):
        trace_model(Wraps, images)
    with pytest.raises(EsperError, match="'features'"):
        trace_model(LoopingMLP, HOOKED["mlp"].example(4), output="loss")


class Moody(nn.Module):
    """Cannot be traced by torch.fx, but exported by torch.export: keywords, control by the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.head = nn.Linear(6, 3)

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        x = batch["x"]
        for block in self.blocks:
            x = torch.tanh(block(x))
            if self.training:
                x = x + 0.1
        return {"features": x, "logits": self.head(x)}


def test_what_torch_can_export_is_exported(tmp_path: Path):
    example = {"x": torch.randn(SAMPLES, 6)}
    host = trace_model(Moody, example, output="logits")
    assert "self.training" in host.hooked
    plain = finished_model(planted_model(host, {host.slots[0]: "mlp"}, 3))
    export_pt2(plain, tmp_path / "net.pt2", example)
    loaded = torch.export.load(tmp_path / "net.pt2").module()
    few = {"x": torch.randn(7, 6)}
    torch.testing.assert_close(loaded(**few), plain(**few), rtol=1e-5, atol=1e-5)


def test_what_torch_cannot_export_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    example = traced("cnn")[1]
    with pytest.raises(EsperError, match="cannot take this model") as info:
        export_pt2(grown("cnn"), tmp_path / "net.pt2", example)
    assert "\n" not in str(info.value)
    assert capfd.readouterr() == ("", "")


def test_a_place_that_control_flow_passes_by():
    """The seed is part of the module: where that is not run, the seed is not either."""

    class Skips(BranchingCNN):
        def forward(self, x: Tensor) -> Tensor:
            x = self.stage1(self.stem(x))
            x = self.stage2(x) if x.mean() < 1.0 else x[:, :1].expand(-1, 8, -1, -1)
            return self.head(x.mean((2, 3)))

    images = torch.randn(SAMPLES, 3, 8, 8)
    host = trace_model(Skips, images)
    network = planted_model(host, {host.slots[1]: "norm"}, 3)
    for scale in (1.0, 1e4):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(1.0 if scale == 1 else 100.0)
        network.zero_grad()
        network(images * scale).sum().backward()
        reached = [p.grad is not None for n, p in network.named_parameters() if "seeds" in n]
        assert reached
        assert all(reached) == (scale == 1.0)


# ---- mistakes ---------------------------------------------------------------------------------


class Odd(nn.Module):
    """Blocks that are called twice, never, for nothing, or return no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(6, 6), nn.Linear(6, 6)
        self.never, self.lost = nn.Linear(6, 6), nn.Linear(6, 6)
        self.named, self.head = Named(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(self.first(x)))
        self.lost(x)
        if x.sum() > 1e9:
            x = self.never(x)
        return self.head(self.named(x)["x"])


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": self.inner(x)}


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        (["never"], ("'never'", "not called on the example", "first")),
        (["twice"], ("'twice'", "runs 2 times")),
        (["named"], ("'named'", "returns a dict", "named.inner")),
        (["lost"], ("'lost'", "the output does not depend on it")),
        (["head"], ("'head'", "is the output of the model")),
        (["frist"], ("'frist'", "no module of that name", "first")),
        (["first", "first"], ("two of them name one place",)),
    ],
)
def test_slots_that_cannot_be(slots: list[str], words: tuple[str, ...]):
    with pytest.raises(EsperError) as info:
        trace_model(Odd, torch.randn(4, 6), slots=slots)
    line = str(info.value)
    assert "\n" not in line
    assert all(word in line for word in words), line


def test_named_slots_and_a_number_of_them():
    images, vectors = torch.randn(4, 3, 8, 8), torch.randn(4, 6)
    host = trace_model(BranchingCNN, images, slots=["stage1.1", "stem"])
    assert host.places == {"r0c0": "after stem", "r0c1": "after stage1.1"}
    assert list(trace_model(BranchingCNN, images, slots=1).places.values()) == ["after stage2"]
    found = trace_model(Odd, vectors).places.values()
    assert set(found) <= {"after first", "after named.inner"}
    with pytest.raises(EsperError, match="different layouts"):
        trace_model(Flattens, images, slots=["conv", "linear"])


class Flattens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(144, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.head(self.linear(x.flatten(1) if x.mean() > 0 else -x.flatten(1)))


class Wrapped(nn.Module):
    """Traceable itself; what is inside is kept whole."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Encoder(2), nn.Linear(CLASSES, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.body(input_ids, attention_mask).logits)


def test_slots_may_be_named_inside_a_module_that_is_kept_whole():
    example = HOOKED["encoder"].example(4)
    host = trace_model(Wrapped, example, slots=["body.layers.0"])
    assert list(host.places.values()) == ["after body.layers.0"]
    assert "body is kept whole" in host.hooked


def test_a_model_that_is_mostly_one_untraceable_module_has_slots_inside_it():
    host = trace_model(Wrapped, HOOKED["encoder"].example(4))
    assert list(host.places.values()) == ["after body.layers.0", "after body.layers.1"]
    assert "body is kept whole" in host.hooked


class HeldInAList(nn.Module):
    """A parameter that its forward finds in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self.weights = [self.first.weight]

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x) if x.sum() > 0 else self.first(-x))
        return self.head(x @ self.weights[0])


class NothingToHook(HeldInAList):
    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x if x.sum() > 0 else -x, self.first.weight)
        return self.head(F.relu(x))


def test_parameters_that_are_held_in_a_list_train_too():
    x = torch.randn(4, 6)
    network = planted_model(trace_model(HeldInAList, x), {"r0c0": "mlp"}, 1)
    network(x).square().sum().backward()
    assert network.first.weight is network.weights[0]
    assert all(p.grad is not None for p in network.parameters())


def test_what_has_no_place_for_a_hook_either_has_no_slots():
    host = trace_model(NothingToHook, torch.randn(4, 6))
    assert not host.slots
    assert "control flow on a value" in host.hooked


def test_the_users_model_stays_as_it_is():
    model = LoopingMLP().eval()
    state = copy.deepcopy(model.state_dict())
    example = HOOKED["mlp"].example(4)
    generator = torch.get_rng_state()
    trace_model(model, example)
    assert torch.equal(torch.get_rng_state(), generator)
    assert not model.training
    assert all(torch.equal(v, state[n]) for n, v in model.state_dict().items())
    assert not any(part._forward_hooks for part in model.modules())
