"""Tables with categorical columns: encoded as train shows, and new rows in the same way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import esper
from esper.growing.data.reading import GrowData
from grow_support import quick_search, read_parts
from support import refused

N = 60
CITIES = np.array([None, "Rome", "Oslo", "Rome", "Lima"] * (N // 5), dtype=object)
COLUMNS: dict[str, Any] = {
    "age": np.arange(N) / N,
    "city": CITIES,
    "kind": np.array([3, 1] * (N // 2)),
    "open": np.array([True, False, False] * (N // 3)),
}
Y = np.array([int(city == "Rome") for city in CITIES])


class Series:
    """As much of a pandas series as is used."""

    def __init__(self, values: Any, dtype: str = "object") -> None:
        self._values, self.dtype = values, dtype

    def to_numpy(self) -> Any:
        return self._values


class Frame:
    """As much of a data frame as is used: `kind` is of a categorical dtype."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns, self._values = list(columns), columns

    def __getitem__(self, name: str) -> Series:
        return Series(self._values[name], "category" if name == "kind" else "object")

    def to_numpy(self) -> Any:
        raise AssertionError("columns are read one by one")


STRUCTURED = np.zeros(N, [("age", "f4"), ("city", "O"), ("kind", "i8"), ("open", "?")])
for name, values in COLUMNS.items():
    STRUCTURED[name] = values
ROWS = np.array(list(zip(*COLUMNS.values(), strict=True)), dtype=object)


def encoded(given: Any, **settings: Any) -> GrowData:
    return read_parts(given, **{"categorical": "auto"} | settings)


def parts_of(data: GrowData) -> list[Any]:
    return [data.train, data.val, data.test]


@pytest.mark.parametrize(
    ("train", "categorical"),
    [
        ((Frame(COLUMNS), Y), "auto"),
        (Frame(COLUMNS | {"label": Y}), "auto"),
        ((COLUMNS, Y), ["city", "kind", "open"]),
        (COLUMNS | {"label": Y}, ["kind", 1, 3]),
        ((STRUCTURED, Y), ["kind", "city", "open"]),
        ((ROWS, Y), [1, 2, 3]),
        ((ROWS.tolist(), Y), [1, 2, 3]),
    ],
)
def test_text_categories_and_booleans_are_one_hot_beside_the_numbers(train, categorical):
    shown = esper.encoded_columns(train, categorical)
    assert [values for _, values in shown.categories] == [
        ("Lima", "Oslo", "Rome"), ("1", "3"), ("False", "True")]  # fmt: skip
    assert (shown.width, shown.sizes) == (1 + 4 + 3 + 3, (5, 4, 4))
    data = encoded(train, categorical=categorical, val=train, test=train)
    first = data.train.inputs[:2]  # type: ignore[union-attr,index]
    none, oslo = [1, 0, 0, 0], [0, 0, 0, 1]
    expected = [[0, *none, 0, 0, 1, 0, 0, 1], [1 / N, *oslo, 0, 1, 0, 0, 1, 0]]
    torch.testing.assert_close(first, torch.tensor(expected, dtype=torch.float32))
    assert all(len(part) == N for part in parts_of(data))


def test_auto_takes_text_and_booleans_and_leaves_numbers():
    names = [name for name, _ in esper.encoded_columns((COLUMNS, Y)).categories]
    assert names == ["city", "open"]
    assert esper.encoded_columns((ROWS, Y)).numbers == ("0", "2"), "though all are objects"


def test_values_are_learned_on_train_alone_and_unknown_and_missing_have_their_own_code():
    val = {"city": ["Rome", "Bonn", None, math.nan], "age": [0.0, 1.0, 2.0, 3.0]}
    train = {"age": COLUMNS["age"], "city": CITIES}
    data = encoded((train, Y), val=(val, Y[:4]), test=(val, Y[:4]))
    one_hot = data.val.inputs
    assert isinstance(one_hot, Tensor)
    assert one_hot[:, 0].tolist() == [0, 1, 2, 3], "by name, not by place"
    assert one_hot[:, 1:].tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    with_codes = read_parts(
        (train, Y), (val, Y[:4]), (val, Y[:4]), categorical="auto", two_inputs=True
    )
    numbers, codes = with_codes.val.inputs
    assert numbers.shape == (4, 1)  # type: ignore[union-attr]
    assert codes.tolist() == [[4], [0], [1], [1]]  # type: ignore[union-attr]


