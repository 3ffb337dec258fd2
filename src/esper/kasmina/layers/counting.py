"""Parameter and multiply-accumulate counts of modules.

MACs are those of convolutions and matrix products (torch's flop counter, halved) for one sample.
Element-wise operations (norms, activations, scales) are not counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from esper.kasmina.layers.modes import in_mode
from esper.kasmina.ops.kernel_scope import kernel_scope


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a network."""

    params: int
    """That train."""
    macs: int
    train_macs: int
    """Of a sample, forward and backward."""


def count_parameters(module: nn.Module) -> int:
    """Return the number of trainable parameters, shared ones once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


class _FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts floating-point operations by torch's formulas; its own counter also asks where."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping imports torch's compiler, which takes over a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.prim.device.default:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += int(formula(*args, **kwargs, out_val=out))
        return out


@contextlib.contextmanager
def flop_counter() -> Iterator[_FlopCounter]:
    """Count floating-point operations inside the block, by their definitions.

    Attention is computed unfused, because torch's counter does not know all fused kernels.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        as_defined = kernel_scope(torch_convolutions=True)
        with as_defined, sdpa_kernel(SDPBackend.MATH), _FlopCounter() as counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def count_macs(module: nn.Module, x: Tensor) -> int:
    """Return the multiply-accumulates of a forward pass per sample; `x` is a batch of any size."""
    with in_mode(module, training=False), torch.no_grad(), flop_counter() as counter:
        module(x[:1])
    return counter.total // 2


def count_training_macs(network: nn.Module, run: Callable[[], Tensor]) -> tuple[int, int]:
    """Return the multiply-accumulates of a forward pass, and of that with its backward pass.

    `run`: calls the network with one sample. Modules run in eval mode, so that norms accept one
    sample and no buffer changes; gradients are dropped, modes put back.
    """
    with (
        in_mode(network, training=False),
        torch.inference_mode(False),
        torch.enable_grad(),
        flop_counter() as counter,
    ):
        out = run()
        forward = counter.total // 2
        if out.requires_grad:
            # The counter's hooks do not support torch.autograd.grad.
            out.float().square().sum().backward()  # type: ignore[no-untyped-call]
    network.zero_grad(set_to_none=True)
    return forward, counter.total // 2
