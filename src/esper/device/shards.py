"""The processes that hold the shards of one network, and the messages between them.

    shards = join_shards(torch.device("cpu"))     in every process of a torchrun job
    outputs = shards.gather_batch(mine, share)    every process has the outputs of the whole batch

All processes run the same program on the same data; each computes its share of every batch and
holds its share of every parameter. `torch.distributed` is imported only here, and only when a
network is sharded.

Shape letters: R rows, B batch.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from torch import Tensor

from esper.leyline.errors import EsperError, shorten, shown

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")

PATIENCE: Final = timedelta(minutes=30)
"""How long a rank waits for the others before it gives up."""
MAX_MESSAGE_CHARS: Final = 512
"""Bytes of an error that the other ranks repeat."""
_SOURCE_LINE: Final = re.compile(r"\[/\S+:\d+\] ")
"""Where in gloo's source an error arose."""


class _LostRankError(EsperError):
    """Another process ended or does not answer."""


@dataclass(frozen=True, slots=True)
class BatchShare:
    """The samples of a batch that one rank computes: a contiguous range of them.

    Shares differ by at most one sample. Every rank takes part in every message, so a rank without a
    sample computes the first one, and nothing uses the result.
    """

    batch: int
    rank: int
    ranks: int

    @property
    def first(self) -> int:
        """Index of the first sample."""
        return self._first_of(self.rank)

    @property
    def count(self) -> int:
        """Samples of this rank; 0 if there are fewer samples than ranks."""
        return self._first_of(self.rank + 1) - self.first

    @property
    def computed(self) -> int:
        """Samples that this rank computes."""
        return max(1, self.count)

    @property
    def samples(self) -> slice:
        """Samples that this rank computes, at least one."""
        return slice(self.first, self.first + self.count) if self.count else slice(1)

    @property
    def counts(self) -> list[int]:
        """Samples of every rank."""
        return [self._first_of(r + 1) - self._first_of(r) for r in range(self.ranks)]

    def _first_of(self, rank: int) -> int:
        each, more = divmod(self.batch, self.ranks)
        return rank * each + min(rank, more)