class Embedded(nn.Module):
    """Numbers and codes."""

    def __init__(self) -> None:
        super().__init__()
        sizes = esper.encoded_columns((COLUMNS, Y)).sizes
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in sizes)
        self.first, self.last = nn.Linear(10, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        parts = [table(codes[:, place]) for place, table in enumerate(self.tables)]
        return self.last(torch.tanh(self.first(torch.cat([x, *parts], 1))))


def one_hot() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 2))


@pytest.mark.parametrize("model", [one_hot, Embedded])
def test_a_network_of_a_table_takes_new_rows_after_it_is_read_back(model, tmp_path):
    data = (COLUMNS, Y)
    settings = {"categorical": "auto", "epochs": 40, "lr": 0.05, "widths": (), "device": "cpu"}
    found = esper.grow(
        model, data, data, data, esper.Budget(host_runs=1), folder=tmp_path, verbose=False,
        **settings,
    )  # fmt: skip
    assert found.best.test_score > 0.7, "a constant has 0.6"
    again = esper.GrowResult.load(found.folder)
    rows = {"city": ["Rome", "Bonn"], "open": [True, None], "age": [0.5, 0.1], "kind": [1, 9]}
    inputs = again.encode(rows)
    both = inputs if isinstance(inputs, tuple) else (inputs,)
    assert len(both) == (2 if model is Embedded else 1)
    torch.testing.assert_close(again.model(*both), found.model(*both))
    assert "no column 'age', which train has" in refused(lambda: again.encode({"city": ["Rome"]}))


@pytest.mark.parametrize(
    ("given", "settings", "says"),
    [
        ((Frame(COLUMNS), Y), {"categorical": ["town"]}, "unknown column 'town' of categorical="),
        ((COLUMNS, Y), {"categorical": []}, "categorical=[]: name columns of a table"),
        ((COLUMNS | {"age": [None] * N}, Y), {},
         "train: column 'age' has no number in 60 of 60 rows, the first is row 0; leave these"),
        ((COLUMNS | {"age": np.full(N, np.nan)}, Y), {}, "column 'age' has no number in 60 of 60"),
        ((COLUMNS | {"age": [0.0] * 3}, Y), {}, "train: its columns have 3 to 60 rows"),
        ((COLUMNS | {"age": np.zeros((N, 2))}, Y), {}, "train: 'age': a column of shape (60, 2)"),
        ((COLUMNS | {"age": np.zeros(N, "datetime64[s]")}, Y), {}, "column 'age' holds dates"),
        ((np.zeros((N, 2)), Y), {}, "categorical='auto': no column of train holds text, categor"),
        ((np.zeros((N, 2, 2)), Y), {}, "train: got a ndarray, and categorical= is for tables"),
        ((COLUMNS, Y), {"val": (COLUMNS | {"age": ["old"] * N}, Y)},
         "val: column 'age' holds 'old', in train it holds numbers; give the same"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_encoded_is_one_line(given, settings, says):
    assert says in refused(lambda: encoded(given, **settings))


def test_a_model_of_another_width_is_told_the_number_of_columns(tmp_path):
    def search(model: nn.Module) -> esper.GrowResult:
        parts = ((COLUMNS, Y), None, None)
        return quick_search(tmp_path, model, parts, esper.Budget(), categorical="auto")

    says = "a row has 9 columns after encoding: 2 of numbers and 7 one-hot columns of city, open"
    assert refused(lambda: search(nn.Linear(4, 2))).endswith(says)
    small = Embedded()
    small.tables[0] = nn.Embedding(2, 4)
    assert refused(lambda: search(small)).endswith("codes of each column: city 5, open 4")


def test_text_without_the_setting_is_refused_with_the_names_of_the_columns():
    class Whole(Frame):
        def to_numpy(self) -> Any:
            return ROWS[:, [0, 1, 1]]

    whole = Whole(dict.fromkeys(("age", "city", "town")))
    assert refused(lambda: read_parts((whole, Y))) == (
        "train inputs: columns 'city, town' hold text such as 'Rome'; categorical='auto' encodes "
        "text columns, or leave them out"
    )


def test_a_search_without_encoding_has_nothing_to_encode(tmp_path: Path):
    found = quick_search(
        tmp_path, one_hot(), [(np.zeros((20, 9), "f4"), np.arange(20) % 2)] * 3,
        esper.Budget(host_runs=1), epochs=1, widths=(),
    )  # fmt: skip
    assert "without categorical=" in refused(lambda: found.encode({}))
