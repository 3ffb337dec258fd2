"""Live episodes: policies trained for real in the contexts of an audit.

Contexts, hosts, batches and budgets are those of the records; prices and caps are those of its
cases (`draw_cases`). Planting a recorded topology and never stopping gives the recorded curve again
on the same device, so live policies and contenders from records are compared on equal terms.

Draw d of a context is on host d modulo H. Policies are fitted on other contexts than they are run
in, by the folds of the leaderboard.

Shape letters: E members, one for each of N cases, S slots.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from esper.audit.bench import Bench
from esper.audit.cases import TERMS, TermsSpec, draw_cases
from esper.audit.live_policies import (
    LIVE_POLICIES,
    LiveCases,
    LiveMaker,
    LivePolicy,
    policy_settings,
)
from esper.audit.live_rows import LiveRows, joined, live_path, read_live, write_live
from esper.audit.presets import context_spec
from esper.audit.records import Audit, AuditInfo, identity_of
from esper.audit.regrets import context_folds
from esper.audit.run import MAX_ENGINES, AuditSettings
from esper.growing.topologies import Topology
from esper.leyline.actions import ActionHead, BlendStyle, LifecycleOp
from esper.leyline.arrays import Bools, Ints
from esper.leyline.codec import Json, to_json
from esper.leyline.context import MemberTerms
from esper.leyline.errors import EsperError, shorten, unknown_name
from esper.leyline.payloads import EpisodeOutcome, SlotPayload
from esper.leyline.protocols import EngineListener
from esper.leyline.records import PlanRecord, Rollout, StepRecord
from esper.leyline.signals import NO_BLUEPRINT
from esper.storage.atomic import write_advice
from esper.tasks.spec import TaskData, TaskSpec
from esper.tolaria.engine import VectorizedEngine

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

    def __post_init__(self) -> None:
        if self.draws < 1 or self.folds < 2:
            raise EsperError(
                f"live episodes with draws={self.draws}, folds={self.folds}: draws must be 1 or "
                f"more, folds 2 or more"
            )


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
    """Compute of all members, in training runs of the bare host."""
    first: bool
    """It is the policy's first that is missing."""


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
        contexts = len(self.bench.context_C)
        self.fold_C = context_folds(contexts, self.settings.folds, self.settings.seed)
        self.rows: dict[str, LiveRows] = check_live(
            folder, audit.info, tuple(policies), self.settings, self.bench.context_C.tolist()
        )

    def missing(self) -> list[LivePiece]:
        """What is still to be run, policy by policy."""
        budget_C, draws = self.bench.audit.contexts.budget_C, self.settings.draws
        pieces = []
        for name in self.policies:
            contexts = [c for c in self.bench.context_C.tolist() if not self._has(name, c)]
            pieces += [
                LivePiece(name, c, draws, draws * float(budget_C[c]), c == contexts[0])
                for c in contexts
            ]
        return pieces

    def run(self, runner: LiveRunner, listener: LiveListener | None = None) -> None:
        """Run what is missing; every finished context of a policy is kept."""
        fitted: dict[tuple[str, int], LivePolicy] = {}
        for piece in self.missing():
            if listener is not None:
                listener.on_live(piece)
            key = piece.policy, self._fold(piece.context)
            if key not in fitted:
                fitted[key] = self.policies[piece.policy](self.bench, self.train_contexts(key[1]))
            cases = self.cases(piece.context)
            found = runner.run(piece.policy, fitted[key], cases, listener)
            before = self.rows.get(piece.policy)
            self.rows[piece.policy] = joined([found] if before is None else [before, found])
            self._write(piece.policy)

    def cases(self, context: int) -> LiveCases:
        """The episodes of a policy in a context."""
        draw_N = np.arange(self.settings.draws)
        settings, context_N = self.settings, np.full_like(draw_N, context)
        observed = draw_cases(self.bench.audit, context_N, draw_N, settings.terms, settings.seed)
        return LiveCases(context, draw_N % self.bench.hosts, draw_N, observed)

    def train_contexts(self, fold: int) -> Ints:
        """Contexts that policies which are run in a fold are fitted on."""
        return np.asarray(self.bench.context_C[self.fold_C != fold])

    def _fold(self, context: int) -> int:
        return int(self.fold_C[np.searchsorted(self.bench.context_C, context)])

    def _has(self, name: str, context: int) -> bool:
        return name in self.rows and bool((self.rows[name].context_N == context).any())

    # ---- files ---------------------------------------------------------------------------------

    def _write(self, name: str) -> None:
        path = live_path(self.folder, name)
        try:
            path.parent.mkdir(exist_ok=True)
            described = _described(name, self.settings, self.bench.context_C.tolist())
            write_live(path, self.rows[name], described, identity_of(self.bench.info))
        except OSError as error:
            raise EsperError(
                f"cannot write {path} ({error.strerror or error}): {write_advice(error)}; finished "
                f"contexts are kept, and the same command resumes"
            ) from error


def check_live(
    folder: Path,
    info: AuditInfo,
    names: Sequence[str],
    settings: LiveSettings,
    contexts: Sequence[int] | None = None,
) -> dict[str, LiveRows]:
    """Episodes that are there already, by policy; raises if they were run with other settings.

    `contexts`: that have records, or will have; None: all of the audit's.
    """
    contexts = range(info.contexts) if contexts is None else contexts
    found = {}
    for name in names:
        path = live_path(folder, name)
        if not path.exists():
            continue
        rows, saved = read_live(path, identity_of(info))
        for key, wanted in _described(name, settings, contexts).items():
            if saved.get(key) != wanted:
                there, here = (shorten(json.dumps(it)) for it in (saved.get(key), wanted))
                raise EsperError(
                    f"{path}: {key} is {there} there and {here} here; set it back, or remove that "
                    f"file to run it again"
                )
        found[name] = rows
    return found


