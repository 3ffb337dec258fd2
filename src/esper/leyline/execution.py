"""Result of executing the actions of a step, as returned by `execute_actions`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esper.leyline.actions import ActionOutcome
from esper.leyline.arrays import ArrayStruct, Ints
from esper.leyline.masks import ActionMasks
from esper.leyline.signals import SlotReports, TrainingSignals


@dataclass(frozen=True, slots=True, eq=False)
class BootstrapTargets(ArrayStruct):
    """The N truncated (member, step) pairs whose return is bootstrapped from the value."""

    member_N: Ints
    step_N: Ints
    """Step of the rollout (0 .. T-1) after which the member's episode was truncated."""

    @classmethod
    def none(cls) -> BootstrapTargets:
        """No truncation."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


class _ReadLater(ArrayStruct):
    """Room for the function that computes the state after the actions, which is not a field."""

    __slots__ = ("_after",)
    _after: Callable[[], tuple[TrainingSignals, ActionMasks]]


@dataclass(frozen=True, slots=True, eq=False)
class ActionExecutionResult(_ReadLater):
    """Outcome of every member's action, and the resulting state."""

    outcome: ActionOutcome
    truncated_bootstrap_targets: BootstrapTargets
    post_action_signals: TrainingSignals
    """This step's measurements with the slots after the actions."""
    post_action_masks: ActionMasks
    """Legal actions after the step; with the signals, the input of a bootstrap value."""

    @classmethod
    def deferred(
        cls,
        outcome: ActionOutcome,
        targets: BootstrapTargets,
        slots: int,
        after: Callable[[], tuple[TrainingSignals, ActionMasks]],
    ) -> ActionExecutionResult:
        """Return a result whose signals and masks are `after()`, called when they are first read.

        What `after` returns must not depend on when it is called; it is of `slots` slots.
        """
        result = object.__new__(cls)
        for name, value in (("outcome", outcome), ("truncated_bootstrap_targets", targets)):
            object.__setattr__(result, name, value)
        object.__setattr__(result, "_after", after)
        object.__setattr__(result, "_sizes", {**outcome.sizes(), "S": slots})
        return result

    if not TYPE_CHECKING:  # no attribute but these two is found this way

        def __getattr__(self, name: str) -> object:
            """Compute a field of a deferred result that was not read before."""
            if name not in ("post_action_signals", "post_action_masks"):
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            signals, masks = self._after()
            object.__setattr__(self, "post_action_signals", signals)
            object.__setattr__(self, "post_action_masks", masks)
            return getattr(self, name)

    @property
    def post_action_slot_reports(self) -> SlotReports:
        """Slot reports after the actions."""
        return self.post_action_signals.slots
