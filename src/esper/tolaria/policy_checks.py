"""Did the policy answer as agreed? What it hands back is checked before the engine goes on with it.

Shape letters: E members.
"""

from __future__ import annotations

from typing import Any

from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import PolicyProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.leyline.signals import TrainingSignals


def checked_decision(
    client: PolicyProtocol[Any], signals: TrainingSignals, masks: ActionMasks, state: Any
) -> tuple[PolicyDecision, Any]:
    """What `act` decided for every member, and its new state."""
    answer: object = client.act(signals, masks, state)
    wanted = "a pair (PolicyDecision, policy state)"
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise _wrong(client, "act", _said(answer), wanted)
    decision, state = answer
    if not isinstance(decision, PolicyDecision):
        raise _wrong(client, "act", f"{_said(decision)} first", wanted)
    members, found = len(masks.op_EO), decision.actions.members
    if found != members:
        raise _wrong(client, "act", f"a decision for E = {found}", f"one for E = {members}")
    return decision, state


def checked_rewards(client: PolicyProtocol[Any], inputs: RewardInputs) -> RewardComponentsTelemetry:
    """What `store` paid every member."""
    rewards: object = client.store(inputs, inputs.terminal)
    if not isinstance(rewards, RewardComponentsTelemetry):
        wanted = "RewardComponentsTelemetry (without a reward: RewardComponentsTelemetry.of({}, E))"
        raise _wrong(client, "store", _said(rewards), wanted)
    members, found = inputs.members, rewards.value_PE.shape[1]
    if found != members:
        raise _wrong(client, "store", f"rewards for E = {found}", f"rewards for E = {members}")
    return rewards


def _wrong(client: object, method: str, found: str, wanted: str) -> EsperError:
    return EsperError(f"{type(client).__name__}.{method} returned {found}: return {wanted}")


def _said(answer: object) -> str:
    """An answer of the wrong kind, in few words."""
    if isinstance(answer, tuple):
        return f"a tuple of {len(answer)}"
    return "None" if answer is None else f"an object of type {type(answer).__name__}"
