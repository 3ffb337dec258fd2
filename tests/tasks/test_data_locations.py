"""Data are looked for where the design says, and what is missing is one line with the ways out."""

import pytest

from data_support import PER_FILE, cifar_sums, write_cifar_binary, write_cifar_pickled
from esper.tasks import cifar_files
from esper.tasks.cifar_files import CIFAR10, CifarFiles
from esper.tasks.data_locations import (
    VARIABLE,
    DataSet,
    data_directories,
    find_data,
    locate_data,
    read_file,
)
from esper.tasks.registry import get_task_spec
from support import refused


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    """An empty working folder, and no variable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)


def test_the_argument_comes_before_the_variable_and_the_variable_before_the_folder(
    tmp_path, monkeypatch
):
    for place in ("data", "named", "given"):
        write_cifar_binary(tmp_path / place)
    assert find_data(CIFAR10).parent.name == "data"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
    assert find_data(CIFAR10).parent.name == "named"
    assert find_data(CIFAR10, tmp_path / "given").parent.name == "given"


def test_where_the_variable_has_nothing_the_folder_is_still_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
    write_cifar_binary(tmp_path / "data")
    assert find_data(CIFAR10).parent.name == "data"


def test_an_empty_variable_is_no_place(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    assert len(data_directories()) == 1


def test_missing_data_name_both_places_the_source_and_the_synthetic_data(tmp_path, monkeypatch):
    spec = get_task_spec("cifar_baseline")
    line = refused(spec.load)
    for words in (
        "CIFAR-10",
        "$ESPER_DATA_DIR (not set)",
        f"./data ({tmp_path / 'data'})",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "cifar-10-batches-bin/ or cifar-10-batches-py/",
        "--data synthetic",
    ):
        assert words in line
    monkeypatch.setenv(VARIABLE, "/nowhere")
    assert "$ESPER_DATA_DIR (/nowhere)" in refused(spec.load)


def test_an_argument_is_the_only_place(tmp_path):
    write_cifar_binary(tmp_path / "data")
    line = refused(lambda: get_task_spec("cifar_baseline").load(tmp_path / "other"))
    assert f"is not in --data-dir {tmp_path / 'other'}:" in line


@pytest.mark.parametrize("write", [write_cifar_binary, write_cifar_pickled])
def test_a_spec_reads_from_the_place_it_is_given(tmp_path, write, monkeypatch):
    import dataclasses

    monkeypatch.setattr(cifar_files, "RECORD_SHA1", cifar_sums())
    small = CifarFiles(validation=10, images_per_file=PER_FILE)
    spec = dataclasses.replace(get_task_spec("cifar_baseline"), load_data=small, batch_size=8)
    write(tmp_path / "mine")
    assert len(spec.load(tmp_path / "mine").train) == 5 * PER_FILE - 20


def test_tasks_without_files_need_no_place(tmp_path):
    assert len(get_task_spec("digits_baseline").load(tmp_path / "nowhere").train) == 989


def test_a_file_that_may_not_be_read_is_one_line(users_folder):
    path = users_folder / "x"
    path.write_bytes(b"a")
    path.chmod(0)
    assert "Permission denied" in refused(lambda: read_file(path, 10, CIFAR10))


def test_a_folder_in_place_of_a_file_is_one_line(tmp_path):
    assert "cannot be read" in refused(lambda: read_file(tmp_path, 10, CIFAR10))


def test_the_error_is_raised_before_anything_is_read():
    assert "is not in" in refused(lambda: locate_data(DataSet("Nothing", ("a", "b"), "nowhere")))
