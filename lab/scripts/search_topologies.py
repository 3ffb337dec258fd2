"""Searches for the topology with the best score: every combination of blueprints, from step 0.

    python lab/scripts/search_topologies.py --task digits_impaired --repeats 24

Used to calibrate score constants: the best topology should leave a slot empty, and growing should
pay. Members of a population hold different topologies and train in parallel; each topology is
repeated on members with their own initial weights and batches.

Shape letters: N members of all populations, E members, S slots.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from esper.leyline.errors import EsperError
from esper.leyline.seeds import require_training_seed
from esper.scripts.cli.command import run_command
from esper.storage.sealed_json import json_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from esper.leyline.arrays import Ints
    from esper.tasks.spec import TaskSpec

    Records = list[dict[str, "npt.NDArray[np.generic]"]]

NEVER = 10**9
"""Stride that skips the measurement of seeds after the first step; it is not used here."""


@dataclass(frozen=True)
class SearchTopologies:
    """Train hosts with every combination of seeds and rank the combinations."""

    task: str = "digits_impaired"
    """The task."""
    blueprints: tuple[str, ...] = ("depthwise", "conv_light", "conv_heavy")
    """Blueprints to try in each slot, besides none."""
    slots: tuple[str, ...] = ()
    """Slots to fill; default: all slots of the task."""
    shape: Literal["every", "ends"] = "every"
    """every: all combinations. ends: one blueprint in the first or last few slots, for hosts with
    too many slots."""
    repeats: int = 8
    """Members per topology."""
    envs: int = 64
    """Members trained in parallel."""
    episode_length: int | None = None
    """Steps per episode; default: the task's."""
    seed: int = 0
    """Seed of all random draws."""
    device: str = "auto"
    """cpu, cuda, cuda:<number>; auto takes a GPU if there is one."""
    profile: Literal["exact", "fast"] = "fast"
    """exact: bit-identical runs."""
    data: Literal["files", "synthetic"] = "files"
    """files: the task's data; synthetic: generated data of the same shape."""
    data_dir: Path | None = None
    """Folder of the data sets; default $ESPER_DATA_DIR, then ./data."""
    top: int = 8
    """Number of topologies to print."""
    out: Path = Path("out/search_topologies.json")
    """All numbers."""

    def check(self) -> None:
        """Check the settings."""
        for name in ("repeats", "envs", "top"):
            if getattr(self, name) < 1:
                raise EsperError(f"--{name} {getattr(self, name)}: must be 1 or more")
        if not self.blueprints:
            raise EsperError("--blueprints: name at least one")
        require_training_seed(self.seed, "--seed")


@dataclass(frozen=True, slots=True)
class TopologyResult:
    """Mean results of a topology over its members."""

    topology: str
    """Blueprint by slot, - for none."""
    empty_slots: int
    score: float
    score_error: float
    """Standard error over members."""
    accuracy: float
    """Accuracy on val_score."""
    accuracy_error: float
    """Its standard error over members."""
    params_over_host: float
    macs_over_host: float
    flops_ratio: float
    """Training FLOPs relative to the host's."""
    members: int


def main() -> int:
    """Entry point of the command."""
    return run_command(SearchTopologies, search)


def search(config: SearchTopologies) -> None:
    """Train, rank and print."""
    config.check()
    from dataclasses import replace

    from esper.storage.atomic import require_writable, write_atomic
    from esper.tasks.registry import get_task_spec
    from esper.tasks.synthetic_data import with_synthetic_data
    from esper.tolaria.device_info import describe_device
    from esper.tolaria.runtime import parse_device, set_deterministic_cublas

    require_writable(config.out, "--out")
    set_deterministic_cublas()
    spec = get_task_spec(config.task)
    if config.episode_length is not None:
        spec = replace(spec, episode_length=config.episode_length)
    if config.data == "synthetic":
        spec = with_synthetic_data(spec)
    kinds_NS = _topologies(config, spec)
    ranked = _rank(spec, kinds_NS, _train(config, spec, kinds_NS))
    machine = describe_device(parse_device(config.device))
    constants = asdict(spec.score)
    record = {
        "task": config.task,
        "seed": config.seed,
        "machine": machine,
        "score_constants": constants,
        "topologies": [asdict(found) for found in ranked],
    }
    write_atomic(config.out, json_bytes(record))
    _show(config, ranked, constants)
    print(f"numbers: {config.out}")


def _topologies(config: SearchTopologies, spec: TaskSpec) -> Ints:
    """`[N, S]` blueprint indices, -1 for none; every combination, `repeats` times."""
    import numpy as np

    from esper.leyline.errors import unknown_name
    from esper.leyline.signals import NO_BLUEPRINT

    for name in config.blueprints:
        if name not in spec.blueprints:
            raise unknown_name("blueprint", name, spec.blueprints, f"of task {spec.name}")
    slots = config.slots or spec.slots
    for slot in slots:
        if slot not in spec.slots:
            raise unknown_name("slot", slot, spec.slots, f"of task {spec.name}")
    kinds = [spec.blueprints.index(name) for name in config.blueprints]
    chosen = [spec.slots.index(slot) for slot in spec.slots if slot in slots]
    if config.shape == "every":
        combinations = list(itertools.product([NO_BLUEPRINT, *kinds], repeat=len(chosen)))
    else:
        combinations = _ends(kinds, len(chosen))
    each = np.full((len(combinations), len(spec.slots)), NO_BLUEPRINT, dtype=np.int64)
    each[:, chosen] = combinations
    return np.tile(each, (config.repeats, 1))


