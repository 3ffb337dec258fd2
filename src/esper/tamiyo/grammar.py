"""Parser of policy names on the command line of `train`, `compare` and the benchmarks.

    wait   random   heuristic
    wait:FACTOR                                 the host, trained FACTOR times as long
    wait:as:POLICY                              the host with the compute of that policy
    heuristic:BLUEPRINT,BLUEPRINT               the heuristic with this order of blueprints
    heuristic:TABLE.json                        the heuristic, planning by a table price -> topology
    heuristic:RULES.toml                        the heuristic with the rules of a file
    fixed[:BLUEPRINT[@STEP][:SLOT,SLOT]]        germinated from STEP (2) on, in all slots or these
    fixed:SLOT=BLUEPRINT,...[@STEP]             the same with one blueprint per slot
    static-full[:BLUEPRINT[:SLOT,SLOT]]         planted at the start, in all slots or these
    static-final:SLOT=BLUEPRINT,...             a given topology, planted at the start
    static-final:RESULT.json                    the most frequent final topology of that run
    static-final:POLICY                         the final topology of that policy on the same host
    table:TABLE.json                            the table's topology for the member's price, planted
    restart:STEP,ACCURACY[,TIMES]               the host; begins anew if below ACCURACY after STEP
    asha:N                                      the best of N planted topologies, halved at rungs
    best-of:M[,STEP]                            the best of M initialisations, halved or after STEP
    FOLDER   sampled:FOLDER                     a saved controller; greedy, or sampled actions
    blind:FOLDER                                the same with its learning curve hidden
    untrained:FOLDER                            the same as it began: its settings, no learning
    replay:POLICY                               actions of that policy on another host, open loop
    FILE.py:NAME                                an `esper.Policy` of your own
    LABEL=any of these                          sets the label in tables and plots

Parsing loads nothing and does not import torch. `make_policy.py` builds the policies, except those
that depend on runs (controllers, searches, and policies named after another), which only `compare`
can build, and your own, which `train` can build as well.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from esper.leyline.errors import EsperError, UnknownNameError, shown, unknown_name
from esper.storage.atomic import printable

Kind = Literal[
    "wait",
    "random",
    "heuristic",
    "fixed",
    "static-full",
    "static-final",
    "table",
    "restart",
    "asha",
    "best-of",
    "replay",
    "controller",
    "own",
]
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
    "table": (
        "the topology that a table has for the price of growth, planted at the start",
        "table:digits_impaired.json",
    ),
    "restart": (
        "no growth; begins anew if validation accuracy is below a threshold after a step",
        "restart:8,0.25,3",
    ),
}
"""Description and example of each scripted policy."""
WORDS: Final[tuple[Kind, ...]] = tuple(DESCRIPTIONS)
"""Policies that can be built on their own."""
BLIND: Final = "blind"
UNTRAINED: Final = "untrained"
COMPARED: Final = ("asha", "best-of", "replay", BLIND, UNTRAINED)
"""Further names, which only `compare` understands."""
MAX_WAIT_FACTOR: Final = 100.0
"""Largest FACTOR of wait:FACTOR."""
MAX_CANDIDATES: Final = 4096
"""Largest N of asha:N and M of best-of:M."""
SAMPLED: Final = "sampled"
SOURCE: Final = ".py"
"""End of the name of a file with policies."""
AS: Final = "as:"
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
    """fixed: step of the first germination; restart, best-of: trained steps after which it decides
    (best-of, 0: at the rungs of asha)."""
    below: float = 0.0
    """restart: validation accuracy under which a member begins anew."""
    restarts: int = 1
    """restart: most restarts of a member."""
    topology: tuple[str, ...] = ()
    """static-final, fixed: `slot=blueprint` each."""
    order: tuple[str, ...] = ()
    """heuristic: blueprints to try; empty: the default order."""
    longer: float = 1.0
    """wait: training length as a multiple of the task's episode."""
    found_by: ParsedPolicy | None = None
    """static-final: the policy whose final topologies are planted; replay: the one whose actions
    are repeated; wait: the one whose compute is spent."""
    path: Path | None = None
    """controller: its folder; static-final: the result file; table, heuristic: the table; own: the
    Python file."""
    name: str = ""
    """own: name of the class in that file."""
    rules: Path | None = None
    """heuristic: file of its rules."""
    sampled: bool = False
    """controller: sample actions instead of taking the greedy ones."""
    blind: bool = False
    """controller: hide the learning curve."""
    untrained: bool = False
    """controller: its settings and first weights, without learning."""
    candidates: int = 0
    """asha: topologies per host; best-of: initialisations."""

    @property
    def searches(self) -> bool:
        """Whether several members are trained for each host, of which one is kept."""
        return self.kind in ("asha", "best-of")

    @property
    def plans(self) -> bool:
        """Whether it needs the plan phase, whatever the task's contexts."""
        return (
            self.searches or self.kind == "table" or (self.kind == "heuristic" and bool(self.path))
        )


