"""Many runs as one batched computation: every beta with every seed.

A member's weights are a slice of stacked weights; torch.func runs the policy
over all of them at once. Adam works on each number by itself, so a member
makes the updates that it would make alone.
"""

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.func import functional_call, stack_module_state, vmap

from ..inputs import refuse
from .checks import first_ratio
from .config import TrainConfig
from .evaluation import MEASURES, Evaluation, enumerated, quietly
from .loop import backward, noise
from .policy import freeze_reference
from .task import addition, strict_reward
from .warmup import warm_up


@dataclass(frozen=True)
class SweepResult:
    """The ends of all runs, exactly: exact[group][measure] is (betas, seeds).

    start[group][measure]: of the policy they all began with. policies and
    evaluations, prompt by prompt: by (beta, seed); before: the start's.
    groups: indices of prompts, by name.
    """

    config: TrainConfig
    betas: list
    seeds: list
    groups: dict
    exact: dict
    start: dict
    before: Evaluation
    evaluations: dict
    policies: dict


def sweep(config, betas, seeds, *, start=None, watch=None):
    """Train one policy for each pair of betas and seeds; a SweepResult.

    All else is as `config` says and as in `train`, which gives the same
    numbers one by one; only the threads are torch's own. watch: called with
    (updates done, of how many). Neither stopped nor resumed.
    FloatingPointError: a policy became NaN or infinite.
    """
    betas, seeds = _several("betas", betas), _several("seeds", seeds)
    members = [replace(config, beta=b, seed=s) for b in betas for s in seeds]
    device, dtype = config.torch_device, config.torch_dtype
    start = copy.deepcopy(warm_up(config) if start is None else start)
    policy = start.requires_grad_(True).to(device, dtype)
    reference = freeze_reference(policy)
    task = addition(config.start_seed)
    task = replace(task, **{k: x.to(device) for k, x in vars(task).items()})
    updater = _Updater(policy, reference, task, members, len(seeds))
    first_ratio(policy, updater.prompts, *(x[0] for x in updater.drawn(0)))
    for k in range(config.updates):
        updater.update(k)
        if watch is not None and (k + 1) % config.evaluate_every == 0:
            watch(k + 1, config.updates)
    pairs = [(m.beta, m.seed) for m in members]
    policies = dict(zip(pairs, updater.split(), strict=True))
    logq, groups = quietly(reference, task.prompts), task.groups(config.prompts)
    ends = {}
    for pair, policy in policies.items():
        logp = quietly(policy, task.prompts)
        ends[pair] = enumerated(logp, logq, task.answers)
        if not ends[pair].kl.isfinite().all():
            beta, seed = pair
            raise FloatingPointError(
                f"the policy of beta={beta:g}, seed={seed} is not finite after update "
                f"{config.updates}; try a learning_rate below {config.learning_rate:g}"
            )
    before = enumerated(logq, logq, task.answers)
    means = {
        name: [end.means(index) for end in ends.values()]
        for name, index in groups.items()
    }
    shape = len(betas), len(seeds)
    exact = {
        name: {m: np.reshape([mean[m] for mean in each], shape) for m in MEASURES}
        for name, each in means.items()
    }
    start = {name: before.means(index) for name, index in groups.items()}
    return SweepResult(
        config, betas, seeds, groups, exact, start, before, ends, policies
    )


class _Updater:
    """As loop.Updater, with a leading axis of members on every tensor."""

    def __init__(self, policy, reference, task, members, seeds):
        self.config, self.members, self.seeds = members[0], members, seeds
        self.policy = policy
        self.weights, _ = stack_module_state([policy] * len(members))
        self.optimizer = torch.optim.Adam(
            self.weights.values(), self.config.learning_rate,
            fused=task.prompts.device.type != "mps",
        )  # fmt: skip
        trained = task.groups(self.config.prompts)["trained"]
        self.prompts = task.prompts[trained]
        self.logq = quietly(reference, self.prompts)
        self.reward = strict_reward(task.answers[trained], self.logq.dtype)
        betas = [[[m.beta]] for m in members]
        self.beta = torch.tensor(betas, dtype=self.logq.dtype, device=self.logq.device)

    def update(self, k):
        c = self.config
        prompts, logq, reward, drawn = self.prompts, self.logq, self.reward, ()
        total, axis = len(prompts), None
        if c.gradient == "sampled":
            rows, uniforms = self.drawn(k)
            total, drawn = uniforms[0].numel(), (rows, uniforms)
            if c.prompts > c.batch:  # each member looks at prompts of its own
                prompts, logq, reward, axis = prompts[rows], logq[rows], reward[rows], 0
                own = torch.arange(c.batch, device=rows.device)
                drawn = own.expand_as(rows), uniforms
        self.optimizer.zero_grad()
        run = vmap(lambda w, x: functional_call(self.policy, w, (x,)), (0, axis))
        steps = run(self.weights, prompts)
        # the loss is a sum over members, so each has a gradient of its own
        backward(*steps, logq, reward, self.beta, drawn, total)
        self.optimizer.step()

    def drawn(self, k):
        """The noise of update k for all members; those of one seed share it."""
        c, seeds = self.config, [m.seed for m in self.members[: self.seeds]]
        size = c.prompts, c.batch, c.samples_per_prompt
        each = [noise(seed, k, *size) for seed in seeds]
        rows, uniforms = (torch.stack(x) for x in zip(*each, strict=True))
        betas, like = len(self.members) // self.seeds, self.logq
        rows, uniforms = rows.repeat(betas, 1), uniforms.repeat(betas, 1, 1)
        return rows.to(like.device), uniforms.to(like.dtype).to(like.device)

    def split(self):
        """The trained policies, one a member."""
        for k in range(len(self.members)):
            policy = copy.deepcopy(self.policy)
            policy.load_state_dict({n: w[k].detach() for n, w in self.weights.items()})
            yield policy


def _several(name, values):
    try:
        values = list(values)
    except TypeError:
        refuse(name, repr(values), "a list of values")
    if not values or len(set(values)) < len(values):
        refuse(name, repr(values), "one value or more, all different")
    return values
