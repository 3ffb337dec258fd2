"""`World`: the processes of a `torchrun` job that train one controller together.

    with join_world() as world:
        data = world.together(load)        all ranks continue, or all raise
        score_U = world.gather(score_E)    arrays of all ranks, in rank order

Control messages travel as JSON and arrays of numpy through gloo, gradients through NCCL on GPUs;
nothing is pickled.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from esper.device.shards import PATIENCE, transport_reason
from esper.leyline.errors import EsperError
from esper.simic.distributed.environment import environment_number, world_size
from esper.simic.distributed.ranks import ArrayT, Ranks

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")


class PeerInterrupted(KeyboardInterrupt):
    """Another process got a stop signal."""


def join_world() -> World:
    """Join the processes of this `torchrun` job; use the result as a context."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    rank, size = environment_number("RANK", 0), world_size()
    if not dist.is_available():
        raise EsperError(f"WORLD_SIZE={size}: this torch is built without torch.distributed")
    gpus = torch.cuda.is_available() and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    attempt = environment_number("TORCHELASTIC_RESTART_COUNT", 0)
    with _lost_ranks(rank):
        store, _, _ = next(rendezvous("env://", rank, size, timeout=PATIENCE))
        # A restarted job meets the same store, with the addresses of the processes before it.
        store = PrefixStore(f"esper/attempt-{attempt}", store)
        dist.init_process_group(backend, timeout=PATIENCE, rank=rank, world_size=size, store=store)
    local = (environment_number("LOCAL_RANK", rank), environment_number("LOCAL_WORLD_SIZE", size))
    return World(rank, size, *local, store)