def parse_all(texts: Sequence[str]) -> list[ParsedPolicy]:
    """Parse several names; labels are made unique and printable.

    >>> [parsed.label for parsed in parse_all(["wait", "wait", "mine=random"])]
    ['wait', 'wait #2', 'mine']
    """
    policies = [replace(parsed, label=printable(parsed.label)) for parsed in map(parse, texts)]
    labels = unique_labels([parsed.label for parsed in policies])
    return [replace(it, label=label) for it, label in zip(policies, labels, strict=True)]


def unique_labels(labels: Sequence[str]) -> list[str]:
    """The labels, with a number where one comes again."""
    seen = Counter[str]()
    unique = []
    for label in labels:
        seen[label] += 1
        unique.append(label if seen[label] == 1 else f"{label} #{seen[label]}")
    return unique


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
    if head == "random":
        if rest:
            raise EsperError(f"policy {shown(text)}: random takes no arguments; use random")
        return ParsedPolicy(text, text, "random")
    if head in _ARGUMENTS:
        kind, parse_rest = _ARGUMENTS[head]
        return parse_rest(ParsedPolicy(text, text, kind), rest)
    if head != SAMPLED and SOURCE in (
        text[-len(SOURCE) :],
        text.rpartition(":")[0][-len(SOURCE) :],
    ):
        return _parse_own(text)
    return _parse_controller(text)


def _parse_own(text: str) -> ParsedPolicy:
    """FILE.py:NAME; the file is not read."""
    path, _, name = text.rpartition(":") if not text.endswith(SOURCE) else (text, "", "")
    if not os.path.isfile(path):
        raise EsperError(f"policy {shown(text)}: file {shown(path)} does not exist")
    if not name.isidentifier():
        raise EsperError(
            f"policy {shown(text)}: name a class in the file, as in {shown(path + ':MyPolicy')}"
        )
    return ParsedPolicy(name, text, "own", path=Path(path), name=name)


def _parse_wait(parsed: ParsedPolicy, rest: str) -> ParsedPolicy:
    """FACTOR or as:POLICY"""
    if rest.startswith(AS):
        return _parse_source(parsed, rest.removeprefix(AS), ("wait",), "has no compute of its own")
    try:
        longer = float(rest or 1.0)
    except ValueError:
        longer = math.nan
    if not 0 < longer <= MAX_WAIT_FACTOR:  # also rejects NaN
        raise EsperError(
            f"policy {shown(parsed.text)}: expected wait:FACTOR above 0 and up to "
            f"{MAX_WAIT_FACTOR:g}, for example wait:1.2 to train the host 1.2 times as long, "
            f"or wait:as:POLICY"
        )
    return replace(parsed, longer=longer)


def _parse_slots(parsed: ParsedPolicy, rest: str) -> ParsedPolicy:
    """BLUEPRINT[:SLOT,SLOT]"""
    if not rest:
        return parsed
    blueprint, mark, slots = rest.partition(":")
    if not blueprint or (mark and not all(slots.split(","))):
        raise EsperError(
            f"policy {shown(parsed.text)}: expected {parsed.kind}:BLUEPRINT:SLOT,SLOT, for example "
            f"{parsed.kind}:conv_heavy:r0c0,r0c1"
        )
    return replace(parsed, blueprint=blueprint, slots=tuple(slots.split(",")) if mark else ())


