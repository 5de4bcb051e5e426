"""scripts/depths.py: what it prints is what fairseq-generate makes of the same layers."""

from __future__ import annotations

import re
import sys

import pytest
import sacrebleu
from commands import ROOT, generate

sys.path.insert(0, str(ROOT / "scripts"))

import depths


def table(text: str) -> dict[int, list[float]]:
    """The figures of each depth."""
    rows = re.findall(r"^(\d+) +(.*)$", text, re.MULTILINE)
    return {int(depth): [float(word) for word in rest.split()] for depth, rest in rows}


def test_evenly_spaced_layers():
    assert [depths.evenly_spaced(keep, 6) for keep in (6, 4, 3, 2, 1)] == [
        (0, 1, 2, 3, 4, 5), (0, 1, 3, 4), (0, 2, 4), (0, 3), (0,),
    ]  # fmt: skip


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_bleu_of_each_depth(corpus, pre, stock, side, capsys):
    models = [f"ours={pre.path}", f"stock={stock.path}"]
    flags = ["--depths=2,1", "--side", side, "--beam=2", "--gen-subset=test1"]
    depths.main([str(corpus.folder), *models, *flags])
    found = table(capsys.readouterr().out)
    assert list(found) == [2, 1]
    references = corpus.lines("test1", "en")
    for depth, override in ((2, "{}"), (1, f"{{'{side}_layers_to_keep': '0'}}")):
        for place, model in enumerate((pre, stock)):
            texts = generate(
                corpus.folder,
                model.path,
                gen_subset="test1",
                max_len_b=200,
                model_overrides=override,
            ).translations()
            want = sacrebleu.corpus_bleu([texts[n] for n in range(24)], [references]).score
            assert found[depth][2 * place] == pytest.approx(want, abs=0.006)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ours={pre}", "--depths=3"], "--depths must lie between 1 and 2, the decoder layers of"),
        (["ours={pre}", "--depths=0"], "--depths must lie between 1 and 2"),
        (["{pre}"], "models must be NAME=CHECKPOINT"),
        (["ours={pre}", "ours={pre}"], "models must be NAME=CHECKPOINT, each name once"),
        (["ours=missing.pt"], "missing.pt must be a checkpoint, but there is no such file"),
    ],
    ids=str,
)
def test_bad_input_is_refused(corpus, pre, words, message):
    words = [word.format(pre=pre.path) for word in words]
    with pytest.raises(SystemExit, match=re.escape(message)):
        depths.main([str(corpus.folder), *words])
