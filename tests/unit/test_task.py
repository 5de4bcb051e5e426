"""The task keeps every sentence; predicted orders do not depend on the batch (cases 18, 19)."""

from __future__ import annotations

import copy
from itertools import chain

import numpy as np
import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy_with_rdrop import (
    RdropLabelSmoothedCrossEntropyCriterion,
)
from fairseq.data import LanguagePairDataset
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from helpers import (
    EOS,
    FIRST_WORD,
    VOCABULARY,
    build_dictionary,
    build_model,
    configure,
    random_batch,
    randomize,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from spread import source_means, spread_weights

from iot_fairseq.task import (
    IotTranslationConfig,
    IotTranslationTask,
    WholeDataset,
    predict_orders,
)

LIMITS = [
    {"max_sentences": 1},
    {"max_sentences": 7},
    {"max_sentences": 64},
    {"max_tokens": 40},
    {"max_tokens": 30, "max_sentences": 5},
    {},
]


def build_dataset(lengths, seed: int = 1) -> LanguagePairDataset:
    """Sentence pairs of these source lengths, without the end-of-sentence."""
    generator = torch.Generator().manual_seed(seed)

    def sentence(length: int) -> torch.Tensor:
        words = torch.randint(FIRST_WORD, VOCABULARY, (length,), generator=generator)
        return torch.cat((words, torch.tensor([EOS])))

    source = [sentence(length) for length in lengths]
    target = [sentence(max(1, length - 1)) for length in lengths]
    sizes = ([len(line) for line in side] for side in (source, target))
    dictionary = build_dictionary()
    return LanguagePairDataset(
        source, next(sizes), dictionary, target, next(sizes), dictionary, shuffle=False
    )


def build_task() -> IotTranslationTask:
    dictionary = build_dictionary()
    return IotTranslationTask(IotTranslationConfig(), dictionary, dictionary)


@pytest.fixture(scope="module")
def dataset() -> LanguagePairDataset:
    generator = torch.Generator().manual_seed(2)
    return build_dataset(torch.randint(0, 20, (53,), generator=generator).tolist())


@pytest.fixture(scope="module")
def model(dataset):
    """A model that takes all of its orders on `dataset`."""
    model = randomize(build_model(iot_decoder_orders="scf,csf,fcs")).eval()
    batch = dataset.collater([dataset[i] for i in range(len(dataset))])["net_input"]
    with torch.no_grad():
        means = source_means(model, batch["src_tokens"], batch["src_lengths"])
        model.encoder.decoder_order_predictor.weight.copy_(spread_weights(means, 3))
    model.make_generation_fast_()  # as fairseq does before it decodes
    return model


def batches(task, dataset, **kwargs) -> list[list[int]]:
    """Indices of the sentences in each batch, as fairseq's commands would read them."""
    limits = {"max_tokens": None, "max_sentences": None} | kwargs
    if limits["max_tokens"] is None and limits["max_sentences"] is None:
        limits["max_tokens"] = 12000  # what fairseq-generate falls back to
    iterator = task.get_batch_iterator(dataset, **limits)
    found = iterator.next_epoch_itr(shuffle=False)
    return [batch["id"].tolist() for batch in found if "id" in batch]


def test_registered():
    assert TASK_REGISTRY["iot_translation"] is IotTranslationTask
    assert TASK_DATACLASS_REGISTRY["iot_translation"] is IotTranslationConfig


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=40),
    st.sampled_from(LIMITS),
    st.sampled_from([1, 2, 8]),
)
@settings(max_examples=60, deadline=None)
def test_every_sentence_once(lengths, limits, multiple):
    dataset = build_dataset(lengths)
    whole = WholeDataset(dataset)
    found = whole.batch_by_size(
        whole.ordered_indices(), required_batch_size_multiple=multiple, **limits
    )
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) <= limits.get("max_sentences", len(batch))
        longest = max(dataset.num_tokens(index) for index in batch)
        assert longest * len(batch) <= limits.get("max_tokens", longest * len(batch))


def test_fairseq_itself_drops_sentences(dataset):
    """The fault that the task is there for: should fairseq mend it, the task may go."""
    kept = dataset.batch_by_size(
        dataset.ordered_indices(), max_sentences=64, required_batch_size_multiple=8
    )
    assert sum(map(len, kept)) == 48


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("multiple", [1, 8])
def test_batches_of_the_iterator(dataset, limits, multiple):
    found = batches(build_task(), dataset, required_batch_size_multiple=multiple, **limits)
    assert sorted(chain(*found)) == list(range(len(dataset)))


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_orders_do_not_depend_on_the_batch(dataset, model, limits):
    orders = predict_orders([model], dataset, **limits)
    assert orders.shape == (len(dataset), 1)
    assert set(orders.ravel()) == {0, 1, 2}
    for index in range(len(dataset)):
        alone = dataset.collater([dataset[index]])["net_input"]
        out = model.encoder(alone["src_tokens"], alone["src_lengths"])
        assert out["decoder_order"][0].item() == orders[index, 0]


