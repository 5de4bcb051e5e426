"""A block of modules against a twin that goes token by token."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from iot_fairseq.mom.block import BlockConfig, ModuleBlock

SMALL = {"width": 8, "ffn": 12, "heads": 2, "attentions": 3, "ffns": 4, "rounds": 3}
OPTIONS = ("router", "choices", "skip", "weighted_qkv", "scores", "skipped_keys")
CASES = [
    dict(zip(OPTIONS, values, strict=True))
    for values in itertools.product(
        ("mlp", "gru"),
        (1, 2),
        (True, False),
        (True, False),
        ("probability", "normalized"),
        ("zero", "absent"),
    )
]


def build(**options: object) -> ModuleBlock:
    """A block with weights of all sizes, in which tokens go different ways."""
    torch.manual_seed(3)
    block = ModuleBlock(BlockConfig(**SMALL | options)).eval()
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            scale = 0.3 if "router.out" in name else 0.1
            parameter.add_(torch.randn_like(parameter) * scale)
    return block


def naive(block: ModuleBlock, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The same, one sentence, one round, one token, one module after the other."""
    rows = [sentence(block, row[keep]) for row, keep in zip(x, real, strict=True)]
    out = x.clone()
    for number, (row, keep) in enumerate(zip(rows, real, strict=True)):
        out[number, keep] = row
    return out


def take(block, router, token, state, modules):
    """(module, score) of what a token takes, and the router's next state."""
    cfg = block.cfg
    logits, state = router(token[None], state)
    p = torch.softmax(logits[0] / cfg.temperature, 0)
    slots = sorted(range(len(p)), key=lambda slot: -p[slot].item())[: cfg.choices]
    total = sum(p[slot] for slot in slots) if cfg.scores == "normalized" else 1.0
    return [(slot, p[slot] / total) for slot in slots if slot < modules], state


def apply(linear, module, x):
    return linear.weight[module] @ x + linear.bias[module]


def norm(layer, module, x):
    return F.layer_norm(x, x.shape, layer.weight[module], layer.bias[module])


def sentence(block: ModuleBlock, x: torch.Tensor) -> torch.Tensor:
    cfg, length = block.cfg, len(x)
    tokens, a_states, f_states = list(x), [None] * length, [None] * length
    for _ in range(cfg.rounds):
        routes, qkv = [], []
        for t in range(length):
            route, a_states[t] = take(
                block, block.attention_router, tokens[t], a_states[t], cfg.attentions
            )
            total = torch.zeros(3 * cfg.width)
            for module, score in route:
                y = apply(
                    block.attention.qkv, module, norm(block.attention.norm, module, tokens[t])
                )
                total = total + y * (score if cfg.weighted_qkv else 1)
            routes.append(route)
            qkv.append(total.chunk(3))
        for t in range(length):
            if not routes[t]:
                continue
            keys = [j for j in range(t + 1) if routes[j] or cfg.skipped_keys == "zero"]
            attended = attention(cfg, qkv[t][0], [qkv[j] for j in keys])
            for module, score in routes[t]:
                tokens[t] = tokens[t] + score * apply(block.attention.out, module, attended)
        for t in range(length):
            route, f_states[t] = take(block, block.ffn_router, tokens[t], f_states[t], cfg.ffns)
            before = tokens[t]
            for module, score in route:
                hidden = apply(block.ffn.fc1, module, norm(block.ffn.norm, module, before))
                tokens[t] = tokens[t] + score * apply(block.ffn.fc2, module, hidden.relu())
    return torch.stack(tokens)


def attention(cfg, query, qkv):
    size, out = cfg.width // cfg.heads, []
    for head in range(cfg.heads):
        part = slice(head * size, (head + 1) * size)
        logits = torch.stack([query[part] @ k[part] for _, k, _ in qkv]) / math.sqrt(size)
        weights = torch.softmax(logits, 0)
        out.append(sum(w * v[part] for w, (_, _, v) in zip(weights, qkv, strict=True)))
    return torch.cat(out)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    real = torch.ones(4, 6, dtype=torch.bool)
    real[1, 4:] = real[2, 1:] = False
    return torch.randn(4, 6, SMALL["width"]), real


@pytest.mark.parametrize("options", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_values_and_gradients_are_those_of_the_twin(options):
    block, (x, real) = build(**options), batch()
    found = []
    for run in (lambda x: block(x, real)[0], lambda x: naive(block, x, real)):
        block.zero_grad()
        source = x.clone().requires_grad_()
        out = run(source)
        torch.manual_seed(1)
        (out * torch.randn_like(out)).sum().backward()
        gradients = {name: p.grad for name, p in block.named_parameters()}
        found.append((out.detach(), source.grad, gradients))
    (out, grad, fast), (wanted, wanted_grad, slow) = found
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(grad, wanted_grad, atol=1e-4, rtol=1e-3)
    for name in fast:
        slow_grad = torch.zeros_like(fast[name]) if slow[name] is None else slow[name]
        torch.testing.assert_close(
            fast[name],
            slow_grad,
            atol=1e-4,
            rtol=1e-3,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def test_tokens_go_different_ways():
    block, (x, real) = build(), batch()
    for to_attention, to_ffn in block(x, real)[1]:
        assert len(to_attention.slots) == int(real.sum())
        assert len(to_attention.slots.unique()) > 2
        assert len(to_ffn.slots.unique()) > 2
    skipped = sum((a.slots == 3).sum() for a, _ in block(x, real)[1])
    assert skipped > 3


@pytest.mark.parametrize("options", CASES[::3], ids=lambda case: "-".join(map(str, case.values())))
def test_step_by_step_equals_all_at_once_through_beam_search(options):
    block, (x, _) = build(**options), batch()
    order = torch.tensor([2, 2, 0, 3])
    state: dict = {}
    steps = []
    with torch.no_grad():
        for t in range(6):
            if t == 3:
                x = x[order]
                block.reorder_incremental_state(state, order)
                steps = [step[order] for step in steps]
            steps.append(block(x[:, t : t + 1], torch.ones(4, 1, dtype=torch.bool), state)[0])
        wanted = block(x, torch.ones(4, 6, dtype=torch.bool))[0]
    torch.testing.assert_close(torch.cat(steps, 1), wanted, atol=1e-5, rtol=1e-4)
