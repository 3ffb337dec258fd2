"""Networks in a run folder.

networks/0018/          weights of the member (`MorphogeneticModel.load`)
networks/0018-plain/    the network the user gets, with its description (`plain_saves`)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import nn

from esper.growing.folder import NETWORKS, GrowInfo
from esper.growing.widths import named_widths
from esper.kasmina.member import MorphogeneticModel
from esper.kasmina.plain_saves import load_plain, plain_example
from esper.kasmina.tracing import HostTrace, plain_model, scaled_model, trace_model
from esper.leyline.errors import EsperError, shown

_WAYS: Final = "; or give your model: GrowResult.load(folder, model=...), --model FILE.py:NAME"
Model = nn.Module | Callable[[], nn.Module]


def plain_path(run: Path, number: int) -> Path:
    """Folder of the network the user gets."""
    return run / NETWORKS / f"{number:04d}-plain"


@dataclass(frozen=True, slots=True)
class StoredNetworks:
    """Networks of a finished run."""

    run: Path
    info: GrowInfo
    model: Model | None = None
    """The user's, to build networks with its code instead of their descriptions."""
    trust: bool = False
    """Whether `.pt2` files may be read, which can run code."""

    def load(self, number: int, variant: str) -> nn.Module:
        """Return a network, in eval mode; `variant`: width of its host."""
        if self.model is None:
            return load_plain(plain_path(self.run, number), self.trust, _WAYS)
        trace = self._trace(self.model, variant, self.example(number))
        member = MorphogeneticModel.load(self.run / NETWORKS / f"{number:04d}", trace.factory)
        return plain_model(trace, member)

    def example(self, number: int) -> Any:
        """One sample of its inputs, as a batch of one."""
        return plain_example(plain_path(self.run, number))

    def _trace(self, model: Model, variant: str, example: Any) -> HostTrace:
        """Trace the user's model as the run did."""
        if not callable(model):  # modules are, too
            raise EsperError(f"model={shown(model)}: give an nn.Module, or what builds one")
        places = dict(zip(self.info.variants, self.info.variant_places, strict=False))
        try:
            output = json.loads(self.info.output)
            factors, slots = named_widths([variant]), places[variant]
        except (KeyError, ValueError):
            raise EsperError(f"{self.run}: no width {shown(variant)}, or no output") from None
        if not factors:
            return trace_model(model, example, slots, output)
        return scaled_model(model, example, factors[0], output, slots).host
