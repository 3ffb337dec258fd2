"""Seeds on rows of an activation, read and changed where they lie.

A seed is a chain of steps: blocks (`block.cu`), norms, convolutions, squeeze-excite. The kernels
read the numbers of their rows themselves, so nothing is scattered: the first step reads its rows,
the last one adds alpha times its result to them. The first also leaves a copy of what it read,
which backward needs. Backward does the same with the gradient. Groups have different rows, so they
are branches of a captured graph.

Shape letters: R rows of the activation, G rows of a group, B batch, C channels, H W.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.device.branches import Branches
from esper.kasmina.block_parameters import (
    ConvParameters,
    ExciteParameters,
    NormParameters,
    StepParameters,
)
from esper.kasmina.kernels import blocks
from esper.kasmina.kernels.layout import dense_pixels, empty_activation
from esper.kasmina.kernels.placing import Placement

LANE: Final = 2
"""Lane of the branches of seeds that work on rows in place."""

Settings = tuple[type[StepParameters], tuple[int | bool, ...]]
"""What a step is apart from its tensors."""


class SeedRows(NamedTuple):
    """Seeds of one kind in different rows of an activation."""

    rows: Tensor
    """`[G]` rows of the activation."""
    alpha: Tensor
    """`[G]`; an entry with alpha 0 is unused and touches no row."""
    steps: Sequence[StepParameters]

    def place(self, number: int) -> Placement:
        """Return where a step works: the first one takes from rows, the last one adds to them."""
        last = number == len(self.steps) - 1
        return Placement(self.rows, self.alpha, takes=number == 0, adds=last)


class SeedSteps(torch.autograd.Function):
    """(h, owned, own gradient, kept for backward, settings of the steps of each group; for each
    group rows, alpha, and the tensors of its steps) -> h with alpha times the seeds added to their
    rows."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        owned: bool,
        own_gradient: bool,
        keep: bool,
        settings: Sequence[Sequence[Settings]],
        *tensors: Tensor,
    ) -> Tensor:
        groups = _groups(settings, tensors)
        out = h.view_as(h) if owned else h.clone()
        # What outlives a branch is allocated outside of it, where memory is used again.
        inputs = [_allocate_inputs(out, group, keep) for group in groups]
        with Branches(h.device, LANE) as branches:
            statistics = [
                branches.run(partial(_run_forward, out, group, own))
                for group, own in zip(groups, inputs, strict=True)
            ]
        ctx.settings, ctx.own_gradient = settings, own_gradient
        if keep:
            saved = (v for own in (*inputs, *statistics) for v in own)
            ctx.save_for_backward(*tensors, *saved)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        sizes = [len(steps) for steps in ctx.settings]
        given = sum(2 + sum(map(_tensors_of, steps)) for steps in ctx.settings)
        saved = ctx.saved_tensors
        groups = _groups(ctx.settings, saved[:given])
        inputs = _split(saved[given : given + sum(sizes)], sizes)
        statistics = _split(saved[given + sum(sizes) :], sizes)
        total = dense_pixels(grad, inputs[0][0].dtype)
        rows_lie = total.stride(0) == total[0].numel() and total.data_ptr() % 16 == 0
        if total is grad and not (ctx.own_gradient and rows_lie):
            total = empty_activation(grad.shape, grad).copy_(grad)
        between = [[torch.empty_like(x) for x in own[1:]] for own in inputs]
        with Branches(grad.device, LANE) as branches:
            found = [
                branches.run(partial(_run_backward, total, *parts))
                for parts in zip(groups, inputs, statistics, between, strict=True)
            ]
        each = (value for own in found for value in (None, None, *own))
        return (total, *[None] * 4, *each)


def _allocate_inputs(h: Tensor, group: SeedRows, keep: bool) -> list[Tensor | None]:
    """Allocate what each step of a group reads; for the first one a copy of its rows, if that is
    kept or the step cannot read them where they lie."""
    shape = (len(group.rows), *h.shape[1:])
    first, *others = group.steps
    copied = keep or isinstance(first, ConvParameters)
    own = [empty_activation(shape, h) for _ in others]
    return [empty_activation(shape, h) if copied else None, *own]


