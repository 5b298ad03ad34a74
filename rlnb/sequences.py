"""From tokens to sequences: what is summed, what is masked, what is shifted.

T is the number of tokens, V the size of the vocabulary. Log-probabilities are
in nats. Masks are boolean, or 0 and 1; what stands under a 0 is never read,
so padding may hold anything. NumPy arrays and torch tensors alike.
"""

from .inputs import (
    arrays,
    integers,
    number,
    refuse,
    refuse_infinite,
    refuse_log_probs,
    refuse_where,
    widened,
)


def completion_mask(ids, eos_id):
    """True up to and including the first end-of-sequence token.

    ids: integers (..., T). Returns booleans (..., T). The end token is part
    of the completion, since the policy chose it; what follows is padding,
    also where the padding token is the end token. Without one all is True.
    """
    xp, ids = integers("ids", ids)
    if not ids.ndim:
        refuse("ids", "one number", "an axis of tokens")
    eos = number("eos_id", eos_id, "a token id", lambda i: i == int(i))
    is_eos = xp.astype(ids == int(eos), xp.int64)
    ends_before = xp.cumulative_sum(is_eos, axis=-1) - is_eos
    return ends_before == 0


def sequence_log_ratio(logp, logq, mask):
    """log p(y) - log q(y) of whole sequences: the sum over their tokens.

    logp, logq: log-probabilities of the sampled tokens, (..., T), nats. mask:
    (..., T). Returns (...). It is the sum and not the mean: the mean is the
    log-ratio of no distribution. A sequence without any token is refused.
    """
    xp, logp, logq = arrays(logp=logp, logq=logq)
    mask = _mask(xp, mask, logp=logp, logq=logq)
    logp, logq = xp.where(mask, logp, 0.0), xp.where(mask, logq, 0.0)
    refuse_log_probs(xp, logp, logq)
    sums = xp.sum(logp, axis=-1), xp.sum(logq, axis=-1)
    impossible = (sums[0] == -xp.inf) & (sums[1] == -xp.inf)
    refuse_where(xp, impossible, "the sum of logp", sums[0], "not -inf where logq's is")
    tokens = xp.count_nonzero(mask, axis=-1)
    refuse_where(xp, tokens == 0, "the number of tokens in mask", tokens, "at least 1")
    return xp.sum(logp - logq, axis=-1)


def masked_mean(values, mask):
    """The mean of `values` over all tokens that are not masked: one number.

    values, mask: one shape. Pass the whole batch: the mean of the means of
    its parts gives short parts too much weight.
    """
    xp, values = arrays(values=values)
    mask = _mask(xp, mask, values=values)
    values = xp.where(mask, values, 0.0)
    refuse_infinite(xp, "values", values)
    count = xp.count_nonzero(mask)
    if count == 0:
        refuse("mask", "0 everywhere", "at least one token to average over")
    return xp.sum(values) / xp.astype(count, values.dtype)


def returns_to_go(rewards, mask):
    """The sum of the rewards from each token to the end of its sequence.

    rewards, mask: (..., T). Returns (..., T), 0 where masked.
    """
    xp, rewards = arrays(rewards=rewards)
    mask = _mask(xp, mask, rewards=rewards)
    rewards = xp.where(mask, rewards, 0.0)
    refuse_infinite(xp, "rewards", rewards)
    backwards = xp.cumulative_sum(xp.flip(rewards, axis=-1), axis=-1)
    return xp.where(mask, xp.flip(backwards, axis=-1), 0.0)


def token_log_probs(logits, ids, temperature=1.0):
    """log-probability of each token after the first: row t scores token t+1.

    logits: (..., T, V) as a language model returns them, or (..., T-1, V)
    without the last row, which scores a token that is not there. ids:
    integers (..., T). Returns (..., T-1), nats. Give the temperature that the
    sampler used: the two distributions differ otherwise. Half-precision
    logits are computed in float32. A logit of -inf, or below -1e30,
    is a masked token.
    """
    allowed = "a number > 0, from 1e-30 to 1e30"
    temperature = number("temperature", temperature, allowed, lambda t: t >= 1e-30)
    xp, logits = arrays(logits=widened(logits))
    _, ids = integers("ids", ids, beside=logits)
    rows, size = _rows_and_size(logits, ids)
    ids = ids[..., 1:]
    refuse_where(
        xp, (ids < 0) | (ids >= size), "the next of ids", ids, f"0 to {size - 1}"
    )
    logits = logits[..., :rows, :]
    logits = xp.where(logits < -1e30, -xp.inf, logits) / temperature
    refuse_where(xp, ~(logits < xp.inf), "logits", logits, "finite, or -inf")
    top = xp.max(logits, axis=-1, keepdims=True)
    refuse_where(xp, top == -xp.inf, "the largest logit of", top, "finite")
    logits = logits - top  # before the sum: large logits would swallow its log
    total = xp.log(xp.sum(xp.exp(logits), axis=-1, keepdims=True))
    return xp.take_along_axis(logits - total, ids[..., None], axis=-1)[..., 0]


def _rows_and_size(logits, ids):
    tokens, fits = (ids.shape[-1] if ids.ndim else 0, logits.ndim == ids.ndim + 1)
    if tokens < 2:
        refuse("ids", f"of shape {tuple(ids.shape)}", "at least 2 tokens")
    fits = fits and logits.shape[:-2] == ids.shape[:-1]
    if not fits or logits.shape[-2] not in (tokens - 1, tokens):
        seen = f"of shape {tuple(logits.shape)} beside ids {tuple(ids.shape)}"
        refuse("logits", seen, "(..., T, V) or (..., T-1, V) beside (..., T)")
    return tokens - 1, logits.shape[-1]


def _mask(xp, mask, **beside):
    _, mask, *_ = arrays(mask=mask, **beside)
    refuse_where(xp, (mask != 0) & (mask != 1), "mask", mask, "0 and 1")
    for name, x in beside.items():
        if x.shape != mask.shape or not mask.ndim:
            seen = f"of shape {tuple(mask.shape)} beside {name} {tuple(x.shape)}"
            refuse("mask", seen, "one shape, with an axis of tokens")
    return mask == 1
