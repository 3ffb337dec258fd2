"""Structs of arrays: a field's name says its shape, and disagreement is refused by name."""

import copy
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest

from esper.leyline import EsperError
from esper.leyline.arrays import ArrayStruct, Bools, Floats


@dataclass(frozen=True, slots=True, eq=False)
class Inner(ArrayStruct):
    loss_E: Floats
    alpha_ES: Floats
    hit_N: Bools


@dataclass(frozen=True, slots=True, eq=False)
class Square(ArrayStruct):
    pair_SS: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Outer(ArrayStruct):
    name: str
    hit_N: Bools
    inner: Inner
    score_E: Floats


def inner(members: int = 3, slots: int = 2, hits: int = 1) -> Inner:
    loss, alpha = np.zeros(members, np.float32), np.zeros((members, slots), np.float32)
    return Inner(loss, alpha, np.zeros(hits, np.bool_))


def outer(members: int = 3) -> Outer:
    return Outer("x", np.zeros(9, np.bool_), inner(), np.zeros(members, np.float32))


def test_sizes_are_read_from_the_names():
    assert inner(3, 2, 5).sizes() == {"E": 3, "S": 2, "N": 5}


def test_nested_structs_share_members_and_slots_only():
    assert outer().sizes() == {"N": 9, "E": 3, "S": 2}


def test_a_changed_or_copied_struct_has_sizes_of_its_own():
    assert inner(3).sizes() is not inner(3).sizes()
    wider = replace(inner(3, hits=1), hit_N=np.zeros(4, np.bool_))
    for struct in (wider, copy.copy(wider), pickle.loads(pickle.dumps(wider))):
        assert struct.sizes() == {"E": 3, "S": 2, "N": 4}
        assert struct == wider


def test_wrong_length_is_refused_by_name():
    with pytest.raises(EsperError, match=r"^Inner\.alpha_ES: E is 4, but 3 in the fields before"):
        replace(inner(3), alpha_ES=np.zeros((4, 2), np.float32))


def test_wrong_number_of_axes_is_refused_by_name():
    with pytest.raises(EsperError, match=r"^Inner\.alpha_ES: shape \(3,\), expected axes \[E, S\]"):
        replace(inner(3), alpha_ES=np.zeros(3, np.float32))


def test_repeated_letter_means_a_square():
    Square(np.zeros((2, 2), np.float32))
    with pytest.raises(EsperError, match=r"Square\.pair_SS: S is 3, but 2"):
        Square(np.zeros((2, 3), np.float32))


def test_nested_struct_of_another_population_is_refused():
    with pytest.raises(EsperError, match=r"^Outer\.score_E: E is 4, but 3"):
        outer(members=4)


def test_equality_compares_contents_and_nan_equals_nan():
    nan = replace(inner(), loss_E=np.full(3, np.nan, np.float32))
    same = replace(inner(), loss_E=np.full(3, np.nan, np.float32))
    assert nan == same
    assert nan != inner()
    assert inner(3) != inner(4)
    assert inner() != "inner"
    assert outer() == outer()


def test_structs_of_arrays_are_not_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        hash(inner())
