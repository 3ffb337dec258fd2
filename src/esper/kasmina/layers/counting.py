"""Parameter and multiply-accumulate counts of modules.

MACs are those of convolutions and matrix products (torch's flop counter, halved) for one sample.
Element-wise operations (norms, activations, scales) are not counted.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter as torch_counter
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina.ops.kernel_scope import kernel_scope


def count_parameters(module: nn.Module) -> int:
    """Return the number of trainable parameters, shared ones once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


@contextlib.contextmanager
def flop_counter() -> Iterator[FlopCounterMode]:
    """Count floating-point operations inside the block, by their definitions.

    Attention is computed unfused, because torch's counter does not know all fused kernels.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        counter = FlopCounterMode(display=False)
        as_defined = kernel_scope(torch_convolutions=True)
        with as_defined, sdpa_kernel(SDPBackend.MATH), _without_compiler(), counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    """Count without importing torch's compiler, which takes over a second.

    Torch wraps the counter so that the compiler leaves it alone, and the wrapper imports it.
    """
    mode = getattr(torch_counter, "_FlopCounterMode", None)
    wrapped = getattr(mode, "__torch_dispatch__", None)
    bare = getattr(wrapped, "__wrapped__", None)
    if mode is None or bare is None or "torch._dynamo" in sys.modules:
        yield
        return
    mode.__torch_dispatch__ = bare
    try:
        yield
    finally:
        mode.__torch_dispatch__ = wrapped


def count_macs(module: nn.Module, x: Tensor) -> int:
    """Return the multiply-accumulates of a forward pass per sample; `x` is a batch of any size."""
    was_training = module.training
    module.eval()
    with torch.no_grad(), flop_counter() as counter:
        module(x[:1])
    module.train(was_training)
    return int(counter.get_total_flops()) // 2


def count_training_macs(network: nn.Module, run: Callable[[], Tensor]) -> tuple[int, int]:
    """Return the multiply-accumulates of a forward pass, and of that with its backward pass.

    `run`: calls the network with one sample. Modules run in eval mode, so that norms accept one
    sample and no buffer changes; gradients are dropped, modes put back.
    """
    modes = {part: part.training for part in network.modules()}
    network.eval()
    try:
        with torch.inference_mode(False), torch.enable_grad(), flop_counter() as counter:
            out = run()
            forward = int(counter.get_total_flops()) // 2
            if out.requires_grad:
                # The counter's hooks do not support torch.autograd.grad.
                out.float().square().sum().backward()  # type: ignore[no-untyped-call]
    finally:
        for part, mode in modes.items():
            part.training = mode
        network.zero_grad(set_to_none=True)
    return forward, int(counter.get_total_flops()) // 2
