"""How the package is found and what fairseq then shows of it (cases 4 and 6)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from commands import PACKAGE, ROOT, run

USER_DIRS = """
import argparse, os, sys
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY
import torch.multiprocessing as mp

def load(index, paths):
    for path in paths:
        for _ in range(2):
            utils.import_user_module(argparse.Namespace(user_dir=path))
    import iot_fairseq
    assert ARCH_MODEL_REGISTRY["iot_transformer"] is iot_fairseq.IotTransformerModel
    print("loaded", os.path.realpath(iot_fairseq.__file__))

if __name__ == "__main__":
    load(0, sys.argv[1:])
    mp.spawn(load, args=(sys.argv[1:],), nprocs=1)
"""


def test_user_dir_first_by_a_link_beside_an_installed_copy_and_in_a_spawned_worker(tmp_path):
    """What a process that has not yet imported the package makes of --user-dir."""
    installed = tmp_path / "site" / "iot_fairseq"
    installed.parent.mkdir()
    subprocess.run(["cp", "-r", PACKAGE, installed], check=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "iot_fairseq").symlink_to(PACKAGE)
    script = tmp_path / "script.py"
    script.write_text(USER_DIRS)
    relative = os.path.relpath(PACKAGE, tmp_path)
    paths = [
        str(tmp_path / "link" / "iot_fairseq"),
        f"{PACKAGE}/",
        relative,
        f"{relative}/",
        PACKAGE,
    ]
    done = subprocess.run(
        [sys.executable, script, *paths],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"loaded {ROOT / 'iot_fairseq' / '__init__.py'}"] * 2


@pytest.mark.parametrize("command", ["train", "generate", "interactive", "validate"])
def test_help_and_choices_name_what_we_register(command):
    """fairseq's help leaves out the names of tasks and architectures; its refusals list them."""
    assert "iot_label_smoothed_cross_entropy" in run(command, "--user-dir", PACKAGE, "--help").text
    names = {"--task": "iot_translation", "--arch": "iot_transformer_iwslt_de_en"}
    for flag in ("--task", "--arch") if command == "train" else ("--task",):
        with pytest.raises(SystemExit) as error:
            run(command, "data", "--user-dir", PACKAGE, flag, "none")
        assert names[flag] in error.value.__notes__[0]


def test_score(tmp_path):
    (tmp_path / "text").write_text("the old man looks for the dog .\n")
    output = run("score", "--sys", tmp_path / "text", "--ref", tmp_path / "text")
    assert "BLEU4 = 100.00" in output.text
