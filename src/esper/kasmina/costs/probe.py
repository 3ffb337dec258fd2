"""Validate a host on one sample: its chain of segments, shapes at the slots, MACs.

Everything runs on the template, before a member trains. A sample runs alone and as a batch of two,
so that another axis cannot pass as the batch axis, whatever its size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina.executors.base import check_delta
from esper.kasmina.layers.counting import count_macs
from esper.kasmina.layers.modes import in_mode
from esper.kasmina.layers.random_probe import draws_in_evaluation
from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.stacked.network import StackedNetwork
from esper.leyline.errors import EsperError, ShapeError
from esper.leyline.user_errors import user_code


@dataclass(frozen=True, slots=True)
class HostProbe:
    """Facts about a host, found on the first input of a population."""

    sample_shape: tuple[int, ...]
    """Shape of one input, without the batch axis."""
    slot_shapes: tuple[tuple[int, ...], ...]
    """Activation shape at each slot, without the batch axis."""
    host_macs: int


@dataclass(frozen=True, slots=True, eq=False)
class _ShapeTrace:
    """Shapes that inputs of one size lead to."""

    slot_shapes: tuple[tuple[int, ...], ...]
    """Activation shape at each slot, without the batch axis."""
    output: Tensor
    """Output for one sample, `[1, ...]`."""


def trace_shapes(network: StackedNetwork, x: Tensor) -> _ShapeTrace:
    """Run one sample of `x` (a non-empty batch) through the template, segment by segment.

    Raises if a segment fails or does not return one tensor, batch first, or if an activation does
    not match its slot's spec.
    """
    host = network.host.template
    with in_mode(host, training=False), _temporary_buffers(host), torch.no_grad():
        shapes, output = _run_chain(network, x[:1])
        in_pairs, _ = _run_chain(network, _pair(x))
    for index, (one, two) in enumerate(zip(shapes, in_pairs, strict=True)):
        if two != (2, *one[1:]):
            raise _not_batch_first(network, index, two, 2)
    if not output.is_floating_point():
        raise ShapeError(
            f"host {_name(network)} gives {_dtype(output.dtype)}: outputs must be real numbers, "
            f"logits for classification"
        )
    return _ShapeTrace(tuple(shapes[spec.position][1:] for spec in network.slots), output)


def probe_host(network: StackedNetwork, x: Tensor, trace: _ShapeTrace) -> HostProbe:
    """Check that `forward` equals the chain and that a train batch works; count MACs."""
    _check_forward(network, x[:1], trace.output)
    _try_training(network, _pair(x), trace.output.shape[1:])
    macs = count_macs(network.host.template, x[:1])
    return HostProbe(tuple(x.shape[1:]), trace.slot_shapes, macs)


def runs_channels_last(network: StackedNetwork, x: Tensor) -> bool:
    """Whether the host computes the same from channels-last images; a user's `view` may fail.

    In full precision: layouts have different kernels, whose rounding adds up in deep hosts.
    """
    host = network.host.template
    if x.ndim != 4 or network.topology != "cnn":
        return False
    pair = _pair(x)
    outs = []
    try:
        for given in (pair, pair.contiguous(memory_format=torch.channels_last)):
            with (
                _temporary_buffers(host),
                torch.no_grad(),
                forked_rng(0, network.device),
                kernel_scope(kernels="own"),
            ):
                with in_mode(host, training=False), _full_precision(network.device):
                    outs.append(_run_chain(network, given)[1])
                with in_mode(host, training=True):
                    _run_chain(network, given)
    except torch.OutOfMemoryError:
        raise
    except (EsperError, RuntimeError, ValueError):  # in this layout: the other one was probed
        return False
    return _allclose(*outs)


def probe_seed(
    network: StackedNetwork,
    template: nn.Module,
    slot_shape: tuple[int, ...],
    slot: int,
    blueprint: int,
) -> int:
    """Return the MACs of a seed given as a module; raises if it does not keep the slot's shape."""
    h = torch.zeros(1, *slot_shape, device=network.device)
    name, place = network.blueprints[blueprint].name, network.slots[slot].slot_id
    with (
        user_code(f"blueprint {name!r} fails in slot {place} on an activation {tuple(h.shape)}"),
        in_mode(template, training=False),
        torch.no_grad(),
    ):
        check_delta(network, slot, blueprint, template(h.clone()), h)
        return count_macs(template, h)


def _pair(x: Tensor) -> Tensor:
    """Return a batch of two copies of the first sample: norms over a batch need two."""
    return torch.cat([x[:1], x[:1]])


def _run_chain(network: StackedNetwork, x: Tensor) -> tuple[list[tuple[int, ...]], Tensor]:
    """Run the template's segments; return the shape after each, and the output."""
    shapes: list[tuple[int, ...]] = []
    h = x.clone()  # a segment may work in place
    for index, segment in enumerate(network.segments):
        kind, given = type(segment.module).__name__, f"{tuple(h.shape)}, {_dtype(h.dtype)}"
        what = f"host {_name(network)} segment {index} ({kind}) fails on {given}"
        with user_code(what, _advice(network, index, h), (RuntimeError, ValueError)):
            out = segment.module(h)
        if not isinstance(out, Tensor):
            raise _not_batch_first(network, index, type(out).__name__, len(x))
        if out.shape[:1] != x.shape[:1]:
            raise _not_batch_first(network, index, tuple(out.shape), len(x))
        h = out
        shapes.append(tuple(h.shape))
        for slot, spec in enumerate(network.slots):
            if spec.position == index:
                _check_slot(network, slot, h)
    return shapes, h


