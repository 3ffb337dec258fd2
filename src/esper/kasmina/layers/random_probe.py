"""Find the parts of a network that draw random numbers, by running each that may.

Torch operations known to `random_layers` draw from Esper's streams. Others cannot be reproduced:
other generators, unknown operations, numbers drawn again in the backward pass. They are reported in
one warning and run unchanged.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from esper.device.rng import forked_rng
from esper.kasmina.layers.layers import has_hooks
from esper.kasmina.layers.modes import in_mode
from esper.kasmina.layers.random_layers import RowDraws, RowStreams, Site
from esper.leyline.errors import ShapeError

logger = logging.getLogger(__name__)

_ATTENTIONS: Final = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}
"""Functions that compute attention, and the place of `dropout_p` among their arguments."""
_CHECKPOINT: Final = "torch.utils.checkpoint (again in the backward pass)"
_UNSEEN: Final = "a source that is not known"
_QUIET: Final = frozenset(
    {
        nn.Sequential, nn.ModuleList, nn.Identity, nn.Flatten, nn.Linear, nn.Embedding, nn.Conv1d,
        nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.ReLU, nn.GELU,
        nn.SiLU, nn.Tanh, nn.Sigmoid, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d,
        nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    }
)  # fmt: skip
"""Layers of torch that draw nothing; not their subclasses."""
_OURS: Final = ("esper.kasmina.layers.layers", "esper.kasmina.hosts.", "esper.kasmina.blueprints.")
"""Packages whose own modules draw nothing; what a user puts into them is looked at by itself."""


@dataclass(frozen=True, slots=True)
class _Draws:
    """Random numbers drawn by one part of a network in training mode."""

    site: Site | None
    """None if nothing is drawn from Esper's streams."""
    uncontrolled: tuple[str, ...]
    """Descriptions of other sources."""
    out: Tensor
    """Its output, detached."""


def draws_nothing(module: nn.Module) -> bool:
    """Whether all parts are layers that are known to draw nothing, as they were written."""
    return not has_hooks(module) and all(
        "forward" not in vars(part)
        and (type(part) in _QUIET or type(part).__module__.startswith(_OURS))
        for part in module.modules()
    )


def find_draws(name: str, module: nn.Module, *inputs: Tensor) -> _Draws:
    """Run a module in training mode on at least two samples, twice unless it is known to draw
    nothing; its state is restored."""
    with in_mode(module, training=True), torch.inference_mode(False), torch.enable_grad():
        if draws_nothing(module):
            given = tuple(x.detach().clone() for x in inputs)
            out = functional_call(module, _cloned_state(module), given)
            return _Draws(None, (), out.detach())
        with forked_rng(0, inputs[0].device):
            return _find_by_trial(name, module, inputs)


def _find_by_trial(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> _Draws:
    site = Site(name)
    with _AttentionRecorder() as attention:
        out, watch, sources = _run(site, module, inputs)
    if attention.draws:
        site = Site(name, plain_attention=True)
        out, watch, sources = _run(site, module, inputs)
    again, _, _ = _run(site, module, inputs)
    same = torch.allclose(out.float(), again.float(), rtol=1e-4, atol=1e-5, equal_nan=True)
    if not same and not sources:
        sources = [_UNSEEN]
    known = bool(watch.calls) and _CHECKPOINT not in sources
    return _Draws(site if known else None, tuple(sources), out.detach())


def draws_in_evaluation(module: nn.Module, x: Tensor) -> bool:
    """Whether a module draws random numbers in eval mode."""
    if draws_nothing(module):
        return False
    watch = _DrawRecorder(Site("evaluation"), x.device)
    with in_mode(module, training=False), forked_rng(0, x.device), torch.no_grad(), watch:
        module(x.clone())
    return bool(watch.calls or watch.unknown)


def report_draws(owner: str, sources: Sequence[str]) -> None:
    """Warn if a run is not reproducible."""
    if sources:
        _warn(
            f"{owner} draws random numbers from {', '.join(sources)}; use dropout, torch.rand or "
            f"torch.bernoulli, which Esper repeats (docs/own-host.md)"
        )


def report_evaluation(owner: str) -> None:
    """Warn about random numbers drawn in eval mode."""
    _warn(f"{owner} draws random numbers in evaluation mode: pass training=self.training")


@cache
def _warn(line: str) -> None:
    """Warn once per process: all populations of a run have the same parts."""
    logger.warning("this run is not reproducible: %s", line)


class _DrawRecorder(RowDraws):  # type: ignore[no-untyped-call]
    """Draws for one row, and records operations it cannot draw for."""

    def __init__(self, site: Site, device: torch.device) -> None:
        streams = RowStreams(torch.zeros(1, dtype=torch.int64, device=device))
        super().__init__(streams, site, slice(1), stacked=False)
        self._device = device
        self.unknown: list[str] = []
        """Operations that advanced torch's own generator."""

    def other(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        before = self._torch_states()  # the tag does not say whether it draws this time
        out = func(*args, **kwargs)
        if not torch.equal(before, self._torch_states()):
            self.unknown.append(func.overloadpacket.__name__)
        return out

    def _torch_states(self) -> Tensor:
        states = [torch.get_rng_state()]
        if self._device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self._device))
        return torch.cat(states)


class _AttentionRecorder(TorchFunctionMode):
    """Records whether attention is called with dropout.

    Whether torch then takes a fused kernel, with random numbers of its own, depends on sizes; other
    widths of the same network may get one.
    """

    draws = False

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        place = _ATTENTIONS.get(func)
        if place is not None:
            dropout = args[place] if len(args) > place else kwargs.get("dropout_p", 0.0)
            self.draws = self.draws or dropout > 0.0
        return func(*args, **kwargs)


def _run(
    site: Site, module: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Tensor, _DrawRecorder, list[str]]:
    """Run once on copies of the state; return output, draws and other sources."""
    watch = _DrawRecorder(site, inputs[0].device)
    python_before, numpy_before = random.getstate(), _numpy_state()
    given = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    with watch:
        out = functional_call(module, _cloned_state(module), tuple(x.clone() for x in given))
    if not isinstance(out, Tensor):
        raise ShapeError(f"{site.name} gives {type(out).__name__} in training mode, not a tensor")
    sources = [f"torch.{op}" for op in dict.fromkeys(watch.unknown)]
    if _numpy_state() != numpy_before:
        sources.append("numpy.random")
    if random.getstate() != python_before:
        sources.append("Python's random")
    if watch.calls and out.requires_grad and _draws_backward(site, out):
        sources.append(_CHECKPOINT)
    return out, watch, sources


def _numpy_state() -> tuple[object, ...]:
    kind, words, *rest = np.random.get_state()
    return (kind, np.asarray(words).tobytes(), *rest)


def _cloned_state(module: nn.Module) -> dict[str, Tensor]:
    state = {n: p.detach().clone() for n, p in module.named_parameters()}
    for name, parameter in module.named_parameters():
        state[name].requires_grad_(parameter.requires_grad)
    return state | {name: buffer.clone() for name, buffer in module.named_buffers()}


def _draws_backward(site: Site, out: Tensor) -> bool:
    with _DrawRecorder(site, out.device) as watch:
        out.sum().backward()  # type: ignore[no-untyped-call]
    return bool(watch.calls or watch.unknown)
