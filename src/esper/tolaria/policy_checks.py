"""Validation of what a policy's `act` and `store` return.

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
    """Call `act`; returns the decision and the new policy state, or raises if malformed."""
    returned: object = client.act(signals, masks, state)
    expected = "a pair (PolicyDecision, policy state)"
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise _invalid_return(client, "act", _describe_value(returned), expected)
    decision, state = returned
    if not isinstance(decision, PolicyDecision):
        raise _invalid_return(client, "act", f"{_describe_value(decision)} first", expected)
    members, found = len(masks.op_EO), decision.actions.members
    if found != members:
        raise _invalid_return(
            client, "act", f"a decision for E = {found}", f"one for E = {members}"
        )
    return decision, state


def checked_rewards(client: PolicyProtocol[Any], inputs: RewardInputs) -> RewardComponentsTelemetry:
    """Call `store`; returns the rewards, or raises if malformed."""
    rewards: object = client.store(inputs, inputs.terminal)
    if not isinstance(rewards, RewardComponentsTelemetry):
        expected = (
            "RewardComponentsTelemetry (without a reward: RewardComponentsTelemetry.of({}, E))"
        )
        raise _invalid_return(client, "store", _describe_value(rewards), expected)
    members, found = inputs.members, rewards.value_PE.shape[1]
    if found != members:
        raise _invalid_return(
            client, "store", f"rewards for E = {found}", f"rewards for E = {members}"
        )
    return rewards


def _invalid_return(client: object, method: str, found: str, expected: str) -> EsperError:
    return EsperError(f"{type(client).__name__}.{method} returned {found}: return {expected}")


def _describe_value(value: object) -> str:
    """Short description of an unexpected return value."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"an object of type {type(value).__name__}"