def _check_slot(network: StackedNetwork, slot: int, h: Tensor) -> None:
    network.check_activation(slot, h)
    coarse = torch.is_autocast_enabled(h.device.type) and h.is_floating_point()
    if h.dtype != torch.float32 and not coarse:
        spec = network.slots[slot]
        raise ShapeError(
            f"host {_name(network)} segment {spec.position} gives {_dtype(h.dtype)} at slot "
            f"{spec.slot_id}: seeds compute in float32; convert it inside the segment"
        )


def _check_forward(network: StackedNetwork, x: Tensor, chain: Tensor) -> None:
    """Raise unless `forward` equals running the segments in order."""
    host = network.host.template
    given = x.clone()
    with in_mode(host, training=False), _temporary_buffers(host), torch.no_grad():
        with user_code(f"host {_name(network)} forward(x) fails on {tuple(x.shape)}"):
            whole = host(given)
        if not isinstance(whole, Tensor):
            raise ShapeError(
                f"host {_name(network)}: forward(x) returns {type(whole).__name__}; it must return "
                f"one tensor, the output of the last segment"
            )
        if _allclose(whole, chain):
            return _check_input_kept(network, given)
        if draws_in_evaluation(host, x) or not _allclose(_run_chain(network, x)[1], chain):
            raise ShapeError(
                f"host {_name(network)} draws random numbers in evaluation mode: use nn.Dropout, "
                f"or F.dropout(x, p, training=self.training)"
            )
    raise ShapeError(
        f"host {_name(network)}: forward(x) differs from running its segments in order; "
        f"segments() must be the whole chain"
    )


def _check_input_kept(network: StackedNetwork, given: Tensor) -> None:
    """Raise if the host modifies its input, which other members and passes share."""
    if not given.is_inference() and given._version:
        raise EsperError(
            f"host {_name(network)} writes over its input: others read the same batch; start with "
            f"an operation that is not in place"
        )


@contextlib.contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Compute without autocast and without TF32."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    try:
        cudnn.allow_tf32 = matmul.allow_tf32 = False
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before


def _allclose(a: Tensor, b: Tensor) -> bool:
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def _try_training(network: StackedNetwork, x: Tensor, output_shape: Sequence[int]) -> None:
    """Run forward and backward in training mode; buffers and random state are restored."""
    host, name = network.host.template, _name(network)
    learnt = [p for p in host.parameters() if p.requires_grad]
    if any(p.is_inference() for p in learnt):
        return  # built in inference mode: such a population never trains
    with (
        in_mode(host, training=True),
        torch.inference_mode(False),
        torch.enable_grad(),
        forked_rng(0, network.device),
        user_code(f"host {name} fails in a train batch {tuple(x.shape)}"),
        _temporary_buffers(host) as copies,
    ):
        out = _run_chain(network, x.clone())[1]
        _check_buffers_kept(network, copies)
        if learnt and not out.requires_grad:
            raise EsperError(
                f"host {name}: no gradient reaches its parameters; look for torch.no_grad(), "
                f".detach() or numpy in its segments"
            )
        if learnt:
            torch.autograd.grad(out.float().square().sum(), learnt, allow_unused=True)
    if out.shape[1:] != output_shape:
        raise ShapeError(
            f"host {name} gives {tuple(out.shape[1:])} for a sample in training mode and "
            f"{tuple(output_shape)} in eval mode: give one shape in both"
        )


def _check_buffers_kept(network: StackedNetwork, copies: dict[str, Tensor]) -> None:
    """Raise if a buffer was reassigned: only in-place updates reach the member."""
    now = dict(network.host.template.named_buffers(remove_duplicate=False))
    for name, copy in copies.items():
        found = now.get(name)
        if found is not None and found is not copy and found.shape == copy.shape:
            raise EsperError(
                f"host {_name(network)} assigns its buffer {name!r} anew in forward, which members "
                f"cannot keep: write it in place, as in buffer.copy_(value)"
            )


@contextlib.contextmanager
def _temporary_buffers(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Replace the module's buffers by copies inside the block; yield them by name."""
    kept = [(part, dict(part._buffers)) for part in module.modules()]
    copies: dict[int, Tensor] = {}
    for part, buffers in kept:
        for name, buffer in buffers.items():
            if buffer is not None:
                part._buffers[name] = copies.setdefault(id(buffer), buffer.clone())
    try:
        yield dict(module.named_buffers(remove_duplicate=False))
    finally:
        for part, buffers in kept:
            part._buffers.clear()
            part._buffers.update(buffers)


def _advice(network: StackedNetwork, index: int, h: Tensor) -> str:
    """Return advice for a segment that fails on its input."""
    if index:
        return ""
    kinds = {p.dtype for p in network.host.template.parameters()}
    if kinds and h.dtype not in kinds:
        return f"its parameters are {_dtype(next(iter(kinds)))}: convert the input, as in x.float()"
    return "give inputs [members, batch, ...] of the size it was built for, or build it for these"


def _not_batch_first(
    network: StackedNetwork, index: int, found: tuple[int, ...] | str, batch: int
) -> ShapeError:
    return ShapeError(
        f"host {_name(network)} segment {index} turns a batch of {batch} into {found}: a segment "
        f"maps one tensor to one tensor, batch first; inputs are [members, batch, ...]"
    )


def _name(network: StackedNetwork) -> str:
    return type(network.host.template).__name__


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
