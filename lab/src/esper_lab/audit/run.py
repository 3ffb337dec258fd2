"""Trains the topologies of an audit: all of them on all hosts, context after context.

A context is a round of the engine, so its draws follow from the seed and its number. Members with
the same host share initial weights and batches, and all members share the context. Topologies of
similar cost train together: under the compute clock a population runs as many batches as its
cheapest member.

Shape letters: E members, H hosts, K topologies, T observations, S slots.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, Final, Protocol

import numpy as np
import torch

import esper
from esper.leyline.arrays import Doubles, Floats, Ints
from esper.leyline.codec import to_json
from esper.leyline.compute import ComputeSettings
from esper.leyline.errors import EsperError
from esper.leyline.protocols import EngineListener, PolicyProtocol
from esper.leyline.records import StepRecord
from esper.leyline.signals import SlotReports
from esper.tamiyo.planning import PlannedTopology
from esper.tasks.contexts import draw_round
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.counterfactual_eval import CounterfactualConfig
from esper.tolaria.device_info import describe_device
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig
from esper_lab.audit.folder import AuditFolder
from esper_lab.audit.forwarding import ForwardingListener
from esper_lab.audit.grown import GrownTopologies
from esper_lab.audit.presets import Preset, context_spec
from esper_lab.audit.records import AuditInfo
from esper_lab.audit.rows import ContextRows, DrawnContext
from esper_lab.audit.topologies import choose_topologies
from esper_lab.audit.topology_space import TopologySpace

MAX_ENGINES: Final = 4
"""Engines kept for the next context; each holds a population on the device."""


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Size of an audit."""

    contexts: int = 16
    """C."""
    topologies: int = 24
    """K, the host included."""
    hosts: int = 4
    """H."""
    grown: int = 0
    """Topologies that are also grown instead of planted."""
    seed: int = 0
    envs: int = 32
    """Members trained in parallel; results do not depend on it."""
    data: str = "files"
    """Kind of data: `files` or `synthetic`."""
    compute: ComputeSettings = field(default_factory=ComputeSettings)

    def engine_config(self, member_ids: Sequence[int], stride: int) -> EngineConfig:
        """Settings of an engine; all members share one context."""
        return EngineConfig(
            members=len(member_ids),
            seed=self.seed,
            member_ids=tuple(member_ids),
            context_ids=(0,) * len(member_ids),
            counterfactuals=CounterfactualConfig(stride=stride),
            **self.compute.compute(),
        )


# ---- what is run -------------------------------------------------------------------------------


def describe_audit(
    spec: TaskSpec, settings: AuditSettings, preset: Preset, data: TaskData
) -> tuple[TaskSpec, AuditInfo]:
    """Choose the topologies of a task and measure their sizes.

    Returns the task with the contexts of the audit, too.
    """
    spec = replace(spec, context=preset.spec)
    engine = VectorizedEngine(spec, settings.engine_config((0,), stride=1), data=data)
    population, context = engine.env.model, engine.context
    space = TopologySpace(
        population.blueprints, population.network.fits_SK, context.costs, context.training_costs
    )
    topologies = choose_topologies(space, settings.topologies, settings.seed)
    sizes = [space.size(topology) for topology in topologies]
    return spec, AuditInfo(
        task=spec.name,
        seed=settings.seed,
        contexts=settings.contexts,
        hosts=settings.hosts,
        spec=preset.spec,
        slots=population.slots,
        blueprints=population.blueprints,
        topologies=topologies,
        host_params=context.costs.host_params,
        host_macs=context.costs.host_macs,
        params=tuple(size.params for size in sizes),
        macs=tuple(size.macs for size in sizes),
        cost=tuple(size.cost for size in sizes),
        classes=spec.num_classes,
        samples=len(data.train),
        steps=spec.episode_length,
        constants=spec.score,
        device=describe_device(engine.device)["device"],
        versions={"esper": esper.__version__, "torch": version("torch")},
        budgets=preset.budgets,
        grown=grown_topologies(len(topologies), settings.grown),
        settings=_other_settings(spec, settings, engine),
    )


def _other_settings(
    spec: TaskSpec, settings: AuditSettings, engine: VectorizedEngine
) -> dict[str, str]:
    return {
        "batch_size": str(spec.batch_size),
        "batches_per_step": str(spec.batches_per_step),
        "optim": json.dumps(to_json(spec.optim)),
        "augmentation": spec.augmentation,
        "data": settings.data,
        "precision": engine.precision,
        "profile": settings.compute.profile,
        "executor": settings.compute.executor,
        "kernels": settings.compute.kernels,
        "fullest_cost": repr(engine.context.limits.fullest_cost),
    }


def grown_topologies(topologies: int, grown: int) -> tuple[int, ...]:
    """Numbers of the topologies to grow, spread over all but the host.

    >>> grown_topologies(9, 3)
    (1, 4, 8)
    """
    if grown > topologies - 1:
        raise EsperError(
            f"--grown {grown}: the audit has {topologies - 1} topologies besides the host"
        )
    return tuple(np.linspace(1, topologies - 1, grown).astype(int).tolist())


