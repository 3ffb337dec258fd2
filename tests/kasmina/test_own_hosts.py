"""Hosts that users write: what does not fit is refused in one line, before anything trains."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina import Population
from esper.leyline import InjectionSpec
from own_host import (
    BATCH,
    CHANNELS,
    EXECUTORS,
    LABELS,
    Block,
    Head,
    OwnHost,
    Then,
    images,
    labels,
    own_population,
    refused_before_training,
)
from support import refused

# ---- axes and channels at the slots -----------------------------------------------------------


class Signals(OwnHost):
    """1-D convolutions: activations `[B, C, L]`, declared as images."""

    def __init__(self) -> None:
        super().__init__()
        self.first.conv = nn.Conv1d(1, CHANNELS[0], 3, padding=1)
        self.second.conv = nn.Conv1d(*CHANNELS, 3, padding=1)
        self.head = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, LABELS))


class Vectors(OwnHost):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, CHANNELS[0]), nn.Linear(*CHANNELS)
        self.head = nn.Linear(CHANNELS[1], LABELS)


class Pixels(OwnHost):
    """The last axis of its images is as wide as its specs say."""

    widths = (8, 8)


def declared(host: type[OwnHost], topology: str) -> type[OwnHost]:
    return type(host.__name__, (host,), {"topology": topology})


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("size", [1, *CHANNELS])
def test_a_cnn_host_on_signals_is_refused_whatever_the_batch_size(size, executor):
    x, y = images(1, 20, size=size), labels(size=size)
    line = refused_before_training(own_population(Signals, executor), x, y)
    assert line == (
        "host Signals segment 0 gives shape (1, 4, 20) at slot r0c0: topology 'cnn' means "
        "[B, C, H, W], 4 axes; reshape inside the segment, or declare the topology that fits"
    )


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("host", "topology", "x", "y", "words"),
    [
        (Vectors, "cnn", images(5), labels(), "(1, 4) at slot r0c0: topology 'cnn' means"),
        (Vectors, "transformer", images(5), labels(), "'transformer' means [B, T, C], 3 axes"),
        (Vectors, "mlp", images(3, 5), labels(3), "(1, 3, 4) at slot r0c0: topology 'mlp' means"),
        (Pixels, "transformer", images(), labels(), "(1, 4, 8, 8) at slot r0c0"),
        (Pixels, "mlp", images(), labels(), "'mlp' means [B, C], 2 axes"),
    ],
)
def test_the_topology_fixes_the_axes_at_the_slots(host, topology, x, y, words, executor):
    population = own_population(declared(host, topology), executor)
    assert words in refused_before_training(population, x, y)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("widths", [(BATCH, 8), (4, BATCH), (1, 8), (4, 2)])
def test_the_channels_at_every_slot_are_those_declared(widths, executor):
    """A wrong width may be that of the batch, of one sample or of a pair of them."""
    host = type("Off", (OwnHost,), {"widths": widths})
    line = refused_before_training(own_population(host, executor), images(), labels())
    wrong = 0 if widths[0] != CHANNELS[0] else 1
    assert f"at slot r0c{wrong}: {CHANNELS[wrong]} channels on axis 1 of [B, C, H, W]" in line
    assert f"promises {widths[wrong]} channels" in line


def test_widths_are_checked_at_a_slot_that_holds_no_seed():
    host = type("Off", (OwnHost,), {"widths": (4, 9)})
    line = refused_before_training(own_population(host), images(), labels(), seed=None)
    assert "at slot r0c1" in line


# ---- the chain --------------------------------------------------------------------------------


def with_part(name: str, make: Callable[[], nn.Module]) -> type[OwnHost]:
    """An `OwnHost` with one part replaced."""

    class Changed(OwnHost):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, make())

    return Changed


class WithForward(OwnHost):
    """Its forward does something to what the chain gives."""

    change: Callable[[Tensor], Any]

    def forward(self, x: Tensor) -> Any:
        return type(self).change(super().forward(x))


def forwarding(change: Callable[[Tensor], Any]) -> type[OwnHost]:
    return type("Changed", (WithForward,), {"change": staticmethod(change)})


class InTraining(Then):
    """Changes its output in training mode only."""

    def forward(self, x: Tensor) -> object:
        return super().forward(x) if self.training else self.inner(x)


class Undefined(Block):
    def forward(self, x: Tensor) -> Tensor:
        return no_such_name(x)  # type: ignore[name-defined]  # noqa: F821


class Scaling(Block):
    """Scales its input in place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2.0))


