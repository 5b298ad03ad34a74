"""Preferences instead of rewards: DPO's loss and its implicit reward.

Log-ratios are log p - log q of whole answers, in nats. NumPy arrays and torch
tensors alike. Source: Rafailov et al. 2023, arXiv 2305.18290, equations 6 and 7.
"""

from .inputs import arrays, number, refuse_infinite, refuse_shapes


def implicit_reward(log_ratio, beta):
    """beta (log p - log q): the reward for which p would be the tilted optimum.

    Known up to a constant for each prompt, in reward units; shape as given.
    """
    beta = _beta(beta)
    xp, log_ratio = arrays(log_ratio=log_ratio)
    refuse_infinite(xp, "log_ratio", log_ratio)
    return beta * log_ratio


def dpo_loss(chosen, rejected, beta):
    """-log sigmoid(beta (chosen - rejected)) of pairs of answers, nats.

    chosen, rejected: log-ratios of the preferred and the other answer of each
    pair; shapes broadcast.
    """
    beta = _beta(beta)
    xp, chosen, rejected = arrays(chosen=chosen, rejected=rejected)
    refuse_shapes(chosen=chosen, rejected=rejected)
    refuse_infinite(xp, "chosen", chosen)
    refuse_infinite(xp, "rejected", rejected)
    margin = beta * (chosen - rejected)
    return xp.logaddexp(xp.zeros_like(margin), -margin)


def _beta(beta):
    return number("beta", beta, "a number > 0, below 1e30", lambda b: b > 0)
