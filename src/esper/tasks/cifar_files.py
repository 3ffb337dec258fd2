"""CIFAR-10 reader (60,000 images of 32x32, ten classes) for both published layouts.

`cifar-10-batches-bin` holds records of one label byte and 3,072 pixel bytes. `cifar-10-batches-py`
holds pickles, which are not unpickled: pixels are one string in them, labels a list of small
integers, and both are cut out by pattern. Both layouts hold the same images in the same order, so
both are converted to records and verified against the same checksums.

Shape letters: N images, P record bytes, C channels, H height, W width.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from esper.tasks.data_locations import DataSet, check_sha1, pick_file, read_file
from esper.tasks.splits import split_validation
from esper.tasks.statistics import channel_statistics
from esper.tasks.task_data import TaskData, TaskPart

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
_LABELS: Final = re.compile(rb"labels(?:q.)?](?:q.)?((?:\((?:K[\0-\x09])+e)+)", re.DOTALL)
"""The list in a pickle of protocol 2: groups of `(`, labels after a K each, and `e`."""
TRAIN_FILES: Final = tuple(name for name in RECORD_SHA1 if name != "test_batch")


@dataclass(frozen=True, slots=True)
class CifarFiles:
    """Reads CIFAR-10 in either layout and splits the validation parts off the training set."""

    dataset: ClassVar[DataSet] = CIFAR10
    validation: int = VALIDATION
    """Images in each of val_control and val_score, stratified."""
    images_per_file: int = 10_000
    """Images in each of the six files."""

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
        """Read and verify one file as records; what is damaged has another checksum."""
        binary = folder.name != PICKLED
        path = pick_file(folder, (f"{name}.bin" if binary else name,), CIFAR10)
        # A pickle also holds a file name of some dozen letters for each image.
        content = read_file(path, self.images_per_file * (PIXELS + 512) + 4096, CIFAR10)
        records = content if binary else self._unpickled(content)
        check_sha1(path, records, RECORD_SHA1[name], CIFAR10)
        return np.frombuffer(records, dtype=np.uint8).reshape(-1, 1 + PIXELS)

    def _unpickled(self, content: bytes) -> bytes:
        """Return the records of a pickled file; empty if it does not hold as many."""
        count, size = self.images_per_file, self.images_per_file * PIXELS
        start = content.find(b"T" + size.to_bytes(4, "little")) + 5
        found = _LABELS.search(content, 0, start)
        labels = b"" if found is None else found[1].translate(None, b"(Ke")
        pixels = content[start : start + size]
        if (len(labels), len(pixels)) != (count, size):
            return b""
        pixels_NP = np.frombuffer(pixels, np.uint8).reshape(count, PIXELS)
        return np.insert(pixels_NP, 0, np.frombuffer(labels, np.uint8), axis=1).tobytes()
