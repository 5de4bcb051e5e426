"""The language model of modules: causal, whatever the padding, right step by step; its options."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from helpers import FIRST_WORD, PAD, VOCABULARY, build_dictionary

from iot_fairseq.mom.block import ModuleBlock
from iot_fairseq.mom.model import MomConfig, MomTransformerLanguageModel

SMALL = {
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 24,
    "decoder_attention_heads": 2,
    "decoder_learned_pos": False,
    "tokens_per_sample": 32,
    "dropout": 0.0,
    "mom_chunks": 2,
}


def build(**options: object) -> MomTransformerLanguageModel:
    """A model with these options over those of `SMALL` and of mom_tiny."""
    args = Namespace(**SMALL | options)
    ARCH_CONFIG_REGISTRY["mom_tiny"](args)
    for field in MomConfig.__dataclass_fields__.values():
        if getattr(args, field.name, None) is None:
            default = field.default
            setattr(args, field.name, None if str(default).startswith("${") else default)
    words = build_dictionary()
    torch.manual_seed(1)
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    return MomTransformerLanguageModel.build_model(args, task).eval()


@pytest.fixture
def words() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randint(FIRST_WORD, VOCABULARY, (3, 10))


OPTIONS = [
    {},
    {"mom_router": "gru", "mom_skipped_keys": "absent"},
    {"mom_choices": 2, "mom_no_skip": True, "mom_scores": "normalized"},
]


def test_layers_stand_in_their_places():
    kinds = [isinstance(layer, ModuleBlock) for layer in build(mom_top=3).decoder.layers]
    assert kinds == [False, True, False, True, False, False, False, False]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_later_word_changes_nothing_before_it(words, options):
    model = build(**options)
    changed = words.clone()
    changed[:, 6:] = FIRST_WORD + (words[:, 6:] - FIRST_WORD + 1) % (VOCABULARY - FIRST_WORD)
    got, want = model(changed)[0], model(words)[0]
    torch.testing.assert_close(got[:, :6], want[:, :6], atol=1e-5, rtol=1e-5)
    assert (got[:, 6] - want[:, 6]).abs().max() > 0.1


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_padding_changes_nothing(words, options):
    model = build(**options)
    padded = torch.cat([words, torch.full((3, 4), PAD)], 1)
    padded[1, 5:] = PAD
    want = model(words)[0]
    got = model(padded)[0]
    torch.testing.assert_close(got[::2, :10], want[::2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got[1, :5], want[1, :5], atol=1e-5, rtol=1e-5)
    assert all(len(a.slots) == 25 for block in model(padded)[1]["routes"] for a, _ in block)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_word_by_word_equals_all_at_once(words, options):
    model, state, steps = build(**options), {}, []
    with torch.no_grad():
        for t in range(1, 11):
            steps.append(model(words[:, :t], incremental_state=state)[0])
        torch.testing.assert_close(torch.cat(steps, 1), model(words)[0], atol=2e-5, rtol=1e-4)


def test_the_loss_reaches_routers_by_probabilities_alone(words):
    for scores, reached in (("probability", True), ("normalized", False)):
        model = build(mom_scores=scores)
        model(words)[0].logsumexp(-1).sum().backward()
        gradient = model.decoder.layers[1].ffn_router.out.weight.grad
        assert (gradient is not None and gradient.abs().max().item() > 1e-6) == reached


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mom_rounds": 0}, "--mom-rounds must be 1 at least, but is 0"),
        ({"mom_ffns": 0}, "--mom-ffns must be 1 at least, but is 0"),
        ({"mom_choices": 4}, "--mom-choices must be at most --mom-attentions 3, but is 4"),
        ({"mom_temperature": 0.0}, "--mom-temperature must be above 0, but is 0.0"),
        (
            {"decoder_ffn_embed_dim": 20},
            "--decoder-ffn-embed-dim must be a multiple of 8, but is 20",
        ),
        ({"decoder_layerdrop": 0.1}, "--decoder-layerdrop must not be given to mom_trans"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        build(**options)