@dataclass(frozen=True, slots=True)
class Chunk:
    """Members of one population: every host with every topology."""

    hosts: tuple[int, ...]
    topologies: tuple[int, ...]

    @property
    def member_ids(self) -> tuple[int, ...]:
        """Host of every member, topology by topology."""
        return self.hosts * len(self.topologies)


def make_chunks(
    topologies: Sequence[int], cost: Sequence[float], hosts: int, envs: int
) -> list[Chunk]:
    """Divide hosts and topologies into populations of at most `envs` members.

    >>> [c.topologies for c in make_chunks([0, 1, 2], [1.0, 3.0, 2.0], hosts=2, envs=4)]
    [(0, 2), (1,)]
    """
    by_cost = sorted(topologies, key=lambda k: (cost[k], k))
    at_once = max(1, envs // hosts)
    parts = np.array_split(by_cost, -(-len(by_cost) // at_once)) if by_cost else []
    blocks = np.array_split(np.arange(hosts), -(-hosts // envs))
    return [Chunk(tuple(b.tolist()), tuple(p.tolist())) for p in parts for b in blocks]


@dataclass(frozen=True, slots=True)
class Piece:
    """One episode of a population."""

    context: int
    grown: bool
    chunk: Chunk
    work: float
    """Compute of all members, masked ones included, in training runs of the host."""


class AuditListener(EngineListener, Protocol):
    """Listener that also receives the start of each piece."""

    def on_piece(self, piece: Piece) -> None:
        """Before the episode of a piece."""
        ...


def plan_pieces(spec: TaskSpec, info: AuditInfo, envs: int, folder: AuditFolder) -> list[Piece]:
    """All that is missing in a folder, in the order to run."""
    pieces = []
    fullest = float(info.settings["fullest_cost"])
    for context in range(info.contexts):
        drawn_from = context_spec(info.spec, info.budgets, context)
        budget = draw_round(drawn_from, spec, info.seed, context, fullest).budget
        for grown in (False, True):
            chosen = info.grown if grown else range(len(info.topologies))
            if not folder.has(context, grown):
                for chunk in make_chunks(chosen, info.cost, info.hosts, envs):
                    cheapest = 1.0 if grown else min(info.cost[k] for k in chunk.topologies)
                    members = len(chunk.member_ids)
                    pieces.append(Piece(context, grown, chunk, members * budget / cheapest))
    return pieces


# ---- running -----------------------------------------------------------------------------------


def run_pieces(
    runner: AuditRunner,
    folder: AuditFolder,
    pieces: Sequence[Piece],
    listener: AuditListener | None = None,
    done: Callable[[ContextRows, bool], None] | None = None,
) -> None:
    """Run the pieces and write each context when it is complete; `done`: called after that."""
    for group in grouped_pieces(pieces):
        begin = None if listener is None else listener.on_piece
        rows, grown = run_group(runner, group, listener, begin), group[0].grown
        folder.write(rows, grown)
        if done is not None:
            done(rows, grown)


def grouped_pieces(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces of each context, planted and grown apart."""
    groups: dict[tuple[int, bool], list[Piece]] = {}
    for piece in pieces:
        groups.setdefault((piece.context, piece.grown), []).append(piece)
    return list(groups.values())


def run_group(
    runner: AuditRunner,
    group: Sequence[Piece],
    listener: EngineListener | None = None,
    begin: Callable[[Piece], None] | None = None,
) -> ContextRows:
    """Run all pieces of a context; `begin`: called before each."""
    parts = []
    for piece in group:
        if begin is not None:
            begin(piece)
        parts.append((piece.chunk, runner.run(piece, listener)))
    return _combine(parts, runner.info.hosts)


class AuditRunner:
    """Runs pieces of an audit."""

    def __init__(
        self, spec: TaskSpec, info: AuditInfo, settings: AuditSettings, data: TaskData
    ) -> None:
        """`spec`, `info`: from `describe_audit`."""
        self.spec, self.info, self.settings, self.data = spec, info, settings, data
        self._engines: dict[tuple[tuple[int, ...], int], VectorizedEngine] = {}

    def run(self, piece: Piece, listener: EngineListener | None = None) -> ContextRows:
        """Train one population; the rows are those of its hosts and topologies."""
        info, chunk = self.info, piece.chunk
        engine = self._engine(chunk.member_ids, self._stride(piece.grown))
        if engine.device.type == "cuda":
            # SYNC: between episodes. Other processes may need what the last piece had cached.
            torch.cuda.empty_cache()
        engine.round = piece.context
        engine.context.spec = context_spec(info.spec, info.budgets, piece.context)
        end = _EndOfEpisode(engine, listener)
        policy = self._policy(chunk, piece.grown)
        outcome = engine.run_rollout(policy, end).outcome
        return _rows_of(engine, end, chunk, outcome.accuracy_E, piece.context)

    def _stride(self, grown: bool) -> int:
        """Steps between measurements of contributions: planted seeds need only the last one."""
        return 1 if grown else max(1, self.info.steps - 1)

    def _engine(self, member_ids: tuple[int, ...], stride: int) -> VectorizedEngine:
        key = (member_ids, stride)
        engine = self._engines.pop(key, None)
        if engine is None:
            while len(self._engines) >= MAX_ENGINES:
                del self._engines[next(iter(self._engines))]
            config = self.settings.engine_config(member_ids, stride)
            engine = VectorizedEngine(self.spec, config, data=self.data)
        self._engines[key] = engine
        return engine

    def _policy(self, chunk: Chunk, grown: bool) -> PolicyProtocol[Any]:
        info = self.info
        each = [info.topologies[k] for k in chunk.topologies for _ in chunk.hosts]
        if grown:
            return GrownTopologies(each, info.slots)
        known = {name: kind for kind, name in enumerate(info.blueprints)}
        kinds_ES = np.array([[known.get(name, -1) for name in topology] for topology in each])
        return PlannedTopology(kinds_ES.reshape(len(each), len(info.slots)).astype(np.int64))


class _EndOfEpisode(ForwardingListener):
    """Listener that collects what the histories of an episode do not hold, and passes all on."""

    def __init__(self, engine: VectorizedEngine, listener: EngineListener | None) -> None:
        assert engine.context.clock is not None  # audits have a compute clock
        super().__init__(listener)
        self._clock = engine.context.clock
        self.compute: list[Doubles] = [np.zeros(engine.env.members)]
        """Compute spent at each observation."""
        self.slots: SlotReports | None = None
        """Slots as last observed."""

    def on_step(self, record: StepRecord) -> None:
        """Keep compute and slots."""
        self.compute.append(self._clock.runs_E.copy())
        self.slots = record.signals.slots
        super().on_step(record)


# ---- rows --------------------------------------------------------------------------------------


def _rows_of(
    engine: VectorizedEngine,
    end: _EndOfEpisode,
    chunk: Chunk,
    accuracy_E: Doubles,
    context: int,
) -> ContextRows:
    """Rows of the members of an engine that ended an episode."""
    episode, slots = engine.episode, end.slots
    assert slots is not None  # an episode has at least one step
    accuracy_TE = episode.score_accuracy_TE.copy()
    accuracy_TE[-1] = accuracy_E  # differs where the last step was rolled back
    return ContextRows(
        drawn=_drawn(engine, context),
        topology_K=np.array(chunk.topologies, dtype=np.int64),
        accuracy_HKT=_by_host(accuracy_TE.T, chunk),
        control_HKT=_by_host(episode.accuracy_TE.T, chunk),
        loss_HKT=_by_host(episode.loss_TE.T, chunk),
        train_loss_HKT=_by_host(episode.train_loss_TE.T, chunk),
        compute_HKT=_by_host(np.stack(end.compute).T, chunk),
        test_HK=_by_host(engine.test(), chunk),
        contribution_HKS=_by_host(slots.contribution_ES, chunk),
        alpha_HKS=_by_host(slots.alpha_ES, chunk),
        rollbacks_HK=_by_host(engine.env.governor.rollbacks_E, chunk).astype(np.int64),
    )


def _drawn(engine: VectorizedEngine, context: int) -> DrawnContext:
    state = engine.context
    return DrawnContext(
        context=context,
        budget=state.round.budget,
        groups=state.chance.groups,
        samples=state.samples,
        learning_rate=float(state.members.learning_rate_E[0]),
        pixel_noise=state.round.pixel_noise,
        permuted=state.round.permuted,
        label_noise=state.round.label_noise,
    )


def _by_host(values: Floats | Doubles | Ints, chunk: Chunk) -> Floats:
    """Values `[E, ...]` of members as `[H, K, ...]`."""
    grid = (len(chunk.topologies), len(chunk.hosts), *values.shape[1:])
    return np.ascontiguousarray(values.reshape(grid).swapaxes(0, 1), dtype=np.float32)


def _combine(parts: Sequence[tuple[Chunk, ContextRows]], hosts: int) -> ContextRows:
    """The rows of all populations of a context, topologies in order."""
    topology_K = np.unique(np.concatenate([rows.topology_K for _, rows in parts]))
    place = {int(k): at for at, k in enumerate(topology_K)}
    first = parts[0][1]
    arrays: dict[str, Any] = {}
    for name in (f for f in ContextRows.__dataclass_fields__ if "_HK" in f):
        like = getattr(first, name)
        whole = np.empty((hosts, len(topology_K), *like.shape[2:]), dtype=like.dtype)
        for chunk, rows in parts:
            whole[np.ix_(chunk.hosts, [place[k] for k in chunk.topologies])] = getattr(rows, name)
        arrays[name] = whole
    return ContextRows(first.drawn, topology_K, **arrays)
