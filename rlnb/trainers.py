"""A real trainer beside the formulas: what TRL had in its hands, and its log.

`keep(trainer)` notes the tensors of each step of TRL's RLOOTrainer or GRPOTrainer
and changes nothing. `rloo_step` and `grpo_step` compute from them, with rlnb's own
formulas, the numbers that TRL logs, under TRL's names; they do not import TRL.
Source: trl/trainer/rloo_trainer.py and grpo_trainer.py of TRL 1.16.0.
"""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import torch

from .advantages import group_standardized, leave_one_out
from .clipping import clip_is_active, clipped_surrogate
from .estimators import k3
from .inputs import refuse
from .kl import log_ratio, shaped_reward
from .sequences import masked_mean, sequence_log_ratio

TRL = "1.16.0"
DIFFERENT = (  # first version that has it, what an older one does
    ("1.15.0", "use_bias_correction_kl is False, kl a mean of means"),
    ("1.4.0", "_get_per_token_logps_and_entropies returns two values, not three"),
    ("0.22.0", "RLOOTrainer has other methods, beta is kl_coef"),
)
SETTINGS = {  # what the formulas below take for granted
    "loss_type": "dapo", "scale_rewards": "group", "importance_sampling_level": "token",
    "multi_objective_aggregation": "sum_then_normalize", "epsilon_high": None,
    "delta": None, "off_policy_mask_threshold": None, "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0, "use_adaptive_entropy": False, "use_vllm": False,
    "normalize_advantages": False, "reward_clip_range": None, "reward_weights": None,
    "mask_truncated_completions": False,
}  # fmt: skip


def requires_trl():
    """Raise an ImportError of one line unless TRL 1.16.0 is installed."""
    try:
        found = version("trl")
    except PackageNotFoundError:
        found = None
    if found == TRL:
        return
    seen = f"trl {found} is installed" if found else "trl is not installed"
    text = f"{seen}; lesson 08 needs {TRL}: pip install -r requirements-trl.txt"
    if found:
        number = _number(found)
        older = [what for since, what in DIFFERENT if number < _number(since)]
        later = "later names and defaults have not been compared"
        text += f". In {found}: {'; '.join(older) or later}"
    raise ImportError(text)


def _number(text):
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


