"""Labels that are strings, as class indices. Integers are never renumbered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper.growing.data.parts import Strings
from esper.leyline.errors import EsperError, shown


@dataclass(frozen=True)
class LabelMap:
    """Class names in the order of their indices; None: targets are numbers already."""

    classes: tuple[str, ...] | None

    @classmethod
    def of(cls, targets: Iterable[Tensor | Strings]) -> LabelMap:
        """Return the map of all strings among the targets, in alphabetical order."""
        texts = [np.unique(values) for values in targets if not isinstance(values, Tensor)]
        if not texts:
            return cls(None)
        return cls(tuple(str(name) for name in np.unique(np.concatenate(texts))))

    def indices(self, targets: Tensor | Strings, where: str) -> Tensor:
        """Return class indices; numbers unchanged."""
        if isinstance(targets, Tensor):
            if self.classes is not None:
                raise EsperError(
                    f"{where}: targets are numbers, those of train are strings such as "
                    f"{shown(self.classes[0])}; give all parts the same kind"
                )
            return targets
        if self.classes is None:
            raise EsperError(
                f"{where}: targets are strings such as {shown(str(targets[0]))}, those of train "
                f"are numbers; give all parts the same kind"
            )
        names = np.array(self.classes)
        place_N = np.clip(np.searchsorted(names, targets), 0, len(names) - 1)
        unknown = np.flatnonzero(names[place_N] != targets)
        if unknown.size:
            raise EsperError(
                f"{where}: label {shown(str(targets[unknown[0]]))} of sample {unknown[0]} is not "
                f"in train, whose labels are {shown(', '.join(self.classes))}; add samples of it "
                f"to train, or leave it out"
            )
        return torch.from_numpy(place_N.astype(np.int64))
