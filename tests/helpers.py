"""What the tests build from: a task without files, models from flags, weights, batches."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq import options as fairseq_options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, FairseqModel
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.trainer import Trainer
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from iot_fairseq.criterion import IotCriterionConfig, IotLabelSmoothedCrossEntropyCriterion

PAD, EOS, FIRST_WORD = 1, 2, 4
VOCABULARY = 20

# A model small enough for hundreds of tests, yet with every kind of part more than once.
SMALL = {
    "encoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "encoder_attention_heads": 3,
    "encoder_layers": 2,
    "decoder_embed_dim": 12,
    "decoder_ffn_embed_dim": 20,
    "decoder_attention_heads": 3,
    "decoder_layers": 2,
    "dropout": 0.0,
}


def build_dictionary(size: int = VOCABULARY) -> Dictionary:
    """A dictionary of `size` entries, fairseq's four special ones included."""
    dictionary = Dictionary()
    for number in range(size - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    return dictionary


def build_task(size: int = VOCABULARY) -> TranslationTask:
    """fairseq's translation task with one dictionary of `size` entries on both sides, no data."""
    dictionary = build_dictionary(size)
    return TranslationTask(TranslationConfig(), dictionary, dictionary)


def build_model(
    arch: str = "iot_transformer", seed: int = 1, task: TranslationTask | None = None, **options
) -> FairseqModel:
    """A model with these options over those of `SMALL`, the rest as the architecture has it.

    Args:
        arch: registered architecture.
        seed: of the initial values.
        task: where the dictionaries come from.
        options: as on the command line, with underscores.
    """
    args = Namespace(**{**SMALL, **options})
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(seed)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task or build_task())


def build_criterion(
    task: TranslationTask, sentence_avg: bool = False, **options
) -> IotLabelSmoothedCrossEntropyCriterion:
    """The plugin's criterion; `options` as on the command line, with underscores."""
    cfg = IotCriterionConfig(sentence_avg=sentence_avg, **options)
    return IotLabelSmoothedCrossEntropyCriterion.build_criterion(cfg, task)


def configure(arch: str = "iot_transformer", **flags) -> DictConfig:
    """What `fairseq-train` makes of these flags, over those of `SMALL`.

    Args:
        arch: registered architecture.
        flags: options with underscores; True is a switch, None and False leave it out.
    """
    arguments = ["data", "--task", "translation", "--arch", arch, "--cpu"]
    for name, value in {**SMALL, **flags}.items():
        if value is not None and value is not False:
            flag = f"--{name.replace('_', '-')}"
            arguments.append(flag if value is True else f"{flag}={value}")
    parser = fairseq_options.get_training_parser()
    args = fairseq_options.parse_args_and_arch(parser, arguments)
    with warnings.catch_warnings():  # hydra's, on how fairseq uses it
        warnings.simplefilter("ignore")
        return convert_namespace_to_omegaconf(args)


def build_trainer(
    arch: str, criterion: str, seed: int = 1, size: int = VOCABULARY, **flags
) -> Trainer:
    """fairseq's trainer over a fresh model drawn under `seed`, ready for `train_step`."""
    task = build_task(size)
    cfg = configure(arch, criterion=criterion, **flags)
    torch.manual_seed(seed)
    model = task.build_model(cfg.model)
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    trainer.begin_epoch(1)
    return trainer


def build_checkpoint(
    arch: str = "iot_transformer", seed: int = 1, as_dictionary: bool = False, **flags
) -> dict:
    """What fairseq saves of a model with weights that matter.

    Args:
        arch: registered architecture.
        seed: of the weights.
        as_dictionary: the model's settings as fairseq-hydra-train saves them; else a Namespace.
        flags: as `configure` takes them.
    """
    settings = deepcopy(_settings(arch, tuple(flags.items())))
    model = randomize(build_task().build_model(deepcopy(settings["model"])), seed)
    if as_dictionary:
        settings["model"] = vars(settings["model"])
    history = {"criterion_name": "X", "optimizer_name": "FairseqAdam", "lr_scheduler_state": {}}
    return {
        "args": None,
        "cfg": settings,
        "model": model.state_dict(),
        "criterion": None,
        "optimizer_history": [history | {"num_updates": 30 + seed}],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 3}},
        "last_optimizer_state": {"state": {0: torch.ones(3)}},
    }


