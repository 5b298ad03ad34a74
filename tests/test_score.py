"""The gradient of a reward that holds the policy, by two routes and by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from libraries import LIBRARIES, each_library, printed_without_torch, quick, torch_pin

from rlnb import score
from rlnb.kl import entropy, kl_divergence, log_ratio, shaped_reward
from rlnb.score import direct_objective, gradient_routes, score_surrogate

pytestmark = pytest.mark.filterwarnings("error")
INF, NAN = math.inf, math.nan
P, Q, R, BETA = [0.8, 0.2], [0.5, 0.5], [1.0, 0.0], 0.1
MASKED = [0.3, -0.5, -INF, 1.0]  # logits
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
TORCHES = [lib for lib in LIBRARIES if lib.module is torch]


def tensor(x, dtype=torch.float64, grad=False):
    return torch.tensor(np.asarray(x), dtype=dtype, requires_grad=grad)


def rows(size, numbers):
    row = st.lists(numbers, min_size=size, max_size=size)
    return st.lists(row, min_size=2, max_size=2).map(np.array)


def normed(weights):
    return weights / weights.sum(-1, keepdims=True)


tasks = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        rows(n, st.floats(-4, 4)),  # two rows of logits,
        rows(n, st.integers(1, 9)).map(normed),  # of q,
        rows(n, st.floats(-3, 3)),  # of rewards,
        st.sampled_from([0, 0.1]) | st.floats(0.01, 5),  # and one beta
    )
)


def softmax(logits):
    return normed(np.exp(logits - np.max(logits, -1, keepdims=True)))


def by_hand(logits, q, reward, beta):
    """p (G - E G) with G = R - beta l, row by row, without torch."""
    p = softmax(np.array(logits))
    live = np.where(p > 0, p, 1.0)
    logq = np.log(np.where(p > 0, q, 1.0)) if beta else 0.0
    returns = reward - beta * (np.log(live) - logq)
    return p * (returns - (p * returns).sum(-1, keepdims=True))


def objective(logits, q, reward, beta):
    """J of the rows together, by a plain loop."""
    p, q, reward = np.broadcast_arrays(softmax(np.array(logits)), q, reward)
    return math.fsum(
        a * (r - beta * math.log(a / b))
        for a, b, r in zip(p.flat, q.flat, reward.flat, strict=True)
    )


def differences(function, x, h=1e-5):
    """The gradient of function at x by central finite differences."""
    x, got = np.array(x, float), np.zeros(np.shape(x))
    for at in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[at] = h
        got[at] = (function(x + step) - function(x - step)) / (2 * h)
    return got


def gradient(function, p=P):
    """d function(p, log p) / d logit 1, by autograd, at the policy p."""
    logits = tensor(np.log(p), grad=True)
    value = function(logits.softmax(-1), logits.log_softmax(-1))
    return torch.autograd.grad(value, logits)[0][0].item()


def log_ratios(logp):
    return log_ratio(logp, tensor(np.log(Q)))


# --- the surrogate ------------------------------------------------------------


@each_dtype
def test_the_surrogate_is_the_product_and_its_slope_the_return(dtype):
    logp = tensor([-0.5, -2.0, 0.0], dtype, grad=True)
    got = score_surrogate(logp, tensor([2.0, -3.0, 5.0], dtype))
    assert got.dtype == dtype
    assert got.tolist() == [-1.0, 6.0, 0.0]
    got.sum().backward()
    assert logp.grad.tolist() == [2.0, -3.0, 5.0]


def test_returns_are_held_fixed_also_where_they_hold_the_policy():
    logits = tensor(np.log(P), grad=True)
    logp = logits.log_softmax(-1)
    returns = shaped_reward(tensor(R), log_ratios(logp), BETA)
    assert returns.requires_grad
    for sample, s in ((0, 0.2), (1, -0.8)):  # grad log p by logit 1
        loss = score_surrogate(logp, returns)[sample]
        (got,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert got[0].item() == pytest.approx(returns[sample].item() * s)


def test_a_critic_in_the_returns_gets_no_gradient_from_the_policy_loss():
    value, logp = tensor(0.5, grad=True), tensor(math.log(0.8), grad=True)
    score_surrogate(logp, 1.0 - value).backward()
    assert value.grad is None
    assert logp.grad.item() == 0.5
    (logp * (1.0 - value)).backward()  # the wrong product, not detached
    assert -value.grad.item() == pytest.approx(-0.223144, abs=1e-6)


def test_returns_broadcast_and_may_be_plain_numbers():
    logp = tensor([[-1.0, -2.0], [-3.0, -4.0]], torch.float32, grad=True)
    got = score_surrogate(logp, [2.0, 1.0])
    assert got.dtype == torch.float32
    assert got.tolist() == [[-2.0, -2.0], [-6.0, -4.0]]
    assert score_surrogate(logp, 3).tolist() == [[-3.0, -6.0], [-9.0, -12.0]]


def test_all_samples_weighted_by_their_chance_give_the_exact_gradient():
    def expected(p, logp):
        returns = shaped_reward(tensor(R), log_ratios(logp), BETA)
        return (p.detach() * score_surrogate(logp, returns)).sum()

    assert gradient(expected) == pytest.approx(0.137819, abs=1e-6)
    assert gradient(expected) == pytest.approx(
        by_hand(np.log(P), Q, R, BETA)[0], abs=1e-15
    )


# --- two routes ---------------------------------------------------------------


@pytest.mark.parametrize("beta, right", [(BETA, 0.137819), (0, 0.16)])
@each_dtype
def test_both_routes_give_the_gradient_of_the_standard_pair(dtype, beta, right):
    logits = tensor(np.log(P), dtype)
    direct, by_score, apart = gradient_routes(logits, Q, R, beta)
    for got in (direct, by_score):
        assert got.dtype == dtype and not got.requires_grad
        assert got.tolist() == pytest.approx([right, -right], abs=1e-6)
    assert type(apart) is float
    assert apart <= (1e-12 if dtype == torch.float64 else 1e-6)


@quick
@given(tasks)
def test_both_routes_are_the_closed_form_in_every_row(task):
    logits, q, reward, beta = task
    right = by_hand(*task)
    for lib in TORCHES:
        got = gradient_routes(lib(logits), lib(q), lib(reward), beta)
        lib.check(got[0], right, slack=1e-5 * (lib.dtype == "float32"))
        lib.check(got[1], right, slack=1e-5 * (lib.dtype == "float32"))
        assert got[2] == (got[0] - got[1]).abs().max().item()
        assert got[2] <= (1e-12 if lib.dtype == "float64" else 1e-5)
    direct, by_score, _ = gradient_routes(
        tensor(logits[0]), q[0].tolist(), reward[0].tolist(), beta
    )
    np.testing.assert_allclose(direct, right[0], atol=1e-12)
    np.testing.assert_allclose(by_score, right[0], atol=1e-12)


@quick
@given(tasks)
def test_both_routes_are_the_finite_differences_of_the_objective(task):
    logits, q, reward, beta = task
    right = differences(lambda z: objective(z, q, reward, beta), logits)
    direct, by_score, _ = gradient_routes(
        tensor(logits), q=tensor(q), reward=tensor(reward), beta=beta
    )
    np.testing.assert_allclose(direct, right, atol=1e-7)
    np.testing.assert_allclose(by_score, right, atol=1e-7)


def test_one_policy_over_many_references_and_rewards_gets_the_sum():
    q, reward = [Q, P, [0.1, 0.9]], [R, [0.0, 2.0], [1.0, 1.0]]
    right = sum(by_hand([0.3, -0.2], *qr, BETA) for qr in zip(q, reward))
    direct, by_score, _ = gradient_routes(tensor([0.3, -0.2]), q, reward, BETA)
    np.testing.assert_allclose(direct, right, atol=1e-15)
    np.testing.assert_allclose(by_score, right, atol=1e-15)


def test_one_reference_and_reward_serve_a_batch_of_any_shape():
    logits = np.random.default_rng(0).normal(size=(2, 3, 4))
    q, reward = [0.1, 0.2, 0.3, 0.4], [1.0, -1.0, 0.5, 0.0]
    direct, by_score, apart = gradient_routes(tensor(logits), q, reward, 0.7)
    right = by_hand(logits, q, reward, 0.7)
    np.testing.assert_allclose(direct, right, atol=1e-15)
    np.testing.assert_allclose(by_score, right, atol=1e-15)
    assert apart <= 1e-12


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_routes_agree_on_the_hundred_paths_of_a_tree(seed):
    torch.manual_seed(seed)
    z, z_ref = (torch.randn(110, dtype=torch.float64) for _ in "pq")
    z.requires_grad_()

    def paths(z):
        first, second = z[:10].log_softmax(-1), z[10:].view(10, 10)
        return (first[:, None] + second.log_softmax(-1)).flatten()

    reward = torch.randn(100, dtype=torch.float64)
    logp, logq = paths(z), paths(z_ref)  # normalised: logits of the paths too
    *routes, apart = gradient_routes(logp, logq.exp(), reward, BETA)
    assert apart <= 1e-12
    value = objective(logp.tolist(), logq.exp(), reward, BETA)
    total = direct_objective(logp.exp(), logq.exp(), reward, BETA)
    assert total.item() == pytest.approx(value, abs=1e-12)
    right = torch.autograd.grad(total, z, retain_graph=True)[0]
    for route in routes:  # and on by the chain rule to the 110 logits
        got = torch.autograd.grad(logp, z, route, retain_graph=True)[0]
        np.testing.assert_allclose(got, right, atol=1e-12)


@each_dtype
@pytest.mark.parametrize("beta", [0, BETA])
@pytest.mark.parametrize("last", [[0.2, 0.3, 0.1, 0.4], [0.2, 0.3, 0.0, 0.5]])
def test_a_masked_action_has_gradient_zero_whatever_stands_beside_it(dtype, beta, last):
    reward = [1.0, 0.0, 1e6, -1.0]
    direct, by_score, _ = gradient_routes(tensor(MASKED, dtype), last, reward, beta)
    right = by_hand(MASKED, last, reward, beta)
    np.testing.assert_allclose(direct, right, atol=1e-6)
    np.testing.assert_allclose(by_score, right, atol=1e-6)
    assert direct[2] == by_score[2] == 0 == right[2]


@each_dtype
@pytest.mark.parametrize("far", [-80.0, -100.0, -800.0, -1e30])
def test_an_action_of_vanishing_probability_leaves_both_routes_finite(dtype, far):
    direct, by_score, apart = gradient_routes(
        tensor([0.0, 0.0, far], dtype), [0.2, 0.3, 0.5], [1.0, 0.0, 5.0], 2.0
    )
    right = by_hand([0.0, 0.0], [0.2, 0.3], [1.0, 0.0], 2.0)
    assert direct.tolist() == pytest.approx([*right, 0.0], abs=1e-6)
    assert by_score.tolist() == pytest.approx([*right, 0.0], abs=1e-6)
    assert apart < 1e-6


@pytest.mark.parametrize("q", [None, [1.0, 0.0], [7.0, NAN], [0.2, 0.3, 0.5]])
def test_at_beta_zero_no_reference_is_asked(q):
    for beta in (0, 0.0, tensor(0.0)):
        direct, by_score, _ = gradient_routes(tensor(np.log(P)), q, R, beta)
        assert direct.tolist() == pytest.approx([0.16, -0.16])
        assert by_score.tolist() == pytest.approx([0.16, -0.16])


def test_the_callers_logits_keep_their_numbers_graph_and_gradient():
    leaf = tensor([1.0, 0.0, -1.0], grad=True)
    q, reward = tensor([0.2, 0.3, 0.5]), tensor([1.0, 0.0, 2.0], grad=True)
    for logits in (leaf, leaf.detach(), 1.0 * leaf):
        before = logits.requires_grad
        direct, _, _ = gradient_routes(logits, q, reward, BETA)
        direct.zero_()
        assert logits.tolist() == [1.0, 0.0, -1.0]
        assert logits.requires_grad is before
    assert q.tolist() == [0.2, 0.3, 0.5] and reward.tolist() == [1.0, 0.0, 2.0]
    assert leaf.grad is None and reward.grad is None


def test_lists_beside_one_float32_tensor_follow_it():
    got = gradient_routes(np.log(P).tolist(), tensor(Q, torch.float32), R, 0)
    assert got[0].dtype == got[1].dtype == torch.float32


# --- what goes wrong, each with its number ------------------------------------


def test_a_product_that_is_not_detached_misses_by_beta_times_the_entropy(monkeypatch):
    monkeypatch.setattr(score, "score_surrogate", lambda logp, g: g * logp)
    direct, wrong, apart = gradient_routes(tensor(np.log(P)), Q, R, BETA)
    assert direct[0].item() == pytest.approx(0.137819, abs=1e-6)
    assert wrong[0].item() == pytest.approx(0.115639, abs=1e-6)
    assert apart == pytest.approx(0.022181, abs=1e-6)
    excess = BETA * gradient(lambda p, logp: entropy(p))
    assert (wrong - direct)[0].item() == pytest.approx(excess, abs=1e-12)


def test_kl_under_no_grad_in_the_loss_acts_as_if_beta_were_zero():
    def loss(p, logp):
        with torch.no_grad():
            penalty = BETA * kl_divergence(p, tensor(Q))
        return direct_objective(p, None, R, 0) - penalty

    free, _, _ = gradient_routes(tensor(np.log(P)), None, R, 0)
    assert gradient(loss) == pytest.approx(0.16, abs=1e-15)
    assert gradient(loss) == pytest.approx(free[0].item(), abs=1e-15)


def test_kl_in_the_reward_and_in_the_loss_counts_twice():
    def twice(p, logp):
        return direct_objective(p, Q, R, BETA) - BETA * kl_divergence(p, Q)

    free = gradient(lambda p, logp: direct_objective(p, None, R, 0))
    assert free - gradient(twice) == pytest.approx(0.443614 * BETA, abs=1e-7)
    doubled, _, _ = gradient_routes(tensor(np.log(P)), Q, R, 2 * BETA)
    assert gradient(twice) == pytest.approx(doubled[0].item(), abs=1e-12)


def test_the_second_term_moves_each_sample_and_vanishes_on_average():
    def reward_of(sample):
        return lambda p, logp: shaped_reward(R, log_ratios(logp), BETA)[sample]

    terms = [gradient(reward_of(sample)) for sample in (0, 1)]
    assert terms == pytest.approx([-0.02, 0.08], abs=1e-12)
    assert np.dot(P, terms) == pytest.approx(0, abs=1e-15)


def sample_gradients(returns):
    """The gradient by logit 1 that each outcome contributes, being drawn."""
    logits = tensor(np.log(P), grad=True)
    draws = score_surrogate(logits.log_softmax(-1), returns)
    return np.array(
        [
            torch.autograd.grad(draw, logits, retain_graph=True)[0][0].item()
            for draw in draws
        ]
    )


def moments(x):
    mean = np.dot(P, x)
    return mean, np.dot(P, (x - mean) ** 2)


def test_a_baseline_may_know_the_state_but_not_the_action():
    returns = np.array(R) - BETA * np.log(np.array(P) / Q)
    without, _ = moments(sample_gradients(returns.tolist()))
    for b in (-3.0, 0.7807, 100.0):
        assert moments(sample_gradients([b, b]))[0] == pytest.approx(0, abs=1e-12)
        shifted, _ = moments(sample_gradients((returns - b).tolist()))
        assert shifted == pytest.approx(without, abs=1e-12)
    assert sample_gradients((returns - returns).tolist()).tolist() == [0, 0]


def test_a_baseline_lowers_the_variance_of_one_sample_most_at_its_optimum():
    returns = np.array(R) - BETA * np.log(np.array(P) / Q)
    mean = np.dot(P, returns)
    _, without = moments(sample_gradients((returns + 5).tolist()))
    _, less_mean = moments(sample_gradients((returns - mean).tolist()))
    assert mean == pytest.approx(0.7807, abs=1e-4)
    assert without == pytest.approx(4.4334, abs=1e-4)
    assert less_mean == pytest.approx(0.0427, abs=1e-4)
    tried = np.linspace(0, 1, 10_001)
    slopes = sample_gradients([1.0, 1.0])
    samples = (returns[:, None] - tried) * slopes[:, None]
    variance = np.dot(P, samples**2) - np.dot(P, samples) ** 2
    assert tried[np.argmin(variance)] == pytest.approx(0.2639, abs=1e-4)
    assert min(variance) < less_mean


# --- the objective ------------------------------------------------------------


@each_library
def test_the_direct_objective_needs_no_tensor(lib):
    for p, beta, right in ((P, 0.1, 0.7807255), (Q, 0.1, 0.5), (P, 0, 0.8)):
        got = direct_objective(lib(p), lib(Q), lib(R), beta)
        lib.check(got, right, slack=1e-6)
    assert direct_objective(P, None, R, 0) == 0.8
    assert direct_objective(P, [1.0, 0.0], R, BETA) == -INF
    with pytest.raises(ValueError, match="the sum of p is 0.9; allowed: 1"):
        direct_objective(lib([0.7, 0.2]), lib(Q), lib(R), BETA)


@quick
@given(tasks)
def test_the_direct_objective_is_the_plain_loop_and_has_its_gradient(task):
    logits, q, reward, beta = task
    z = tensor(logits, grad=True)
    total = direct_objective(z.softmax(-1), q.tolist(), reward.tolist(), beta)
    assert total.shape == (2,)
    assert total.sum().item() == pytest.approx(objective(*task), abs=1e-12)
    total.sum().backward()
    np.testing.assert_allclose(z.grad, by_hand(*task), atol=1e-12)


# --- refusals -----------------------------------------------------------------

LOGITS = tensor(np.log(P))


@pytest.mark.parametrize(
    "bad, seen",
    [
        ({"logits": [0.0, 1.0]}, "logits is no torch tensor"),
        ({"logits": np.zeros(2)}, "logits is no torch tensor"),
        ({"logits": tensor(1.0)}, "logits is no torch tensor of an axis"),
        ({"logits": tensor([NAN, 0.0])}, r"logits\[0\] is nan"),
        ({"logits": tensor([0.0, INF])}, r"logits\[1\] is inf"),
        ({"logits": tensor([-INF, -INF])}, "the largest of logits is -inf"),
        (
            {"logits": tensor([[0.0, 0.0], [-INF, -INF]])},
            r"the largest of logits\[1\] is -inf",
        ),
        ({"logits": LOGITS.half()}, "logits is of dtype float16"),
        ({"logits": LOGITS.bfloat16()}, "logits is of dtype bfloat16"),
        ({"logits": torch.ones(0)}, "logits is empty"),
        ({"q": None}, "q is of dtype object"),
        ({"q": np.array(Q)}, "q a NumPy array"),
        ({"q": [0.7, 0.2]}, "the sum of q is 0.9"),
        ({"q": [1.2, -0.2]}, r"q\[1\] is -0.2"),
        ({"q": [1.0, 0.0]}, r"q\[1\] is 0"),
        ({"q": [Q, [0.0, 1.0]]}, r"q\[1, 0\] is 0"),
        ({"q": [NAN, 1.0]}, r"q\[0\] is nan"),
        ({"q": [0.2, 0.3, 0.5]}, r"shapes .*q \(3,\)"),
        ({"q": tensor(Q).bfloat16()}, "q is of dtype bfloat16"),
        ({"q": []}, "q is empty"),
        ({"reward": [1.0, NAN]}, r"reward\[1\] is nan"),
        ({"reward": [1.0, INF]}, r"reward\[1\] is inf"),
        ({"reward": [1.0, 0.0, 0.0]}, r"shapes .*reward \(3,\)"),
        ({"reward": np.array(R)}, "reward a NumPy array"),
        ({"reward": [[1.0], [2.0]]}, "reward is over 1 outcomes"),
        ({"beta": -0.1}, "beta is -0.1"),
        ({"beta": NAN}, "beta is nan"),
        ({"beta": INF}, "beta is inf"),
        ({"beta": None}, "beta is None"),
        ({"beta": True}, "beta is True"),
        ({"beta": tensor([0.1, 0.2])}, r"beta is tensor\(\["),
    ],
)
def test_the_routes_refuse_what_would_give_a_wrong_number(bad, seen):
    arguments = {"logits": LOGITS, "q": Q, "reward": R, "beta": BETA, **bad}
    with pytest.raises(ValueError, match=f"^.*{seen}.*; allowed: "):
        gradient_routes(**arguments)


@pytest.mark.parametrize(
    "logp, returns, seen",
    [
        (np.array([-1.0]), [1.0], "logp is a NumPy array"),
        ([-1.0], [1.0], "logp is a NumPy array"),
        (np.array([-1.0]), torch.ones(1), "logp a NumPy array"),
        (tensor([-1.0]), np.ones(1), "returns a NumPy array"),
        (tensor([-1.0, 0.8]), [1.0, 1.0], r"logp\[1\] is 0.8"),
        (tensor([-1.0, NAN]), [1.0, 1.0], r"logp\[1\] is nan"),
        (tensor([-1.0, -INF]), [1.0, 1.0], r"logp\[1\] is -inf"),
        (tensor([-1.0, -2.0]), [1.0, NAN], r"returns\[1\] is nan"),
        (tensor([-1.0, -2.0]), [1.0, INF], r"returns\[1\] is inf"),
        (tensor([-1.0, -2.0]), [-INF, 1.0], r"returns\[0\] is -inf"),
        (tensor([-1.0, -2.0]), [1.0] * 3, r"logp \(2,\), returns \(3,\)"),
        (tensor([-1.0]).half(), [1.0], "logp is of dtype float16"),
        (tensor([-1.0]), torch.ones(1).bfloat16(), "returns is of dtype bf"),
        (torch.ones(0), [1.0], "logp is empty"),
        (tensor([-1.0]), [], "returns is empty"),
        (None, [1.0], "logp is of dtype object"),
        (tensor([-1.0]), "1", "returns is of dtype <U1"),
    ],
)
def test_the_surrogate_refuses_what_would_give_a_wrong_number(logp, returns, seen):
    with pytest.raises(ValueError, match=f"^.*{seen}.*; allowed: "):
        score_surrogate(logp, returns)


def test_a_rounding_error_above_log_one_is_no_reason_to_refuse():
    assert score_surrogate(tensor(5e-6), 2.0).item() == 1e-5


# --- without torch ------------------------------------------------------------

WITHOUT_TORCH = """
print(score.direct_objective([.8, .2], [.5, .5], [1, 0], .1))
for call in (
    lambda: score.score_surrogate([-1.0], [1.0]),
    lambda: score.gradient_routes([0.0, 0.0], [.5, .5], [1, 0], .1),
):
    try:
        call()
    except ImportError as error:
        assert error.__suppress_context__
        print(error)
"""


def test_without_torch_the_objective_works_and_gradients_say_what_is_missing():
    number, *said = printed_without_torch("score", WITHOUT_TORCH).splitlines()
    assert float(number) == pytest.approx(0.7807255, abs=1e-7)
    assert said == [
        f"{name} needs torch: pip install {torch_pin()}"
        for name in ("score_surrogate", "gradient_routes")
    ]
