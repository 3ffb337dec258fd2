"""`FlatPolicy`: a model trained on an environment's flat actions as an `esper.Policy`.

    class Trained(esper.gym.FlatPolicy):              # in mine.py
        frozen_heads = "plain"                        # as in the training environment

        def begin(self, members):
            self.model = MaskablePPO.load("model.zip")

        def choose(self, observation, action_mask):
            return self.model.predict(observation, action_masks=action_mask)[0]

    esper compare wait random mine.py:Trained --task digits_impaired

Shape letters: E members, N actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from esper.gym.flat_actions import FlatActions
from esper.gym.spaces import observations
from esper.leyline.actions import ActionSpec
from esper.leyline.arrays import Bools
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.signals import TrainingSignals
from esper.tamiyo.actions import parse_sampled_action
from esper.tamiyo.frozen_heads import read_frozen
from esper.tamiyo.policy import Policy


class FlatPolicy(Policy):
    """Decides by indices of flat actions; derive from it and write `choose`.

    What an index means follows from the task, `blueprints` and `frozen_heads`: set them as they
    were in the environment.
    """

    _actions: FlatActions | None = None

    def choose(self, observation: dict[str, npt.NDArray[Any]], action_mask: Bools) -> npt.ArrayLike:
        """Return an index for each member.

        `observation`: as of the vector environment; `action_mask` `[E, N]`: what is legal.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no choose(self, observation, action_mask)"
        )

    def act(self, signals: TrainingSignals, masks: ActionMasks) -> ActionSpec:
        """The actions that `choose` names."""
        if self._actions is None:
            frozen = dict(read_frozen(self.frozen_heads, signals.slots.blueprints))
            self._actions = FlatActions.observed(signals, frozen)
        mask_EN = self._actions.mask(masks)
        index_E = np.asarray(self.choose(observations(signals), mask_EN))
        if index_E.shape != (self.members,) or index_E.dtype.kind not in "iu":
            raise EsperError(
                f"choose returned {index_E.dtype} of shape {index_E.shape}: expected an index for "
                f"each of {self.members} members"
            )
        return parse_sampled_action(self._actions.heads(index_E))
