"""The best members of a run, kept when their round ends.

    members/
        members.json            the kept members, best first; carries a checksum
        000002-0003/            member 3 of the second round (`MorphogeneticModel.load` reads it)
        000002-0003-plain/      the same as a plain network (`plain_saves`), when the session ends

Members are fresh in every round, so what a round grew is gone unless it is saved before the next
one. Saving reads only: results do not depend on it. A member's folder is complete before
`members.json` names it, and removed after it no longer does. Reading the list does not import
torch.
"""

from __future__ import annotations

import logging
import math
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from esper.leyline.codec import read_record
from esper.leyline.errors import EsperError
from esper.leyline.signals import NO_BLUEPRINT
from esper.storage.atomic import write_advice, write_atomic
from esper.storage.run_files import MEMBER_LIST as LIST
from esper.storage.sealed_json import read_document, require_schema, sealed_bytes

if TYPE_CHECKING:
    from torch import nn

    from esper.leyline.payloads import EpisodeOutcome
    from esper.simic.training.history import RoundRecord
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
    from esper.tolaria.engine import VectorizedEngine

KEEP_MEMBERS: Final = 3
"""Default number of members kept."""
PLAIN: Final = "-plain"
SCHEMA: Final = 1
"""Schema version of the list. Incremented by every change of it."""

