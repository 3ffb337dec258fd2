"""Find out by trying how networks of a kind are computed on a GPU, and whether by replays.

Three things are captured silently wrong or not at all: Python state that `forward` changes, waiting
for the device, and random numbers of generators. So a few batches of one network of each kind are
trained twice, eagerly and by replays; what differs in weights, statistics, optimiser or attributes
is trained eagerly. Networks that differ only in their sizes are of one kind.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.growing.trainers.average import named_state
from esper.growing.trainers.data import StreamReader
from esper.growing.trainers.determinism import lacks_kernel, tolerate_others
from esper.growing.trainers.draws import host_state
from esper.growing.trainers.job import Job
from esper.growing.trainers.kind import Kind, gather, kind_key, laid_out
from esper.growing.trainers.program import Capture, Program
from esper.growing.trainers.task import Task
from esper.kasmina.layers.random_probe import draws_nothing, find_draws
from esper.kasmina.tracing import Inputs
from esper.leyline.user_errors import is_out_of_memory

REPLAYS: Final = 3
"""Captured batches that are compared with eager ones."""


class Kinds:
    """Makes runs, each as its kind of network needs it."""

    def __init__(self, task: Task, capture: Capture | None = None) -> None:
        """`capture`: None: nothing is to be captured."""
        self._task, self._capture = task, capture
        self._found: dict[tuple[object, ...], Kind] = {}
        self.trials = 0
        """Kinds that were tried."""

    def program(self, job: Job) -> Program:
        """A run, from its start or its checkpoint."""
        network = job.build()
        return Program(job, self._task, self.of(network, job), network)

    def of(self, network: nn.Module, job: Job) -> Kind:
        """The kind of a network that a job made."""
        key = kind_key(network)
        if key not in self._found:
            self.trials += 1
            with forked_rng(0, self._task.device), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run itself warns
                self._found[key] = self._try(job)
        return self._found[key]

    def _try(self, job: Job) -> Kind:
        recipe = replace(job.recipe, batches=max(8, job.recipe.batches))
        job = replace(job, recipe=recipe, every=0.0)
        kind = self._computed(job)
        with tolerate_others(not kind.bitwise):
            kind = self._drawn(job, kind)
            if self._capture is None:
                return kind
            reason = self._unfit(job, replace(kind, captured=True), self._capture)
        if not reason or not kind.bitwise or self._repeats(job, kind):
            return replace(kind, captured=not reason, note=reason)
        # Eager runs differ as well: some kernels are not deterministic, and do not say so.
        kind = replace(kind, bitwise=False)
        with tolerate_others(True):
            reason = self._unfit(job, replace(kind, captured=True), self._capture)
        return replace(kind, captured=not reason, note=reason)

    def _program(self, job: Job, kind: Kind) -> Program:
        return Program(job, self._task, kind, resume=False)

    # ---- layout and kernels ---------------------------------------------------------------

    def _computed(self, job: Job) -> Kind:
        """The layout in which a batch runs, and whether its kernels are deterministic."""
        network, error = job.build(), None
        for channels_last in (True, False) if self._takes_images(network) else (False,):
            for bitwise in (True, False):
                kind = Kind(channels_last=channels_last, bitwise=bitwise)
                error = self._error(job, kind)
                if error is None:
                    return kind
                if not lacks_kernel(str(error)):
                    break
        assert error is not None
        raise error

    def _takes_images(self, network: nn.Module) -> bool:
        images = any(len(spec.shape) == 3 for spec in self._task.inputs.specs)
        convolves = any(isinstance(part, nn.Conv2d) for part in network.modules())
        return self._task.device.type == "cuda" and images and convolves

    def _error(self, job: Job, kind: Kind) -> Exception | None:
        """What a batch of training raises; running out of memory is the caller's."""
        try:
            with warnings.catch_warnings(record=True) as said, tolerate_others(not kind.bitwise):
                warnings.simplefilter("always" if kind.bitwise else "ignore")
                self._program(job, kind).step_eager()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return error
        lacking = [str(one.message) for one in said if lacks_kernel(str(one.message))]
        return RuntimeError(lacking[0]) if lacking else None

    # ---- random numbers -------------------------------------------------------------------

    def _drawn(self, job: Job, kind: Kind) -> Kind:
        """Which random numbers it draws, and whether a seed repeats them."""
        program = self._program(job, kind)
        if draws_nothing(program.network):
            return replace(kind, seeded=False)
        values = self._example(job, kind)
        network = _Called(program.network, self._task.inputs)
        try:
            with program.precision():
                found = find_draws("network", network, *values)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return replace(kind, note=f"its random numbers are not known: {first_line(error)}")
        if not found.uncontrolled:
            return replace(kind, site=found.site, seeded=False)
        kind = replace(kind, site=found.site)
        sources = ", ".join(found.uncontrolled)
        repeats = kind.bitwise and self._repeats(job, kind)
        return replace(kind, bitwise=repeats, note=f"it draws random numbers from {sources}")

    def _example(self, job: Job, kind: Kind) -> list[Tensor]:
        train, device = self._task.train, self._task.device
        if isinstance(train, StreamReader):
            values, _ = train.batch(0)
            return [laid_out(value.to(device), kind.channels_last) for value in values]
        first = torch.arange(min(len(train), job.recipe.batch_size), device=train.targets.device)
        return [gather(value, first, kind.channels_last).to(device) for value in train.values]

    def _repeats(self, job: Job, kind: Kind) -> bool:
        """Whether two runs with the same seeds are the same."""
        one, other = (self._program(job, kind) for _ in range(2))
        for program in (one, other):
            for _ in range(2):
                program.step_eager()
        return not _difference(one, other, exact=True)

    # ---- capture --------------------------------------------------------------------------

    def _unfit(self, job: Job, kind: Kind, capture: Capture) -> str:
        """Why networks of a kind cannot be captured; empty: they can."""
        if kind.note:
            return kind.note
        try:
            eager = self._train_eagerly(job, kind)
        except Exception as error:  # users' optimizers and training steps raise anything
            if is_out_of_memory(error):
                raise
            return f"a batch waits for the device: {first_line(error)}"
        if isinstance(eager, str):
            return eager
        try:
            replayed = self._train_by_replays(job, kind, capture)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return f"a capture failed: {first_line(error)}"
        return _difference(eager, replayed, kind.bitwise) or _attributes(eager, replayed)

    def _train_eagerly(self, job: Job, kind: Kind) -> Program | str:
        program = self._program(job, kind)
        program.step_eager()
        before, kept = host_state(), program.optimizer.kept()
        feed = program.make_feed()
        feed.ready(program.trained)
        with _waiting_is_an_error(self._task.device):
            program.step_static(feed)
        program.trained += 1
        for _ in range(REPLAYS - 1):
            program.step_eager()
        if host_state() != before:
            return "it draws random numbers from Python's random or numpy.random"
        counted = program.optimizer.kept().changed(kept)
        return f"the optimizer changes {counted!r} in every batch" if counted else program

    def _train_by_replays(self, job: Job, kind: Kind, capture: Capture) -> Program:
        program = self._program(job, kind)
        feed = program.make_feed()
        feed.ready(0)
        program.step_static(feed)
        feed.ready(1)
        recording = program.record(feed, capture)
        for number in range(1, 1 + REPLAYS):
            feed.ready(number)
            recording.replay()
        program.trained = 1 + REPLAYS
        _wait(self._task.device)
        return program


