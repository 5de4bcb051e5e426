"""With the single order `scf` the plugin is stock fairseq, to the last bit; and activation
checkpointing changes no gradient under several orders."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY, FairseqModel
from fairseq.trainer import Trainer
from helpers import (
    build_criterion,
    build_model,
    build_task,
    build_trainer,
    gradients,
    random_batch,
    randomize,
)

DROPOUT = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1}
VARIANTS = {
    "post": {},
    "pre": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "tied": {"share_all_embeddings": True},
    "learned": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "layernorm-embedding": {"layernorm_embedding": True, "no_scale_embedding": True},
    "layerdrop": {"encoder_layerdrop": 0.4, "decoder_layerdrop": 0.4, "decoder_layers": 5},
    "cross-self": {"cross_self_attention": True},
    "gelu": {"activation_fn": "gelu", "decoder_layers": 3},
    "projected": {"decoder_input_dim": 8, "decoder_output_dim": 10},
    "checkpointed": {"checkpoint_activations": True},
}
# With these some parameters have no part in a step.
WITHOUT_SOME_GRADIENTS = {"layerdrop"}
variants = pytest.mark.parametrize("variant", VARIANTS)


def build_both(**options) -> tuple[FairseqModel, FairseqModel]:
    """Stock fairseq's model and ours under the single order `scf`, initial values of one seed."""
    stock = build_model("transformer", **options)
    return stock, build_model("iot_transformer", iot_decoder_orders="scf", **options)


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Asserts the same names in the same sequence, and bit-equal tensors."""
    assert list(found) == list(wanted)
    different = [name for name, value in wanted.items() if not torch.equal(found[name], value)]
    assert not different


@pytest.mark.parametrize(
    "name", ["", "_tiny", "_iwslt_de_en", "_wmt_en_de", "_wmt_en_de_big"], ids=lambda n: n or "base"
)
def test_architectures_differ_by_our_options_alone(name):
    ours, stock = Namespace(), Namespace()
    ARCH_CONFIG_REGISTRY[f"iot_transformer{name}"](ours)
    ARCH_CONFIG_REGISTRY[f"transformer{name}"](stock)
    added = {option for option in vars(ours) if option.startswith("iot_")}
    assert {k: v for k, v in vars(ours).items() if k not in added} == vars(stock)
    assert {"iot_decoder_orders", "iot_clamp", "iot_tau_max"} <= added


@variants
def test_names_and_initial_values(variant):
    stock = build_model("transformer", seed=5, **VARIANTS[variant])
    drawn = torch.rand(1)
    ours = build_model("iot_transformer", seed=5, iot_decoder_orders="scf", **VARIANTS[variant])
    assert torch.equal(torch.rand(1), drawn), "another amount of randomness went into the weights"
    assert_equal(ours.state_dict(), stock.state_dict())
    assert_equal(dict(ours.named_parameters()), dict(stock.named_parameters()))


@variants
@pytest.mark.parametrize("training", [True, False], ids=("train", "valid"))
def test_outputs(variant, training):
    outputs = []
    for model in build_both(**DROPOUT, **VARIANTS[variant]):
        randomize(model).train(training)
        torch.manual_seed(9)
        logits, extra = model(**random_batch()["net_input"])
        states = {f"state {i}": state for i, state in enumerate(extra["inner_states"])}
        attn = extra["attn"][0]  # None where LayerDrop took the last layer away
        outputs.append({"logits": logits, **states, "randomness left": torch.rand(1)})
        outputs[-1] |= {} if attn is None else {"attn": attn}
    assert_equal(outputs[1], outputs[0])


@variants
@pytest.mark.parametrize("sentence_avg", [False, True], ids=("tokens", "sentences"))
def test_losses_and_gradients(variant, sentence_avg):
    task = build_task()
    criteria = (
        LabelSmoothedCrossEntropyCriterion(task, sentence_avg, 0.1),
        build_criterion(task, sentence_avg, label_smoothing=0.1),
    )
    results = []
    for model, criterion in zip(build_both(**DROPOUT, **VARIANTS[variant]), criteria, strict=True):
        randomize(model).train()
        torch.manual_seed(9)
        loss, sample_size, log = criterion(model, random_batch())
        loss.backward()
        found = dict(gradients(model, all_of_them=variant not in WITHOUT_SOME_GRADIENTS))
        results.append((sample_size, log, {"loss": loss, **found}))
    assert results[1][0] == results[0][0]
    assert results[1][1] == results[0][1]
    assert_equal(results[1][2], results[0][2])


def train(trainer: Trainer, updates: int) -> list[dict[str, float]]:
    """What is logged at each of so many updates of two batches each, and in the validation after
    the last one."""
    logged = []
    for update in range(updates):
        batches = [random_batch(2 * update), random_batch(2 * update + 1, (3, 9, 2), (5, 2, 8))]
        with metrics.aggregate(new_root=True) as meters:
            trainer.train_step(batches)
        logged.append({name: float(meters[name].avg) for name in ("loss", "nll_loss", "gnorm")})
    with metrics.aggregate(new_root=True) as meters:
        trainer.valid_step(random_batch(99))
    return [*logged, {name: float(meters[name].avg) for name in ("loss", "nll_loss")}]


@pytest.mark.parametrize("variant", ["post", "pre", "tied"])
def test_ten_updates_of_the_trainer(variant):
    flags = {
        "optimizer": "adam",
        "adam_betas": "(0.9, 0.98)",
        "lr": 0.005,
        "lr_scheduler": "inverse_sqrt",
        "warmup_updates": 4,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "label_smoothing": 0.1,
        "update_freq": 2,
        **DROPOUT,
        **VARIANTS[variant],
    }
    stock = build_trainer("transformer", "label_smoothed_cross_entropy", **flags)
    ours = build_trainer(
        "iot_transformer", "iot_label_smoothed_cross_entropy", iot_decoder_orders="scf", **flags
    )
    start = {name: value.clone() for name, value in stock.model.state_dict().items()}
    wanted = train(stock, 10)
    assert train(ours, 10) == wanted
    assert wanted[-1]["loss"] < wanted[0]["loss"]
    assert_equal(ours.model.state_dict(), stock.model.state_dict())
    weights = stock.model.state_dict()
    trained = dict(stock.model.named_parameters())
    assert all(not torch.equal(weights[name], start[name]) for name in trained)
    assert ours.get_num_updates() == stock.get_num_updates() == 10


# ---------------------------------------------------------------- activation checkpointing


@pytest.mark.parametrize("variant", ["post", "pre"])
@pytest.mark.parametrize("orders", ["scf,csf,fcs", "5,4,3,2,1,0"])
def test_checkpointed_activations_give_the_same_gradients(variant, orders):
    """The same loss to the last bit, dropout on; gradients but for rounding."""
    criterion = build_criterion(
        build_task(), label_smoothing=0.1, iot_classification=0.5, iot_classification_temperature=1
    )
    results = []
    for checkpointed in (False, True):
        model = build_model(
            iot_decoder_orders=orders,
            checkpoint_activations=checkpointed,
            **DROPOUT,
            **VARIANTS[variant],
        )
        wrapped = [hasattr(layer, "precheckpoint_forward") for layer in model.decoder.layers]
        assert wrapped == [checkpointed] * len(wrapped)
        randomize(model).double().train()
        torch.manual_seed(9)
        loss, _, _ = criterion(model, random_batch())
        loss.backward()
        results.append((loss, gradients(model)))
    assert torch.equal(results[1][0], results[0][0])
    # the sums over the orders associate differently, hence double precision and not bit for bit
    for name, want in results[0][1].items():
        off = (results[1][1][name] - want).abs().max() / want.abs().max().clamp(min=1)
        assert off < 1e-12, name
