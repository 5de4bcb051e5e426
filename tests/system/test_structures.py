"""Every structure learns the grammar by the quick start's own commands: both kinds of sentence are
right, and no order is left out."""

from __future__ import annotations

import re

import pytest
from test_quickstart import figure, quickstart

CONVOLUTION = [
    *(f"--{side}-{option}" for side in ("encoder", "decoder") for option in (
        "layers=2", "embed-dim=64", "ffn-embed-dim=64", "attention-heads=2",
        "kernel-size-list=[3,7]",
    )),
]  # fmt: skip
STRUCTURES = {
    "encoder orders": ["--iot-encoder-orders=sf,fs", "--iot-decoder-orders=scf,csf"],
    "LayerDrop": ["--encoder-layerdrop=0.1", "--decoder-layerdrop=0.1", "--encoder-layers=3"],
    "DynamicConv": ["--arch=iot_dynamicconv", "--iot-decoder-orders=scf,csf", *CONVOLUTION],
}


@pytest.fixture(scope="module", params=STRUCTURES)
def output(request, tmp_path_factory) -> str:
    flags = ["--", "--max-epoch=6", *STRUCTURES[request.param]]
    return quickstart(tmp_path_factory.mktemp("structure"), *flags)


def test_both_kinds_are_learnt(output):
    for kind in "AB":
        assert figure(rf"^kind {kind}: BLEU (\d+\.\d+), ", output) > 80


def test_several_orders_are_in_use(output):
    shares = re.search(r"^orders (.*)$", output, re.MULTILINE)[1]
    assert len(re.findall(r"\d+\.\d%", shares)) > 1
