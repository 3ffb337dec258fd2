"""A data set is published as a training and a test set; which four parts does a task make of it?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from esper.leyline.arrays import Floats
from esper.tasks.cuts import cut_counts
from esper.tasks.spec import TaskData, TaskPart


def cut_validation(
    whole: TaskPart,
    test: TaskPart,
    validation: int,
    statistics: Callable[[npt.NDArray[Any]], tuple[Floats, Floats]],
) -> TaskData:
    """`validation` samples of the training set each for val_control and val_score, by class.

    `statistics`: mean and deviation of what is left to train on.
    """
    control, score, train = (
        TaskPart(whole.inputs[chosen], whole.labels[chosen])
        for chosen in cut_counts(whole.labels, (validation, validation))
    )
    mean_C, std_C = statistics(train.inputs)
    return TaskData(train, val_control=control, val_score=score, test=test, mean=mean_C, std=std_C)
