"""The same updates written plainly, sample by sample: the loop's oracle.

Each function is one sentence of the method. It uses the series' formulas with
all their checks, computes every sample on its own, and shares no code with
loop.py but the noise.
"""

import torch

from ..advantages import leave_one_out
from ..kl import log_ratio, shaped_reward
from .loop import noise


@torch.no_grad()
def sample(policy, prompts, uniforms):
    """Sample one answer a prompt, digit by digit: (N, 2), (N,) -> (N,), (N,)."""
    h = policy.read(prompts)
    tens, rest = pick(policy.log_tens(h).exp(), uniforms)
    units, _ = pick(policy.log_units(h, tens).exp(), rest)
    return tens, units


def pick(p, uniforms):
    """The digit on whose stretch of [0, 1) u falls, and where on it, in [0, 1)."""
    ends = p.cumsum(-1)
    digit = (ends <= uniforms[:, None]).sum(-1).clamp(max=p.shape[-1] - 1)
    size = p.gather(1, digit[:, None])[:, 0]
    start = ends.gather(1, digit[:, None])[:, 0] - size
    return digit, (uniforms - start) / size


def log_prob(policy, prompts, tens, units):
    """The answer's log-probability, the sum of its digits': (N,)."""
    h = policy.read(prompts)
    first = policy.log_tens(h).gather(1, tens[:, None])[:, 0]
    return first + policy.log_units(h, tens).gather(1, units[:, None])[:, 0]


def train_plainly(policy, reference, prompts, answers, config, updates=None):
    """Train the policy in place; yields mean reward and log-ratio of each batch.

    Nothing is refused here: a reference that is the policy is taken as it is.
    """
    c = config
    optimizer = torch.optim.Adam(policy.parameters(), c.learning_rate)
    for k in range(c.updates if updates is None else updates):
        rows, uniforms = noise(c.seed, k, c.prompts, c.batch, c.samples_per_prompt)
        rows = rows.repeat_interleave(c.samples_per_prompt)
        asked, right = prompts[rows], answers[rows]
        tens, units = sample(policy, asked, uniforms.flatten())
        logp = log_prob(policy, asked, tens, units)
        with torch.no_grad():
            away = log_ratio(logp, log_prob(reference, asked, tens, units))
            reward = (10 * tens + units == right).to(logp.dtype)
            worth = shaped_reward(reward, away, c.beta)
            advantage = leave_one_out(worth.view_as(uniforms)).flatten()
        loss = -(advantage * logp).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield reward.mean(), away.mean()
