"""What a process under torchrun is told of itself, and when it is left alone."""

from __future__ import annotations

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf

from iot_fairseq import processes

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "WORLD_SIZE": "6",
    "RANK": "4",
    "LOCAL_WORLD_SIZE": "3",
    "LOCAL_RANK": "1",
}


@pytest.fixture
def settings(monkeypatch):
    """fairseq's defaults, in an environment as torchrun makes it."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    return OmegaConf.structured(FairseqConfig())


@pytest.mark.parametrize(
    ("gpus", "cpu", "backend"), [(3, False, "nccl"), (3, True, "gloo"), (0, False, "gloo")]
)
def test_a_process_takes_its_place(settings, monkeypatch, gpus, cpu, backend):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    settings.common.cpu = cpu
    processes.join(settings)
    options = settings.distributed_training
    assert (options.distributed_rank, options.distributed_world_size) == (4, 6)
    assert (options.device_id, options.distributed_init_method) == (1, "env://")
    assert (options.distributed_no_spawn, options.distributed_backend) == (True, backend)


def test_more_processes_than_gpus_are_refused(settings, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"--nproc-per-node must be at most 2, .* but is 3"):
        processes.join(settings)


@pytest.mark.parametrize(
    "missing", [{"TORCHELASTIC_RUN_ID": None}, {"WORLD_SIZE": "1"}], ids=["no torchrun", "alone"]
)
def test_one_process_is_left_alone(settings, monkeypatch, missing):
    for name, value in missing.items():
        monkeypatch.delenv(name)
        if value is not None:
            monkeypatch.setenv(name, value)
    seen = []
    settings.distributed_training.distributed_world_size = 1
    distributed_utils.call_main(settings, seen.append)
    assert seen == [settings]
    assert settings.distributed_training.distributed_init_method is None


def test_healing_twice_wraps_once():
    before = distributed_utils.call_main
    processes.heal_processes()
    assert distributed_utils.call_main is before