def _parse_heuristic(parsed: ParsedPolicy, rest: str) -> ParsedPolicy:
    """BLUEPRINT,BLUEPRINT, the path of a table (.json) or of rules (.toml)"""
    if rest.endswith(".json"):
        return replace(parsed, path=Path(rest))
    if rest.endswith(".toml"):
        return replace(parsed, rules=Path(rest))
    order = tuple(rest.split(",")) if rest else ()
    if not all(order):
        raise EsperError(
            f"policy {shown(parsed.text)}: expected heuristic:BLUEPRINT,BLUEPRINT, for example "
            f"heuristic:conv_light,depthwise"
        )
    return replace(parsed, order=order)


def _parse_fixed(parsed: ParsedPolicy, rest: str) -> ParsedPolicy:
    """BLUEPRINT[@STEP][:SLOT,SLOT] or SLOT=BLUEPRINT,...[@STEP]"""
    what, mark, slots = rest.partition(":")
    blueprint, at, step = what.partition("@")
    if "=" in blueprint:
        if mark:
            raise EsperError(
                f"policy {shown(parsed.text)}: slots are given twice; remove {shown(mark + slots)}"
            )
        found = replace(parsed, topology=tuple(blueprint.split(",")))
    else:
        found = _parse_slots(parsed, f"{blueprint}{mark}{slots}")
    if not at:
        return found
    if not step.isdecimal() or len(step) > MAX_STEP_DIGITS:
        raise EsperError(
            f"policy {shown(parsed.text)}: step {shown(step)} is not an integer of at most "
            f"{MAX_STEP_DIGITS} digits; use for example fixed:conv_heavy@2"
        )
    return replace(found, start=int(step))


def _parse_final(parsed: ParsedPolicy, rest: str) -> ParsedPolicy:
    """SLOT=BLUEPRINT,..., the path of a result file, or a policy that grows."""
    if not rest:
        raise EsperError(
            "policy 'static-final': give a topology, for example static-final:r0c0=depthwise, the "
            "result of a run, static-final:out/train_heuristic_digits_impaired.json, or a policy "
            "that grows, static-final:heuristic or static-final:runs/RUN"
        )
    if _TOPOLOGY.match(rest) and not os.path.exists(rest):
        return replace(parsed, topology=tuple(rest.split(",")))
    if os.path.isfile(rest):
        return replace(parsed, path=Path(rest))
    if rest.endswith(".json"):
        raise EsperError(f"policy {shown(parsed.text)}: file {shown(rest)} does not exist")
    static = ("wait", "static-full", "static-final", "table", "restart", "asha", "best-of",
              "replay")  # fmt: skip
    return _parse_source(parsed, rest, static, "does not grow; give a policy that does")


def _parse_source(
    parsed: ParsedPolicy, rest: str, refused: Sequence[str], reason: str
) -> ParsedPolicy:
    """POLICY, but none of those refused; checked before parsing, so that nothing nests deeply."""
    unlabelled = rest
    while labelled := _LABELLED.fullmatch(unlabelled):
        unlabelled = labelled[2]
    head, _, _ = unlabelled.partition(":")
    if head in refused:
        raise EsperError(f"policy {shown(parsed.text)}: {head} {reason}")
    if not rest:
        raise EsperError(f"policy {shown(parsed.text)}: name a policy after the colon")
    return replace(parsed, found_by=parse(unlabelled))


def _parse_replay(parsed: ParsedPolicy, rest: str) -> ParsedPolicy:
    """POLICY"""
    found = _parse_source(
        parsed, rest, ("replay", "asha", "best-of"), "cannot be replayed; name another policy"
    )
    assert found.found_by is not None
    if found.found_by.found_by is not None:
        raise EsperError(
            f"policy {shown(parsed.text)}: {found.found_by.kind} of another policy cannot be "
            f"replayed; name that policy"
        )
    return found