class Averaging(Block):
    """A running mean that is assigned, not written in place."""

    def __init__(self) -> None:
        super().__init__(1, 4)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return super().forward(x)


class Double(Block):
    def __init__(self) -> None:
        super().__init__(1, 4)
        self.register_buffer("scale", torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def blind(x: Tensor) -> Tensor:
    return x.detach()


def head() -> Head:
    return Head(CHANNELS[1], LABELS)


CHAINS: dict[str, tuple[type[OwnHost], str]] = {
    "forward gives a tuple": (
        forwarding(lambda y: (y, y)),
        "forward(x) returns tuple; it must return one tensor",
    ),
    "forward gives a dict": (forwarding(lambda y: {"logits": y}), "forward(x) returns dict"),
    "forward does more": (forwarding(lambda y: 2.0 * y), "forward(x) differs from running its"),
    "forward in double": (forwarding(Tensor.double), "forward(x) differs from running its"),
    "a segment gives a tuple": (
        with_part("second", lambda: Then(Block(*CHANNELS), lambda h: (h, h))),
        "segment 1 turns a batch of 1 into tuple",
    ),
    "a segment gives a tuple in training": (
        with_part("head", lambda: InTraining(head(), lambda y: (y, y))),
        "segment 2 turns a batch of 2 into tuple",
    ),
    "a head for training only": (
        with_part("head", lambda: InTraining(head(), lambda y: torch.cat([y, y], dim=-1))),
        "gives (8,) for a sample in training mode and (4,) in eval mode",
    ),
    "the mean over the batch": (
        with_part("first", lambda: Then(Block(1, 4), lambda h: h.mean(0, keepdim=True))),
        "segment 0 turns a batch of 2 into (1, 4, 8, 8): a segment maps one tensor to one",
    ),
    "every sample with every other": (
        with_part("head", lambda: Then(head(), lambda y: y @ y.T)),
        "segment 2 turns a batch of 2 into (2, 2)",
    ),
    "squeezed": (
        with_part("head", lambda: Then(head(), Tensor.squeeze)),
        "segment 2 turns a batch of 1 into (4,)",
    ),
    "segments in another order": (
        type("Changed", (OwnHost,), {"segments": lambda s: (s.second, s.first, s.head)}),
        "segment 0 (Block) fails on (1, 1, 8, 8), float32: RuntimeError",
    ),
    "an error of its own": (
        with_part("second", lambda: Undefined(*CHANNELS)),
        "segment 1 (Undefined) fails on (1, 4, 8, 8), float32: NameError at test_own_hosts.py:",
    ),
    "dropout that is always on": (
        with_part("first", lambda: Then(Block(1, 4), lambda h: F.dropout(h, 0.5))),
        "draws random numbers in evaluation mode: use nn.Dropout",
    ),
    "writes over its input": (
        with_part("first", lambda: Scaling(1, 4)),
        "writes over its input: others read the same batch",
    ),
    "a buffer assigned": (
        with_part("first", Averaging),
        "assigns its buffer 'first.mean' anew in forward",
    ),
    "a float64 buffer": (with_part("first", Double), "segment 0 gives float64 at slot r0c0"),
    "no gradient": (
        with_part("head", lambda: Then(head(), blind)),
        "no gradient reaches its parameters; look for torch.no_grad()",
    ),
    "classes, not logits": (
        with_part("head", lambda: Then(head(), lambda y: y.argmax(-1))),
        "gives int64: outputs must be real numbers",
    ),
    "one number": (
        with_part("head", lambda: Then(head(), lambda y: y.sum(-1))),
        "outputs are one number per sample: cross-entropy needs one for each class",
    ),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_that_does_not_hold_is_one_line(name, executor):
    host, words = CHAINS[name]
    population = own_population(host, executor)
    if name == "one number":  # the host is fine, for another loss
        line = refused(lambda: population.train_batch(images(), labels()))
    else:
        line = refused_before_training(population, images(), labels())
        assert "host Changed" in line
    assert words in line


class Extra(OwnHost):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


def test_a_trial_leaves_no_trace_in_the_host():
    class Normed(OwnHost):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(self.first, nn.BatchNorm2d(4))

    population = own_population(Normed)
    template, generator = population.network.host.template, torch.get_rng_state()
    before = {name: value.clone() for name, value in template.named_buffers()}
    population.forward(images())
    assert len(before) == 3
    assert all(torch.equal(before[name], value) for name, value in template.named_buffers())
    assert all(p.grad is None for p in template.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_forward_that_asks_for_more_is_one_line():
    line = refused_before_training(own_population(Extra), images(), labels())
    assert "host Extra forward(x) fails on (1, 1, 8, 8): TypeError" in line
    assert "'mask'" in line


# ---- what is declared -------------------------------------------------------------------------


def returning(**methods: Callable[[OwnHost], Any]) -> type[OwnHost]:
    return type("Changed", (OwnHost,), methods)


SPEC = InjectionSpec("r0c0", 4, 0, "x")


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (returning(segments=lambda s: None), "Changed.segments() fails: TypeError"),
        (returning(segments=lambda s: ()), "Changed.segments() is empty"),
        (
            returning(segments=lambda s: (s.first, torch.relu, s.second, s.head)),
            "Changed.segments() holds builtin_function_or_method",
        ),
        (returning(segments=lambda s: ("first", "head")), "holds str 'first' at index 0"),
        (returning(injection_specs=lambda s: None), "Changed.injection_specs() fails: TypeError"),
        (returning(injection_specs=lambda s: [("r0c0", 4, 0)]), "holds tuple"),
        (returning(injection_specs=lambda s: [SPEC, SPEC]), "offers slot r0c0 twice"),
        (declared(OwnHost, "mpl"), "unknown topology 'mpl' of OwnHost: did you mean 'mlp'?"),
        (declared(OwnHost, None), "unknown topology 'NoneType' of OwnHost"),
    ],
)
def test_a_declaration_that_cannot_be_is_one_line(host, words):
    assert words in refused(lambda: own_population(host))


def test_a_slot_behind_no_segment_names_the_valid_positions():
    host = returning(injection_specs=lambda s: [InjectionSpec("r0c0", 4, 9, "x")])
    line = refused(lambda: own_population(host, slots=("r0c0",)))
    assert "slot r0c0 is at position 9" in line
    assert "(0 to 1)" in line


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: InjectionSpec("r0c0", "4", 0, "x"), "channels '4' must be an integer"),
        (lambda: InjectionSpec("r0c0", 4, 1.0, "x"), "position 1.0 must be an integer"),
        (lambda: InjectionSpec(0, 4, 1, "x"), "slot id 0: expected r<row>c<col>"),
        (lambda: own_population(slots="r0c0"), "slots='r0c0': give a list"),
        (lambda: own_population(slots=None), "slots=None: give a list"),
        (lambda: own_population(blueprints="norm"), "blueprints='norm': give a list"),
        (lambda: own_population(members=2.0), "members=2.0: must be an integer"),
        (lambda: own_population(seed=None), "seed=None: must be an integer"),
        (lambda: own_population().member([0, 1]), "member [0, 1]: give one index"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_one_line(make, words):
    assert words in refused(make)


# ---- factories --------------------------------------------------------------------------------


def fails() -> nn.Module:
    raise RuntimeError("two\nlines")


def of_any_width() -> nn.Module:
    """Another architecture at every call, as the generators have it."""
    host = OwnHost()
    host.head = nn.Sequential(Head(8, random.randint(5, 500)), nn.LazyLinear(LABELS))
    host.head(torch.zeros(1, 8, 4, 4))
    return host


ONE = OwnHost()


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (ONE, "host factory: OwnHost(...) is already built, and every member needs its own; give"),
        (lambda: ONE, "host factory returns the same OwnHost each time"),
        (lambda: OwnHost, "host factory returns the class OwnHost: it must return an nn.Module"),
        (lambda: None, "host factory returns NoneType"),
        ("OwnHost", "host factory: str(...) is already built"),
        (Block, "host factory Block fails: TypeError: Block.__init__() missing 2 required"),
        (fails, "host factory fails fails: RuntimeError at test_own_hosts.py:"),
        (of_any_width, "every call must build the same architecture"),
        (lambda: OwnHost().double(), "parameter 'first.conv.weight' is float64"),
        (lambda: OwnHost().half(), "parameter 'first.conv.weight' is float16"),
        (lambda: OwnHost().to("meta"), "'first.conv.weight' is on the meta device"),
        (
            with_part("head", lambda: Then(nn.LazyLinear(LABELS), lambda y: y)),
            "parameter 'head.inner.weight' is lazy and has no size yet",
        ),
    ],
)
def test_a_factory_that_will_not_do_is_one_line(factory, words):
    line = refused(lambda: own_population(factory))
    assert words in line
    assert "\n" not in line


