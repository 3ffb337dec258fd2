"""Language-model host: a pre-norm GPT with learnt positions and a tied head.

Maps token ids `[B, T]` to logits `[B, T, vocab]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.layers.host_checks import require_least
from esper.kasmina.layers.layers import Draw, DrawnModule
from esper.kasmina.layers.sequence import CausalAttention, FeedForward
from esper.leyline.errors import EsperError, ShapeError
from esper.leyline.slots import InjectionSpec, Topology, slot_id

INITIAL_STD = 0.02
"""GPT-2's initial std; projections into the residual stream start smaller by their number, so that
its initial scale does not depend on the depth."""
MLP_RATIO = 4
"""Hidden width of the MLP relative to the residual stream."""


class Table(DrawnModule):
    """Learnt vectors `[rows, width]`."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, width))
        self.draws = {"weight": Draw("normal", INITIAL_STD)}
        self.draw_parameters()

    def extra_repr(self) -> str:
        rows, width = self.weight.shape
        return f"{rows}, {width}"


class Embedding(nn.Module):
    """Token ids `[B, T]` -> token vector + position vector `[B, T, C]`."""

    def __init__(self, vocab: int, width: int, block_size: int, dropout: float) -> None:
        super().__init__()
        self.tokens = Table(vocab, width)
        self.positions = Table(block_size, width)
        self.dropout = nn.Dropout(dropout)
        self.block_size = block_size

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor):  # a tracer's proxy has no values to check
            self._check(x)
        position = self.positions.weight[: x.shape[-1]]
        out: Tensor = self.dropout(F.embedding(x, self.tokens.weight) + position)
        return out

    def _check(self, x: Tensor) -> None:
        if x.ndim != 2 or x.is_floating_point():
            raise ShapeError(
                f"TransformerHost input of shape {tuple(x.shape)}, {x.dtype}: "
                f"give token ids [batch, time] of type int64"
            )
        if x.shape[1] > self.block_size:
            raise ShapeError(
                f"TransformerHost input of {x.shape[1]} tokens: block_size={self.block_size} is "
                f"the maximum"
            )


class Residual(nn.Module):
    """x + inner(norm(x))."""

    residual: bool = True

    def __init__(self, width: int, inner: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(self.norm(x))
        return out


class TiedHead(nn.Module):
    """Norm, then logits by the token embedding (tied weights)."""

    def __init__(self, tokens: Table) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(tokens.weight.shape[1])
        self.weight = tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.weight)


class TransformerHost(nn.Module):
    """A GPT split into its residual steps.

    Slots: row 0 after each layer's attention, row 1 after its MLP.
    """

    topology: Topology = "transformer"

    def __init__(
        self,
        vocab: int = 256,
        n_embd: int = 64,
        n_head: int = 4,
        n_layer: int = 2,
        block_size: int = 64,
        dropout: float = 0.0,
    ) -> None:
        """`block_size`: maximum sequence length; `dropout`: after embeddings, attention and MLP."""
        super().__init__()
        require_least("TransformerHost", 2, vocab=vocab, n_embd=n_embd)
        require_least("TransformerHost", n_head=n_head, n_layer=n_layer, block_size=block_size)
        if n_embd % n_head:
            raise EsperError(
                f"TransformerHost n_embd={n_embd}, n_head={n_head}: the width must be a multiple "
                f"of the heads"
            )
        if not 0 <= dropout < 1:
            raise EsperError(f"TransformerHost dropout={dropout}: must be from 0 to below 1")
        self.width, self.n_layer = n_embd, n_layer
        draw = Draw("normal", INITIAL_STD)
        last = Draw("normal", INITIAL_STD / math.sqrt(2 * n_layer))
        hidden = MLP_RATIO * n_embd
        self.embedding = Embedding(vocab, n_embd, block_size, dropout)
        steps: list[nn.Module] = []
        for _ in range(n_layer):
            attention = CausalAttention(n_embd, n_head, draw=draw, last_draw=last, dropout=dropout)
            mlp = FeedForward(n_embd, hidden, draw=draw, last_draw=last, dropout=dropout)
            steps += [Residual(n_embd, attention), Residual(n_embd, mlp)]
        self.steps = nn.ModuleList(steps)
        """attention, MLP, attention, MLP, ..."""
        self.head = TiedHead(self.embedding.tokens)

    def segments(self) -> Sequence[nn.Module]:
        """embedding, attention, MLP, ..., attention, MLP, head."""
        return (self.embedding, *self.steps, self.head)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """Two slots per layer, in execution order."""
        return tuple(
            InjectionSpec(slot_id(row, col), self.width, 1 + 2 * col + row, surface)
            for col in range(self.n_layer)
            for row, surface in enumerate(("after_attention", "after_mlp"))
        )

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x
