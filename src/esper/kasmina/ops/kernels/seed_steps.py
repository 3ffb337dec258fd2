"""Seeds on rows of an activation, read and changed in place.

A seed is a chain of steps: blocks (`block.cu`), norms, convolutions, squeeze-excite. The kernels
read the numbers of their rows themselves, so nothing is scattered: the first step reads its rows,
the last one adds alpha times its result to them. The first also leaves a copy of what it read,
which backward needs. Backward does the same with the gradient. Where entries of a group have other
blend styles than ADD, the last step writes its result apart, and one more kernel blends it in
(`blend.py`). Groups have different rows, so they are branches of a captured graph.

Shape letters: R rows of the activation, G rows of a group, B batch, C channels, H W.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.device.branches import Branches
from esper.kasmina.ops.block_parameters import (
    ConvParameters,
    ExciteParameters,
    NormParameters,
    StepParameters,
)
from esper.kasmina.ops.kernels import blocks
from esper.kasmina.ops.kernels.layout import Placement, dense_pixels, empty_activation

if TYPE_CHECKING:
    from esper.kasmina.ops.kernels.blend import BlendRows

LANE: Final = 2
"""Lane of the branches of seeds that work on rows in place."""

Settings = tuple[type[StepParameters], tuple[int | bool, ...]]
"""What a step is apart from its tensors."""


class _GroupSettings(NamedTuple):
    """What a group is apart from its tensors."""

    steps: Sequence[Settings]
    styled: bool
    """Whether entries have blend styles of their own."""
    gated: bool

    @property
    def tensors(self) -> int:
        """Number of tensors before those of the steps: rows, alpha, style, gates."""
        return 2 + self.styled + 2 * self.gated

    @property
    def buffers(self) -> int:
        """Number of tensors that are kept for backward: what each step and the blend read."""
        return len(self.steps) + self.styled


class SeedRows(NamedTuple):
    """Seeds of one kind in different rows of an activation."""

    rows: Tensor
    """`[G]` rows of the activation."""
    alpha: Tensor
    """`[G]`; an entry with alpha 0 is unused and touches no row."""
    steps: Sequence[StepParameters]
    style: Tensor | None = None
    """`[G]` blend styles; None: all add."""
    gates: tuple[Tensor, Tensor] | None = None
    """Weight and bias `[G, C]`, if an entry may have style GATE (`blend.gates_fit` must hold)."""

    def place(self, number: int) -> Placement:
        """Return where a step works: the first one takes from rows, the last one adds to them,
        unless its result is blended in later."""
        last = number == len(self.steps) - 1
        return Placement(self.rows, self.alpha, number == 0, last and self.style is None)

    def to_blend(self, inputs: Sequence[Tensor | None]) -> BlendRows:
        """Return what is blended in, given what the steps and the blend read."""
        from esper.kasmina.ops.kernels.blend import BlendRows

        kept, delta = inputs[0], inputs[-1]
        assert self.style is not None
        assert delta is not None, "only the first input may be missing"
        kept = delta if kept is None else kept  # only backward reads it
        return BlendRows(kept, delta, self.rows, self.alpha, self.style, self.gates, in_place=True)


class _SeedSteps(torch.autograd.Function):
    """(h, owned, own gradient, kept for backward, settings of each group; for each group rows,
    alpha, perhaps style and gates, and the tensors of its steps) -> h with the seeds blended into
    their rows."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        owned: bool,
        own_gradient: bool,
        keep: bool,
        settings: Sequence[_GroupSettings],
        *tensors: Tensor,
    ) -> Tensor:
        groups = [_with_flat_gates(group) for group in _groups(settings, tensors)]
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
            own = (value for group in groups for value in _tensors(group))
            ctx.save_for_backward(*own, *(v for some in (*inputs, *statistics) for v in some))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        sizes = [own.buffers for own in ctx.settings]
        given = sum(own.tensors + sum(map(_tensors_of, own.steps)) for own in ctx.settings)
        saved = ctx.saved_tensors
        groups = _groups(ctx.settings, saved[:given])
        inputs = _split(saved[given : given + sum(sizes)], sizes)
        statistics = _split(saved[given + sum(sizes) :], [len(own.steps) for own in ctx.settings])
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
        return (total, *[None] * 4, *(value for own in found for value in own))


def _with_flat_gates(group: SeedRows) -> SeedRows:
    if group.gates is None:
        return group
    from esper.kasmina.ops.kernels.blend import flat_gates

    return group._replace(gates=flat_gates(*group.gates))


def _allocate_inputs(h: Tensor, group: SeedRows, keep: bool) -> list[Tensor | None]:
    """Allocate what each step of a group and its blend read; for the first step a copy of its rows,
    if that is kept or the step cannot read them in place."""
    shape = (len(group.rows), *h.shape[1:])
    copied = keep or isinstance(group.steps[0], ConvParameters)
    others = len(group.steps) - (group.style is None)
    own = [empty_activation(shape, h) for _ in range(others)]
    return [empty_activation(shape, h) if copied else None, *own]