def test_a_saved_population_needs_a_factory_too(tmp_path):
    own_population().save(tmp_path)
    assert "already built" in refused(lambda: Population.load(tmp_path, OwnHost()))
    own_population().member(0).save(tmp_path / "one")
    line = refused(lambda: type(own_population().member(0)).load(tmp_path / "one", OwnHost()))
    assert "already built" in line


# ---- what is accepted -------------------------------------------------------------------------


class Frozen(OwnHost):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Bare(OwnHost):
    """No parameters at all."""

    widths = (1, 1)

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.first, self.second = nn.Identity(), nn.Identity()
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("host", [Frozen, Bare])
def test_seeds_train_in_a_host_that_does_not(host, executor):
    population = own_population(host, executor, blueprints=("conv_light",))
    population.begin_step()
    assert torch.isfinite(population.train_batch(images(), labels()).loss_E).all()
    population.germinate([0], "r0c0", "conv_light")
    population.begin_step()
    bank = population.network.banks[0, 0]
    seeds, hosts = bank.flat_EP.detach().clone(), population.network.host.fixed
    kept = {name: value.clone() for name, value in hosts.items()}
    population.train_batch(images(), labels())
    assert (bank.flat_EP.detach() != seeds).any(dim=1).tolist() == [True, False]
    assert all(torch.equal(kept[name], value) for name, value in hosts.items())


