"""Users bring tasks in a file or a package; what is wrong with one is one line."""

import sys

import pytest

from esper.tasks.listing import list_tasks
from esper.tasks.registry import _load_task_file, get_task_spec, task_names
from support import refused

ONE = """
from dataclasses import dataclass
from esper.tasks.synthetic_images import synthetic_spec

@dataclass
class Own:  # a dataclass looks its module up
    size: "int" = 8

MINE = synthetic_spec(name="mine", size=Own().size)
"""
TWO = ONE + "OTHER = synthetic_spec(name='other')\n"


def file_with(tmp_path, content: str) -> str:
    path = tmp_path / "my_tasks.py"
    path.write_text(content)
    return str(path)


def test_a_file_with_one_task(tmp_path):
    path = file_with(tmp_path, ONE)
    for reference in (path, f"{path}:mine"):
        assert _load_task_file(reference).name == get_task_spec(reference).name == "mine"
    assert _load_task_file(tmp_path / "my_tasks.py").load().train.inputs.shape == (1000, 1, 8, 8)
    assert "mine" not in task_names()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my_tasks.py"], "nothing is left behind"


def test_a_file_with_two_tasks_needs_a_name(tmp_path):
    path = file_with(tmp_path, TWO)
    assert f"defines mine, other: choose one, as in {path}:mine" in refused(
        lambda: _load_task_file(path)
    )
    assert _load_task_file(f"{path}:other").name == "other"
    assert "did you mean 'other'?" in refused(lambda: _load_task_file(f"{path}:othr"))


BUILT_ON_ANOTHER = """
from dataclasses import replace
from esper.tasks.registry import get_task_spec, register_task

BASE = get_task_spec("digits_baseline")
register_task(replace(BASE, name="mine", batch_size=32))
"""


def test_a_file_may_start_from_a_known_task_and_register_its_own_many_times(tmp_path):
    path = file_with(tmp_path, BUILT_ON_ANOTHER)
    for _ in range(2):
        spec = _load_task_file(path)
        assert (spec.name, spec.batch_size) == ("mine", 32)
        assert "mine" not in task_names()
    assert get_task_spec("digits_baseline").batch_size == 64


def test_a_file_that_fails_halfway_leaves_nothing_registered(tmp_path):
    path = file_with(tmp_path, BUILT_ON_ANOTHER + "1 / 0\n")
    assert "ZeroDivisionError at my_tasks.py:7" in refused(lambda: _load_task_file(path))
    assert "mine" not in task_names()


def test_an_edited_file_counts_at_once(tmp_path):
    path = file_with(tmp_path, ONE)
    assert _load_task_file(path).input_shape == (1, 8, 8)
    file_with(tmp_path, ONE.replace("= 8", "= 9"))
    assert _load_task_file(path).input_shape == (1, 9, 9)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = 1", "defines no TaskSpec"),
        ("x = 1\ny = 1 / 0", "ZeroDivisionError at my_tasks.py:2: division by zero"),
        ("import sys; sys.exit('bye')", "SystemExit at my_tasks.py:1: bye; user code must not end"),
        ("def f(:", "SyntaxError: invalid syntax (my_tasks.py, line 1)"),
        ("raise ValueError('two\\nlines')", "ValueError at my_tasks.py:1: two lines"),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("\0", "fails"),
        (ONE.replace("size=Own", "classes=1, size=Own"), "synthetic classes=1"),
        (ONE.replace('"mine"', '"digits_baseline"'), "'digits_baseline' is taken"),
        (BUILT_ON_ANOTHER.replace('name="mine", ', ""), "'digits_baseline' is already registered"),
        (BUILT_ON_ANOTHER.split("register_task(r")[0], "defines no TaskSpec of its own"),
    ],
)
def test_a_file_that_will_not_do_is_one_line(tmp_path, content, words):
    path = file_with(tmp_path, content)
    line = refused(lambda: _load_task_file(path))
    assert words in line
    assert path in line
    if "fails" in line:
        assert not any(name.endswith(path) for name in sys.modules), "half a module stays behind"


def test_a_missing_file_is_one_line(tmp_path):
    assert "no such file" in refused(lambda: get_task_spec(str(tmp_path / "no.py")))
    assert "no such file" in refused(lambda: get_task_spec(f"{tmp_path}:x.py:y"))


def test_listing_names_every_task():
    entries = list_tasks()
    assert [entry.name for entry in entries] == list(task_names())
