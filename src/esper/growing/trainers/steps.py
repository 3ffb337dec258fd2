"""The update of a run's weights on a CPU, with the kernels of torch's optimisers called directly.

For small networks most of a batch is Python: that of `clip_grad_norm_` and `Optimizer.step` takes a
third of it. Results are those of the two, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def clip_gradients(grads: list[Tensor], most: float) -> None:
    """As `nn.utils.clip_grad_norm_`."""
    norms = torch.stack(torch._foreach_norm(grads, 2.0))
    scale = torch.clamp(most / (torch.linalg.vector_norm(norms, 2.0) + 1e-6), max=1.0)
    torch._foreach_mul_(grads, scale)


class Steps:
    """Updates the weights of one network."""

    def __init__(
        self, params: list[nn.Parameter], optimizer: torch.optim.Optimizer, clip: float
    ) -> None:
        self._params, self._optimizer, self._clip = params, optimizer, clip
        kinds = {(param.device.type, param.dtype) for param in params}
        self._fast = kinds == {("cpu", torch.float32)}
        self._state: dict[str, list[Any]] | None = None
        """State of the optimiser by name, in the order of the parameters; None: not there yet."""

    def forget(self) -> None:
        """The optimiser was given another state."""
        self._state = None

    def take(self, loss: Tensor) -> None:
        """Backward, clipping, optimiser."""
        for param in self._params:
            param.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        grads = [param.grad for param in self._params if param.grad is not None]
        if self._fast and len(grads) == len(self._params):
            with torch.no_grad():
                self._update(grads)
            return
        self.forget()  # which parameters have gradients may change from batch to batch
        if self._clip:
            nn.utils.clip_grad_norm_(self._params, self._clip, foreach=True)
        self._optimizer.step()

    def _update(self, grads: list[Tensor]) -> None:
        if self._clip:
            clip_gradients(grads, self._clip)
        if self._state is None:
            self._optimizer.step()  # makes the state
            self._state = self._read_state()
        elif isinstance(self._optimizer, torch.optim.AdamW):
            self._adamw(grads, self._state)
        else:
            self._sgd(grads, self._state)

    def _read_state(self) -> dict[str, list[Any]]:
        held = [self._optimizer.state[param] for param in self._params]
        return {name: [one[name] for one in held] for name in held[0]}

    def _adamw(self, grads: list[Tensor], state: dict[str, list[Any]]) -> None:
        group = self._optimizer.param_groups[0]
        beta1, beta2 = group["betas"]
        torch._foreach_add_(state["step"], 1)
        torch._fused_adamw_(
            self._params, grads, state["exp_avg"], state["exp_avg_sq"], [], state["step"],
            lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"],
            eps=group["eps"], amsgrad=False, maximize=False, grad_scale=None, found_inf=None,
        )  # fmt: skip

    def _sgd(self, grads: list[Tensor], state: dict[str, list[Any]]) -> None:
        group = self._optimizer.param_groups[0]
        torch._fused_sgd_(
            self._params, grads, state["momentum_buffer"], weight_decay=group["weight_decay"],
            momentum=group["momentum"], lr=group["lr"], dampening=0.0, nesterov=False,
            maximize=False, is_first_step=False, grad_scale=None, found_inf=None,
        )  # fmt: skip
