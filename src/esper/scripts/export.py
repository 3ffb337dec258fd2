"""`esper export`: write a grown network from its run folder alone.

esper export RUN small.onnx                  the pick
esper export RUN --params 20000 small.onnx   the best one of at most 20,000 parameters
esper export RUN weights.safetensors         the weights alone
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from esper.karn.heartbeat import phase
from esper.scripts.cli.command import run_command
from esper.scripts.cli.output import say


@dataclass(frozen=True)
class Export:
    """Write a grown network from its run folder; the model's own code is not needed."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, or its name in ./runs."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """File to write; the suffix decides the format: .onnx, .pt2 (torch.export), .safetensors."""
    params: int | None = None
    """Most parameters of the network; default: the pick of the run."""
    macs: float | None = None
    """Most multiply-accumulates of the network for one sample."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    return run_command(Export, export, argv)


def export(config: Export) -> None:
    """Write the network. Imports are local, so that --help is fast."""
    from esper.growing.result import GrowResult
    from esper.growing.stored import require_suffix
    from esper.scripts.cli.run_paths import find_run

    require_suffix(config.out)
    result = GrowResult.load(find_run(config.run))
    limited = config.params is not None or config.macs is not None
    network = result.pick(config.params, config.macs) if limited else result.best
    with phase(f"writing {config.out}"):
        network.export(config.out)
    say(
        f"{config.out}: {network.params:,} parameters, {network.macs:,} MACs, "
        f"test {result.info.metric} {network.test_score:.4f}"
    )


if __name__ == "__main__":
    sys.exit(main())
