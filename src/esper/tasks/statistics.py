"""What inputs are normalised with: mean and deviation over the training part, by channel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Floats


def channel_statistics(images_NCHW: npt.NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Mean and deviation of each channel, exact: whole numbers are added up."""
    channels = range(images_NCHW.shape[1])
    histograms = [np.bincount(images_NCHW[:, c].ravel(), minlength=256) for c in channels]
    value = np.arange(256, dtype=np.float64)
    share = np.stack(histograms) / (images_NCHW.size / len(histograms))
    mean_C = share @ value
    std_C = np.sqrt((share * (value - mean_C[:, None]) ** 2).sum(axis=1))
    return mean_C.astype(np.float32), std_C.astype(np.float32)


def value_statistics(values: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Mean and deviation of all values, as those of one channel."""
    values = values.astype(np.float64)
    return np.array([values.mean()], np.float32), np.array([values.std()], np.float32)
