"""Plain sentences from Python: their translations and their orders."""

from collections.abc import Sequence
from pathlib import Path

import torch
from fairseq import hub_utils
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.models import BaseFairseqModel
from omegaconf import DictConfig
from torch import LongTensor

from .task import TOO_LONG, IotTranslationTask, fit_length, predict_orders
from .text import Plain, read_record


def load(
    model_class: type, folder: str, checkpoint_file: str, data_name_or_path: str, **options
) -> "IotHub":
    """See `IotModel.from_pretrained`."""
    if (
        data_name_or_path == "."
        and Path(folder).is_dir()
        and not any(Path(folder).glob("dict.*.txt"))
    ):
        raise ValueError(
            f"data_name_or_path must be the folder of the binarised data, as {folder} holds no "
            "dictionaries (dict.*.txt) of its own"
        )
    loaded = hub_utils.from_pretrained(
        folder, checkpoint_file, data_name_or_path, archive_map=model_class.hub_models(), **options
    )
    hub = IotHub(loaded["args"], loaded["task"], loaded["models"])
    record = read_record(folder)
    if hub.text is None and not hub.has_own_text and record is not None:
        # the data named have no record, the checkpoint has
        hub.text = Plain(record, hub.task.cfg.source_lang, hub.task.cfg.target_lang)
    return hub


class IotHub(GeneratorHubInterface):
    """fairseq's hub interface, which cuts plain text by the record beside the checkpoint (unless
    ``bpe`` or ``tokenizer`` is given), keeps empty sentences, and tells orders.

    Args:
        cfg: settings of the checkpoint.
        task: the task.
        models: one, or an ensemble.
    """

    def __init__(
        self, cfg: DictConfig, task: IotTranslationTask, models: Sequence[BaseFairseqModel]
    ) -> None:
        super().__init__(cfg, task, models)
        self.has_own_text = self.bpe is not None or self.tokenizer is not None
        by_record = not self.has_own_text and hasattr(task, "plain_text")
        self.text: Plain | None = task.plain_text() if by_record else None

    def encode(self, sentence: str) -> LongTensor:
        """A plain sentence as `(S,)` numbers of the source dictionary, the end included."""
        if self.text is None:
            return super().encode(sentence)
        return self.binarize(self.text.encode(sentence))

    def decode(self, tokens: LongTensor) -> str:
        """Numbers of the target dictionary, `(T,)`, as plain text."""
        if self.text is None:
            return super().decode(tokens)
        return self.text.decode(self.string(tokens))

    def sample(
        self,
        sentences: str | Sequence[str],
        beam: int = 1,
        verbose: bool = False,
        too_long: str = "error",
        **kwargs,
    ) -> str | list[str]:
        """As `translate`, which calls this.

        Args:
            sentences: any number of plain sentences, or one.
            beam: size of the beam.
            verbose: the hypotheses go to the log.
            too_long: what becomes of a sentence longer than the model takes: ``error`` or ``cut``.
            kwargs: options of fairseq-generate, with underscores.

        Returns:
            Their translations in the same sequence; of an empty sentence, an empty one.

        Raises:
            ValueError: a sentence is too long, by ``error``.
        """
        if isinstance(sentences, str):
            return self.sample([sentences], beam, verbose, too_long, **kwargs)[0]
        found = [""] * len(sentences)
        numbers, tokens = self._encode_all(sentences, too_long)
        if numbers:
            hypotheses = self.generate(tokens, beam, verbose, **kwargs)
            for number, best in zip(numbers, hypotheses, strict=True):
                found[number] = self.decode(best[0]["tokens"])
        return found

    def orders(
        self, sentences: str | Sequence[str], too_long: str = "error"
    ) -> str | list[str | None] | None:
        """The order that each sentence is translated under, such as ``csf``; with a choice in the
        encoder too the pair, ``sf_csf``.

        Args:
            sentences: any number of plain sentences, or one.
            too_long: as for `sample`.

        Returns:
            The orders in the same sequence, None for an empty sentence.

        Raises:
            ValueError: there are several models, or one without orders; or a sentence is too long,
                by ``error``.
        """
        if isinstance(sentences, str):
            return self.orders([sentences], too_long)[0]
        if len(self.models) > 1:
            raise ValueError(
                f"orders() must be asked of one model, but here are {len(self.models)}"
            )
        if not hasattr(self.models[0], "order_names"):
            raise ValueError("orders() must be asked of a model of iot_fairseq, but this is none")
        found: list[str | None] = [None] * len(sentences)
        numbers, tokens = self._encode_all(sentences, too_long)
        names = self.models[0].order_names
        if numbers:
            chosen = self._choose(tokens) if len(names) > 1 else [0] * len(numbers)
            for number, order in zip(numbers, chosen, strict=True):
                found[number] = names[int(order)]
        return found

    def _choose(self, tokens: list[LongTensor]) -> list[int]:
        lengths = LongTensor([len(sentence) for sentence in tokens])
        dataset = self.task.build_dataset_for_inference(tokens, lengths)
        with torch.no_grad():
            return predict_orders(self.models, dataset)[:, 0].tolist()

    def _encode_all(
        self, sentences: Sequence[str], too_long: str
    ) -> tuple[list[int], list[LongTensor]]:
        """The places and the tokens of the sentences that are not empty."""
        if too_long not in TOO_LONG:
            raise ValueError(f"too_long must be {' or '.join(TOO_LONG)}, but is {too_long!r}")
        limit = min(self.max_positions[0], self.cfg.dataset.max_tokens or self.max_positions[0])
        found = [
            fit_length(self.encode(sentence), limit, f"sentence {number}", too_long)
            for number, sentence in enumerate(sentences, 1)
        ]
        # what has nothing but its end is empty
        numbers = [number for number, tokens in enumerate(found) if len(tokens) > 1]
        return numbers, [found[number] for number in numbers]
