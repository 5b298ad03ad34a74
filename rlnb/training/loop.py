"""The updates: leave-one-out REINFORCE with KL(p||q) inside the reward.

One batch, one update: K answers a prompt are sampled from the policy as it is,
each is worth reward - beta (log p - log q), the mean of the others is taken
off, and the score of each answer gets what is left as its weight. No clip, no
division by a group's spread, no batch used twice: neither PPO nor GRPO.

The log-probabilities of all 100 answers are at hand for each prompt, so a
batch is a table of weights, and an exact gradient is another such table.
"""

import numpy as np
import torch

from ..inputs import refuse
from . import processes
from .evaluation import quietly
from .policy import refuse_shared_storage
from .task import ANSWERS, DIGITS, strict_reward

STREAM = 3  # task.addition and warmup.warm_up draw from 1 and 2


def noise(seed, update, prompts, batch, samples):
    """What chance decides in one update: (B,) prompts, (B, K) numbers in [0, 1).

    A function of its arguments alone, drawn on the CPU in float64. So it is
    the same on every device and in every process, and a resumed run needs no
    generator's state.
    """
    rng = np.random.default_rng((STREAM, seed, update))
    rows, uniforms = rng.integers(prompts, size=batch), rng.random((batch, samples))
    return torch.from_numpy(rows), torch.from_numpy(uniforms)


def sample(logp, rows, uniforms):
    """Answers by inverse CDF: (..., P, 100), (..., B), (..., B, K) -> (..., B, K).

    An answer is where its uniform number falls on the running sum of the
    probabilities of the 100 answers to prompt rows[b].
    """
    ends = logp.exp().cumsum(-1)
    ends = ends.gather(-2, rows[..., None].expand(*rows.shape, ANSWERS))
    return torch.searchsorted(ends, uniforms, right=True).clamp_(max=ANSWERS - 1)


def sampled_weights(logp, logq, reward, beta, rows, uniforms, total):
    """The weight of each trajectory's score in the sampled gradient, (..., P, 100).

    logp, logq, reward: (..., P, 100). total: samples in the batch, B K. Also
    returned: reward and log-ratio of the samples, summed, over total: (...).
    """
    answers = sample(logp, rows, uniforms)
    at = (ANSWERS * rows[..., None] + answers).flatten(-2)
    away = logp - logq
    got, far = (
        x.expand_as(logp).flatten(-2).gather(-1, at).view_as(uniforms)
        for x in (reward, away)
    )
    advantage = leave_one_out(got - beta * far) / total
    weights = torch.zeros_like(away).flatten(-2)
    weights.scatter_add_(-1, at, advantage.flatten(-2))
    return weights.view_as(away), got.sum((-2, -1)) / total, far.sum((-2, -1)) / total


def leave_one_out(worth):
    """rlnb.advantages.leave_one_out without its checks, which ask the device."""
    k = worth.shape[-1]
    worth = worth - worth[..., :1]  # so that equal ones leave exactly 0
    return (worth - worth.mean(-1, keepdim=True)) * (k / (k - 1))


def exact_weights(logp, logq, reward, beta, total):
    """As `sampled_weights`, with every answer to every prompt counted.

    total: prompts. The weights are what those of `sampled_weights` are on
    average over the noise.
    """
    p, away = logp.exp(), logp - logq
    worth = reward - beta * away
    expected = (p * worth).sum(-1, keepdim=True)
    weights = p * (worth - expected) / total
    got, far = ((p * x).flatten(-2).sum(-1) / total for x in (reward, away))
    return weights, got, far


def backward(tens, units, logq, reward, beta, drawn, total):
    """Put the gradient of -objective into the parameters behind both steps.

    tens (..., P, 10), units (..., P, 10, 10): log-probabilities. drawn: rows
    and uniforms, or nothing for the exact gradient. Returns the means.
    """
    with torch.no_grad():
        logp = (tens[..., None] + units).flatten(-2)
        weights = sampled_weights if drawn else exact_weights
        table, *means = weights(logp, logq, reward, beta, *drawn, total)
        table = -table.unflatten(-1, (DIGITS, DIGITS))  # Adam goes downhill
    # d/d log p of the sum of weight * log p is the weight
    torch.autograd.backward([tens, units], [table.sum(-1), table])
    return means


