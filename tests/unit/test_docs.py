"""The README says what is: commands parse, flags exist with the defaults given, files are there."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq import options
from fairseq.models import ARCH_MODEL_INV_REGISTRY

from iot_fairseq import averaging, conversion, pruning
from iot_fairseq.criterion import IotCriterionConfig
from iot_fairseq.options import IotConfig
from iot_fairseq.reports import compare, report

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import benchmark  # noqa: E402
import depths  # noqa: E402
import order_agreement  # noqa: E402
import order_probe  # noqa: E402

README = (ROOT / "README.md").read_text()
EXPERIMENTS = (ROOT / "docs" / "experiments.md").read_text()
DATASETS = (ROOT / "docs" / "datasets.md").read_text()
RECIPES = re.findall(r"^\| .*? \| `(scripts/train-.*?)` \| (.*?) \|", DATASETS, flags=re.MULTILINE)
BLOCKS = re.findall(r"```bash\n(.*?)```", README + EXPERIMENTS, flags=re.DOTALL)
COMMANDS = [
    shlex.split(line)
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip()
]
DEFAULTS = {
    field.name: field.default
    for config in (IotConfig, IotCriterionConfig)
    for field in dataclasses.fields(config)
    if field.name.startswith("iot_")
}


def commands(name: str) -> list[list[str]]:
    return [words[1:] for words in COMMANDS if words[0] == name]


def under_torchrun() -> list[list[str]]:
    """fairseq-train's own words in commands of torchrun."""
    return [words[words.index("fairseq_cli.train") + 1 :] for words in commands("torchrun")]


@pytest.mark.parametrize("words", commands("fairseq-train") + under_torchrun())
def test_training_commands_parse(words):
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    assert args.task == "iot_translation"
    assert args.criterion == "iot_label_smoothed_cross_entropy"


@pytest.mark.parametrize("words", commands("fairseq-generate") + commands("fairseq-interactive"))
def test_generation_commands_parse(words):
    parser = options.get_generation_parser(interactive="--input" in words)
    args = options.parse_args_and_arch(parser, words)
    assert args.task == "iot_translation"


@pytest.mark.parametrize("words", commands("python"))
def test_commands_of_our_python_scripts_parse(words):
    script, *arguments = words
    module = {
        "scripts/benchmark.py": benchmark,
        "scripts/depths.py": depths,
        "scripts/order_agreement.py": order_agreement,
        "scripts/order_probe.py": order_probe,
    }[script]
    module.parse_arguments(arguments)


@pytest.mark.parametrize("words", commands("iot-report"))
def test_report_commands_parse(words):
    assert report.parse_arguments(words).gen_subset == "test"


@pytest.mark.parametrize("words", commands("iot-compare"))
def test_comparison_commands_parse(words):
    assert all("=" in system for system in compare.parse_arguments(words).systems)


@pytest.mark.parametrize("words", commands("iot-average"))
def test_averaging_commands_parse(words):
    args = averaging.parse_arguments(words)
    assert (len(args.sources) > 1) == (args.last_epochs is args.last_updates is None)


@pytest.mark.parametrize("words", commands("iot-convert"))
def test_conversion_commands_parse(words):
    args = conversion.parse_arguments(words)
    assert args.to == ("stock" if args.target == "stock.pt" else "iot")


@pytest.mark.parametrize("words", commands("iot-prune"))
def test_pruning_commands_parse(words):
    args = pruning.parse_arguments(words)
    assert args.iot_keep_every or args.decoder_layers_to_keep


def test_every_command_is_known():
    known = {"fairseq-train", "fairseq-generate", "bash", "pip", "python"}
    known |= {"iot-average", "iot-convert", "iot-prune", "iot-report", "iot-compare"}
    known |= {"torchrun", "sbatch", "fairseq-interactive"}
    assert {words[0] for words in COMMANDS} == known
    for words in commands("bash"):
        assert (ROOT / words[0]).is_file()


def test_commands_of_ours_are_installed_and_documented():
    setup = (ROOT / "setup.py").read_text()
    entries = re.findall(r'"(iot-\w+)=([\w.]+):(\w+)"', setup)
    assert {name for name, _, _ in entries} == {
        words[0] for words in COMMANDS if "iot-" in words[0]
    }
    for _, module, function in entries:
        assert callable(getattr(importlib.import_module(module), function))


def test_the_option_tables_name_every_flag_with_its_default():
    section = README.split("## Options")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`-*iot.*?) \| (.*?) \|", section, flags=re.MULTILINE)
    documented = {}
    for names, values in rows:
        names = re.findall(r"`-*(iot[a-z-_]*)`", names)
        values = [value.strip("` ") for value in values.split(",")]
        if len(names) == 1:
            values = [",".join(values)]
        documented.update(zip((n.replace("-", "_") for n in names), values, strict=True))
    shown = {
        name: "none" if default is None else f"{default:g}" if default != str(default) else default
        for name, default in DEFAULTS.items()
    }
    assert documented == shown


def test_the_architectures_are_named():
    for model in ("iot_transformer", "iot_dynamicconv", "iot_lightconv"):
        for name in ARCH_MODEL_INV_REGISTRY[model]:
            assert f"`{name}`" in README


@pytest.mark.parametrize(("command", "recipe"), RECIPES)
def test_the_recipes_of_the_table_are_the_scripts_own(command, recipe):
    script, *arguments = command.split()
    done = subprocess.run(
        ["bash", ROOT / script, *arguments, "--dry-run"],
        capture_output=True,
        text=True,
        env={**os.environ, "IOT_PYTHON": sys.executable},
        check=True,
    )
    said = f"{done.stdout} {(ROOT / script).read_text()}"
    for quoted in re.findall(r"`(.*?)`", recipe):
        for part in re.split(r" (?=--)", quoted):
            assert re.search(rf"{re.escape(part)}(?![\w.-])", said), part


def test_every_recipe_is_in_the_table():
    scripts = {command.split()[0] for command, _ in RECIPES}
    assert scripts == {f"scripts/{path.name}" for path in (ROOT / "scripts").glob("train-*.sh")}


def test_files_named_in_the_readme_exist():
    files = r"(?:scripts|configs|docs)/[\w.-]+\.(?:sh|py|txt|yaml|md|sbatch)"
    named = set(re.findall(files, README + EXPERIMENTS + DATASETS))
    assert len(named) >= 9
    named |= set(re.findall(r"!\[.*?\]\((.*?)\)", README))
    missing = [name for name in sorted(named) if not (ROOT / name).is_file()]
    assert not missing


def test_our_errors_in_the_troubleshooting_are_ours():
    source = "".join(path.read_text() for path in (ROOT / "iot_fairseq").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    table = README.split("## When something goes wrong")[1].split("\n## ")[0]
    rows = [row for row in re.findall(r"^\| `(.*?)`", table, flags=re.MULTILINE) if "iot" in row]
    rows += [
        "the checkpoint holds no ... order predictor",
        "the choice of orders has collapsed",
    ]
    rows += ["--path must be an IOT model with several orders"]
    for row in rows:
        if "--user-dir" not in row:
            assert all(part in source for part in row.split("...")), row
