"""Stacked SGD and AdamW on `[E, P]`, independent per member.

Each row has its own learning rate, clipping and step count; an inactive row stays bit-identical,
whatever its gradient. The update rules are torch's (`torch.optim.SGD`, `torch.optim.AdamW`), so a
single row follows the same path as a plain model.

Shape letters: E members, P parameters of one member.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import Tensor

from esper.device.triton_support import can_use_kernels
from esper.kasmina.stacked.store import ParameterStore
from esper.leyline.optim import OptimConfig as OptimConfig


def gradient_norm(*stores: ParameterStore) -> Tensor | None:
    """Return `[E]` gradient norms over several stores; None if none has a gradient."""
    norms = [
        store.total_norms(_row_norms(store.flat_EP.grad))
        for store in stores
        if store.flat_EP.grad is not None
    ]
    if not norms:
        return None
    return norms[0] if len(norms) == 1 else torch.stack(norms).square().sum(dim=0).sqrt()


class StackedOptimizer:
    """One optimiser over any number of stores."""

    def __init__(self, config: OptimConfig) -> None:
        self.config = config
        self.state: dict[Hashable, dict[str, Tensor]] = {}
        """Key of a store -> its moments `[E, P]` and, for AdamW, step counts `[E]`."""

    def step(
        self,
        key: Hashable,
        store: ParameterStore,
        lr_E: Tensor,
        norm_E: Tensor | None,
        active_E: Tensor | None = None,
    ) -> None:
        """Update the active rows of a store (None: all) from its gradient, then drop the gradient.

        `norm_E`: gradient norm used for clipping (may span several stores).
        """
        grad = store.flat_EP.grad
        store.flat_EP.grad = None
        if grad is None:
            return
        values = store.flat_EP.detach()
        state = self.moments(key, values)
        if _kernels_apply(values, grad):
            from esper.kasmina.ops.kernels.update import update_rows

            return update_rows(self.config, values, grad, state, lr_E, norm_E, active_E)
        with torch.no_grad():
            if self.config.clip_norm is not None and norm_E is not None:
                grad = grad * (self.config.clip_norm / (norm_E + 1e-6)).clamp(max=1.0)[:, None]
            rule = self._sgd if self.config.kind == "sgd" else self._adamw
            fresh_values, fresh_state = rule(values, grad, state, lr_E[:, None])
            _write_active(values, fresh_values, active_E)
            for name, fresh in fresh_state.items():
                _write_active(state[name], fresh, active_E)

    def reset(self) -> None:
        """Zero all state in place, as if no step had been taken."""
        for moments in self.state.values():
            for value in moments.values():
                value.zero_()

    def clear_rows(self, key: Hashable, index_N: Tensor) -> None:
        """Zero the state of rows, as for new parameters."""
        for value in self.state.get(key, {}).values():
            value.index_fill_(0, index_N, 0)

    def moments(self, key: Hashable, values: Tensor) -> dict[str, Tensor]:
        """Return the state of a store, allocated as zeros at first use."""
        if key not in self.state:
            if self.config.kind == "sgd":
                self.state[key] = {"momentum": torch.zeros_like(values)}
            else:
                self.state[key] = {
                    "mean": torch.zeros_like(values),
                    "square": torch.zeros_like(values),
                    "steps": torch.zeros_like(values[:, :1]),
                }
        return self.state[key]

    def _sgd(
        self, values: Tensor, grad: Tensor, state: dict[str, Tensor], lr_E1: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        if config.weight_decay:
            grad = grad + config.weight_decay * values
        momentum = config.momentum * state["momentum"] + grad
        update = grad + config.momentum * momentum if config.nesterov else momentum
        return values - lr_E1 * update, {"momentum": momentum}

    def _adamw(
        self, values: Tensor, grad: Tensor, state: dict[str, Tensor], lr_E1: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        beta1, beta2 = self.config.betas
        steps = state["steps"] + 1
        mean = torch.lerp(state["mean"], grad, 1 - beta1)
        square = beta2 * state["square"] + (1 - beta2) * grad * grad
        denominator = square.sqrt() / _debias(beta2, steps).sqrt() + self.config.eps
        decayed = values * (1 - lr_E1 * self.config.weight_decay)
        fresh = decayed - lr_E1 / _debias(beta1, steps) * mean / denominator
        return fresh, {"mean": mean, "square": square, "steps": steps}


def _kernels_apply(*tensors: Tensor) -> bool:
    return all(can_use_kernels(t) and t.dtype == torch.float32 and t.numel() for t in tensors)


def _row_norms(grad_EP: Tensor) -> Tensor:
    """Return `[E]` the norm of each row."""
    if _kernels_apply(grad_EP):
        from esper.kasmina.ops.kernels.update import row_norms

        return row_norms(grad_EP)
    norm_E: Tensor = torch.linalg.vector_norm(grad_EP, dim=1)
    return norm_E


def _debias(beta: float, steps: Tensor) -> Tensor:
    """Return 1 - beta**steps without float32 cancellation."""
    return -torch.expm1(steps * math.log(beta)) if beta else torch.ones_like(steps)


def _write_active(old: Tensor, fresh: Tensor, active_E: Tensor | None) -> None:
    """Write `fresh` into the active rows of `old`."""
    if active_E is None:
        old.copy_(fresh)
    else:
        old.copy_(torch.where(active_E[:, None], fresh, old))
