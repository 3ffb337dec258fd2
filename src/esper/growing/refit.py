"""Train a network of the frontier again, from the start, on other samples of the same kind."""

from __future__ import annotations

from torch import nn

from esper.growing.batches import ResidentBatches
from esper.growing.parts import GrowPart
from esper.growing.result import NetworkRecord
from esper.growing.run import GrowRun
from esper.growing.training import BracketTrainer
from esper.kasmina.tracing import plain_model


def refit_network(run: GrowRun, record: NetworkRecord, samples: GrowPart) -> nn.Module:
    """A plain network of the same topology, rate, epochs and first weights, trained on `samples`.

    Seeds that were grown are planted, as in a later bracket of the search.
    """
    part = samples if samples.weights is None else samples.with_weighted_targets()
    batches = ResidentBatches(
        run.problem.packed(part).to(run.device),
        part.targets.to(run.device),
        run.length.batch_size,
        run.settings.seed,
    )
    length = max(1, round(run.length.epochs * batches.per_epoch))
    variant = next(variant for variant in run.variants if variant.name == record.variant)
    trainer = BracketTrainer(
        variant.builder([record.number]),
        variant.space,
        batches,
        length,
        [record.rate],
        variant.builder.autocast,
    )
    trainer.plant([record.topology])
    trainer.train(length)
    return plain_model(variant.trace, trainer.population.member(0))
