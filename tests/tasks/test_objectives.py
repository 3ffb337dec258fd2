"""Losses by name or function: numbers as torch's, row by row; mistakes are one line."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina.training.losses import cross_entropy
from esper.tasks.member_functions import MemberFunction
from esper.tasks.objectives import Objective, choose_loss, make_objective, with_sample_weights
from support import refused

ROWS, BATCH, CLASSES = 3, 8, 5


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator())


def labels(*shape: int, classes: int = CLASSES) -> Tensor:
    return torch.randint(0, classes, shape, generator=generator())


def each_row(objective: Objective, outputs: Tensor, targets: Tensor, expected: Tensor) -> None:
    """Loss, gradient and the mean of per-sample terms agree with `expected` `[R]`."""
    outputs.requires_grad_()
    (grad,) = torch.autograd.grad(objective.loss(outputs, targets).sum(), outputs)
    (wanted,) = torch.autograd.grad(expected.sum(), outputs)
    torch.testing.assert_close(objective.loss(outputs, targets), expected)
    torch.testing.assert_close(grad, wanted)


def rows_of(function, outputs: Tensor, targets: Tensor) -> Tensor:
    pairs = zip(outputs.requires_grad_().unbind(), targets.unbind(), strict=True)
    return torch.stack([function(output, target) for output, target in pairs])


# ---- classes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [(), (4,), (2, 3)])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"class_weights": range(1, 6)}])
def test_cross_entropy_is_torchs(places, options):
    outputs, targets = numbers(ROWS, BATCH, *places, CLASSES), labels(ROWS, BATCH, *places)
    made = make_objective(
        "cross_entropy", targets=targets[0], output_shape=(*places, CLASSES), **options
    )
    weights = options.get("class_weights")
    weight = None if weights is None else torch.tensor([float(w) for w in weights])

    def torchs(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(
            output.flatten(0, -2), target.flatten(), weight,
            label_smoothing=options.get("label_smoothing", 0.0),
        )  # fmt: skip

    each_row(made, outputs, targets, rows_of(torchs, outputs, targets))


def test_plain_cross_entropy_is_the_populations_own():
    made = make_objective(targets=labels(BATCH), output_shape=(CLASSES,))
    assert made.loss is cross_entropy
    assert (made.name, made.metric, made.kind) == ("cross_entropy", "accuracy", "classes")
    other = make_objective(targets=labels(BATCH), output_shape=(CLASSES,), ignore_index=255)
    assert other.loss is not cross_entropy  # later batches may hold 255
    with_ignored = torch.full((1, BATCH), 255)
    assert float(other.loss(numbers(1, BATCH, CLASSES), with_ignored)) == 0


def test_ignored_labels_count_nowhere():
    outputs, targets = numbers(ROWS, BATCH, 4, CLASSES), labels(ROWS, BATCH, 4)
    targets[:, ::3] = -1
    targets[0, :, 2] = -1
    made = make_objective(
        "cross_entropy", targets=targets[1], output_shape=(4, CLASSES), ignore_index=-1
    )
    each_row(
        made, outputs, targets,
        rows_of(
            lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten(), ignore_index=-1),
            outputs, targets,
        ),
    )  # fmt: skip
    kept = targets != -1
    right = (outputs.argmax(-1) == targets) & kept
    expected = right.flatten(1).sum(1) / kept.flatten(1).sum(1)
    torch.testing.assert_close(made.merit(outputs, targets).mean(1), expected)
    assert (made.loss(outputs, torch.full_like(targets, -1)) == 0).all()


def test_torchs_layout_has_classes_before_places():
    outputs, targets = numbers(ROWS, BATCH, CLASSES, 6, 7), labels(ROWS, BATCH, 6, 7)
    made = make_objective(targets=targets[0], output_shape=(CLASSES, 6, 7))
    assert made.name == "cross_entropy"
    each_row(made, outputs, targets, rows_of(F.cross_entropy, outputs, targets))
    right = (outputs.argmax(2) == targets).float().mean((2, 3))
    torch.testing.assert_close(made.merit(outputs, targets), right)


def test_language_explains_entropy_of_token_frequencies():
    outputs, targets = numbers(ROWS, BATCH, 6, CLASSES), labels(ROWS, BATCH, 6)
    made = make_objective(targets=targets[0], output_shape=(6, CLASSES))
    assert (made.name, made.metric) == ("language", "explained")
    share = torch.bincount(targets[0].flatten(), minlength=CLASSES) / targets[0].numel()
    assert made.constant_loss == pytest.approx(float(-(share * share.log()).sum()), rel=1e-6)
    merit = made.merit(outputs, targets)
    torch.testing.assert_close(
        merit.mean(1), 1 - cross_entropy(outputs, targets) / made.constant_loss
    )
    constant = share.log().expand(1, BATCH, 6, CLASSES)
    assert float(made.merit(constant, targets[:1]).mean()) == pytest.approx(0.0, abs=1e-6)


def test_sample_weights_travel_with_targets():
    outputs, targets = numbers(ROWS, BATCH, CLASSES), labels(ROWS, BATCH)
    weights = torch.rand(BATCH, generator=generator())
    packed = torch.stack([with_sample_weights(row, weights) for row in targets])
    made = make_objective(
        "cross_entropy", targets=packed[0], output_shape=(CLASSES,), weighted=True
    )
    expected = rows_of(
        lambda o, t: (F.cross_entropy(o, t, reduction="none") * weights).sum() / weights.sum(),
        outputs, targets,
    )  # fmt: skip
    each_row(made, outputs, packed, expected)
    right = (outputs.argmax(-1) == targets).float()
    torch.testing.assert_close(made.merit(outputs, packed), right)
    assert "give one number for each, [8]" in refused(
        lambda: with_sample_weights(targets[0], weights[:3])
    )
    weights[2] = -1
    assert "sample weight -1 of sample 2" in refused(
        lambda: with_sample_weights(targets[0], weights)
    )


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32, torch.bool, torch.float32])
def test_labels_of_any_dtype_are_classes_if_so_named(kind):
    outputs, targets = numbers(ROWS, BATCH, CLASSES), labels(ROWS, BATCH, classes=2)
    made = make_objective("cross_entropy", targets=targets[0].to(kind), output_shape=(CLASSES,))
    torch.testing.assert_close(
        made.loss(outputs, targets.to(kind)), cross_entropy(outputs, targets)
    )


# ---- yes or no --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("output_shape", [(), (1,)])
def test_binary_is_torchs(kind, output_shape):
    outputs = numbers(ROWS, BATCH, *output_shape)
    targets = labels(ROWS, BATCH, classes=2).to(kind)
    made = make_objective(targets=targets[0], output_shape=output_shape)
    assert (made.name, made.kind) == ("binary", "binary")
    torchs = rows_of(
        lambda o, t: F.binary_cross_entropy_with_logits(o.flatten(), t.float()), outputs, targets
    )
    each_row(made, outputs, targets, torchs)
    right = (outputs.reshape(targets.shape) > 0) == targets.bool()
    torch.testing.assert_close(made.merit(outputs, targets), right.float())
    share = float(targets[0].float().mean())
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert made.constant_loss == pytest.approx(entropy, rel=1e-5)


def test_binary_weights_are_those_of_no_and_yes():
    outputs, targets = numbers(ROWS, BATCH, 1), labels(ROWS, BATCH, classes=2)
    made = make_objective(targets=targets[0], output_shape=(1,), class_weights=[1.0, 3.0])
    weights = torch.tensor([1.0, 3.0])[targets]
    losses = F.binary_cross_entropy_with_logits(
        outputs[..., 0], targets.float(), weights, reduction="none"
    )
    torch.testing.assert_close(made.loss(outputs, targets), losses.sum(1) / weights.sum(1))


def test_multilabel_is_torchs():
    outputs, targets = numbers(ROWS, BATCH, 4), labels(ROWS, BATCH, 4, classes=2).float()
    made = make_objective(targets=targets[0], output_shape=(4,))
    assert (made.name, made.metric) == ("multilabel", "accuracy")
    each_row(
        made, outputs, targets,
        rows_of(F.binary_cross_entropy_with_logits, outputs, targets),
    )  # fmt: skip
    right = (outputs > 0) == targets.bool()
    torch.testing.assert_close(made.merit(outputs, targets), right.float().mean(2))


# ---- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "torchs"), [("mse", F.mse_loss), ("mae", F.l1_loss), ("huber", F.huber_loss)]
)
@pytest.mark.parametrize(("places", "output_shape"), [((), (1,)), ((1,), (1,)), ((3,), (3,))])
def test_errors_of_numbers_are_torchs(name, torchs, places, output_shape):
    outputs, targets = numbers(ROWS, BATCH, *output_shape), 3 * numbers(ROWS, BATCH, *places) + 1
    made = make_objective(name, targets=targets[0], output_shape=output_shape)
    expected = rows_of(lambda o, t: torchs(o.reshape(t.shape), t), outputs, targets)
    each_row(made, outputs, targets, expected)
    merit = made.merit(outputs, targets)
    assert merit.shape == (ROWS, BATCH)
    torch.testing.assert_close(merit.mean(1), 1 - expected / made.constant_loss)


@pytest.mark.parametrize("name", ["mse", "mae", "huber"])
def test_no_other_constant_is_better(name):
    targets = 4 * numbers(50) ** 3
    made = make_objective(name, targets=targets, output_shape=(1,))
    tried = torch.linspace(-10, 10, 4001)
    losses = made.loss(tried[:, None, None].expand(-1, 50, 1), targets.expand(len(tried), -1))
    assert made.constant_loss <= float(losses.min()) * (1 + 1e-6)
    assert made.constant_loss == pytest.approx(float(losses.min()), rel=1e-3)


def test_mse_explains_variance():
    targets = numbers(100)
    made = make_objective(targets=targets, output_shape=(1,))
    assert (made.name, made.metric, made.kind) == ("mse", "explained", "numbers")
    assert made.constant_loss == pytest.approx(float(targets.var(correction=0)), rel=1e-5)
    perfect = made.merit(targets.view(1, -1, 1), targets[None])
    assert (perfect == 1).all()
    awful = made.merit(targets.view(1, -1, 1) + 9, targets[None])
    assert float(awful.mean()) < -10  # not clipped


# ---- own functions ----------------------------------------------------------------------------


def quantile(output: Tensor, target: Tensor) -> Tensor:
    error = target - output[:, 0]
    return torch.maximum(0.9 * error, -0.1 * error)


def branching(output: Tensor, target: Tensor) -> Tensor:
    """A loss that vmap cannot take."""
    return quantile(output, target).mean() if float(output.detach().sum()) < 1e9 else output.sum()


def test_own_loss_is_mapped_over_rows():
    outputs, targets = numbers(ROWS, BATCH, 1), numbers(ROWS, BATCH) ** 3
    made = make_objective(quantile, targets=targets[0], output_shape=(1,))
    each_row(made, outputs, targets, rows_of(lambda o, t: quantile(o, t).mean(), outputs, targets))
    assert (made.name, made.metric) == ("quantile", "explained")
    assert isinstance(made.loss, MemberFunction)
    assert made.loss.vmapped
    tried = torch.linspace(-5, 5, 2001)
    losses = quantile(tried.repeat_interleave(BATCH)[:, None], targets[0].repeat(len(tried)))
    best = float(losses.view(len(tried), -1).mean(1).min())
    assert made.constant_loss == pytest.approx(best, rel=0.02)
    torch.testing.assert_close(
        made.merit(outputs, targets).mean(1), 1 - made.loss(outputs, targets) / made.constant_loss
    )


def test_own_loss_that_vmap_refuses_runs_row_by_row():
    outputs, targets = numbers(ROWS, BATCH, 1), numbers(ROWS, BATCH) ** 3
    made = make_objective(branching, targets=targets[0], output_shape=(1,))
    each_row(made, outputs, targets, rows_of(branching, outputs, targets))
    assert isinstance(made.loss, MemberFunction)
    assert made.loss.vmapped is False


def test_own_loss_on_classes_is_judged_by_accuracy():
    outputs, targets = numbers(ROWS, BATCH, CLASSES), labels(ROWS, BATCH)
    made = make_objective(
        torch.nn.CrossEntropyLoss(label_smoothing=0.1), targets=targets[0], output_shape=(CLASSES,)
    )
    assert (made.name, made.metric) == ("CrossEntropyLoss", "accuracy")
    right = (outputs.argmax(-1) == targets).float()
    torch.testing.assert_close(made.merit(outputs, targets), right)


def test_half_precision_outputs_are_scored_in_single():
    outputs, targets = numbers(ROWS, BATCH, 1).bfloat16(), numbers(ROWS, BATCH)
    made = make_objective(targets=targets[0], output_shape=(1,))
    assert made.loss(outputs, targets).dtype == torch.float32


# ---- auto -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "output_shape", "name"),
    [
        (torch.tensor([0, 1, 2]), (3,), "cross_entropy"),
        (torch.tensor([0, 1, 1]), (2,), "cross_entropy"),
        (torch.tensor([0, 1, 1], dtype=torch.uint8), (2,), "cross_entropy"),
        (torch.tensor([0, 1, 1]), (1,), "binary"),
        (torch.tensor([[0], [1], [1]]), (1,), "binary"),
        (torch.tensor([True, False]), (), "binary"),
        (torch.tensor([0.0, 1.0]), (1,), "binary"),
        (torch.zeros(4, 1, 6, 6, dtype=torch.bool), (1, 6, 6), "binary"),
        (torch.tensor([[0.0, 1.0], [1.0, 1.0]]), (2,), "multilabel"),
        (torch.tensor([[0, 1, 1], [1, 1, 0]]), (3,), "multilabel"),
        (torch.tensor([0.5, 1.0]), (1,), "mse"),
        (torch.tensor([[0.5, 2.0], [1.0, 1.0]]), (2,), "mse"),
        (torch.tensor([[0, 4, 2], [1, 1, 3]]), (3, 5), "language"),
        (torch.zeros(2, 6, 7, dtype=torch.int64), (4, 6, 7), "cross_entropy"),
        (torch.zeros(2, 6, 7, dtype=torch.int64), (6, 7, 4), "cross_entropy"),
    ],
)
def test_auto_reads_targets_and_outputs(targets, output_shape, name):
    assert choose_loss(targets, output_shape) == name


# ---- mistakes ---------------------------------------------------------------------------------

ONE_TO_FIVE = torch.arange(20) % 5 + 1


@pytest.mark.parametrize(
    ("targets", "output_shape", "options", "words"),
    [
        (ONE_TO_FIVE, (5,), {}, "train labels are 1 to 5, the model has 5 outputs: labels count f"),
        (ONE_TO_FIVE, (4,), {}, "label 4 of sample 3, the model has 4 outputs, so labels are 0 t"),
        (ONE_TO_FIVE - 2, (5,), {}, "label -1 of sample 0 is negative; labels are 0 to 4"),
        (ONE_TO_FIVE * 0 - 100, (5,), {}, "all labels are -100, the one that is ignored"),
        (ONE_TO_FIVE[:, None], (6,), {}, "class labels are [20], one index per sample, as in y.sq"),
        (ONE_TO_FIVE, (1,), {}, "labels 1 to 5 and a model with one output: give it 6 outputs"),
        (ONE_TO_FIVE, (7, 6), {}, "integer targets of one number and outputs (7, 6) per sample"),
        (ONE_TO_FIVE.float(), (6,), {}, "float32 of whole numbers up to 5, and the model has 6"),
        (ONE_TO_FIVE / 7, (6,), {}, "loss 'mse': outputs (6,) and targets of one number per sam"),
        (numbers(20, 3), (1,), {}, "would broadcast to wrong pairs; give the model 3 outputs"),
        (numbers(20), (5,), {"loss": "cross_entropy"}, "loss 'cross_entropy' takes class indices"),
        (numbers(20), (1,), {"loss": "binary"}, "loss 'binary' takes 0 and 1; for labels -1 and"),
        (F.one_hot(ONE_TO_FIVE), (6,), {}, "hold one 1 in each row, as one-hot labels do: give"),
        (numbers(20) * float("nan"), (1,), {}, "target nan of sample 0 is not finite; leave the"),
        (torch.full((20,), 3.5), (1,), {}, "loss 0 on the training targets, all 3.5; there is no"),
        (torch.zeros(20, dtype=torch.int64), (3,), {}, "targets, all 0; there is nothing to learn"),
        (torch.zeros(0), (1,), {}, "no training targets"),
        (torch.zeros(4, dtype=torch.complex64), (1,), {}, "targets are complex numbers"),
        (ONE_TO_FIVE, (6,), {"loss": "crossentropy"}, "did you mean 'cross_entropy'?"),
        (ONE_TO_FIVE, (6,), {"class_weights": [1, 2]}, "class_weights of shape (2,): the model h"),
        (ONE_TO_FIVE, (6,), {"class_weights": [0.0] * 6}, "finite, 0 or more, and not all 0"),
        (ONE_TO_FIVE, (6,), {"label_smoothing": 1.5}, "label_smoothing=1.5: must be from 0 to be"),
        (numbers(20), (1,), {"label_smoothing": 0.1}, "label_smoothing=0.1: not for loss 'mse'"),
        (numbers(20), (1,), {"class_weights": [1.0]}, "class_weights: not for loss 'mse'"),
        (numbers(20), (1,), {"loss": "huber", "huber_delta": 0}, "huber_delta=0: must be above 0"),
        (numbers(20), (1,), {"loss": lambda o, t: "x"}, "loss own returns a str: return a tensor"),
        (numbers(20), (1,), {"loss": lambda o: o}, "loss own fails: TypeError"),
        (numbers(20), (1,), {"loss": lambda o, t: -(o**2).mean() - 1}, "no share of it can be th"),
        (torch.full((2072, 1), -0.0013870980), (1,), {"loss": F.mse_loss}, "no share of it can be"),
        (numbers(20), (1,), {"loss": quantile, "weighted": True}, "are options of the built-in"),
    ],
)
def test_mistakes_are_one_line(targets, output_shape, options, words):
    line = refused(lambda: make_objective(targets=targets, output_shape=output_shape, **options))
    assert words in line
