"""Text becomes sequences of tokens: nothing judged was trained on, unknown characters are one."""

import numpy as np
import pytest

from data_support import some_text
from esper.tasks.data_locations import DataSet
from esper.tasks.language import STORY_TEST_FILES, STORY_TRAIN_FILES, _language_spec
from esper.tasks.task_data import PARTS
from esper.tasks.text_files import END, TextFiles
from support import refused

TEXT = DataSet("a text", ("text",), "nowhere")
SMALL = {"context": 8, "validation": 8, "block": 4}


def reader(**changes) -> TextFiles:
    return TextFiles(TEXT, ("train.txt",), **({"vocab": 16} | SMALL | changes))


def written(tmp_path, train: str | bytes, test: str | None = None):
    content = train if isinstance(train, bytes) else train.encode()
    (tmp_path / "train.txt").write_bytes(content)
    if test is not None:
        (tmp_path / "test.txt").write_text(test)
    return tmp_path


def rebuilt(part, alphabet: str) -> list[str]:
    """Sequences as text, with the character after their last."""
    tokens = np.concatenate([part.inputs, part.labels[:, -1:]], axis=1)
    return ["".join(alphabet[t] for t in row) for row in tokens]


def test_every_sequence_is_a_piece_of_the_text(tmp_path):
    text = some_text(2000)
    data = reader().read(written(tmp_path, text))
    alphabet = "?" + "".join(sorted(set(text)))
    for name in PARTS:
        part = getattr(data, name)
        assert (part.inputs[:, 1:] == part.labels[:, :-1]).all()
        assert all(piece in text for piece in rebuilt(part, alphabet))
    assert rebuilt(data.test, alphabet)[0] in text[1800:]
    assert [len(data.val_control), len(data.val_score)] == [8, 8]


def test_no_token_is_in_two_parts(tmp_path):
    """Every character is another, so a place in the text can be told from its token."""
    text = "".join(chr(0x4E00 + place) for place in range(2000))
    data = reader(vocab=2001).read(written(tmp_path, text))
    seen = [set(np.concatenate([p.inputs, p.labels], axis=1).ravel().tolist()) - {0} for p in
            (data.train, data.val_control, data.val_score, data.test)]  # fmt: skip
    assert seen[1:] == [set()] * 3, "only characters of the training part have tokens"
    assert len(seen[0]) == data.train.inputs.size + len(data.train) // 4


def test_validation_blocks_are_scattered_over_the_text(tmp_path):
    text = "".join("abcdefghij"[place * 10 // 20_000] for place in range(20_000))
    data = reader(validation=80).read(written(tmp_path, text))
    assert len(np.unique(data.val_control.inputs)) > 5


def test_the_vocabulary_is_that_of_the_training_blocks_the_most_frequent_first(tmp_path):
    text = some_text(3000, "aaaabbbbccd")
    data = reader(vocab=4).read(written(tmp_path, text))
    counts = np.bincount(data.train.inputs.ravel(), minlength=4)
    assert (counts > 0).all(), "d is the rarest: it shares token 0 with whatever is unknown"
    assert counts[0] == counts.min()


def test_a_second_text_is_the_test(tmp_path):
    files = reader(test_files=("test.txt",), max_test=5)
    data = files.read(written(tmp_path, some_text(2000), "Z" + "ab" * 100))
    assert len(data.test) == 5
    assert data.test.inputs[0, 0] == 0, "Z is not in the training text"
    assert (data.test.inputs[0, 1:] > 0).all()


def test_an_end_mark_is_one_token(tmp_path):
    text = "<|end|>".join(some_text(50, seed=n) for n in range(60))
    marked = reader(end_mark="<|end|>").read(written(tmp_path, text))
    plain = reader().read(written(tmp_path, text.replace("<|end|>", END)))
    for name in PARTS:
        assert (getattr(marked, name).inputs == getattr(plain, name).inputs).all()


def test_of_a_long_file_only_the_beginning_is_read(tmp_path):
    text = "é" * 4000
    data = reader(max_bytes=2001).read(written(tmp_path, text))
    assert len(data.train) + 16 <= 1000 // 8
    assert (data.train.inputs == 1).all()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has 0 blocks"),
        (b"a" * 140, "more than 4 are needed"),
        (b"a" * 1500 + b"\xff" + b"a" * 900, "byte 1500 is not UTF-8"),
        (b"a" * 2000 + b"\xc3", "byte 2000 is not UTF-8"),
    ],
)
def test_text_that_will_not_do_is_one_line(tmp_path, content, words):
    line = refused(lambda: reader().read(written(tmp_path, content)))
    assert words in line
    assert "train.txt" in line


def test_a_short_or_missing_test_text_is_one_line(tmp_path):
    files = reader(test_files=("test.txt",))
    assert "too few" in refused(lambda: files.read(written(tmp_path, some_text(2000), "a")))
    (tmp_path / "test.txt").unlink()
    assert "test.txt: no such file" in refused(lambda: files.read(tmp_path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab": 1}, "2 or more"),
        ({"context": 0}, "context=0"),
        ({"validation": 6}, "multiple of block=4"),
        ({"test_share": 1.0}, "test_share=1.0"),
    ],
)
def test_settings_that_cannot_work_are_one_line(changes, words):
    assert words in refused(lambda: reader(**changes))


def test_a_language_task_of_ones_own_loads(tmp_path):
    (tmp_path / "text").mkdir()
    written(tmp_path / "text", some_text(8000))
    spec = _language_spec("mine", "a text", reader(vocab=16))
    assert spec.load(tmp_path).kind == "tokens"


def test_the_published_names_come_before_slices_of_them():
    assert STORY_TRAIN_FILES[0] == "TinyStoriesV2-GPT4-train.txt"
    assert STORY_TEST_FILES[-1].endswith("head.txt")
