"""Digests of models and functions: other code has another, the same script the same."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.growing.digests import function_digest, model_digest
from esper.kasmina.tracing import trace_model

SCRIPT = """
from functools import partial
import torch
import torch.nn.functional as F
from torch import nn
from esper.growing.digests import function_digest, model_digest
from esper.kasmina.tracing import trace_model

SCALE = 2.0

def helper(x):
    return SCALE * x

def loss_of(power, names):
    def loss(outputs, targets):
        seen = {name for name in names if name in {"a", "b", "c"}}
        return helper(sum(abs(o - t) ** power for o, t in zip(outputs, targets))) + len(seen)
    return loss

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.margin, self.weight = 0.5, nn.Parameter(torch.ones(2))

    def forward(self, outputs, targets):
        return (outputs - targets - self.margin).clamp_min(0).mean()

class Sorting(nn.Module):
    def __init__(self, p=0.1):
        super().__init__()
        self.layer, self.drop, self.out = nn.Linear(3, 4), nn.Dropout(p), nn.Linear(4, 2)

    def forward(self, x):
        x = self.layer(x)
        if x.sum() > 1e9:  # not traced
            x = helper(x)
        return self.out(F.relu(self.drop(x)))

class Scorer:
    def __init__(self, beta):
        self.beta = beta

    def __call__(self, outputs, targets):
        return float((outputs.argmax(1) == targets).float().mean()) ** self.beta

functions = [
    lambda o, t: (o - t).pow(2).mean(),
    loss_of(2.0, {"x", "a", "yy"}),
    partial(F.cross_entropy, label_smoothing=0.1),
    nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])),
    Own(),
    Scorer(2),
    Scorer(2).__call__,
    torch.optim.SGD,
    torch.compile(helper),
    torch.no_grad()(helper),
    F.mse_loss,
    torch.relu,
    len,
]
x = torch.randn(8, 3)
whole = Sorting()
plain = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Dropout(0.2), nn.Linear(4, 2))
for function in functions:
    print(function_digest(function))
for model in (whole, plain, Sorting):
    print(model_digest(trace_model(model, x)))
"""


def digests_of(script: str, seed: int) -> list[str]:
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.split()


def test_the_same_script_has_the_same_digests_in_every_process():
    one, other = (digests_of(SCRIPT, seed) for seed in (1, 2))
    assert one == other
    assert len(set(one)) == len(one) - 1 == 15, "a class builds what an instance is"


def made(text: str, **names: Any) -> Any:
    """The function `f` of some code, as a module of its own."""
    room = {"__name__": "mine", **names}
    exec(text, room)
    return room["f"]


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("f = lambda o, t: (o - t).abs().mean()", "abs", "square"),
        ("f = lambda o, t: 2 * (o - t).mean()", "2", "3"),
        ("def f(o, t, power=2): return o ** power", "power=2", "power=3"),
        ("def f(o, *, power=2): return o ** power", "power=2", "power=3"),
        ("def f(o, t):\n def inner(x): return x + 1\n return inner(o)", "x + 1", "x + 2"),
        ("def g(x): return x + 1\ndef f(o, t): return g(o)", "x + 1", "x - 1"),
        ("ALPHA = 0.25\ndef f(o, t): return ALPHA * o", "0.25", "0.5"),
        ("def h(a):\n return lambda o, t: a * o\nf = h(0.1)", "0.1", "0.2"),
        ("def h(a):\n return lambda o, t: a['x'] * o\nf = h({'x': 1})", "1", "2"),
        ("from functools import partial\nf = partial(lambda o, t, p: o ** p, p=1)", "p=1", "p=2"),
        ("class C:\n def __call__(self, o): return o + 1\nf = C()", "o + 1", "o - 1"),
        ("class C:\n def step(self): return 1\n def __call__(self, o): return self.step()\nf = C()",
         "return 1", "return 2"),
        ("class C:\n def __init__(self): self.a = 1\n def __call__(self, o): return o\nf = C()",
         "self.a = 1", "self.a = 2"),
        ("class C:\n a = 1\n def loss(self, o): return self.a\nf = C().loss", "a = 1", "a = 2"),
        ("class C:\n @staticmethod\n def f(o): return 1\nf = C", "return 1", "return 2"),
        ("from enum import Enum\nE = Enum('E', 'a b')\nf = lambda o: E.a\n", "E.a", "E.b"),
        ("import torch\nf = torch.no_grad()(lambda o: 1)", "1", "2"),
        ("from torch import nn\nf = nn.HuberLoss(delta=1.0)", "1.0", "2.0"),
        ("import torch\nfrom torch import nn\nf = nn.NLLLoss(torch.tensor([1.0]))", "1.0", "2.0"),
        ("import torch\nf = torch.optim.SGD", "SGD", "Adam"),
        ("f = len", "len", "sum"),
    ],
)  # fmt: skip
def test_other_code_and_other_values_have_another_digest(text, old, new):
    assert function_digest(made(text)) == function_digest(made(text))
    assert function_digest(made(text)) != function_digest(made(text.replace(old, new)))


def test_lines_names_of_variables_and_addresses_do_not_count():
    one = made("def f(o, t):\n total = o - t\n return total.mean()")
    other = made("# moved\n\n\ndef f(o, t):\n rest = o - t\n\n return rest.mean()")
    assert function_digest(one) == function_digest(other)
    anything = made("f = lambda o, t: thing", thing=object())
    assert function_digest(anything) == function_digest(made("f = lambda o, t: thing",
                                                             thing=object()))  # fmt: skip


def test_code_is_compared_within_a_version_of_python(monkeypatch):
    before = function_digest(made("f = lambda o: o"))
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert function_digest(made("f = lambda o: o")) != before


# ---- models --------------------------------------------------------------------------------------


class Head(nn.Module):
    """A head whose forward can be written in several ways."""

    def __init__(self, way: str = "", p: float = 0.1) -> None:
        super().__init__()
        self.one, self.drop, self.two = nn.Linear(3, 4), nn.Dropout(p), nn.Linear(4, 2)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.one(x))
        if self.way == "whole" and h.sum() > 1e9:
            return self.two(h)
        if self.way == "method":
            return self.two(h.relu())
        return self.two(F.gelu(h) if self.way == "gelu" else F.relu(h))


class OtherName(Head):
    """The same as a graph."""

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.relu(self.drop(self.one(x))))


class OtherWhole(Head):
    """The same but for what control flow on data hides from a trace."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.one(x))
        return self.two(h) if h.sum() > 1e8 else self.two(F.relu(h))


def frozen() -> nn.Module:
    model = Head()
    model.one.weight.requires_grad_(False)
    return model


def digest(model: Any) -> str:
    return model_digest(trace_model(model, torch.zeros(8, 3)))


@pytest.mark.parametrize(
    "other",
    [partial(Head, "gelu"), partial(Head, p=0.2), partial(Head, "whole"), frozen,
     lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))],
)  # fmt: skip
def test_another_model_has_another_digest(other):
    assert digest(other) != digest(Head)


def test_a_model_that_runs_whole_is_known_by_its_code():
    whole = partial(Head, "whole")
    assert digest(whole) == digest(whole())
    assert digest(whole) != digest(partial(OtherWhole, "whole"))
    assert digest(whole) != digest(partial(Head, "whole", p=0.2))


def test_weights_and_names_of_a_traced_model_do_not_count():
    assert digest(Head) == digest(Head()) == digest(OtherName)
