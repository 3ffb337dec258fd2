"""Image files in the published layouts are read exactly; every kind of damage is one line."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_support import (
    BATCHES,
    PER_FILE,
    array,
    cifar_pickle,
    cifar_sums,
    fashion_sums,
    gzipped,
    idx,
    made_up_batch,
    mnist1d_arrays,
    text,
    unless_refused,
    write_cifar_binary,
    write_cifar_pickled,
    write_fashion,
    write_mnist1d,
)
from esper.tasks import cifar_files, fashion_mnist
from esper.tasks.cifar_files import CifarFiles
from esper.tasks.fashion_mnist import FashionFiles
from esper.tasks.mnist1d import Mnist1dFiles
from esper.tasks.task_data import PARTS
from support import refused

CIFAR = CifarFiles(validation=10, images_per_file=PER_FILE)
FASHION = FashionFiles(validation=10, train_images=60, test_images=20)
SIGNALS = Mnist1dFiles(validation=10, train_signals=60, test_signals=20)
PUBLISHED = cifar_files.RECORD_SHA1, fashion_mnist.CONTENT_SHA1


@pytest.fixture(autouse=True)
def sums_of_the_made_up_files(monkeypatch):
    monkeypatch.setattr(cifar_files, "RECORD_SHA1", cifar_sums())
    monkeypatch.setattr(fashion_mnist, "CONTENT_SHA1", fashion_sums())


def as_found(data) -> list[bytes]:
    """The training set as it was before the cut, order aside."""
    parts = [getattr(data, name) for name in PARTS[:3]]
    return sorted(
        bytes([label]) + x.tobytes()
        for p in parts
        for x, label in zip(p.inputs, p.labels, strict=True)
    )


# ---- CIFAR-10 --------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_cifar_binary, write_cifar_pickled])
def test_cifar_is_read_exactly(tmp_path, write):
    data = CIFAR.read(write(tmp_path))
    assert [len(getattr(data, name)) for name in PARTS] == [80, 10, 10, 20]
    assert CIFAR.nominal_sizes == (80, 10)
    pixels, labels = made_up_batch("test_batch")
    assert (data.test.inputs == pixels.reshape(-1, 3, 32, 32)).all()
    assert (data.test.labels == labels).all()
    batches = [made_up_batch(name) for name in BATCHES]
    wanted = [bytes([y]) + x.tobytes() for xs, ys in batches for x, y in zip(xs, ys, strict=True)]
    assert as_found(data) == sorted(wanted)
    assert (np.bincount(data.val_control.labels) == 1).all()
    assert np.allclose(data.mean, data.train.inputs.mean(axis=(0, 2, 3)))


def test_both_layouts_of_cifar_give_the_same_data(tmp_path):
    binary = CIFAR.read(write_cifar_binary(tmp_path / "a"))
    pickled = CIFAR.read(write_cifar_pickled(tmp_path / "b"))
    for name in PARTS:
        assert (getattr(binary, name).inputs == getattr(pickled, name).inputs).all()
        assert (getattr(binary, name).labels == getattr(pickled, name).labels).all()


@pytest.mark.parametrize("write", [write_cifar_binary, write_cifar_pickled])
def test_content_that_is_not_the_published_one_is_refused(tmp_path, write, monkeypatch):
    monkeypatch.setattr(cifar_files, "RECORD_SHA1", PUBLISHED[0])
    line = refused(lambda: CIFAR.read(write(tmp_path)))
    assert "data_batch_1" in line
    assert "SHA-1" in line
    assert "published aadd24acce27" in line
    assert "get it again from https://" in line


@pytest.mark.parametrize("write", [write_cifar_binary, write_cifar_pickled])
def test_a_missing_cifar_file_is_named(tmp_path, write):
    folder = write(tmp_path)
    next(folder.glob("data_batch_3*")).unlink()
    line = refused(lambda: CIFAR.read(folder))
    assert "data_batch_3" in line
    assert "no such file" in line


@pytest.mark.parametrize(
    "change", [lambda c: c[:-1], lambda c: c + b"x", lambda c: b"", lambda c: b"\x0a" + c[1:]]
)
def test_a_binary_file_with_something_else_is_refused(tmp_path, change):
    path = write_cifar_binary(tmp_path) / "data_batch_2.bin"
    path.write_bytes(change(path.read_bytes()))
    line = refused(lambda: CIFAR.read(path.parent))
    assert f"{path}: its content has SHA-1" in line


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\x02}" + text(b"data") + b"cos\nsystem\nU\x01a\x85Rs.", "SHA-1"),
        (b"\x80\x02}.", "SHA-1"),
        (b"\x80\x02}" + text(b"data") + array(made_up_batch("x", 7)[0]) + b"s.", "SHA-1"),
        (b"\x80\x02}" + text(b"data") + array(made_up_batch("x")[0]) + b"s.", "SHA-1"),
        (cifar_pickle(*made_up_batch("x"))[:-5000], "SHA-1"),
        (cifar_pickle(made_up_batch("x")[0], np.full(PER_FILE, 10)), "SHA-1"),
        (cifar_pickle(made_up_batch("x")[0], np.zeros(5, int)), "SHA-1"),
        (b"x" * 10_000, "SHA-1"),
        (b"x" * 1_000_000, "expected at most"),
    ],
)
def test_a_pickled_file_that_holds_something_else_is_refused(tmp_path, content, words):
    path = write_cifar_pickled(tmp_path) / "data_batch_4"
    path.write_bytes(content)
    line = refused(lambda: CIFAR.read(path.parent))
    assert words in line
    assert str(path) in line


@pytest.fixture
def pickled(tmp_path, monkeypatch):
    """A folder of the pickled layout whose sums are known."""
    monkeypatch.setattr(cifar_files, "RECORD_SHA1", cifar_sums(4))
    return write_cifar_pickled(tmp_path, count=4)


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_pickle_is_refused_or_equal(pickled, data):
    files = CifarFiles(validation=2, images_per_file=4)
    path = pickled / "test_batch"
    good = path.read_bytes()
    bits = data.draw(st.lists(st.integers(0, len(good) * 8 - 1), max_size=3))
    content = bytearray(good)
    for bit in bits:
        content[bit // 8] ^= 1 << bit % 8
    length = data.draw(st.one_of(st.just(len(good)), st.integers(0, len(good))))
    path.write_bytes(content[:length])
    found = unless_refused(lambda: files.read(pickled))
    path.write_bytes(good)
    if found is None:
        assert bits or length < len(good)
    else:
        assert (found.test.inputs.reshape(4, -1) == made_up_batch("test_batch", 4)[0]).all()
        assert (found.test.labels == made_up_batch("test_batch", 4)[1]).all()


# ---- Fashion-MNIST ---------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_is_read_exactly(tmp_path, packed):
    data = FASHION.read(write_fashion(tmp_path, packed=packed))
    assert [len(getattr(data, name)) for name in PARTS] == [40, 10, 10, 20]
    assert FASHION.nominal_sizes == (40, 10)
    wanted = np.random.default_rng(20).integers(0, 256, (20, 1, 28, 28))
    assert (data.test.inputs == wanted).all()
    assert (data.test.labels == np.arange(20) % 10).all()
    assert (np.bincount(data.val_score.labels) == 1).all()


def test_fashion_as_torchvision_lays_it_out(tmp_path):
    import dataclasses

    from esper.tasks.registry import get_task_spec

    (tmp_path / "FashionMNIST").mkdir()
    write_fashion(tmp_path, packed=False).rename(tmp_path / "FashionMNIST" / "raw")
    spec = dataclasses.replace(get_task_spec("fashion_mnist"), load_data=FASHION, batch_size=8)
    assert len(spec.load(tmp_path).train) == 40


TRAIN_IMAGES = idx(np.zeros((60, 28, 28)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzipped(TRAIN_IMAGES)[:-20], "cannot be unpacked"),
        (b"not packed", "cannot be unpacked"),
        (gzipped(TRAIN_IMAGES)[:-8] + b"\0" * 8, "cannot be unpacked"),
        (gzipped(b"\0\0\x0d" + TRAIN_IMAGES[3:]), "SHA-1"),
        (gzipped(b""), "SHA-1"),
        (gzipped(idx(np.zeros((61, 28, 28)))), "SHA-1"),
        (gzipped(TRAIN_IMAGES[:-1]), "SHA-1"),
        (gzipped(TRAIN_IMAGES + b"\0" * 50_000_000), "expected at most"),
    ],
)
def test_damage_in_fashion_is_one_line(tmp_path, content, words):
    path = write_fashion(tmp_path) / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    line = refused(lambda: FASHION.read(path.parent))
    assert words in line
    assert str(path) in line


def test_a_small_file_that_holds_very_much_is_not_unpacked_whole(tmp_path):
    path = write_fashion(tmp_path) / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzipped(TRAIN_IMAGES + b"\0" * 40_000_000))
    assert path.stat().st_size < len(TRAIN_IMAGES)
    tracemalloc.start()
    try:
        assert "SHA-1" in refused(lambda: FASHION.read(path.parent))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_sums_and_missing_files_of_fashion_are_checked(tmp_path, monkeypatch):
    folder = write_fashion(tmp_path)
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzipped(idx(np.full(20, 10))))
    assert f"{labels}: its content has SHA-1" in refused(lambda: FASHION.read(folder))
    labels.unlink()
    assert "t10k-labels-idx1-ubyte.gz: no such file" in refused(lambda: FASHION.read(folder))
    monkeypatch.setattr(fashion_mnist, "CONTENT_SHA1", PUBLISHED[1])
    assert "published b9bd999c0106" in refused(lambda: FASHION.read(folder))


def test_a_packed_file_that_is_a_folder_is_one_line(tmp_path):
    path = write_fashion(tmp_path) / "train-images-idx3-ubyte.gz"
    path.unlink()
    path.mkdir()
    assert "no such file" in refused(lambda: FASHION.read(path.parent))


# ---- MNIST-1D --------------------------------------------------------------------------------


def test_mnist1d_is_read_exactly(tmp_path):
    data = SIGNALS.read(write_mnist1d(tmp_path))
    assert [len(getattr(data, name)) for name in PARTS] == [40, 10, 10, 20]
    assert data.kind == "images"
    assert data.sample_shape == (1, 1, 40)
    assert SIGNALS.nominal_sizes == (40, 10)
    wanted = mnist1d_arrays()["x_test"].astype(np.float32)
    assert (data.test.inputs[:, 0, 0] == wanted).all()
    normalised = data.normalised(data.train)
    assert abs(normalised.mean()) < 1e-5
    assert abs(normalised.std() - 1) < 1e-5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.zeros((59, 40))}, "'x' is (59, 40)"),
        ({"x": np.zeros((60, 40), dtype=int)}, "of int64, expected (60, 40) of f8"),
        ({"x": np.zeros((400, 400))}, "'x' is (400, 400)"),
        ({"x": np.full((60, 40), np.nan)}, "not finite"),
        ({"x": np.full((60, 40), 1e300)}, "not finite"),
        ({"x": np.array([{"a": 1}], dtype=object)}, "Object arrays cannot be loaded"),
        ({"y": np.full(60, 10)}, "valid are 0 to 9"),
        ({"y_test": np.full(20, -1)}, "holds -1 to -1"),
    ],
)
def test_mnist1d_of_another_form_is_one_line(tmp_path, changes, words):
    folder = write_mnist1d(tmp_path, **changes)
    line = refused(lambda: SIGNALS.read(folder))
    assert words in line
    assert str(folder / "mnist1d.npz") in line


def lying_archive(head: bytes) -> bytes:
    """An npz whose `x` begins with `head`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", head)
    return out.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        lying_archive(b""),
        lying_archive(b"\x93NUMPY\x01\x00\xff\xff{"),
        lying_archive(b"\x93NUMPY\x09\x00"),
        lying_archive(b"\x93NUMPY\x01\x00\x10\x00" + b"__import__('os')"),
        lying_archive(b"\x80\x04cos\nsystem\n"),
        lying_archive(idx(np.zeros((2, 2)))),
    ],
)
def test_an_archive_that_is_none_is_one_line(tmp_path, content):
    path = write_mnist1d(tmp_path) / "mnist1d.npz"
    path.write_bytes(content)
    assert str(path) in refused(lambda: SIGNALS.read(path.parent))


@given(data=st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_archive_is_refused_or_equal(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "signals"
    path = (folder if folder.exists() else write_mnist1d(folder).parent) / "mnist1d" / "mnist1d.npz"
    good = path.read_bytes()
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    content = bytearray(good)
    content[bit // 8] ^= 1 << bit % 8
    cut = data.draw(st.one_of(st.just(len(good)), st.integers(0, len(good))))
    path.write_bytes(content[:cut])
    found = unless_refused(lambda: SIGNALS.read(path.parent))
    path.write_bytes(good)
    if found is not None:
        wanted = mnist1d_arrays()["x_test"].astype(np.float32)
        assert (found.test.inputs[:, 0, 0] == wanted).all()
