"""Models with more or fewer of their repeated blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.layers.initialisation import build
from esper.kasmina.tracing.depths import Depths, _find_stacks, _Stack
from support import refused

IMAGES = torch.randn(4, 3, 8, 8)
ROWS = torch.randn(4, 6)
TOKENS = torch.randint(0, 11, (4, 5))


class Residual(nn.Module):
    """As in a ResNet."""

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        plain = inputs == width and stride == 1
        self.skip = nn.Identity() if plain else nn.Conv2d(inputs, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)) + self.skip(x))


def stage(inputs: int, width: int, count: int) -> nn.Sequential:
    first = Residual(inputs, width, 1 if inputs == width else 2)
    return nn.Sequential(first, *(Residual(width, width) for _ in range(count - 1)))


def resnet(count: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), stage(4, 4, count), stage(4, 8, count),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


class Block(nn.Module):
    """As in a GPT; `place`: its index, as Hugging Face's have."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place, self.norm, self.layer = place, nn.LayerNorm(8), nn.Linear(8, 8)
        nn.init.normal_(self.layer.weight, std=0.02)

    def forward(self, x: Tensor, places: list[int]) -> Tensor:
        places.append(self.place)
        return x + torch.tanh(self.layer(self.norm(x)))


class GPT(nn.Module):
    """Blocks of a ModuleList, by a number that the model holds."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.n_layer, self.embedding = count, nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(Block(place) for place in range(count))
        self.head = nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        x, self.places = self.embedding(x), list[int]()
        for index in range(self.n_layer):
            x = self.blocks[index](x, self.places)
        return self.head(x)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    return nn.Sequential(nn.Embedding(11, 8), nn.TransformerEncoder(layer, 4), nn.Linear(8, 2))


def mlp(count: int = 2) -> nn.Module:
    inner = [part for _ in range(count) for part in (nn.Linear(7, 7), nn.ReLU())]
    return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), *inner, nn.Linear(7, 3))


def numbers(model: nn.Module) -> list[int]:
    """Blocks of every stack."""
    return [stack.count for stack in _find_stacks(model)]


def test_rows_of_equal_blocks_are_found_the_outermost_with_the_one_before_them():
    assert _find_stacks(resnet(3)) == (_Stack("1", 0, 1, 3), _Stack("2", 1, 1, 2, 1))
    assert _find_stacks(resnet(2)) == (_Stack("1", 0, 1, 2), _Stack("2", 1, 1, 1, 1))
    assert _find_stacks(GPT(4)) == (_Stack("blocks", 0, 1, 4),)
    assert _find_stacks(encoder()) == (_Stack("1.layers", 0, 1, 4),)
    assert _find_stacks(mlp(3)) == (_Stack("", 1, 2, 3),), "an activation and its layer"


def test_what_is_no_row_of_blocks_is_left_alone():
    shared = nn.Linear(6, 6)
    assert _find_stacks(nn.Sequential(shared, shared, shared)) == ()
    tied = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    tied[1].weight = tied[0].weight
    assert _find_stacks(tied) == ()
    assert _find_stacks(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))) == ()
    assert _find_stacks(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.ReLU())) == ()


@pytest.mark.parametrize(
    ("model", "example", "depth", "found"),
    [
        (lambda: resnet(3), IMAGES, 0.5, [2, 1]),
        (lambda: resnet(3), IMAGES, 2.0, [6, 5]),
        (lambda: resnet(2), IMAGES, 0.5, [0, 0]),
        (GPT, TOKENS, 0.5, [2]),
        (GPT, TOKENS, 2.0, [8]),
        (encoder, TOKENS, 1.5, [6]),
        (lambda: mlp(2), ROWS, 2.0, [4]),
        (lambda: mlp(3), ROWS, 0.6, [2]),
    ],
)
def test_a_model_has_a_multiple_of_its_blocks_and_runs(model, example, depth, found):
    made = Depths(model, example).at(depth)
    deep = build(made, 0)
    assert numbers(deep) == [number for number in found if number]
    assert deep(example).shape == model()(example).shape
    assert len({id(p) for p in deep.parameters()}) == len(list(deep.parameters()))


def test_blocks_that_stay_start_as_they_would_and_others_are_drawn_as_the_model_draws_them():
    given, deep = build(GPT, 3), build(Depths(GPT, TOKENS).at(2.0), 3)
    state = deep.state_dict()
    for name, value in given.state_dict().items():
        assert torch.equal(state[name], value)
    added = state["blocks.6.layer.weight"]
    assert not torch.equal(added, state["blocks.2.layer.weight"])
    assert 0.01 < float(added.std()) < 0.03
    deep(TOKENS)
    assert deep.places == list(range(8)), "what counts its place does so"
    assert deep.n_layer == 8


def test_an_instance_keeps_its_weights_and_is_not_changed():
    trained = GPT()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.01)
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    for depth, count in ((0.5, 2), (2.0, 8)):
        deep = Depths(trained, TOKENS).at(depth)
        assert isinstance(deep, nn.Module)
        assert numbers(deep) == [count]
        state = deep.state_dict()
        kept = [name for name in before if name in state]
        assert all(torch.equal(state[name], before[name]) for name in kept)
        assert len(state) > len(kept) or count == 2
    fresh = deep.state_dict()["blocks.5.layer.weight"]
    assert not torch.equal(fresh, before["blocks.1.layer.weight"])
    assert 0.01 < float(fresh.std()) < 0.03
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())


class Fixed(nn.Module):
    """Names its blocks by number."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x))


class Heads(nn.Module):
    """The number of blocks decides the output."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(6, 2) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], 1)


class Choosy(Fixed):
    """Does not train on few samples."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) < 4:
            raise ZeroDivisionError("too few")
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "depth", "says"),
    [
        (Choosy, 2.0, "ZeroDivisionError"),
        (Fixed, 2.0, "no gradient reaches blocks.2.bias"),
        (Fixed, 0.5, "out of range"),
        (Heads, 0.5, "its output becomes (3, 4) instead of (3, 8)"),
        (nn.Sequential(nn.Linear(6, 2)), 2.0, "it repeats no block"),
    ],
)
def test_a_model_that_cannot_have_another_number_says_why(model, depth, says):
    assert says in refused(lambda: Depths(model, ROWS).at(depth))
