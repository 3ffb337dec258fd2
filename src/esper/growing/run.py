"""One run of `esper.grow`: decides its settings, says what it costs, searches and judges."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from torch import Tensor, nn

from esper.device.memory import free_bytes
from esper.device.selection import parse_device
from esper.growing.budget import Budget
from esper.growing.clock import Clock
from esper.growing.data.parts import GrowPart
from esper.growing.data.streams import StreamSource
from esper.growing.digests import tensor_digest
from esper.growing.folder import GROW, GrowFolder, GrowInfo, read_info, read_table
from esper.growing.ladder import MAX_SHARE, Ladder
from esper.growing.mirrors import look_alike_mirrored
from esper.growing.moves import Space
from esper.growing.networks import Networks, Variant
from esper.growing.outcome import make_result
from esper.growing.problem import Model, Problem
from esper.growing.progress import ProgressPrinter
from esper.growing.proposals import LadderSettings
from esper.growing.ranks import ONE_PROCESS, Ranks
from esper.growing.recipes import (
    FULL_RUNS,
    SMOOTHING,
    WEIGHT_DECAY,
    Length,
    choose_batch_size,
    choose_length,
    choose_rates,
    fewer_samples,
    longest_run,
)
from esper.growing.refit import Refit, costs_nothing, train_on
from esper.growing.result import GrowResult, NetworkRecord
from esper.growing.runs import Recipe, Table
from esper.growing.search import Search
from esper.growing.settings import WHERE, GrowSettings
from esper.growing.trainers.augment import NONE, check_augmentation, levels
from esper.growing.trainers.choose import trainer_for
from esper.growing.trainers.data import Samples, StreamReader
from esper.growing.trainers.job import Job, Trainer
from esper.growing.trainers.own_training import OWN, OwnTraining
from esper.growing.trainers.probe import batch_seconds
from esper.growing.trainers.task import Task, scalar_loss
from esper.growing.widths import (
    named_variants,
    own_width_variants,
    remade_variants,
    require_smaller,
    spread_variants,
)
from esper.jobs.settings import JobSettings
from esper.kasmina.tracing import carry_weights, finished_model
from esper.leyline.codec import to_json
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import is_out_of_memory
from esper.nissa.trackers.tracking import track_run
from esper.storage import run_files
from esper.storage.provenance import versions
from esper.storage.sessions import utc_now

_log: Final = logging.getLogger(__name__)
DATA_SHARE: Final = 0.3
"""Share of the free memory of a device that data may take there."""
TRAINED: Final = 0.2
"""An instance whose score exceeds the best constant's by this share of what is left is trained."""
REFERENCE_RUNS: Final = 6.0
"""The time limit is this many full runs of a model above the limits on size, at least."""
SEARCH_SHARE: Final = 0.85
"""Share of the time left that these runs may take; the rest is for judging and refits."""
FOUND: Final = {
    "fingerprint": "data",
    "architecture": "model",
    "weights": "starting weights",
    "places": "places",
    "amp": "amp",
    "batch_size": "batch size",
    "full_length": "length of a run",
}
"""What a resume compares besides the settings: field of the record -> what it is called."""


