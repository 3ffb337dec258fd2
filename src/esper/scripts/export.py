"""`esper export`: write a network from its run folder.

esper export RUN small.onnx                  the pick of `esper grow`, the best of `esper train`
esper export RUN --params 20000 small.onnx   the best one of at most 20,000 parameters
esper export RUN weights.safetensors         only the weights
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from esper.karn.heartbeat import phase
from esper.scripts.cli.command import run_command
from esper.scripts.cli.output import say

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class _Export:
    """Write a network from its run folder; nothing in the folder runs."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder of `esper grow` or `esper train`, or its name in ./runs."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """File to write; the suffix decides the format: .onnx, .pt2 (torch.export), .safetensors."""
    params: int | None = None
    """Most parameters of the network; default: the pick of the run."""
    macs: float | None = None
    """Most multiply-accumulates of the network for one sample."""
    model: str | None = None
    """FILE.py:NAME of your model, for networks with layers of your own."""
    trust: bool = False
    """Read networks with layers of your own from their .pt2 files, which can run code."""


@dataclass(frozen=True)
class _Found:
    """A network of a run."""

    model: nn.Module
    example: Any
    size: str
    score: str


def _export(config: _Export) -> None:
    """Write the network. Imports are local, so that --help is fast."""
    from esper.kasmina.export.export import export_model, require_suffix
    from esper.scripts.cli.run_paths import find_run
    from esper.storage.run_files import RUN
    from esper.tasks.user_objects import user_files

    require_suffix(config.out)
    run = find_run(config.run)
    with ExitStack() as held:
        own = None
        if config.model is not None:
            own = held.enter_context(user_files()).find(config.model)
        of_train = (run / RUN).is_file()
        found = _member(run, config, own) if of_train else _grown(run, config, own)
        with phase(f"writing {config.out}"):
            export_model(found.model, found.example, config.out)
    say(f"{config.out}: {found.size}, {found.score}")


def _grown(run: Path, config: _Export, own: Any) -> _Found:
    """The pick of `esper grow`, or the best one within limits."""
    from esper.growing.result import GrowResult

    result = GrowResult.load(run, own, config.trust)
    limited = config.params is not None or config.macs is not None
    network = result.pick(config.params, config.macs) if limited else result.best
    score = f"test {result.info.metric} {network.test_score:.4f}"
    return _Found(network.model, network.example, _size(network.params, network.macs), score)


def _member(run: Path, config: _Export, own: Any) -> _Found:
    """The best member that `esper train` kept, within limits."""
    from esper.kasmina.layers.counting import count_parameters
    from esper.simic.training.runs.folder import members_dir
    from esper.simic.training.runs.kept_members import best_member, load_member, member_example

    folder = members_dir(run)
    kept = best_member(folder, config.params, config.macs)
    model = load_member(folder, kept, own, config.trust)
    size = _size(count_parameters(model), kept.macs)
    return _Found(model, member_example(folder, kept), size, f"score {kept.score:.4f}")


def _size(params: int, macs: int) -> str:
    return f"{params:,} parameters, {macs:,} MACs"


main = partial(run_command, _Export, _export)
"""Entry point of the command."""
