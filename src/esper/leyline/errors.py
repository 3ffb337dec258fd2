"""How Esper refuses: one line that names the value, where it came from and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EsperError(ValueError):
    """A request that cannot be carried out; nothing was changed."""


class UnknownNameError(EsperError):
    """A name that no registry, host or table knows."""


class IllegalActionError(EsperError):
    """A lifecycle operation that the stage or a gate does not allow."""


class ShapeError(EsperError):
    """A segment or seed whose output does not have the promised shape."""


def unknown_name(
    kind: str, name: object, valid: Iterable[str], where: str = ""
) -> UnknownNameError:
    """Build the error for an unknown name: the value, the nearest valid name, all valid names.

    >>> str(unknown_name("blueprint", "conv_hevy", ["norm", "conv_heavy"]))
    "unknown blueprint 'conv_hevy': did you mean 'conv_heavy'? valid: norm, conv_heavy"
    """
    choices = list(valid)
    near = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    place = f" {where}" if where else ""
    return UnknownNameError(
        f"unknown {kind} {str(name)!r}{place}: {hint}valid: {', '.join(choices) or 'none'}"
    )
