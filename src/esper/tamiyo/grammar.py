"""Parser of policy names on the command line of `train`, `compare` and the benchmarks.

    wait   random   heuristic
    wait:FACTOR                                 the host alone, trained FACTOR times as long
    heuristic:BLUEPRINT,BLUEPRINT               the heuristic with this order of blueprints
    fixed[:BLUEPRINT[@STEP][:SLOT,SLOT]]        germinated from STEP (2) on, in all slots or these
    fixed:SLOT=BLUEPRINT,...[@STEP]             the same with one blueprint per slot
    static-full[:BLUEPRINT[:SLOT,SLOT]]         planted at the start, in all slots or these
    static-final:SLOT=BLUEPRINT,...             a given topology, planted at the start
    static-final:RESULT.json                    the most frequent final topology of that run
    static-final:POLICY                         the final topology of that policy on the same host
    FOLDER   sampled:FOLDER                     a saved controller; greedy, or sampled actions
    LABEL=any of these                          sets the label in tables and plots

Parsing loads nothing and does not import torch. `make_policy.py` builds the policies, except
controllers and static-final:POLICY, which only `compare` can build.
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
        "no growth; wait:FACTOR trains the host FACTOR times as long",
        "wait:1.2",
    ),
    "random": ("a random legal action", "random"),
    "heuristic": (
        "germinates early, keeps seeds whose contribution exceeds their cost",
        "heuristic:conv_light,depthwise",
    ),
    "fixed": (
        "given blueprints from a given step on, in all slots or those listed",
        "fixed:conv_heavy@2:r0c0,r0c1",
    ),
    "static-full": (
        "one blueprint planted at the start, in all slots or those listed",
        "static-full:depthwise:r0c0,r0c1",
    ),
    "static-final": (
        "a given topology, planted at the start",
        "static-final:r0c0=depthwise,r0c1=conv_light",
    ),
}
"""Description and example of each scripted policy."""
WORDS: Final[tuple[Kind, ...]] = tuple(DESCRIPTIONS)
MAX_WAIT_FACTOR: Final = 100.0
"""Largest FACTOR of wait:FACTOR."""
SAMPLED: Final = "sampled"
MAX_STEP_DIGITS: Final = 9
"""Most digits of a STEP."""

_LABELLED: Final = re.compile(r"([^:=/@]+)=(.+)", re.DOTALL)
_TOPOLOGY: Final = re.compile(r"[^:=/@]*=")
"""Start of SLOT=BLUEPRINT,..."""


@dataclass(frozen=True, slots=True)
class ParsedPolicy:
    """A policy name, parsed."""

    label: str
    """Name in tables and plots."""
    text: str
    """The name as given, without the label."""
    kind: Kind
    blueprint: str = "conv_heavy"
    """fixed, static-full: blueprint."""
    slots: tuple[str, ...] = ()
    """fixed, static-full: slots; empty: all."""
    start: int = 2
    """fixed: step of the first germination."""
    topology: tuple[str, ...] = ()
    """static-final, fixed: `slot=blueprint` words."""
    order: tuple[str, ...] = ()
    """heuristic: blueprints to try; empty: the default order."""
    longer: float = 1.0
    """wait: training length as a multiple of the task's episode."""
    found_by: ParsedPolicy | None = None
    """static-final: the policy whose final topologies are planted."""
    path: Path | None = None
    """controller: its folder; static-final: the result file."""
    sampled: bool = False
    """controller: sample actions instead of taking the greedy ones."""


