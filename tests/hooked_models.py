"""Models of users whose forward torch.fx cannot trace: they run whole, by hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 5
WIDTH = 8


@dataclass
class Output:
    """What Hugging Face style models return."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] = ()


class EncoderBlock(nn.Module):
    """Returns a tuple, as blocks of Hugging Face models do."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(
        self, hidden: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        h = self.norm1(hidden)
        ignored = None if attention_mask is None else attention_mask == 0
        mixed, weights = self.attention(h, h, h, key_padding_mask=ignored)
        hidden = hidden + self.dropout(mixed)
        hidden = hidden + self.dropout(self.down(F.gelu(self.up(self.norm2(hidden)))))
        return (hidden, weights) if kwargs.get("output_attentions") else (hidden,)


class Encoder(nn.Module):
    """Embeddings, a ModuleList of blocks, a head: keywords, a mask, an output object."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)
        self.position = nn.Parameter(torch.randn(6, WIDTH) * 0.1)
        self.layers = nn.ModuleList(EncoderBlock() for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Output:
        hidden = self.embedding(input_ids) + self.position[: input_ids.shape[1]]
        if attention_mask is not None and bool((attention_mask == 1).all()):
            attention_mask = None  # nothing is padded
        states: tuple[Tensor, ...] = ()
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=attention_mask, **kwargs)[0]
            states += (hidden,)
        if self.training:
            self.steps += 1
        logits = self.head(self.norm(hidden).mean(1))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return Output(loss, logits, states)


class BranchingCNN(nn.Module):
    """Control flow on values of the data; running statistics and in-place layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.stage1, self.stage2 = self._stage(6, 6, 1), self._stage(6, 8, 2)
        self.head = nn.Linear(8, CLASSES)

    @staticmethod
    def _stage(inputs: int, channels: int, stride: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.mean() > 0:
            x = x - x.mean()
        x = self.stage1(F.relu_(self.stem(x)))
        skip = F.avg_pool2d(x, 2)
        x = self.stage2(x)
        x = x + F.pad(skip, (0, 0, 0, 0, 0, 2))  # two tensors are alive behind the first stage
        return self.head(x.mean((2, 3)))


class LoopingMLP(nn.Module):
    """A while loop over layers, keywords only, dict outputs, random numbers of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.layers.append(nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.dropout = nn.Dropout(0.2)

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        x, index = batch["x"], 0
        while index < len(self.layers):
            x = self.dropout(F.relu(self.layers[index](x)))
            index += 1
        if float(x.detach().abs().max()) > 1e6:
            x = x / 1e6
        scale = batch.get("scale")
        return {"logits": self.head(x if scale is None else x * scale[:, None]), "features": x}


@dataclass(frozen=True)
class HookedCase:
    """One of them: how to build it and what it takes."""

    build: Callable[[], nn.Module]
    example: Callable[[int], Any]
    topology: str
    places: tuple[str, ...]
    pick: Callable[[Any], Tensor]

    def labels(self, samples: int) -> Tensor:
        return torch.randint(0, CLASSES, (samples,))


def _tokens(samples: int) -> dict[str, Tensor]:
    mask = torch.ones(samples, 6, dtype=torch.int64)
    mask[::2, 4:] = 0
    return {"input_ids": torch.randint(0, 11, (samples, 6)), "attention_mask": mask}


HOOKED: dict[str, HookedCase] = {
    "encoder": HookedCase(
        Encoder,
        _tokens,
        "transformer",
        ("after layers.0", "after layers.1", "after layers.2"),
        lambda out: out.logits,
    ),
    "cnn": HookedCase(
        BranchingCNN,
        lambda n: torch.randn(n, 3, 8, 8),
        "cnn",
        ("after stage1", "after stage2"),
        lambda out: out,
    ),
    "mlp": HookedCase(
        LoopingMLP,
        lambda n: {"x": torch.randn(n, 6), "scale": torch.rand(n) + 0.5},
        "mlp",
        ("after layers.0", "after layers.1", "after layers.2"),
        lambda out: out["logits"],
    ),
}
