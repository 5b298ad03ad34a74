"""The policy, the frozen copy of it that is the reference, and fingerprints."""

import copy
import hashlib

import torch
from torch import nn

from .task import DIGITS


class Policy(nn.Module):
    """Two steps of ten actions: the tens, then the units given the tens.

    The prompt's four digits are looked up, joined and mixed into one vector:
    the trunk. It is computed once for all answers to that prompt.
    """

    def __init__(self, width=64):
        super().__init__()
        numbers = torch.arange(DIGITS**2)
        spell = torch.stack([numbers // DIGITS, numbers % DIGITS], 1)
        place = DIGITS * torch.arange(4).view(2, 2)  # each place has its own ten rows
        self.register_buffer("spell", spell, persistent=False)
        self.register_buffer("place", place, persistent=False)
        self.digits = nn.Embedding(4 * DIGITS, width)
        self.trunk = nn.Sequential(
            nn.Linear(4 * width, 2 * width), nn.ReLU(),
            nn.Linear(2 * width, width), nn.ReLU(),
        )  # fmt: skip
        self.tens = nn.Linear(width, DIGITS)
        self.mix = nn.Linear(width, width)
        self.after = nn.Embedding(DIGITS, width)
        self.units = nn.Linear(width, DIGITS)

    def forward(self, prompts):
        """Log-probabilities of both steps: (N, 2) -> (N, 10), (N, 10, 10)."""
        h = self.read(prompts)
        mixed = torch.relu(self.mix(h)[:, None, :] + self.after.weight)
        return self.log_tens(h), self.units(mixed).log_softmax(-1)

    def log_probs(self, prompts):
        """Log-probabilities of all trajectories: (N, 2) -> (N, 100)."""
        tens, units = self(prompts)
        return (tens[:, :, None] + units).flatten(1)

    # The same, one step at a time, for answers that are sampled or given.

    def read(self, prompts):
        """The trunk: (N, 2) -> (N, width)."""
        return self.trunk(
            self.digits((self.spell[prompts] + self.place).flatten(1)).flatten(1)
        )

    def log_tens(self, h):
        """Log-probabilities of the first step: (N, width) -> (N, 10)."""
        return self.tens(h).log_softmax(-1)

    def log_units(self, h, tens):
        """Of the second step, given the first: (N, width), (N,) -> (N, 10)."""
        mixed = torch.relu(self.mix(h) + self.after(tens))
        return self.units(mixed).log_softmax(-1)


def freeze_reference(policy):
    """A copy of the policy that stays what it is: the reference.

    A deep copy, without gradients, in eval mode. Refused with a ValueError if
    the copy shares memory with the policy, as a module with a copying method
    of its own may do.
    """
    if not isinstance(policy, nn.Module):
        raise ValueError(  # noqa: TRY004
            f"policy is a {type(policy).__name__}; allowed: a torch.nn.Module"
        )
    reference = copy.deepcopy(policy).requires_grad_(False).eval()
    refuse_shared_storage(policy, reference)
    return reference


def refuse_shared_storage(policy, reference):
    """Refuse a reference that would move when the policy is trained."""
    if not isinstance(reference, nn.Module):
        raise ValueError(  # noqa: TRY004
            f"reference is a {type(reference).__name__}; allowed: a torch.nn.Module"
        )
    ours = {_memory(x): name for name, x in _tensors(policy)}
    for name, x in _tensors(reference):
        if x.numel() and _memory(x) in ours:
            raise ValueError(
                f"reference.{name} shares memory with policy.{ours[_memory(x)]}: it "
                "would move with the policy, and KL would stay 0; allowed: a copy, "
                "as freeze_reference(policy) makes"
            )


def digest(module):
    """sha256 over names, dtypes, shapes and bytes of all weights, as hex."""
    sha = hashlib.sha256()
    for name, x in _tensors(module):
        x = x.detach().cpu().contiguous()
        sha.update(f"{name} {x.dtype} {tuple(x.shape)};".encode())
        sha.update(x.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _tensors(module):
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _memory(x):
    return x.device, x.untyped_storage().data_ptr()