def _run_forward(
    h: Tensor, group: SeedRows, inputs: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Add the seeds of a group to their rows of `h`; return the statistics of its steps."""
    statistics = []
    for number, step in enumerate(group.steps):
        place = group.place(number)
        y = h if place.adds else inputs[number + 1]
        assert y is not None, "only the first input may be missing"
        statistics.append(_step_forward(step, h, inputs[number], y, place))
    return statistics


def _step_forward(
    step: StepParameters, h: Tensor, own: Tensor | None, y: Tensor, place: Placement
) -> Tensor | None:
    """Run a step on rows of `h`, which are copied to `own`, or else on `own`."""
    if isinstance(step, ConvParameters):
        assert own is not None, "a convolution reads memory of its own"
        if place.takes:
            from esper.kasmina.kernels.rows import take_used_rows

            take_used_rows(h, place.rows, place.alpha, own)
        _convolution(step).run_into(y, own, step.weight, False, place)
        return None
    x, kept = (h, own) if place.takes else (own, None)
    assert x is not None, "only the first input may be missing"
    if isinstance(step, NormParameters):
        from esper.kasmina.kernels import normalise

        return normalise.run_forward(x, *step, relu=False, y=y, place=place, kept=kept)
    if isinstance(step, ExciteParameters):
        from esper.kasmina.kernels import excite_seed

        return excite_seed.run_forward(x, step, y, place, kept)
    rows: dict[str, Tensor | None] = {"live": place.alpha}
    if place.takes:
        rows |= {"x_index": place.rows, "kept": kept}
    if place.adds:
        rows |= {"y_index": place.rows, "alpha": place.alpha}
    return blocks.run_forward(x, step, y, **rows)


def _run_backward(
    grad: Tensor,
    group: SeedRows,
    inputs: Sequence[Tensor],
    statistics: Sequence[Tensor | None],
    between: Sequence[Tensor],
) -> list[Tensor]:
    """Add the gradients of a group's inputs to their rows; return those of its parameters.

    `between`: where the gradient goes between two steps.
    """
    found = list[Tensor]()
    for number in reversed(range(len(group.steps))):
        place = group.place(number)
        dy = grad if place.adds else between[number]
        dx = grad if place.takes else between[number - 1]
        step, parts = group.steps[number], (inputs[number], dy, dx)
        found = [*_step_backward(step, *parts, statistics[number], place), *found]
    return found


def _step_backward(
    step: StepParameters,
    x: Tensor,
    dy: Tensor,
    dx: Tensor,
    statistics: Tensor | None,
    place: Placement,
) -> Sequence[Tensor]:
    """Write or add the gradient of a step's input to `dx`; return those of its tensors."""
    if isinstance(step, ConvParameters):
        kernels = _convolution(step)
        # The weights first: what follows may change `dy`.
        own = kernels.gradient_of_weights(x, dy, step.weight.shape[-1], place)
        kernels.run_into(dx, dy, step.weight, True, place)
        return (own,)
    if isinstance(step, ExciteParameters):
        from esper.kasmina.kernels import excite_seed

        return excite_seed.run_backward(x, dy, step, dx, place)
    assert statistics is not None, "of a norm or a block"
    if isinstance(step, NormParameters):
        from esper.kasmina.kernels import normalise

        scale, shift, groups = step
        return normalise.run_backward(
            x, dy, scale, shift, statistics, groups, relu=False, dx=dx, place=place
        )
    rows: dict[str, Tensor | None] = {"live": place.alpha}
    if place.adds:
        rows |= {"y_index": place.rows, "alpha": place.alpha}
    if place.takes:
        rows |= {"dx_index": place.rows}
    return blocks.run_backward(x, dy, step, statistics, dx, **rows)


def _convolution(step: ConvParameters) -> Any:
    """Return the module with the kernels of a convolution."""
    from esper.kasmina.kernels import convolution, depthwise

    return depthwise if step.alone else convolution


def _tensors_of(settings: Settings) -> int:
    """Return the number of tensors of a step."""
    kind, others = settings
    return len(kind._fields) - len(others)


def _settings(step: StepParameters) -> Settings:
    return type(step), tuple(value for value in step if not isinstance(value, Tensor))


def _groups(settings: Sequence[Sequence[Settings]], tensors: Sequence[Tensor]) -> list[SeedRows]:
    """Put together what `add_seeds` took apart."""
    out, rest = [], iter(tensors)
    for steps in settings:
        rows, alpha = next(rest), next(rest)
        own = [
            one[0](*(next(rest) for _ in range(_tensors_of(one))), *one[1])  # type: ignore[arg-type]
            for one in steps
        ]
        out.append(SeedRows(rows, alpha, own))
    return out


def _split(tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[list[Tensor]]:
    rest = iter(tensors)
    return [[next(rest) for _ in range(size)] for size in sizes]


def add_seeds(h: Tensor, groups: Sequence[SeedRows], owned: bool, own_gradient: bool) -> Tensor:
    """Return `h` with alpha times the seeds of each group added to their rows.

    A row may be in one group. `owned`, `own_gradient`: nothing else refers to `h`, or to its
    gradient, so that it is changed in place.
    """
    settings = [[_settings(step) for step in group.steps] for group in groups]
    tensors = (
        value
        for rows, alpha, steps in groups
        for value in (rows, alpha, *(v for s in steps for v in s if isinstance(v, Tensor)))
    )
    keep = torch.is_grad_enabled()
    out: Tensor = SeedSteps.apply(h, owned, own_gradient, keep, settings, *tensors)
    return out