@cache
def _settings(arch: str, flags: tuple[tuple[str, object], ...]) -> dict:
    cfg = configure(arch, source_lang="de", target_lang="en", optimizer="adam", **dict(flags))
    return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)


def load_by_fairseq(path: Path, **overrides) -> FairseqModel:
    """The model of a checkpoint, as fairseq's commands load it with these --model-overrides."""
    for language in ("de", "en"):
        build_dictionary().save(str(path.parent / f"dict.{language}.txt"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
            [str(path)], arg_overrides={"data": str(path.parent), **overrides}
        )
    return model.eval()


def logits(model: FairseqModel) -> Tensor:
    """What a model computes of `random_batch`, with several orders under each of them."""
    several = {"every_order": True} if len(getattr(model, "decoder_orders", ())) > 1 else {}
    with torch.no_grad():
        return model.eval()(**random_batch()["net_input"], **several)[0]


def without_layers(weights: dict, sides: dict[str, Sequence[int]]) -> dict:
    """The state dict of the model without these layers, found by hand."""
    renamed = {}
    for name, value in weights.items():
        words = name.split(".")
        if words[1] == "layers" and words[0] in sides:
            if int(words[2]) in sides[words[0]]:
                continue
            gone = [number for number in sides[words[0]] if number < int(words[2])]
            words[2] = str(int(words[2]) - len(gone))
        renamed[".".join(words)] = value
    return renamed


def randomize(model: nn.Module, seed: int = 1) -> nn.Module:
    """Gives every parameter a value that matters, so that no two LayerNorms, biases or
    projections can be taken for each other unseen; returns the model."""
    generator = torch.Generator().manual_seed(seed)
    gains = {
        f"{name}.weight" for name, part in model.named_modules() if isinstance(part, nn.LayerNorm)
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name in gains:
                parameter.copy_(1 + 0.4 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.4 * noise)
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
    return model


def random_batch(
    seed: int = 1,
    source_lengths: Sequence[int] = (7, 3, 5, 1, 6),
    target_lengths: Sequence[int] = (4, 6, 1, 5, 3),
    size: int = VOCABULARY,
) -> dict:
    """A batch as fairseq collates it: source padded on the left, target on the right.

    Args:
        seed: of the words.
        source_lengths: words of each source sentence, without the end-of-sentence.
        target_lengths: words of each target sentence, likewise.
        size: of the dictionary.
    """
    generator = torch.Generator().manual_seed(seed)

    def words(length: int) -> Tensor:
        return torch.randint(FIRST_WORD, size, (length,), generator=generator)

    def pad(rows: list[Tensor], left: bool) -> Tensor:
        padded = torch.full((len(rows), max(map(len, rows))), PAD)
        for line, row in zip(padded, rows, strict=True):
            line[len(line) - len(row) if left else 0 :][: len(row)] = row
        return padded

    end = torch.tensor([EOS])
    source = [torch.cat((words(length), end)) for length in source_lengths]
    target = [words(length) for length in target_lengths]
    return {
        "id": torch.arange(len(source)),
        "nsentences": len(source),
        "ntokens": sum(target_lengths) + len(target),
        "net_input": {
            "src_tokens": pad(source, left=True),
            "src_lengths": torch.tensor([len(row) for row in source]),
            "prev_output_tokens": pad([torch.cat((end, row)) for row in target], left=False),
        },
        "target": pad([torch.cat((row, end)) for row in target], left=False),
    }


def numpy_weights(model: nn.Module) -> dict[str, np.ndarray]:
    """The state dict in float64, for the twin in `reference.py`."""
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


def gradients(model: nn.Module, all_of_them: bool = True) -> dict[str, Tensor]:
    """The gradients by parameter name; every parameter must have one if `all_of_them`."""
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not (missing and all_of_them), f"no gradient for {missing}"
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
