"""Data and models for a report: loaded, or refused by name."""

import os
from pathlib import Path

from fairseq import checkpoint_utils, options
from fairseq.data import FairseqDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import BaseFairseqModel
from omegaconf import DictConfig

from ..checkpoints import TASK, load
from ..task import IotTranslationTask

FORCED = ("iot_force_encoder_order", "iot_force_decoder_order")


def configure(data: str, **flags: object) -> DictConfig:
    """fairseq's settings for translating with our task.

    Args:
        data: folder of binarised data.
        flags: options of fairseq-generate, with underscores; None leaves one out.
    """
    words = [
        f"--{key.replace('_', '-')}={value}" for key, value in flags.items() if value is not None
    ]
    parser = options.get_generation_parser(default_task=TASK)
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, [data, *words]))


def load_task(config: DictConfig) -> IotTranslationTask:
    """Our task over binarised data.

    Raises:
        ValueError: there are none, or the languages must be told.
    """
    if not any(Path(config.task.data.split(os.pathsep)[0]).glob("dict.*.txt")):
        raise ValueError(
            f"DATA must be a folder written by fairseq-preprocess, but {config.task.data} holds no "
            "dict.*.txt"
        )
    try:
        return IotTranslationTask.setup_task(config.task)
    except Exception as error:  # fairseq raises a plain Exception where it cannot tell
        raise ValueError(
            f"DATA must be a folder written by fairseq-preprocess, but {config.task.data} cannot "
            f"be read as one: {error}"
        ) from None


def load_set(task: IotTranslationTask, subset: str, flag: str = "--gen-subset") -> FairseqDataset:
    """A set of the task's data, sources and references; `flag` named it.

    Raises:
        ValueError: there is no such set, it is empty, or it has no references.
    """
    data = task.cfg.data
    languages = (task.cfg.source_lang, task.cfg.target_lang)
    pair = "-".join(languages)
    if not (Path(data) / f"{subset}.{pair}.{languages[0]}.bin").is_file():
        back = "-".join(languages[::-1])  # data of the other direction do as well
        pair = back if any(Path(data).glob(f"{subset}.{back}.*.bin")) else pair
    for language in languages:
        file = Path(data) / f"{subset}.{pair}.{language}.bin"
        if not file.is_file():
            raise ValueError(f"{flag} must be a set of {data}, but there is no {file}")
        if file.stat().st_size == 0:
            raise ValueError(f"{flag} must hold sentences, but {file} is empty")
    task.load_dataset(subset)
    return task.dataset(subset)


def load_model(task: IotTranslationTask, path: str) -> BaseFairseqModel:
    """A model that chooses among several orders, in evaluation mode.

    Raises:
        ValueError: it is no checkpoint, does not fit the data, or chooses nothing.
    """
    if any(key.startswith("encoder.embed_order") for key in load(path)["model"]):
        raise ValueError(
            f"--path must be a checkpoint of iot_fairseq, but {path} is one of the released IOT "
            "code: convert it by iot-convert"
        )
    try:
        # what a checkpoint was made to force is no choice
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
            [path], arg_overrides=dict.fromkeys(FORCED), task=task
        )
    except Exception as error:
        reason = str(error).strip()
        raise ValueError(
            f"--path must be a checkpoint that fits the dictionaries of {task.cfg.data}, but {path}"
            f" does not: {reason}"
        ) from None
    orders = getattr(model, "order_names", ())
    if len(orders) < 2:
        what = f"knows {orders[0]} alone" if orders else f"holds a {type(model).__name__}"
        raise ValueError(
            f"--path must be an IOT model with several orders, but {path} {what}: nothing is "
            "chosen there (scripts/evaluate.sh evaluates any model)"
        )
    if model.encoder.lacks_predictor_weights:
        raise ValueError(f"--path must be a trained IOT model, but {path} holds no order predictor")
    return model.eval()
