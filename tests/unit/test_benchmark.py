"""The benchmark: equal work for all systems, ratios round by round, its figures as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import benchmark  # noqa: E402
import benchmark_decode  # noqa: E402
import benchmark_measure  # noqa: E402
import benchmark_report  # noqa: E402
import benchmark_train  # noqa: E402
from benchmark_common import STRUCTURES, SWEEP, Settings, read_lengths  # noqa: E402
from benchmark_measure import Section, System  # noqa: E402

ORDERS = ("scf", "csf", "fcs")
SMALL = Settings(sentences=9, batch=6, beam=2, repeat=1, sweep=False, max_tokens=138)
SMALL_FLAGS = [
    *("--arch", "tiny", "--sentences", "4", "--batch", "4", "--beam", "2"),
    *("--repeat", "1", "--max-tokens", "138"),
]
WAYS = ("iot_translation", "translation", "released")


@pytest.fixture(scope="module")
def bench():
    return benchmark_decode.DecodingBench(SMALL)


@pytest.fixture(scope="module")
def translations(bench):
    found = {way: bench.decoding(way, ORDERS).translate() for way in WAYS}
    return {"stock": bench.decoding("stock").translate(), **found}


def words(translations):
    return {number: tokens.tolist() for number, tokens in sorted(translations.items())}


def system(key, seconds, work=1, orders=()):
    """A system that takes so many seconds of the clock of `clock`."""

    def run():
        run.calls += 1
        CLOCK.append(CLOCK[-1] + seconds[min(run.calls, len(seconds)) - 1])
        RUNS.append(key)
        return work

    run.calls = 0
    return System(key, key, run, orders)


CLOCK: list[float] = []
RUNS: list[str] = []


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the systems of `system` move."""
    CLOCK[:], RUNS[:] = [0.0], []
    monkeypatch.setattr(benchmark_measure.time, "perf_counter", lambda: CLOCK[-1])


def test_the_lengths_are_those_of_sentences():
    lengths = read_lengths()
    assert lengths.shape == (400, 2)
    assert lengths.min() >= 1
    assert 20 < lengths.mean() < 30


@pytest.mark.parametrize("way", ["stock", *WAYS])
def test_every_translation_has_the_length_of_the_real_one(bench, translations, way):
    lengths = {number: len(tokens) for number, tokens in words(translations[way]).items()}
    assert lengths == dict(enumerate(bench.dataset.tgt_sizes.tolist()))
    assert all(line[-1] == bench.dictionary.eos() for line in words(translations[way]).values())


def test_all_ways_of_an_iot_model_translate_alike(translations):
    own = words(translations["iot_translation"])
    assert own == words(translations["translation"])
    assert own == words(translations["released"])
    assert own != words(translations["stock"])


def test_a_model_of_the_order_scf_translates_as_stock(bench, translations):
    single = bench.decoding("iot_translation", ("scf",)).translate()
    assert words(single) == words(translations["stock"])


def test_the_orders_share_the_sentences_equally(bench):
    assert {order: s["sentences"] for order, s in bench.shares(ORDERS).items()} == dict.fromkeys(
        ORDERS, 3
    )


def test_more_sentences_than_the_model_is_wide_are_shared_nearly_equally():
    settings = Settings(sentences=150, orders=SWEEP)
    counts = [
        share["sentences"]
        for share in benchmark_decode.DecodingBench(settings).shares(SWEEP).values()
    ]
    assert len(counts) == 6
    assert max(counts) - min(counts) <= 4


