"""Parser of policy names on the command line of `train`, `compare` and the benchmarks.

    wait   random   heuristic
    wait:FACTOR                                 the host, trained FACTOR times as long
    wait:as:POLICY                              the host with the compute of that policy
    heuristic:BLUEPRINT,BLUEPRINT               the heuristic with this order of blueprints
    heuristic:TABLE.json                        the heuristic, planning by a table price -> topology
    fixed[:BLUEPRINT[@STEP][:SLOT,SLOT]]        germinated from STEP (2) on, in all slots or these
    fixed:SLOT=BLUEPRINT,...[@STEP]             the same with one blueprint per slot
    static-full[:BLUEPRINT[:SLOT,SLOT]]         planted at the start, in all slots or these
    static-final:SLOT=BLUEPRINT,...             a given topology, planted at the start
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

import contextlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

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
EXAMPLE_FLAGS: Final[dict[str, str]] = {"restart": """ --contexts '{"actions": "grow+restart"}'"""}
"""What `esper train` needs beside an example."""
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
WAIT_AS: Final = "wait:as:"
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
    """controller: its folder; table, heuristic: the table; own: the Python file."""
    name: str = ""
    """own: name of the class in that file."""
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
    if head in (BLIND, UNTRAINED):
        return _parse_probe(text, head, rest)
    if head == "static-final":
        return _parse_final(text, rest)
    if text.startswith(WAIT_AS):
        return _parse_source(text, "wait", text.removeprefix(WAIT_AS))
    if head == "replay":
        return _parse_source(text, "replay", rest)
    if head in _FORMS:
        return _parse_form(text, head, rest)
    if head != SAMPLED and SOURCE in (
        text[-len(SOURCE) :],
        text.rpartition(":")[0][-len(SOURCE) :],
    ):
        return _parse_own(text)
    return _parse_controller(text)


_EXAMPLES: Final = {"asha": "asha:8", "best-of": "best-of:4,8"}


def _parse_form(text: str, kind: Kind, rest: str) -> ParsedPolicy:
    """A policy of one of `_FORMS`."""
    usage, patterns = _FORMS[kind]
    parsed = ParsedPolicy(text, text, kind, start=0 if kind == "best-of" else 2)
    for pattern in patterns:
        if found := re.fullmatch(pattern, rest, re.ASCII | re.DOTALL):
            given = {name: value for name, value in found.groupdict().items() if value is not None}
            with contextlib.suppress(ValueError):
                return replace(parsed, **{name: _read(name, given[name]) for name in given})
    example = DESCRIPTIONS[kind][1] if kind in DESCRIPTIONS else _EXAMPLES[kind]
    raise EsperError(f"policy {shown(text)}: expected {usage}, for example {example}")


def _read(name: str, text: str) -> Any:
    """Value of a field of `ParsedPolicy`; raises ValueError if it is out of range."""
    if name in ("slots", "order", "topology"):
        return tuple(text.split(","))
    if name == "path":
        return Path(text)
    if name in ("start", "restarts"):
        return int(text)
    if name in _MOST:
        value = type(_MOST[name])(text)
        if not 0 < value <= _MOST[name]:  # also refuses NaN
            raise ValueError(text)
        return value
    return text


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


def _parse_final(text: str, rest: str) -> ParsedPolicy:
    """SLOT=BLUEPRINT,..., or a policy that grows."""
    parsed = ParsedPolicy(text, text, "static-final")
    if not rest:
        raise EsperError(
            "policy 'static-final': give a topology, for example static-final:r0c0=depthwise, or a "
            "policy that grows, static-final:heuristic or static-final:runs/RUN"
        )
    if _TOPOLOGY.match(rest):
        return replace(parsed, topology=tuple(rest.split(",")))
    return _parse_source(text, "static-final", rest)


def _parse_source(text: str, kind: Kind, rest: str) -> ParsedPolicy:
    """POLICY, but none of those refused; checked before parsing, so that nothing nests deeply."""
    unlabelled = rest
    while labelled := _LABELLED.fullmatch(unlabelled):
        unlabelled = labelled[2]
    head, _, _ = unlabelled.partition(":")
    refused, reason = _REFUSED_SOURCES[kind]
    if head in refused:
        raise EsperError(f"policy {shown(text)}: {head} {reason}")
    if not rest:
        raise EsperError(f"policy {shown(text)}: name a policy after the colon")
    source = parse(unlabelled)
    if kind == "replay" and source.found_by is not None:
        raise EsperError(
            f"policy {shown(text)}: {source.kind} of another policy cannot be replayed; name that "
            f"policy"
        )
    return ParsedPolicy(text, text, kind, found_by=source)


def _parse_probe(text: str, probe: str, rest: str) -> ParsedPolicy:
    """blind, untrained: FOLDER or sampled:FOLDER"""
    head, _, _ = rest.partition(":")
    if head in (*WORDS, *COMPARED):
        raise EsperError(
            f"policy {shown(text)}: {head} is not a controller; give the folder of a saved "
            f"controller"
        )
    found = _parse_controller(rest)
    found = replace(found, label=f"{found.label}, {probe}", text=text)
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


_STEP: Final = rf"\d{{1,{MAX_STEP_DIGITS}}}"
_COUNT: Final = rf"(?=0*[1-9]){_STEP}"
_LIST: Final = "[^,]+(?:,[^,]+)*"
_AT: Final = f"(?:@(?P<start>{_STEP}))?"
_SLOTS: Final = f"(?::(?P<slots>{_LIST}))?"
_MOST: Final = {"longer": MAX_WAIT_FACTOR, "below": 1.0, "candidates": MAX_CANDIDATES}
"""Largest value of fields that are above 0."""
_FORMS: Final[dict[Kind, tuple[str, tuple[str, ...]]]] = {
    "wait": (
        f"wait:FACTOR above 0 and up to {MAX_WAIT_FACTOR:g}, times as long, or wait:as:POLICY",
        ("", "(?P<longer>[^:]+)"),
    ),
    "random": ("random, which takes no arguments", ("",)),
    "heuristic": (
        "heuristic:BLUEPRINT,BLUEPRINT or heuristic:TABLE.json",
        ("", r"(?P<path>.*\.json)", f"(?P<order>{_LIST})"),
    ),
    "fixed": (
        "fixed:BLUEPRINT@STEP:SLOT,SLOT or fixed:SLOT=BLUEPRINT,...@STEP",
        ("", f"(?P<blueprint>[^:@=]+){_AT}{_SLOTS}", f"(?P<topology>[^:@]*=[^:@]*){_AT}"),
    ),
    "static-full": (
        "static-full:BLUEPRINT:SLOT,SLOT",
        ("", f"(?P<blueprint>[^:]+){_SLOTS}"),
    ),
    "table": ("table:TABLE.json", ("(?P<path>.+)",)),
    "restart": (
        "restart:STEP,ACCURACY,TIMES with an accuracy above 0 and up to 1",
        (f"(?P<start>{_COUNT}),(?P<below>[^,]+)(?:,(?P<restarts>{_COUNT}))?",),
    ),
    "asha": (
        f"asha:N with 1 to {MAX_CANDIDATES} topologies per host",
        (f"(?P<candidates>{_STEP})",),
    ),
    "best-of": (
        f"best-of:M,STEP with 1 to {MAX_CANDIDATES} initialisations and a step from 1 on, or "
        f"best-of:M to halve them as asha does",
        (f"(?P<candidates>{_STEP})(?:,(?P<start>{_COUNT}))?",),
    ),
}
"""Usage, and patterns of what follows the colon, whose groups are fields of `ParsedPolicy`."""
_REFUSED_SOURCES: Final[dict[Kind, tuple[tuple[str, ...], str]]] = {
    "wait": (("wait",), "has no compute of its own"),
    "replay": (("replay", "asha", "best-of"), "cannot be replayed; name another policy"),
    "static-final": (
        ("wait", "static-full", "static-final", "table", "restart", "asha", "best-of", "replay"),
        "does not grow; give a policy that does",
    ),
}
"""Policies that others may not be named after, and why."""
