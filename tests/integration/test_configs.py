"""Every YAML in `configs/` builds its model and is the same run as its script's."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import warnings
from argparse import Namespace
from pathlib import Path

import pytest
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

import iot_fairseq  # noqa: F401  (registers what the configurations name)

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ("ddtp", "iwslt14", "iwslt17", "wmt14", "wmt16", "gigaword", "code")
COMMANDS = {"quickstart": ["quickstart.sh"]} | {
    f"{name}-{system}": [f"train-{name}.sh", system]
    for name in RECIPES
    for system in ("baseline", "iot")
}
# All that decides a run, besides the model.
SECTIONS = (
    "common", "task", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset",
    "checkpoint", "distributed_training", "ema",
)  # fmt: skip
# What the two ways of starting a run fill in by themselves.
OF_THE_START = {"_name", "arch", "no_seed_provided", "user_dir", "task", "criterion", "data"}


def script_config(name: str) -> DictConfig:
    """What fairseq makes of the training command that the script prints."""
    script, *arguments = COMMANDS[name]
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / script), *arguments, "--dry-run"],
        env={**os.environ, "IOT_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    words = shlex.split(done.stdout)
    assert words[1:3] == ["-m", "fairseq_cli.train"]
    args = options.parse_args_and_arch(options.get_training_parser(), words[3:])
    with warnings.catch_warnings():  # hydra's, on how fairseq uses it
        warnings.simplefilter("ignore")
        return convert_namespace_to_omegaconf(args)


def yaml_config(name: str) -> DictConfig:
    """What fairseq-hydra-train makes of the file."""
    GlobalHydra.instance().clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hydra_init(name)
        with initialize_config_dir(str(ROOT / "configs")):
            cfg = compose(name)
        add_defaults(cfg)
    OmegaConf.set_struct(cfg, True)
    return cfg


def filled_model(model: DictConfig | Namespace) -> dict[str, object]:
    """The model's settings with those of its architecture."""
    if isinstance(model, DictConfig):
        model = Namespace(**OmegaConf.to_container(model))
    name = getattr(model, "_name", None) or model.arch
    ARCH_CONFIG_REGISTRY[name](model)
    return {**vars(model), "_name": name}


def test_every_file_has_a_script():
    assert {path.stem for path in (ROOT / "configs").glob("*.yaml")} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_file_is_the_script(name):
    by_script, by_file = script_config(name), yaml_config(name)
    for section in SECTIONS:
        one, two = (
            OmegaConf.to_container(cfg[section], resolve=True, enum_to_str=True)
            for cfg in (by_script, by_file)
        )
        assert one.get("_name") == two.get("_name")
        if section == "checkpoint":
            one["save_dir"] = str(Path(one["save_dir"]).relative_to(ROOT))
        if section == "task":
            assert str(Path(one["data"]).relative_to(ROOT)) == two["data"]
        differing = {
            key: (one.get(key), two.get(key))
            for key in set(one) | set(two)
            if key not in OF_THE_START and one.get(key) != two.get(key)
        }
        assert not differing, f"{section}: {differing}"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_model_is_the_script_s(name):
    by_script, by_file = (
        filled_model(config(name).model) for config in (script_config, yaml_config)
    )
    assert by_script["_name"] == by_file["_name"]
    differing = {
        key: (by_script.get(key), value)
        for key, value in by_file.items()
        if key not in OF_THE_START and by_script.get(key) != value
    }
    assert not differing


@pytest.mark.parametrize("name", COMMANDS)
def test_the_model_builds(name):
    dictionary = Dictionary()
    for number in range(16):
        dictionary.add_symbol(f"w{number}")
    cfg = yaml_config(name)
    with open_dict(cfg):
        model = build_model(cfg.model, TranslationTask(TranslationConfig(), dictionary, dictionary))
    is_iot = not name.endswith("baseline")
    assert getattr(model, "decoder_orders", ()) == (("scf", "csf", "fcs") if is_iot else ())
    assert model.decoder.output_projection.weight is model.encoder.embed_tokens.weight
