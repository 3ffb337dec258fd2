"""Stacked parameters: one flat tensor `[E, P]` per kind of module, with named views.

All parameters of a host (or of one blueprint in one slot) of all members are rows of one tensor, so
that an optimiser step, clipping, a snapshot or a reset takes a handful of operations for any
module. Buffers and frozen parameters are stacked separately.

Shape letters: E members, R rows, P parameters of one member.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from esper.device.triton_support import can_use_kernels
from esper.device.upload import upload
from esper.kasmina.layers.initialisation import Initialiser
from esper.kasmina.layers.random_layers import Site
from esper.kasmina.ops.flat_draws import FlatDraws
from esper.kasmina.stacked.binding import Binding
from esper.leyline.streams import UInt64Array


class _FrozenRows(torch.autograd.Function):
    """(values `[E, P]`, member, frozen) -> rows; frozen ones pass no gradient, whatever it is.

    As indexing and `torch.where`, in fewer operations.
    """

    @staticmethod
    def forward(ctx: Any, flat: Tensor, member_R: Tensor, frozen_R: Tensor) -> Tensor:
        ctx.save_for_backward(member_R, frozen_R)
        ctx.members = len(flat)
        if _kernels_apply(flat, member_R):
            from esper.kasmina.ops.kernels.gather import gather_rows

            return gather_rows(flat, member_R)
        return flat.index_select(0, member_R)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        member_R, frozen_R = ctx.saved_tensors
        if _kernels_apply(grad, member_R):
            from esper.kasmina.ops.kernels.gather import scatter_rows

            return scatter_rows(grad, member_R, frozen_R, ctx.members), None, None
        kept = grad.masked_fill(frozen_R[:, None], 0.0)
        return grad.new_zeros(ctx.members, grad.shape[1]).index_add_(0, member_R, kept), None, None


def _kernels_apply(values: Tensor, member_R: Tensor) -> bool:
    return can_use_kernels(values) and values.numel() > 0 and len(member_R) > 0


class ParameterStore:
    """Stacked parameters and buffers of one kind of module."""

    def __init__(self, initialiser: Initialiser, members: int, device: torch.device) -> None:
        self.members = members
        self.device = device
        self.writes_input = False
        """Whether the module modifies its input in place, and so needs a copy of shared inputs."""
        self.site: Site | None = None
        """Random-number site of the module in training; None if it draws nothing."""
        self._initialiser = initialiser
        self.template: nn.Module = initialiser.template.to(device, non_blocking=True)
        """Provides the structure; its own parameters are never trained. It stays on a real device,
        because a module on the meta device loses tied weights."""
        self.tied = _has_ties(self.template)
        """Whether a tensor of the module has several names."""
        self.binding = Binding(self.template)
        trained = {n: p for n, p in self.template.named_parameters() if p.requires_grad}
        self.shapes = {name: tuple(p.shape) for name, p in trained.items()}
        self._sizes = [p.numel() for p in trained.values()]
        size = self._row_size()
        self.flat_EP = torch.zeros(members, size, device=device, dtype=torch.float32)
        self.flat_EP.requires_grad_(True)
        self.fixed: dict[str, Tensor] = {
            name: value.detach().expand(members, *value.shape).clone()
            for name, value in (*self.template.named_parameters(), *self.template.named_buffers())
            if name not in self.shapes
        }
        """Buffers and frozen parameters, `[E, ...]` each."""
        self._values: dict[int, dict[str, Tensor]] = {}
        self._leaves: dict[int, dict[str, Tensor]] = {}

    def _row_size(self) -> int:
        """Return the numbers of one row of `flat_EP`."""
        return sum(self._sizes)

    @property
    def parameters_per_member(self) -> int:
        """P."""
        return self.flat_EP.shape[1]

    # A store whose parameters are cut over ranks (`ShardedStore`) overrides these.

    def whole(self, part: Tensor, device: torch.device | None = None) -> Tensor:
        """Return rows `[N, P]` of all parameters, given those this process holds.

        `device`: where to put them together, if they are not.
        """
        return part

    def part(self, whole: Tensor) -> Tensor:
        """Return what this process holds of rows `[N, P]` of all parameters."""
        return whole

    def total_norms(self, norm_E: Tensor) -> Tensor:
        """Return norms over all parameters, given those over what this process holds."""
        return norm_E

    def mean_square(self) -> Tensor:
        """Return `[E]` the mean square of all parameters."""
        return self.flat_EP.detach().square().mean(dim=1)

    def everywhere(self, flag_E: Tensor) -> Tensor:
        """Return whether a flag is set for all parts of the parameters."""
        return flag_E

    def release_template(self) -> None:
        """Free the values of the template once it has been tried, if memory is short."""

    def member_tensors(self, member: int) -> dict[str, Tensor]:
        """Return a member's parameters and buffers; views where possible."""
        values = self.named_row(self.flat_EP.detach()[member])
        return values | {name: stacked[member] for name, stacked in self.fixed.items()}

    def named(self, flat_RP: Tensor) -> dict[str, Tensor]:
        """Return views of a `[R, P]` tensor by parameter name, `[R, ...]` each."""
        parts = torch.split(flat_RP, self._sizes, dim=1)
        return {
            name: part.view(-1, *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def named_row(self, flat_P: Tensor) -> dict[str, Tensor]:
        """Return views of one row by parameter name."""
        parts = torch.split(flat_P, self._sizes)
        return {
            name: part.view(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def member_values(self, member: int) -> dict[str, Tensor]:
        """Return a member's parameters without gradients; the same views at every call."""
        if member not in self._values:
            with torch.inference_mode(False):
                self._values[member] = self.named_row(self.flat_EP.detach()[member])
        return self._values[member]

    def member_leaves(self, member: int) -> dict[str, Tensor]:
        """Return a member's parameters as leaves of autograd, the same ones at every call."""
        if member not in self._leaves:
            with torch.inference_mode(False):
                views = self.member_values(member).items()
                self._leaves[member] = {n: v.detach().requires_grad_() for n, v in views}
        return self._leaves[member]

    def collect_gradients(self) -> None:
        """Move the gradients of the members' leaves to `flat_EP`; None if there are none."""
        leaves = [self.member_leaves(m).values() for m in self._leaves]
        if not any(leaf.grad is not None for parts in leaves for leaf in parts):
            return
        grad_EP = torch.zeros_like(self.flat_EP)
        into: list[Tensor] = []
        given: list[Tensor] = []
        for member, parts in zip(self._leaves, leaves, strict=True):
            named = self.named_row(grad_EP[member]).values()
            for leaf, place in zip(parts, named, strict=True):
                if leaf.grad is not None:
                    into.append(place)
                    given.append(leaf.grad)
                leaf.grad = None
        torch._foreach_copy_(into, given)
        self.flat_EP.grad = grad_EP

    def begin_pass(self) -> None:
        """Before a forward pass: remove all gradients, and make a new leaf of autograd.

        The node that adds up the gradient of a leaf belongs to the stream of its first use, and
        lives as long as any graph of an earlier pass: a compiler's reference cycles may hold the
        frames of one until the next garbage collection. A capture fails if it meets the node of
        another stream.
        """
        with torch.inference_mode(False):
            self.flat_EP = self.flat_EP.detach().requires_grad_()
        if self._leaves and self.flat_EP.is_cuda and torch.cuda.is_current_stream_capturing():
            self._leaves.clear()  # only here: making them takes a while
        for parts in self._leaves.values():
            for leaf in parts.values():
                leaf.grad = None

    def draw(self, keys: UInt64Array, index_N: Tensor, keys_N: Tensor | None = None) -> None:
        """Initialise rows `index_N`, one stream key per row; `keys_N`: the keys on the device."""
        draws = self._kernel_draws()
        if draws is not None:
            from esper.kasmina.ops.kernels.draws import draw_rows

            keys_N = upload(keys.view(np.int64), self.device) if keys_N is None else keys_N
            return draw_rows(self.flat_EP.detach(), index_N, keys_N, draws)
        values = self._initialiser.sample(keys, self.device)
        if self.shapes:
            flat = torch.cat([values[n].reshape(len(keys), -1) for n in self.shapes], dim=1)
            self.flat_EP.detach().index_copy_(0, index_N, flat)
        for name, stacked in self.fixed.items():
            stacked.index_copy_(0, index_N, values[name])

    def _kernel_draws(self) -> FlatDraws | None:
        """Return how a kernel draws rows; None if it cannot."""
        if self.fixed or not self.shapes or not can_use_kernels(self.flat_EP):
            return None
        return self._flat_draws

    @cached_property
    def _flat_draws(self) -> FlatDraws | None:
        return self._initialiser.flat_draws(self.shapes, self.device)

    def inherit(self, source: ParameterStore, names: Mapping[str, str], index_N: Tensor) -> None:
        """Copy tensors of members `index_N` from another store; `names`: own -> the source's."""
        own = self.named(self.flat_EP.detach()) | self.fixed
        given = source.named(source.flat_EP.detach()) | source.fixed
        for name, source_name in names.items():
            own[name].index_copy_(0, index_N, given[source_name].index_select(0, index_N))

    def gather(self, member_R: Tensor | None, frozen_R: Tensor | None) -> dict[str, Tensor]:
        """Return the parameters of rows: row r is member `member_R[r]` (None: every member once).

        Rows in `frozen_R` have the same values but pass no gradient.
        """
        flat = self.flat_EP
        if member_R is not None and frozen_R is not None:
            rows: Tensor = _FrozenRows.apply(flat, member_R, frozen_R)  # type: ignore[no-untyped-call]
            return self.named(rows)
        if member_R is not None:
            flat = flat.index_select(0, member_R)
        if frozen_R is not None:
            flat = torch.where(frozen_R[:, None], flat.detach(), flat)
        return self.named(flat)

    def gather_fixed(self, member_R: Tensor | None) -> dict[str, Tensor]:
        """Return copies of the buffers and frozen parameters of rows, which rows may modify."""
        if member_R is None:
            return {name: value.clone() for name, value in self.fixed.items()}
        return {name: value.index_select(0, member_R) for name, value in self.fixed.items()}

    def copy_template(self) -> nn.Module:
        """Return another module of the kind; rebuilt if it cannot be deep-copied."""
        try:
            return copy.deepcopy(self.template)
        except (RuntimeError, TypeError):
            return self._initialiser.rebuild().to(self.device)


def _has_ties(module: nn.Module) -> bool:
    tensors = [id(p) for _, p in module.named_parameters(remove_duplicate=False)]
    tensors += [id(b) for _, b in module.named_buffers(remove_duplicate=False)]
    return len(set(tensors)) < len(tensors)