def _ends(kinds: Sequence[int], slots: int) -> list[tuple[int, ...]]:
    """No seeds, and each blueprint in the last and first 1, 2, ... slots."""
    from esper.leyline.signals import NO_BLUEPRINT

    found = [(NO_BLUEPRINT,) * slots]
    for kind in kinds:
        for filled in range(1, slots + 1):
            seeds, nothing = (kind,) * filled, (NO_BLUEPRINT,) * (slots - filled)
            found.append(nothing + seeds)
            if nothing:
                found.append(seeds + nothing)
    return found


def _train(config: SearchTopologies, spec: TaskSpec, kinds_NS: Ints) -> Records:
    """Outcome arrays of all populations."""
    from esper.tamiyo.baselines import WaitPolicy
    from esper.tolaria.counterfactual_eval import CounterfactualConfig
    from esper.tolaria.engine import VectorizedEngine
    from esper.tolaria.engine_config import EngineConfig

    class Planted(WaitPolicy):
        """Plants the topologies of this population at step 0."""

        def __init__(self, kinds_ES: Ints) -> None:
            super().__init__()
            self.kinds_ES = kinds_ES

        def planted(self, members: int, slots: Sequence[str], blueprints: Sequence[str]) -> Ints:
            """Topology of each member."""
            return self.kinds_ES

    data = spec.load(config.data_dir)
    done: Records = []
    for start in range(0, len(kinds_NS), config.envs):
        kinds_ES = kinds_NS[start : start + config.envs]
        require_training_seed(config.seed + start, "--seed")
        engine = VectorizedEngine(
            spec,
            EngineConfig(
                members=len(kinds_ES),
                seed=config.seed + start,
                device=config.device,
                profile=config.profile,
                executor="vmap",
                counterfactuals=CounterfactualConfig(stride=NEVER),
            ),
            data=data,
        )
        outcome = engine.run_rollout(Planted(kinds_ES)).outcome
        done.append(
            {
                "score": outcome.score_E,
                "accuracy": outcome.accuracy_E,
                "params": outcome.added_params_E / engine.episode.host_params,
                "macs": outcome.added_macs_E / engine.episode.host_macs,
                "flops": outcome.flops_ratio_E,
            }
        )
        print(f"{start + len(kinds_ES)} of {len(kinds_NS)} members trained", flush=True)
    return done


def _rank(spec: TaskSpec, kinds_NS: Ints, records: Records) -> list[TopologyResult]:
    import numpy as np

    from esper.leyline.signals import NO_BLUEPRINT

    values = {name: np.concatenate([r[name] for r in records]) for name in records[0]}
    found = []
    for kinds_S in np.unique(kinds_NS, axis=0):
        mine_N = (kinds_NS == kinds_S).all(axis=1)
        score_N, accuracy_N = values["score"][mine_N], values["accuracy"][mine_N]
        words = [spec.blueprints[k] if k != NO_BLUEPRINT else "-" for k in kinds_S]
        found.append(
            TopologyResult(
                topology=" ".join(words),
                empty_slots=int((kinds_S == NO_BLUEPRINT).sum()),
                score=float(score_N.mean()),
                score_error=_error(score_N),
                accuracy=float(accuracy_N.mean()),
                accuracy_error=_error(accuracy_N),
                params_over_host=float(values["params"][mine_N].mean()),
                macs_over_host=float(values["macs"][mine_N].mean()),
                flops_ratio=float(values["flops"][mine_N].mean()),
                members=len(score_N),
            )
        )
    return sorted(found, key=lambda f: -f.score)


def _error(values_N: npt.NDArray[np.generic]) -> float:
    """Standard error of a mean; NaN of a single value."""
    if len(values_N) < 2:
        return float("nan")
    return float(values_N.std(ddof=1) / len(values_N) ** 0.5)


def _show(
    config: SearchTopologies, ranked: list[TopologyResult], constants: dict[str, float]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    words = ", ".join(f"{name}={value:g}" for name, value in constants.items())
    table = Table(title=f"{config.task}, planted at step 0; {words}", box=SIMPLE_HEAD)
    for name in ("topology", "score", "s.e.", "accuracy", "+ params", "+ MACs", "n"):
        table.add_column(name, justify="left" if name == "topology" else "right")
    alone = next(f for f in ranked if not f.topology.replace("-", "").strip())
    full = next(f for f in ranked if f.empty_slots == min(g.empty_slots for g in ranked))
    shown = [*ranked[: config.top]]
    shown += [f for f in (full, alone) if f not in shown]
    for f in shown:
        cells = (f"{f.score:.3f}", f"{f.score_error:.3f}", f"{f.accuracy:.1%}")
        sizes = (f"{f.params_over_host:.2f}", f"{f.macs_over_host:.2f}", str(f.members))
        table.add_row(f.topology, *cells, *sizes)
    Console(width=110).print(table)
    best = ranked[0]
    print(
        f"best: {best.topology} ({best.score:.3f}); best that fills every slot: {full.topology} "
        f"({full.score:.3f}); host: {alone.score:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
