"""Contexts: what differs between members and between rounds, and the distribution they come from.

A `ContextSpec` is a distribution. The default is a single point: the task as it is, with the
classic action space and a clock that counts steps. Drawing is done by tasks/contexts.py.

Shape letters: E members, S slots, K blueprints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from esper.leyline.actions import ActionSpace
from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Floats, Ints
from esper.leyline.codec import LATER, read_record
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.prices import ScoreConstants

ClockKind = Literal["steps", "compute"]


@dataclass(frozen=True, slots=True)
class Range:
    """An interval to draw from; one point if both ends are equal."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise EsperError(f"range {self.low} to {self.high}: give two finite numbers, low first")

    def uniform(self, u: npt.ArrayLike) -> Doubles:
        """Map uniform numbers in [0, 1) to the interval; exact for a single point."""
        return np.asarray(self.low + np.asarray(u, dtype=np.float64) * (self.high - self.low))

    def log_uniform(self, u: npt.ArrayLike) -> Doubles:
        """Map uniform numbers in [0, 1) so that their logarithms are uniform.

        >>> Range(0.1, 10.0).log_uniform([0.0, 0.5]).round(6).tolist()
        [0.1, 1.0]
        """
        if self.low == self.high:
            return np.full(np.shape(u), self.low)
        return np.asarray(np.exp(Range(math.log(self.low), math.log(self.high)).uniform(u)))


