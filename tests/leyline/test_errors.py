"""Messages repeat a value so that it is known again, never at full length."""

from __future__ import annotations

import pytest

from esper.leyline.errors import MAX_SHOWN_CHARS, parse_error_line, shorten, shown, unknown_name


@pytest.mark.parametrize("value", [0, -3, 1.5, True, None, "a b", ["a", 2], {"a": [1]}, (1, 2)])
def test_a_short_value_is_shown_as_it_is(value):
    assert shown(value) == repr(value)


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        "x" * 5000,
        ["x" * 5000] * 50,
        {str(n): n for n in range(5000)},
        10**400,
        -(16**6000),
        [10**5000],
        nested(100_000),
    ],
    ids=["text", "texts", "entries", "digits", "thousands of digits", "in a list", "deep"],
)
def test_a_long_deep_or_huge_value_is_shown_in_few_characters(value):
    assert 0 < len(shown(value)) <= MAX_SHOWN_CHARS


def test_both_ends_of_a_long_text_are_kept():
    assert shorten("a" * 500 + "z" * 500) == f"{'a' * 29}...{'z' * 28}"
    assert shorten("a" * MAX_SHOWN_CHARS) == "a" * MAX_SHOWN_CHARS


def test_an_unknown_name_of_5000_characters_is_one_readable_line():
    line = str(unknown_name("task", "digits" + "x" * 5000, ["digits", "cifar"]))
    assert line.startswith("unknown task 'digits")
    assert line.endswith("valid: digits, cifar")
    assert len(line) < 120


def test_of_very_many_valid_names_as_many_are_named_as_can_be_read():
    names = [f"task_number_{n}" for n in range(100)]
    line = str(unknown_name("task", "none", names))
    assert len(line) < 320
    assert "task_number_9, " in line
    assert line.endswith(", ... (100 in total)")
    assert "did you mean 'task_number_77'?" in str(unknown_name("task", "task_number77", names))


def test_pythons_own_advice_about_long_numbers_is_not_passed_on():
    with pytest.raises(ValueError, match="set_int_max_str_digits") as caught:
        int("9" * 5000)
    assert parse_error_line(caught.value) == "a number in it has thousands of digits"