@dataclass(frozen=True)
class Generation:
    """What was sampled at once: N completions of at most T tokens.

    ids, mask: (N, T). rewards: (N, functions), of all processes. advantages: (N,),
    TRL's own. old_logps, ref_logps: (N, T), nats, or None where TRL computes none.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    rewards: torch.Tensor
    advantages: torch.Tensor
    old_logps: torch.Tensor | None = None
    ref_logps: torch.Tensor | None = None


@dataclass(frozen=True)
class Step:
    """One call of the loss: B of the N completions, which TRL has shuffled.

    rows: (B,), which ones. logps, entropies: (B, T) of the policy as it is now,
    nats. loss: the tensor that TRL returned, detached. fresh: just generated.
    """

    generation: Generation
    rows: torch.Tensor
    logps: torch.Tensor
    entropies: torch.Tensor
    loss: torch.Tensor
    fresh: bool

    def of(self, x):
        """The rows of this step, of a tensor of the generation, or None."""
        return None if x is None else x[self.rows]


@contextmanager
def keep(trainer):
    """Within this block each training step is appended to the list it yields.

    Four methods of the instance are wrapped, not replaced. Nothing is computed
    twice and no random number is drawn, so the run is the same to the bit.
    """
    names = (
        "_get_per_token_logps_and_entropies", "_calculate_rewards",
        "_generate_and_score_completions", "_compute_loss",
    )  # fmt: skip
    score, reward, generate, loss_of = (getattr(trainer, name) for name in names)
    steps, seen, current = [], {}, {}

    def scored(model, *args, **kwargs):
        out = score(model, *args, **kwargs)
        is_reference = trainer.ref_model is not None and model is trainer.ref_model
        seen["ref_logps" if is_reference else "logps"] = _copy(out[0])
        seen["entropies"] = _copy(out[1])
        return out

    def rewarded(*args, **kwargs):
        seen["rewards"] = _copy(out := reward(*args, **kwargs))
        return out

    def generated(*args, **kwargs):
        seen.clear()
        out = generate(*args, **kwargs)
        current["generation"] = Generation(
            _copy(out["completion_ids"]), _copy(out["completion_mask"]),
            seen["rewards"], _copy(out["advantages"]),
            seen.get("logps"), seen.get("ref_logps"),
        )  # fmt: skip
        current["fresh"] = True
        # shuffled and split with the rest, and read by nobody else
        return {**out, "rlnb_rows": torch.arange(len(out["advantages"]))}

    def lost(model, inputs, *args, **kwargs):
        out = loss_of(model, inputs, *args, **kwargs)
        if model.training:
            logps, entropies = seen["logps"], seen["entropies"]
            kept = inputs["rlnb_rows"], logps, entropies, _copy(out)
            steps.append(Step(current["generation"], *kept, current.pop("fresh", False)))
        return out

    try:
        for name, wrapped in zip(names, (scored, rewarded, generated, lost)):
            setattr(trainer, name, wrapped)
        yield steps
    finally:
        for name in names:
            vars(trainer).pop(name, None)


def _copy(x):
    return None if x is None else x.detach().clone()


def joined(steps):
    """The same step of all processes, in the order of their ranks, as one Step."""
    width = max(step.logps.shape[1] for step in steps)
    all_width = max(step.generation.mask.shape[1] for step in steps)

    def cat(tensors, width):
        if any(x is None for x in tensors):
            return None
        if tensors[0].ndim == 2:
            pad = torch.nn.functional.pad
            tensors = [pad(x, (0, width - x.shape[1])) for x in tensors]
        return torch.cat(tensors)

    g, starts = [step.generation for step in steps], [0]
    for x in g:
        starts.append(starts[-1] + len(x.mask))
    names = "ids", "mask", "advantages", "old_logps", "ref_logps"
    both = {name: cat([getattr(x, name) for x in g], all_width) for name in names}
    return Step(
        replace(g[0], **both),  # the rewards are those of all processes already
        torch.cat([step.rows + start for step, start in zip(steps, starts)]),
        cat([step.logps for step in steps], width),
        cat([step.entropies for step in steps], width),
        torch.stack([step.loss for step in steps]).mean(),
        steps[0].fresh,
    )


def settings(args):
    """beta, eps and samples (GRPO: weighted too) from TRL's own settings.

    Refused: a setting that the formulas here do not know.
    """
    for name, known in SETTINGS.items():
        if getattr(args, name, known) != known:
            refuse(name, repr(getattr(args, name)), f"{known!r} here")
    found = {"beta": args.beta, "eps": args.epsilon, "samples": args.num_generations}
    if hasattr(args, "use_bias_correction_kl"):
        found["weighted"] = args.use_bias_correction_kl
    return found


def rloo_step(step, beta, eps, samples):
    """RLOO: k1 summed over tokens, in the reward; one ratio for each sequence.

    Returns TRL's names, and tensors: shaped_reward, advantages (N,), ratio (B,).
    """
    g, mask = step.generation, step.of(step.generation.mask)
    reward = shaped = g.rewards.nansum(1)
    if beta:
        away = sequence_log_ratio(g.old_logps, g.ref_logps, g.mask)
        shaped = shaped_reward(reward, away, beta)
    advantages = leave_one_out(shaped.view(-1, samples)).flatten()
    ratio = sequence_log_ratio(step.logps, step.of(g.old_logps), mask).exp()
    advantage = step.of(advantages)
    logged = {"loss": -clipped_surrogate(ratio, advantage, eps).mean()}
    if beta and step.fresh:  # its l is that of the old policy
        logged["kl"] = away.sum() / g.mask.sum()
    logged |= _clips(ratio, advantage, eps, torch.ones_like(ratio)[:, None])
    logged |= _common(step, shaped, samples)
    return logged | {"shaped_reward": shaped, "advantages": advantages, "ratio": ratio}


def grpo_step(step, beta, eps, samples, weighted=True):
    """GRPO: k3 of each token in the loss; one ratio for each token.

    weighted: multiply k3 by the ratio, through which the gradient flows too.
    Returns TRL's names, and tensors: advantages (N,), ratio (B, T).
    """
    g, mask = step.generation, step.of(step.generation.mask)
    reward = g.rewards.nansum(1)
    advantages = group_standardized(reward.view(-1, samples)).flatten()
    old = step.logps if g.old_logps is None else step.of(g.old_logps)
    ratio = torch.where(mask == 1, log_ratio(step.logps, old), 0.0).exp()
    advantage = step.of(advantages)[:, None]
    losses = -clipped_surrogate(ratio, advantage, eps)
    logged = {}
    if beta:
        away = log_ratio(step.logps, step.of(g.ref_logps))
        penalty = k3(torch.where(mask == 1, away, 0.0)) * (ratio if weighted else 1)
        losses = losses + beta * penalty
        logged["kl"] = masked_mean(penalty, mask)
    # "dapo": the tokens of all that was generated, shared out between the steps
    tokens = g.mask.sum() * len(mask) / len(g.mask)
    logged["loss"] = (losses * mask).sum() / tokens
    logged |= _clips(ratio, advantage, eps, mask) | _common(step, reward, samples)
    return logged | {"advantages": advantages, "ratio": ratio}


def _clips(ratio, advantage, eps, mask):
    """TRL's five clip numbers; a ratio (B,) is one token of each sequence."""
    ratio, advantage = ratio.view_as(mask), advantage.view(-1, 1)
    active = clip_is_active(ratio, advantage, eps)
    low, high = ((active & side).float() for side in (advantage < 0, advantage > 0))
    of_each = [(x * mask).sum(1) / mask.sum(1) for x in (low, high)]
    return {
        "clip_ratio/low_mean": masked_mean(low, mask),
        "clip_ratio/low_min": of_each[0].min(),
        "clip_ratio/high_mean": masked_mean(high, mask),
        "clip_ratio/high_max": of_each[1].max(),
        "clip_ratio/region_mean": masked_mean(active.float(), mask),
    }


def _common(step, compared, samples):
    """What both log. compared: (N,), what the advantages were made from."""
    g = step.generation
    logged = {"entropy": masked_mean(step.entropies, step.of(g.mask))}
    if step.fresh:
        reward, spread = g.rewards.nansum(1), compared.view(-1, samples).std(1)
        logged |= {
            "reward": reward.mean(),
            "reward_std": reward.std(),
            "frac_reward_zero_std": (spread <= 1e-8).float().mean(),
            "completions/mean_length": g.mask.sum(1).float().mean(),
        }
    return logged
