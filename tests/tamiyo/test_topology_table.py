"""Tables price -> topology: what applies to whom, what is written and read, what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from esper.leyline.errors import EsperError
from esper.storage.sealed_json import sealed_bytes
from esper.tamiyo.topology_table import TableRow, TopologyTable, read_table
from support import refused

SLOTS, KINDS = ("r0c0", "r0c1"), ("norm", "conv_light")
TABLE = TopologyTable(
    "mine",
    (
        TableRow(0.5, ("r0c0=conv_light", "r0c1=norm")),
        TableRow(2.0, ("r0c1=conv_light",)),
        TableRow(4.0, ()),
    ),
)


def test_the_first_row_whose_price_is_not_exceeded_applies():
    price_E = np.array([0.1, 0.5, 0.50001, 2.0, 3.9, 4.0, 100.0])
    wanted_ES = TABLE.wanted(price_E, SLOTS, KINDS)
    cheap, medium, host = [1, 0], [-1, 1], [-1, -1]
    assert wanted_ES.tolist() == [cheap, cheap, medium, medium, host, host, host]


def test_what_is_written_is_what_is_read(tmp_path):
    path = tmp_path / "t.json"
    table = TopologyTable("mine", (TableRow(1.0, ("r0c0=norm",)), TableRow(math.inf, ())))
    path.write_bytes(sealed_bytes(table))
    assert read_table(path, "mine") == table
    damaged = path.read_text().replace("r0c0", "r0c1")
    path.write_text(damaged)
    assert "does not match its checksum" in refused(lambda: read_table(path, "mine"))


def test_a_table_made_by_hand_needs_no_checksum(tmp_path):
    path = tmp_path / "t.json"
    rows = [{"max_price": 1, "topology": ["r0c0=norm"]}]
    content = {"format": "esper-topology-table", "version": 1, "task": "mine", "rows": rows}
    path.write_text(json.dumps(content))
    assert read_table(path, "mine").rows == (TableRow(1.0, ("r0c0=norm",)),)
    assert read_table(path, "mine").digest != TABLE.digest


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"task": "other"}, "made for task other, not for mine"),
        ({"version": 2}, "version 2, this Esper reads version 1"),
        ({"version": None}, "this Esper reads version 1"),
        ({"format": "something"}, "not a topology table"),
        ({"rows": []}, "at least one row"),
        ({"rows": [{"max_price": 0, "topology": []}]}, "must be above 0"),
        ({"rows": [{"max_price": 1, "topology": []}] * 2}, "must increase"),
        ({"rows": [{"max_price": 1, "topology": ["norm"]}]}, "expected slot=blueprint"),
        ({"rows": [{"max_price": 1, "topology": ["r0c0=a", "r0c0=b"]}]}, "named twice"),
        ({"rows": [{"max_prize": 1, "topology": []}]}, "max_price"),
        ({"extra": 1}, "extra"),
    ],
)
def test_other_tables_are_refused_in_one_line(tmp_path, changes, says):
    path = tmp_path / "t.json"
    rows = [{"max_price": 1, "topology": ["r0c0=norm"]}]
    content = {"format": "esper-topology-table", "version": 1, "task": "mine", "rows": rows}
    path.write_text(json.dumps(content | changes))
    with pytest.raises(EsperError) as error:
        read_table(path, "mine")
    line = str(error.value)
    assert says in line
    assert "t.json" in line
    assert "\n" not in line


def test_missing_and_damaged_files_are_named(tmp_path):
    assert "cannot read" in refused(lambda: read_table(tmp_path / "no.json", "mine"))
    (tmp_path / "t.json").write_text("[")
    assert "not JSON" in refused(lambda: read_table(tmp_path / "t.json", "mine"))


def test_unknown_names_are_refused():
    assert "unknown slot 'r0c1'" in refused(lambda: TABLE.wanted(np.ones(1), SLOTS[:1], KINDS))
    assert "unknown blueprint" in refused(lambda: TABLE.wanted(np.ones(1), SLOTS, KINDS[:1]))
