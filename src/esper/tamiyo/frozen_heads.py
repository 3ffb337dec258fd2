"""Action heads that are frozen to one choice: which may be, and how they are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEAD_CHOICES,
    TEMPOS,
    ActionHead,
    AlphaCurve,
    BlendStyle,
)
from esper.leyline.errors import EsperError, shown, unknown_name

FrozenHeads = tuple[tuple[ActionHead, int], ...]
"""Heads, and the index of their choice."""
Frozen = Literal["plain"] | Mapping[str, str | int | float]
"""The same by name, as people write it."""
PLAIN: Final = "plain"
PLAIN_BLEND: Final[FrozenHeads] = (
    (ActionHead.STYLE, int(BlendStyle.ADD)),
    (ActionHead.TEMPO, TEMPOS.index(3)),
    (ActionHead.ALPHA_TARGET, ALPHA_TARGETS.index(1.0)),
    (ActionHead.ALPHA_SPEED, ALPHA_SPEEDS.index(0)),
    (ActionHead.ALPHA_CURVE, int(AlphaCurve.LINEAR)),
)
"""Freezes how seeds blend: added, fully blended within three steps, pruned at once. The policy
still chooses what to grow, where and when."""
UNFREEZABLE_HEADS: Final = frozenset({ActionHead.OP, ActionHead.SLOT})


def check_frozen(frozen: Mapping[ActionHead, int], blueprints: int) -> None:
    """Raise for a head that cannot be frozen, or an index out of its range."""
    for head, index in frozen.items():
        if head in UNFREEZABLE_HEADS:
            name = ActionHead(head).name
            raise EsperError(f"frozen head {name}: only the heads after SLOT can be frozen")
        count = blueprints if head == ActionHead.BLUEPRINT else len(HEAD_CHOICES[head])
        if index not in range(count):
            name = ActionHead(head).name
            raise EsperError(f"frozen head {name}: index {index}, valid are 0 to {count - 1}")


def read_frozen(given: Frozen | None, blueprints: tuple[str, ...]) -> FrozenHeads:
    """Heads and indices of choices given by name.

    >>> read_frozen({"tempo": 3}, ()) == ((ActionHead.TEMPO, 0),)
    True
    """
    if given is None:
        return ()
    if isinstance(given, str):
        if given != PLAIN:
            raise unknown_name("frozen_heads", given, (PLAIN,), "or a dict")
        return PLAIN_BLEND
    if not isinstance(given, Mapping):
        raise EsperError(f"frozen_heads={shown(given)}: give 'plain' or a dict, head to choice")
    heads = {head.name.lower(): head for head in ActionHead}
    frozen = []
    for name, choice in given.items():
        if name not in heads:
            raise unknown_name("head", str(name), heads, "of frozen_heads")
        head = heads[name]
        choices = blueprints if head is ActionHead.BLUEPRINT else HEAD_CHOICES.get(head, ())
        if choices and str(choice) not in choices:
            raise unknown_name(f"choice of {name}", str(choice), choices, "in frozen_heads")
        frozen.append((head, choices.index(str(choice)) if choices else 0))
    return tuple(frozen)