ONE: Final = Range(1.0, 1.0)
NONE: Final = Range(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ContextSpec:
    """Distribution of contexts."""

    actions: ActionSpace = "grow"
    """`full` adds the plan phase, STOP and CLOSE; `grow+restart` and `full+restart` add RESTART."""
    clock: ClockKind = "steps"
    """`steps`: every member trains all batches of a step. `compute`: a step is an equal share of
    the member's compute budget, so a larger network trains fewer batches."""
    price: Range = ONE
    """Per member, log-uniform: factor on the task's price of growth (c_p, c_m, c_f)."""
    learning_rate: Range = ONE
    """Per member, log-uniform: factor on the task's learning rates."""
    capped: float = 0.0
    """Share of members with a parameter and a MAC cap."""
    cap: Range = Range(0.0, 1.0)
    """Per member, uniform: where the caps are on the log scale between the host (0) and the
    fullest legal topology (1)."""
    budget: Range | None = ONE
    """Per round, log-uniform: compute budget in training runs of the host. None: from 1 to the
    cost of the fullest legal topology."""
    min_groups: int | None = None
    """Per round: classes are grouped at random into this many to all groups. None: as they are."""
    pixel_noise: Range = NONE
    """Per round, uniform: standard deviation of input noise, in those of the training inputs."""
    permuted: float = 0.0
    """Share of rounds with one fixed permutation of all input positions."""
    data_share: Range = ONE
    """Per round, log-uniform: share of the training data that is used."""
    label_noise: Range = NONE
    """Per round, uniform: share of training labels replaced by random ones."""
    min_restart_left: float = field(default=0.25, metadata=LATER)
    """RESTART is legal while at least this share of the member's compute is left: of its budget
    with the compute clock, else of the steps."""

    def __post_init__(self) -> None:
        for name, choices in (("actions", ActionSpace), ("clock", ClockKind)):
            if getattr(self, name) not in get_args(choices):
                raise unknown_name(f"context {name}", getattr(self, name), get_args(choices))
        positive = {"price": self.price, "learning_rate": self.learning_rate}
        positive |= {"data_share": self.data_share}
        positive |= {} if self.budget is None else {"budget": self.budget}
        for name, values in positive.items():
            if values.low <= 0:
                raise EsperError(f"context {name} from {values.low:g}: must be above 0")
        for name in ("capped", "permuted", "min_restart_left"):
            _require_share(name, Range(getattr(self, name), getattr(self, name)))
        for name in ("cap", "data_share", "label_noise"):
            _require_share(name, getattr(self, name))
        if self.pixel_noise.low < 0:
            low = self.pixel_noise.low
            raise EsperError(f"context pixel_noise from {low:g}: must be 0 or more")
        if self.min_groups is not None and self.min_groups < 2:
            raise EsperError(
                f"context min_groups={self.min_groups}: a label map needs 2 groups or more, one "
                f"group leaves nothing to predict"
            )
        if self.clock == "steps" and self.budget != ONE:
            raise EsperError("context budget: needs clock='compute', or leave it at 1")

    @property
    def plans(self) -> bool:
        """Whether episodes begin with a plan phase."""
        return self.actions.startswith("full")

    @property
    def restarts(self) -> bool:
        """Whether members may begin anew."""
        return self.actions.endswith("+restart")

    @property
    def varies_rounds(self) -> bool:
        """Whether rounds draw a budget or data of their own, which all their members share."""
        fixed = self.budget is not None and self.budget.low == self.budget.high
        return not fixed or self.changes_data

    @property
    def changes_data(self) -> bool:
        """Whether rounds differ in their data."""
        unchanged = ContextSpec()
        names = ("min_groups", "pixel_noise", "permuted", "data_share", "label_noise")
        return any(getattr(self, name) != getattr(unchanged, name) for name in names)


def _require_share(name: str, values: Range) -> None:
    if not 0 <= values.low <= values.high <= 1:
        raise EsperError(f"context {name} {values.low:g} to {values.high:g}: must be within 0..1")


FIXED: Final = ContextSpec()
"""The task as it is."""
PLANNED: Final = ContextSpec(actions="full", clock="compute")
"""The task as it is, with the plan phase and the compute clock."""
VARIED: Final = ContextSpec(
    actions="full",
    clock="compute",
    price=Range(0.1, 4.0),
    learning_rate=Range(0.3, 3.0),
    capped=0.5,
    budget=None,
    min_groups=2,
    pixel_noise=Range(0.0, 1.0),
    permuted=0.2,
    data_share=Range(0.03, 1.0),
    label_noise=Range(0.0, 0.4),
)
"""Everything differs."""
NAMED_CONTEXTS: Final = {"fixed": FIXED, "planned": PLANNED, "varied": VARIED}
"""Specs by the name used on the command line."""


def saved_rounds_vary(context: object) -> bool:
    """Whether rounds vary under a saved `ContextSpec`; what cannot be read is taken as fixed."""
    try:
        return read_record(ContextSpec, context, "context").varies_rounds
    except EsperError:
        return False


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What a round of one engine draws."""

    budget: float = 1.0
    """Compute budget of every member, in training runs of the host."""
    label_map: tuple[int, ...] | None = None
    """Class -> group; None: labels as they are."""
    pixel_noise: float = 0.0
    permuted: bool = False
    data_share: float = 1.0
    label_noise: float = 0.0

    @property
    def groups(self) -> int | None:
        """Number of groups; None without a label map."""
        return None if self.label_map is None else max(self.label_map) + 1


PLAIN_ROUND: Final = RoundContext()
"""A round of the task as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class MemberContexts(ArrayStruct):
    """What the members of a round draw."""

    price_E: Doubles
    learning_rate_E: Doubles
    params_cap_E: Doubles
    """Most parameters, host included; inf: no cap."""
    macs_cap_E: Doubles
    """Most multiply-accumulates of a forward pass, host included; inf: no cap."""

    @classmethod
    def fixed(cls, members: int) -> MemberContexts:
        """The task's own price and rates, no caps."""
        one, free = np.ones(members), np.full(members, np.inf)
        return cls(one, one.copy(), free, free.copy())


@dataclass(frozen=True, slots=True, eq=False)
class MemberTerms(ArrayStruct):
    """Prices and caps given to members, instead of drawn ones."""

    price_E: Doubles
    """Factor on the task's price of growth."""
    params_cap_E: Doubles
    """Most parameters, host included; inf: no cap."""
    macs_cap_E: Doubles

    def __post_init__(self) -> None:
        self.sizes()
        bad = np.flatnonzero(~((self.price_E > 0) & np.isfinite(self.price_E)))
        if bad.size:
            raise EsperError(
                f"price {self.price_E[bad[0]]:g} of member {bad[0]}: must be above 0 and finite"
            )

    @property
    def capped(self) -> bool:
        """Whether any member has a cap."""
        return bool(np.isfinite(self.params_cap_E).any() or np.isfinite(self.macs_cap_E).any())


@dataclass(frozen=True, slots=True, eq=False)
class ContextSignals(ArrayStruct):
    """Observed part of the context, and how much of its limits is used."""

    plans: bool
    """Episodes begin with a plan phase; STOP and CLOSE exist."""
    restarts: bool
    """RESTART exists."""
    constants: ScoreConstants
    """The task's price of growth, before `price_E`."""
    price_E: Doubles
    """Factor on `constants`."""
    learning_rate_E: Doubles
    """Factor on the task's learning rates."""
    params_cap_E: Doubles
    """Most parameters, host included; inf: no cap."""
    macs_cap_E: Doubles
    reserved_params_E: Doubles
    """Parameters of the host and all seeds, training ones included."""
    reserved_macs_E: Doubles
    budget: float
    """Compute budget in training runs of the host."""
    spent_E: Doubles
    """Share of the budget spent, 0..1."""
    cost_E: Doubles
    """Training cost of a batch relative to the host's."""
    stopped_E: Bools
    restarts_E: Ints
    """Restarts of the member in this episode."""
    began_E: Ints
    """Step in which the member began, or began anew."""
    groups: int
    """Number of classes."""
    chance_accuracy: float
    chance_loss: float
    """Loss of guessing."""
    train_samples: int
    """Training samples in use."""
    host_params: int
    host_macs: int


@dataclass(frozen=True, slots=True, eq=False)
class Candidates(ArrayStruct):
    """What a seed of blueprint k in slot s would cost, and whether it may be grown now."""

    params_SK: Ints
    """With the costliest allowed blend style."""
    macs_SK: Ints
    receptive_SK: Floats
    """Positions by which it widens the receptive field along one axis of the activation."""
    copies_SK: Bools
    """It starts as a copy of a trained part of the host."""
    fits_ESK: Bools
    """It fits the slot and the caps."""
    rent_ESK: Floats
    """Rent it would add, at the member's price."""
    budget_share_ESK: Floats
    """Share of the compute left that it would use."""