class GrowRun:
    """One call of `grow`, after its arguments are checked."""

    def __init__(
        self,
        problem: Problem,
        settings: GrowSettings,
        budget: Budget,
        printer: ProgressPrinter,
        began: float,
        ranks: Ranks = ONE_PROCESS,
    ) -> None:
        """`began`: when the call began, on the monotonic clock; `ranks`: the processes that train
        every network together.
        """
        self.problem, self.settings, self.budget = problem, settings, budget
        self.printer, self.ranks, self._began = printer, ranks, began
        self.device = ranks.device or parse_device(settings.device)
        self.optimizer, self.rates = choose_rates(
            settings.lr, settings.optimizer, problem.trace.topology
        )
        decay = settings.weight_decay
        self.weight_decay = WEIGHT_DECAY[self.optimizer] if decay == "auto" else float(decay)
        data, inputs = problem.data, problem.trace.inputs
        self.augments = self._augments()
        samples = len(data.train) if isinstance(data.train, GrowPart) else data.train.samples
        size = choose_batch_size(data.batch_size, samples)
        self.full = choose_length(settings.epochs, _per_epoch(data.train, size))
        self.task = Task(
            inputs=inputs,
            train=self._train_data(),
            val=Samples.of(data.val, inputs).to(self.device),
            loss=scalar_loss(problem.loss),
            metric=problem.metric,
            device=self.device,
            amp=self.device.type == "cuda" if settings.amp == "auto" else settings.amp,
            own=self._own_training(),
        )
        self.constant = problem.constant_score(data.val)
        """Validation score of the best constant prediction."""
        self.networks = Networks(problem, settings, budget, self.device.type, size)
        self._given = settings.record()  # before a probe calls functions that may count it

    def _own_training(self) -> OwnTraining:
        """What of the training is the user's."""
        given = self.settings
        for name in OWN:
            value = getattr(given, name)
            if isinstance(value, str) and ".py:" in value:
                raise EsperError(
                    f"{name}={value}: give the function; only a command takes its name"
                )
        optimizer = None if isinstance(given.optimizer, str) else given.optimizer
        usual = self.rates[len(self.rates) // 2]
        own = OwnTraining(given.train_step, optimizer, given.scheduler, usual)
        if own.given and self.ranks.size > 1:
            raise EsperError(f"{own.given[0]}: executor='sharded' has its own; leave it out")
        if own.train_step is not None and self.problem.weighted:
            raise EsperError("sample_weights: your train_step makes the loss; leave one out")
        return own

    def _augments(self) -> Sequence[str]:
        """Augmentations to choose from."""
        data, inputs = self.problem.data, self.problem.trace.inputs
        specs, own_step = inputs.specs, self.settings.train_step is not None
        shapes = [spec.shape for spec in specs]
        if self.settings.augment != "auto":
            check_augmentation(self.settings.augment, shapes)
            if own_step and "mixup" in self.settings.augment:
                raise EsperError(
                    f"augment={self.settings.augment}: mixup mixes the loss, which your train_step "
                    f"makes; leave one of both out"
                )
            return (self.settings.augment,)
        if isinstance(data.train, StreamSource) or own_step:
            return (NONE,)  # they may change samples by themselves
        floats = all(spec.dtype.is_floating_point for spec in specs)
        mirrored = partial(
            look_alike_mirrored, Samples.of(data.train, inputs), Samples.of(data.val, inputs)
        )
        return levels(shapes, floats, data.train.targets.shape[1:], mirrored)

    def _space(self) -> Space:
        """What the search may change in a recipe."""
        settings, smoothing = self.settings, self.settings.label_smoothing
        train = self.problem.data.train
        labels = isinstance(train, GrowPart) and train.targets.ndim == 1
        tries = smoothing == "auto" and self.task.smooths and labels
        return Space(
            self._recipe(self.length),
            self.rates,
            more_rates=settings.lr == "auto",
            augments=tuple(self.augments),
            smoothings=(0.0, SMOOTHING) if tries else (settings.smoothing,),
            decays=settings.weight_decay == "auto" and self.optimizer != "own",
            batch_sizes=self._free_batches,
            epoch=_per_epoch(train, self.networks.batch_size) or math.inf,
        )

    def _train_data(self) -> Samples | StreamReader:
        train, inputs = self.problem.data.train, self.problem.trace.inputs
        if isinstance(train, StreamSource):
            return StreamReader(train, inputs, self.settings.seed, self.device)
        samples = Samples.of(train, inputs)
        fits = samples.bytes <= DATA_SHARE * free_bytes(self.device)
        return samples.to(self.device) if fits else samples

    # ---- before the search ----------------------------------------------------------------

    def prepare(self) -> None:
        """Measure the size of the model, and its speed if time is limited; decide the lengths."""
        self.printer.phase("measuring size and speed")
        with self._explained():
            size = self.networks.base.bare_size
            if self.settings.depths != "auto":
                self.networks.check_depths()
            if not self.networks.base_fits:
                require_smaller(self.networks, self.settings.widths, self.networks.depths)
            self.length, self.each = self.full, math.nan
            if self.budget.minutes is not None:
                self.each = self.ranks.measured(self._probe())
                self.length = self._in_time()
                if self._take_smaller_batches():
                    self.each = self._probe()
                    self.length = self._in_time()
        flops = 2.0 * max(1, size.train_macs) * self.networks.batch_size * self.length.batches
        self.most_runs = self.budget.training_runs(flops)
        self._announce()

    def _take_smaller_batches(self) -> bool:
        """On a CPU small batches cost less: take them where there is time for few of the usual."""
        size = fewer_samples(self.networks.batch_size, self.length.batches)
        if not self._free_batches or self.device.type != "cpu" or self.ranks.size > 1:
            return False
        return self._take_batches(size)

    @property
    def _free_batches(self) -> bool:
        """Whether the batch size is chosen here."""
        data = self.problem.data
        return data.batch_size is None and isinstance(data.train, GrowPart)

    def _take_batches(self, size: int) -> bool:
        """Take batches of another size as the usual ones; returns whether it is another."""
        changes = size != self.networks.batch_size
        if changes:
            per_epoch = _per_epoch(self.problem.data.train, size)
            self.full = choose_length(self.settings.epochs, per_epoch)
            self.networks.batch_size = size
        return changes

    def _recipe(self, length: Length) -> Recipe:
        rate = self.rates[len(self.rates) // 2]
        clip = self.settings.clip or 0.0
        return Recipe(
            self.optimizer, rate, self.weight_decay, clip, self.networks.batch_size, length.batches,
            self.augments[0], self.settings.smoothing,
        )  # fmt: skip

    def _probe(self) -> float:
        """Seconds of a batch of the model, after the first ones, as the search will train it."""
        base, seed = self.networks.base, self.settings.seed
        job = Job(0, lambda: base.build(base.bare, seed), self._recipe(self.full), seed)
        together = self.ranks.size > 1
        (each,) = batch_seconds(self.trainer, [job], together=together, needed=True)
        return each

    def _in_time(self) -> Length:
        """The length of full runs for which there is time."""
        left = SEARCH_SHARE * (self.budget.seconds - (time.monotonic() - self._began))
        # Of a model above the limits one run is needed, as the reference; others cost less.
        runs = FULL_RUNS if self.networks.base_fits else REFERENCE_RUNS
        batches = max(1, int(left / (self.each * runs)))
        return self.full if batches >= self.full.batches else self.full.cut(batches)

    @cached_property
    def trainer(self) -> Trainer:
        """Trains the runs."""
        jobs, base = JobSettings(on=self.settings.on), self.networks.base
        build = partial(base.build, base.bare, self.settings.seed)
        return trainer_for(self.task, self.budget.seconds, self.ranks, build, jobs)

    # ---- variants -------------------------------------------------------------------------

    def _other_variants(self, search: Search) -> Sequence[Variant]:
        """The model at other widths and depths, as far as it can be and the budget allows."""
        networks, settings = self.networks, self.settings
        depths = networks.depths
        in_time = search.clock.most_cost(search.ladder.least_run(), MAX_SHARE)
        most = self.ranks.measured(min(MAX_SHARE * (self.most_runs - 1.0), in_time))
        if settings.widths != "auto":
            if settings.depths != "auto":
                return named_variants(networks, settings.widths, depths)
            named = named_variants(networks, settings.widths)
            return [*named, *own_width_variants(networks, most, depths)]
        if networks.base_fits and self._is_trained():
            return own_width_variants(networks, most, depths)
        return spread_variants(networks, most, depths)

    @property
    def _base_latency(self) -> float:
        """Milliseconds of the model as given for one sample."""
        base = self.networks.base
        return self.networks.latency(base, base.bare)

    def _is_trained(self) -> bool:
        """Whether the model was given with weights that already solve the problem in part."""
        if not isinstance(self.problem.model, nn.Module):
            return False
        base = self.networks.base
        network = base.build(base.bare, self.settings.seed).to(self.device)
        score, _, _ = self.task.judge(network)
        metric = self.problem.metric
        gained = metric.merit(score - self.constant)
        return bool(gained > TRAINED * metric.merit(metric.best - self.constant))

    def _announce(self) -> None:
        say, trace = self.printer.say, self.problem.trace
        for note in self.problem.data.notes:
            say(note)
        size = self.networks.base.bare_size
        say(f"{trace.name}: {size.params:,} parameters, {size.macs:,} MACs")
        if not self.networks.base_fits:
            name, _ = self.budget.excess(size.params, size.macs, self._base_latency)
            say(
                f"that is above {name}={getattr(self.budget, name):g}: it is trained as the "
                f"reference, and narrower versions, with fresh weights, are searched"
            )
        self._announce_whole()

    def _announce_length(self) -> None:
        """Say how long runs are: those of a resumed search as long as before."""
        say = self.printer.say
        if self.full.batches != self.length.batches:
            say(
                f"the time limit leaves room for training runs of {self.length.batches} batches "
                f"instead of {self.full.batches}"
            )
        runs = f", {self.most_runs:.3g} in all" if math.isfinite(self.most_runs) else ""
        say(
            f"a training run of your model is {self.length.batches:,} batches of "
            f"{self.networks.batch_size}{runs}"
        )

    def _announce_whole(self) -> None:
        """Say which modules are kept whole; why that is goes to the log."""
        trace = self.problem.trace
        whole = {trace.name: trace.hooked} if trace.hooked else trace.untraced
        for path, reason in whole.items():
            _log.info("kept whole: %s: torch.fx cannot trace it: %s", path, reason)
        if whole:
            self.printer.say(f"kept whole: {', '.join(whole)} (no seeds inside what is not traced)")

    # ---- the search -----------------------------------------------------------------------

    def search(self, folder: GrowFolder, resumed: bool, files: bool = True) -> GrowResult:
        """Search, and judge what was found; `files`: write the networks, too.

        Of several ranks the first one writes.
        """
        self.networks.folder = folder.path
        if resumed and self._free_batches:  # which ones were taken depends on the speed there
            self._take_batches(read_info(folder.path).batch_size)
        info, table = self._info(folder.path), Table()
        if resumed:
            info, table = self._matching(folder.path, info), read_table(folder.path)
            self.length = self.full.cut(info.length)
        self._announce_length()
        folder.write(GROW, info)
        search = self._make_search(folder, table)
        refit = self._refit
        try:
            self._plan_variants(search, folder, info, resumed)
            if self.budget.latency_ms is not None or self.settings.widths != "auto":
                self.networks.complete()  # while nothing trains beside them; refuses some at once
            self.printer.phase("training")
            with self._explained(), self._tracked(folder, info, table):
                complete = search.run(table)
        finally:
            self.trainer.close()
        self.printer.phase("judging on test")
        info = self._with_variants(info)
        home = Path(self.ranks.text(str(folder.path)))  # before rank 0 is busy with files
        files = files and self.ranks.first
        result = make_result(
            self.problem, info, search, folder, complete, self.printer, files,
            refit if complete else None, self.device,
        )  # fmt: skip
        result.folder = home
        return result

    def _make_search(self, folder: GrowFolder, table: Table) -> Search:
        metric, settings = self.problem.metric, self.settings
        timed = self.budget.minutes is not None
        ladder = Ladder(
            LadderSettings(
                space=self._space(),
                longer=longest_run(self.length, settings.epochs, timed=timed),
                seed=settings.seed,
                lower_is_better=not metric.higher_is_better,
                worst=float(metric.merit(self.constant)),
                best=float(metric.merit(metric.best)),
                inherit=settings.inherit,
                timed=timed,
                early=timed and self.trainer.prioritises,
            ),
            self.networks,
        )
        data, limit = self.problem.data, self.budget.seconds
        share = len(data.test) / max(1, len(data.val))
        clock = Clock(self.ranks.now, self._began, limit, table.seconds, share)
        if math.isfinite(self.each):
            clock.begin(ladder.sized(ladder.first()), self.each, self.trainer.at_once)
        self._refit = self._make_refit(clock, folder)
        after = {} if self._refit is None else {"after": self._refit.seconds}
        return Search(
            ladder, self.trainer, folder, self.printer, self.most_runs, clock, self.ranks, **after
        )

    def _make_refit(self, clock: Clock, folder: GrowFolder) -> Refit | None:
        """What trains the pick again, if it is to be."""
        data, wanted = self.problem.data, self.settings.refit
        if wanted == "auto":
            wanted = data.val_is_cut and self.budget.minutes is not None
        if not wanted or not isinstance(self.task.train, Samples) or self.ranks.size > 1:
            return None
        reason = "test has the samples of val" if data.test_is_val else ""
        reason = "samples of val have no weights" if self.problem.weighted else reason
        if reason:
            if self.settings.refit is True:
                self.printer.say(f"no refit: {reason}")
            return None
        return Refit(self.task, self.networks, clock, folder, self.printer)

    def _plan_variants(
        self, search: Search, folder: GrowFolder, info: GrowInfo, resumed: bool
    ) -> None:
        """Make other variants when the search asks for them; those of a resumed run at once."""
        if resumed and len(info.variants) > 1:
            self.networks.variants.extend(remade_variants(self.networks, info.variants))
            return

        def others() -> None:
            found = self._other_variants(search)
            names = ", ".join(variant.name for variant in found)
            kinds = "widths and depths" if self.networks.depths else "widths"
            self.printer.say(f"other {kinds}: {names or 'none'}")
            self.networks.variants.extend(found)
            folder.write(GROW, self._with_variants(info))

        self.networks.others = others

    def _with_variants(self, info: GrowInfo) -> GrowInfo:
        variants = self.networks.variants
        return replace(
            info,
            variants=tuple(variant.name for variant in variants),
            variant_places=tuple(variant.places for variant in variants),
        )

    @contextlib.contextmanager
    def _tracked(self, folder: GrowFolder, info: GrowInfo, table: Table) -> Iterator[None]:
        """Pass the rungs that end inside the block to trackers."""
        settings = to_json(info)
        assert isinstance(settings, dict)
        names, path = self.printer.trackers if self.ranks.first else (), folder.path
        with track_run(names, path, path.name, settings, table.rungs) as tracking:
            self.printer.tracking = tracking
            yield

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert what torch raises for want of memory, or of bfloat16, into one line."""
        try:
            yield
        except (RuntimeError, TypeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise EsperError(
                    f"out of memory on {self.device} with batches of {self.networks.batch_size}: "
                    f"lower batch_size, or give a smaller model"
                ) from error
            if not self.task.amp or "bfloat16" not in str(error).lower():
                raise
            reason = str(error).strip().splitlines()[0]
            raise EsperError(
                f"amp={self.settings.amp}: {self.problem.trace.name} does not train in bfloat16 "
                f"({reason}); use amp=False"
            ) from error

    def refit(self, record: NetworkRecord, samples: GrowPart, until: float) -> nn.Module | None:
        """A plain network like one of the result, trained in the same way on other samples.

        Its own initial weights, its recipe, as many epochs; None: it has not ended at a time, or
        failed.
        """
        found = None
        with costs_nothing(self.printer.say):
            found = self._refitted(record, samples, until)
        return found

    def _refitted(self, record: NetworkRecord, samples: GrowPart, until: float) -> nn.Module | None:
        part = samples if samples.weights is None else samples.with_weighted_targets()
        data = Samples.of(part, self.task.inputs).to(self.device)
        recipe = record.recipe
        batch_size = min(recipe.batch_size, len(data))
        before = _per_epoch(self.problem.data.train, recipe.batch_size)
        share = 1.0 if before is None else (len(data) // batch_size) / before
        recipe = replace(
            recipe, batch_size=batch_size, batches=max(1, round(share * recipe.batches))
        )
        names = [variant.name for variant in self.networks.variants]
        variant = self.networks.variants[names.index(record.variant)]
        build = partial(variant.build, record.topology, record.seed)
        jobs = iter([Job(0, build, recipe, record.seed, judged=False)])
        (outcome,) = train_on(self.task, data, jobs, lambda _: time.monotonic() > until)
        if outcome.failed:
            raise EsperError(outcome.failed)
        if outcome.trained < recipe.batches:
            return None
        network = variant.build(record.topology, record.seed)
        carry_weights(network, outcome.weights)
        return finished_model(network)

    # ---- the record -----------------------------------------------------------------------

    def _info(self, path: Path) -> GrowInfo:
        problem, settings, trace = self.problem, self.settings, self.problem.trace
        base = self.networks.base
        size = base.bare_size
        return GrowInfo(
            schema=run_files.GROW_SCHEMA,
            name=path.name,
            created=utc_now(),
            model=trace.name,
            fingerprint=problem.data.fingerprint,
            architecture=problem.architecture,
            weights=_starting_weights(problem.model),
            notes=problem.data.notes,
            loss=problem.loss.name,
            metric=problem.metric.name,
            topology=trace.topology,
            slots=trace.slots,
            places=base.places,
            variants=("",),
            variant_places=(base.places,),
            blueprints=tuple(settings.blueprints or ()),
            host_params=size.params,
            host_macs=size.macs,
            batch_size=self.networks.batch_size,
            epochs=self.length.epochs,
            length=self.length.batches,
            optimizer=self.optimizer,
            rates=self.rates,
            runs=self.most_runs,
            seed=settings.seed,
            device=str(self.device),
            budget=self.budget,
            versions=versions(),
            train_macs=size.train_macs,
            constant_score=self.constant,
            amp=self.task.amp,
            output=json.dumps(settings.output),
            weight_decay=self.weight_decay,
            clip=settings.clip or 0.0,
            full_length=self.full.batches,
            higher_is_better=problem.metric.higher_is_better,
            settings=self._given,
            encoding=problem.data.encoding,
            host_latency=self._base_latency,
        )

    def _matching(self, path: Path, now: GrowInfo) -> GrowInfo:
        """The record of a run to resume; raises if anything that changes results is another."""
        before, later = read_info(path), dict(now.settings)
        given = [(name, old, later.get(name)) for name, old in before.settings if name not in WHERE]
        found = [(text, getattr(before, name), getattr(now, name)) for name, text in FOUND.items()]
        python = dict(before.versions).get("python", "")
        other = python.split(".")[:2] != dict(now.versions)["python"].split(".")[:2]
        same = f"the same under Python {python}" if other else "the same"
        for text, old, new in (*given, *found):
            if old != new:
                raise EsperError(
                    f"resume {path}: it was started with other {text} ({str(old)[:40]}, now "
                    f"{str(new)[:40]}); give {same}, or start a new run"
                )
        return replace(before, budget=now.budget, runs=now.runs)


def _per_epoch(train: GrowPart | StreamSource, size: int) -> int | None:
    """Batches of an epoch; None: unknown."""
    if isinstance(train, StreamSource):
        return train.batches_per_epoch
    return len(train) // min(size, len(train))


def _starting_weights(model: Model) -> str:
    """SHA-256 of the weights of a model that was given with them; empty: it was not."""
    if not isinstance(model, nn.Module):
        return ""
    state = model.state_dict().items()
    return tensor_digest((name, value) for name, value in state if isinstance(value, Tensor))
