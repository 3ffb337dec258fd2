"""Stream keys: the same whatever E is, all different, stable, and unrelated to their neighbours."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.streams import GOLDEN, MIX_1, mix64, stream_keys, stream_seed, text_number

MASK = 2**64 - 1


def mix64_by_hand(word: int) -> int:
    """Splitmix64's finaliser on Python integers, which do not overflow."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def key_by_hand(seed: int, *path: str | int) -> int:
    key = mix64_by_hand((seed + MIX_1) & MASK)
    for part in path:
        word = 2**48 + zlib.crc32(part.encode()) if isinstance(part, str) else part & MASK
        step = mix64_by_hand((word + GOLDEN) & MASK)
        key = mix64_by_hand(((key ^ step) + GOLDEN) & MASK)
    return key


def test_names_in_an_array_are_the_names_alone():
    names = ["r0c0", "r0c1", "r2c0"]
    numbers = np.array([text_number(name) for name in names])
    together = stream_keys(5, "slot", numbers, "birth", np.arange(3))
    alone = [int(stream_keys(5, "slot", name, "birth", at)) for at, name in enumerate(names)]
    assert together.tolist() == alone


def test_mix_is_splitmix64():
    """The first numbers the published generator gives for seed 0."""
    counters = np.array([GOLDEN, 2 * GOLDEN & MASK, 3 * GOLDEN & MASK], dtype=np.uint64)
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mix64(counters).tolist() == published


@given(
    st.integers(0, 2**63),
    st.lists(st.text(max_size=5) | st.integers(-(2**63), 2**63 - 1), max_size=6),
)
def test_keys_equal_exact_integer_arithmetic(seed: int, path: list[str | int]):
    assert int(stream_keys(seed, *path)) == key_by_hand(seed, *path)


def test_keys_are_stable():
    """A change here changes every run ever recorded."""
    assert hex(int(stream_keys(0, "round", 0, "member", 0))) == "0x9c7e4b3df48edd46"
    assert hex(int(stream_keys(7, "round", 2, "member", 3, "slot", "r0c1"))) == "0x6639cc4e9feb2d"
    assert stream_seed(42, "host") == 1_973_118_181_296_374_312


@pytest.mark.parametrize("members", [1, 2, 7, 64, 1000])
def test_member_key_does_not_depend_on_the_number_of_members(members: int):
    alone = [int(stream_keys(5, "round", 1, "member", i)) for i in range(min(members, 20))]
    together = stream_keys(5, "round", 1, "member", np.arange(members))
    assert together.shape == (members,)
    assert together[:20].tolist() == alone


def test_array_parts_broadcast():
    rounds, members = np.arange(3)[:, None], np.arange(4)
    grid = stream_keys(5, rounds, members, "data")
    assert grid.shape == (3, 4)
    assert grid[2, 3] == stream_keys(5, 2, 3, "data")


def test_keys_are_distinct_over_100_000_paths():
    seeds = [
        stream_keys(seed, np.arange(50)[:, None], np.arange(50), purpose)
        for seed in range(10)
        for purpose in ("host", "data", "augment", "seed")
    ]
    keys = np.concatenate([block.ravel() for block in seeds])
    assert keys.size == 100_000
    assert np.unique(keys).size == keys.size


def test_text_and_numbers_name_different_streams():
    assert stream_keys(1, "host") != stream_keys(1, zlib.crc32(b"host"))


def test_order_of_the_path_matters():
    assert stream_keys(1, 2, 3) != stream_keys(1, 3, 2)
    assert stream_keys(1, "a", "b") != stream_keys(1, "b", "a")
    assert stream_keys(1, 2) != stream_keys(2, 1)


def test_adjacent_keys_are_uncorrelated():
    n = 20_000
    keys = stream_keys(0, "round", 0, "member", np.arange(n))
    uniform = keys.astype(np.float64) / 2**64
    correlation = np.corrcoef(uniform[:-1], uniform[1:])[0, 1]
    assert abs(correlation) < 4 / np.sqrt(n)
    assert abs(uniform.mean() - 0.5) < 4 * np.sqrt(1 / 12 / n)
    flipped = np.unpackbits((keys[:-1] ^ keys[1:]).view(np.uint8).reshape(-1, 8), axis=1)
    assert np.abs(flipped.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(n)


def test_stream_seed_is_one_key_and_fits_a_generator():
    seeds = [stream_seed(3, "member", i) for i in range(100)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds[9] == int(stream_keys(3, "member", 9)) & (2**63 - 1)
    np.random.default_rng(seeds[0])


def test_keys_warn_of_nothing():
    with np.errstate(all="raise"):
        stream_keys(2**64 - 1, -1, 2**63 - 1, "x", np.arange(3))
