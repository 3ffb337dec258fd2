"""The words that name policies: what each means, and what is refused."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.errors import EsperError
from esper.scripts.policy_words import WORDS, PolicyWord, read_policies, read_policy


def meaning(text: str) -> dict[str, object]:
    """What differs from a word that says nothing more than its kind."""
    found = read_policy(text)
    plain = PolicyWord(found.label, found.text, found.kind)
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
    ],
)
def test_what_a_word_means(text, means):
    assert meaning(text) == means
    assert read_policy(text).label == text
    named = read_policy(f"my policy={text}")
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
        word = read_policy(text)
        assert (word.kind, word.sampled) == ("controller", sampled)
        assert word.path is not None
        assert word.path.resolve() == folder
        assert word.label == ("runs/agent, sampled" if sampled else "runs/agent")
    assert read_policy("learned=runs/agent").label == "learned"


def test_a_topology_may_be_what_another_policy_ends_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for text in ("heuristic:norm", "fixed:r0c0=norm@3", "runs", "sampled:runs"):
        word = read_policy(f"static-final:{text}")
        assert (word.kind, word.found_by) == ("static-final", read_policy(text))


def test_a_result_is_where_a_topology_is_found(tmp_path):
    path = tmp_path / "a=b.json"
    path.write_text("{}")
    assert meaning(f"static-final:{path}") == {"kind": "static-final", "path": path}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("wiat", "did you mean 'wait'"),
        ("heurstic", "did you mean 'heuristic'"),
        ("static_full:norm", "did you mean 'static-full'"),
        ("random:3", "takes nothing behind it"),
        ("wait:long", "expected wait:FACTOR"),
        ("wait:0", "expected wait:FACTOR"),
        ("wait:nan", "expected wait:FACTOR"),
        ("wait:1e9", "expected wait:FACTOR"),
        ("static-final:wait", "wait does not grow"),
        ("static-final:static-full", "static-full does not grow"),
        ("static-final:heurstic", "did you mean 'heuristic'"),
        ("fixed:", "nothing stands behind the colon"),
        ("heuristic:norm,", "expected heuristic:BLUEPRINT,BLUEPRINT"),
        ("fixed:r0c0=norm:r0c1", "its slots are named already"),
        ("fixed:norm@", "is no whole number"),
        ("fixed:norm@soon", "'soon' is no whole number"),
        ("fixed:norm@-1", "'-1' is no whole number"),
        ("fixed:norm:", "expected fixed:BLUEPRINT:SLOT,SLOT"),
        ("static-full:norm:r0c0,", "expected static-full:BLUEPRINT:SLOT,SLOT"),
        ("static-full::r0c0", "expected static-full:BLUEPRINT:SLOT,SLOT"),
        ("static-final", "name a topology"),
        ("static-final:nowhere.json", "there is no file 'nowhere.json'"),
        ("out/agent", "there is no folder out/agent"),
        ("sampled:agent", "there is no folder agent"),
        ("", "unknown policy ''"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(text, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EsperError) as refused:
        read_policy(text)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_is_no_controller(tmp_path):
    path = tmp_path / "agent"
    path.write_text("")
    with pytest.raises(EsperError, match="is a file"):
        read_policy(str(path))


def test_every_policy_has_a_label_of_its_own():
    words = read_policies(["wait", "a=wait", "wait", "a=random", "wait"])
    assert [word.label for word in words] == ["wait", "a", "wait #2", "a #2", "wait #3"]


@given(st.text(max_size=30))
def test_any_text_is_a_policy_or_a_refusal_of_ours(text):
    try:
        found = read_policy(text)
    except EsperError:
        return
    assert found.kind in (*WORDS, "controller")
    if found.kind == "controller":
        assert found.path is not None
        assert Path(found.path).is_dir()


def test_a_label_made_from_a_path_that_is_no_utf8_can_be_printed(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    word, same = read_policies([str(folder), str(folder)])
    assert word.label == rf"{tmp_path.name}/caf\udce9"
    assert same.label == f"{word.label} #2"
    assert word.path == folder
