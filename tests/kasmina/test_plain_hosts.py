"""Plain models of users' hosts: buffers, tied weights, parts that cannot be traced, odd chains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.layers.layers import Linear
from esper.leyline import BlendStyle
from plain_support import (
    TOLERANCE,
    WIDTH,
    UserCNN,
    UserHost,
    assert_same_output,
    chain,
    classes_of,
    images,
    planted,
    seeds_of_our_own,
)
from support import batch


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    with seeds_of_our_own():
        yield


def test_batch_norm_statistics_come_along_and_are_its_own():
    def host() -> UserCNN:
        body = chain(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        return UserCNN(4, (0,), body=body, head=chain(nn.Flatten(), nn.Linear(256, 5)))

    population = planted(host, ["r0c0"], ("r0c0", "norm", BlendStyle.ADD, 0.5), members=3)
    for seed in range(3):
        population.train_batch(*batch(3, seed))
    plain = assert_same_output(population, 2, images())
    mean = plain.get_buffer("body.1.running_mean")
    assert torch.equal(mean, population.network.host.fixed["body.1.running_mean"][2])
    assert mean.untyped_storage().nbytes() == 4 * mean.element_size(), "not all members' rows"
    kept = population.network.host.fixed["body.1.running_mean"].clone()
    plain.train()(images())
    assert not torch.equal(plain.get_buffer("body.1.running_mean"), kept[2])
    assert torch.equal(population.network.host.fixed["body.1.running_mean"], kept)


class Weighted(nn.Module):
    """A linear map times a fixed vector."""

    def __init__(self, vector: Tensor) -> None:
        super().__init__()
        self.linear = Linear(WIDTH, WIDTH)
        self.register_buffer("vector", vector)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * self.vector
        return out


def test_buffer_of_two_parts_stays_one():
    def host() -> UserHost:
        vector = torch.linspace(0.5, 1.5, WIDTH)
        return UserHost(WIDTH, (0,), one=Weighted(vector), two=Weighted(vector))

    population = planted(host, ["r0c0"], ("r0c0", "t_lora1", BlendStyle.ADD, 0.5), members=2)
    plain = assert_same_output(population, 1, torch.randn(4, WIDTH))
    assert [name for name, _ in plain.named_buffers()] == ["one.vector"]


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        out: Tensor = self.tokens(ids) + 0.1 * places[:, None]
        return out


class Attend(nn.Module):
    """Splits in a loop, builds its mask from the length: what attention code does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        q, k, v = (part.transpose(-3, -2) for part in (q, k, v))
        later = torch.full((x.shape[-2], x.shape[-2]), float("-inf"), device=x.device).triu(1)
        mixed = (q @ k.transpose(-2, -1) + later).softmax(dim=-1) @ v
        return x + mixed.transpose(-3, -2).flatten(-2)


class TiedHead(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 7, bias=False)
        self.out.weight = table.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x)
        return out


class UserGPT(UserHost):
    topology = "transformer"


def gpt() -> UserGPT:
    embed = Embed()
    return UserGPT(WIDTH, (1,), embed=embed, attend=Attend(), head=TiedHead(embed.tokens))


def test_tied_weight_stays_tied():
    population = planted(gpt, ["r0c0"], ("r0c0", "lora", BlendStyle.GATE, 0.5))
    ids = torch.randint(0, 7, (3, 5))
    plain = assert_same_output(population, 0, ids)
    assert plain.get_parameter("head.out.weight") is plain.get_parameter("embed.tokens.weight")
    assert classes_of(plain) == {"torch"}
    plain(ids).square().mean().backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert plain.get_parameter("head.out.weight") is plain.get_parameter("embed.tokens.weight")


class Undecided(nn.Module):
    """Python that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.linear = Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x) * self.gain
        return -h if float(x.detach().sum()) > 1e9 else h + self.gain


class Gain(nn.Module):
    """Uses a parameter of another part."""

    def __init__(self, gain: nn.Parameter) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


def undecided_host() -> UserHost:
    undecided = Undecided()
    body = chain(nn.Linear(6, WIDTH), undecided, nn.GELU())
    return UserHost(WIDTH, (0, 1), body=body, more=Gain(undecided.gain), head=Linear(WIDTH, 3))


def test_part_that_cannot_be_traced_stays_whole_and_is_named(caplog):
    caplog.set_level("INFO")
    seed = ("r0c1", "t_lora4", BlendStyle.ADD, 0.5)
    model = planted(undecided_host, ["r0c0", "r0c1"], seed).member(0)
    x = torch.randn(4, 6)
    plain = model.to_plain()
    assert (plain(x) - model.eval()(x)).abs().max() <= TOLERANCE
    assert plain.meta["untraced"] == ("body.1",)
    assert "body.1" in caplog.text
    whole = plain.get_submodule("body.1")
    assert type(whole) is Undecided
    assert type(whole.linear) is nn.Linear, "inside it, our layers are torch's too"
    assert all(p.requires_grad for p in plain.parameters())
    plain(x).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in plain.parameters())


def test_segments_made_on_the_fly_or_used_twice_are_followed():
    class Loose(UserHost):
        def segments(self) -> tuple[nn.Module, ...]:
            first, again, head = super().segments()
            return chain(first, nn.GELU()), again, again, head

    def host() -> UserHost:
        parts = {"first": nn.Linear(6, WIDTH), "again": Linear(WIDTH, WIDTH), "head": Linear(8, 3)}
        return Loose(WIDTH, (1,), **parts)

    population = planted(host, ["r0c0"], ("r0c0", "t_lora1", BlendStyle.ADD, 0.5))
    plain = assert_same_output(population, 0, torch.randn(4, 6))
    names = [name for name, _ in plain.named_parameters()]
    assert names[:3] == ["segment0.0.weight", "segment0.0.bias", "again.weight"]


def test_a_hosts_own_name_for_its_seeds_is_respected():
    def host() -> UserHost:
        return UserHost(WIDTH, (0,), seeds=nn.Linear(6, WIDTH), head=Linear(WIDTH, 3))

    population = planted(host, ["r0c0"], ("r0c0", "t_lora1", BlendStyle.ADD, 0.5))
    plain = assert_same_output(population, 0, torch.randn(4, 6))
    assert "seeds.weight" in plain.state_dict()
    assert "seeds_.r0c0.delta.0.weight" in plain.state_dict()
