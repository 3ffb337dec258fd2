"""One run of `esper.grow`: decides its settings, says what it costs, searches and judges."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from torch import Tensor, nn

from esper.device.memory import free_bytes
from esper.device.selection import parse_device
from esper.growing.batches import BatchSource, ResidentBatches, StreamedBatches
from esper.growing.budget import Budget
from esper.growing.folder import (
    GrowFolder,
    GrowInfo,
    population_name,
    read_info,
    read_state,
)
from esper.growing.outcome import make_result
from esper.growing.parts import GrowPart
from esper.growing.problem import Problem, limit_blueprints
from esper.growing.progress import ProgressPrinter
from esper.growing.ranks import ALONE, Ranks
from esper.growing.records import SearchState, stages_done
from esper.growing.result import GrowResult
from esper.growing.search import LARGEST_SHARE, Search, SearchSettings
from esper.growing.settings import GrowSettings
from esper.growing.setup import (
    Builder,
    Length,
    Probe,
    choose_batch_size,
    choose_length,
    choose_rates,
    choose_runs,
    choose_weight_decay,
    explain_amp,
    make_space,
    measure_speed,
    most_members,
    population_config,
)
from esper.growing.streams import StreamSource
from esper.growing.topologies import TopologySpace
from esper.growing.training import BracketTrainer, Validation
from esper.growing.variants import Variant
from esper.growing.widths import spread_widths, width_name
from esper.kasmina.population import Population
from esper.kasmina.population_config import PopulationConfig
from esper.kasmina.tracing import HostTrace
from esper.kasmina.tracing.widths import scaled_model
from esper.leyline.codec import to_json
from esper.leyline.errors import EsperError
from esper.nissa.trackers.tracking import track_run
from esper.simic.training.runs.folder import GROW
from esper.storage import run_files
from esper.storage.provenance import versions
from esper.storage.sessions import utc_now
from esper.tolaria.runtime import explain_out_of_memory

VAL_BATCH: Final = 1024
"""Samples of a validation batch."""
PROBE_MEMBERS: Final = 8
DATA_SHARE: Final = 0.3
"""Share of the free memory of a device that data may take there."""
FEW_MEMBERS: Final = 4
"""Members below which candidates cannot be halved."""
TRAINED: Final = 0.2
"""An instance whose score exceeds the best constant's by this share of what is left is trained."""