def parse_all(texts: Sequence[str]) -> list[ParsedPolicy]:
    """Parse several names; labels are made unique and printable.

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
    """Parse a policy name; raises EsperError if it is invalid.

    >>> parse("fixed:norm@3:r0c0,r0c1").slots
    ('r0c0', 'r0c1')
    """
    label = None
    while labelled := _LABELLED.fullmatch(text):  # the first of several labels is used
        label, text = label or labelled[1], labelled[2]
    parsed = _parse_unlabelled(text)
    return parsed if label is None else replace(parsed, label=label)


def _parse_unlabelled(text: str) -> ParsedPolicy:
    head, mark, rest = text.partition(":")
    if mark and not rest:
        raise EsperError(f"policy {shown(text)}: nothing after the colon; remove it")
    plain: dict[str, ParsedPolicy] = {kind: ParsedPolicy(text, text, kind) for kind in WORDS}
    if head == "random":
        if rest:
            raise EsperError(f"policy {shown(text)}: random takes no arguments; use random")
        return plain[head]
    if head == "wait":
        return _parse_wait(plain[head], rest)
    if head == "heuristic":
        return _parse_heuristic(plain[head], rest)
    if head == "fixed":
        return _parse_fixed(plain[head], rest)
    if head == "static-full":
        return _parse_slots(plain[head], rest)
    if head == "static-final":
        return _parse_final(plain[head], rest)
    return _parse_controller(text)


def _parse_wait(word: ParsedPolicy, rest: str) -> ParsedPolicy:
    """FACTOR"""
    try:
        longer = float(rest or 1.0)
    except ValueError:
        longer = math.nan
    if not 0 < longer <= MAX_WAIT_FACTOR:  # also rejects NaN
        raise EsperError(
            f"policy {shown(word.text)}: expected wait:FACTOR above 0 and up to "
            f"{MAX_WAIT_FACTOR:g}, for example wait:1.2 to train the host alone 1.2 times as long"
        )
    return replace(word, longer=longer)


def _parse_slots(word: ParsedPolicy, rest: str) -> ParsedPolicy:
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
                f"policy {shown(word.text)}: slots are given twice; remove {shown(mark + slots)}"
            )
        found = replace(word, topology=tuple(blueprint.split(",")))
    else:
        found = _parse_slots(word, f"{blueprint}{mark}{slots}")
    if not at:
        return found
    if not step.isdecimal() or len(step) > MAX_STEP_DIGITS:
        raise EsperError(
            f"policy {shown(word.text)}: step {shown(step)} is not an integer of at most "
            f"{MAX_STEP_DIGITS} digits; use for example fixed:conv_heavy@2"
        )
    return replace(found, start=int(step))


def _parse_final(word: ParsedPolicy, rest: str) -> ParsedPolicy:
    """SLOT=BLUEPRINT,..., the path of a result file, or a policy that grows."""
    if not rest:
        raise EsperError(
            "policy 'static-final': give a topology, for example static-final:r0c0=depthwise, the "
            "result of a run, static-final:out/train_heuristic_digits_impaired.json, or a policy "
            "that grows, static-final:heuristic or static-final:runs/RUN"
        )
    if _TOPOLOGY.match(rest) and not os.path.exists(rest):
        return replace(word, topology=tuple(rest.split(",")))
    if os.path.isfile(rest):
        return replace(word, path=Path(rest))
    if rest.endswith(".json"):
        raise EsperError(f"policy {shown(word.text)}: file {shown(rest)} does not exist")
    grown_by, _, _ = rest.partition(":")
    if grown_by in ("wait", "static-full", "static-final"):  # checked before parsing: no nesting
        raise EsperError(
            f"policy {shown(word.text)}: {grown_by} does not grow; give a policy that does"
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
    short_path = "/".join(path.resolve().parts[-2:])
    label = f"{short_path}, sampled" if sampled else short_path
    return ParsedPolicy(label, text, "controller", path=path, sampled=sampled)


def _no_such_policy(text: str, path: Path, sampled: bool) -> EsperError:
    """Error for a missing folder or an unknown policy name."""
    if os.path.isfile(path):
        return EsperError(
            f"policy {shown(text)}: {shown(str(path))} is a file; expected the folder of a "
            f"controller"
        )
    if sampled or os.sep in text or text.startswith("."):
        return EsperError(
            f"policy {shown(text)}: folder {shown(str(path))} does not exist; expected the "
            f"folder of a saved controller, checkpoint or run"
        )
    unknown = unknown_name("policy", text.partition(":")[0], (*WORDS, f"{SAMPLED}:FOLDER"))
    return UnknownNameError(f"{unknown}, or the folder of a controller")
