"""What a module costs: parameters and multiply-accumulates, counted on the module itself.

MACs are those of convolutions and matrix products (torch's flop counter, halved), for one sample.
Element-wise work (norms, activations, scales) is not counted, for hosts and seeds alike.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina.convolution import as_torch_does


def count_parameters(module: nn.Module) -> int:
    """Trainable parameters, a shared one once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def count_macs(module: nn.Module, x: Tensor) -> int:
    """Multiply-accumulates of one forward on one sample; `x` is a batch of any size."""
    was_training = module.training
    module.eval()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), as_torch_does(), counter:
        module(x[:1])
    module.train(was_training)
    return int(counter.get_total_flops()) // 2