class _Called(nn.Module):
    """A network that takes its inputs by position."""

    def __init__(self, network: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.network, self.inputs = network, inputs

    def forward(self, *values: Tensor) -> Any:
        return self.inputs.call(self.network, values)


@contextlib.contextmanager
def _waiting_is_an_error(device: torch.device) -> Iterator[None]:
    """Within it an operation that waits for the device raises, as it would in a capture."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # SYNC: once for a kind of network


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    text = str(error).strip()
    return " ".join(text.splitlines()[0].split()) if text else type(error).__name__


# ---- what captured and eager batches must have in common -----------------------------------


def _difference(one: Program, other: Program, exact: bool) -> str:
    """What differs between two runs after the same batches; empty: nothing."""
    ours, theirs = _state(one), _state(other)
    if ours.keys() != theirs.keys():
        return "replayed batches keep other values than eager ones"
    for name, value in ours.items():
        same = torch.equal if exact else _close
        if not same(_bits(value), _bits(theirs[name])):
            return f"replayed batches compute other values than eager ones ({name})"
    return ""


def _state(program: Program) -> dict[str, Tensor]:
    found = dict(named_state(program.network)) | {"loss": program.total}
    for place, param in enumerate(program.params):
        for name, value in program.optimizer.state.get(param, {}).items():
            if isinstance(value, Tensor):
                found[f"optimizer {place} {name}"] = value
    kept = program.optimizer.kept().tensors
    return found | {f"optimizer {name}": value for name, value in kept.items()}


def _bits(value: Tensor) -> Tensor:
    """A tensor in which NaN equals NaN."""
    return torch.nan_to_num(value, nan=0.12345) if value.is_floating_point() else value


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one.double(), other.double(), rtol=1e-2, atol=1e-3)


def _attributes(one: Program, other: Program) -> str:
    """The first attribute of a module that differs; empty: none does."""
    theirs = dict(other.network.named_modules())
    for name, part in one.network.named_modules():
        counterpart = vars(theirs[name]) if name in theirs else {}
        for attribute, value in vars(part).items():
            if attribute in ("_parameters", "_buffers", "_modules"):
                continue
            if not _alike(value, counterpart.get(attribute), depth=2):
                return f"forward changes {'.'.join(filter(None, (name, attribute)))} in every batch"
    return ""


def _alike(one: Any, other: Any, depth: int) -> bool:
    """Whether two attributes are the same as far as can be seen."""
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and one.shape == other.shape
            and torch.equal(_bits(one.detach()), _bits(other.detach()))
        )
    if type(one) is not type(other):
        return False
    if one is None or isinstance(one, bool | int | float | str | bytes):
        return bool(one == other) or one != one
    if depth == 0:
        return True
    if isinstance(one, list | tuple | set | frozenset):
        pairs = () if isinstance(one, set | frozenset) else zip(one, other, strict=False)
        return len(one) == len(other) and all(_alike(a, b, depth - 1) for a, b in pairs)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            _alike(value, other[key], depth - 1) for key, value in one.items()
        )
    return True
