"""Policies of your own in a comparison: a class of a Python file that the command line names."""

from __future__ import annotations

from collections.abc import Callable

from esper.leyline.errors import EsperError, shown
from esper.leyline.user_errors import user_code
from esper.tamiyo.grammar import ParsedPolicy
from esper.tamiyo.policy import Policy
from esper.tasks.user_objects import UserFiles


def own_policy(files: UserFiles, parsed: ParsedPolicy) -> tuple[Callable[[], Policy], Policy]:
    """What makes the policy, and one that it made; runs the file."""
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

    return make, make()
