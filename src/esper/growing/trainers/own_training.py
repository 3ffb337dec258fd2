"""A user's own training step, optimiser and schedule, in place of the built-in ones."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from esper.growing.runs import Recipe
from esper.growing.trainers.optimizer_state import Kept, OptimizerState
from esper.growing.trainers.update import Update
from esper.kasmina.tracing import Inputs
from esper.leyline.errors import EsperError, shown
from esper.leyline.user_errors import user_callback

OWN: Final = ("train_step", "optimizer", "scheduler")
"""Settings that may be functions of the user's."""
TrainStep = Callable[[nn.Module, tuple[Any, Tensor]], Tensor]
"""(network, (inputs, targets)) -> loss."""
MakeOptimizer = Callable[[Sequence[nn.Parameter]], Any]
"""Parameters -> torch optimiser."""
MakeScheduler = Callable[[Any, int], Any]
"""(optimiser, batches of the run) -> torch scheduler, stepped after every batch."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnTraining:
    """What of the training is the user's; None: the built-in one."""

    train_step: TrainStep | None = None
    optimizer: MakeOptimizer | None = None
    scheduler: MakeScheduler | None = None
    base_rate: float = 1.0
    """The default learning rate of the built-in optimiser; schedules are evaluated at it."""

    @property
    def given(self) -> tuple[str, ...]:
        """Names of what is the user's."""
        return tuple(name for name in OWN if getattr(self, name) is not None)

    def update(self, params: Sequence[nn.Parameter], recipe: Recipe, lr: float | Tensor) -> Update:
        """The optimiser of a run."""
        if self.optimizer is None:
            return Update(params, recipe, lr)
        return _OwnUpdate(self.optimizer, params, recipe, lr)

    def rates(self, recipe: Recipe, update: Update) -> list[float]:
        """The learning rate of every batch; for a user's optimiser as a multiple of its own.

        A user's schedule is evaluated at the default rate and scaled to the recipe's.
        """
        if self.scheduler is None:
            return [recipe.rate(batch) for batch in range(recipe.batches)]
        base = update.base_rate if isinstance(update, _OwnUpdate) else self.base_rate
        return [recipe.lr / base * rate for rate in self._scheduled(recipe.batches, base)]

    def _scheduled(self, batches: int, lr: float) -> list[float]:
        """What the user's schedule makes of a rate."""
        assert self.scheduler is not None
        with user_callback("scheduler fails"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing is trained while it is stepped
            stepped = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
            scheduler = self.scheduler(stepped, batches)
            if not callable(getattr(scheduler, "step", None)):
                raise EsperError(
                    f"scheduler returned {shown(scheduler)}: return a scheduler of "
                    f"torch.optim.lr_scheduler for the optimizer and batches that it is given"
                )
            found = list[float]()
            for _ in range(batches):
                found.append(float(stepped.param_groups[0]["lr"]))
                scheduler.step()
        return found

    def loss(
        self, inputs: Inputs, network: nn.Module, values: Sequence[Tensor], targets: Tensor
    ) -> Tensor:
        """What the user's training step makes of a batch."""
        assert self.train_step is not None
        with user_callback("train_step fails"):
            found = self.train_step(network, (inputs.raw(values), targets))
        if not isinstance(found, Tensor) or found.numel() != 1 or not found.requires_grad:
            raise EsperError(
                f"train_step returned {shown(found)}: return the loss of the batch, a tensor with "
                f"one value that depends on the parameters"
            )
        return found.reshape(()).float()


BUILT_IN: Final = OwnTraining()
"""Nothing is the user's."""


class _OwnUpdate(Update):
    """A user's optimiser; rates are multiples of those that it was made with."""

    def __init__(
        self,
        make: MakeOptimizer,
        params: Sequence[nn.Parameter],
        recipe: Recipe,
        lr: float | Tensor,
    ) -> None:
        super().__init__(params, recipe, lr)
        with user_callback("optimizer fails"):
            self.own = make(list(params))
        if not isinstance(self.own, torch.optim.Optimizer):
            raise EsperError(
                f"optimizer returned {shown(self.own)}: return a torch optimizer for the "
                f"parameters that it is given"
            )
        closure = inspect.signature(self.own.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise EsperError(
                f"optimizer returned {type(self.own).__name__}, whose step needs a closure: give "
                f"one that steps by the gradients"
            )
        self._base = [float(group["lr"]) for group in self.own.param_groups]
        self.base_rate = self._base[0]
        if isinstance(lr, Tensor):
            _read_rate_on_device(self.own, lr.device)
        self._kept, self._stepped = OptimizerState(self.own, self.params), False

    def apply(self, params: list[Any], grads: list[Any]) -> None:
        """Update parameters that have gradients."""
        for group, base in zip(self.own.param_groups, self._base, strict=True):
            if isinstance(group["lr"], Tensor):
                torch.mul(self.lr, base, out=group["lr"])
            else:
                group["lr"] = base * self.lr
        with user_callback("optimizer fails"):
            self.own.step()
        if not self._stepped:
            self._stepped = True
            self.kept()  # what cannot be saved is refused now, not after a minute

    def restore(self, param: nn.Parameter, held: dict[str, Tensor]) -> None:
        """Only the built-in ones are saved by parameter."""
        raise ValueError("saved by an earlier version")

    def kept(self) -> Kept:
        """All that it keeps."""
        return self._kept.kept()

    def put_back(self, kept: Kept) -> None:
        """Continue from what was kept."""
        self._kept.put_back(kept)


def _read_rate_on_device(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Rates as tensors, and steps that do not fetch them, as a capture needs it."""
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(float(group["lr"]), device=device)
        if "capturable" in group:
            group["capturable"] = True
        elif isinstance(optimizer, torch.optim.SGD) and not group["differentiable"]:
            group |= {"fused": True, "foreach": False}  # its other kernels fetch the rate
