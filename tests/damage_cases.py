"""Seeded damage to files of a run folder, as caused by disks, copies and editors."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OtherRun = Callable[[], Path]
"""Gives the folder of another run; it is trained when first asked for."""
COMMANDS: Final = {"resume": 12, "eval": 3, "compare": 2, "runs": 2}
"""What is then done with the folder, and how often."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What happened to a run folder, and what is done next."""

    seed: int
    file: str
    """From the run folder on."""
    what: str
    """In words, exact enough to do it by hand."""
    command: str


def damage(run: Path, other: OtherRun, seed: int) -> Damage:
    """Damage one file of `run`; `other` is another run that files may be taken from."""
    chance = random.Random(f"damage {seed}")
    path = chosen_file(chance, run)
    command = chance.choices(list(COMMANDS), list(COMMANDS.values()))[0]
    file = str(path.relative_to(run))
    what = chance.choice(KINDS)(chance, path, run, other)
    return Damage(seed, file, what, command)


def chosen_file(chance: random.Random, run: Path) -> Path:
    """Settings and checkpoints more often than events and reports."""
    files = [path for path in sorted(run.rglob("*")) if path.is_file()]
    groups = [
        [run / "config.json"],
        [path for path in files if path.parent == run and path.suffix == ".json"],
        [path for path in files if "checkpoints" in path.parts],
        [path for path in files if "report" in path.parts],
        [path for path in files if "events" in path.parts or path.suffix == ".jsonl"],
        [run / "lock"],
    ]
    return chance.choice(chance.choices(groups, (20, 16, 42, 9, 9, 4))[0])


# ---- kinds of damage ----------------------------------------------------------------------------


def flip_bit(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    content = bytearray(path.read_bytes())
    at, bit = _place(chance, content), chance.randrange(8)
    before = content[at]
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at} flipped, {before:#04x} to {content[at]:#04x}"


def flip_many(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    reported = [flip_bit(chance, path, run, other) for _ in range(chance.randrange(2, 20))]
    return "; ".join(reported)


def change_digit(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    """A file that is as valid as before, and says something else."""
    content = path.read_bytes()
    digits = [found.start() for found in re.finditer(rb"\d", content)]
    if not digits:
        return flip_bit(chance, path, run, other)
    at = digits[int(chance.random() * len(digits))]
    now = str((int(content[at : at + 1]) + chance.randrange(1, 10)) % 10).encode()
    path.write_bytes(content[:at] + now + content[at + 1 :])
    return f"digit at byte {at} made {now.decode()}: {_around(content, at)!r}"


def delete_line(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) < 2:
        return cut(chance, path, run, other)
    at = int(chance.random() * len(lines))
    path.write_bytes(b"".join(lines[:at] + lines[at + 1 :]))
    return f"line {at + 1} deleted: {lines[at][:60]!r}"


def delete_setting(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    """A line that leaves valid JSON behind."""
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [n for n, line in enumerate(lines) if re.fullmatch(rb'\s*"\w+": [^\[{]+,\n', line)]
    if not whole:
        return delete_line(chance, path, run, other)
    at = whole[int(chance.random() * len(whole))]
    path.write_bytes(b"".join(lines[:at] + lines[at + 1 :]))
    return f"line {at + 1} deleted: {lines[at][:60]!r}"


def cut(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    content = path.read_bytes()
    at = _place(chance, content)
    path.write_bytes(content[:at])
    return f"cut at byte {at} of {len(content)}"


def empty(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    path.write_bytes(b"")
    return "emptied"


def delete(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    path.unlink()
    return "deleted"


def make_folder(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    path.unlink()
    path.mkdir()
    if chance.random() < 0.5:
        (path / "inside").write_bytes(b"x")
        return "replaced by a folder with a file in it"
    return "replaced by an empty folder"


def append_garbage(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    some = chance.randbytes(chance.choice((1, 7, 100, 5000)))
    if chance.random() < 0.7:
        path.write_bytes(path.read_bytes() + some)
        return f"{len(some)} bytes appended: {some[:20]!r}"
    path.write_bytes(some + path.read_bytes())
    return f"{len(some)} bytes put before it: {some[:20]!r}"


def zero_block(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    """What a power cut may leave."""
    content = bytearray(path.read_bytes())
    at = _place(chance, content)
    count = min(chance.choice((1, 16, 512)), len(content) - at)
    content[at : at + count] = bytes(count)
    path.write_bytes(content)
    return f"{count} bytes from byte {at} on are 0"


def swap(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    second = chosen_file(chance, run)
    first, last = path.read_bytes(), second.read_bytes()
    path.write_bytes(last)
    second.write_bytes(first)
    return f"exchanged with {second.relative_to(run)}"


def take_other_runs(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    place = other() / path.relative_to(run)
    if not place.is_file():  # named by its content
        place = next(iter(sorted(place.parent.glob(f"{path.name[:7]}*"))), other() / "config.json")
    shutil.copyfile(place, path)
    return "replaced by that of another run"


def take_older(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    """Of the checkpoint before."""
    text = str(path).replace("round-000002", "round-000001")
    place = Path(text)
    if place == path or not place.is_file():
        return take_other_runs(chance, path, run, other)
    shutil.copyfile(place, path)
    return "replaced by that of the checkpoint before"


def delete_parent(chance: random.Random, path: Path, run: Path, other: OtherRun) -> str:
    """With everything beside it."""
    if path.parent == run:
        return delete(chance, path, run, other)
    shutil.rmtree(path.parent)
    return f"deleted with its folder {path.parent.relative_to(run)}"


KINDS: Final[tuple[Callable[[random.Random, Path, Path, OtherRun], str], ...]] = (
    flip_bit, flip_bit, flip_many, change_digit, change_digit, change_digit, delete_line,
    delete_setting, delete_setting, cut, cut, empty, delete, make_folder, append_garbage,
    zero_block, swap, take_other_runs, take_older, delete_parent,
)  # fmt: skip


def _place(chance: random.Random, content: bytes | bytearray) -> int:
    """By its share of the length: files with times in them are not always equally long."""
    return min(int(chance.random() * len(content)), len(content) - 1)


def _around(content: bytes, at: int) -> bytes:
    return content[max(0, at - 25) : at + 10]
