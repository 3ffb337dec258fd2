"""Tags of runs: added and removed one by one, refused where they cannot be shown, never lost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from esper.leyline.errors import EsperError
from esper.storage.tags import MAX_TAGS, change_tags, checked_tag, read_tags


def test_tags_are_added_and_removed_one_by_one(tmp_path):
    assert read_tags(tmp_path) == ()
    assert change_tags(tmp_path, add=["good", "baseline"]) == ("baseline", "good")
    assert change_tags(tmp_path, add=["good"]) == ("baseline", "good")
    assert change_tags(tmp_path, remove=["baseline"]) == ("good",) == read_tags(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tags.json"], "nothing else is left"


@pytest.mark.parametrize(
    "tag", ["", " ", "two words", "a,b", "-x", "a\x1b[31m", "a\u202eb", "x" * 41, "line\nbreak"]
)
def test_a_tag_that_cannot_be_shown_or_typed_is_refused_in_one_line(tmp_path, tag):
    with pytest.raises(EsperError, match="a tag is one word") as refused:
        change_tags(tmp_path, add=[tag])
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_one_tag_has_one_form():
    assert checked_tag("u\u0308ber") == "\u00fcber"


def test_what_a_run_does_not_have_cannot_be_removed(tmp_path):
    change_tags(tmp_path, add=["good"])
    with pytest.raises(EsperError, match="has no tag nope: it has good"):
        change_tags(tmp_path, remove=["good", "nope"])
    assert read_tags(tmp_path) == ("good",)


def test_a_run_has_so_many_tags_and_no_more(tmp_path):
    change_tags(tmp_path, add=[f"t{n}" for n in range(MAX_TAGS)])
    with pytest.raises(EsperError, match="at most"):
        change_tags(tmp_path, add=["one-more"])


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"tags": 1}', json.dumps({"tags": ["a b"]}), json.dumps({"tags": [1]}),
     json.dumps({"tags": ["\x1b]0;x\x07"]}), json.dumps({"tags": ["x"] * 21}),
     '{"tags": ["x"]}' + " " * 30_000],
)  # fmt: skip
def test_a_damaged_file_is_named_and_not_written_over(tmp_path, text):
    (tmp_path / "tags.json").write_text(text)
    for use in (lambda: read_tags(tmp_path), lambda: change_tags(tmp_path, add=["good"])):
        with pytest.raises(EsperError, match=r"tags\.json") as refused:
            use()
        assert str(refused.value).isprintable()
    assert (tmp_path / "tags.json").read_text() == text


def test_commands_at_once_lose_no_tag(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: change_tags(tmp_path, add=[f"t{n}"]), range(MAX_TAGS)))
    assert len(read_tags(tmp_path)) == MAX_TAGS
