"""Parameter and multiply-accumulate counts of modules.

MACs are those of convolutions and matrix products (torch's flop counter, halved) for one sample.
Element-wise operations (norms, activations, scales) are not counted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina.convolution import torch_convolutions


def count_parameters(module: nn.Module) -> int:
    """Return the number of trainable parameters, shared ones once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def count_macs(module: nn.Module, x: Tensor) -> int:
    """Return the multiply-accumulates of a forward pass per sample; `x` is a batch of any size."""
    was_training = module.training
    module.eval()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), torch_convolutions(), counter:
        module(x[:1])
    module.train(was_training)
    return int(counter.get_total_flops()) // 2
