"""Models as users write them: plain PyTorch, nothing of Esper, small enough for milliseconds."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 5


def sequential_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12 * 4, CLASSES),
    )


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or inputs != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, blocks: int = 3, width: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = self._stage(width, width, blocks, 1)
        self.layer2 = self._stage(width, 2 * width, blocks, 2)
        self.layer3 = self._stage(2 * width, 4 * width, blocks, 2)
        self.fc = nn.Linear(4 * width, CLASSES)

    @staticmethod
    def _stage(inputs: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
        first = BasicBlock(inputs, channels, stride)
        return nn.Sequential(first, *(BasicBlock(channels, channels) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = F.adaptive_avg_pool2d(x, 1)
        x = x.view(x.size(0), -1)
        return self.fc(x)


class DropPath(nn.Module):
    """Stochastic depth, written as it usually is."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask / keep


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, 4, 1)
        self.fc2 = nn.Conv2d(4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.fc2(F.silu(self.fc1(self.pool(x)))))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        hidden = 2 * inputs
        self.use_skip = stride == 1 and inputs == outputs
        self.expand = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
        )
        self.se = SqueezeExcite(hidden)
        self.project = nn.Sequential(
            nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        )
        self.drop_path = DropPath(0.2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.se(self.depthwise(self.expand(x))))
        return x + self.drop_path(out) if self.use_skip else out


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.Hardswish())
        self.features = nn.Sequential(
            InvertedResidual(8, 8, 1), InvertedResidual(8, 12, 2), InvertedResidual(12, 12, 1)
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(12, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(self.stem(x))
        return self.classifier(x.mean([2, 3]))


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1)

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.conv(F.relu(self.norm(torch.cat(features, 1))))


class DenseBlock(nn.Module):
    def __init__(self, layers: int, inputs: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DenseLayer(inputs + index * growth, growth) for index in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(
                conv0=nn.Conv2d(3, 8, 3, padding=1),
                block1=DenseBlock(2, 8, 4),
                transition1=nn.Sequential(
                    nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.AvgPool2d(2)
                ),
                block2=DenseBlock(2, 8, 4),
                norm=nn.BatchNorm2d(16),
            )
        )
        self.classifier = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.features(x), inplace=True)
        out = F.adaptive_avg_pool2d(out, (1, 1))
        return self.classifier(torch.flatten(out, 1))


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class ViT(nn.Module):
    def __init__(self, size: int = 8, patch: int = 4, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, patch, patch)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList(EncoderBlock(width, 4) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        cls = self.cls_token.expand(x.shape[0], -1, -1)
        x = torch.cat([cls, x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.heads, self.width, self.dropout = heads, width, 0.1
        self.register_buffer("bias", torch.tril(torch.ones(length, length)).bool())

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.width, dim=2)
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in (q, k, v))
        y = F.scaled_dot_product_attention(
            q, k, v, self.bias[:t, :t], self.dropout if self.training else 0
        )
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, length)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab: int = 13, length: int = 8, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.length = length
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(GPTBlock(width, 4, length) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        _, t = idx.size()
        assert t <= self.length, f"sequence of {t}, at most {self.length}"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


class Conv1dNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv1d(2, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU())
        self.block2 = nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU())
        self.pool = nn.MaxPool1d(2)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.block1(x))
        x = self.pool(self.block2(x))
        return self.fc(x.mean(dim=-1))


class TabularMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 16), nn.Linear(16, 16)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(16), nn.BatchNorm1d(16)])
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.dropout(torch.relu(norm(layer(x))))
        return self.out(x)


# ---- peculiarities ---------------------------------------------------------------------------


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


# ---- all of them -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model, and a batch of inputs and labels for it."""

    build: Callable[[], nn.Module]
    example: Callable[[int], Any]
    topology: str
    output: str | int | None = None
    targets: tuple[int, ...] = ()
    classes: int = CLASSES
    executor: str = "vmap"

    def labels(self, samples: int) -> Tensor:
        return torch.randint(0, self.classes, (samples, *self.targets))


def _images(samples: int) -> Tensor:
    return torch.randn(samples, 3, 8, 8)


def _vectors(samples: int) -> Tensor:
    return torch.randn(samples, 6)


CASES: dict[str, Case] = {
    "sequential": Case(sequential_cnn, _images, "cnn"),
    "resnet": Case(lambda: ResNet(blocks=2), _images, "cnn"),
    "mobilenet": Case(MobileNet, _images, "cnn"),
    "densenet": Case(DenseNet, _images, "cnn"),
    "vit": Case(ViT, _images, "transformer"),
    "gpt": Case(
        GPT, lambda n: torch.randint(0, 13, (n, 8)), "transformer", targets=(8,), classes=13
    ),
    "conv1d": Case(Conv1dNet, lambda n: torch.randn(n, 2, 16), "signal"),
    "tabular": Case(TabularMLP, _vectors, "mlp"),
    "frozen": Case(FrozenTrunk, _images, "cnn"),
    "tied": Case(TiedLinear, _vectors, "mlp"),
    "dict_output": Case(DictOutput, _vectors, "mlp", output="logits"),
    "dict_input": Case(
        DictInput,
        lambda n: {
            "category": torch.randint(0, 7, (n,)),
            "numbers": torch.randn(n, 3),
            "mask": torch.rand(n, 3) > 0.5,
        },
        "mlp",
    ),
    "two_inputs": Case(TwoInputs, lambda n: (_images(n), torch.randn(n, 3)), "cnn"),
    "unused": Case(UnusedParameters, _vectors, "mlp"),
    "functional_dropout": Case(FunctionalDropout, _images, "cnn"),
    "python_random": Case(skipping_mlp, _vectors, "mlp"),
    "llama": Case(
        Llama, lambda n: torch.randint(0, 13, (n, 8)), "transformer", targets=(8,), classes=13
    ),
    "lstm": Case(
        LSTMClassifier, lambda n: torch.randint(0, 13, (n, 6)), "transformer", executor="loop"
    ),
    "buffers": Case(buffered_mlp, _vectors, "mlp"),
    "careful": Case(Careful, _vectors, "mlp"),
    "channels_last": Case(ChannelsLast, _images, "cnn"),
    "in_place": Case(InPlaceEverywhere, _vectors, "mlp"),
    "encoder": Case(EncoderModel, lambda n: torch.randn(n, 5, 4), "transformer"),
}
