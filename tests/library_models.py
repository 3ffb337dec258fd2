"""Small models with the peculiarities of those in torchvision and transformers."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

CLASSES = 5
Outputs = namedtuple("Outputs", ["logits", "auxiliary"])


def conv(inputs: int, outputs: int, size: int = 3, **options: Any) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **options)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Branches(nn.Module):
    """Paths of different sizes side by side, then concatenated."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.small = conv(inputs, 4, 1)
        self.large = nn.Sequential(conv(inputs, 4, 1), conv(4, 6))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(inputs, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.small(x), self.large(x), self.pooled(x)], 1)


class Auxiliary(nn.Module):
    """A second classifier in the middle; its dropout draws before that of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop, self.fc = conv(12, 4, 1), nn.Dropout(0.5), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.conv(x).mean((2, 3))))


class Inception(nn.Module):
    """Returns a tensor in eval mode, and in training mode a tuple with auxiliary outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mixed1, self.mixed2 = conv(3, 8), Branches(8), Branches(12)
        self.auxiliary, self.drop = Auxiliary(), nn.Dropout(0.2)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = self.mixed1(self.stem(x))
        auxiliary: Tensor | None = None
        if self.training:
            auxiliary = self.auxiliary(x)
        x = self.fc(self.drop(self.mixed2(x).mean((2, 3))))
        if self.training and auxiliary is not None:
            return Outputs(x, auxiliary)
        return x


class WarmInception(Inception):
    """Its training mode also computes something else, which a graph cannot say."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x * 1.5 if self.training else x)


class Shuffle(nn.Module):
    """Half of the channels pass, the other half is convolved; then they are mixed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(conv(width // 2, width // 2, groups=width // 2))

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, dim=1)
        x = torch.cat((kept, self.branch(changed)), dim=1)
        batch, width, height, breadth = x.size()
        x = x.view(batch, 2, width // 2, height, breadth).transpose(1, 2).contiguous()
        return x.view(batch, width, height, breadth)


@fx.wrap
def drop_path(x: Tensor, rate: float, training: bool) -> Tensor:
    """Stochastic depth as a function that traces record as one step."""
    if rate < 0.0 or rate > 1.0:
        raise ValueError(f"rate {rate}")
    if not training or rate == 0.0:
        return x
    size = [x.shape[0]] + [1] * (x.ndim - 1)
    return x * torch.empty(size, device=x.device).bernoulli_(1 - rate).div_(1 - rate)


class DropPath(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return drop_path(x, self.rate, self.training)


class Excited(nn.Module):
    """Squeeze and excitation, a skip with stochastic depth."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = conv(width, width, groups=width)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, 2, 1), nn.SiLU(inplace=True),
            nn.Conv2d(2, width, 1), nn.Hardsigmoid(),
        )  # fmt: skip
        self.path = DropPath(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x)
        y = self.squeeze(y) * y
        y = self.path(y)
        y += x
        return y


class Norm2d(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Permute(nn.Module):
    def __init__(self, axes: list[int]) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return torch.permute(x, self.axes)


class Next(nn.Module):
    """Depthwise, then linear layers on channels last, scaled by a parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width), Permute([0, 2, 3, 1]),
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(),
            nn.Linear(2 * width, width), Permute([0, 3, 1, 2]),
        )  # fmt: skip
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.1))
        self.path = DropPath(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.path(self.scale * self.block(x)) + x


@fx.wrap
def attend_in_windows(
    x: Tensor, qkv: Tensor, out: Tensor, bias: Tensor, window: int, shift: int, training: bool
) -> Tensor:
    """Attention within windows of an image `[B, H, W, C]`; control flow on sizes."""
    batch, height, breadth, width = x.shape
    pad_b, pad_r = (window - height % window) % window, (window - breadth % window) % window
    x = F.pad(x, (0, 0, 0, pad_r, 0, pad_b))
    _, tall, wide, _ = x.shape
    if window >= tall:
        shift = 0
    if shift > 0:
        x = torch.roll(x, (-shift, -shift), (1, 2))
    rows, columns = tall // window, wide // window
    x = x.view(batch, rows, window, columns, window, width).permute(0, 1, 3, 2, 4, 5)
    x = x.reshape(batch * rows * columns, window * window, width)
    q, k, v = F.linear(x, qkv).chunk(3, dim=-1)
    scores = q @ k.transpose(-2, -1) / width**0.5 + bias
    y = F.dropout(scores.softmax(-1), 0.1, training) @ v
    y = F.linear(y, out).view(batch, rows, columns, window, window, width)
    y = y.permute(0, 1, 3, 2, 4, 5).reshape(batch, tall, wide, width)
    if shift > 0:
        y = torch.roll(y, (shift, shift), (1, 2))
    return y[:, :height, :breadth, :].contiguous()


class WindowAttention(nn.Module):
    """Relative positions are looked up in a table of parameters."""

    def __init__(self, width: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2))
        place = torch.stack(torch.meshgrid(*2 * [torch.arange(window)], indexing="ij")).flatten(1)
        apart = place[:, :, None] - place[:, None, :] + window - 1
        self.register_buffer("index", apart[0] * (2 * window - 1) + apart[1])

    def forward(self, x: Tensor) -> Tensor:
        size = self.window**2
        bias = self.table[self.index.view(-1)].view(size, size)  # type: ignore[operator]
        return attend_in_windows(
            x, self.qkv.weight, self.out.weight, bias, self.window, self.shift, self.training
        )


