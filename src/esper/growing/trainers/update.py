"""The update rules of a run: clipping, then AdamW or SGD, each in a few fused calls.

They are torch's own kernels, and compute the same bits as `torch.nn.utils.clip_grad_norm_` and
`torch.optim` with `fused=True`. Called directly, they cost a third of the time of the optimiser
classes on small networks, and do not import torch's compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from esper.growing.runs import Recipe
from esper.growing.trainers.optimizer_state import Kept

MOMENTUM: Final = 0.9
"""Of SGD."""
BETAS: Final = (0.9, 0.999)
EPSILON: Final = 1e-8
NORM_EPSILON: Final = 1e-6
"""Added to the norm of the gradients, as torch does."""


class Update:
    """The optimiser of a run, with its state by parameter."""

    def __init__(self, params: Sequence[nn.Parameter], recipe: Recipe, lr: float | Tensor) -> None:
        """`lr`: a number, or a tensor on the device of a GPU, whose value may change."""
        self.lr: Any = lr
        self.params = list(params)
        self._kind = recipe.optimizer
        self._decay, self._clip = recipe.weight_decay, recipe.clip
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for param in self.params:
            param.grad = None

    @torch.no_grad()
    def step(self, clipped: bool = False) -> None:
        """Clip the gradients, unless that is done, and update the parameters that have one."""
        params = [param for param in self.params if param.grad is not None]
        if not params:
            return
        grads: list[Any] = [param.grad for param in params]
        if self._clip and not clipped:
            norms = torch._foreach_norm(grads)
            total = torch.linalg.vector_norm(torch.stack(norms))
            torch._foreach_mul_(grads, (self._clip / (total + NORM_EPSILON)).clamp(max=1.0))
        self.apply(params, grads)

    def apply(self, params: list[Any], grads: list[Any]) -> None:
        """Update parameters that have gradients."""
        if self._kind == "sgd":
            self._sgd(params, grads)
        else:
            self._adamw(params, grads)

    def held(self, param: nn.Parameter) -> dict[str, Tensor]:
        """Its state of a parameter."""
        return self.state.get(param, {})

    def restore(self, param: nn.Parameter, held: dict[str, Tensor]) -> None:
        """Put such a state back."""
        self.state[param] = held

    def kept(self) -> Kept:
        """What it keeps beside that."""
        return Kept()

    def put_back(self, kept: Kept) -> None:
        """Continue from what was kept."""

    def _adamw(self, params: list[Any], grads: list[Any]) -> None:
        states = [self.state.get(param) or self._fresh(param) for param in params]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            params, grads, [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states], [],
            steps, lr=self.lr, beta1=BETAS[0], beta2=BETAS[1], weight_decay=self._decay,
            eps=EPSILON, amsgrad=False, maximize=False,
        )  # fmt: skip

    def _sgd(self, params: list[Any], grads: list[Any]) -> None:
        fresh = [param not in self.state for param in params]
        buffers = [(self.state.get(p) or self._fresh(p))["momentum_buffer"] for p in params]
        torch._fused_sgd_(
            params, grads, buffers, weight_decay=self._decay, momentum=MOMENTUM, lr=self.lr,
            dampening=0.0, nesterov=False, maximize=False, is_first_step=all(fresh),
        )  # fmt: skip

    def _fresh(self, param: nn.Parameter) -> dict[str, Tensor]:
        """State of a parameter before its first step."""
        if self._kind == "sgd":
            made = {"momentum_buffer": torch.zeros_like(param)}
        else:
            step = torch.zeros((), dtype=torch.float32, device=param.device)
            made = {
                "step": step,
                "exp_avg": torch.zeros_like(param),
                "exp_avg_sq": torch.zeros_like(param),
            }
        self.state[param] = made
        return made
