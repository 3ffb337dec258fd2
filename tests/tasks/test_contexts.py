"""Contexts: drawn from named streams, applied to data, refused in one line where they cannot be."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine_support import small_task
from esper.kasmina.lifecycle.caps import SeedCosts
from esper.leyline import FIXED, VARIED, ContextSpec, Range
from esper.leyline.context import NAMED_CONTEXTS, RoundContext
from esper.tasks import context_data
from esper.tasks.context_data import RoundData
from esper.tasks.context_files import context_text, read_context
from esper.tasks.contexts import (
    MIN_BATCHES,
    chance_of,
    draw_members,
    draw_round,
    require_contexts_fit,
    train_samples,
)
from esper.tasks.task_data import TaskData, TaskPart
from support import refused

COSTS = SeedCosts(100, 1000, np.array([[50, 200]]), np.array([[500, 4000]]), np.array([8]))
FITS = np.ones((1, 2), dtype=bool)
TASK = small_task()
DATA = TASK.load()


def members(spec=VARIED, seed=3, round_index=0, ids=range(400)):
    return draw_members(spec, seed, round_index, np.array(ids), COSTS, FITS)


# ---- draws -----------------------------------------------------------------------------------


def test_draws_do_not_depend_on_the_number_of_members():
    few, many = members(ids=range(3)), members()
    for name in ("price_E", "learning_rate_E", "params_cap_E", "macs_cap_E"):
        assert getattr(few, name).tolist() == getattr(many, name)[:3].tolist()
    picked = members(ids=[7, 7, 2])
    assert picked.price_E.tolist() == many.price_E[[7, 7, 2]].tolist()


def test_rounds_and_seeds_differ():
    assert members(round_index=1).price_E.tolist() != members().price_E.tolist()
    assert members(seed=4).price_E.tolist() != members().price_E.tolist()


def test_member_draws_are_log_uniform_in_their_ranges():
    found = members(ids=range(4000))
    for values, low, high in (
        (found.price_E, 0.1, 4.0),
        (found.learning_rate_E, 0.3, 3.0),
    ):
        assert (values >= low).all()
        assert (values <= high).all()
        middle = math.exp((math.log(low) + math.log(high)) / 2)
        assert np.mean(values < middle) == pytest.approx(0.5, abs=0.04)
    capped_E = np.isfinite(found.params_cap_E)
    assert capped_E.mean() == pytest.approx(0.5, abs=0.04)
    assert (capped_E == np.isfinite(found.macs_cap_E)).all()
    assert found.params_cap_E[capped_E].min() >= 100
    assert found.params_cap_E[capped_E].max() <= 300
    assert found.macs_cap_E[capped_E].max() <= 5000


def test_a_fixed_spec_draws_the_task_as_it_is():
    found = members(FIXED)
    assert (found.price_E == 1).all()
    assert (found.learning_rate_E == 1).all()
    assert np.isinf(found.params_cap_E).all()
    assert draw_round(FIXED, TASK, 3, 5, 9.0) == RoundContext()


def test_round_draws_stay_in_their_ranges():
    rounds = [draw_round(VARIED, TASK, 3, r, 6.0) for r in range(300)]
    assert all(1 <= c.budget <= 6 for c in rounds)
    assert np.mean([c.permuted for c in rounds]) == pytest.approx(0.2, abs=0.08)
    assert all(0.03 <= c.data_share <= 1 and 0 <= c.label_noise <= 0.4 for c in rounds)
    maps = [c.label_map for c in rounds if c.label_map is not None]
    assert {max(m) + 1 for m in maps} == set(range(2, TASK.num_classes))
    assert all(set(m) == set(range(max(m) + 1)) for m in maps), "no group is empty"


# ---- data ------------------------------------------------------------------------------------


def part(name: str, context: RoundContext, seed: int = 0):
    return as_part(RoundData(DATA, context, seed, 2), name)


def as_part(data: RoundData, name: str) -> TaskPart:
    inputs, labels = data.part(name, torch.device("cpu"))
    return TaskPart(inputs.numpy(), labels.numpy())


def test_the_plain_context_leaves_the_data_alone():
    for name in ("train", "val_control", "val_score", "test"):
        same, before = part(name, RoundContext()), getattr(DATA, name)
        assert np.array_equal(same.inputs, before.inputs)
        assert np.array_equal(same.labels, before.labels)
        same.inputs[:], same.labels[:] = 0, 0
        assert before.inputs.any(), "a copy"
        assert before.labels.any(), "a copy"


def test_labels_are_grouped_in_every_part():
    label_map = tuple(c % 3 for c in range(TASK.num_classes))
    for name in ("train", "val_score"):
        labels = part(name, RoundContext(label_map=label_map)).labels
        assert labels.tolist() == (getattr(DATA, name).labels % 3).tolist()


def test_only_training_labels_are_noisy():
    noisy = RoundContext(label_noise=0.4)
    changed = np.mean(part("train", noisy).labels != DATA.train.labels)
    assert changed == pytest.approx(0.4 * (1 - 1 / TASK.num_classes), abs=0.1)
    assert part("val_score", noisy).labels.tolist() == DATA.val_score.labels.tolist()


def test_one_permutation_serves_all_samples_and_parts():
    context = RoundContext(permuted=True)
    for name in ("train", "test"):
        before, after = getattr(DATA, name).inputs, part(name, context).inputs
        flat, moved = before.reshape(len(before), -1), after.reshape(len(after), -1)
        assert not np.array_equal(flat, moved)
        order = [np.flatnonzero((flat == moved[:, [i]]).all(axis=0)) for i in range(flat.shape[1])]
        assert all(len(found) for found in order)
    assert np.array_equal(part("train", context).inputs, part("train", context).inputs)


def test_noise_has_the_given_standard_deviation():
    quiet = replace(DATA, train=replace(DATA.train, inputs=np.full_like(DATA.train.inputs, 128)))
    noisy = as_part(RoundData(quiet, RoundContext(pixel_noise=0.5), 0, 0), "train")
    assert noisy.inputs.dtype == np.uint8
    assert noisy.inputs.std() == pytest.approx(0.5 * DATA.std[0], rel=0.1)


def test_noise_of_a_sample_does_not_depend_on_how_many_are_made(monkeypatch):
    noisy = RoundData(DATA, RoundContext(pixel_noise=0.5), 0, 0)
    whole = noisy.part("test", torch.device("cpu"))[0]
    monkeypatch.setattr(context_data, "CHUNK_NUMBERS", 3 * whole[0].numel())
    assert torch.equal(noisy.part("test", torch.device("cpu"))[0], whole)
    assert torch.equal(noisy.part("test", torch.device("cpu"), 5)[0], whole[:5])
    assert not torch.equal(noisy.part("val_score", torch.device("cpu"), 5)[0], whole[:5])


def test_a_rounds_inputs_are_normalised_as_the_tasks_are():
    plain = RoundData(DATA, RoundContext(), 0, 0)
    normalised = plain.normalised(plain.part("test", torch.device("cpu"))[0])
    assert np.array_equal(normalised.numpy(), DATA.normalised(DATA.test))


def test_a_share_of_the_data_is_a_random_subset_of_two_batches_at_least():
    assert train_samples(TASK, DATA, RoundContext()) == len(DATA.train)
    assert train_samples(TASK, DATA, RoundContext(data_share=0.5)) == len(DATA.train) // 2
    least = MIN_BATCHES * TASK.batch_size
    assert train_samples(TASK, DATA, RoundContext(data_share=0.001)) == least
    shuffled = part("train", RoundContext(data_share=0.5))
    assert sorted(shuffled.labels) == sorted(DATA.train.labels)
    assert shuffled.labels.tolist() != DATA.train.labels.tolist()


def test_chance_is_the_contexts_own():
    alone = chance_of(TASK, RoundContext())
    assert (alone.accuracy, alone.loss) == (TASK.chance, math.log(TASK.num_classes))
    halves = chance_of(TASK, RoundContext(label_map=(0,) * 8 + (1,) * 2))
    assert halves.accuracy == 0.8
    assert halves.loss == pytest.approx(-(0.8 * math.log(0.8) + 0.2 * math.log(0.2)))
    assert halves.groups == 2


# ---- wrong input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"min_groups": 1}, "2 groups or more"),
        ({"price": Range(0.0, 1.0)}, "price from 0"),
        ({"data_share": Range(0.5, 2.0)}, "within 0..1"),
        ({"data_share": Range(0.0, 0.5)}, "above 0"),
        ({"capped": 1.5}, "within 0..1"),
        ({"budget": Range(2.0, 2.0)}, "clock='compute'"),
        ({"clock": "hours"}, "hours"),
        ({"actions": "all"}, "all"),
        ({"pixel_noise": Range(-1.0, 0.0)}, "0 or more"),
    ],
)
def test_impossible_contexts_are_refused(changes, said):
    assert said in refused(lambda: ContextSpec(**changes))


def test_ranges_are_two_finite_numbers():
    assert "low first" in refused(lambda: Range(2.0, 1.0))
    assert "low first" in refused(lambda: Range(0.0, math.inf))


def test_more_groups_than_classes_are_refused():
    spec = replace(VARIED, min_groups=TASK.num_classes + 1)
    assert "classes" in refused(lambda: draw_round(spec, TASK, 0, 0, 2.0))


def test_contexts_that_leave_no_data_are_refused():
    tiny = replace(TASK, batch_size=150)
    assert "2 batches of 150" in refused(lambda: require_contexts_fit(VARIED, tiny, DATA))


def test_a_language_model_has_no_label_map():
    nothing = TaskPart(np.zeros((40, 4), dtype=np.int64), np.zeros((40, 4), dtype=np.int64))
    empty = np.zeros(0, dtype=np.float32)
    tokens = TaskData(nothing, nothing, nothing, nothing, empty, empty)
    spec = ContextSpec(min_groups=2)
    assert "language model" in refused(lambda: require_contexts_fit(spec, TASK, tokens))


# ---- text ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(NAMED_CONTEXTS))
def test_names_text_and_files_give_the_same_spec(name, tmp_path):
    spec = NAMED_CONTEXTS[name]
    assert read_context(name) == spec
    assert context_text(spec) == name
    other = replace(spec, label_noise=Range(0.0, 0.125))
    assert read_context(context_text(other)) == other
    (tmp_path / "mine.json").write_text(context_text(other))
    assert read_context(str(tmp_path / "mine.json")) == other


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vareid", "varied"),
        ("missing.json", "cannot read"),
        ('{"price": {"low": 1}}', "high"),
        ('{"prices": {"low": 1, "high": 2}}', "prices"),
        ("{", "not valid JSON"),
        (json.dumps({"min_groups": 1}), "2 groups"),
    ],
)
def test_text_that_is_no_context_is_refused_in_one_line(text, said):
    message = refused(lambda: read_context(text))
    assert said in message
    assert "\n" not in message
