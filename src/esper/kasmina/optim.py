"""How stacked parameters learn: SGD with momentum and AdamW on `[E, P]`, member by member apart.

Each row has its own learning rate, its own clip and its own step count; a row that is not active
comes out bit-identical, whatever its gradient holds. The laws are torch's own (`torch.optim.SGD`,
`torch.optim.AdamW`), so that one row alone follows the same path as a plain model.

Shape letters: E members, P parameters of one member.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import Tensor

from esper.device.triton_support import can_use_kernels
from esper.kasmina.optim_config import OptimConfig as OptimConfig
from esper.kasmina.store import ParameterStore


def gradient_norm(*stores: ParameterStore) -> Tensor | None:
    """`[E]`: norm of each member's gradient over several stores; None where none has a gradient."""
    grads = [store.flat_EP.grad for store in stores if store.flat_EP.grad is not None]
    if not grads:
        return None
    norms = [_row_norms(grad) for grad in grads]
    return norms[0] if len(norms) == 1 else torch.stack(norms).square().sum(dim=0).sqrt()


class StackedOptimizer:
    """The state and the step of one optimiser over any number of stores."""

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

        `norm_E` is the gradient norm the clip goes by (it may span more than this store).
        """
        grad = store.flat_EP.grad
        store.flat_EP.grad = None
        if grad is None:
            return
        values = store.flat_EP.detach()
        state = self.moments(key, values)
        if _takes_kernels(values, grad):
            from esper.kasmina.kernels.update import update_rows

            return update_rows(self.config, values, grad, state, lr_E, norm_E, active_E)
        with torch.no_grad():
            if self.config.clip_norm is not None and norm_E is not None:
                grad = grad * (self.config.clip_norm / (norm_E + 1e-6)).clamp(max=1.0)[:, None]
            law = self._sgd if self.config.kind == "sgd" else self._adamw
            fresh_values, fresh_state = law(values, grad, state, lr_E[:, None])
            _keep(values, fresh_values, active_E)
            for name, fresh in fresh_state.items():
                _keep(state[name], fresh, active_E)

    def forget(self) -> None:
        """Zero all moments where they are, as if no step had been taken."""
        for moments in self.state.values():
            for value in moments.values():
                value.zero_()

    def clear_rows(self, key: Hashable, index_N: Tensor) -> None:
        """Forget the moments of rows, as for parameters just born."""
        for value in self.state.get(key, {}).values():
            value.index_fill_(0, index_N, 0)

    def moments(self, key: Hashable, values: Tensor) -> dict[str, Tensor]:
        """The state kept for a store, made of zeros when first asked for."""
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


def _takes_kernels(*tensors: Tensor) -> bool:
    return all(can_use_kernels(t) and t.dtype == torch.float32 and t.numel() for t in tensors)


def _row_norms(grad_EP: Tensor) -> Tensor:
    """`[E]`: the norm of each row."""
    if _takes_kernels(grad_EP):
        from esper.kasmina.kernels.update import row_norms

        return row_norms(grad_EP)
    norm_E: Tensor = torch.linalg.vector_norm(grad_EP, dim=1)
    return norm_E


def _debias(beta: float, steps: Tensor) -> Tensor:
    """1 - beta**steps, without the cancellation of float32."""
    return -torch.expm1(steps * math.log(beta)) if beta else torch.ones_like(steps)


def _keep(old: Tensor, fresh: Tensor, active_E: Tensor | None) -> None:
    """Write `fresh` into the active rows of `old`; the others are not touched."""
    if active_E is None:
        old.copy_(fresh)
    else:
        old.copy_(torch.where(active_E[:, None], fresh, old))
