"""Settings of `esper.grow` besides model, data and budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor

from esper.growing.data import StreamChoice
from esper.growing.ladder import Policy
from esper.leyline.errors import EsperError, shown, unknown_name
from esper.leyline.seeds import require_seed

POLICIES: Final = ("auto", *get_args(Policy))
EXECUTORS: Final = ("auto", "sharded")


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
    executor: str = "auto"
    amp: bool | Literal["auto"] = "auto"
    clip: float | None = 1.0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise unknown_name("policy", self.policy, POLICIES)
        if self.executor not in EXECUTORS:
            raise unknown_name("executor", self.executor, EXECUTORS)
        require_seed(self.seed, "seed")
        if not isinstance(self.amp, bool) and self.amp != "auto":
            raise EsperError(f"amp={shown(self.amp)}: give True, False, or 'auto'")
        if self.clip is not None and not _is_positive(self.clip):
            raise EsperError(
                f"clip={shown(self.clip)}: give the longest gradient, a number above 0, or None"
            )
        if self.epochs != "auto" and not _is_positive(self.epochs):
            raise EsperError(
                f"epochs={shown(self.epochs)}: give a finite number above 0, or 'auto'"
            )
        if self.blueprints is not None:
            self._check_blueprints()
        if self.widths != "auto":
            self._check_widths()

    def _check_blueprints(self) -> None:
        names: Any = self.blueprints
        if isinstance(names, str) or not isinstance(names, Sequence) or not names:
            raise EsperError(
                f"blueprints={shown(names)}: give names, as in ['norm'], or None for all that fit"
            )

    def _check_widths(self) -> None:
        widths: Any = self.widths
        numbers = isinstance(widths, Sequence) and not isinstance(widths, str)
        if not numbers or not all(map(_is_positive, widths)):
            raise EsperError(
                f"widths={shown(widths)}: give multiples of the model's width, as in (0.5, 2), () "
                f"for none, or 'auto'"
            )

    @property
    def search_policy(self) -> Policy:
        """The policy, decided."""
        return "random" if self.policy == "random" else "ladder"


def _is_positive(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < float(value) < math.inf  # type: ignore[arg-type]
