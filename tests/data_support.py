"""Small files in the layouts that data sets are published in, for tests without the real ones."""

import gzip
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from esper.leyline.errors import EsperError

R = TypeVar("R")

PIXELS = 3 * 32 * 32
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
PER_FILE = 20
NUMPY_CORE = b"numpy.core.multiarray"


def made_up_batch(name: str, count: int = PER_FILE) -> tuple[np.ndarray, np.ndarray]:
    """Pixels `[count, 3072]` and labels of one file; every file has others."""
    generator = np.random.default_rng(sum(name.encode()))
    labels = generator.permutation(np.arange(count) % 10)
    return generator.integers(0, 256, (count, PIXELS), dtype=np.uint8), labels


def made_up_records(name: str, count: int = PER_FILE) -> bytes:
    pixels, labels = made_up_batch(name, count)
    return np.concatenate([labels.astype(np.uint8)[:, None], pixels], axis=1).tobytes()


def cifar_sums(count: int = PER_FILE) -> dict[str, str]:
    """What stands in for the published checksums."""
    names = (*BATCHES, "test_batch")
    return {name: hashlib.sha1(made_up_records(name, count)).hexdigest() for name in names}


def write_cifar_binary(place: Path, count: int = PER_FILE) -> Path:
    folder = place / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (*BATCHES, "test_batch"):
        (folder / f"{name}.bin").write_bytes(made_up_records(name, count))
    return folder


def write_cifar_pickled(place: Path, count: int = PER_FILE) -> Path:
    folder = place / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*BATCHES, "test_batch"):
        (folder / name).write_bytes(cifar_pickle(*made_up_batch(name, count)))
    return folder


def text(value: bytes) -> bytes:
    """A string as Python 2 wrote it."""
    short = len(value) < 256
    return (
        b"U" + bytes([len(value)]) + value
        if short
        else b"T" + struct.pack("<i", len(value)) + value
    )


def whole(value: int) -> bytes:
    """An integer, in as few bytes as Python 2 took."""
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return (
        b"M" + struct.pack("<H", value) if 0 <= value < 65536 else b"J" + struct.pack("<i", value)
    )


def array(pixels: np.ndarray) -> bytes:
    """An array of bytes: `_reconstruct` called, then its state set."""
    dtype = b"cnumpy\ndtype\nq\x0a" + text(b"u1") + b"K\x00K\x01\x87Rq\x0b"
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = whole(pixels.shape[0]) + whole(pixels.shape[1]) + b"\x86"
    return (
        b"c" + NUMPY_CORE + b"\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
        b"(K\x01" + shape + dtype + b"\x89" + text(pixels.tobytes()) + b"tb"
    )


def stored(place: int) -> bytes:
    """The value just written goes to this place of the memo."""
    return b"q" + bytes([place]) if place < 256 else b"r" + struct.pack("<I", place)


def filled(items: list[bytes]) -> bytes:
    """What fills a list: Python 2 appended a thousand at a time, and one left over by itself."""
    groups = [items[at : at + 1000] for at in range(0, len(items), 1000)]
    return b"".join(
        b"(" + b"".join(group) + b"e" if len(group) > 1 else group[0] + b"a" for group in groups
    )


def picture_names(count: int) -> list[bytes]:
    """File names of the published kind."""
    return [f"picture_s_{number:06d}.png".encode() for number in range(count)]


def cifar_pickle(
    pixels: np.ndarray, labels: np.ndarray, batch_label: bytes = b"training batch 1 of 5"
) -> bytes:
    """A batch byte for byte as Python 2's cPickle wrote the published ones: protocol 2, its keys in
    that order, and in the memo (from 1 on) what was referred to more than once."""
    numbers = [whole(label) for label in labels.tolist()]
    names = [
        text(name) + stored(0x0E + place) for place, name in enumerate(picture_names(len(labels)))
    ]
    return (
        b"\x80\x02}q\x01(" + text(b"batch_label") + b"q\x02" + text(batch_label)
        + b"q\x03" + text(b"labels") + b"q\x04]q\x05" + filled(numbers)
        + text(b"data") + b"q\x06" + array(pixels) + text(b"filenames") + b"q\x0c]q\x0d"
        + filled(names) + b"u."
    )  # fmt: skip


def idx(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return head + values.astype(np.uint8).tobytes()


def gzipped(content: bytes) -> bytes:
    """Packed without the time of day, so that the same content is the same bytes."""
    return gzip.compress(content, mtime=0)


def fashion_files(train: int = 60, test: int = 20) -> dict[str, bytes]:
    """Content by file name."""
    files = {}
    for stem, count in (("train", train), ("t10k", test)):
        generator = np.random.default_rng(count)
        files[f"{stem}-images-idx3-ubyte"] = idx(generator.integers(0, 256, (count, 28, 28)))
        files[f"{stem}-labels-idx1-ubyte"] = idx(np.arange(count) % 10)
    return files


def fashion_sums() -> dict[str, str]:
    """What stands in for the published checksums."""
    return {name: hashlib.sha1(content).hexdigest() for name, content in fashion_files().items()}


def write_fashion(place: Path, packed: bool = True) -> Path:
    folder = place / "fashion-mnist"
    folder.mkdir(parents=True)
    for name, content in fashion_files().items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzipped(content))
        else:
            (folder / name).write_bytes(content)
    return folder


def mnist1d_arrays(train: int = 60, test: int = 20) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "x": generator.standard_normal((train, 40)),
        "y": np.arange(train) % 10,
        "x_test": generator.standard_normal((test, 40)),
        "y_test": np.arange(test) % 10,
        "t": np.linspace(-5, 5, 40),
    }


def write_mnist1d(place: Path, **changes: np.ndarray) -> Path:
    folder = place / "mnist1d"
    folder.mkdir(parents=True)
    np.savez_compressed(folder / "mnist1d.npz", **(mnist1d_arrays() | changes))
    return folder


def some_text(characters: int, alphabet: str = "abcdefgh \n", seed: int = 0) -> str:
    generator = np.random.default_rng(seed)
    return "".join(np.array(list(alphabet))[generator.integers(0, len(alphabet), characters)])


def unless_refused(action: Callable[[], R]) -> R | None:
    """What an action returns, None where it is refused in one line; nothing else may happen."""
    try:
        return action()
    except EsperError as error:
        line = str(error)
    if "\n" in line:
        raise AssertionError(f"more than one line: {line}")
    return None
