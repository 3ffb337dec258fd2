"""The words that name policies: what each means, and what is refused."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.errors import EsperError
from esper.tamiyo.grammar import (
    COMPARED,
    DESCRIPTIONS,
    MAX_CANDIDATES,
    MAX_STEP_DIGITS,
    MAX_WAIT_FACTOR,
    WORDS,
    ParsedPolicy,
    parse,
    parse_all,
)


def meaning(text: str) -> dict[str, object]:
    """What differs from a word that says nothing more than its kind."""
    found = parse(text)
    plain = ParsedPolicy(found.label, found.text, found.kind)
    differs = {f.name: getattr(found, f.name) for f in fields(found)}
    return {n: v for n, v in differs.items() if v != getattr(plain, n)} | {"kind": found.kind}


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("wait", {"kind": "wait"}),
        ("wait:1.5", {"kind": "wait", "longer": 1.5}),
        ("random", {"kind": "random"}),
        ("heuristic", {"kind": "heuristic"}),
        ("fixed", {"kind": "fixed"}),
        ("fixed:norm", {"kind": "fixed", "blueprint": "norm"}),
        ("fixed:norm@7", {"kind": "fixed", "blueprint": "norm", "start": 7}),
        (
            "fixed:norm@7:r0c0,r0c2",
            {"kind": "fixed", "blueprint": "norm", "start": 7, "slots": ("r0c0", "r0c2")},
        ),
        ("heuristic:norm,conv_light", {"kind": "heuristic", "order": ("norm", "conv_light")}),
        (
            "fixed:r0c0=norm,r0c2=conv_light@4",
            {"kind": "fixed", "topology": ("r0c0=norm", "r0c2=conv_light"), "start": 4},
        ),
        ("fixed:norm:r0c1", {"kind": "fixed", "blueprint": "norm", "slots": ("r0c1",)}),
        ("static-full", {"kind": "static-full"}),
        ("static-full:norm:r0c1", {"kind": "static-full", "blueprint": "norm", "slots": ("r0c1",)}),
        (
            "static-final:r0c0=norm,r0c1=conv_light",
            {"kind": "static-final", "topology": ("r0c0=norm", "r0c1=conv_light")},
        ),
        ("table:t.json", {"kind": "table", "path": Path("t.json")}),
        ("heuristic:t.json", {"kind": "heuristic", "path": Path("t.json")}),
        ("restart:8,0.25", {"kind": "restart", "start": 8, "below": 0.25}),
        ("restart:8,.5,3", {"kind": "restart", "start": 8, "below": 0.5, "restarts": 3}),
        ("asha:8", {"kind": "asha", "candidates": 8}),
        ("best-of:4", {"kind": "best-of", "candidates": 4, "start": 0}),
        ("best-of:4,8", {"kind": "best-of", "candidates": 4, "start": 8}),
        ("replay:fixed:norm@3", {"kind": "replay", "found_by": parse("fixed:norm@3")}),
        ("wait:as:asha:4", {"kind": "wait", "found_by": parse("asha:4")}),
    ],
)
def test_what_a_word_means(text, means):
    assert meaning(text) == means
    assert parse(text).label == text
    named = parse(f"my policy={text}")
    assert (named.label, named.text, named.kind) == ("my policy", text, means["kind"])


def test_folders_are_controllers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "agent"
    folder.mkdir(parents=True)
    for text, sampled in (
        (str(folder), False),
        ("runs/agent", False),
        ("sampled:runs/agent", True),
    ):
        word = parse(text)
        assert (word.kind, word.sampled) == ("controller", sampled)
        assert word.path is not None
        assert word.path.resolve() == folder
        assert word.label == ("runs/agent, sampled" if sampled else "runs/agent")
    assert parse("learned=runs/agent").label == "learned"


def test_a_controller_may_be_blind_or_replayed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "agent").mkdir(parents=True)
    for text, sampled, label in (
        ("blind:runs/agent", False, "runs/agent, blind"),
        ("blind:sampled:runs/agent", True, "runs/agent, sampled, blind"),
    ):
        word = parse(text)
        assert (word.kind, word.blind, word.sampled) == ("controller", True, sampled)
        assert (word.label, word.text) == (label, text)
        assert parse(f"replay:{text}").found_by == word


def test_a_topology_may_be_what_another_policy_ends_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for text in ("heuristic:norm", "fixed:r0c0=norm@3", "runs", "sampled:runs"):
        word = parse(f"static-final:{text}")
        assert (word.kind, word.found_by) == ("static-final", parse(text))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("wiat", "did you mean 'wait'"),
        ("heurstic", "did you mean 'heuristic'"),
        ("static_full:norm", "did you mean 'static-full'"),
        ("random:3", "takes no arguments"),
        ("wait:long", "expected wait:FACTOR"),
        ("wait:0", "expected wait:FACTOR"),
        ("wait:nan", "expected wait:FACTOR"),
        ("wait:1e9", "expected wait:FACTOR"),
        ("static-final:wait", "wait does not grow"),
        ("static-final:static-full", "static-full does not grow"),
        ("static-final:heurstic", "did you mean 'heuristic'"),
        ("fixed:", "nothing after the colon"),
        ("heuristic:norm,", "expected heuristic:BLUEPRINT,BLUEPRINT"),
        ("fixed:r0c0=norm:r0c1", "expected fixed:BLUEPRINT"),
        ("fixed:norm@", "expected fixed:BLUEPRINT@STEP"),
        ("fixed:norm@soon", "expected fixed:BLUEPRINT@STEP"),
        ("fixed:norm@-1", "expected fixed:BLUEPRINT@STEP"),
        ("fixed:norm:", "expected fixed:BLUEPRINT@STEP:SLOT,SLOT"),
        ("static-full:norm:r0c0,", "expected static-full:BLUEPRINT:SLOT,SLOT"),
        ("static-full::r0c0", "expected static-full:BLUEPRINT:SLOT,SLOT"),
        ("static-final", "give a topology"),
        ("out/agent", "folder 'out/agent' does not exist"),
        ("sampled:agent", "folder 'agent' does not exist"),
        ("", "unknown policy ''"),
        ("table", "expected table:TABLE.json"),
        ("asha", "expected asha:N with 1 to 4096"),
        ("asha:0", "expected asha:N with 1 to 4096"),
        ("asha:x", "expected asha:N with 1 to 4096"),
        ("asha:99999", "expected asha:N with 1 to 4096"),
        ("best-of", "expected best-of:M,STEP"),
        ("best-of:0,8", "expected best-of:M,STEP"),
        ("best-of:4,0", "expected best-of:M,STEP"),
        ("best-of:4,x", "expected best-of:M,STEP"),
        ("restart", "expected restart:STEP,ACCURACY,TIMES"),
        ("restart:8", "expected restart:STEP,ACCURACY,TIMES"),
        ("restart:0,0.5", "expected restart:STEP,ACCURACY,TIMES"),
        ("restart:8,nan", "expected restart:STEP,ACCURACY,TIMES"),
        ("restart:8,25", "expected restart:STEP,ACCURACY,TIMES"),
        ("restart:8,0.5,0", "expected restart:STEP,ACCURACY,TIMES"),
        ("replay:best-of:4,8", "best-of cannot be replayed"),
        ("static-final:restart:8,0.5", "restart does not grow"),
        ("blind:heuristic", "heuristic is not a controller"),
        ("blind:asha:4", "asha is not a controller"),
        ("blind:runs", "unknown policy 'runs'"),
        ("replay", "name a policy"),
        ("replay:asha:4", "asha cannot be replayed"),
        ("replay:replay:wait", "replay cannot be replayed"),
        ("replay:static-final:random", "static-final of another policy cannot be replayed"),
        ("wait:as:", "name a policy"),
        ("wait:as:wait:2", "wait has no compute of its own"),
        ("static-final:asha:4", "asha does not grow"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(text, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EsperError) as refused:
        parse(text)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_class_in_a_python_file_is_a_policy_of_ones_own(tmp_path, monkeypatch):
    """Parsing does not run the file."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("raise SystemExit")
    found = parse("mine.py:Eager")
    assert (found.kind, found.label, found.path, found.name) == (
        "own",
        "Eager",
        Path("mine.py"),
        "Eager",
    )
    assert parse("new=mine.py:Eager").label == "new"
    assert parse("replay:mine.py:Eager").found_by == found
    assert parse("static-final:mine.py:Eager").found_by == found
    for text, word in (
        ("mine.py", "name a class"),
        ("mine.py:", "nothing after the colon"),
        ("mine.py:a b", "name a class"),
        ("other.py:Eager", "does not exist"),
    ):
        with pytest.raises(EsperError, match=word) as refused:
            parse(text)
        assert "\n" not in str(refused.value)


