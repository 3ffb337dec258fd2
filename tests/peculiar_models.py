"""More models as users write them: each does one thing that a trace could get wrong."""

from __future__ import annotations

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 5


class FrozenTrunk(nn.Module):
    """A pretrained trunk that stays as it is, and a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, CLASSES)
        for parameter in self.trunk.parameters():
            parameter.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x).mean((2, 3)))


class TiedLinear(nn.Module):
    """Two layers with one weight, and a weight used as a function's argument."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(6, 12)
        self.a = nn.Linear(12, 12)
        self.b = nn.Linear(12, 12)
        self.b.weight = self.a.weight
        self.out = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inp(x))
        x = torch.tanh(self.a(x))
        x = torch.tanh(self.b(x))
        x = torch.tanh(F.linear(x, self.a.weight.t()))
        return self.out(x)


class DictOutput(nn.Module):
    """Two heads; what to train on is named."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
        self.aux = nn.Linear(12, 2)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x)
        return {"aux": self.aux(h), "logits": self.head(h)}


class DictInput(nn.Module):
    """A category, numbers and a mask, by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.numbers = nn.Linear(3, 8)
        self.body = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
        self.head = nn.Linear(12, CLASSES)

    def forward(self, category: Tensor, numbers: Tensor, mask: Tensor) -> Tensor:
        h = torch.cat([self.embed(category), self.numbers(numbers * mask)], dim=1)
        return self.head(self.body(h))


class TwoInputs(nn.Module):
    """Images and numbers, by position."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.numbers = nn.Linear(3, 8)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.block2 = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, image: Tensor, numbers: Tensor) -> Tensor:
        h = F.relu(self.conv(image) + self.numbers(numbers)[:, :, None, None])
        return self.head(self.block2(self.block(h)).mean((2, 3)))


class UnusedParameters(nn.Module):
    """A head of pretraining that `forward` does not run, and a statistic nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
        self.old_head = nn.Linear(12, 100)
        self.head = nn.Linear(12, CLASSES)
        self.register_buffer("mean", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class FunctionalDropout(nn.Module):
    """The classic of tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.fc1 = nn.Linear(32, 12)
        self.fc2 = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(F.dropout2d(self.conv2(x), training=self.training), 2))
        x = x.view(-1, 32)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, training=self.training)
        return self.fc2(x)


class PythonRandom(nn.Module):
    """A layer that is skipped at random, by Python's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and random.random() < 0.5:
            return x
        return x + torch.relu(self.inner(x))


def skipping_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 12), nn.ReLU(), PythonRandom(), PythonRandom(), nn.Linear(12, CLASSES)
    )


class EncoderModel(nn.Module):
    """torch's own encoder, which fx cannot trace by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class Rotary(nn.Module):
    """Sines and cosines, computed once and read in every block."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("inverse", 1 / 100 ** (torch.arange(0, size, 2) / size), False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        t = torch.arange(x.shape[1], device=x.device).float()
        angle = torch.cat([torch.outer(t, self.inverse)] * 2, dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.input_norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.post_norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.input_norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, *rope), rotate(k, *rope)
        score = (q @ k.transpose(-1, -2)) / (c // self.heads) ** 0.5 + mask[None, None]
        x = x + self.o_proj((score.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        h = self.post_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 16)
        self.rope = Rotary(4)
        self.layers = nn.ModuleList(LlamaBlock(16, 4) for _ in range(2))
        self.norm = nn.RMSNorm(16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        t = ids.shape[1]
        mask = torch.full((t, t), float("-inf"), device=x.device).triu_(1)
        rope = self.rope(x)
        for layer in self.layers:
            x = layer(x, mask, rope)
        return self.norm(x)


class Llama(nn.Module):
    """A backbone in a wrapper: mask and rotary tables cross every block."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Backbone()
        self.lm_head = nn.Linear(16, 13, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.model(ids))


class LSTMClassifier(nn.Module):
    """torch has no batching rule for LSTMs: its population runs member by member."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.lstm(self.embed(ids))
        return self.head(out[:, -1])


class RunningScale(nn.Module):
    """Updates a buffer in place, in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale.mul_(0.9).add_(0.1 * x.detach().abs().mean())
        return x / self.scale


class Counter(nn.Module):
    """Writes what nobody reads, without asking for the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x


def buffered_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 12), nn.ReLU(), RunningScale(), Counter(), nn.Linear(12, CLASSES)
    )


class Careful(nn.Module):
    """Checks its input, and computes sizes in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)
        self.offset = torch.full((8,), 0.1)  # neither parameter nor buffer

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or x.dim() != 2:
            raise ValueError("give a matrix")
        if x.dtype != torch.float32:
            x = x.float()
        side = int(math.sqrt(6 * x.shape[1]))
        x = F.relu(self.a(x.reshape(len(x), side))) + self.offset
        x = F.relu(self.b(x)) * torch.tensor([0.5])
        return self.head(F.normalize(x, dim=1))


class ChannelsLast(nn.Module):
    """ConvNeXt's block: layer norm and linear layers on [B, H, W, C]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, 2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.LayerNorm(8)
        self.wide = nn.Linear(8, 16)
        self.narrow = nn.Linear(16, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.narrow(F.gelu(self.wide(self.norm(y))))
        x = x + y.permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))


class InPlaceEverywhere(nn.Module):
    """Writes over its input, and over results that are read again."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 12)
        self.b = nn.Linear(12, 12)
        self.c = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(0.5)
        h = self.a(x)
        h.sigmoid_()
        h = F.gelu(self.b(h))
        h.add_(1.0)
        return self.c(h)