def _parse_table(parsed: ParsedPolicy, rest: str) -> ParsedPolicy:
    """TABLE.json"""
    if not rest:
        raise EsperError(
            f"policy {shown(parsed.text)}: give a table, for example table:digits_impaired.json"
        )
    return replace(parsed, path=Path(rest))


def _parse_asha(parsed: ParsedPolicy, rest: str) -> ParsedPolicy:
    """N"""
    count = _count(rest)
    if not 1 <= count <= MAX_CANDIDATES:
        raise EsperError(
            f"policy {shown(parsed.text)}: expected asha:N with 1 to {MAX_CANDIDATES} topologies "
            f"per host, for example asha:8"
        )
    return replace(parsed, candidates=count)


def _parse_best_of(parsed: ParsedPolicy, rest: str) -> ParsedPolicy:
    """M[,STEP]"""
    count, mark, step = rest.partition(",")
    found = replace(parsed, candidates=_count(count), start=_count(step) if mark else 0)
    if not 1 <= found.candidates <= MAX_CANDIDATES or (mark and found.start < 1):
        raise EsperError(
            f"policy {shown(parsed.text)}: expected best-of:M,STEP with 1 to {MAX_CANDIDATES} "
            f"initialisations and a step from 1 on, for example best-of:4,8, or best-of:4 to "
            f"halve them as asha does"
        )
    return found


def _parse_restart(parsed: ParsedPolicy, rest: str) -> ParsedPolicy:
    """STEP,ACCURACY[,TIMES]"""
    step, _, others = rest.partition(",")
    accuracy, mark, times = others.partition(",")
    try:
        below = float(accuracy)
    except ValueError:
        below = math.nan
    found = replace(parsed, start=_count(step), below=below, restarts=_count(times) if mark else 1)
    if found.start < 1 or not 0 < below <= 1 or found.restarts < 1:  # also rejects NaN
        raise EsperError(
            f"policy {shown(parsed.text)}: expected restart:STEP,ACCURACY,TIMES with an accuracy "
            f"above 0 and up to 1, for example restart:8,0.25,3"
        )
    return found


def _count(text: str) -> int:
    """A whole number; -1 if it is none, or too long."""
    small = text.isascii() and text.isdecimal() and len(text) <= MAX_STEP_DIGITS
    return int(text) if small else -1


def _parse_probe(parsed: ParsedPolicy, rest: str) -> ParsedPolicy:
    """blind, untrained: FOLDER or sampled:FOLDER"""
    probe, _, _ = parsed.text.partition(":")
    head, _, _ = rest.partition(":")
    if head in (*WORDS, *COMPARED):
        raise EsperError(
            f"policy {shown(parsed.text)}: {head} is not a controller; give the folder of a saved "
            f"controller"
        )
    found = _parse_controller(rest)
    found = replace(found, label=f"{found.label}, {probe}", text=parsed.text)
    return replace(found, blind=probe == BLIND, untrained=probe == UNTRAINED)


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
    known = (*WORDS, *COMPARED, f"{SAMPLED}:FOLDER")
    unknown = unknown_name("policy", text.partition(":")[0], known)
    return UnknownNameError(f"{unknown}, or the folder of a controller")


_ARGUMENTS: Final[dict[str, tuple[Kind, Callable[[ParsedPolicy, str], ParsedPolicy]]]] = {
    "wait": ("wait", _parse_wait),
    "heuristic": ("heuristic", _parse_heuristic),
    "fixed": ("fixed", _parse_fixed),
    "static-full": ("static-full", _parse_slots),
    "static-final": ("static-final", _parse_final),
    "table": ("table", _parse_table),
    "restart": ("restart", _parse_restart),
    "asha": ("asha", _parse_asha),
    "best-of": ("best-of", _parse_best_of),
    "replay": ("replay", _parse_replay),
    BLIND: ("controller", _parse_probe),
    UNTRAINED: ("controller", _parse_probe),
}
"""Kind, and the parser of what follows the colon, by name."""
