"""What does a policy's name mean, on a command line of `train`, `compare` or a benchmark?

    wait   random   heuristic
    wait:FACTOR                                 the host alone, trained FACTOR times as long
    heuristic:BLUEPRINT,BLUEPRINT               with an order of blueprints of its own
    fixed[:BLUEPRINT[@STEP][:SLOT,SLOT]]        grown from a step on (2), in all slots or these
    fixed:SLOT=BLUEPRINT,...[@STEP]             the same, each slot with a blueprint of its own
    static-full[:BLUEPRINT[:SLOT,SLOT]]         there from the start
    static-final:SLOT=BLUEPRINT,...             a topology that was found, there from the start
    static-final:RESULT.json                    the most frequent one at the end of that run
    static-final:POLICY                         host by host, what that policy ended with there
    FOLDER   sampled:FOLDER                     a saved controller; its likeliest actions, or drawn
    LABEL=any of these                          how tables and pictures call it

Only the words are read here: nothing is loaded, and no torch. `make_policy.py` builds what they
name; controllers and static-final:POLICY need a run, so only `compare` can build them.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from esper.leyline.errors import EsperError, UnknownNameError, shown, unknown_name
from esper.storage.atomic import printable

Kind = Literal["wait", "random", "heuristic", "fixed", "static-full", "static-final", "controller"]
DESCRIPTIONS: Final[dict[Kind, tuple[str, str]]] = {
    "wait": (
        "nothing is grown; wait:FACTOR trains the host FACTOR times as long",
        "wait:1.2",
    ),
    "random": ("any legal action", "random"),
    "heuristic": (
        "seeds as early as may be, kept if they are worth their price",
        "heuristic:conv_light,depthwise",
    ),
    "fixed": (
        "blueprints from a given step on, in all slots or those named",
        "fixed:conv_heavy@2:r0c0,r0c1",
    ),
    "static-full": (
        "one blueprint in all slots or those named, there from the start",
        "static-full:depthwise:r0c0,r0c1",
    ),
    "static-final": (
        "a topology that was found, there from the start",
        "static-final:r0c0=depthwise,r0c1=conv_light",
    ),
}
"""Policies that do not learn: what each does, and an example."""
WORDS: Final[tuple[Kind, ...]] = tuple(DESCRIPTIONS)
LONGEST_WAIT: Final = 100.0
"""Most times the episode that the host alone may train."""
SAMPLED: Final = "sampled"
LONGEST_STEP: Final = 9
"""Digits of a step."""

_LABELLED: Final = re.compile(r"([^:=/@]+)=(.+)", re.DOTALL)
_TOPOLOGY: Final = re.compile(r"[^:=/@]*=")
"""How SLOT=BLUEPRINT,... begins."""


@dataclass(frozen=True, slots=True)
class ParsedPolicy:
    """A policy as it was asked for."""

    label: str
    """How tables and pictures call it."""
    text: str
    """What was written, without the label."""
    kind: Kind
    blueprint: str = "conv_heavy"
    """fixed, static-full: what is grown."""
    slots: tuple[str, ...] = ()
    """fixed, static-full: where; empty: everywhere."""
    start: int = 2
    """fixed: step at the end of which the first seed is germinated."""
    topology: tuple[str, ...] = ()
    """static-final, fixed: `slot=blueprint` words."""
    order: tuple[str, ...] = ()
    """heuristic: blueprints to try; empty: its own order."""
    longer: float = 1.0
    """wait: times the task's episode it trains."""
    found_by: ParsedPolicy | None = None
    """static-final: the policy whose final topologies are planted."""
    path: Path | None = None
    """controller: its folder; static-final: the result it is found in."""
    sampled: bool = False
    """controller: whether its actions are drawn."""


def parse_all(texts: Sequence[str]) -> list[ParsedPolicy]:
    """The policies in their order, each with a label of its own that can be printed and drawn.

    >>> [word.label for word in parse_all(["wait", "wait", "mine=random"])]
    ['wait', 'wait #2', 'mine']
    """
    words = [replace(word, label=printable(word.label)) for word in map(parse, texts)]
    seen = Counter[str]()
    for place, word in enumerate(words):
        seen[word.label] += 1
        if seen[word.label] > 1:
            words[place] = replace(word, label=f"{word.label} #{seen[word.label]}")
    return words


def parse(text: str) -> ParsedPolicy:
    """The policy a text names; what it cannot mean is refused in one line.

    >>> parse("fixed:norm@3:r0c0,r0c1").slots
    ('r0c0', 'r0c1')
    """
    label = None
    while labelled := _LABELLED.fullmatch(text):  # of several labels the first counts
        label, text = label or labelled[1], labelled[2]
    parsed = _parse_unlabelled(text)
    return parsed if label is None else replace(parsed, label=label)


def _parse_unlabelled(text: str) -> ParsedPolicy:
    head, mark, rest = text.partition(":")
    if mark and not rest:
        raise EsperError(f"policy {shown(text)}: nothing stands behind the colon; leave it out")
    plain: dict[str, ParsedPolicy] = {kind: ParsedPolicy(text, text, kind) for kind in WORDS}
    if head == "random":
        if rest:
            raise EsperError(f"policy {shown(text)}: random takes nothing behind it; write random")
        return plain[head]
    if head == "wait":
        return _parse_wait(plain[head], rest)
    if head == "heuristic":
        return _parse_heuristic(plain[head], rest)
    if head == "fixed":
        return _parse_fixed(plain[head], rest)
    if head == "static-full":
        return _with_places(plain[head], rest)
    if head == "static-final":
        return _parse_final(plain[head], rest)
    return _parse_controller(text)


