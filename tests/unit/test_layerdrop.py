"""LayerDrop (cases 29 and 30): which layers a step leaves out, and what that does to a model."""

from __future__ import annotations

import pytest
import torch
from fairseq.modules import LayerDropModuleList
from helpers import (
    build_criterion,
    build_model,
    build_task,
    gradients,
    random_batch,
    randomize,
    without_layers,
)
from torch import nn

from iot_fairseq.layerdrop import LayerDropList, hold_dropped, never_all, numbered

ORDERS = "scf,csf,fcs"


def stack(size: int = 3) -> list[nn.Module]:
    return [nn.Linear(2, 2) for _ in range(size)]


# ---------------------------------------------------------------- which layers


@pytest.mark.parametrize("training", [True, False], ids=("train", "valid"))
def test_the_stock_order_draws_what_fairseq_draws(training):
    layers = stack()
    stock = LayerDropModuleList(0.6, layers).train(training)
    ours = LayerDropList(0.6, layers).train(training)
    rescued = 0
    for seed in range(200):
        torch.manual_seed(seed)
        want, after = list(stock), torch.rand(1)
        torch.manual_seed(seed)
        got = list(ours)
        assert torch.equal(torch.rand(1), after), "another amount of randomness"
        if not want:
            rescued += 1
            torch.manual_seed(seed)
            want = [layers[int(torch.empty(3).uniform_().argmax())]]
        assert got == want
        assert [layers[n] for n in ours.dropped] == [x for x in layers if x not in want]
    assert (rescued > 20) == training


def test_a_step_draws_once_whatever_else_is_drawn_in_it():
    first, second = (LayerDropList(0.5, stack(), stream) for stream in (1, 2))
    seen = {first: [], second: []}
    for update in range(400):
        for layers, draws in seen.items():
            torch.manual_seed(7 + update)  # as fairseq does
            layers.set_num_updates(update)
            kept = layers.draw()
            torch.rand(update % 5 + 1)
            assert layers.draw() == kept
            assert list(layers) == [layers[number] for number in kept]
            draws.append(kept)
    assert seen[first] != seen[second]
    for draws in seen.values():
        assert all(draws)
        # 0.5 of the layers, and the third of 1/8 in which one layer is kept nevertheless
        shares = [sum(number in kept for kept in draws) / len(draws) for number in range(3)]
        assert all(0.45 < share < 0.64 for share in shares), shares
    again = LayerDropList(0.5, stack(), 1)
    torch.manual_seed(7)
    assert again.draw() == seen[first][0]


def test_in_evaluation_every_layer_runs():
    layers = LayerDropList(0.9, stack(), 1).eval()
    assert list(layers) == [layers[0], layers[1], layers[2]]
    assert layers.dropped == []


def test_a_list_without_layerdrop_stays_as_it_is():
    plain = nn.ModuleList(stack())
    assert never_all(plain, 1) is plain
    assert [number for number, _ in numbered(plain)] == [0, 1, 2]


def test_layers_keep_their_numbers():
    layers = LayerDropList(0.5, stack(6), 1)
    gaps = 0
    for update in range(20):
        layers.set_num_updates(update)
        found = list(numbered(layers))
        assert all(layers[number] is layer for number, layer in found)
        gaps += [number for number, _ in found] != list(range(len(found)))
    assert gaps > 10


# ---------------------------------------------------------------- the graph


def test_what_is_held_has_gradients_of_zero_and_changes_nothing():
    layers, x = LayerDropList(0.5, stack(4), 1), torch.randn(3, 2, requires_grad=True)
    layers.set_num_updates(3)
    layers.draw()
    with torch.no_grad():
        layers[layers.dropped[0]].weight.fill_(torch.inf)
    held = hold_dropped(x, layers, nn.ModuleList(stack()))
    assert torch.equal(held, x)
    (held * x.detach()).sum().backward()
    assert torch.equal(x.grad, x.detach())
    assert 0 < len(layers.dropped) < 4
    for number in range(4):
        for parameter in layers[number].parameters():
            if number in layers.dropped:
                assert torch.equal(parameter.grad, torch.zeros_like(parameter))
            else:
                assert parameter.grad is None


# ---------------------------------------------------------------- the model


def dropped(model) -> tuple[list[int], list[int]]:
    return model.encoder.layers.dropped, model.decoder.layers.dropped


