"""Live episodes: policies trained for real in the contexts of an audit.

Contexts, hosts, batches and budgets are those of the records; prices and caps are those of its
cases (`draw_cases`). Planting a recorded topology and never stopping gives the recorded curve again
on the same device, so live policies and contenders from records are compared on equal terms.

Draw d of a context is on host d modulo H. Policies are fitted on other contexts than they are run
in, by the folds of the leaderboard. Episodes for the picture (`live_picture`) train together with
them, in files of their own.

Shape letters: E members, one for each of N cases, S slots.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from esper.growing.topologies import Topology
from esper.leyline.actions import ActionHead, BlendStyle, LifecycleOp
from esper.leyline.arrays import Bools, Ints
from esper.leyline.codec import Json, to_json
from esper.leyline.context import MemberTerms
from esper.leyline.errors import EsperError, shorten
from esper.leyline.payloads import EpisodeOutcome
from esper.leyline.protocols import EngineListener
from esper.leyline.records import PlanRecord, StepRecord
from esper.leyline.signals import NO_BLUEPRINT
from esper.storage.atomic import write_advice
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.context_state import DrawLimits
from esper.tolaria.engine import VectorizedEngine
from esper_lab.audit.bench import Bench
from esper_lab.audit.cases import TERMS, TermsSpec, draw_cases
from esper_lab.audit.forwarding import ForwardingListener
from esper_lab.audit.live_controllers import ControllerMaker
from esper_lab.audit.live_picture import PICTURE_HOSTS, picture_settings
from esper_lab.audit.live_policies import (
    LiveCases,
    LiveLimits,
    LiveMaker,
    LivePolicy,
    policy_settings,
)
from esper_lab.audit.live_rows import (
    LiveKind,
    LiveRows,
    concatenated,
    joined,
    live_path,
    read_live,
    write_live,
)
from esper_lab.audit.live_static import StaticMaker
from esper_lab.audit.picks import shown_prices
from esper_lab.audit.presets import context_spec
from esper_lab.audit.records import Audit, AuditInfo, identity_of
from esper_lab.audit.regrets import context_folds
from esper_lab.audit.run import MAX_ENGINES, AuditSettings

NOT_RECORDED: Final = -1
NO_GATES: Final = ((ActionHead.STYLE, int(BlendStyle.ADD)),)
"""Seeds get no gate, so caps count a seed's own size, as those of the records do."""


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """Which episodes are trained."""

    draws: int = 4
    """Episodes of a policy in each context, each with its price and caps."""
    folds: int = 5
    """Parts of the contexts; a policy is run in one and fitted on the others."""
    seed: int = 0
    """Of prices, caps and folds; 0 gives the cases of the regrets."""
    terms: TermsSpec = TERMS
    """Distribution of prices and caps."""
    picture_hosts: int = PICTURE_HOSTS
    """Hosts that a policy is also trained on at each price of the picture; 0: not at all."""

    def __post_init__(self) -> None:
        if self.draws < 1 or self.folds < 2:
            raise EsperError(
                f"live episodes with draws={self.draws}, folds={self.folds}: draws must be 1 or "
                f"more, folds 2 or more"
            )
        if self.picture_hosts < 0:
            raise EsperError(f"picture_hosts={self.picture_hosts}: must be 0 or more")


class LiveListener(EngineListener, Protocol):
    """Listener that also receives the start of each episode."""

    def on_live(self, piece: LivePiece) -> None:
        """Before the episodes of a policy in a context; it may have to be fitted first."""
        ...


@dataclass(frozen=True, slots=True)
class LivePiece:
    """Episodes of one policy in one context."""

    policy: str
    context: int
    episodes: int
    work: float
    """Compute of all members, in training runs of the host."""
    first: bool
    """It is the policy's first that is missing."""


LiveResult = list[tuple[LiveKind, LiveRows]]
"""Episodes of a piece."""


# ---- what is run -------------------------------------------------------------------------------


