"""What TRL logs, recomputed with rlnb's formulas from a Step, under TRL's names.

Source: trl/trainer/rloo_trainer.py and grpo_trainer.py of TRL 1.16.0.
"""

import torch

from ..advantages import group_standardized, leave_one_out
from ..clipping import clip_is_active, clipped_surrogate
from ..estimators import k3
from ..inputs import refuse
from ..kl import log_ratio, shaped_reward
from ..sequences import masked_mean, sequence_log_ratio

SETTINGS = {  # what the formulas below take for granted
    "loss_type": "dapo", "scale_rewards": "group", "importance_sampling_level": "token",
    "multi_objective_aggregation": "sum_then_normalize", "epsilon_high": None,
    "delta": None, "off_policy_mask_threshold": None, "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0, "use_adaptive_entropy": False, "use_vllm": False,
    "normalize_advantages": False, "reward_clip_range": None, "reward_weights": None,
    "mask_truncated_completions": False,
}  # fmt: skip


def differences(trainer, steps):
    """The largest |logged - recomputed| of each number, with one step a log line.

    Advantages are compared one by one, as "advantages".
    """
    recompute = grpo_step if hasattr(trainer.args, "loss_type") else rloo_step
    lines = [line for line in trainer.state.log_history if "loss" in line]
    if len(lines) != len(steps):
        seen = f"{len(lines)} log lines for {len(steps)} steps"
        refuse("steps", seen, "one line a step: logging_steps=1, one accumulation step")
    worst = {}
    for line, step in zip(lines, steps, strict=True):
        got = recompute(step, **settings(trainer.args))
        gaps = {name: got[name] - line[name] for name in got.keys() & line.keys()}
        gaps["advantages"] = got["advantages"] - step.generation.advantages
        for name, gap in gaps.items():
            worst[name] = max(worst.get(name, 0.0), gap.abs().max().item())
    return dict(sorted(worst.items()))


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
    logged |= _clips(step, ratio, eps, torch.ones_like(ratio)[:, None])
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
    logged |= _clips(step, ratio, eps, mask) | _common(step, reward, samples)
    return logged | {"advantages": advantages, "ratio": ratio}


def _clips(step, ratio, eps, mask):
    """TRL's five clip numbers; a ratio (B,) is one token of each sequence.

    By the signs of TRL's own advantages: those of equal returns are not quite 0.
    """
    ratio, advantage = ratio.view_as(mask), step.of(step.generation.advantages)[:, None]
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
        reward, groups = g.rewards.nansum(1), compared.view(-1, samples)
        away = groups - groups.nanmean(1, keepdim=True)  # as TRL rounds
        spread = (away.square().nanmean(1) * samples / (samples - 1)).sqrt()
        logged |= {
            "reward": reward.mean(),
            "reward_std": reward.std(),
            "frac_reward_zero_std": (spread <= 1e-8).float().mean(),
            "completions/mean_length": g.mask.sum(1).float().mean(),
        }
    return logged