_OWN: Final = re.compile(rf"\d{{6,}}-\d{{4,}}({PLAIN})?")
"""Names in the folder that belong to members."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptMember:
    """A member that was saved at the end of its round."""

    round: int
    """Rounds completed when it was saved: 1 for the first round."""
    member: int
    """Index in its population."""
    score: float
    """Score at the end of the episode."""
    accuracy: float
    """On `val_score`."""
    parameters: int
    """Of the host and its seeds."""
    macs: int
    """Per sample."""
    topology: tuple[str, ...]
    """`slot=blueprint` each, as `static-final:` takes them; empty: the host."""

    @property
    def name(self) -> str:
        """Name of its folder; that of its plain network has a suffix."""
        return f"{self.round:06d}-{self.member:04d}"


@dataclass(frozen=True, slots=True)
class _MemberList:
    """The content of `members.json`."""

    schema: int
    task: str
    """Name of the task."""
    members: tuple[KeptMember, ...]
    """Best first."""


SaveMember = Callable[[KeptMember, Path], None]


class KeptMembers:
    """The best `keep` members of all rounds so far. As a `RoundHook` it saves after each round."""

    def __init__(self, folder: Path, keep: int = KEEP_MEMBERS) -> None:
        """`folder`: created on the first save; members it already holds compete with new ones."""
        if keep < 0:
            raise EsperError(f"keep_members={keep}: must be 0 or more")
        self.folder = folder
        self.keep = keep
        self.members = read_members(folder)
        """Best first."""

    def __call__(self, trainer: VectorizedPPOTrainer, record: RoundRecord, /) -> None:
        """Save the best members of the round; a no-op in the middle of an episode."""
        if not trainer.engine.step:
            self.add_round(trainer.engine, trainer.engine.outcome())

    def best(self, engine: VectorizedEngine, outcome: EpisodeOutcome) -> tuple[KeptMember, ...]:
        """The best members so far, those of the round just finished included.

        A round that is trained again, after a resume, replaces itself and all later ones.
        """
        before = [kept for kept in self.members if kept.round < engine.round]
        order_E = np.argsort(-np.nan_to_num(outcome.score_E, nan=-np.inf), kind="stable")
        found = [_describe(engine, outcome, int(e)) for e in order_E[: self.keep]]
        found = [kept for kept in found if math.isfinite(kept.score)]
        return tuple(sorted((*before, *found), key=lambda kept: -kept.score)[: self.keep])

    def add_round(
        self, engine: VectorizedEngine, outcome: EpisodeOutcome, save: SaveMember | None = None
    ) -> None:
        """Save members of the round just finished that are among the best so far.

        Call it before the engine resets the members. `save`: writes a member to a folder; default:
        that of the engine.
        """
        if not self.keep and not self.members:
            return
        ranked = self.best(engine, outcome)
        save = save or (lambda kept, folder: save_member(engine, kept.member, folder))
        try:
            for kept in ranked:
                if kept.round == engine.round:
                    shutil.rmtree(self.folder / f"{kept.name}{PLAIN}", ignore_errors=True)
                    save(kept, self.folder / kept.name)
            self._write(engine.spec.name, ranked)
        except OSError as error:
            raise EsperError(
                f"cannot write to {self.folder}: {error.strerror or error}; {write_advice(error)}"
            ) from error

    def store_plain(self, engine: VectorizedEngine, seconds: float = math.inf) -> None:
        """Write the missing plain networks; one that cannot be written is logged.

        `seconds`: none is begun after this time; the next session writes the rest.
        """
        import torch

        from esper.kasmina.export.member import MorphogeneticModel
        from esper.kasmina.plain_saves import save_plain

        # SYNC: one batch, after the last step of a run.
        example, until = engine.validator.control.sample.cpu(), time.monotonic() + seconds
        for kept in self.members:
            path = self.folder / f"{kept.name}{PLAIN}"
            if path.exists() or time.monotonic() > until:
                continue
            try:
                with torch.random.fork_rng(devices=[]):  # building a host draws numbers
                    factory = engine.spec.host_factory
                    member = MorphogeneticModel.load(self.folder / kept.name, factory)
                    reason = save_plain(path, member.to_plain(), example)
                if reason:
                    logger.warning("%s needs the code of its host to be loaded: %s", path, reason)
            except EsperError as error:
                logger.warning("%s is not written: %s", path, error)

    def _write(self, task: str, members: tuple[KeptMember, ...]) -> None:
        """Replace the list, then remove members that it no longer names."""
        if members != self.members:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.folder / LIST, sealed_bytes(_MemberList(SCHEMA, task, members)))
            self.members = members
        if not self.folder.is_dir():
            return
        named = {kept.name for kept in members}
        for path in self.folder.iterdir():
            if not _OWN.fullmatch(path.name) or path.name.removesuffix(PLAIN) in named:
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def save_member(engine: VectorizedEngine, index: int, folder: Path) -> None:
    """Write a member of the engine to `folder`."""
    with engine.computing():
        engine.env.model.member(index).save(folder)


def _describe(engine: VectorizedEngine, outcome: EpisodeOutcome, member: int) -> KeptMember:
    population = engine.env.model
    kinds = zip(population.slots, outcome.blueprint_ES[member], strict=True)
    return KeptMember(
        round=engine.round,
        member=member,
        score=float(outcome.score_E[member]),
        accuracy=float(outcome.accuracy_E[member]),
        parameters=engine.episode.host_params + int(outcome.added_params_E[member]),
        macs=engine.episode.host_macs + int(outcome.added_macs_E[member]),
        topology=tuple(
            f"{slot}={population.blueprints[kind]}" for slot, kind in kinds if kind != NO_BLUEPRINT
        ),
    )


def read_members(folder: Path) -> tuple[KeptMember, ...]:
    """Read the list in `folder`, best first; empty if there is none."""
    path = folder / LIST
    if not path.exists():
        return ()
    try:
        document = read_document(path)
        if isinstance(document, dict):
            require_schema(path, document.get("schema"), SCHEMA)
        return read_record(_MemberList, document, str(path)).members
    except EsperError as error:
        raise EsperError(f"{error}; delete it to keep members of the coming rounds only") from None


def best_member(folder: Path, params: float | None, macs: float | None) -> KeptMember:
    """The member with the best score within these limits."""
    members = read_members(folder)
    if not members:
        raise EsperError(f"{folder} has no {LIST}: the run kept no members (--keep-members)")
    for kept in members:
        small = params is None or kept.parameters <= params
        if small and (macs is None or kept.macs <= macs):
            return kept
    smallest = min(members, key=lambda kept: kept.parameters)
    raise EsperError(
        f"no member within params={params}, macs={macs}: the smallest has {smallest.parameters} "
        f"parameters and {smallest.macs} MACs"
    )


def load_member(
    folder: Path,
    kept: KeptMember,
    host: nn.Module | Callable[[], nn.Module] | None = None,
    trust: bool = False,
) -> nn.Module:
    """Return a kept member as a plain network, in eval mode; nothing in the folder runs.

    `host`: its host, or what builds one, if it has layers of its own; `trust`: read such a member
    as a `.pt2` file, which can run code.
    """
    from esper.kasmina.export.member import MorphogeneticModel
    from esper.kasmina.plain_saves import load_plain
    from esper.kasmina.tracing.host import factory_of

    if host is not None:
        return MorphogeneticModel.load(folder / kept.name, factory_of(host)).to_plain()
    return load_plain(
        _plain_folder(folder, kept), trust, "; or name its host: --model FILE.py:NAME"
    )


def member_example(folder: Path, kept: KeptMember) -> Any:
    """Return one sample of the inputs of a kept member, as a batch of one."""
    from esper.kasmina.plain_saves import plain_example

    return plain_example(_plain_folder(folder, kept))


def _plain_folder(folder: Path, kept: KeptMember) -> Path:
    path = folder / f"{kept.name}{PLAIN}"
    if not path.is_dir():
        raise EsperError(f"{path} is missing: it is written when a session ends; resume the run")
    return path
