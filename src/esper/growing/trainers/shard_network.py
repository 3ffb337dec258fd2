"""One network on several ranks: FSDP2 cuts its parameters, and every rank computes its samples."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from esper.device.shards import BatchShare, Shards
from esper.growing.trainers.job import Job
from esper.growing.trainers.shard_draws import WholeBatchDraws
from esper.growing.trainers.shard_units import Calls, watch_calls
from esper.growing.trainers.task import Task
from esper.kasmina.layers.modes import in_mode
from esper.kasmina.ops.sharded_norm import whole_batch_norms
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import user_code

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


class SharedNetwork(nn.Module):
    """A network that is called with whole batches: every rank computes a share of the samples."""

    def __init__(self, inner: nn.Module, shards: Shards) -> None:
        super().__init__()
        self.inner, self._shards = inner, shards
        self._share: BatchShare | None = None
        self.draws = True
        """Whether it draws random numbers in training."""
        self.tried = False
        """Whether it was trained on a batch."""

    @contextlib.contextmanager
    def computing(self, batch: int) -> Iterator[None]:
        """Compute a batch of so many samples inside the block, forward and backward."""
        self._share = share = self._shards.share(batch)
        draws = self.training and self.draws and self._shards.size > 1
        try:
            with (
                whole_batch_norms(self.inner, self._shards, share),
                WholeBatchDraws(share) if draws else contextlib.nullcontext(),
            ):
                yield
        finally:
            self._share = None

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Outputs of the whole batch."""
        if self._share is None:
            first = next(value for value in tree_leaves((args, kwargs)) if torch.is_tensor(value))
            with self.computing(len(first)):
                return self.forward(*args, **kwargs)
        share = self._share
        args, kwargs = tree_map_only(Tensor, lambda value: value[share.samples], (args, kwargs))
        mine = self.inner(*args, **kwargs)
        if mine.dtype in (torch.float16, torch.bfloat16):
            mine = mine.float()
        return self._shards.gather_batch(mine.unsqueeze(0), share)[0]


# ---- cutting it ----------------------------------------------------------------------------------


def class_name(network: nn.Module) -> str:
    """Name of its class; FSDP2 makes one of its own."""
    return type(network).__name__.removeprefix("FSDP")


def described(network: nn.Module, job: Job) -> str:
    """What has to be the same on all ranks."""
    shapes = [
        (name, str(value.dtype), list(value.shape))
        for name, value in (*network.named_parameters(), *network.named_buffers())
    ]
    return f"{class_name(network)} {job.number} {job.seed} {job.recipe} {shapes}"


def take_from_first(value: Tensor, shards: Shards) -> None:
    """Replace a tensor on the CPU by that of rank 0."""
    given = value.detach().to(shards.device).contiguous().clone()
    shards.broadcast_(given.view(torch.uint8) if given.dtype == torch.bool else given)
    with torch.no_grad():
        value.copy_(given)


def try_on_pair(network: nn.Module, task: Task) -> Calls:
    """Run a network on two samples, on the CPU; raises if the output of one depends on the other.

    Batch norms make it so in training, and are computed over all ranks.
    """
    values, _ = task.val.take(torch.tensor([0, len(task.val) - 1]))
    pair = [value.cpu() for value in values]
    name = class_name(network)
    failing = user_code(f"{name} fails on the CPU, where it is tried before it is cut over ranks")
    with in_mode(network, training=False), failing:
        calls, both = watch_calls(network, lambda: task.outputs(network, pair))
        with torch.no_grad():
            first = task.outputs(network, [value[:1] for value in pair])
    if not torch.allclose(both[:1].float(), first.float(), rtol=1e-2, atol=1e-3, equal_nan=True):
        raise EsperError(
            f"{name} cannot be trained on several ranks: its output for a sample depends on the "
            f"other samples of the batch, of which every rank computes a share; train it without "
            f"ranks"
        )
    return calls


def uncut_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Parameters that FSDP2 cannot cut: scalars, and those of another type than most."""
    kinds: Counter[torch.dtype] = Counter()
    for param in network.parameters():
        if param.is_floating_point() and param.ndim:
            kinds[param.dtype] += param.numel()
    main = kinds.most_common(1)[0][0] if kinds else torch.float32
    return [p for p in network.parameters() if p.dtype != main or not p.numel() or not p.ndim]


def cut_network(
    network: nn.Module, units: list[nn.Module], copied: set[nn.Parameter], shards: Shards
) -> None:
    """Cut the parameters of a network over the ranks; the rest is moved to the device."""
    from torch.distributed.fsdp import fully_shard

    for param in network.parameters():
        # FSDP2 takes only contiguous ones.
        param.data = param.data.to(shards.device) if param in copied else param.data.contiguous()
    moved: dict[int, Tensor] = {}
    for part in network.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = moved.setdefault(id(buffer), buffer.to(shards.device))
    for unit in (*units, network):
        unit.register_forward_hook(_copy_views)  # before FSDP2's own
        cut: FSDPModule = fully_shard(
            unit, mesh=shards.mesh, reshard_after_forward=True, ignored_params=copied
        )
        # Every rank's gradient is of its share of one loss: they add up, and no mean is taken.
        cut.set_gradient_divide_factor(1.0)
        cut.set_force_sum_reduction_for_comms(True)

    for part in network.modules():
        if isinstance(part, nn.RNNBase):
            # cuDNN's flat copy of the weights would take the place of what FSDP2 gathers.
            vars(part)["flatten_parameters"] = _do_nothing
        elif held := _held_elsewhere(part, copied):
            raise EsperError(
                f"{class_name(network)} cannot be cut over ranks: {class_name(part)}.{held} holds "
                f"a parameter beside the module's own; use the parameter itself in forward, or "
                f"train it without ranks"
            )


def _do_nothing() -> None: ...


def _held_elsewhere(part: nn.Module, copied: set[nn.Parameter]) -> str | None:
    """Attribute of a module that holds a parameter which was cut, and no longer trains."""
    for name, value in vars(part).items():
        if name in ("_parameters", "_modules"):
            continue
        for leaf in tree_leaves(value):
            whole = isinstance(leaf, nn.Parameter) and not hasattr(leaf, "to_local")
            if whole and leaf not in copied:
                return name
    return None


def _copy_views(unit: nn.Module, args: Any, out: Any) -> Any:
    """FSDP2 hooks into the gradients of outputs: a view that is changed in place would lose it."""
    return tree_map_only(
        Tensor, lambda x: x.clone() if x.requires_grad and x._base is not None else x, out
    )