@pytest.mark.parametrize("orders", [ORDERS, "csf"])
@pytest.mark.parametrize("norm_first", [False, True], ids=("post", "pre"))
def test_a_step_is_that_of_the_model_without_the_dropped_layers(orders, norm_first):
    """For every order the same layers: one smaller model computes what all of them do."""
    options = {"iot_decoder_orders": orders, "iot_exploration": 0.3}
    norms = {f"{side}_normalize_before": norm_first for side in ("encoder", "decoder")}
    criterion = build_criterion(build_task(), label_smoothing=0.1, iot_exploration=0.3)
    del options["iot_exploration"]
    sizes = {"encoder_layers": 4, "decoder_layers": 5}
    model = build_model(encoder_layerdrop=0.5, decoder_layerdrop=0.5, **options, **sizes, **norms)
    randomize(model).train()
    torch.manual_seed(3)
    model.set_num_updates(2)
    loss, _, _ = criterion(model, random_batch())
    loss.backward()
    gone = dict(zip(("encoder", "decoder"), dropped(model), strict=True))
    assert all(gone.values())
    sizes = {f"{side}_layers": sizes[f"{side}_layers"] - len(gone[side]) for side in gone}
    small = build_model(**options, **sizes, **norms).train()
    small.load_state_dict(without_layers(model.state_dict(), gone))
    torch.manual_seed(3)
    small.set_num_updates(2)
    want, _, _ = criterion(small, random_batch())
    want.backward()
    assert torch.equal(loss, want)
    found = gradients(model)  # every parameter has one
    for name, gradient in without_layers(found, gone).items():
        assert torch.equal(gradient, gradients(small)[name]), name
    for name in found:
        words = name.split(".")
        if words[1] == "layers" and int(words[2]) in gone[words[0]]:
            assert not found[name].any(), name


def test_micro_batches_of_a_step_drop_alike_and_steps_differ():
    model = build_model(
        iot_decoder_orders=ORDERS, encoder_layers=4, decoder_layers=4,
        encoder_layerdrop=0.5, decoder_layerdrop=0.5, dropout=0.1,
    ).train()  # fmt: skip
    steps = []
    for update in range(12):
        torch.manual_seed(1 + update)
        model.set_num_updates(update)
        micro = []
        for seed, lengths in enumerate((((7, 3), (4, 6)), ((2, 9, 1), (5, 5, 5)))):
            model(**random_batch(seed, *lengths)["net_input"], every_order=True)
            micro.append(dropped(model))
        assert micro[0] == micro[1]
        steps.append(micro[0])
    assert len({str(step) for step in steps}) > 6
    assert any(encoder != decoder for encoder, decoder in steps)


def test_a_step_never_drops_all_layers():
    model = build_model(
        iot_decoder_orders=ORDERS, encoder_layerdrop=0.99, decoder_layerdrop=0.99
    ).train()
    for update in range(10):
        model.set_num_updates(update)
        model(**random_batch()["net_input"], every_order=True)
        assert [len(numbers) for numbers in dropped(model)] == [1, 1]


def test_one_process_with_the_stock_order_leaves_dropped_layers_without_gradient():
    """As fairseq does, so that its optimizers do what they do there."""
    model = build_model(iot_decoder_orders="scf", decoder_layers=5, decoder_layerdrop=0.5).train()
    torch.manual_seed(2)
    build_criterion(build_task())(model, random_batch())[0].backward()
    gone = model.decoder.layers.dropped
    assert gone
    for number, layer in enumerate(model.decoder.layers._modules.values()):
        assert (layer.fc1.weight.grad is None) == (number in gone)


def test_attention_is_that_of_the_layer_asked_for():
    """And none, as in fairseq, where that layer was left out."""
    model = build_model(iot_decoder_orders="csf", decoder_layers=3, decoder_layerdrop=0.5).train()
    batch, seen = random_batch()["net_input"], set()
    for update in range(12):
        model.set_num_updates(update)
        attn = model(**batch, alignment_layer=1)[1]["attn"][0]
        left_out = 1 in model.decoder.layers.dropped
        assert (attn is None) == left_out
        seen.add(left_out)
    assert seen == {False, True}


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("rate", [1.0, -0.1, 2.0])
@pytest.mark.parametrize("orders", ["scf", ORDERS])
def test_a_rate_out_of_range_is_refused(side, rate, orders):
    want = f"^--{side}-layerdrop must be 0 or more and below 1, but is {rate} instead$"
    with pytest.raises(ValueError, match=want):
        build_model(iot_decoder_orders=orders, **{f"{side}_layerdrop": rate})
