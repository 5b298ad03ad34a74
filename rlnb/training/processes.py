"""Several processes on one run, started by torchrun; alone, nothing happens.

    torchrun --nproc-per-node 2 -m rlnb.training

Each process works on its share of the prompts. The sums of their gradients are
what one process would have computed, but for the order of additions.
"""

import os

import torch
from torch import distributed


def join(device):
    """Join the others if torchrun started us; return this process's device."""
    started = distributed.is_available() and distributed.is_torchelastic_launched()
    if started and not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if device.type == "cuda" and count() > 1:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    return device


def leave():
    if _together():
        distributed.destroy_process_group()


def count():
    return distributed.get_world_size() if _together() else 1


def rank():
    return distributed.get_rank() if _together() else 0


def _together():
    return distributed.is_available() and distributed.is_initialized()


def share(n):
    """The part of range(n) that is this process's, as a slice."""
    return slice(rank() * n // count(), (rank() + 1) * n // count())


def add(tensors):
    """Replace each tensor by its sum over the processes."""
    if count() == 1:
        return
    flat = torch.cat([x.reshape(-1) for x in tensors])
    distributed.all_reduce(flat)
    for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
        x.copy_(part.view_as(x))


def anywhere(flag):
    """Is the flag true in any process?"""
    if count() == 1:
        return flag
    return any(everywhere(flag))


def everywhere(value):
    """The value that each process has, as a list."""
    values = [None] * count()
    if count() == 1:
        return [value]
    distributed.all_gather_object(values, value)
    return values
