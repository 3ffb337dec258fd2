"""Host shapes: other networks for the same task."""

from dataclasses import replace

import pytest

from engine_support import small_engine
from esper.tamiyo.baselines import WaitPolicy
from esper.tasks.host_shapes import with_host_shape
from esper.tasks.registry import get_task_spec
from support import refused


@pytest.mark.parametrize("text", ["", "8", "8x3", "8x3k2", "0x3k1", "8x3k1 ", "axbkc", "99999x3k1"])
def test_other_text_is_refused_in_one_line(text):
    assert "for example 8x3k1" in refused(
        lambda: with_host_shape(get_task_spec("digits_impaired"), text)
    )


def test_a_task_runs_with_a_host_of_another_shape():
    spec = with_host_shape(get_task_spec("digits_impaired"), "4x5k3")
    assert len(spec.slots) == 5
    engine = small_engine(replace(spec, episode_length=2, batches_per_step=1), members=2)
    assert engine.env.model.network.slots[0].channels == 4
    engine.run_rollout(WaitPolicy())


def test_a_host_that_is_no_cnn_is_refused():
    spec = get_task_spec("mnist1d_signal")
    assert "no CNN host" in refused(lambda: with_host_shape(spec, "4x3k1"))