class World(Ranks):
    """Several processes, each with members of its own; see `Ranks`."""

    def __init__(
        self,
        rank: int,
        size: int,
        local_rank: int = 0,
        local_size: int = 1,
        store: Store | None = None,
    ) -> None:
        """Use `join_world`. `local_rank`, `local_size`: among the processes of this machine;
        `store`: that of the job."""
        self.rank, self.size = rank, size
        self._store, self._counts = store, 0
        self.local_rank, self.local_size = local_rank, local_size
        self.members_total = 0
        """Members of all ranks; set by `share_members`."""
        self._joined = True

    def leave(self) -> None:
        """Leave the job; the other ranks may continue without this one."""
        if self._joined:
            self._joined = False
            with contextlib.suppress(RuntimeError):  # the others may be gone
                torch.distributed.destroy_process_group()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *raised: object) -> None:
        self.leave()

    # ---- members and devices --------------------------------------------------------------------

    def share_members(self, total: int) -> int:
        """Divide the members of the run among the ranks; returns the number of this rank's.

        Shares are contiguous and differ by at most one member, the larger ones first.
        """
        if total < self.size:
            raise EsperError(
                f"envs={total} on {self.size} ranks: each rank needs a member; start at most "
                f"{total} processes, or train more members (--envs)"
            )
        self.members_total = total
        self.first_member = self._first_of(self.rank)
        return self._first_of(self.rank + 1) - self.first_member

    def _first_of(self, rank: int) -> int:
        each, more = divmod(self.members_total, self.size)
        return rank * each + min(rank, more)

    def owner_of(self, number: int) -> int:
        """Rank of a member."""
        return next(rank for rank in range(self.size) if number < self._first_of(rank + 1))

    def device_of(self, device: str) -> str:
        """This rank's device: `cuda` and `auto` are the GPU with the local rank's number."""
        if device.startswith("cuda:") and self.local_size > 1:
            raise EsperError(
                f"device {device!r} for {self.local_size} ranks of one machine: use cuda or auto, "
                f"and each rank takes a GPU of its own"
            )
        if device not in ("cuda", "auto") or not torch.cuda.is_available():
            return device
        found = torch.cuda.device_count()
        if self.local_rank >= found:
            raise EsperError(
                f"{self.local_size} ranks on a machine with {found} GPUs: start one process per "
                f"GPU (--nproc-per-node {found}), or use --device cpu"
            )
        torch.cuda.set_device(self.local_rank)
        return f"cuda:{self.local_rank}"

    # ---- Ranks ----------------------------------------------------------------------------------

    def gather(self, x: ArrayT) -> ArrayT:
        """Concatenate arrays of all ranks along the first axis, in rank order."""
        (whole,) = self.gather_arrays([x])
        return whole

    def add_(self, x: Tensor) -> Tensor:
        """Replace a tensor by its sum over ranks; all ranks get the same bits."""
        return self._reduce_(x, torch.distributed.ReduceOp.SUM)

    def maximum_(self, x: Tensor) -> Tensor:
        """Replace a tensor by its maximum over ranks."""
        return self._reduce_(x, torch.distributed.ReduceOp.MAX)

    def add_gradients_(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their sums over ranks, in one message."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = self.add_(torch.cat([gradient.flatten() for gradient in gradients]))
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, summed in zip(gradients, parts, strict=True):
            gradient.copy_(summed.view_as(gradient))

    def _reduce_(self, x: Tensor, how: Any) -> Tensor:
        with _lost_ranks(self.rank):
            torch.distributed.all_reduce(x, how)
        return x

    # ---- messages -------------------------------------------------------------------------------

    def shared_count(self) -> _SharedCount:
        """A number that all ranks share, at first 0; the n-th call of every rank is the same one.

        Unlike the other messages it waits for no rank.
        """
        assert self._store is not None  # `join_world` gives it
        self._counts += 1
        return _SharedCount(self._store, f"count-{self._counts}", self.rank)

    def gather_arrays(self, arrays: Sequence[ArrayT]) -> list[ArrayT]:
        """Concatenate several arrays of all ranks, in one message; dtypes must be equal."""
        mine = io.BytesIO()
        np.savez(mine, *arrays)
        by_rank = [np.load(io.BytesIO(message)) for message in self.gather_bytes(mine.getvalue())]
        names = [f"arr_{number}" for number in range(len(arrays))]  # as `savez` calls them
        return [np.concatenate([found[name] for found in by_rank]) for name in names]  # type: ignore[misc]

    def gather_bytes(self, message: bytes) -> list[bytes]:
        """Messages of all ranks, in rank order, on every rank."""
        with _lost_ranks(self.rank):
            length = torch.tensor([len(message)])
            lengths = [torch.zeros_like(length) for _ in range(self.size)]
            torch.distributed.all_gather(lengths, length)
            sizes = [int(one) for one in lengths]  # SYNC: host memory, between rounds
            padded = message.ljust(max(*sizes, 1), b"\0")
            mine = torch.frombuffer(bytearray(padded), dtype=torch.uint8)
            found = [torch.empty_like(mine) for _ in range(self.size)]
            torch.distributed.all_gather(found, mine)
        # SYNC: host memory, between rounds
        return [one[:size].numpy().tobytes() for one, size in zip(found, sizes, strict=True)]

    def broadcast_bytes(self, message: bytes, source: int = 0) -> bytes:
        """The message of rank `source`, on every rank."""
        with _lost_ranks(self.rank):
            length = torch.tensor([len(message)])
            torch.distributed.broadcast(length, source)
            size = int(length)  # SYNC: host memory, between rounds
            mine = bytearray(message if self.rank == source else bytes(size)).ljust(1, b"\0")
            body = torch.frombuffer(mine, dtype=torch.uint8)
            torch.distributed.broadcast(body, source)
        return body[:size].numpy().tobytes()  # SYNC: host memory, between rounds

    def together(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank; if it fails on one, all ranks raise.

        A rank that failed raises its own error, the others one that names the rank. Inside `work`
        there must be no message to other ranks.
        """
        error: BaseException | None = None
        try:
            done = work()
        except (Exception, KeyboardInterrupt) as raised:
            error = raised
        text = "" if error is None else " ".join(str(error).split()) or type(error).__name__
        mine = [isinstance(error, Exception), text, socket.gethostname()]
        said = [json.loads(one) for one in self.gather_bytes(json.dumps(mine).encode())]
        if isinstance(error, Exception):
            raise error
        failures = [
            f"rank {rank} ({host}): {text}"
            for rank, (failed, text, host) in enumerate(said)
            if failed
        ]
        if failures:
            more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            raise EsperError(f"{failures[0]}{more}")
        if error is not None:
            raise error
        stopped = [text for _, text, _ in said if text]
        if stopped:
            raise PeerInterrupted(stopped[0])
        return done


class _SharedCount:
    """A number of all ranks, in the store of the job."""

    def __init__(self, store: Store, name: str, rank: int) -> None:
        """Use `World.shared_count`."""
        self._store, self._name, self._rank = store, name, rank

    def add(self, amount: int) -> int:
        """Add to the number; returns the sum."""
        with _lost_ranks(self._rank):
            return int(self._store.add(self._name, amount))

    def value(self) -> int:
        """The number now."""
        return self.add(0)


@contextlib.contextmanager
def _lost_ranks(rank: int) -> Iterator[None]:
    """Turn errors of the transport into one line."""
    try:
        yield
    except RuntimeError as error:
        raise EsperError(
            f"rank {rank} lost contact with the others ({transport_reason(error)}): the first "
            f"error of another rank says why; resume the run (--resume)"
        ) from error
