"""Training on several processes under torchrun, on GPUs and on CPUs.

fairseq's engine (torch's DistributedDataParallel, or its own) is used as it is. What it gets wrong
when torchrun starts the processes, on CPUs, and at going on from a checkpoint is healed here, when
the package is imported.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from omegaconf import open_dict
from torch.distributed import broadcast_object_list, is_torchelastic_launched
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def heal_processes() -> None:
    """Heals the faults of fairseq that trainings on several processes would meet. Safe to call
    again."""
    distributed_utils._broadcast_object_slow = _broadcast
    distributed_fairseq_model.DistributedDataParallel = OnItsDevice
    if not hasattr(distributed_utils.call_main, "healed"):
        distributed_utils.call_main = _joining(distributed_utils.call_main)
        distributed_utils.call_main.healed = True


class OnItsDevice(DistributedDataParallel):
    """torch's, on the CPU too: fairseq names the number of a GPU, which there is an error."""

    def __init__(self, module: torch.nn.Module, device_ids=None, output_device=None, **options):
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            device_ids = output_device = None
        super().__init__(module, device_ids=device_ids, output_device=output_device, **options)


def _broadcast(value: Any, source: int, group: Any, device: torch.device) -> Any:
    """By torch's own function. fairseq's loads what the first process of the training sends of a
    checkpoint as if it were a stranger's file: torch >= 2.6 refuses the settings in it."""
    values = [value]
    broadcast_object_list(values, src=source, group=group, device=device)
    return values[0]


def _joining(call_main: Callable) -> Callable:
    """fairseq asks how many GPUs this machine has before it looks for torchrun: with one of them or
    none every process would train a model of its own, and all would write the same checkpoints."""

    @wraps(call_main)
    def joined(cfg: FairseqConfig, main: Callable, **kwargs: Any) -> None:
        if not is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
            call_main(cfg, main, **kwargs)
            return
        _end_with_parent()
        with open_dict(cfg):
            join(cfg)
        # writes the error down where torchrun looks for it, and tells it as the cause
        record(call_main)(cfg, main, **kwargs)

    return joined


def join(cfg: FairseqConfig) -> None:
    """Makes this process one of those that torchrun started: its rank, how many there are, its GPU,
    and where they meet.

    Args:
        cfg: settings of the command; what is given there of --distributed-world-size and
            --distributed-rank is torchrun's to say.

    Raises:
        ValueError: more processes on this machine than GPUs.
    """
    options, local = cfg.distributed_training, int(os.environ["LOCAL_RANK"])
    gpus = 0 if cfg.common.cpu else torch.cuda.device_count()
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    if 0 < gpus < here:
        raise ValueError(
            f"--nproc-per-node must be at most {gpus}, the number of GPUs here, but is {here}; "
            "to train on the CPU give --cpu"
        )
    options.distributed_init_method = "env://"
    options.distributed_world_size = int(os.environ["WORLD_SIZE"])
    options.distributed_rank = int(os.environ["RANK"])
    options.device_id = local
    options.distributed_no_spawn = True
    if not gpus:
        options.distributed_backend = "gloo"  # fairseq's NCCL needs GPUs


def _end_with_parent() -> None:
    """Asks Linux to end this process with torchrun's: a killed torchrun would leave it training."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
