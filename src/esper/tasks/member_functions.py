"""Loss functions that users write for one network, applied to every row.

Rows are computed at once by `torch.func.vmap`; functions it cannot take run row by row.

Shape letters: R rows, B batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from esper.leyline.errors import EsperError
from esper.leyline.user_errors import is_out_of_memory, user_callback, user_code
from esper.tasks.row_terms import row_sums

FITTED_SAMPLES: Final = 1024
"""Samples that the best constant of a loss is fitted to."""
_FIT_STEPS: Final = 300
_FIT_LR: Final = 0.1


def function_name(function: Callable[..., Any]) -> str:
    """Name of a user's function; that of its class if it is an object.

    >>> function_name(max), function_name(partial(max, 1)), function_name(lambda: 0)
    ('max', 'max', 'own')
    """
    if isinstance(function, partial):
        return function_name(function.func)
    name = str(getattr(function, "__name__", type(function).__name__))
    return "own" if name == "<lambda>" else name


class MemberFunction:
    """`function(outputs [B, ...], targets [B, ...])` of one network, applied to each row.

    The function returns one number, or one or more per sample, which are averaged.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function_name(function)
        self.__qualname__ = self.name  # saved populations remember their loss by this name
        self.function = copy.deepcopy(function) if isinstance(function, nn.Module) else function
        self.vmapped: bool | None = None
        """Whether vmap takes the function; None: not tried yet."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one number per row `[R]`."""
        values = self._values(outputs, targets)
        return row_sums(values) / values[0].numel()

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return `[R, B]`; one number for the whole batch counts for each of its samples."""
        values = self._values(outputs, targets)
        rows, batch = outputs.shape[:2]
        if values.ndim > 1 and values.shape[1] == batch:
            return row_sums(values, 2) / values[0, 0].numel() if values.ndim > 2 else values
        return (row_sums(values) / values[0].numel())[:, None].expand(rows, batch)

    def _values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return what the function gives for each row, `[R, ...]`."""
        if isinstance(self.function, nn.Module):
            self.function.to(outputs.device)  # its weights
        if self.vmapped is not False:
            try:
                values = torch.func.vmap(self._checked, randomness="different")(outputs, targets)
            except EsperError:
                raise
            except Exception as error:
                if self.vmapped or is_out_of_memory(error):
                    raise
                self.vmapped = False
            else:
                self.vmapped = True
                return values.unsqueeze(1) if values.ndim == 1 else values
        rows = zip(outputs.unbind(), targets.unbind(), strict=True)
        with user_code(f"loss {self.name} fails", "it is called with (outputs, targets)"):
            values = torch.stack([self._checked(output, target) for output, target in rows])
        return values.unsqueeze(1) if values.ndim == 1 else values

    def _checked(self, output: Tensor, target: Tensor) -> Tensor:
        with user_callback(f"loss {self.name} fails"):
            value = self.function(output, target)
        if isinstance(value, int | float):
            return torch.full((), float(value), device=output.device)
        if not isinstance(value, Tensor):
            raise EsperError(
                f"loss {self.name} returns a {type(value).__name__}: return a tensor of one "
                f"number, or of one per sample"
            )
        return value if value.dtype.is_floating_point else value.float()


def fit_constant(loss: MemberFunction, targets: Tensor, output_shape: Sequence[int]) -> float:
    """Return the loss of the best constant prediction on targets `[N, ...]`, found by Adam."""
    step = max(1, len(targets) // FITTED_SAMPLES)
    some = targets[::step][:FITTED_SAMPLES].unsqueeze(0)
    start = torch.zeros(tuple(output_shape))
    if some.dtype.is_floating_point and tuple(some.shape[2:]) == tuple(output_shape):
        equal = bool((some == some[:, :1]).all())
        # The mean of equal numbers may round to another one, with a loss that is not quite 0.
        start = some[0, 0] if equal else some.mean(dim=(0, 1))
    constant = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([constant], lr=_FIT_LR * max(1.0, float(start.abs().max())))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _FIT_STEPS)
    best = math.inf
    with torch.enable_grad():
        for _ in range(_FIT_STEPS):
            value = loss(constant.expand(1, some.shape[1], *constant.shape), some)[0]
            best = min(best, float(value.detach()))
            if not value.requires_grad:
                break
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return best