def _run_forward(
    h: Tensor, group: SeedRows, inputs: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Blend the seeds of a group into their rows of `h`; return the statistics of its steps."""
    statistics = []
    for number, step in enumerate(group.steps):
        place = group.place(number)
        y = h if place.adds else inputs[number + 1]
        assert y is not None, "only the first input may be missing"
        statistics.append(_step_forward(step, h, inputs[number], y, place))
    if group.style is not None:
        from esper.kasmina.ops.kernels.blend import launch_blend

        launch_blend(h, group.to_blend(inputs))
    return statistics


def _step_forward(
    step: StepParameters, h: Tensor, own: Tensor | None, y: Tensor, place: Placement
) -> Tensor | None:
    """Run a step on rows of `h`, which are copied to `own`, or else on `own`."""
    if isinstance(step, ConvParameters):
        assert own is not None, "a convolution reads memory of its own"
        if place.takes:
            from esper.kasmina.ops.kernels.rows import take_used_rows

            take_used_rows(h, place.rows, place.alpha, own)
        _convolution(step).run_into(y, own, step.weight, False, place)
        return None
    x, kept = (h, own) if place.takes else (own, None)
    assert x is not None, "only the first input may be missing"
    if isinstance(step, NormParameters):
        from esper.kasmina.ops.kernels import normalise

        return normalise.run_forward(x, *step, relu=False, y=y, place=place, kept=kept)
    if isinstance(step, ExciteParameters):
        from esper.kasmina.ops.kernels import excite_seed

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
) -> list[Tensor | None]:
    """Add the gradients of a group's inputs to their rows; return those of its tensors.

    `between`: where the gradient goes between two steps, and from the blend to the last one.
    """
    others: list[Tensor | None] = [None, None]
    if group.style is not None:
        from esper.kasmina.ops.kernels.blend import launch_blend_back

        gates = launch_blend_back(grad, group.to_blend(inputs), between[-1])
        others += [None, *(gates if group.gates is not None else ())]
    found = list[Tensor]()
    for number in reversed(range(len(group.steps))):
        place = group.place(number)
        dy = grad if place.adds else between[number]
        dx = grad if place.takes else between[number - 1]
        step, parts = group.steps[number], (inputs[number], dy, dx)
        found = [*_step_backward(step, *parts, statistics[number], place), *found]
    return [*others, *found]


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
        from esper.kasmina.ops.kernels import excite_seed

        return excite_seed.run_backward(x, dy, step, dx, place)
    assert statistics is not None, "of a norm or a block"
    if isinstance(step, NormParameters):
        from esper.kasmina.ops.kernels import normalise

        scale, shift, groups = step
        return normalise.run_backward(
            x, dy, scale, shift, statistics, groups, relu=False, dx=dx, place=place
        )
    rows: dict[str, Tensor | None] = {"live": place.alpha}
    if place.adds:
        rows |= {"y_index": place.rows, "alpha": place.alpha}
    if place.takes:
        rows |= {"dx_index": place.rows}
    return blocks.run_backward(x, dy, step, statistics, dx, few_rows=True, **rows)


def _convolution(step: ConvParameters) -> Any:
    """Return the module with the kernels of a convolution."""
    from esper.kasmina.ops.kernels import convolution, depthwise

    return depthwise if step.depthwise else convolution


def _tensors_of(settings: Settings) -> int:
    """Return the number of tensors of a step."""
    kind, others = settings
    return len(kind._fields) - len(others)


def _settings(step: StepParameters) -> Settings:
    return type(step), tuple(value for value in step if not isinstance(value, Tensor))


def _groups(settings: Sequence[_GroupSettings], tensors: Sequence[Tensor]) -> list[SeedRows]:
    """Put together what `_tensors` took apart."""
    out, rest = [], iter(tensors)
    for steps, styled, gated in settings:
        rows, alpha = next(rest), next(rest)
        style = next(rest) if styled else None
        gates = (next(rest), next(rest)) if gated else None
        own = [
            one[0](*(next(rest) for _ in range(_tensors_of(one))), *one[1])  # type: ignore[arg-type]
            for one in steps
        ]
        out.append(SeedRows(rows, alpha, own, style, gates))
    return out


def _tensors(group: SeedRows) -> Iterator[Tensor]:
    """Yield the tensors of a group, as inputs of autograd."""
    yield from (group.rows, group.alpha)
    if group.style is not None:
        yield from (group.style, *(group.gates or ()))
    for step in group.steps:
        yield from (value for value in step if isinstance(value, Tensor))


def _split(tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[list[Tensor]]:
    rest = iter(tensors)
    return [[next(rest) for _ in range(size)] for size in sizes]


def add_seeds(h: Tensor, groups: Sequence[SeedRows], owned: bool, own_gradient: bool) -> Tensor:
    """Return `h` with the seeds of each group blended into their rows.

    A row may be in one group. `owned`, `own_gradient`: nothing else refers to `h`, or to its
    gradient, so that it is changed in place.
    """
    settings = [
        _GroupSettings([_settings(s) for s in g.steps], g.style is not None, g.gates is not None)
        for g in groups
    ]
    tensors = (value for group in groups for value in _tensors(group))
    keep = torch.is_grad_enabled()
    out: Tensor = _SeedSteps.apply(h, owned, own_gradient, keep, settings, *tensors)
    return out