def _parse_wait(word: ParsedPolicy, rest: str) -> ParsedPolicy:
    """FACTOR"""
    try:
        longer = float(rest or 1.0)
    except ValueError:
        longer = math.nan
    if not 0 < longer <= LONGEST_WAIT:  # NaN is refused, too
        raise EsperError(
            f"policy {shown(word.text)}: expected wait:FACTOR above 0 and up to {LONGEST_WAIT:g}, "
            f"for example wait:1.2 for the host alone trained 1.2 times as long"
        )
    return replace(word, longer=longer)


def _with_places(word: ParsedPolicy, rest: str) -> ParsedPolicy:
    """BLUEPRINT[:SLOT,SLOT]"""
    if not rest:
        return word
    blueprint, mark, slots = rest.partition(":")
    if not blueprint or (mark and not all(slots.split(","))):
        raise EsperError(
            f"policy {shown(word.text)}: expected {word.kind}:BLUEPRINT:SLOT,SLOT, for example "
            f"{word.kind}:conv_heavy:r0c0,r0c1"
        )
    return replace(word, blueprint=blueprint, slots=tuple(slots.split(",")) if mark else ())


def _parse_heuristic(word: ParsedPolicy, rest: str) -> ParsedPolicy:
    """BLUEPRINT,BLUEPRINT"""
    order = tuple(rest.split(",")) if rest else ()
    if not all(order):
        raise EsperError(
            f"policy {shown(word.text)}: expected heuristic:BLUEPRINT,BLUEPRINT, for example "
            f"heuristic:conv_light,depthwise"
        )
    return replace(word, order=order)


def _parse_fixed(word: ParsedPolicy, rest: str) -> ParsedPolicy:
    """BLUEPRINT[@STEP][:SLOT,SLOT] or SLOT=BLUEPRINT,...[@STEP]"""
    what, mark, slots = rest.partition(":")
    blueprint, at, step = what.partition("@")
    if "=" in blueprint:
        if mark:
            raise EsperError(
                f"policy {shown(word.text)}: its slots are named, leave {shown(mark + slots)}"
            )
        found = replace(word, topology=tuple(blueprint.split(",")))
    else:
        found = _with_places(word, f"{blueprint}{mark}{slots}")
    if not at:
        return found
    if not step.isdecimal() or len(step) > LONGEST_STEP:
        raise EsperError(
            f"policy {shown(word.text)}: step {shown(step)} is no whole number of at most "
            f"{LONGEST_STEP} digits; expected for example fixed:conv_heavy@2"
        )
    return replace(found, start=int(step))


def _parse_final(word: ParsedPolicy, rest: str) -> ParsedPolicy:
    """SLOT=BLUEPRINT,... or the path of a result, or a policy that grows."""
    if not rest:
        raise EsperError(
            "policy 'static-final': name a topology, for example static-final:r0c0=depthwise, the "
            "result of a run, static-final:out/train_heuristic_digits_impaired.json, or the policy "
            "that found it, static-final:heuristic or static-final:runs/RUN"
        )
    if _TOPOLOGY.match(rest) and not os.path.exists(rest):
        return replace(word, topology=tuple(rest.split(",")))
    if os.path.isfile(rest):
        return replace(word, path=Path(rest))
    if rest.endswith(".json"):
        raise EsperError(f"policy {shown(word.text)}: there is no file {shown(rest)}")
    grown_by, _, _ = rest.partition(":")
    if grown_by in ("wait", "static-full", "static-final"):  # before it is parsed: no nesting
        raise EsperError(
            f"policy {shown(word.text)}: {grown_by} does not grow; name a policy that does"
        )
    found_by = parse(rest)
    return replace(word, found_by=found_by)


def _parse_controller(text: str) -> ParsedPolicy:
    """FOLDER or sampled:FOLDER"""
    head, mark, rest = text.partition(":")
    sampled = bool(mark) and head == SAMPLED
    path = Path(rest if sampled else text)
    if not os.path.isdir(path) or not text:
        raise _no_such_policy(text, path, sampled)
    shown = "/".join(path.resolve().parts[-2:])
    label = f"{shown}, sampled" if sampled else shown
    return ParsedPolicy(label, text, "controller", path=path, sampled=sampled)


def _no_such_policy(text: str, path: Path, sampled: bool) -> EsperError:
    """A folder that is not there, or a word that is none."""
    if os.path.isfile(path):
        return EsperError(
            f"policy {shown(text)}: {shown(str(path))} is a file; give the folder of a controller"
        )
    if sampled or os.sep in text or text.startswith("."):
        return EsperError(
            f"policy {shown(text)}: there is no folder {shown(str(path))}; give the folder of a "
            f"saved controller, checkpoint or run"
        )
    unknown = unknown_name("policy", text.partition(":")[0], (*WORDS, f"{SAMPLED}:FOLDER"))
    return UnknownNameError(f"{unknown}, or the folder of a controller")
