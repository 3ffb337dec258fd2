"""Seeds of sequence models read later positions only where the model itself may."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.blueprints.registry import BlueprintRegistry
from esper.kasmina.blueprints.seed_places import misfit
from esper.kasmina.tracing import planted_model, trace_model
from esper.kasmina.tracing.causality import suitable_attention
from esper.leyline import InjectionSpec
from support import refused
from user_models import CASES, GPT

VOCAB, LENGTH, WIDTH = 13, 8, 16


class Mixing(nn.Module):
    """Token by token outputs; `causal` masks later positions."""

    def __init__(self, causal: bool, channels_first: bool = False, noisy: bool = False) -> None:
        super().__init__()
        self.causal, self.channels_first, self.noisy = causal, channels_first, noisy
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 8 if channels_first else VOCAB)

    def forward(self, idx: Tensor) -> Tensor:
        h = self.embed(idx)
        q, k, v = self.qkv(h).chunk(3, dim=-1)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal))
        h = F.dropout(h, 0.2, training=self.noisy or self.training)
        logits = self.head(h)
        return logits.transpose(1, 2) if self.channels_first else logits


def tokens(samples: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, VOCAB, (samples, LENGTH), generator=generator)


def found(model, example, output=None) -> bool:
    return trace_model(model, example, output=output).causal


@pytest.mark.parametrize(
    ("kind", "causal"), [("gpt", True), ("llama", True), ("vit", False), ("encoder", False)]
)
def test_language_models_are_causal_and_encoders_are_not(kind, causal):
    case = CASES[kind]
    torch.manual_seed(0)
    assert found(case.build, case.example(6), case.output) is causal


@pytest.mark.parametrize(("kind", "offered"), [("gpt", "attention"), ("vit", "full_attention")])
def test_a_traced_model_is_offered_the_attention_that_suits_it(kind, offered):
    case = CASES[kind]
    names = trace_model(case.build, case.example(6), output=case.output).blueprints
    assert {"attention", "full_attention"} & set(names) == {offered}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("channels_first", [True, False], ids=["BCT", "BTC"])
def test_outputs_of_each_token_tell_by_their_values(causal, channels_first):
    """With as many classes as positions the axis of the positions must be told apart, too."""
    torch.manual_seed(0)
    assert found(Mixing(causal, channels_first), tokens()) is causal


def test_dropout_that_is_always_on_is_not_taken_for_a_look_ahead():
    torch.manual_seed(0)
    assert found(Mixing(True, noisy=True), tokens())


def test_attention_over_all_positions_fits_hosts_that_are_not_causal_alone():
    trace = trace_model(GPT, tokens(), output=0)
    line = refused(lambda: planted_model(trace, {trace.slots[0]: "full_attention"}, 1))
    assert "reads later positions" in line
    names = ("attention", "full_attention")
    assert suitable_attention(names, causal=False) == ("full_attention",)
    assert suitable_attention(("attention",), causal=True) == ("attention",)


def test_an_error_inside_a_hosts_own_answer_is_shown_and_not_taken_for_none():
    class Wrong(nn.Module):
        @property
        def causal(self) -> bool:
            return self.no_such_attribute

    recipe = BlueprintRegistry.get("full_attention", "transformer")
    spec = InjectionSpec("r0c0", WIDTH, 0, "after h")
    line = refused(lambda: misfit(recipe, spec, None, Wrong()))
    assert "Wrong.causal fails: AttributeError" in line
    assert "no_such_attribute" in line
    assert misfit(recipe, spec, None, nn.Module()) is not None, "without an answer: causal"
