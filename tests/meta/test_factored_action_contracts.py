"""One table of operations and heads; masks, network, execution and telemetry all follow it."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.kasmina import Population
from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.leyline import (
    ActionHead,
    ActionMasks,
    ActionSpec,
    AlphaCurve,
    BlendStyle,
    LifecycleOp,
    SeedStage,
)
from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEAD_CHOICES,
    HEADS_BY_OP,
    SLOT_OPS,
    TEMPOS,
)
from esper.leyline.payloads import PPOUpdateMetrics
from esper.simic.agent import PPOConfig
from esper.simic.telemetry import round_totals
from esper.tamiyo import PolicyNetwork, actions, build_masks, heads, parse_sampled_action
from esper.tamiyo.heads import Chooser
from esper.tamiyo.inputs import FIXED_HEADS, MaskTensors, PolicyInputs
from esper.tolaria.action_execution import execute_actions
from payload_support import build
from ppo_support import EVERY_OP, SMALL, D, F, G, K, S, masks_for
from support import batch, bring_to, make_population
from tamiyo_support import observe

SOURCE = Path(__file__).resolve().parents[2] / "src" / "esper"
H, Op = ActionHead, LifecycleOp
HOST_HEADS = {H.SLOT, H.BLUEPRINT}
"""Heads whose choices the host decides."""

DESIGN = {
    Op.WAIT: "OP",
    Op.GERMINATE: "OP SLOT BLUEPRINT STYLE TEMPO ALPHA_TARGET ALPHA_CURVE",
    Op.ADVANCE: "OP SLOT",
    Op.FOSSILIZE: "OP SLOT",
    Op.SET_ALPHA_TARGET: "OP SLOT ALPHA_TARGET ALPHA_SPEED ALPHA_CURVE",
    Op.PRUNE: "OP SLOT ALPHA_SPEED ALPHA_CURVE",
    Op.PLANT: "OP SLOT BLUEPRINT",
    Op.STOP: "OP",
    Op.CLOSE: "OP SLOT",
    Op.RESTART: "OP",
}
"""The table of the design, word for word."""


# ---- the tables themselves --------------------------------------------------------------------


def test_the_table_is_the_designs():
    assert list(HEADS_BY_OP) == list(Op)
    wanted = {op: {H[name] for name in names.split()} for op, names in DESIGN.items()}
    assert dict(HEADS_BY_OP) == wanted


def test_operations_and_heads_count_from_0_without_gaps():
    """They are indices into arrays."""
    for enum in (Op, H, BlendStyle, AlphaCurve):
        assert [int(item) for item in enum] == list(range(len(enum)))


def test_choices_are_those_of_the_enums_and_value_tables():
    assert list(HEAD_CHOICES) == [head for head in H if head not in HOST_HEADS]
    assert HEAD_CHOICES[H.OP] == tuple(op.name for op in Op)
    assert HEAD_CHOICES[H.STYLE] == tuple(style.name for style in BlendStyle)
    assert HEAD_CHOICES[H.ALPHA_CURVE] == tuple(curve.name for curve in AlphaCurve)
    values = {H.TEMPO: TEMPOS, H.ALPHA_TARGET: ALPHA_TARGETS, H.ALPHA_SPEED: ALPHA_SPEEDS}
    for head, table in values.items():
        assert tuple(type(table[0])(text) for text in HEAD_CHOICES[head]) == table


def test_every_head_counts_for_some_operation_and_those_on_the_whole_member_ask_for_none():
    assert frozenset().union(*HEADS_BY_OP.values()) == set(H)
    for op, counting in HEADS_BY_OP.items():
        assert H.OP in counting
        whole = op in (Op.WAIT, Op.STOP, Op.RESTART)
        assert (H.SLOT in counting) == (not whole) == (op in SLOT_OPS)


OWNED = (
    "LifecycleOp", "ActionHead", "BlendStyle", "AlphaCurve", "HEADS_BY_OP", "HEAD_CHOICES",
    "TEMPOS", "ALPHA_TARGETS", "ALPHA_SPEEDS", "HEAD_USED_OA", "ActionSpec", "ActionMasks",
)  # fmt: skip


def defined_in(path: Path) -> list[str]:
    """Names a module defines at its top level."""
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names.append(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def test_each_table_is_defined_once():
    defined = Counter(name for path in SOURCE.rglob("*.py") for name in defined_in(path))
    assert {name: defined[name] for name in OWNED} == dict.fromkeys(OWNED, 1)
    assert heads.HEAD_USED_OA is round_totals.HEAD_USED_OA is actions.HEAD_USED_OA


def test_the_array_is_the_table():
    for op in Op:
        for head in H:
            assert actions.HEAD_USED_OA[op, head] == (head in HEADS_BY_OP[op])


# ---- what follows it --------------------------------------------------------------------------


def test_an_action_has_one_field_per_head_in_order():
    assert [f.name for f in fields(ActionSpec)] == [head.name.lower() for head in H]
    spec = parse_sampled_action(np.array([[1, 0, 1, 2, 1, 2, 3, 4]]))
    assert [int(spec.of(head)[0]) for head in H] == [1, 0, 1, 2, 1, 2, 3, 4]


def test_masks_have_one_field_per_head_in_order():
    assert [f.name.rpartition("_")[0] for f in fields(ActionMasks)] == [h.name.lower() for h in H]
    legal_ESO, fits_ESK = np.ones((2, S, len(Op)), dtype=bool), np.ones((2, S, K), dtype=bool)
    made = build_masks(legal_ESO, fits_ESK)
    sizes = {head: getattr(made, f.name).shape[-1] for head, f in zip(H, fields(made), strict=True)}
    wanted = {head: len(HEAD_CHOICES[head]) for head in HEAD_CHOICES}
    assert sizes == wanted | {H.SLOT: S, H.BLUEPRINT: K}


@pytest.mark.parametrize("head", [head for head in HEAD_CHOICES if head is not H.OP])
def test_a_mask_of_another_size_is_refused(head):
    letter = next(f.name for f in fields(ActionMasks) if f.name.startswith(head.name.lower()))[-1]
    with pytest.raises(Exception, match=f"choices for {head.name}"):
        build(ActionMasks, **{letter: len(HEAD_CHOICES[head]) + 1})


def network() -> PolicyNetwork:
    torch.manual_seed(0)
    return PolicyNetwork(EVERY_OP, SMALL)


def test_the_network_has_one_head_each_with_its_choices():
    made = network().heads
    assert list(made.hidden) == list(made.output) == [head.name for head in H]
    for head, choices in HEAD_CHOICES.items():
        assert made.output[head.name].out_features == len(choices)
    assert set(FIXED_HEADS) == set(H) - HOST_HEADS - {H.OP}
    assert torch.equal(made.head_used_OA, torch.from_numpy(actions.HEAD_USED_OA))
    later_heads_hear = {H[name] for name in made.embed} | HOST_HEADS
    assert later_heads_hear == set(H) - {list(H)[-1]}


@pytest.mark.parametrize("op", Op)
def test_the_network_counts_the_heads_of_the_operation(op):
    masks = masks_for(np.ones((3, len(Op), S), dtype=bool), ops=(op,))
    inputs = PolicyInputs(
        torch.randn(3, G),
        torch.randn(3, S, F),
        torch.randn(3, S, K, D),
        torch.zeros(3, S, dtype=torch.int64),
        MaskTensors(**{n: torch.tensor(a) for n, a in MaskTensors.arrays(masks).items()}),
    )
    made = network()
    needed = heads.required_heads(masks.op_EO[0])
    assert needed == HEADS_BY_OP[op]
    chooser = Chooser(uniform_A=torch.rand(3, len(H)))
    out, _ = made.step(inputs, made.initial_state(3), torch.tensor(0.0), chooser, set(H))
    used_A = torch.from_numpy(actions.HEAD_USED_OA[op])
    assert torch.equal(out.choices.used_A, used_A.expand(3, -1))
    assert (out.choices.log_prob_A[:, ~used_A] == 0).all()
    assert (out.choices.entropy_A[:, ~used_A] == 0).all()
    free = [head for head in HEADS_BY_OP[op] if head is not H.OP]
    assert (out.choices.entropy_A[:, free] > 0).all()


def test_the_learner_has_one_figure_per_head():
    assert len(PPOConfig().head_entropy) == len(H)
    assert len(build(PPOUpdateMetrics, {"head_entropy": (0.0,) * len(H)}).head_entropy) == len(H)
    stats = round_totals.MaskStats.none()
    assert {len(getattr(stats, f.name)) for f in fields(stats)} == {len(H)}


# ---- what is carried out ----------------------------------------------------------------------

HEAD_OF_ARGUMENT = {
    "slot": H.SLOT,
    "slots": H.SLOT,
    "blueprint": H.BLUEPRINT,
    "style": H.STYLE,
    "tempo": H.TEMPO,
    "alpha_target": H.ALPHA_TARGET,
    "target": H.ALPHA_TARGET,
    "speed": H.ALPHA_SPEED,
    "curve": H.ALPHA_CURVE,
}


NOT_OF_AN_ACTION = {Op.PLANT: {"style", "prunable"}}
"""Arguments for callers other than the controller."""


@pytest.mark.parametrize("op", [op for op in Op if op is not Op.WAIT])
def test_a_population_takes_the_heads_of_the_operation(op):
    owner = Lifecycle if op in (Op.STOP, Op.CLOSE) else Population
    taken = inspect.signature(getattr(owner, op.name.lower())).parameters
    others = {"self", "members"} | NOT_OF_AN_ACTION.get(op, set())
    wanted = [HEAD_OF_ARGUMENT[name] for name in taken if name not in others]
    assert {H.OP, *wanted} == HEADS_BY_OP[op]
    assert len(wanted) == len(set(wanted))


def test_legal_operations_are_the_operations():
    population = make_population(members=2)
    assert population.lifecycle.legal_ops().shape == (2, len(population.slots), len(Op))


READY = {
    Op.WAIT: SeedStage.HOLDING,
    Op.GERMINATE: None,
    Op.ADVANCE: SeedStage.TRAINING,
    Op.SET_ALPHA_TARGET: SeedStage.HOLDING,
    Op.PRUNE: SeedStage.HOLDING,
    Op.FOSSILIZE: SeedStage.HOLDING,
    Op.PLANT: None,
    Op.STOP: None,
    Op.CLOSE: None,
    Op.RESTART: SeedStage.HOLDING,
}
"""The stage two slots are in, so that either may be meant."""


FREE_HEADS = [head for head in H if head is not H.OP]


@cache
def after(op: LifecycleOp) -> dict[str, np.ndarray]:
    """All lifecycle facts after an action, its heads at 0 (speed: at 1), and changed in one head
    for each further member."""
    members = 1 + len(FREE_HEADS)
    population = make_population(members=members)
    population.forward(batch(members)[0])
    life, stage = population.lifecycle, READY[op]
    life.action_space, life.planning = "full+restart", op is Op.PLANT
    life.trained_E[:] = life.restartable_E[:] = True
    for slot in population.slots[:2] if stage is not None else ():
        bring_to(population, stage, list(range(members)), slot)
    indices = {head: np.zeros(members, dtype=np.int64) for head in H}
    indices[H.OP][:], indices[H.ALPHA_SPEED][:] = int(op), 1
    for member, head in enumerate(FREE_HEADS, start=1):
        indices[head][member] += 1
    nobody_E = np.zeros(members, dtype=bool)
    action = ActionSpec(*indices.values())
    result = execute_actions(population, action, observe(population), nobody_E)
    assert result.outcome.executed.all()
    return life.arrays()


@pytest.mark.parametrize("op", Op, ids=lambda op: op.name)
@pytest.mark.parametrize("head", FREE_HEADS, ids=lambda h: h.name)
def test_a_head_changes_what_happens_exactly_where_it_counts(op, head):
    found, other = after(op), 1 + FREE_HEADS.index(head)
    assert all(len(array) == 1 + len(FREE_HEADS) for array in found.values())
    same = all(np.array_equal(a[0], a[other], equal_nan=True) for a in found.values())
    assert same == (head not in HEADS_BY_OP[op])
