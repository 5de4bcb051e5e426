"""Every recipe from the archive to the scores by its own commands, in small (``SMOKE=1``)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from iot_fairseq import IotTransformerModel

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
RECIPES = sorted(path.name for path in SCRIPTS.glob("train-*.sh"))
# What a recipe prints beside BLEU, or in its place.
FIGURES = {
    "train-code.sh": ["corpus BLEU of tokens", "mean sentence BLEU of tokens", "exact match"],
    "train-ddtp.sh": ["BLEU", "chrF"],
    "train-gigaword.sh": ["ROUGE-1 F1", "ROUGE-2 F1", "ROUGE-L F1"],
    "train-wmt14.sh": ["compound-split BLEU", "detokenised BLEU"],
}


@pytest.mark.parametrize("script", RECIPES)
def test_a_recipe_runs_from_the_archive_to_the_scores(script, tmp_path):
    data, run = tmp_path / "data", tmp_path / "run"
    done = subprocess.run(
        ["bash", SCRIPTS / script, "iot", "--data", data / "bin", "--out", run],
        env={**os.environ, "IOT_PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "SMOKE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stdout
    assert text.startswith(
        "SMOKE RUN: made-up data, a tiny model: the figures below mean nothing.\n"
    )
    assert f"fairseq data: {data}/bin\n" in text
    (reference,) = data.glob("test.ref.*") if script != "train-ddtp.sh" else [data / "test.en"]
    count = len(reference.read_text(encoding="utf-8").splitlines())
    assert re.search(rf"^{count} sentences of test$", text, re.MULTILINE)
    for figure in FIGURES.get(script, ["tokenised BLEU", "detokenised BLEU"]):
        assert re.search(rf"^{figure} \d+\.\d\d  \(", text, re.MULTILINE), text
    shares = re.findall(r"(?:scf|csf|fcs) (\d+\.\d)%", text)
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.2)
    averages = re.search(r"AVERAGE=[1-9]", (SCRIPTS / script).read_text()) is not None
    assert (run / "averaged2.pt").exists() == averages
    model = IotTransformerModel.from_pretrained(str(run), "checkpoint_last.pt")
    assert isinstance(model.translate("Ein Mann, 一個人: f(x)."), str)
    assert model.orders("Ein Mann, 一個人: f(x).") in ("scf", "csf", "fcs")
