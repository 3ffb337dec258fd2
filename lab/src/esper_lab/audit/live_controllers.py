"""Trained controllers among the live policies of an audit.

    --live closed_loop runs/RUN          a run (its best checkpoint), a checkpoint or a saved agent
    --live mine=runs/RUN                 with a name of its own in tables

Each is joined by itself untrained (NAME-untrained): the same settings and first weights.

A controller acts greedily, with the blueprints, frozen heads and measurements of its training. It
is fitted to no context of the audit, so it needs no folds: its run had another seed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.leyline.arrays import Ints
from esper.leyline.codec import Json, to_json
from esper.leyline.errors import EsperError, UnknownNameError, shown, unknown_name
from esper.simic.client import ActingMode, SimicClient
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.runs.controllers import FoundController, find_controller
from esper.tasks.spec import TaskSpec
from esper.tolaria.runtime import parse_device
from esper_lab.audit.bench import Bench
from esper_lab.audit.leaderboard import BUILT_IN
from esper_lab.audit.live_picture import CONTROLLER
from esper_lab.audit.live_policies import (
    LIVE_POLICIES,
    LiveLimits,
    LiveMaker,
    LivePolicy,
    ReadyPolicy,
)
from esper_lab.audit.live_rows import live_path
from esper_lab.audit.picks import SEARCH
from esper_lab.audit.records import AuditInfo

_NAMED: Final = re.compile(r"([^:=/@]+)=(.+)", re.DOTALL)
UNTRAINED: Final = "-untrained"
"""End of the name of a controller as it began."""
_NAME: Final = re.compile(r"\w[\w.+-]*")
"""Names of controllers, which are also names of files."""


@dataclass(frozen=True, slots=True, eq=False)
class ControllerMaker:
    """Makes the live policy of a controller, the same for all training contexts."""

    ready: ReadyPolicy
    settings: Json
    """All that its results depend on; the weights by their checksum."""

    def __call__(self, bench: Bench, contexts: Ints) -> LivePolicy:
        """The controller; nothing is fitted."""
        return self.ready


# ---- arguments of --live ------------------------------------------------------------------


def parse_live(arguments: Sequence[str]) -> dict[str, Path | None]:
    """Names of live policies, with the folder of each that is a controller.

    Raises on unknown names, missing folders, and on two controllers of one name.
    """
    found: dict[str, Path | None] = {}
    for argument in arguments:
        if argument in LIVE_POLICIES:
            found[argument] = None
            continue
        name, path = _controller_argument(argument)
        if found.get(name, path) != path:
            raise EsperError(
                f"--live {shown(argument)}: {found[name]} is called {name}, too; name one of them: "
                f"NAME=FOLDER"
            )
        found[name] = path
    return found


def _controller_argument(argument: str) -> tuple[str, Path]:
    """Name and folder of a controller."""
    named = _NAMED.fullmatch(argument)
    path = Path(named[2] if named else argument)
    if not argument or not os.path.isdir(path):
        if named or os.sep in argument or argument.startswith("."):
            raise EsperError(
                f"--live {shown(argument)}: folder {shown(str(path))} does not exist; expected the "
                f"folder of a saved controller, checkpoint or run"
            )
        unknown = unknown_name("live policy", argument, LIVE_POLICIES)
        raise UnknownNameError(f"{unknown}, or the folder of a controller")
    name = named[1] if named else path.resolve().name
    if not _NAME.fullmatch(name) or _reserved(name):
        why = "is that of another contender" if _reserved(name) else "is no name of a file"
        raise EsperError(
            f"--live {shown(argument)}: {shown(name)} {why}; choose one of letters, digits and "
            f"_ . + -: NAME=FOLDER"
        )
    return name, path


def _reserved(name: str) -> bool:
    taken = {live_path(Path(), it).stem for it in (*BUILT_IN, *LIVE_POLICIES)}
    return name.casefold() in taken or name.startswith(SEARCH)


def live_makers(
    named_paths: Mapping[str, Path | None], spec: TaskSpec, info: AuditInfo, device: str = "auto"
) -> dict[str, LiveMaker]:
    """Live policies by name; loads the controllers, each followed by itself untrained.

    `named_paths`: from `parse_live`.
    """
    made: dict[str, LiveMaker] = {}
    begun: list[Json] = []
    for name, path in named_paths.items():
        if path is None:
            made[name] = LIVE_POLICIES[name]
            continue
        made[name] = load_controller(path, spec, info, device)
        start = load_controller(path, spec, info, device, untrained=True)
        if start.settings not in begun and name + UNTRAINED not in named_paths:
            begun.append(start.settings)
            made[name + UNTRAINED] = start
    return made


# ---- controllers -------------------------------------------------------------------------------


def load_controller(
    path: Path, spec: TaskSpec, info: AuditInfo, device: str = "auto", untrained: bool = False
) -> ControllerMaker:
    """Load the controller of a folder; raises if it does not fit the audit.

    `spec`, `info`: from `describe_audit`. `untrained`: as it began.
    """
    found = find_controller(path)
    _require_fit(path, found, info)
    limits = _limits(found)
    agent = found.load(parse_device(device))
    checksum = found.checksum()
    if untrained:
        agent = agent.untrained()
        checksum = agent.origin_digest()
    client = SimicClient(agent, ScoreReward(spec.upkeep), ActingMode.GREEDY)
    settings: Json = {CONTROLLER: checksum, "limits": to_json(limits)}
    return ControllerMaker(ReadyPolicy(client, limits), settings)


def _limits(found: FoundController) -> LiveLimits:
    """Limits of its training; of a save without them: none."""
    if found.training is None:
        return LiveLimits()
    population = found.training.population
    return LiveLimits(
        population.counterfactual_stride, population.frozen_heads, found.blueprints or ()
    )


def _require_fit(path: Path, found: FoundController, info: AuditInfo) -> None:
    """Raise if a controller was trained on another task, or in the audit's own contexts."""
    if found.task not in (None, info.task):
        raise EsperError(
            f"{path}: a controller of task {found.task}, this is an audit of {info.task}; train "
            f"one on it"
        )
    if found.slots not in (None, info.slots):
        raise EsperError(
            f"{path}: a controller for slots {_listed(found.slots)}, this audit has "
            f"{_listed(info.slots)}; train one for these"
        )
    unknown = [name for name in found.blueprints or () if name not in info.blueprints]
    if unknown:
        raise EsperError(
            f"{path}: a controller that grows {_listed(found.blueprints)}, this audit has no "
            f"{_listed(unknown)}; name all of them in --blueprints, or train one without"
        )
    if found.training is not None and found.training.seed == info.seed:
        raise EsperError(
            f"{path}: trained with seed {info.seed}, that of the audit, so on its contexts and "
            f"hosts; train it with another --seed"
        )


def _listed(names: Sequence[str] | None) -> str:
    return shown(", ".join(names or ())).strip("'")