class Tied(OwnHost):
    """The second convolution is the third, and one segment runs twice."""

    widths = (4, 4)

    def __init__(self) -> None:
        super().__init__()
        self.second, self.third, self.head = Block(4, 4), Block(4, 4), Head(4, LABELS)
        self.third.conv.weight = self.second.conv.weight

    def segments(self) -> tuple[nn.Module, ...]:
        return (self.first, self.second, self.third, self.second, self.head)


@pytest.mark.parametrize("host", [Tied, with_part("first", lambda: Block(1, 4))])
def test_tied_weights_and_strided_inputs_give_one_result_under_both_executors(host):
    x = images().transpose(-1, -2)
    assert not x.is_contiguous()
    losses = []
    for executor in EXECUTORS:
        population = own_population(host, executor)
        population.germinate([0], "r0c1", "norm")
        population.begin_step()
        population.train_batch(x, labels())
        losses.append(population.train_batch(x, labels()).loss_E)
    torch.testing.assert_close(*losses)


def test_a_copy_of_a_trained_model_is_a_factory():
    model = OwnHost()
    population = own_population(lambda: copy.deepcopy(model))
    for member in range(2):
        theirs = dict(population.member(member).host.named_parameters())
        assert all(torch.equal(theirs[name], p) for name, p in model.named_parameters())


# ---- members ----------------------------------------------------------------------------------


class Remembers(Block):
    """Keeps its last activation, as people do to look at it."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        return self.last


class Locked(OwnHost):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("host", [with_part("first", lambda: Remembers(1, 4)), Locked])
def test_a_member_is_a_module_whatever_its_host_keeps(host, executor):
    population = own_population(host, executor)
    assert population.member(1).host_macs is None
    population.germinate([0], "r0c0", "norm")
    population.begin_step()
    population.train_batch(images(), labels())
    torch.testing.assert_close(
        population.member(1)(images()[1]), population.forward(images())[1].detach()
    )


def test_a_population_refused_once_works_with_the_right_input():
    population = own_population()
    refused_before_training(population, images(3, 8, 8), labels())
    population.train_batch(images(), labels())
    assert population.member(0).host_macs == 20_768
