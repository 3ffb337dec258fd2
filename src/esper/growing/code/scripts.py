"""Scripts of the networks of a search, written when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from esper.growing.code.script import Subject, network_script
from esper.growing.code.training import Start, Training
from esper.growing.data.parts import GrowPart
from esper.growing.folder import GrowInfo
from esper.growing.networks import Networks
from esper.growing.problem import Problem
from esper.growing.refit import refit_recipe
from esper.growing.result import NetworkRecord
from esper.growing.runs import Recipe, Row
from esper.growing.trainers.own_training import OWN
from esper.kasmina.tracing.planting import silencing
from esper.leyline.errors import EsperError
from esper.leyline.variants import describe_variant
from esper.tasks.row_terms import RowTerms

BUILT_IN: Final = ("None", "auto", "adamw", "sgd")


@dataclass(frozen=True, slots=True, eq=False)
class Scripts:
    """Writes the script of any network of a search."""

    problem: Problem
    info: GrowInfo
    networks: Networks
    rows: Sequence[Row]

    def of(self, record: NetworkRecord) -> str:
        """A plain PyTorch script that trains a network again; raises if it cannot be written."""
        given = dict(self.info.settings)
        own = [name for name in OWN if given.get(name, "None") not in BUILT_IN]
        if own:
            raise EsperError(
                f"code(): {own[0]}={given[own[0]]} is a function of your own, which a script "
                f"cannot hold; result.best.model and .recipe have the rest"
            )
        row = self.rows[record.number]
        variant = self.networks.variants[row.variant]
        subject = Subject(
            title=self._title(record),
            notes=self._notes(record, row),
            name=self.info.model,
            build=lambda seed: variant.build(row.topology, seed),
            recipe=self._recipe(record, row),
            start=self._start(row),
        )
        example = self.problem.trace.inputs.values(self.problem.data.example().inputs)
        return network_script(subject, self._training(record), example)

    def _recipe(self, record: NetworkRecord, row: Row) -> Recipe:
        train, val = self.problem.data.train, self.problem.data.val
        if not record.refit or not isinstance(train, GrowPart):
            return row.recipe
        return refit_recipe(row.recipe, len(train), len(val))

    def _training(self, record: NetworkRecord) -> Training:
        problem, data = self.problem, self.problem.data
        terms = problem.loss.terms
        samples = len(data.train) if isinstance(data.train, GrowPart) else None
        if samples is not None and record.refit:
            samples += len(data.val)
        return Training(
            inputs=problem.trace.inputs,
            loss=problem.loss,
            metric=problem.metric,
            amp=self.info.amp,
            classes=data.classes,
            weighted=isinstance(terms, RowTerms) and terms.weighted,
            samples=samples,
        )

    def _title(self, record: NetworkRecord) -> str:
        change = f", {describe_variant(record.variant)}" if record.variant else ""
        score = f"{self.info.metric} {record.test_score:.4f} on test"
        return f"{self.info.model}{change}, {score} in a search of esper.grow."

    def _notes(self, record: NetworkRecord, row: Row) -> list[str]:
        kept = ".refit.safetensors" if record.refit else ".safetensors"
        number = f"networks/{record.number:04d}{kept}"
        lines = [
            "This script trains it again, without Esper:",
            "",
            "    python train.py train.npz test.npz --save net.pt      # files: see make_data",
            "",
            "or, from other code, train(make_model(), x, y). Parameters have the names of",
            f"{number} in the run folder.",
        ]
        if self.info.encoding is not None:
            lines.append("x is what result.encode(rows) gives: categorical columns are encoded.")
        places = self.networks.variants[row.variant].places
        planted = [(p, name) for p, name in zip(places, row.topology, strict=True) if name]
        lines += [f"Seed of the kind {name}: {place}." for place, name in planted]
        if record.refit:
            lines.append("It was trained on the training and the validation samples together.")
        if row.trained < row.recipe.batches:
            lines.append(
                f"The search stopped it after {row.trained} of {row.recipe.batches} batches."
            )
        if row.start is not None:
            lines.append(f"It started from the weights of network {row.start}: see --start.")
        elif self.info.weights and not row.variant:
            lines.append("The search started from the weights that your model had (--start FILE);")
            lines.append("without them, weights are drawn with the same deviations.")
        if self.info.notes:
            lines += ["", "Data of the search:", *(f"- {note}" for note in self.info.notes)]
        return lines

    def _start(self, row: Row) -> Start:
        """Weights that it starts from, if they are another run's."""
        if row.start is None:
            return Start()
        variant, before = self.networks.variants[row.variant], self.rows[row.start].topology
        network = variant.build(row.topology, row.seed)
        fresh = [
            slot
            for slot, held, name in zip(variant.trace.slots, before, row.topology, strict=True)
            if name and name != held
        ]
        silent = tuple(name for slot in fresh for name in silencing(network, slot))
        return Start(f"networks/{row.start:04d}.safetensors", silent)
