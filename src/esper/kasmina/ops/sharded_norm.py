"""Batch norm over the whole batch where every rank computes a share of it.

Shape letters: B batch, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from esper.device.shards import BatchShare, Shards
from esper.kasmina.ops.batch_norm import batch_norms_by, update_statistics
from esper.leyline.errors import EsperError


@contextmanager
def whole_batch_norms(module: nn.Module, shards: Shards, share: BatchShare) -> Iterator[None]:
    """Let the batch norms of a module see the samples of all ranks inside the block."""
    if shards.size == 1:
        yield
        return
    with batch_norms_by(module, partial(_whole_batch_norm, shards, share)):
        yield


def _whole_batch_norm(shards: Shards, share: BatchShare, norm: TorchBatchNorm, x: Tensor) -> Tensor:
    """Return `norm(x)` with mean and variance of all ranks' samples."""
    norm._check_input_dim(x)  # type: ignore[no-untyped-call]
    by_batch = norm.training or norm.running_mean is None
    if not by_batch:
        return F.batch_norm(
            x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
        )
    values = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    over = [axis for axis in range(x.ndim) if axis != 1]
    each = x[0, 0].numel()
    count = share.batch * each
    if count < 2:
        raise EsperError(f"batch norm over a batch of {share.batch}: it needs more than one value")
    idle = 0.0 if not share.count else 1.0
    shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    mean_C = shards.total(values.sum(dim=over) * idle) / count
    centred = values - mean_C.view(shape)
    variance_C = shards.total(centred.square().sum(dim=over) * idle) / count
    if norm.training and norm.track_running_stats and norm.running_mean is not None:
        update_statistics(norm, mean_C.detach(), variance_C.detach() * (count / (count - 1)))
    out = centred * (variance_C + norm.eps).rsqrt().view(shape)
    if norm.weight is not None:
        out = out * norm.weight.view(shape) + norm.bias.view(shape)
    return out.to(x.dtype)