class GrowRun:
    """One call of `grow`, after its arguments are checked."""

    def __init__(
        self,
        problem: Problem,
        settings: GrowSettings,
        budget: Budget,
        printer: ProgressPrinter,
        ranks: Ranks = ALONE,
    ) -> None:
        """`ranks`: the processes that search together."""
        self.problem, self.settings, self.budget = problem, settings, budget
        self.printer, self.ranks = printer, ranks
        self.device = ranks.device or parse_device(settings.device)
        self.optimizer, self.rates = choose_rates(
            settings.lr, settings.optimizer, problem.trace.topology
        )
        middle = self.rates[len(self.rates) // 2]
        self.weight_decay = choose_weight_decay(settings.weight_decay, self.optimizer)
        config = population_config(
            self.optimizer, middle, self.weight_decay, settings.clip, settings.executor
        )
        self.builder = self._builder(problem.trace, config)
        data = problem.data
        samples = len(data.train) if isinstance(data.train, GrowPart) else data.train.samples
        size = choose_batch_size(data.batch_size, samples)
        self.batches, per_epoch = self._batches(size)
        self.length = choose_length(settings.epochs, size, per_epoch)
        self.val = Validation(
            problem.packed(data.val).to(self.device),
            data.val.targets.to(self.device),
            VAL_BATCH,
            problem.metric,
        )
        self.constant = problem.constant_score(data.val)
        """Validation score of the best constant prediction."""

    def _builder(self, trace: HostTrace, config: PopulationConfig) -> Builder:
        settings, loss = self.settings, self.problem.loss
        amp = settings.mixed_precision
        return Builder(trace, config, loss, settings.seed, self.device, amp)

    def _batches(self, size: int) -> tuple[BatchSource, int | None]:
        train, inputs = self.problem.data.train, self.problem.trace.inputs
        if isinstance(train, StreamSource):

            def open_pass() -> Iterator[tuple[Tensor, Tensor]]:
                return ((inputs.pack(x), y) for x, y in train.batches())

            stream = StreamedBatches(open_pass, self.device, self.ranks.batch)
            return stream, train.batches_per_epoch
        packed, targets = self.problem.packed(train), train.targets
        if packed.nbytes <= DATA_SHARE * free_bytes(self.device):
            packed, targets = packed.to(self.device), targets.to(self.device)
        batches = ResidentBatches(packed, targets, size, self.settings.seed, self.device)
        return batches, batches.per_epoch

    # ---- before the search ----------------------------------------------------------------

    def prepare(self, probe: bool = True) -> None:
        """Measure sizes and speed, decide the settings of the search, and say what it costs.

        `probe`: measure the speed, which a limit in minutes and the announced time need.
        """
        x, _ = self.batches.batch(0)
        before = self.length
        with explain_out_of_memory(self.device, 1, self.length.batch_size):
            with explain_amp(self.settings.mixed_precision, self.problem.trace.name):
                space = make_space(self.builder, x[0], self.budget)
                probed = min(PROBE_MEMBERS, self._most_members(space))
                self.probe = Probe(math.nan, probed)
                if probe or self.budget.minutes is not None:
                    found = measure_speed(self.builder, space, self.batches, probed)
                    self.probe = Probe(self.ranks.measured(found.seconds), probed)
            base = Variant("", self.builder, space, 1.0)
            self.runs, self.length = choose_runs(self.budget, space, before, self.probe)
            self.full_length = before.batches
            self.variants = [base, *self._widths(x[0], base)]
            self.members = min(self._most_members(v.space) for v in self.variants)
        self._announce(before)

    def _most_members(self, space: TopologySpace) -> int:
        """Members that fit into the memory of every rank."""
        return int(self.ranks.least(most_members(space, self.device, self.ranks.size)))

    def _widths(self, sample: Tensor, base: Variant) -> list[Variant]:
        """The model at other widths, as far as it can be scaled and the budget allows."""
        wanted = self.settings.widths
        if wanted == "auto":
            if self._is_trained(base):
                return []
            most_cost = LARGEST_SHARE * (self.runs - 1.0)
            return spread_widths(lambda factor: self._scaled(factor, sample, base), base, most_cost)
        found = {base.space.costs.host_params: base}
        for factor in wanted:
            try:
                made = self._scaled(factor, sample, base)
            except EsperError as error:
                raise EsperError(f"width {factor:g}: {error}") from error
            found.setdefault(made.space.costs.host_params, made)
        return list(found.values())[1:]

    def _scaled(self, factor: float, sample: Tensor, base: Variant) -> Variant:
        """The model at another width; raises if that cannot be made, or exceeds the budget."""
        problem, settings = self.problem, self.settings
        example = problem.data.example().inputs
        trace = scaled_model(problem.model, example, factor, settings.output, settings.slots).host
        if settings.blueprints is not None:
            trace = limit_blueprints(trace, settings.blueprints)
        # A narrow network may need another executor: torch cannot vmap a norm of one channel.
        config = replace(self.builder.config, executor=settings.executor)
        builder = self._builder(trace, config)
        space = make_space(builder, sample, self.budget)
        cost = space.training.host / max(1, base.space.training.host)
        return Variant(width_name(factor), builder, space, cost)

    def _is_trained(self, base: Variant) -> bool:
        """Whether the model was given with weights that already solve the problem in part."""
        if not isinstance(self.problem.model, nn.Module):
            return False
        trainer = BracketTrainer(self.builder([0]), base.space, self.batches, 1, self.rates[:1])
        score, metric = float(trainer.validate(self.val)[0][0]), self.problem.metric
        gained = metric.merit(score - self.constant)
        return bool(gained > TRAINED * metric.merit(metric.best - self.constant))

    def _announce(self, before: Length) -> None:
        say, trace, data = self.printer.say, self.problem.trace, self.problem.data
        for note in data.notes:
            say(note)
        costs = self.variants[0].space.costs
        others = ", ".join(variant.name for variant in self.variants[1:])
        say(
            f"{trace.name}: {costs.host_params:,} parameters, {costs.host_macs:,} MACs; "
            f"{len(trace.slots)} {'place' if len(trace.slots) == 1 else 'places'} to grow "
            f"({', '.join(trace.places.values())}), blueprints "
            f"{', '.join(trace.blueprints)}; other widths: {others or 'none'}"
        )
        if trace.hooked:
            say(
                f"{trace.name} runs whole, by hooks, one network after the other, which is slower: "
                f"torch.fx cannot trace it ({trace.hooked})"
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
            f"about {duration(seconds)}"
        )

    # ---- the search -----------------------------------------------------------------------

    def search(self, folder: GrowFolder, resumed: bool, files: bool = True) -> GrowResult:
        """Search, and judge what was found; `files`: write the networks and the report, too.

        Of several ranks the first one writes.
        """
        problem, printer = self.problem, self.printer
        info = self._info(folder.path)
        if resumed:
            info = self._matching(folder.path, info)
        else:
            folder.write(GROW, info)
        settings = SearchSettings(
            length=info.length,
            rates=info.rates,
            most_members=info.most_members,
            runs=info.runs,
            seconds=float("inf") if self.budget.minutes is None else 60.0 * self.budget.minutes,
            seed=self.settings.seed,
            policy=self.settings.search_policy,
        )
        ranks = self.ranks
        search = Search(
            settings, self.variants, self.batches, self.val, self.constant, folder, printer, ranks
        )
        state = read_state(folder.path) if resumed else None
        populations = {} if state is None else self._populations(folder.path, state)
        with (
            explain_out_of_memory(self.device, self.members, self.length.batch_size),
            self._tracked(folder, info, state),
        ):
            complete = search.run(state, populations)
        home = Path(ranks.text(str(folder.path)))  # before rank 0 is busy with files
        files = files and ranks.first
        result = make_result(problem, info, search, folder, complete, printer, files)
        result.folder = home
        return result

    @contextlib.contextmanager
    def _tracked(
        self, folder: GrowFolder, info: GrowInfo, state: SearchState | None
    ) -> Iterator[None]:
        """Pass the stages that end inside the block to trackers."""
        settings = to_json(info)
        assert isinstance(settings, dict)
        done = 0 if state is None else stages_done(state)
        names, path = self.printer.trackers if self.ranks.first else (), folder.path
        with track_run(names, path, path.name, settings, done) as tracking:
            self.printer.tracking = tracking
            yield

    def _populations(self, path: Path, state: SearchState) -> Mapping[int, Population]:
        """Load the members of the bracket under way, by variant."""
        if not state.members:
            return {}
        self.printer.say(f"resuming at bracket {state.bracket + 1}, batch {state.batch}")
        held = path / population_name(state)
        loss = self.problem.loss.loss
        # A save names the executor, but for 'sharded', which a run may be resumed with or without.
        wanted = self.settings.executor
        executor = wanted if wanted == "sharded" else None
        return {
            host: Population.load(
                held / str(host), self.variants[host].trace.factory, self.device, executor, loss
            )
            for host in sorted({state.candidates[number].host for number in state.members})
        }

    def _info(self, path: Path) -> GrowInfo:
        problem, space, settings = self.problem, self.variants[0].space, self.settings
        trace = problem.trace
        return GrowInfo(
            schema=run_files.GROW_SCHEMA,
            name=path.name,
            created=utc_now(),
            model=trace.name,
            fingerprint=problem.data.fingerprint,
            architecture=problem.architecture,
            notes=problem.data.notes,
            loss=problem.loss.name,
            metric=problem.metric.name,
            topology=trace.topology,
            slots=trace.slots,
            places=_places(self.variants[0]),
            variants=tuple(variant.name for variant in self.variants),
            variant_places=tuple(_places(variant) for variant in self.variants),
            blueprints=trace.blueprints,
            host_params=space.costs.host_params,
            host_macs=space.costs.host_macs,
            batch_size=self.length.batch_size,
            epochs=self.length.epochs,
            length=self.length.batches,
            optimizer=self.optimizer,
            rates=self.rates,
            most_members=self.members,
            runs=self.runs,
            seed=settings.seed,
            device=str(self.device),
            budget=self.budget,
            versions=versions(),
            train_macs=space.training.host,
            constant_score=self.constant,
            amp=settings.mixed_precision,
            output=json.dumps(settings.output),
            weight_decay=self.weight_decay,
            clip=settings.clip or 0.0,
            full_length=self.full_length,
            higher_is_better=problem.metric.higher_is_better,
        )

    def _matching(self, path: Path, now: GrowInfo) -> GrowInfo:
        """The settings of a run to resume; raises if model, data or loss are others."""
        before = read_info(path)
        names = (
            "fingerprint",
            "architecture",
            "loss",
            "metric",
            "places",
            "variants",
            "seed",
            "amp",
            "weight_decay",
            "clip",
        )
        for what in names:
            old, new = getattr(before, what), getattr(now, what)
            if old is not None and old != new:
                words = {
                    "fingerprint": "data",
                    "architecture": "model",
                    "variants": "widths",
                    "weight_decay": "weight decay",
                }
                raise EsperError(
                    f"resume {path}: it was started with other {words.get(what, what)} "
                    f"({str(old)[:40]}, now {str(new)[:40]}); give the same, or start a new run"
                )
        return before


def _places(variant: Variant) -> tuple[str, ...]:
    trace = variant.trace
    return tuple(trace.places[slot] for slot in trace.slots)


def duration(seconds: float) -> str:
    """A duration for people.

    >>> duration(40), duration(400)
    ('40 s', '7 min')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
