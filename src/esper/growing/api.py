"""`esper.grow`: one call from a model, data and a budget to the frontier of score against size."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import torch
from torch import Tensor, nn

from esper.device.selection import parse_device
from esper.growing.batches import BatchSource, ResidentBatches, StreamedBatches
from esper.growing.budget import Budget
from esper.growing.data import GrowData, StreamChoice, read_data
from esper.growing.folder import (
    SCHEMA,
    GrowFolder,
    GrowInfo,
    architecture_of,
    population_name,
    read_info,
    read_state,
    runs_root,
)
from esper.growing.model_checks import check_against_model, model_failure
from esper.growing.outcome import make_result
from esper.growing.parts import GrowPart, Inputs
from esper.growing.progress import Progress, ProgressPrinter
from esper.growing.result import GrowResult
from esper.growing.search import Search, SearchPolicy, SearchSettings
from esper.growing.setup import (
    Builder,
    Length,
    Probe,
    choose_batch_size,
    choose_length,
    choose_rates,
    choose_runs,
    make_space,
    measure_speed,
    most_members,
    population_config,
)
from esper.growing.streams import StreamSource
from esper.growing.topologies import TopologySpace
from esper.growing.training import Validation
from esper.kasmina.initialisation import build
from esper.kasmina.population import Population
from esper.kasmina.tracing import HostTrace, trace_model
from esper.leyline.compute import ExecutorName
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.seeds import require_seed
from esper.simic.training.runs.provenance import versions
from esper.tasks.objectives import Objective, make_objective
from esper.tolaria.memory_check import free_bytes
from esper.tolaria.runtime import explain_out_of_memory

POLICIES: Final = ("auto", *get_args(SearchPolicy))
VAL_BATCH: Final = 1024
"""Samples of a validation batch."""
PROBE_MEMBERS: Final = 8
DATA_SHARE: Final = 0.3
"""Share of the free memory of a GPU that data may take there."""
FEW_MEMBERS: Final = 4
"""Members below which candidates cannot be halved."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Model, data and loss, checked against each other."""

    trace: HostTrace
    data: GrowData
    objective: Objective
    architecture: str

    def packed(self, part: GrowPart) -> Tensor:
        """Inputs of a part as the one tensor that hosts take."""
        return self.trace.inputs.pack(part.inputs)