class SwinBlock(nn.Module):
    def __init__(self, width: int, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.path = WindowAttention(width, 2, shift), DropPath(0.1)
        self.mlp = nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.path(self.attention(self.norm1(x)))
        return x + self.path(self.mlp(self.norm2(x)))


class Merging(nn.Module):
    """Four neighbours of an image `[B, H, W, C]` become one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[..., i::2, j::2, :] for j in (0, 1) for i in (0, 1)]
        return self.reduction(torch.cat(corners, -1))


class MaxBlock(nn.Module):
    """Attention in windows and on a grid, of an image `[B, C, H, W]`."""

    def __init__(self, width: int, grid: bool) -> None:
        super().__init__()
        self.grid, self.norm = grid, nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, breadth = x.shape
        torch._assert(height % 2 == 0 and breadth % 2 == 0, f"{x.shape} cannot be cut in two")
        x = x.reshape(batch, width, height // 2, 2, breadth // 2, 2)
        order = (0, 3, 5, 2, 4, 1) if self.grid else (0, 2, 4, 3, 5, 1)
        h = x.permute(order).reshape(-1, 4 if not self.grid else height * breadth // 4, width)
        y = self.norm(h)
        h = h + self.attention(y, y, y, need_weights=False)[0]
        back = [order.index(axis) for axis in range(6)]
        parts = [(batch, width, height // 2, 2, breadth // 2, 2)[axis] for axis in order]
        return h.reshape(parts).permute(back).reshape(batch, width, height, breadth)


class Dense(nn.Module):
    """Each layer takes what all before it returned; checkpointing is off."""

    def __init__(self, inputs: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(conv(inputs + 4 * n, 4) for n in range(layers))
        self.efficient = False

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.layers:
            given = torch.cat(found, 1)
            if self.efficient and given.requires_grad:
                found.append(checkpoint(layer, given))  # type: ignore[no-untyped-call]
            else:
                found.append(layer(given))
        return torch.cat(found, 1)


class TanhGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class Cache:
    """Keys that later calls could use: an object that no graph can hold."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []


class CachedBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 16), TanhGELU(), nn.Linear(16, width))

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        cache.seen.append(k)
        rate = 0.1 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return x + self.mlp(y)


class CachedTrunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.h = nn.ModuleList(CachedBlock(8) for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x, cache = self.embed(ids), Cache()
        for block in self.h:
            x = block(x, cache)
        return x


class CachedGPT(nn.Module):
    """A trunk that is traceable in none of its parts, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer, self.head = CachedTrunk(), nn.Linear(8, 13)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.transformer(ids))


def pooled(*blocks: nn.Module, width: int = 8) -> nn.Sequential:
    """A stem, blocks, and a classifier on the mean over the image."""
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(width, CLASSES))
    return nn.Sequential(conv(3, 8), *blocks, *head)


def swin() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 2, 2), Permute([0, 2, 3, 1]), nn.LayerNorm(4)),
        nn.Sequential(SwinBlock(4, 0), SwinBlock(4, 1)), Merging(4),
        nn.Sequential(SwinBlock(8, 0), SwinBlock(8, 1)), nn.LayerNorm(8), Permute([0, 3, 1, 2]),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


def conv_classifier() -> nn.Sequential:
    return nn.Sequential(
        conv(3, 8), Branches(8), nn.MaxPool2d(3, 2, ceil_mode=True), Branches(12),
        nn.Dropout(0.5), nn.Conv2d(12, CLASSES, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )  # fmt: skip


LIBRARY: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "inception": (Inception, 3),
    "shufflenet": (lambda: pooled(Shuffle(8), Shuffle(8), Shuffle(8)), 4),
    "efficientnet": (lambda: pooled(Excited(8), Excited(8)), 3),
    "convnext": (lambda: pooled(Norm2d(8), Next(8), Next(8)), 3),
    "swin": (swin, 7),
    "maxvit": (lambda: pooled(MaxBlock(8, False), MaxBlock(8, True)), 3),
    "densenet": (lambda: pooled(Dense(8, 2), conv(16, 8, 1), Dense(8, 2), width=16), 4),
    "squeezenet": (conv_classifier, 3),
    "warm_inception": (WarmInception, 3),
    "cached_gpt": (CachedGPT, 3),
}
"""Model, and the least number of places in it."""
HOOKED = ("warm_inception", "cached_gpt")
"""Those that run whole."""