def test_orders_of_an_ensemble_and_of_a_set_without_sentences(dataset, model):
    other = randomize(build_model(iot_decoder_orders="fsc,sfc"), seed=5).eval()
    orders = predict_orders([model, other], dataset)
    assert (orders[:, :1] == predict_orders([model], dataset)).all()
    assert (orders[:, 1:] == predict_orders([other], dataset)).all()
    assert predict_orders([model], build_dataset([])).shape == (0, 1)
    nothing = np.zeros(0, dtype=np.int64)
    assert WholeDataset(build_dataset([])).batch_by_size(nothing) == []


def test_sentences_too_long_for_the_model_are_left_to_fairseq():
    dataset = build_dataset([3, 30, 4])
    kwargs = {"max_positions": (12, 12), "max_sentences": 2}
    kept = batches(build_task(), dataset, ignore_invalid_inputs=True, **kwargs)
    assert sorted(chain(*kept)) == [0, 2]
    with pytest.raises(Exception, match="Size of sample #1 is invalid"):
        batches(build_task(), dataset, **kwargs)


@pytest.mark.parametrize("shards", [2, 3, 7])
def test_shards_share_the_sentences_out(dataset, shards):
    found = []
    for shard in range(shards):
        found += batches(build_task(), dataset, max_sentences=6, num_shards=shards, shard_id=shard)
    assert sorted(chain(*found)) == list(range(len(dataset)))


def test_training_keeps_one_iterator(dataset):
    """fairseq counts epochs on it."""
    task = build_task()
    first = task.get_batch_iterator(dataset, max_sentences=8, seed=1)
    assert task.get_batch_iterator(dataset, max_sentences=8, seed=1, epoch=2) is first
    other = build_dataset([1, 2])
    assert task.get_batch_iterator(other, max_sentences=8, seed=1) is not first


def test_a_resumed_run_makes_the_same_batches():
    """fairseq draws them anew by the epoch in which the run is resumed."""
    found = []
    for epoch in (1, 5):
        dataset = build_dataset([3, 5, 4, 3] * 20)
        dataset.shuffle = True
        iterator = build_task().get_batch_iterator(dataset, max_sentences=8, epoch=epoch, seed=1)
        found.append([batch.tolist() for batch in iterator.frozen_batches])
    assert found[0] == found[1]


def test_sharded_data_are_not_kept(dataset):
    """With several data folders fairseq loads another dataset for every epoch."""
    task = build_task()
    task.get_batch_iterator(dataset, max_sentences=8, disable_iterator_cache=True)
    assert task.whole_datasets == {}


@pytest.mark.parametrize("option", [{"fp16": True}, {"bf16": True}])
def test_half_precision_on_a_cpu_is_refused_in_training_alone(option):
    task = build_task()
    cfg = configure(cpu=True, **option).model
    with pytest.raises(ValueError, match=f"--{next(iter(option))} must not be given without a GPU"):
        task.build_model(cfg)
    task.build_model(cfg, from_checkpoint=True)


def test_a_forced_order_is_refused_in_training_alone():
    task = build_task()
    cfg = configure(iot_force_decoder_order="csf").model
    with pytest.raises(ValueError, match="--iot-force-decoder-order is for decoding"):
        task.build_model(cfg)
    task.build_model(cfg, from_checkpoint=True)


def test_validation_under_r_drop_takes_each_sentence_once():
    """fairseq's criterion doubles the batch in validation too, and so the loss that it logs."""
    task, batch = build_task(), random_batch()
    plain = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)
    r_drop = RdropLabelSmoothedCrossEntropyCriterion(
        task, sentence_avg=False, label_smoothing=0.1, rdrop_alpha=3.0
    )
    model = randomize(build_model("transformer", dropout=0.2)).eval()
    want = task.valid_step(copy.deepcopy(batch), model, plain)
    for _ in range(2):
        got = task.valid_step(copy.deepcopy(batch), model, r_drop)
        assert torch.equal(got[0], want[0])
        assert got[1:] == want[1:]
    doubled = r_drop(model.train(), batch)[0]
    assert doubled > 1.5 * want[0], "in training both passes count"
