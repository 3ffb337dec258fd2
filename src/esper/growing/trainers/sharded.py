"""Trains networks that are too large for one device: FSDP2 over the ranks of a torchrun job.

Every rank trains the same runs on the same batches. It computes its share of the samples; outputs
are gathered, so that the loss is that of the whole batch, whatever it is, and gradients of the
shares add up. Each rank holds its rows of every parameter, and of the optimiser's state.

Shape letters: B batch.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.device.shards import Shards
from esper.growing.ranks import ShardRanks
from esper.growing.runs import How
from esper.growing.trainers.data import Batch, BatchSource, StreamReader
from esper.growing.trainers.eager import CHECKPOINT_SECONDS, TICK_SECONDS
from esper.growing.trainers.job import Job, Outcome, Tick
from esper.growing.trainers.program import Program
from esper.growing.trainers.shard_network import (
    SharedNetwork,
    class_name,
    cut_network,
    described,
    take_from_first,
    try_on_pair,
    uncut_parameters,
)
from esper.growing.trainers.shard_units import SMALL, choose_units
from esper.growing.trainers.task import Task
from esper.leyline.errors import EsperError

MAX_BATCHES: Final = 1000
"""Batches between two messages about the time."""


class ShardedTrainer:
    """One run after the other, each on all ranks; every rank calls `train` with the same jobs."""

    at_once = cores = 1
    prioritises = False

    def __init__(self, task: Task, ranks: ShardRanks, small: int = SMALL) -> None:
        """`small`: parameters of a network that is gathered as a whole."""
        self.task, self.ranks, self._small = task, ranks, small

    def train(self, jobs: Iterator[Job], tick: Tick) -> Iterator[Outcome]:
        """Train jobs and yield them as they end; outcomes are the same on all ranks.

        Call it inside `ranks.interruptible()`: Ctrl-C on one rank then stops all of them, as a
        `tick` that says so on one rank does.
        """
        stopped = False
        while not (stopped or self.ranks.stop(False)):
            job = self.ranks.together(lambda: next(jobs, None))
            if job is None:
                return
            with forked_rng(0, self.task.device):  # the user's generators stay as they are
                outcome, stopped = self._run(job, tick)
            gc.collect()  # FSDP2's hooks refer to each other: their memory is not free before
            yield outcome

    def _run(self, job: Job, tick: Tick) -> tuple[Outcome, bool]:
        ranks = self.ranks
        began = saved = ranks.now()
        program = ShardedProgram(job, self.task, ranks.shards, self._small)
        earlier, stopped = program.seconds, False
        rest, known = 1, (program.trained, ranks.now())
        while not program.done and not stopped:
            program.run_eager()
            rest -= 1
            if rest and not program.done:
                continue
            stopped = ranks.stop(ranks.together(lambda: tick([program.running])))
            program.seconds = earlier + ranks.now() - began
            rest = _batches_to_tick(known, (program.trained, ranks.now()))
            known = program.trained, ranks.now()
            if not program.done and (stopped or ranks.now() - saved > CHECKPOINT_SECONDS):
                program.save()
                saved = ranks.now()
        return program.outcome(self.how()), stopped

    def how(self) -> How:
        """How its runs are computed."""
        precision = "bfloat16" if self.task.amp else "float32"
        size = self.ranks.size
        trainer = f"sharded over {size} rank{'s' * (size > 1)}"
        device = self.task.device
        exact = device.type == "cpu"  # on GPUs the kernels of ranks are not the deterministic ones
        return How(device=str(device), trainer=trainer, precision=precision, bitwise=exact)

    def close(self) -> None:
        """Nothing is left to end: the ranks belong to the process."""


def _batches_to_tick(before: tuple[int, float], now: tuple[int, float]) -> int:
    """Batches until ranks agree again, from (batches, seconds) at the last two times."""
    batches, seconds = now[0] - before[0], now[1] - before[1]
    wanted = batches * TICK_SECONDS / max(seconds, 1e-6)
    return max(1, min(int(wanted), 2 * batches, MAX_BATCHES))


class ShardedProgram(Program):
    """A run under way on all ranks."""

    network: SharedNetwork

    def __init__(self, job: Job, task: Task, shards: Shards, small: int) -> None:
        self.shards, self._small = shards, small
        super().__init__(job, task)
        if isinstance(task.train, StreamReader):
            self.batches = _StreamOfFirst(task.train, shards)

    # ---- the network ----------------------------------------------------------------------

    def place(self, build: Callable[[], nn.Module]) -> nn.Module:
        """Build the network with the weights of rank 0, and cut it over the ranks."""
        job, shards = self.job, self.shards
        network = shards.together(build)
        shards.require_same("network", described(network, job))
        for value in (*network.parameters(), *network.buffers()):
            take_from_first(value, shards)
        calls = shards.together(lambda: try_on_pair(network, self.task))
        units = choose_units(network, calls, self._small)
        # Only shapes: whoever keeps a parameter keeps it whole, on the device.
        shapes = {n: p.shape for n, p in network.named_parameters(remove_duplicate=False)}
        self.copied = uncut_parameters(network)
        """Parameters that every rank has whole."""
        cut_network(network, units, set(self.copied), shards)
        self._hold(network, shapes)
        return SharedNetwork(network, shards)

    def _hold(self, network: nn.Module, shapes: Mapping[str, torch.Size]) -> None:
        """Make the parameters of the optimiser: this rank's rows of the network's."""
        held: dict[int, nn.Parameter] = {}
        self.rows: dict[int, int] = {}
        """id of a parameter that is cut -> rows of the whole one."""
        self.names: dict[str, nn.Parameter] = {}
        """Parameters of the network -> what this rank has of them; tied ones are the same."""
        self._cut_params: dict[str, nn.Parameter] = {}
        for name, param in network.named_parameters(remove_duplicate=False):
            local = getattr(param, "to_local", None)
            if id(param) not in held and local is None:
                held[id(param)] = param
            elif id(param) not in held and local is not None:
                mine = nn.Parameter(local().detach(), param.requires_grad)
                held[id(param)] = mine
                self.rows[id(mine)] = shapes[name][0]
                self._cut_params[name] = param
            self.names[name] = held[id(param)]
        self._optimised = nn.ParameterList(held.values())

    @property
    def optimised(self) -> nn.Module:
        """This rank's rows of all parameters."""
        return self._optimised

    # ---- training -------------------------------------------------------------------------

    def update(self, values: list[Tensor], targets: Tensor, number: int | Tensor) -> None:
        """Forward, backward, clipping, optimiser; adds the loss of the whole batch to the total."""
        network, first = self.network, not self.network.tried
        before = [g.get_state() for g in self._generators.torch] if first else []
        self.optimizer.zero_grad()
        with self.shards.messages(), network.computing(len(targets)):
            with self.precision():
                outputs = self.task.outputs(network, values)
            loss = self.loss(outputs.float(), targets, number)
            loss.backward()  # type: ignore[no-untyped-call]
        self._collect_gradients()
        if self.recipe.clip:
            self._clip(self.recipe.clip)
        self.optimizer.step(clipped=True)
        if first:
            network.tried = True
            after = [g.get_state() for g in self._generators.torch]
            network.draws = any(bool((a != b).any()) for a, b in zip(before, after, strict=True))
            self._check_buffers()
        self.total.add_(loss.detach())

    def _collect_gradients(self) -> None:
        """Move the gradients of the network to the optimiser's parameters."""
        for name, param in self._cut_params.items():
            grad, param.grad = param.grad, None
            self.names[name].grad = None if grad is None else grad.to_local()  # type: ignore[attr-defined]
        trained = [param for param in self.copied if param.requires_grad]
        if not trained or self.shards.size == 1:
            return
        sums = []
        for param in trained:
            flag = torch.tensor([float(param.grad is not None)], device=self.device)
            grad = torch.zeros_like(param) if param.grad is None else param.grad
            sums += [flag.to(grad.dtype), grad.flatten()]
        # One message; each keeps its own type.
        flat = self.shards.add_(torch.cat([part.double() for part in sums]))
        for param in trained:
            size = param.numel()
            flag, found, flat = flat[:1], flat[1 : 1 + size], flat[1 + size :]
            # SYNC: only parameters that no sample of this rank has used
            if param.grad is not None or flag.item():
                param.grad = found.view(param.shape).to(param.dtype)

    def _clip(self, longest: float) -> None:
        """Scale the gradients of all ranks down together, as `clip_grad_norm_` does."""
        cut = [p.grad for p in self.params if p.grad is not None and id(p) in self.rows]
        copied = [p.grad for p in self.params if p.grad is not None and id(p) not in self.rows]
        # Gradients that every rank has whole count once.
        counted = [*cut, *(copied if self.shards.rank == 0 else [])]
        squares = [grad.float().square().sum() for grad in counted]
        total = torch.stack([torch.zeros((), device=self.device), *squares]).sum()
        norm = self.shards.add_(total).sqrt()
        factor = (longest / (norm + 1e-6)).clamp(max=1.0)
        for grad in (*cut, *copied):
            grad.mul_(factor.to(grad.dtype))

    def note_loss(self, number: int, total: float) -> None:
        """Note the losses that rank 0 has."""
        super().note_loss(number, self.shards.number(total))

    def _check_buffers(self) -> None:
        """Raise if ranks have updated a buffer differently."""
        for name, value in self.network.inner.named_buffers():
            number = value.double().nan_to_num()
            # SYNC: the first batch of a run
            if bool((self.shards.least(number) != -self.shards.least(-number)).any()):
                raise EsperError(
                    f"{class_name(self.network.inner)} updates its buffer {name!r} from the "
                    f"samples of a batch, of which every rank has a share; only batch norms are "
                    f"computed over all ranks: train it without ranks"
                )

    # ---- its end, and checkpoints ---------------------------------------------------------

    def outcome(self, how: How) -> Outcome:
        """Judge it as it is; all ranks have the scores and weights."""
        with self.shards.messages():
            mine = super().outcome(how)
        # Ranks have the same outputs, but need not compute the same last bit from them.
        number = self.shards.number
        finite = bool(number(mine.finite))
        return replace(mine, score=number(mine.score), loss=number(mine.loss), finite=finite)

    def weights(self) -> dict[str, Tensor]:
        """Its whole state dict, on the CPU, one parameter at a time."""
        gathered: dict[int, Tensor] = {}
        out = {}
        for name, value in self.network.inner.state_dict().items():
            held = self.names.get(name, value)
            if id(held) not in gathered:
                gathered[id(held)] = self._gathered(held.detach(), held).cpu()
            out[name] = gathered[id(held)]
        return out

    def _gathered(self, value: Tensor, of: Tensor) -> Tensor:
        """The whole of a value that belongs to a parameter, on the device."""
        if id(of) not in self.rows or not value.ndim:
            return value
        rows, size = self.rows[id(of)], self.shards.size
        mine = value.new_zeros(-(-rows // size), *value.shape[1:])
        mine[: len(value)] = value
        return self.shards.gather_(mine).flatten(0, 1)[:rows]

    def held(self) -> dict[str, Tensor]:
        """What this rank has of parameters and buffers, by name, tied ones once."""
        params = {n: self.names[n] for n, _ in self.network.inner.named_parameters()}
        return params | dict(self.network.inner.named_buffers())

    def whole(self, value: Tensor, of: Tensor) -> Tensor:
        """A value as it is saved, on rank 0; the others write nothing."""
        gathered = self._gathered(value.detach(), of)
        return super().whole(gathered, of) if self.shards.rank == 0 else value.new_empty(0)

    def part(self, whole: Tensor, of: Tensor) -> Tensor:
        """This rank's rows of a saved value."""
        if id(of) not in self.rows or not whole.ndim:
            return super().part(whole, of)
        each = -(-self.rows[id(of)] // self.shards.size)
        first = each * self.shards.rank
        return super().part(whole[first : first + each].clone(), of)

    def write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Write a checkpoint, on rank 0."""
        write = super().write
        self.shards.on_first(lambda: write(path, tensors))

    def resume(self) -> None:
        """Continue from the checkpoint of rank 0, if it has one."""
        path = self.job.checkpoint
        if path is not None and self.shards.number(path.exists()):
            self.load(path)

    def read(self, path: Path) -> Mapping[str, Tensor]:
        """The tensors of rank 0's checkpoint."""
        read, first = super().read, self.shards.rank == 0
        return _TensorsOfFirst(
            self.shards.together(lambda: read(path) if first else {}), self.shards
        )


# ---- from rank 0 ---------------------------------------------------------------------------------


class _TensorsOfFirst(Mapping[str, Tensor]):
    """Tensors of rank 0 by name; all ranks ask for the same ones in the same order."""

    def __init__(self, tensors: Mapping[str, Tensor], shards: Shards) -> None:
        """`tensors`: on rank 0; the others need none."""
        self._tensors, self._shards = tensors, shards
        kinds = {n: (str(t.dtype), list(t.shape)) for n, t in tensors.items()}
        self._kinds: dict[str, tuple[str, list[int]]] = json.loads(shards.say(json.dumps(kinds)))

    def __getitem__(self, name: str) -> Tensor:
        kind, shape = self._kinds[name]
        dtype = getattr(torch, kind.removeprefix("torch."))
        mine = self._tensors.get(name, torch.empty(shape, dtype=dtype))
        sent = mine.to(self._shards.device).contiguous().clone()
        self._shards.broadcast_(sent.view(torch.uint8) if dtype == torch.bool else sent)
        return sent

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


class _StreamOfFirst:
    """A stream that rank 0 reads; the others get its batches."""

    def __init__(self, stream: BatchSource, shards: Shards) -> None:
        self._stream, self._shards = stream, shards

    def batch(self, number: int) -> Batch:
        """The batch of a number, on the device."""
        first = self._shards.rank == 0
        read = self._shards.together(lambda: self._stream.batch(number) if first else ([], None))
        values, targets = read
        named = {} if targets is None else dict(enumerate([*values, targets]))
        given = _TensorsOfFirst({str(n): v for n, v in named.items()}, self._shards)
        *values, targets = [given[name] for name in given]
        return values, targets