def test_the_releases_way_has_the_same_loss(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda x, **_: x.fill_(1.0))
    flags = {"dropout": 0.0, "iot_tau_max": 1.0, "iot_tau_min": 1.0}
    found = []
    for released in (False, True):
        trainer = benchmark_train.Training(SMALL, ORDERS, released, **flags).trainer
        trainer.model.train()
        sample = benchmark_train.training_batch(SMALL)
        loss, size, log = trainer.criterion(trainer.model, sample)
        loss.backward()
        gradients = {name: p.grad for name, p in trainer.model.named_parameters()}
        found.append((loss, size, log["nll_loss"], gradients))
    ours, theirs = found
    torch.testing.assert_close(ours[:3], theirs[:3], rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(ours[3], theirs[3], rtol=1e-3, atol=1e-3)


def test_systems_are_measured_in_turn_after_a_warm_up(clock):
    systems = [system("a", [9, 1, 2, 4]), system("b", [9, 3, 3, 3])]
    results, work = benchmark_measure.measure("test", systems, 3, "cpu")
    rounds = ["".join(RUNS[start : start + 2]) for start in range(0, 8, 2)]
    assert set(rounds) == {"ab", "ba"}, "each once a round, in changing sequence"
    assert work == 1
    assert [result.values for result in results] == [[1, 2, 4], [3, 3, 3]]
    assert results[1].ratios == [3, 1.5, 0.75]
    assert results[1].as_json() == {
        "key": "b",
        "name": "b",
        "orders": [],
        "values": [3, 3, 3],
        "median": 3,
        "ratio": 1.5,
        "lowest": 0.75,
        "highest": 3,
    }


def test_unequal_work_is_refused(clock):
    systems = [system("a", [1]), system("b", [1], work=2)]
    with pytest.raises(ValueError, match="b must do the work of a, 1, but did 2 instead"):
        benchmark_measure.measure("test", systems, 1, "cpu")


def section_of(clock, key="train", system_key="iot"):
    systems = [system("stock", [1])]
    systems += [system(system_key, [0.4 + 0.6 * k], orders=SWEEP[:k]) for k in range(1, 7)]
    results, _ = benchmark_measure.measure("test", systems, 1, "cpu")
    return Section(key, "A step", "seconds", results)


def test_the_slope_is_what_each_further_order_costs(clock):
    section = section_of(clock)
    benchmark_train.add_slope(section)
    assert section.facts["each_further_order"] == pytest.approx(0.6)


def test_the_plot_has_a_bar_for_every_number_of_orders(clock):
    lines = benchmark_report.text_plot(benchmark_report.curves([section_of(clock)]))
    bars = [line for line in lines if "K=" in line]
    assert [line.split("K=")[1][:8] for line in bars] == [
        f"{k}  {0.4 + 0.6 * k:.3f}" for k in range(1, 7)
    ]
    assert all(len(line) <= 80 for line in lines)
    lengths = [line.count("#") for line in bars]
    assert lengths == sorted(lengths)
    assert len({line.index("|") for line in bars}) == 1


def test_the_plot_is_drawn(clock, tmp_path):
    pytest.importorskip("matplotlib")
    found = benchmark_report.curves([section_of(clock)])
    benchmark_report.draw_plot(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


def test_all_is_measured_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(benchmark_train, "peak_in_process", lambda settings, arguments: 100.0)
    path = tmp_path / "figures.json"
    flags = ["all", *SMALL_FLAGS, "--orders", "0,5", "--no-sweep", "--json", str(path)]
    benchmark.run(benchmark.parse_arguments(flags))
    found = json.loads(path.read_text())
    assert [*tmp_path.iterdir()] == [path]
    assert set(found) == {"command", "settings", "machine", "versions", "sections", "curves"}
    assert found["settings"]["orders"] == ["scf", "fcs"]
    ways = ["stock", "r_drop", "iot", "iot", "one_order_per_step", "consistency"]
    structures = [name for name in STRUCTURES if name != "plain"]
    keys = {
        name: [system["key"] for system in section["systems"]]
        for name, section in found["sections"].items()
    }
    assert keys == {
        "decode": ["stock", "iot_translation", "translation", "released"],
        "decode_single": ["stock", "iot_translation", "translation"],
        "train": [*ways, "released"],
        "memory": ways,
        **{f"decode_{name}": ["stock", "iot_translation"] for name in structures},
        **{f"train_{name}": ["stock", "iot"] for name in structures},
    }
    shares = found["sections"]["decode_encoder_orders"]["shares"]
    assert set(shares) <= {"sf_scf", "sf_fcs", "fs_scf", "fs_fcs"}
    assert sum(share["sentences"] for name, share in shares.items() if name[:2] == "sf") == 2
    for section in found["sections"].values():
        assert section["systems"][0]["ratio"] == 1
        assert all(len(system["values"]) == 1 for system in section["systems"])
    assert found["sections"]["decode"]["tokens"] == found["sections"]["decode_single"]["tokens"]
    assert sum(s["sentences"] for s in found["sections"]["decode"]["shares"].values()) == 4
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("iot_fairseq ")
    assert "benchmark all: tiny, orders scf,fcs, float32 on CPU" in out[0]
    for section in found["sections"].values():
        assert section["title"] in out


def test_the_sweep_measures_one_to_six_orders():
    settings = Settings(orders=("fcs", "scf"))
    assert settings.order_sets() == [*(SWEEP[:k] for k in (1, 2)), ("fcs", "scf")] + [
        SWEEP[:k] for k in range(3, 7)
    ]
    names = [name for _, name, _ in benchmark_train.training_ways(settings)]
    assert names[0] == "stock Transformer"
    assert names[-2:] == ["IOT K=2, 1 order per step", "IOT K=2, consistency"]
    names = [name for _, name, _ in benchmark_train.training_ways(Settings(orders=SWEEP[:3]))]
    assert names[-1] == "IOT K=3, consistency, 2 orders per step"


def test_memory_is_that_of_a_process_of_its_own():
    peak = benchmark_train.peak_in_process(SMALL, {"orders": ()})
    # weights, gradients and Adam's two moments of the embeddings alone: 4 x 10,000 x 64 floats
    assert 10 < peak < 1000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["decode", "--repeat", "0"], "--repeat must be 1 or more, but is 0 instead"),
        (["decode", "--orders", "0,9"], "--orders must name decoder orders out of"),
        (["decode", "--orders", ""], "--orders must name at least one decoder order"),
        (["decode", "--beam", "0"], "--beam must be 1 or more, but is 0 instead"),
        (["train", "--max-tokens", "9"], "--max-tokens must be 138 or more, but is 9 instead"),
        (["train", "--dtype", "float16"], "--dtype must be float32 with --device cpu, but is"),
        (["train", "--peers"], "--peers"),
        (["train", "--json", "no/such/folder"], "--json must name a file that can be written"),
        (["train", "--json", "."], "it is a folder"),
        (["all", "--plot", "plot.png", "--no-sweep"], "--plot"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(flags, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="^" if message.startswith("it") else "^--") as error:
        benchmark.check(benchmark.parse_arguments(flags))
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "decode", "--device", "cuda"])
    monkeypatch.setattr(benchmark.logging, "disable", lambda level: None)
    with pytest.raises(SystemExit, match=r"benchmark.py: --device must be cpu .*, but is cuda"):
        benchmark.main()


def test_ctranslate2_makes_the_translations_of_stock():
    pytest.importorskip("ctranslate2")
    from benchmark_peers import CTranslate2

    settings = Settings(sentences=6, batch=1, beam=1)
    bench = benchmark_decode.DecodingBench(settings)
    lengths = torch.full_like(bench.lengths, 7)
    stock = bench.decoding("stock", lengths=lengths).translate()
    peer = CTranslate2(settings, bench.stock, bench.dictionary)
    symbols = bench.dictionary.symbols
    for number in range(6):
        source = [symbols[word] for word in bench.dataset[number]["source"][:-1]]
        found = peer.translate([source], 7)[0]
        assert len(found) == 8
        assert found[:7] == [symbols[word] for word in stock[number][:-1]]
