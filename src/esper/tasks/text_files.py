"""Text reader: characters as tokens, in sequences of a fixed length.

Validation parts are whole blocks scattered over the text, and sequences never cross blocks, so no
training token is validated on. The vocabulary is that of the training blocks; token 0 stands for
any other character.

Shape letters: L tokens of a text, N sequences, T tokens of a sequence.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from esper.leyline.errors import EsperError
from esper.tasks.data_locations import DataSet, damaged, pick_file, read_file
from esper.tasks.splits import sequences, split_blocks
from esper.tasks.task_data import PARTS, TaskData, TaskPart

Codes = npt.NDArray[np.uint32]

END: Final = "\x03"
"""Single character that replaces a longer end-of-text mark."""


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Reads a training text and optionally a separate test text."""

    dataset: DataSet
    """The data set it reads."""
    train_files: tuple[str, ...]
    """File names of the training text; the first that exists is read."""
    test_files: tuple[str, ...] = ()
    """File names of the test text; if empty, the last `test_share` of the training text is used."""
    vocab: int = 256
    """Vocabulary size, including the token for all other characters."""
    context: int = 64
    """T: sequence length."""
    validation: int = 512
    """Sequences in each of val_control and val_score."""
    max_test: int = 2048
    """Maximum number of test sequences."""
    block: int = 16
    """Sequences in a block."""
    test_share: float = 0.1
    """Fraction split off the end as test text if there is no separate one."""
    max_bytes: int = 4_000_000
    """Bytes read of each file; the rest is ignored."""
    end_mark: str = ""
    """End-of-text mark, replaced by one token; empty: none."""

    def __post_init__(self) -> None:
        if self.vocab < 2:
            raise EsperError(f"vocab={self.vocab}: must be 2 or more")
        if min(self.context, self.block, self.max_test, self.validation) < 1:
            raise EsperError(
                f"context={self.context}, block={self.block}, max_test={self.max_test}, "
                f"validation={self.validation}: all must be 1 or more"
            )
        if self.validation % self.block:
            raise EsperError(
                f"validation={self.validation}: must be a multiple of block={self.block}"
            )
        if not 0 < self.test_share < 1:
            raise EsperError(f"test_share={self.test_share}: must be between 0 and 1")

    @property
    def nominal_sizes(self) -> tuple[int, int]:
        """About 16 thousand sequences, and those of a validation part."""
        return 16_384, self.validation

    def read(self, folder: Path) -> TaskData:
        """Return the four parts as token ids."""
        path = pick_file(folder, self.train_files, self.dataset)
        text_L = self._codes(path)
        if self.test_files:
            test_L = self._codes(pick_file(folder, self.test_files, self.dataset))
        else:
            text_L, test_L = np.split(text_L, [len(text_L) - int(len(text_L) * self.test_share)])
        count = self.validation // self.block
        try:
            blocks = split_blocks(text_L, self.block * self.context + 1, (count, count))
        except EsperError as error:
            raise damaged(path, str(error), self.dataset) from None
        if len(test_L) <= self.context:
            raise damaged(path, f"the test text has {len(test_L)} tokens: too few", self.dataset)
        known = self._vocabulary(blocks[2])
        test_L = test_L[: self.max_test * self.context + 1]
        texts = (blocks[2], blocks[0], blocks[1], test_L[None])
        parts = {
            name: TaskPart(*sequences(_tokens(text, known), self.context))
            for name, text in zip(PARTS, texts, strict=True)
        }
        none = np.zeros(0, dtype=np.float32)
        return TaskData(**parts, mean=none, std=none)

    def _codes(self, path: Path) -> Codes:
        """Read a file as code points."""
        content = read_file(path, self.max_bytes, self.dataset, cut=True)
        whole = len(content) < self.max_bytes
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(content, final=whole)
        except UnicodeDecodeError as error:
            raise damaged(path, f"byte {error.start} is not UTF-8", self.dataset) from None
        text = text.replace(self.end_mark, END) if self.end_mark else text
        return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")

    def _vocabulary(self, train: Codes) -> Codes:
        """The most frequent characters of the training blocks, sorted."""
        codes, counts = np.unique(train, return_counts=True)
        most = np.lexsort((codes, -counts))[: self.vocab - 1]
        return np.sort(codes[most])


def _tokens(text: Codes, known: Codes) -> npt.NDArray[Any]:
    """Return token ids: characters get 1 + their index in `known`, others 0.

    >>> known = np.array([97, 99], dtype=np.uint32)
    >>> _tokens(np.array([97, 98, 99], dtype=np.uint32), known).tolist()
    [1, 0, 2]
    """
    place = np.minimum(np.searchsorted(known, text), len(known) - 1)
    return np.where(known[place] == text, place + 1, 0)
