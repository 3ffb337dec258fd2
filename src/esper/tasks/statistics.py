"""Mean and standard deviation for normalising inputs, per channel or column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Floats


def channel_statistics(images_NCHW: npt.NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Return mean and std of each channel, exact: pixels are summed as integers."""
    channels = range(images_NCHW.shape[1])
    histograms = [np.bincount(images_NCHW[:, c].ravel(), minlength=256) for c in channels]
    value = np.arange(256, dtype=np.float64)
    share = np.stack(histograms) / (images_NCHW.size / len(histograms))
    mean_C = share @ value
    std_C = np.sqrt((share * (value - mean_C[:, None]) ** 2).sum(axis=1))
    return mean_C.astype(np.float32), std_C.astype(np.float32)


def value_statistics(
    values: npt.NDArray[np.generic], axes: tuple[int, ...] | None = None
) -> tuple[Floats, Floats]:
    """Return mean and std over these axes; None: of all values, as one channel."""
    values = values.astype(np.float64)
    mean_C, std_C = np.atleast_1d(values.mean(axis=axes), values.std(axis=axes))
    return mean_C.astype(np.float32), std_C.astype(np.float32)
