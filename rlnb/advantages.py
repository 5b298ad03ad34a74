"""What is subtracted from a return before it weights the score.

Returns, rewards and values in reward units. NumPy arrays and torch tensors
alike. Group functions take (prompts, samples): the samples of one prompt are
compared with each other and with nothing else.
"""

from .inputs import arrays, number, refuse, refuse_infinite


def leave_one_out(returns):
    """Each return less the mean of the others of its group.

    returns: (prompts, samples), at least 2 samples. Same shape. The expected
    gradient is unchanged, since the baseline does not know the sample.
    Source: Kool et al. 2019, https://openreview.net/forum?id=r1lgTGL5DE
    """
    _, centred, n = _centred(returns)
    return centred * n / (n - 1)


def group_mean(returns):
    """Each return less the mean of its group, itself included.

    Shapes as in `leave_one_out`. The expected gradient is (n-1)/n of it.
    """
    return _centred(returns)[1]


def group_standardized(returns, eps=1e-4):
    """`group_mean` over the group's standard deviation (n-1) plus eps.

    Shapes as in `leave_one_out`; no units. A group of equal returns gives 0.
    Not proportional to the gradient of J: each prompt gets a weight of its
    own. Source: Shao et al. 2024, arXiv 2402.03300 (GRPO).
    """
    eps = number("eps", eps, "a finite number > 0", lambda e: e > 0)
    xp, centred, n = _centred(returns)
    variance = xp.sum(centred**2, axis=-1, keepdims=True) / (n - 1)
    return centred / (variance**0.5 + max(eps, 1e-30))  # not 0 in float32


def gae(rewards, values, next_value, terminated, gamma, lam):
    """Generalised advantage estimates of one rollout.

    rewards, values: (T,). next_value: the value of the state after the last
    step; not used if `terminated`, a bool: then nothing follows. A rollout
    that was merely cut off is not terminated. gamma, lam: in [0, 1]. (T,).
    Source: Schulman et al. 2015, arXiv 1506.02438, equation 16.
    """
    one = getattr(terminated, "shape", None) == ()  # np.bool_, 0-d tensor
    done = terminated.item() if one else terminated
    if not isinstance(done, bool):
        refuse("terminated", repr(terminated), "True or False")
    gamma, lam = (
        number(name, x, "a number in [0, 1]", lambda x: 0 <= x <= 1)
        for name, x in (("gamma", gamma), ("lam", lam))
    )
    if done:
        next_value = 0.0
    xp, rewards, values, after = arrays(
        rewards=rewards, values=values, next_value=next_value
    )
    for name, x in (("rewards", rewards), ("values", values), ("next_value", after)):
        refuse_infinite(xp, name, x)
    if rewards.ndim != 1 or values.shape != rewards.shape or after.ndim:
        seen = f"{tuple(rewards.shape)}, {tuple(values.shape)}, {tuple(after.shape)}"
        refuse("shape of rewards, values, next_value", seen, "(T,), (T,), ()")
    following = xp.concat([values[1:], after[None]])
    errors = rewards + gamma * following - values
    estimates, running = [], 0.0
    for t in range(len(errors) - 1, -1, -1):
        running = errors[t] + gamma * lam * running
        estimates.append(running)
    return xp.stack(estimates[::-1])


def _centred(returns):
    xp, returns = arrays(returns=returns)
    refuse_infinite(xp, "returns", returns)
    if returns.ndim != 2 or returns.shape[1] < 2:
        seen = f"of shape {tuple(returns.shape)}"
        refuse("returns", seen, "(prompts, samples) with at least 2 samples")
    # from the first sample, so that equal returns leave exactly 0
    offset = returns - returns[:, :1]
    centred = offset - xp.mean(offset, axis=-1, keepdims=True)
    return xp, centred, returns.shape[1]
