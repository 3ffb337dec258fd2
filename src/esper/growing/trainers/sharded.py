"""Trains networks that are too large for one device: FSDP2 over the ranks of a torchrun job.

Every rank trains the same runs on the same batches. It computes its share of the samples; outputs
are gathered, so that the loss is that of the whole batch, whatever it is, and gradients of the
shares add up. Each rank holds its rows of every parameter, and of the optimiser's state.

Shape letters: B batch.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from esper.device.rng import forked_rng
from esper.device.shards import BatchShare, Shards
from esper.growing.ranks import ShardRanks
from esper.growing.runs import How
from esper.growing.trainers.data import Batch, BatchSource, StreamReader
from esper.growing.trainers.eager import SAVE_SECONDS, TICK_SECONDS
from esper.growing.trainers.job import Job, Outcome, Tick
from esper.growing.trainers.program import Program
from esper.growing.trainers.shard_draws import WholeBatchDraws
from esper.growing.trainers.shard_units import SMALL, Calls, choose_units, watch_calls
from esper.growing.trainers.task import Task
from esper.kasmina.ops.sharded_norm import whole_batch_norms
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import user_code

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

MAX_BATCHES: Final = 1000
"""Batches between two messages about the time."""


class ShardedTrainer:
    """One run after the other, each on all ranks; every rank calls `train` with the same jobs."""

    at_once = 1

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
            if not program.done and (stopped or ranks.now() - saved > SAVE_SECONDS):
                program.save()
                saved = ranks.now()
        return program.outcome(self.how()), stopped

    def how(self) -> How:
        """How its runs are computed."""
        precision = "bfloat16" if self.task.amp else "float32"
        size = self.ranks.size
        trainer = f"sharded over {size} rank{'s' * (size > 1)}"
        return How(device=str(self.task.device), trainer=trainer, precision=precision)

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
            self.batches = StreamOfFirst(task.train, shards)

    # ---- the network ----------------------------------------------------------------------

    def place(self, build: Callable[[], nn.Module]) -> nn.Module:
        """Build the network with the weights of rank 0, and cut it over the ranks."""
        job, shards = self.job, self.shards
        network = shards.together(build)
        shards.require_same("network", _described(network, job))
        for value in (*network.parameters(), *network.buffers()):
            _take_from_first(value, shards)
        calls = shards.together(lambda: _tried(network, self.task))
        units = choose_units(network, calls, self._small)
        # Shapes alone: whoever keeps a parameter keeps it whole, on the device.
        shapes = {n: p.shape for n, p in network.named_parameters(remove_duplicate=False)}
        self.copied = _not_cut(network)
        """Parameters that every rank has whole."""
        _cut(network, units, set(self.copied), shards)
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
            # SYNC: parameters alone that no sample of this rank has used
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
                    f"{_name(self.network.inner)} updates its buffer {name!r} from the samples of "
                    f"a batch, of which every rank has a share; batch norms alone are computed "
                    f"over all ranks: train it without ranks"
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
        return TensorsOfFirst(
            self.shards.together(lambda: read(path) if first else {}), self.shards
        )


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


# ---- cutting a network ---------------------------------------------------------------------------


def _name(network: nn.Module) -> str:
    return type(network).__name__.removeprefix("FSDP")


def _described(network: nn.Module, job: Job) -> str:
    """What has to be the same on all ranks."""
    shapes = [
        (name, str(value.dtype), list(value.shape))
        for name, value in (*network.named_parameters(), *network.named_buffers())
    ]
    return f"{_name(network)} {job.number} {job.seed} {job.recipe} {shapes}"


def _take_from_first(value: Tensor, shards: Shards) -> None:
    """Replace a tensor on the CPU by that of rank 0."""
    given = value.detach().to(shards.device).contiguous().clone()
    shards.broadcast_(given.view(torch.uint8) if given.dtype == torch.bool else given)
    with torch.no_grad():
        value.copy_(given)


def _tried(network: nn.Module, task: Task) -> Calls:
    """Run a network on two samples, on the CPU; raises if the output of one depends on the other.

    Batch norms make it so in training, and are computed over all ranks.
    """
    values, _ = task.val.take(torch.tensor([0, len(task.val) - 1]))
    pair = [value.cpu() for value in values]
    name, was = _name(network), {part: part.training for part in network.modules()}
    network.eval()
    try:
        with user_code(f"{name} fails on the CPU, where it is tried before it is cut over ranks"):
            calls, both = watch_calls(network, lambda: task.outputs(network, pair))
            with torch.no_grad():
                alone = task.outputs(network, [value[:1] for value in pair])
    finally:
        for part, mode in was.items():
            part.training = mode
    if not torch.allclose(both[:1].float(), alone.float(), rtol=1e-2, atol=1e-3, equal_nan=True):
        raise EsperError(
            f"{name} cannot be trained on several ranks: its output for a sample depends on the "
            f"other samples of the batch, of which every rank computes a share; train it without "
            f"ranks"
        )
    return calls


def _not_cut(network: nn.Module) -> list[nn.Parameter]:
    """Parameters that FSDP2 cannot cut: scalars, and those of another type than most."""
    kinds: Counter[torch.dtype] = Counter()
    for param in network.parameters():
        if param.is_floating_point() and param.ndim:
            kinds[param.dtype] += param.numel()
    main = kinds.most_common(1)[0][0] if kinds else torch.float32
    return [p for p in network.parameters() if p.dtype != main or not p.numel() or not p.ndim]


def _cut(
    network: nn.Module, units: list[nn.Module], copied: set[nn.Parameter], shards: Shards
) -> None:
    """Cut the parameters of a network over the ranks; the rest is moved to the device."""
    from torch.distributed.fsdp import fully_shard

    for param in network.parameters():
        # FSDP2 takes contiguous ones alone.
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
                f"{_name(network)} cannot be cut over ranks: {_name(part)}.{held} holds a "
                f"parameter beside the module's own; use the parameter itself in forward, or "
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


# ---- from rank 0 ---------------------------------------------------------------------------------


class TensorsOfFirst(Mapping[str, Tensor]):
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


class StreamOfFirst:
    """A stream that rank 0 reads; the others get its batches."""

    def __init__(self, stream: BatchSource, shards: Shards) -> None:
        self._stream, self._shards = stream, shards

    def batch(self, number: int) -> Batch:
        """The batch of a number, on the device."""
        first = self._shards.rank == 0
        read = self._shards.together(lambda: self._stream.batch(number) if first else ([], None))
        values, targets = read
        named = {} if targets is None else dict(enumerate([*values, targets]))
        given = TensorsOfFirst({str(n): v for n, v in named.items()}, self._shards)
        *values, targets = [given[name] for name in given]
        return values, targets
