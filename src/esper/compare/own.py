"""Policies in a user's file: what makes one, and the task and population its class asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from esper.leyline.errors import EsperError, shown, unknown_name
from esper.leyline.user_errors import user_code
from esper.simic.training.config import PopulationConfig
from esper.tamiyo.frozen_heads import read_frozen
from esper.tamiyo.grammar import ParsedPolicy
from esper.tamiyo.make_policy import with_plan_phase
from esper.tamiyo.policy import Policy
from esper.tasks.spec import TaskSpec
from esper.tasks.user_objects import UserFiles


def own_policy(files: UserFiles, parsed: ParsedPolicy) -> Callable[[], Policy]:
    """What makes a policy of the user's; runs the file."""
    found = files.find(parsed.text)
    if not callable(found):
        raise EsperError(f"policy {shown(parsed.text)}: name a class derived from esper.Policy")

    def make() -> Policy:
        what = f"policy {shown(parsed.text)} cannot be made"
        with user_code(what, "it is called without arguments", TypeError):
            policy = found()
        if not isinstance(policy, Policy):
            raise EsperError(
                f"policy {shown(parsed.text)}: {type(policy).__name__} is not an esper.Policy; "
                f"derive its class from that"
            )
        return policy

    return make


def own_settings(
    policy: Policy, parsed: ParsedPolicy, spec: TaskSpec, population: PopulationConfig
) -> tuple[TaskSpec, PopulationConfig]:
    """The task and population with the plan phase and limits of the policy's class."""
    spec = with_plan_phase(spec) if policy.plans else spec
    for name in policy.blueprints:
        if name not in spec.blueprints:
            raise unknown_name("blueprint", name, spec.blueprints, f"of {parsed.text}")
    spec = replace(spec, blueprints=policy.blueprints or spec.blueprints)
    population = replace(
        population,
        frozen_heads=read_frozen(policy.frozen_heads, spec.blueprints),
        counterfactual_stride=policy.counterfactual_stride,
    )
    population.check(spec)
    return spec, population
