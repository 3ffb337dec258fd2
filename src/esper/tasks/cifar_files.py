"""CIFAR-10 reader (60,000 images of 32x32, ten classes) for both published layouts.

`cifar-10-batches-bin` holds records of one label byte and 3,072 pixel bytes. `cifar-10-batches-py`
holds pickles, which are parsed without executing them (`pickles.py`). Both hold the same images in
the same order, so both are converted to records and verified against the same checksums.

Shape letters: N images, P record bytes, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from esper.leyline.errors import EsperError
from esper.tasks.data_locations import DataSet, check_sha1, damaged, pick_file, read_file
from esper.tasks.pickles import read_plain_pickle
from esper.tasks.spec import TaskData, TaskPart
from esper.tasks.splits import split_validation
from esper.tasks.statistics import channel_statistics

Pixels = npt.NDArray[np.uint8]

BINARY: Final = "cifar-10-batches-bin"
PICKLED: Final = "cifar-10-batches-py"
CIFAR10: Final = DataSet(
    "CIFAR-10",
    (BINARY, PICKLED),
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
)

CLASSES: Final = 10
SHAPE: Final = (3, 32, 32)
PIXELS: Final = 3 * 32 * 32
VALIDATION: Final = 2048
"""Images in val_control and in val_score: four batches of 512."""

RECORD_SHA1: Final = {
    "data_batch_1": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch": "67eb016db431130d61cd03c7ad570b013799c88c",
}
"""SHA-1 of each batch's 10,000 records, computed with sha1sum from the published .bin files; valid
for the pickled layout too, whose file names are not read."""
TRAIN_FILES: Final = tuple(name for name in RECORD_SHA1 if name != "test_batch")


@dataclass(frozen=True, slots=True)
class CifarFiles:
    """Reads CIFAR-10 in either layout and splits the validation parts off the training set."""

    validation: int = VALIDATION
    """Images in each of val_control and val_score, stratified."""
    images_per_file: int = 10_000
    """Images in each of the six files."""
    check_sums: bool = True
    """Whether to verify the published checksums."""

    @property
    def dataset(self) -> DataSet:
        """CIFAR-10."""
        return CIFAR10

    @property
    def nominal_sizes(self) -> tuple[int, int]:
        """Training images after the split, and images in each validation part."""
        return len(TRAIN_FILES) * self.images_per_file - 2 * self.validation, self.validation

    def read(self, folder: Path) -> TaskData:
        """Return the four parts; `test` is the published test set."""
        whole, test = (self._part(folder, names) for names in (TRAIN_FILES, ("test_batch",)))
        return split_validation(whole, test, self.validation, channel_statistics)

    def _part(self, folder: Path, names: tuple[str, ...]) -> TaskPart:
        records_NP = np.concatenate([self._records(folder, name) for name in names])
        images_NCHW = np.ascontiguousarray(records_NP[:, 1:]).reshape(-1, *SHAPE)
        return TaskPart(images_NCHW, records_NP[:, 0].astype(np.int64))

    def _records(self, folder: Path, name: str) -> Pixels:
        """Read and verify one file as records."""
        binary = folder.name != PICKLED
        path = pick_file(folder, (f"{name}.bin" if binary else name,), CIFAR10)
        records_NP = self._read_binary(path) if binary else self._read_pickled(path)
        if records_NP[:, 0].max() >= CLASSES:
            raise damaged(path, f"label {records_NP[:, 0].max()}, valid are 0 to 9", CIFAR10)
        if self.check_sums:
            check_sha1(path, records_NP.tobytes(), RECORD_SHA1[name], CIFAR10)
        return records_NP

    def _read_binary(self, path: Path) -> Pixels:
        size = self.images_per_file * (1 + PIXELS)
        content = read_file(path, size, CIFAR10)
        if len(content) != size:
            raise damaged(path, f"{len(content):,} bytes, expected {size:,}", CIFAR10)
        return np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + PIXELS)

    def _read_pickled(self, path: Path) -> Pixels:
        # pixels, a label and a file name of some dozen letters for each image
        content = read_file(path, self.images_per_file * (PIXELS + 512) + 4096, CIFAR10)
        try:
            batch = read_plain_pickle(content)
        except EsperError as error:
            raise damaged(path, str(error), CIFAR10) from None
        pixels, labels = batch.get(b"data"), batch.get(b"labels")
        wanted = (self.images_per_file, PIXELS)
        if not isinstance(pixels, np.ndarray) or pixels.shape != wanted:
            raise damaged(path, f"holds no 'data' of {wanted} bytes", CIFAR10)
        if not _are_labels(labels, self.images_per_file):
            raise damaged(path, f"holds no 'labels', {wanted[0]} of 0 to 9", CIFAR10)
        return np.concatenate([np.array(labels, dtype=np.uint8)[:, None], pixels], axis=1)


def _are_labels(labels: Any, count: int) -> bool:
    return (
        isinstance(labels, list)
        and len(labels) == count
        and all(type(label) is int and 0 <= label < CLASSES for label in labels)
    )