def _described(name: str, settings: LiveSettings, contexts: Sequence[int]) -> dict[str, Json]:
    """Settings that the results of a policy depend on."""
    return {
        "policy": name,
        "draws": settings.draws,
        "folds": settings.folds,
        "seed": settings.seed,
        "terms": to_json(settings.terms),
        "contexts": list(contexts),
        "settings": policy_settings(name),
    }


def chosen_policies(names: Sequence[str]) -> dict[str, LiveMaker]:
    """Live policies by name, each once; raises on unknown ones."""
    for name in names:
        if name not in LIVE_POLICIES:
            raise unknown_name("live policy", name, LIVE_POLICIES)
    return {name: LIVE_POLICIES[name] for name in names}


# ---- running -----------------------------------------------------------------------------------


class LiveRunner:
    """Trains episodes in engines set up as those of the audit."""

    def __init__(
        self, spec: TaskSpec, info: AuditInfo, settings: AuditSettings, data: TaskData
    ) -> None:
        """`spec`, `info`: from `describe_audit`."""
        self.spec, self.info, self.settings, self.data = spec, info, settings, data
        self._number = {names: k for k, names in enumerate(info.topologies)}
        self._engines: dict[tuple[tuple[int, ...], int], VectorizedEngine] = {}

    def run(
        self,
        name: str,
        policy: LivePolicy,
        cases: LiveCases,
        listener: EngineListener | None = None,
    ) -> LiveRows:
        """Train the episodes of a context, at most `envs` at a time."""
        return joined(
            [
                self._run(name, policy, cases.take(part_N), listener)
                for part_N in _parts(len(cases.draw_N), self.settings.envs)
            ]
        )

    def _run(
        self, name: str, policy: LivePolicy, cases: LiveCases, listener: EngineListener | None
    ) -> LiveRows:
        info, observed = self.info, cases.observed
        stride = 1 if policy.measures else max(1, info.steps - 1)
        engine = self._engine(tuple(cases.host_N.tolist()), stride)
        engine.round = cases.context
        engine.context.spec = context_spec(info.spec, info.budgets, cases.context)
        engine.context.terms = MemberTerms(
            observed.price_N, observed.params_cap_N, observed.macs_cap_N
        )
        watcher = _Watcher(engine, listener)
        outcome = engine.run_rollout(policy.client(cases, engine), watcher).outcome
        return self._rows(name, cases, engine, watcher, outcome)

    def _engine(self, member_ids: tuple[int, ...], stride: int) -> VectorizedEngine:
        key = (member_ids, stride)
        engine = self._engines.pop(key, None)
        if engine is None:
            while len(self._engines) >= MAX_ENGINES:
                del self._engines[next(iter(self._engines))]
            config = self.settings.engine_config(member_ids, stride)
            config = replace(config, frozen_heads=NO_GATES)
            engine = VectorizedEngine(self.spec, config, data=self.data)
        self._engines[key] = engine
        return engine

    def _rows(
        self,
        name: str,
        cases: LiveCases,
        engine: VectorizedEngine,
        watcher: _Watcher,
        outcome: EpisodeOutcome,
    ) -> LiveRows:
        info, observed = self.info, cases.observed
        planted = self._names(watcher.planted_ES)
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
            final=self._names(outcome.blueprint_ES),
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

    def _names(self, blueprint_ES: Ints) -> tuple[Topology, ...]:
        names = (*self.info.blueprints, "")  # NO_BLUEPRINT is the last index
        return tuple(tuple(names[kind] for kind in row) for row in blueprint_ES.tolist())


def _parts(cases: int, envs: int) -> Iterator[Ints]:
    for first in range(0, cases, envs):
        yield np.arange(first, min(cases, first + envs))


class _Watcher:
    """Listener that notes what is planted and how long members train, and passes all on."""

    def __init__(self, engine: VectorizedEngine, listener: EngineListener | None) -> None:
        shape = engine.env.members, len(engine.env.model.slots)
        self._next = listener
        self.planted_ES: Ints = np.full(shape, NO_BLUEPRINT)
        self.steps_E: Ints = np.zeros(shape[0], dtype=np.int64)
        """Steps before STOP."""

    def on_round_start(self, round_index: int, members: int) -> None:
        """Pass on."""
        if self._next is not None:
            self._next.on_round_start(round_index, members)

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """Pass on."""
        if self._next is not None:
            self._next.on_slot_events(round_index, step, payload)

    def on_plan(self, record: PlanRecord) -> None:
        """Note what is planted."""
        actions = record.decision.actions
        done_E: Bools = (actions.op == LifecycleOp.PLANT) & record.outcome.executed
        slot = record.signals.plan_slot
        self.planted_ES[done_E, slot] = actions.blueprint[done_E]

    def on_step(self, record: StepRecord) -> None:
        """Count the step of members that had not stopped."""
        self.steps_E = self.steps_E + ~record.signals.context.stopped_E
        if self._next is not None:
            self._next.on_step(record)

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """Pass on."""
        if self._next is not None:
            self._next.on_round_end(rollout)