def as_one_vector(module):
    """Lay a module's parameters side by side in one tensor, with their gradients.

    The parameters become views of it, so the optimizer has one tensor to work
    on in the place of many small ones.
    """
    parameters = list(module.parameters())
    whole = torch.cat([p.detach().reshape(-1) for p in parameters]).requires_grad_()
    whole.grad = torch.zeros_like(whole)
    sizes = [p.numel() for p in parameters]
    parts = zip(whole.detach().split(sizes), whole.grad.split(sizes), strict=True)
    for p, (value, grad) in zip(parameters, parts, strict=True):
        p.data, p.grad = value.view_as(p), grad.view_as(p)
    return whole


class Updater:
    """Trains a policy in place against a reference that stands still.

    prompts (P, 2), answers (P,): what is trained on. A reference that shares
    memory with the policy is refused.
    """

    def __init__(self, policy, reference, prompts, answers, config):
        refuse_shared_storage(policy, reference)
        if processes.count() > len(prompts):
            most = f"at most {len(prompts)}, a prompt each"
            refuse("processes", processes.count(), most)
        self.policy, self.config, self.prompts = policy, config, prompts
        # the reference does not change: its log-probabilities, once for all
        self.logq = quietly(reference, prompts)
        self.reward = strict_reward(answers, self.logq.dtype)
        self.weights = as_one_vector(policy)
        self.optimizer = torch.optim.Adam(
            [self.weights], config.learning_rate, fused=not self.logq.is_mps,
            capturable=config.cuda_graph,
        )  # fmt: skip
        self.step = _Graph(self.step) if config.cuda_graph else self.step

    def update(self, k):
        """Update number k, from 0. Returns the batch's mean reward and log-ratio."""
        exact = self.config.gradient == "exact"
        return self.step() if exact else self.step(*self.drawn(k))

    def drawn(self, k):
        """The noise of update k, on the policy's device and in its dtype."""
        c, like = self.config, self.logq
        rows, uniforms = noise(c.seed, k, c.prompts, c.batch, c.samples_per_prompt)
        drawn = rows, uniforms.to(like.dtype)  # before it moves: MPS has no float64
        if like.is_cuda:  # a copy from pinned memory doesn't wait
            drawn = [x.pin_memory() for x in drawn]
        return tuple(x.to(like.device, non_blocking=True) for x in drawn)

    def step(self, *drawn):
        """One update, from `noise`'s rows and uniforms or, without, an exact one."""
        index, drawn, total = self._share(*drawn)
        self.weights.grad.zero_()
        steps = self.policy(self.prompts[index])
        known = self.logq[index], self.reward[index], self.config.beta
        means = backward(*steps, *known, drawn, total)
        processes.add([self.weights.grad, *means])
        self.optimizer.step()
        return means

    def _share(self, rows=None, uniforms=None):
        """(prompts this process looks at, its rows and uniforms, size of all)."""
        mine = processes.share(len(self.prompts))
        if rows is None:
            return mine, (), len(self.prompts)
        total = uniforms.numel()
        if len(self.prompts) > len(rows):  # look at what is drawn, else at all
            mine = processes.share(len(rows))
            index, uniforms = rows[mine], uniforms[mine]
            rows = torch.arange(len(index), device=index.device)
            return index, (rows, uniforms), total
        if processes.count() > 1:
            here = (rows >= mine.start) & (rows < mine.stop)
            rows, uniforms = rows[here] - mine.start, uniforms[here]
        return mine, (rows, uniforms), total


class _Graph:
    """A step on CUDA, recorded once, then replayed as one launch."""

    EAGER = 3  # real updates before, so that everything lazy has happened

    def __init__(self, step):
        self.step, self.calls, self.graph = step, 0, None

    def __call__(self, *drawn):
        self.calls += 1
        if self.calls <= self.EAGER:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                out = self.step(*drawn)
            torch.cuda.current_stream().wait_stream(side)
            return out
        if self.graph is None:
            self.inputs = [x.clone() for x in drawn]
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.outputs = self.step(*self.inputs)
        for mine, x in zip(self.inputs, drawn, strict=True):
            mine.copy_(x)
        self.graph.replay()
        return [x.clone() for x in self.outputs]