class LiveRun:
    """Live episodes of some policies in the folder of an audit.

    Call it while holding the lock of the folder (`AuditFolder`).
    """

    def __init__(
        self,
        folder: Path,
        audit: Audit,
        policies: Mapping[str, LiveMaker],
        settings: LiveSettings | None = None,
    ) -> None:
        """Read what is there; raises if it was run with other settings."""
        self.folder, self.policies = folder, policies
        self.settings = settings or LiveSettings()
        self.bench = Bench(audit, self.settings.terms)
        contexts = self.bench.context_C.tolist()
        self._fitted: dict[tuple[str, int], LivePolicy] = {}
        """Policies by name and the fold that they are run in."""
        self.fold_C = context_folds(len(contexts), self.settings.folds, self.settings.seed)
        kept = check_live(folder, audit.info, policies, self.settings, contexts)
        self.rows: dict[str, LiveRows] = kept.cases
        """Episodes of the cases, by policy."""
        self.shown: dict[str, LiveRows] = kept.shown
        """Episodes of the picture, by policy."""

    def missing(self) -> list[LivePiece]:
        """What is still to be run, policy by policy."""
        budget_C = self.bench.audit.contexts.budget_C
        pieces: list[LivePiece] = []
        for name in self.policies:
            first = True
            for c in self.bench.context_C.tolist():
                episodes = sum(len(cases.draw_N) for _, cases in self._to_run(name, c))
                if episodes:
                    work = episodes * float(budget_C[c])
                    pieces.append(LivePiece(name, c, episodes, work, first))
                    first = False
        return pieces

    def run(self, runner: LiveRunner, listener: LiveListener | None = None) -> None:
        """Run what is missing; every finished context of a policy is kept."""
        for piece in self.missing():
            if listener is not None:
                listener.on_live(piece)
            self.keep(self.run_piece(runner, piece, listener))

    def run_piece(
        self, runner: LiveRunner, piece: LivePiece, listener: EngineListener | None = None
    ) -> LiveResult:
        """Train the episodes of a piece."""
        name, key = piece.policy, (piece.policy, self._fold(piece.context))
        if key not in self._fitted:
            self._fitted[key] = self.policies[name](self.bench, self.train_contexts(key[1]))
        parts = self._to_run(name, piece.context)
        cases = LiveCases.joined([cases for _, cases in parts])
        found, at = runner.run(name, self._fitted[key], cases, listener), 0
        result = []
        for kind, part in parts:
            result.append((kind, found.take(at + np.arange(len(part.draw_N)))))
            at += len(part.draw_N)
        return result

    def keep(self, result: LiveResult) -> None:
        """Add the episodes of a piece, and write their files again."""
        for kind, rows in result:
            self._keep(kind, rows)

    def _to_run(self, name: str, context: int) -> list[tuple[LiveKind, LiveCases]]:
        """Missing episodes of a policy in a context."""
        wanted = [(LiveKind.CASES, self.cases)]
        if self.settings.picture_hosts:
            wanted.append((LiveKind.PICTURE, self.shown_cases))
        return [(kind, cases(context)) for kind, cases in wanted
                if not self._has(kind, name, context)]  # fmt: skip

    def cases(self, context: int) -> LiveCases:
        """The episodes of a policy in a context."""
        draw_N = np.arange(self.settings.draws)
        settings, context_N = self.settings, np.full_like(draw_N, context)
        observed = draw_cases(self.bench.audit, context_N, draw_N, settings.terms, settings.seed)
        return LiveCases(context, draw_N % self.bench.hosts, draw_N, observed)

    def shown_cases(self, context: int) -> LiveCases:
        """The episodes of a policy for the picture in a context: all prices, no caps."""
        settings, prices = self.settings, shown_prices(self.settings.terms.price)
        hosts = min(settings.picture_hosts, self.bench.hosts)
        draw_N = np.arange(len(prices) * hosts)
        free, context_N = replace(settings.terms, capped=0.0), np.full_like(draw_N, context)
        drawn = draw_cases(self.bench.audit, context_N, draw_N, free, settings.seed)
        observed = replace(drawn, price_N=np.repeat(prices, hosts))
        return LiveCases(context, draw_N % hosts, draw_N, observed)

    def train_contexts(self, fold: int) -> Ints:
        """Contexts that policies which are run in a fold are fitted on."""
        return np.asarray(self.bench.context_C[self.fold_C != fold])

    def _fold(self, context: int) -> int:
        return int(self.fold_C[np.searchsorted(self.bench.context_C, context)])

    def _of(self, kind: LiveKind) -> dict[str, LiveRows]:
        return self.rows if kind is LiveKind.CASES else self.shown

    def _has(self, kind: LiveKind, name: str, context: int) -> bool:
        rows = self._of(kind).get(name)
        return rows is not None and bool((rows.context_N == context).any())

    # ---- files ---------------------------------------------------------------------------------

    def _keep(self, kind: LiveKind, found: LiveRows) -> None:
        """Add finished episodes, and write their file again."""
        name, rows = found.policy, self._of(kind)
        rows[name] = joined([rows[name], found] if name in rows else [found])
        path = live_path(self.folder, name, kind)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            contexts = self.bench.context_C.tolist()
            described = _described(name, self.policies[name], self.settings, contexts)
            described |= _drawn_at(kind, self.settings, self.bench.hosts)
            write_live(path, rows[name], described, identity_of(self.bench.info))
        except OSError as error:
            raise EsperError(
                f"cannot write {path} ({error.strerror or error}): {write_advice(error)}; finished "
                f"contexts are kept, and the same command resumes"
            ) from error


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Episodes that are there already, by policy."""

    cases: dict[str, LiveRows]
    shown: dict[str, LiveRows]
    """Of the picture."""


def check_live(
    folder: Path,
    info: AuditInfo,
    policies: Mapping[str, LiveMaker],
    settings: LiveSettings,
    contexts: Sequence[int] | None = None,
) -> KeptRows:
    """Read the episodes that are there; raises if they were run with other settings.

    `contexts`: that have records, or will have; None: all of the audit's.
    """
    contexts = range(info.contexts) if contexts is None else contexts
    found: dict[LiveKind, dict[str, LiveRows]] = {kind: {} for kind in LiveKind}
    for kind, (name, make) in product(LiveKind, policies.items()):
        path = live_path(folder, name, kind)
        if not path.exists() or (kind is LiveKind.PICTURE and not settings.picture_hosts):
            continue
        rows, saved = read_live(path, identity_of(info))
        wanted = _described(name, make, settings, contexts) | _drawn_at(kind, settings, info.hosts)
        _require_same(path, saved, wanted)
        found[kind][name] = rows
    return KeptRows(found[LiveKind.CASES], found[LiveKind.PICTURE])


def _require_same(
    path: Path, saved: Mapping[str, Json], wanted: Mapping[str, Json], within: str = ""
) -> None:
    """Raise on the first setting that differs."""
    for key, here in wanted.items():
        there = saved.get(key)
        if there == here:
            continue
        if isinstance(there, dict) and isinstance(here, dict):
            _require_same(path, there, here, f"{within}{key}.")
        texts = " there and ".join(shorten(json.dumps(it)) for it in (there, here))
        raise EsperError(
            f"{path}: {within}{key} is {texts} here; set it back, or remove that file to run it "
            f"again"
        )


def _described(
    name: str, make: LiveMaker, settings: LiveSettings, contexts: Sequence[int]
) -> dict[str, Json]:
    """Settings that all results of a policy depend on."""
    own = policy_settings(name)
    if isinstance(make, ControllerMaker | StaticMaker):
        own = make.settings
    return {
        "policy": name,
        "folds": settings.folds,
        "seed": settings.seed,
        "terms": to_json(settings.terms),
        "contexts": list(contexts),
        "settings": own,
    }


def _drawn_at(kind: LiveKind, settings: LiveSettings, hosts: int) -> dict[str, Json]:
    """Settings of the episodes of one kind."""
    if kind is LiveKind.CASES:
        return {"draws": settings.draws}
    return picture_settings(settings.terms, min(settings.picture_hosts, hosts))


# ---- running -----------------------------------------------------------------------------------


class LiveRunner:
    """Trains episodes in engines set up as those of the audit."""

    def __init__(
        self, spec: TaskSpec, info: AuditInfo, settings: AuditSettings, data: TaskData
    ) -> None:
        """`spec`, `info`: from `describe_audit`."""
        self.spec, self.info, self.settings, self.data = spec, info, settings, data
        self._number = {names: k for k, names in enumerate(info.topologies)}
        self._engines: dict[tuple[tuple[int, ...], LiveLimits], VectorizedEngine] = {}
        self._limits: DrawLimits | None = None

    def run(
        self,
        name: str,
        policy: LivePolicy,
        cases: LiveCases,
        listener: EngineListener | None = None,
    ) -> LiveRows:
        """Train the episodes of a context, at most `envs` at a time; rows are in their order."""
        return concatenated(
            [
                self._run(name, policy, cases.take(part_N), listener)
                for part_N in _parts(len(cases.draw_N), self.settings.envs)
            ]
        )

    def _run(
        self, name: str, policy: LivePolicy, cases: LiveCases, listener: EngineListener | None
    ) -> LiveRows:
        info, observed = self.info, cases.observed
        engine = self._engine(tuple(cases.host_N.tolist()), policy.limits)
        engine.round = cases.context
        engine.context.spec = context_spec(info.spec, info.budgets, cases.context)
        engine.context.terms = MemberTerms(
            observed.price_N, observed.params_cap_N, observed.macs_cap_N
        )
        watcher = _Watcher(engine, listener)
        outcome = engine.run_rollout(policy.client(cases, engine), watcher).outcome
        return self._rows(name, cases, engine, watcher, outcome)

    def _engine(self, member_ids: tuple[int, ...], limits: LiveLimits) -> VectorizedEngine:
        key = (member_ids, limits)
        engine = self._engines.pop(key, None)
        if engine is None:
            while len(self._engines) >= MAX_ENGINES:
                del self._engines[next(iter(self._engines))]
            engine = self._new_engine(member_ids, limits)
        self._engines[key] = engine
        return engine

    def _new_engine(self, member_ids: tuple[int, ...], limits: LiveLimits) -> VectorizedEngine:
        stride = limits.stride or max(1, self.info.steps - 1)
        config = self.settings.engine_config(member_ids, stride)
        heads = tuple((dict(limits.frozen_heads) | dict(NO_GATES)).items())
        config = replace(config, frozen_heads=heads)
        names = limits.blueprints or self.info.blueprints
        if set(names) == set(self.info.blueprints):
            return VectorizedEngine(self.spec, config, data=self.data)
        fewer = replace(self.spec, blueprints=names)
        engine = VectorizedEngine(fewer, config, data=self.data)
        engine.context.limits = self._whole_limits()
        return engine

    def _whole_limits(self) -> DrawLimits:
        """Limits of draws with all blueprints of the audit, so that all policies meet the same."""
        if self._limits is None:
            config = self.settings.engine_config((0,), stride=1)
            self._limits = VectorizedEngine(self.spec, config, data=self.data).context.limits
        return self._limits

    def _rows(
        self,
        name: str,
        cases: LiveCases,
        engine: VectorizedEngine,
        watcher: _Watcher,
        outcome: EpisodeOutcome,
    ) -> LiveRows:
        info, observed = self.info, cases.observed
        names = engine.env.model.blueprints
        planted = _topologies(watcher.planted_ES, names)
        return LiveRows(
            policy=name,
            context_N=np.full_like(cases.draw_N, cases.context),
            host_N=cases.host_N,
            draw_N=cases.draw_N,
            price_N=observed.price_N,
            params_cap_N=observed.params_cap_N,
            macs_cap_N=observed.macs_cap_N,
            topology_N=np.array([self._number.get(it, NOT_RECORDED) for it in planted]),
            planted=planted,
            final=_topologies(outcome.blueprint_ES, names),
            accuracy_N=outcome.accuracy_E,
            test_N=engine.test(),
            compute_N=outcome.flops_ratio_E.copy(),
            steps_N=watcher.steps_E,
            params_N=info.host_params + outcome.added_params_E,
            macs_N=info.host_macs + outcome.added_macs_E,
            score_N=outcome.score_E,
            pruned_N=outcome.pruned_E,
            rollbacks_N=outcome.rollbacks_E,
        )


def _topologies(blueprint_ES: Ints, blueprints: Sequence[str]) -> tuple[Topology, ...]:
    names = (*blueprints, "")  # NO_BLUEPRINT is the last index
    return tuple(tuple(names[kind] for kind in row) for row in blueprint_ES.tolist())


def _parts(cases: int, envs: int) -> Iterator[Ints]:
    for first in range(0, cases, envs):
        yield np.arange(first, min(cases, first + envs))


class _Watcher(ForwardingListener):
    """Listener that notes what is planted and how long members train, and passes all on."""

    def __init__(self, engine: VectorizedEngine, listener: EngineListener | None) -> None:
        super().__init__(listener)
        shape = engine.env.members, len(engine.env.model.slots)
        self.planted_ES: Ints = np.full(shape, NO_BLUEPRINT)
        self.steps_E: Ints = np.zeros(shape[0], dtype=np.int64)
        """Steps before STOP."""

    def on_plan(self, record: PlanRecord) -> None:
        """Note what is planted."""
        actions = record.decision.actions
        done_E: Bools = (actions.op == LifecycleOp.PLANT) & record.outcome.executed
        slot = record.signals.plan_slot
        self.planted_ES[done_E, slot] = actions.blueprint[done_E]

    def on_step(self, record: StepRecord) -> None:
        """Count the step of members that had not stopped."""
        self.steps_E = self.steps_E + ~record.signals.context.stopped_E
        super().on_step(record)