def test_a_file_is_no_controller(tmp_path):
    path = tmp_path / "agent"
    path.write_text("")
    with pytest.raises(EsperError, match="is a file"):
        parse(str(path))


def test_every_policy_has_a_label_of_its_own():
    words = parse_all(["wait", "a=wait", "wait", "a=random", "wait"])
    assert [word.label for word in words] == ["wait", "a", "wait #2", "a #2", "wait #3"]


NAME = st.text("abcxyz019_", min_size=1, max_size=6)
NAMES = st.lists(NAME, min_size=1, max_size=3).map(tuple)
TOPOLOGY = st.lists(st.tuples(NAME, NAME).map("=".join), min_size=1, max_size=3).map(tuple)
STEP = st.integers(0, 10**MAX_STEP_DIGITS - 1)


def built(kind: str, form: str, **parts: st.SearchStrategy) -> st.SearchStrategy:
    """(text, what it means) of a form of the grammar, its parts drawn."""

    def fill(drawn: dict[str, object]) -> tuple[str, dict[str, object]]:
        words = {n: ",".join(v) if isinstance(v, tuple) else v for n, v in drawn.items()}
        return form.format(**words), {"kind": kind, **drawn}

    return st.fixed_dictionaries(parts).map(fill)


FORMS = st.one_of(
    *(built(kind, kind) for kind in WORDS if kind not in ("static-final", "table", "restart")),
    built("wait", "wait:{longer!r}", longer=st.floats(1e-3, MAX_WAIT_FACTOR)),
    built("heuristic", "heuristic:{order}", order=NAMES),
    built("fixed", "fixed:{blueprint}", blueprint=NAME),
    built("fixed", "fixed:{blueprint}@{start}", blueprint=NAME, start=STEP),
    built("fixed", "fixed:{blueprint}:{slots}", blueprint=NAME, slots=NAMES),
    built("fixed", "fixed:{blueprint}@{start}:{slots}", blueprint=NAME, start=STEP, slots=NAMES),
    built("fixed", "fixed:{topology}@{start}", topology=TOPOLOGY, start=STEP),
    built("static-full", "static-full:{blueprint}:{slots}", blueprint=NAME, slots=NAMES),
    built("static-final", "static-final:{topology}", topology=TOPOLOGY),
    built("asha", "asha:{candidates}", candidates=st.integers(1, MAX_CANDIDATES)),
    built(
        "restart",
        "restart:{start},{below!r},{restarts}",
        start=STEP.filter(bool),
        below=st.floats(1e-3, 1),
        restarts=STEP.filter(bool),
    ),
)
"""Every form but those with paths in them."""