class Shards:
    """One rank of the processes that hold a network together."""

    def __init__(self, rank: int, size: int, device: torch.device, mesh: DeviceMesh) -> None:
        """Use `join_shards`."""
        self.rank, self.size, self.device, self.mesh = rank, size, device, mesh

    def share(self, batch: int) -> BatchShare:
        """This rank's share of a batch."""
        return BatchShare(batch, self.rank, self.size)

    def gather_batch(self, mine_RB: Tensor, share: BatchShare) -> Tensor:
        """Return the outputs of the whole batch; the gradient goes back to each rank's share."""
        if self.size == 1:
            return mine_RB
        whole: Tensor = _GatherBatch.apply(mine_RB, share, self)  # type: ignore[no-untyped-call]
        return whole

    def total(self, x: Tensor) -> Tensor:
        """Return the sum over ranks, differentiable: the gradients of all ranks add up, too."""
        if self.size == 1:
            return x
        added: Tensor = _Total.apply(x, self)  # type: ignore[no-untyped-call]
        return added

    def add_(self, x: Tensor) -> Tensor:
        """Replace a tensor by its sum over ranks; all ranks get the same bits."""
        import torch.distributed as dist

        with self.messages():
            dist.all_reduce(x)
        return x

    def least(self, x: Tensor) -> Tensor:
        """Return the minimum over ranks; False if it is False on one of them."""
        import torch.distributed as dist

        found = x.to(torch.int32) if x.dtype == torch.bool else x.clone()
        with self.messages():
            dist.all_reduce(found, dist.ReduceOp.MIN)
        return found.to(x.dtype)

    def gather_(self, mine: Tensor) -> Tensor:
        """Return the tensors of all ranks, `[ranks, ...]`."""
        import torch.distributed as dist

        out = mine.new_empty(self.size * mine.numel())
        with self.messages():
            dist.all_gather(list(out.chunk(self.size)), mine.contiguous().view(-1))
        return out.view(self.size, *mine.shape)

    def broadcast_(self, x: Tensor) -> Tensor:
        """Replace a tensor by that of rank 0."""
        import torch.distributed as dist

        with self.messages():
            dist.broadcast(x, 0)
        return x

    def say(self, text: str) -> str:
        """Return the text of rank 0."""
        body = text.encode() if self.rank == 0 else b""
        size = int(self.number(len(body)))
        given = torch.frombuffer(bytearray(body.ljust(max(1, size), b"\0")), dtype=torch.uint8)
        # SYNC: between batches, never in one
        return bytes(self.broadcast_(given.to(self.device)).tolist())[:size].decode()

    def number(self, value: float) -> float:
        """Return the number that rank 0 measured, so that all ranks decide alike."""
        given = torch.tensor([value], dtype=torch.float64, device=self.device)
        # SYNC: between batches, never in one
        return float(self.broadcast_(given).item())

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        given = torch.tensor([1.0 if flag else 0.0], device=self.device)
        # SYNC: between batches, never in one
        return bool(self.add_(given).item())

    def together(self, work: Callable[[], T]) -> T:
        """Run `work`, which sends no message, on every rank; if it fails on one, all raise."""
        error: Exception | None = None
        try:
            done = work()
        except Exception as raised:
            error = raised
        text = "" if error is None else " ".join(str(error).split()) or type(error).__name__
        mine = bytearray(text.encode()[:MAX_MESSAGE_CHARS].ljust(MAX_MESSAGE_CHARS, b"\0"))
        said = self.gather_(torch.frombuffer(mine, dtype=torch.uint8).to(self.device))
        if error is not None:
            raise error
        for rank, row in enumerate(said.tolist()):  # SYNC: between batches, never in one
            if row[0]:
                line = bytes(row).rstrip(b"\0").decode(errors="ignore")
                raise EsperError(f"rank {rank}: {line.removeprefix(f'rank {rank}: ')}")
        return done

    def require_same(self, what: str, text: str) -> None:
        """Raise on all ranks unless all have the text of rank 0; `what`: its name in messages."""
        known = self.say(text)

        def check() -> None:
            if text != known:
                raise EsperError(
                    f"rank {self.rank}: other {what} than on rank 0; give every rank the same"
                )

        self.together(check)

    def on_first(self, work: Callable[[], None]) -> None:
        """Run `work` only on rank 0; if it fails, all ranks raise."""
        self.together(work if self.rank == 0 else lambda: None)

    @contextlib.contextmanager
    def messages(self) -> Iterator[None]:
        """Turn errors of the transport inside the block into one line."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            text = " ".join(str(error).split())
            if not _is_transport_error(error, text):
                raise
            raise _LostRankError(
                f"rank {self.rank} of {self.size} ({socket.gethostname()}) lost contact with the "
                f"others ({transport_reason(error)}): the first error of another rank says why"
            ) from error


def transport_reason(error: RuntimeError) -> str:
    """Return what the transport says, short."""
    text = " ".join(str(error).split())
    return shorten(_SOURCE_LINE.sub("", text).partition(". ")[0], 160)


def _is_transport_error(error: RuntimeError, text: str) -> bool:
    import torch.distributed as dist

    if isinstance(error, dist.DistError):
        return True
    words = ("gloo", "NCCL", "Connection", "Timed out")
    return any(word in text for word in words)


class _GatherBatch(torch.autograd.Function):
    """All ranks' shares of a batch, along axis 1."""

    @staticmethod
    def forward(ctx: Any, mine_RB: Tensor, share: BatchShare, shards: Shards) -> Tensor:
        ctx.share = share
        most = max(share.counts)
        mine = mine_RB.detach()[:, : share.count]
        if mine.shape[1] < most:
            spare = mine.new_zeros(len(mine), most - mine.shape[1], *mine.shape[2:])
            mine = torch.cat([mine, spare], dim=1)
        parts = shards.gather_(mine)
        return torch.cat([part[:, :n] for part, n in zip(parts, share.counts, strict=True)], dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        share: BatchShare = ctx.share
        mine = grad[:, share.samples]
        return (mine if share.count else torch.zeros_like(mine)), None, None


class _Total(torch.autograd.Function):
    """Sum over ranks, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards) -> Tensor:
        ctx.shards = shards
        return shards.add_(x.detach().clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return ctx.shards.add_(grad.contiguous().clone()), None


_joined: dict[str, Shards] = {}
"""Device type -> this process among the ranks; joined once."""


def join_shards(device: torch.device) -> Shards:
    """Join the processes of this job; `device`: the run's, on a GPU each rank takes its own."""
    if device.type not in _joined:
        _joined[device.type] = _join(device)
    found = _joined[device.type]
    if device.index is not None and device != found.device:
        raise EsperError(
            f"device {str(device)!r}: rank {found.rank} computes on {found.device}; use "
            f"{device.type!r}, and each rank takes a GPU of its own"
        )
    return found


def shards_for(executor: str, device: torch.device) -> tuple[Shards | None, torch.device]:
    """Return the ranks of a network under an executor (None: it is whole), and its device."""
    if executor != "sharded":
        return None, device
    shards = join_shards(device)
    return shards, shards.device


def _join(device: torch.device) -> Shards:
    import torch.distributed as dist

    if not dist.is_available():
        raise EsperError("executor 'sharded': this torch is built without torch.distributed")
    if device.type == "cuda":
        device = _own_gpu(device)
    if not dist.is_initialized():
        _init_processes(device)
    try:
        dist.all_reduce(torch.zeros(1, device=device))
    except RuntimeError as error:
        raise EsperError(
            f"executor 'sharded': the process group (backend {dist.get_backend()}) does not reach "
            f"{device.type} tensors ({shorten(' '.join(str(error).split()), 120)}); start it with "
            f"init_process_group('cpu:gloo,cuda:nccl'), or leave that to Esper"
        ) from error
    from torch.distributed.device_mesh import init_device_mesh

    size = dist.get_world_size()
    mesh = init_device_mesh(device.type, (size,))
    return Shards(dist.get_rank(), size, device, mesh)


def _init_processes(device: torch.device) -> None:
    """Start the process group from torchrun's environment."""
    import torch.distributed as dist

    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name not in os.environ]
    if missing:
        raise EsperError(
            f"executor 'sharded' outside of torchrun ({missing[0]} is not set): start it with "
            f"torchrun --standalone --nproc-per-node 2 SCRIPT.py, or use executor 'loop'"
        )
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    chosen = device if device.type == "cuda" else None
    try:
        dist.init_process_group(backend, timeout=PATIENCE, device_id=chosen)
    except (RuntimeError, ValueError) as error:
        reason = shorten(" ".join(str(error).split()), 200)
        raise EsperError(f"executor 'sharded': the ranks did not meet ({reason})") from error
    atexit.register(_leave)


def _leave() -> None:
    import torch.distributed as dist

    _joined.clear()
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # the others may be gone
            dist.destroy_process_group()


def _own_gpu(device: torch.device) -> torch.device:
    """The GPU of this rank: the one with its number on this machine."""
    text = os.environ.get("LOCAL_RANK", str(device.index or 0))
    if not text.isdecimal():
        raise EsperError(f"LOCAL_RANK={shown(text)} in the environment: torchrun sets a number")
    found = torch.cuda.device_count()
    if int(text) >= found:
        raise EsperError(
            f"rank {text} on a machine with {found} GPUs: start one process per GPU "
            f"(--nproc-per-node {found}), or use device 'cpu'"
        )
    own = torch.device("cuda", int(text))
    torch.cuda.set_device(own)
    return own
