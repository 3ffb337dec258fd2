"""Settings of `esper.grow` besides model, data and budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor

from esper.growing.data import StreamChoice
from esper.growing.search import SearchPolicy
from esper.leyline.compute import ExecutorName
from esper.leyline.errors import EsperError, shown, unknown_name
from esper.leyline.seeds import require_seed

POLICIES: Final = ("auto", *get_args(SearchPolicy))


@dataclass(frozen=True, slots=True, eq=False)
class GrowSettings:
    """Settings of one run; see `esper.grow`."""

    policy: str = "auto"
    optimizer: str = "auto"
    lr: float | Sequence[float] | Literal["auto"] = "auto"
    weight_decay: float | Literal["auto"] = "auto"
    loss: str | Callable[..., Any] = "auto"
    metric: str | Callable[..., Any] = "auto"
    seed: int = 0
    slots: int | Sequence[str] = 8
    blueprints: Sequence[str] | None = None
    widths: Sequence[float] | Literal["auto"] = "auto"
    epochs: float | Literal["auto"] = "auto"
    batch_size: int | None = None
    columns: Sequence[str] | None = None
    stream: StreamChoice = "auto"
    output: str | int | None = None
    class_weights: Sequence[float] | Tensor | None = None
    label_smoothing: float = 0.0
    device: str | torch.device = "auto"
    executor: ExecutorName = "auto"
    amp: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise unknown_name("policy", self.policy, POLICIES)
        require_seed(self.seed, "seed")
        if not isinstance(self.amp, bool) and self.amp != "auto":
            raise EsperError(f"amp={shown(self.amp)}: give True, False, or 'auto'")
        if self.widths != "auto":
            self._check_widths()

    def _check_widths(self) -> None:
        widths: Any = self.widths
        numbers = isinstance(widths, Sequence) and not isinstance(widths, str)
        if not numbers or not all(isinstance(w, int | float) and 0 < w < math.inf for w in widths):
            raise EsperError(
                f"widths={shown(widths)}: give multiples of the model's width, as in (0.5, 2), () "
                f"for none, or 'auto'"
            )

    @property
    def mixed_precision(self) -> bool:
        """Whether networks are trained in bfloat16; `auto`: no, until it is shown to be faster."""
        return self.amp is True

    @property
    def search_policy(self) -> SearchPolicy:
        """The policy, decided."""
        return "asha" if self.policy == "asha" else "halving"