@given(FORMS)
def test_what_is_written_in_a_form_is_what_is_read(form):
    text, means = form
    found = parse(text)
    plain = ParsedPolicy(text, text, found.kind)
    assert found == replace(plain, **means)
    assert parse(found.text) == found
    assert parse(f"some label={text}") == replace(found, label="some label")


def test_every_description_has_an_example_of_its_kind():
    assert tuple(DESCRIPTIONS) == WORDS
    for kind, (_, example) in DESCRIPTIONS.items():
        assert parse(example).kind == kind


@pytest.mark.parametrize(
    ("piece", "refusal"),
    [
        ("static-final:", "static-final does not grow"),
        ("replay:", "replay cannot be replayed"),
        ("replay:a=", "replay cannot be replayed"),
        ("wait:as:", "wait has no compute of its own"),
        ("blind:", "blind is not a controller"),
    ],
)
def test_a_text_that_repeats_itself_is_no_deeper_than_any_other(piece, refusal):
    assert parse("a=" * 5000 + "wait").label == "a"
    with pytest.raises(EsperError, match=refusal):
        parse(piece * 5000 + "heuristic")


PIECES = st.sampled_from(
    (*WORDS, *COMPARED, "as", "sampled", "norm", "r0c0", ":", "=", "@", ",", "/", ".", "-1", "2",
     "1e9", "nan", "\0", "\n", "\udce9", "a" * 300)
)  # fmt: skip


@given(st.one_of(st.text(max_size=30), st.lists(PIECES, max_size=9).map("".join)))
def test_any_text_is_a_policy_or_a_refusal_of_ours(text):
    try:
        found = parse(text)
    except EsperError as error:
        line = str(error)
    else:
        line = ""
    assert "\n" not in line
    if line:
        return
    assert found.kind in (*WORDS, "asha", "best-of", "replay", "controller", "own")
    if found.kind == "controller":
        assert found.path is not None
        assert Path(found.path).is_dir()


def test_a_label_made_from_a_path_that_is_no_utf8_can_be_printed(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    word, same = parse_all([str(folder), str(folder)])
    assert word.label == rf"{tmp_path.name}/caf\udce9"
    assert same.label == f"{word.label} #2"
    assert word.path == folder
