"""Recipes near a recipe: what a search changes in how a network is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np

from esper.growing.runs import Recipe

T = TypeVar("T")

RATE_STEP: Final = 3.0
"""Ratio of neighbouring learning rates."""
RATE_LIMITS: Final = {"adamw": (1e-6, 1.0), "sgd": (1e-6, 1.0), "own": (1e-3, 1e3)}
DECAY_STEP: Final = 5.0
DECAY_LIMITS: Final = (1e-6, 1.0)
BATCH_LIMITS: Final = (8, 1024)
SAME: Final = 0.02
"""Lengths that differ by this share are the same: a run has whole batches."""
WEIGHTS: Final = {"rate": 3.0, "augment": 2.0, "decay": 1.0, "batch_size": 1.0, "smoothing": 1.0}
"""How often each is changed, relative to the others, where there is a choice."""


@dataclass(frozen=True, slots=True)
class Space:
    """What may be changed in a recipe; what the user has settled may not."""

    recipe: Recipe
    """Of a full run, the first to be tried."""
    rates: tuple[float, ...]
    """Learning rates to try first."""
    more_rates: bool = True
    augments: tuple[str, ...] = ("none",)
    """From weak to strong."""
    smoothings: tuple[float, ...] = (0.0,)
    decays: bool = False
    batch_sizes: bool = False
    epoch: float = math.inf
    """Batches of the usual size in an epoch; infinite: not known."""

    # ---- length ---------------------------------------------------------------------------

    def lasting(self, recipe: Recipe, length: float) -> Recipe:
        """The recipe for a length, in batches of the usual size."""
        batches = round(length * self.recipe.batch_size / recipe.batch_size)
        return replace(recipe, batches=max(1, batches))

    def length(self, recipe: Recipe) -> float:
        """The length of a run, in batches of the usual size."""
        return self.usual(recipe, recipe.batches)

    def usual(self, recipe: Recipe, batches: int) -> float:
        """Batches of a recipe's size, counted in those of the usual one."""
        return batches * recipe.batch_size / self.recipe.batch_size

    def lasts(self, recipe: Recipe, length: float) -> bool:
        """Whether a recipe has a length."""
        return abs(self.length(recipe) - length) <= max(SAME * length, 0.5)

    # ---- one change -----------------------------------------------------------------------

    def other_rates(self, recipe: Recipe) -> Iterator[Recipe]:
        """Neighbouring rates, then the first ones."""
        steps = (RATE_STEP, 1.0 / RATE_STEP) if self.more_rates else ()
        low, high = RATE_LIMITS[recipe.optimizer]
        for rate in (*(recipe.lr * step for step in steps), *self.rates):
            lr = self._known_rate(rate)
            if low <= lr <= high and lr != recipe.lr:
                yield replace(recipe, lr=lr)

    def _known_rate(self, rate: float) -> float:
        """The rate, or one of the first that is as good as the same."""
        first = (one for one in self.rates if math.isclose(one, rate, rel_tol=1e-2))
        return next(first, float(f"{rate:.4g}"))

    def other_augments(self, recipe: Recipe) -> Iterator[Recipe]:
        """Every other strength of augmentation, the nearest first, stronger ones before weaker."""
        here = self.strength(recipe)
        order = sorted(range(len(self.augments)), key=lambda n: (abs(n - here), n < here))
        yield from (replace(recipe, augment=self.augments[n]) for n in order if n != here)

    def regularised(self, recipe: Recipe) -> Iterator[Recipe]:
        """Every other strength of augmentation, more weight decay, label smoothing: one each."""
        yield from self.other_augments(recipe)
        yield from list(self._other_decays(recipe))[:1]
        yield from self._other_smoothings(recipe)

    def stronger(self, recipe: Recipe) -> Iterator[Recipe]:
        """The next strength of augmentation, if there is one."""
        for name in self.augments[self.strength(recipe) + 1 :][:1]:
            yield replace(recipe, augment=name)

    def strength(self, recipe: Recipe) -> int:
        """Place of its augmentation, from weak to strong."""
        return self.augments.index(recipe.augment) if recipe.augment in self.augments else 0

    def near(self, recipe: Recipe, generator: np.random.Generator) -> Recipe | None:
        """A recipe that differs in one thing, drawn at random; None: there is no choice."""
        changes = {
            "rate": list(self.other_rates(recipe))[:2],
            "augment": list(self.other_augments(recipe))[:2],
            "decay": list(self._other_decays(recipe)),
            "batch_size": list(self._other_batch_sizes(recipe)),
            "smoothing": list(self._other_smoothings(recipe)),
        }
        options = {name: made for name, made in changes.items() if made}
        if not options:
            return None
        weights = np.array([WEIGHTS[name] for name in options])
        name = list(options)[int(generator.choice(len(options), p=weights / weights.sum()))]
        return pick(options[name], generator)

    def _other_smoothings(self, recipe: Recipe) -> Iterator[Recipe]:
        for share in self.smoothings:
            if share != recipe.label_smoothing:
                yield replace(recipe, label_smoothing=share)

    def _other_decays(self, recipe: Recipe) -> Iterator[Recipe]:
        """More, then less."""
        low, high = DECAY_LIMITS
        for step in (DECAY_STEP, 1.0 / DECAY_STEP) if self.decays else ():
            decay = float(f"{recipe.weight_decay * step:.4g}")
            if low <= decay <= high:
                yield replace(recipe, weight_decay=decay)

    def _other_batch_sizes(self, recipe: Recipe) -> Iterator[Recipe]:
        """Batches of another size, as many samples in all, and no more than there are."""
        low, high = BATCH_LIMITS
        samples = self.epoch * self.recipe.batch_size
        for size in (2 * recipe.batch_size, recipe.batch_size // 2) if self.batch_sizes else ():
            if low <= size <= min(high, samples):
                yield self.lasting(replace(recipe, batch_size=size), self.length(recipe))


def pick(options: Sequence[T], generator: np.random.Generator) -> T:
    """One of several, at random."""
    return options[int(generator.integers(len(options)))]