def grow(
    model: nn.Module | Callable[[], nn.Module],
    train: Any,
    val: Any = None,
    test: Any = None,
    budget: Budget | None = None,
    *,
    policy: str = "auto",
    optimizer: str = "auto",
    lr: float | Sequence[float] | Literal["auto"] = "auto",
    loss: str | Callable[..., Any] = "auto",
    metric: str | Callable[..., Any] = "auto",
    seed: int = 0,
    slots: int | Sequence[str] = 8,
    blueprints: Sequence[str] | None = None,
    epochs: float | Literal["auto"] = "auto",
    batch_size: int | None = None,
    columns: Sequence[str] | None = None,
    stream: StreamChoice = "auto",
    output: str | int | None = None,
    class_weights: Sequence[float] | Tensor | None = None,
    label_smoothing: float = 0.0,
    device: str | torch.device = "auto",
    executor: ExecutorName = "auto",
    name: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    on_round: Callable[[Progress], None] | None = None,
) -> GrowResult:
    """Grow a model on data within a budget; returns the frontier of score against size.

    `model`: any module, whose weights all networks start from, or a class or function that builds
    one, which gives each network its own. `train`: arrays, tensors, a Dataset, a DataLoader or a
    table; `val` and `test` are cut from it where they are not given. `slots`: how many places to
    grow at, or paths of the modules they come after. `folder`: where the run folder is made;
    `resume`: a run folder, to continue an interrupted run with the same model and data.

    Ctrl-C ends the search and returns the best so far.
    """
    if policy not in POLICIES:
        raise unknown_name("policy", policy, POLICIES)
    require_seed(seed, "seed")
    budget = Budget() if budget is None else budget
    if not isinstance(budget, Budget):
        raise EsperError(f"budget={budget!r}: give esper.Budget(params=..., minutes=...)")
    printer = ProgressPrinter(verbose, on_round)
    where = parse_device(device)
    data = read_data(
        train, val, test, columns=columns, seed=seed, batch_size=batch_size, stream=stream
    )
    problem = make_problem(
        model, data, loss, metric, slots, blueprints, output, class_weights, label_smoothing
    )
    kind, rates = choose_rates(lr, optimizer, problem.trace.topology)
    config = population_config(kind, rates[len(rates) // 2], executor)
    builder = Builder(problem.trace, config, problem.objective, seed, where)
    chosen = cast(SearchPolicy, "halving" if policy == "auto" else policy)
    run = _Run(problem, builder, budget, epochs, kind, rates, printer, chosen)
    run.prepare()
    if resume is None:
        home = GrowFolder.create(runs_root(folder), name or problem.trace.name, seed)
    else:
        home = GrowFolder.open(Path(resume))
    try:
        return run.search(home, resume is not None)
    finally:
        home.close()


def make_problem(
    model: nn.Module | Callable[[], nn.Module],
    data: GrowData,
    loss: str | Callable[..., Any] = "auto",
    metric: str | Callable[..., Any] = "auto",
    slots: int | Sequence[str] = 8,
    blueprints: Sequence[str] | None = None,
    output: str | int | None = None,
    class_weights: Sequence[float] | Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Problem:
    """Trace a model and check it against the data and the loss; raises before anything trains."""
    example = data.example()
    _try_model(model, example.inputs)
    trace = trace_model(model, example.inputs, slots, output)
    if blueprints is not None:
        trace = _limited(trace, blueprints)
    host = trace.factory().eval()
    with torch.no_grad():
        outputs = host(trace.inputs.pack(example.inputs))
    objective = make_objective(
        loss,
        metric,
        targets=data.sample.targets,
        output_shape=tuple(outputs.shape[1:]),
        class_weights=class_weights,
        label_smoothing=label_smoothing,
    )
    check_against_model(data, objective, outputs, len(example))
    return Problem(trace, data, objective, architecture_of(host))


def _try_model(model: nn.Module | Callable[[], nn.Module], inputs: Inputs) -> None:
    """Run the model on the first samples, as the user would; raises with a hint if it fails."""
    if not isinstance(model, nn.Module) and not callable(model):
        raise EsperError(
            f"model={type(model).__name__}: give an nn.Module, or a class or function that builds "
            f"one"
        )
    base = model if isinstance(model, nn.Module) else build(model, 0, "model")
    modes = {part: part.training for part in base.modules()}
    try:
        base.eval()
        device = next((p.device for p in base.parameters()), torch.device("cpu"))
        with torch.no_grad():
            if isinstance(inputs, Tensor):
                base(inputs.to(device))
    except Exception as error:  # whatever a user's model raises
        raise model_failure(error, base, inputs) from error
    finally:
        for part, mode in modes.items():
            part.training = mode


def _limited(trace: HostTrace, blueprints: Sequence[str]) -> HostTrace:
    from dataclasses import replace

    for name in blueprints:
        if name not in trace.blueprints:
            raise unknown_name("blueprint", name, trace.blueprints, f"for {trace.name}")
    return replace(trace, blueprints=tuple(blueprints))


class _Run:
    """One call of `grow`, after its arguments are checked."""

    def __init__(
        self,
        problem: Problem,
        builder: Builder,
        budget: Budget,
        epochs: float | Literal["auto"],
        optimizer: str,
        rates: tuple[float, ...],
        printer: ProgressPrinter,
        policy: SearchPolicy = "halving",
    ) -> None:
        self.problem, self.builder, self.budget = problem, builder, budget
        self.policy = policy
        self.optimizer, self.rates, self.printer = optimizer, rates, printer
        self.device = builder.device
        data = problem.data
        samples = len(data.train) if isinstance(data.train, GrowPart) else data.train.samples
        size = choose_batch_size(data.batch_size, samples)
        self.batches, per_epoch = self._batches(size)
        self.length = choose_length(epochs, size, per_epoch)
        self.began = time.monotonic()

    def _batches(self, size: int) -> tuple[BatchSource, int | None]:
        train, inputs = self.problem.data.train, self.problem.trace.inputs
        if isinstance(train, StreamSource):

            def open_pass() -> Iterator[tuple[Tensor, Tensor]]:
                return ((inputs.pack(x), y) for x, y in train.batches())

            return StreamedBatches(open_pass, self.device), train.batches_per_epoch
        packed, targets = self.problem.packed(train), train.targets
        resident = packed.nbytes <= DATA_SHARE * free_bytes(self.device)
        if resident:
            packed, targets = packed.to(self.device), targets.to(self.device)
        batches = ResidentBatches(packed, targets, size, self.builder.seed, self.device)
        return batches, batches.per_epoch

    def prepare(self) -> None:
        """Measure sizes and speed, decide the settings of the search, and say what it costs."""
        problem, builder = self.problem, self.builder
        x, _ = self.batches.batch(0)
        with explain_out_of_memory(self.device, 1, self.length.batch_size):
            self.space: TopologySpace = make_space(builder, x[0], self.budget)
            self.members = most_members(self.space, self.device)
            probed = min(PROBE_MEMBERS, self.members)
            self.probe: Probe = measure_speed(
                builder, self.space, self.batches, problem.objective, probed
            )
        before: Length = self.length
        self.runs, self.length = choose_runs(self.budget, self.space, before, self.probe)
        self._announce(before)

    def _announce(self, before: Length) -> None:
        say, trace, data = self.printer.say, self.problem.trace, self.problem.data
        for note in data.notes:
            say(note)
        costs = self.space.costs
        say(
            f"{trace.name}: {costs.host_params:,} parameters, {costs.host_macs:,} MACs; "
            f"{len(trace.slots)} places to grow ({', '.join(trace.places.values())}), blueprints "
            f"{', '.join(trace.blueprints)}"
        )
        for path, reason in trace.untraced.items():
            say(f"{path} is kept whole: {reason}")
        if before.batches != self.length.batches:
            say(
                f"the time limit leaves room for training runs of {self.length.batches} batches "
                f"instead of {before.batches}"
            )
        if self.members < FEW_MEMBERS:
            say(
                f"only {self.members} networks of this size fit into memory: they are trained a "
                f"few at a time"
            )
        seconds = self.runs * self.length.batches * self.probe.seconds
        say(
            f"up to {self.members} networks at a time, {self.length.batches} batches of "
            f"{self.length.batch_size} each; {self.runs:.3g} training runs of your model in all, "
            f"about {_time(seconds)}"
        )

    def search(self, folder: GrowFolder, resumed: bool) -> GrowResult:
        """Search, and judge what was found."""
        problem, printer = self.problem, self.printer
        info = self._info(folder.path)
        if resumed:
            info = self._matching(folder.path, info)
        else:
            folder.write("grow.json", info)
        settings = SearchSettings(
            length=info.length,
            rates=info.rates,
            most_members=info.most_members,
            runs=info.runs,
            seconds=float("inf") if self.budget.minutes is None else 60.0 * self.budget.minutes,
            seed=self.builder.seed,
            policy=self.policy,
        )
        val = Validation(
            problem.packed(problem.data.val).to(self.device),
            problem.data.val.targets.to(self.device),
            VAL_BATCH,
        )
        search = Search(
            settings,
            self.space,
            self.builder,
            self.batches,
            val,
            problem.objective,
            folder,
            printer,
        )
        state = read_state(folder.path) if resumed else None
        population = None
        if state is not None and state.members:
            held = folder.path / population_name(state)
            population = Population.load(
                held, problem.trace.factory, self.device, loss=problem.objective.loss
            )
            printer.say(f"resuming at bracket {state.bracket + 1}, batch {state.batch}")
        with explain_out_of_memory(self.device, self.members, self.length.batch_size):
            complete = search.run(state, population)
        return make_result(problem.trace, problem.data, problem.objective, info, search, folder,
                           complete, printer.say)  # fmt: skip

    def _info(self, path: Path) -> GrowInfo:
        problem, builder, costs = self.problem, self.builder, self.space.costs
        trace = problem.trace
        return GrowInfo(
            schema=SCHEMA,
            name=path.name,
            created=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
            model=trace.name,
            fingerprint=problem.data.fingerprint,
            architecture=problem.architecture,
            notes=problem.data.notes,
            loss=problem.objective.name,
            metric=problem.objective.metric,
            topology=trace.topology,
            slots=trace.slots,
            places=tuple(trace.places[slot] for slot in trace.slots),
            blueprints=trace.blueprints,
            host_params=costs.host_params,
            host_macs=costs.host_macs,
            batch_size=self.length.batch_size,
            epochs=self.length.epochs,
            length=self.length.batches,
            optimizer=self.optimizer,
            rates=self.rates,
            most_members=self.members,
            runs=self.runs,
            seed=builder.seed,
            device=str(self.device),
            budget=self.budget,
            versions=versions(),
            train_macs=self.space.training.host,
            constant_score=problem.objective.constant_score,
        )

    def _matching(self, path: Path, now: GrowInfo) -> GrowInfo:
        """The settings of a run to resume; raises if model, data or loss are others."""
        before = read_info(path)
        for what in ("fingerprint", "architecture", "loss", "metric", "places", "seed"):
            old, new = getattr(before, what), getattr(now, what)
            if old != new:
                meant = {"fingerprint": "data", "architecture": "model"}.get(what, what)
                raise EsperError(
                    f"resume {path}: it was started with other {meant} ({str(old)[:40]}, now "
                    f"{str(new)[:40]}); give the same, or start a new run"
                )
        return before


def _time(seconds: float) -> str:
    """A duration for people.

    >>> _time(40), _time(400)
    ('40 s', '7 min')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
