"""Networks in a run folder.

networks/0018.safetensors   weights of the run; 0018.refit.safetensors of its refit
networks/0018-plain/        the network the user gets, with its description (`plain_saves`)
networks/0018.py            a script that trains it again (`code`), or why there is none
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from esper.growing.folder import GrowInfo, read_weights, weights_path
from esper.kasmina.plain_saves import load_plain, plain_example
from esper.kasmina.tracing import (
    Depths,
    HostTrace,
    carry_weights,
    finished_model,
    planted_model,
    scaled_model,
    trace_model,
)
from esper.leyline.errors import EsperError, shown
from esper.leyline.variants import read_variant
from esper.storage.atomic import save_file
from esper.storage.run_files import GROWN_NETWORKS

if TYPE_CHECKING:
    from esper.growing.result import NetworkRecord

_WAYS: Final = "; or give your model: GrowResult.load(folder, model=...), --model FILE.py:NAME"
_NO_SCRIPT: Final = "# no script: "
Model = nn.Module | Callable[[], nn.Module]


def plain_path(run: Path, number: int) -> Path:
    """Folder of the network the user gets."""
    return run / GROWN_NETWORKS / f"{number:04d}-plain"


def _script_path(run: Path, number: int) -> Path:
    """File of the script that trains a network again."""
    return run / GROWN_NETWORKS / f"{number:04d}.py"


def kept_script(run: Path, number: int, text: str) -> str:
    """The script of a network, which is kept in the run folder, if that can be written to."""
    with contextlib.suppress(EsperError):
        save_file(_script_path(run, number), text.encode())
    return text


def keep_script(run: Path, number: int, write: Callable[[], str]) -> None:
    """Keep the script of a network, or why there is none, in the run folder."""
    try:
        kept_script(run, number, write())
    except EsperError as error:
        kept_script(run, number, f"{_NO_SCRIPT}{error}\n")


def read_script(run: Path, number: int) -> str:
    """The script of a network that was kept."""
    path = _script_path(run, number)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EsperError(
            f"{run} does not hold the script of network {number}: code() of the result that "
            f"esper.grow returned writes it; that of the pick is there"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise EsperError(f"{path}: the script cannot be read ({error})") from error
    if text.startswith(_NO_SCRIPT):
        raise EsperError(text.removeprefix(_NO_SCRIPT).strip())
    return text


@dataclass(frozen=True, slots=True)
class StoredNetworks:
    """Networks of a finished run."""

    run: Path
    info: GrowInfo
    model: Model | None = None
    """The user's, to build networks with its code instead of their descriptions."""
    trust: bool = False
    """Whether `.pt2` files may be read, which can run code."""

    def load(self, network: NetworkRecord) -> nn.Module:
        """Return a network, in eval mode."""
        number, topology = network.number, network.topology
        if self.model is None:
            return load_plain(plain_path(self.run, number), self.trust, _WAYS)
        trace = self._trace(self.model, network.variant, self.example(network))
        if len(topology) != len(trace.slots):
            raise EsperError(
                f"{self.run}: network {number} has {len(topology)} places for seeds, your model "
                f"has {len(trace.slots)}; give the model of the run"
            )
        seeds = {slot: name for slot, name in zip(trace.slots, topology, strict=True) if name}
        planted = planted_model(trace, seeds, 0)
        carry_weights(planted, read_weights(weights_path(self.run, number, network.refit)))
        return finished_model(planted)

    def example(self, network: NetworkRecord) -> Any:
        """One sample of its inputs, as a batch of one."""
        return plain_example(plain_path(self.run, network.number))

    def _trace(self, model: Model, variant: str, example: Any) -> HostTrace:
        """Trace the user's model as the run did."""
        if not callable(model):  # modules are, too
            raise EsperError(f"model={shown(model)}: give an nn.Module, or what builds one")
        places = dict(zip(self.info.variants, self.info.variant_places, strict=False))
        try:
            output = json.loads(self.info.output)
            (width, depth), slots = read_variant(variant), places[variant]
        except (KeyError, ValueError):
            raise EsperError(f"{self.run}: no width {shown(variant)}, or no output") from None
        if depth != 1:
            model = Depths(model, example, output).at(depth)
        if width == 1:
            return trace_model(model, example, slots or 0, output)
        return scaled_model(model, example, width, output, slots or 0).host
