"""KL over whole trajectories, against all paths added up one by one."""

import math
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from libraries import LIBRARIES, each_library, plain, quick

from rlnb.trajectories import (
    chain_rule_kl,
    importance_weights,
    path_log_probs,
    path_ratio,
    rao_blackwell_kl,
    tree_kl,
)

pytestmark = pytest.mark.filterwarnings("error")
INF, NAN = math.inf, math.nan
U = [0.5, 0.5]
FAR = [0.951811, 0.048189]  # .5 nats from uniform
P, Q = [[0.8, 0.2], [U, FAR]], [U, [U, U]]  # the lesson's small tree
each_torch = pytest.mark.parametrize("lib", LIBRARIES[2:], ids=["torch64", "torch32"])


def random_tree(rng, widths, holes):
    """Conditionals of shapes (V0,), (V0, V1), ...; `holes` of them are 0."""
    steps = []
    for t in range(len(widths)):
        weight = rng.uniform(0.05, 1, widths[: t + 1])
        weight *= rng.uniform(size=weight.shape) >= holes
        weight[..., rng.integers(widths[t])] += 0.1
        steps.append(weight / weight.sum(-1, keepdims=True))
    return steps


trees = st.builds(
    lambda widths, seed, holes: [
        random_tree(np.random.default_rng(seed + [which]), widths, hole)
        for which, hole in enumerate(holes)
    ],
    st.lists(st.integers(2, 4), min_size=1, max_size=4),
    st.lists(st.integers(0, 2**31), min_size=1, max_size=1),
    st.sampled_from([(0, 0), (0.3, 0), (0.3, 0.03), (0.3, 0.3)]),
)


def paths(steps):
    return product(*(range(width) for width in steps[-1].shape))


def chance(steps, path):
    """The probability of a path (or prefix): a product, cut off at the first 0."""
    total = 1.0
    for t in range(len(path)):
        if total > 0:
            total *= float(steps[t][path[: t + 1]])
    return total


def by_enumeration(p_steps, q_steps):
    terms = []
    for path in paths(p_steps):
        p, q = chance(p_steps, path), chance(q_steps, path)
        if p > 0:
            terms.append(p * (math.log(p) - math.log(q)) if q > 0 else INF)
    return math.fsum(terms)


def with_junk(steps):
    """The tree with no distributions, and no numbers, under what is never reached."""
    steps = [step.copy() for step in steps]
    junk = [NAN, 7.0, -3.0, INF]
    for step in steps[1:]:
        for prefix in np.ndindex(step.shape[:-1]):
            if chance(steps, prefix) == 0:
                step[prefix] = junk[: step.shape[-1]]
    return steps


def logs(steps):
    with np.errstate(all="ignore"):
        return [np.log(step) for step in steps]


def softmax_tree(logits):
    """Two steps of ten choices from 110 logits."""
    return logits[:10].softmax(-1), logits[10:].reshape(10, 10).softmax(-1)


def seeded(seed):
    torch.manual_seed(seed)
    z = torch.randn(110, dtype=torch.float64)
    return z.requires_grad_(), torch.randn(110, dtype=torch.float64)


# --- all paths --------------------------------------------------------------------


@quick
@given(trees)
def test_the_paths_are_row_major_and_are_a_distribution(both):
    for steps in both:
        right = np.array([chance(steps, path) for path in paths(steps)])
        for lib in LIBRARIES:
            for tree in (logs(steps), logs(with_junk(steps))):
                got = path_log_probs(*map(lib, tree))
                lib.check(got, logs([right])[0], 1e-5 if "32" in lib.dtype else 0)
                assert np.exp(plain(got)).sum() == pytest.approx(1, abs=1e-5)


@each_library
def test_two_steps_are_row_major_over_first_and_second(lib):
    got = path_log_probs(lib(np.log([0.5, 0.5])), lib(np.log([[0.2, 0.8], [0.4, 0.6]])))
    lib.check(got, np.log([0.1, 0.4, 0.2, 0.3]))


@pytest.mark.parametrize("junk", [NAN, INF, 1000.0, -INF, 0.5])
@each_library
def test_junk_under_a_prefix_that_is_never_reached_is_not_read(lib, junk):
    first, second = lib([-INF, 0.0]), lib([[junk, 0.0], [math.log(0.5)] * 2])
    lib.check(path_log_probs(first, second), [-INF, -INF, -math.log(2), -math.log(2)])


@each_library
def test_a_log_probability_too_small_for_exp_stays_what_it_is(lib):
    half = math.log(0.5)
    got = path_log_probs(lib([-800.0, 0.0]), lib([[half, half], [0.0, -900.0]]))
    lib.check(got, [-800 + half, -800 + half, 0, -900])


@each_torch
def test_the_gradients_of_path_log_probs_are_finite_beside_junk(lib):
    first = lib([-INF, 0.0]).requires_grad_()
    second = lib([[NAN, 1000.0], [math.log(0.5)] * 2]).requires_grad_()
    path_log_probs(first, second).sum().backward()
    assert first.grad.tolist() == [0, 2]
    assert second.grad.tolist() == [[0, 0], [1, 1]]


# --- the chain rule -----------------------------------------------------------------


@quick
@given(trees)
def test_the_chain_rule_is_the_sum_over_all_paths(both):
    right = by_enumeration(*both)
    for lib in LIBRARIES:
        for p, q in (both, map(with_junk, both)):
            p, q = list(map(lib, p)), list(map(lib, q))
            lib.check(tree_kl(p, q), right, 1e-5 if lib.dtype == "float32" else 0)
            if len(p) == 2:
                assert chain_rule_kl(*p, *q) == tree_kl(p, q)


@each_library
def test_the_small_tree_weights_with_p_and_not_with_q(lib):
    p, q = [list(map(lib, steps)) for steps in (P, Q)]
    first, far = [sum(a * math.log(2 * a) for a in row) for row in (P[0], FAR)]
    assert far == pytest.approx(0.5, abs=1e-6)
    lib.check(chain_rule_kl(*p, *q), first + 0.2 * far)
    lib.check(tree_kl(p, q), 0.292745, 1e-6)
    assert first + 0.5 * far == pytest.approx(0.442745, abs=1e-6)


FACTS = [
    (0, 1.211821, 1.150508, 0.206),
    (1, 1.559625, 1.622440, 0.313),
    (2, 1.345638, 1.449272, 0.366),
]


@pytest.mark.parametrize("seed, kl, q_weighted, miss", FACTS)
def test_ten_by_ten_trees_have_the_known_kl(seed, kl, q_weighted, miss):
    p, q = map(softmax_tree, seeded(seed))
    got = chain_rule_kl(*p, *q).item()
    every = [path_log_probs(*(step.log() for step in tree)) for tree in (p, q)]
    added = (every[0].exp() * (every[0] - every[1])).sum().item()
    tensors = [[step.detach().numpy() for step in tree] for tree in (p, q)]
    assert len(every[0]) == 100
    assert got == pytest.approx(kl, abs=5e-7)
    assert abs(added - got) <= 1e-12
    assert abs(by_enumeration(*tensors) - got) <= 1e-12
    conditional = (p[1] * (p[1] / q[1]).log()).sum(-1)
    first = (p[0] * (p[0] / q[0]).log()).sum()
    wrong = (first + (q[0] * conditional).sum()).item()
    assert wrong == pytest.approx(q_weighted, abs=5e-7)


@pytest.mark.parametrize("seed, kl, q_weighted, miss", FACTS)
def test_the_gradient_has_the_cross_term_that_per_token_losses_miss(
    seed, kl, q_weighted, miss
):
    z, reference = seeded(seed)
    p, q = softmax_tree(z), softmax_tree(reference)
    (full,) = torch.autograd.grad(tree_kl(p, q), z, retain_graph=True)
    # E_p[l s] over the 100 paths, without a derivative of tree_kl
    logp, logq = (path_log_probs(*(step.log() for step in tree)) for tree in (p, q))
    weight = (logp.exp() * (logp - logq)).detach()
    (right,) = torch.autograd.grad((weight * logp).sum(), z, retain_graph=True)
    assert torch.allclose(full, right, rtol=0, atol=1e-14)
    first = rao_blackwell_kl(p[0][None], q[0][None])
    second = rao_blackwell_kl(p[1][:, None], q[1][:, None])
    tokens = first + p[0].detach() @ second
    (per_token,) = torch.autograd.grad(tokens, z)
    assert tokens.item() == pytest.approx(kl, abs=5e-7)
    missed = (full - per_token).norm() / full.norm()
    assert missed.item() == pytest.approx(miss, abs=5e-4)


def test_the_gradient_on_the_small_tree():
    logits = torch.tensor(np.log(P[0]), requires_grad=True)
    second, q = torch.tensor(P[1], dtype=torch.float64), [torch.tensor(U).double()]
    q += [torch.full((2, 2), 0.5, dtype=torch.float64)]
    tree_kl([logits.softmax(-1), second], q).backward()
    per_token = 0.8 * 0.2 * math.log(0.8 / 0.2)  # p0 p1 (l0 - l1)
    cross = 0.8 * 0.2 * (0 - 0.5)
    assert per_token == pytest.approx(0.221807, abs=5e-7)
    assert per_token + cross == pytest.approx(0.141807, abs=5e-7)
    assert logits.grad[0].item() == pytest.approx(0.141807, abs=1e-6)
    assert logits.grad.sum().item() == pytest.approx(0, abs=1e-12)


@each_library
def test_what_p_reaches_and_q_cannot_is_infinite(lib):
    yes, no = lib([0.0, 1.0]), lib([1.0, 0.0])
    u, both = lib(U), lib([U, U])
    lib.check(tree_kl([u], [no]), INF)
    lib.check(tree_kl([u, both], [no, lib([U, [NAN, NAN]])]), INF)
    lib.check(tree_kl([u, both], [u, lib([U, [1, 0]])]), INF)
    # not where p does not go either, at the step or before it
    lib.check(tree_kl([no], [no]), 0)
    lib.check(tree_kl([no, lib([U, [NAN] * 2])], [u, lib([U, [1, 0]])]), math.log(2))
    lib.check(tree_kl([yes, both], [yes, lib([[NAN, 4], U])]), 0)


@each_library
def test_q_is_read_however_small_its_chance_of_the_prefix(lib):
    tiny = [1e-30, 1.0]
    p = [lib(np.broadcast_to(U, (2,) * t + (2,)).copy()) for t in range(12)]
    q = [lib(np.broadcast_to(tiny, (2,) * t + (2,)).copy()) for t in range(12)]
    each = -math.log(2) - 0.5 * math.log(1e-30)
    lib.check(tree_kl(p, q) / 12, each, 1e-6)


@each_torch
def test_gradients_are_finite_at_the_edges(lib):
    p = [lib([1.0, 0.0]).requires_grad_(), lib([[0, 1], [NAN, 9]]).requires_grad_()]
    q = [lib([0.5, 0.5]).requires_grad_(), lib([[0, 1], [1, 0]]).requires_grad_()]
    tree_kl(p, q).backward()
    assert all(torch.isfinite(step.grad).all() for step in p + q)
    lib.check(p[0].grad, [1 + math.log(2), 0])
    lib.check(q[0].grad, [-2, 0])
    lib.check(q[1].grad, [[0, -1], [0, 0]])


# --- Rao-Blackwell ------------------------------------------------------------------


square = st.tuples(st.integers(2, 3), st.integers(1, 4), st.integers(0, 2**31))


@quick
@given(square, st.sampled_from([0, 0.3]))
def test_its_mean_over_the_paths_of_p_is_the_kl_of_the_paths(size, holes):
    width, depth, seed = size
    rng = np.random.default_rng(seed)
    p, q = (random_tree(rng, [width] * depth, hole) for hole in (holes, 0))
    taken = [path for path in paths(p) if chance(p, path) > 0]
    visited = [
        np.array([[step[path[:t]] for t, step in enumerate(steps)] for path in taken])
        for steps in (p, q)
    ]
    weights = np.array([chance(p, path) for path in taken])
    for lib in LIBRARIES:
        got = rao_blackwell_kl(*map(lib, visited))
        assert got.shape == (len(taken),)
        right = by_enumeration(p, q)
        slack = 1e-5 if lib.dtype == "float32" else 1e-12
        assert plain(got) @ weights == pytest.approx(right, abs=slack)
        assert (plain(got) >= -slack).all()


@each_library
def test_it_adds_over_steps_and_keeps_the_axes_before(lib):
    p = lib([[[0.8, 0.2], U, [0.0, 1.0]], [U, U, U]])
    got = rao_blackwell_kl(p, lib([[U] * 3] * 2))
    first = 0.8 * math.log(1.6) + 0.2 * math.log(0.4)
    lib.check(got, [first + math.log(2), 0])
    lib.check(rao_blackwell_kl(p[0], lib([U] * 3)), first + math.log(2))
    lib.check(
        rao_blackwell_kl(p[:1, None], lib([[[U] * 3]])).sum(), first + math.log(2)
    )
    assert rao_blackwell_kl(p[:1, None], lib([[[U] * 3]])).shape == (1, 1)
    lib.check(rao_blackwell_kl(lib([U, U]), lib([U, [1, 0]])), INF)


# --- importance weights and path ratios -----------------------------------------------


rows = st.lists(st.floats(0.01, 1), min_size=4, max_size=4)
rows = rows.map(lambda row: np.array(row) / sum(row))


@quick
@given(rows, rows, st.lists(st.floats(-5, 5), min_size=4, max_size=4))
def test_weighted_means_under_o_are_means_under_p(p, o, f):
    for lib in LIBRARIES:
        got = importance_weights(lib(np.log(p)), lib(np.log(o)))
        lib.check(got, p / o, 1e-5 if lib.dtype == "float32" else 0)
        assert o @ plain(got) == pytest.approx(1, abs=1e-5)
        assert o @ (plain(got) * f) == pytest.approx(p @ f, abs=1e-4)


@each_library
def test_weights_broadcast_and_are_zero_where_p_is(lib):
    got = importance_weights(lib([[-INF], [-1.0]]), lib([-1.0, -2.0, -3.0]))
    lib.check(got, [[0, 0, 0], [1, math.e, math.e**2]])


@pytest.mark.parametrize(
    "logp, log_old, message",
    [
        (-1.0, -INF, r"log_old\[1\] is -inf; allowed: finite: it was sampled"),
        (-INF, -INF, r"log_old\[1\] is -inf; allowed: finite"),
        (-1.0, NAN, r"log_old\[1\] is nan; allowed: at most 0"),
        (-1.0, 0.5, r"log_old\[1\] is 0\.5; allowed: at most 0"),
        (NAN, -1.0, r"logp\[1\] is nan; allowed: log-probabilities"),
        (0.5, -1.0, r"logp\[1\] is 0\.5; allowed: log-probabilities"),
        (-1.0, -801.0, r"logp - log_old\[1\] is 800; allowed: at most (88|709)"),
    ],
)
@each_library
def test_weights_that_mean_nothing_are_refused(lib, logp, log_old, message):
    with pytest.raises(ValueError, match=message):
        importance_weights(lib([-1.0, logp]), lib([-1.0, log_old]))


@each_library
def test_weights_are_finite_up_to_the_limit_of_the_dtype(lib):
    largest = 88 if lib.dtype == "float32" else 709
    got = importance_weights(lib([0.0]), lib([-float(largest)]))
    assert float(got[0]) == pytest.approx(math.exp(largest), rel=1e-5)
    with pytest.raises(ValueError, match=rf"is {largest + 1}; .*at most {largest}"):
        importance_weights(lib([0.0]), lib([-largest - 1.0]))


@each_library
def test_a_path_ratio_is_the_product_of_its_tokens_ratios(lib):
    lib.check(path_ratio(lib([1.1] * 10)), 2.593742, 1e-6)
    lib.check(path_ratio(lib([1.1] * 10)), math.exp(math.fsum([math.log(1.1)] * 10)))
    lib.check(path_ratio(lib([[2.0, 3.0, 0.5], [1.0, 1.0, 4.0]])), [3, 4])
    p, o = np.array([0.9, 0.4]), np.array([0.3, 0.8])
    tokens = importance_weights(lib(np.log(p)), lib(np.log(o)))
    whole = importance_weights(lib(np.log(p).sum()), lib(np.log(o).sum()))
    lib.check(path_ratio(tokens), plain(whole))


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, INF])
@each_library
def test_a_token_ratio_is_above_zero_and_finite(lib, bad):
    message = r"token_ratios\[0, 1\] is .*; allowed: (numbers > 0|finite numbers)"
    with pytest.raises(ValueError, match=message):
        path_ratio(lib([[1.0, bad]]))
    with pytest.raises(ValueError, match="token_ratios is one number; allowed: an axi"):
        path_ratio(lib(1.0))


# --- arguments ------------------------------------------------------------------------


BAD_TREES = [
    ([U], [], "q_steps is 0 steps; allowed: 1, as p_steps"),
    ([], [U], "p_steps is empty; allowed: at least one step"),
    ([], [], "p_steps is empty; allowed: at least one step"),
    ([U, [U, U]], [U], "q_steps is 1 steps; allowed: 2"),
    ([[0.5, 0.6]], [U], r"the sum of p_steps\[0\] is 1\.1; allowed: 1"),
    ([U, [U, [0.5, 0.4]]], [U, [U, U]], r"sum of p_steps\[1\]\[1\] is 0\.9"),
    ([U, [U, U]], [U, [[0.5, 0.4], U]], r"sum of q_steps\[1\]\[0\] is 0\.9"),
    ([U, [U, [NAN, 1]]], [U, [U, U]], r"p_steps\[1\]\[1, 0\] is nan; allowed: prob"),
    ([U, [U, U]], [U, [U, [-1, 2]]], r"q_steps\[1\]\[1, 0\] is -1; allowed: prob"),
    (U, U, r"p_steps\[0\] is of shape \(\); allowed: \(\) \+ \(V,\)"),
    ([[U, U]], [[U, U]], r"p_steps\[0\] is of shape \(2, 2\); allowed: \(\) "),
    ([U, U], [U, [U, U]], r"p_steps\[1\] is of shape \(2,\); allowed: \(2,\) "),
    ([U, [U] * 3], [U, [U] * 2], r"p_steps\[1\] is of shape \(3, 2\); allowed: \(2,"),
    ([U, [U]], [U, [U]], r"p_steps\[1\] is of shape \(1, 2\); allowed: \(2,\) "),
    ([U], [[0.2, 0.3, 0.5]], r"q_steps\[0\] is of shape \(3,\); allowed: \(2,\)"),
    ([U], [[1.0]], r"q_steps\[0\] is of shape \(1,\); allowed: \(2,\)"),
    ([U, [U] * 2], [U, [[1.0]] * 2], r"q_steps\[1\] is of shape \(2, 1\); allowed: "),
    ([U, np.ones((2, 0))], [U, [U] * 2], r"p_steps\[1\] is empty, shape \(2, 0\)"),
]


@pytest.mark.parametrize("p, q, message", BAD_TREES)
@each_library
def test_what_is_no_tree_is_refused(lib, p, q, message):
    with pytest.raises(ValueError, match=message):
        tree_kl(list(map(lib, p)), list(map(lib, q)))
    if len(p) == len(q) == 2 and message[0] != "p":
        with pytest.raises(ValueError, match=message):
            chain_rule_kl(*map(lib, [*p, *q]))


def test_a_deep_prefix_is_named():
    p, _ = [random_tree(np.random.default_rng(1), [2, 3, 4], 0) for _ in "pq"]
    q = [step.copy() for step in p]
    q[2][1, 2] *= 2
    with pytest.raises(ValueError, match=r"sum of q_steps\[2\]\[1, 2\] is 2; allowed"):
        tree_kl(p, q)
    with pytest.raises(ValueError, match=r"sum of later\[1\]\[1, 2\] is 2; allowed"):
        path_log_probs(*logs(q))


BAD_LOGS = [
    ([U], "the sum of first is 3.29"),  # probabilities by mistake
    ([[1000.0, -1.0]], "the sum of first is"),
    ([[NAN, 0.0]], r"first\[0\] is nan; allowed: prob"),
    ([np.log(U), np.log([U, [0.5, 0.4]])], r"the sum of later\[0\]\[1\] is 0\.9"),
    ([np.log(U), np.log([U] * 3)], r"later\[0\] is of shape \(3, 2\); allowed: \(2,"),
    ([0.0], r"first is of shape \(\); allowed: \(\) \+ \(V,\)"),
    ([np.log([U, U])], r"first is of shape \(2, 2\); allowed: \(\) \+ \(V,\)"),
    ([[]], r"first is empty, shape \(0,\)"),
]


@pytest.mark.parametrize("steps, message", BAD_LOGS)
@each_library
def test_what_are_no_log_probabilities_of_steps_is_refused(lib, steps, message):
    with pytest.raises(ValueError, match=message):
        path_log_probs(*map(lib, steps))


@pytest.mark.parametrize(
    "p, q, message",
    [
        (U, U, r"p_steps is of shape \(2,\); allowed: \(\.\.\., T, V\)"),
        ([U, [0.5, 0.4]], [U, U], r"the sum of p\[1\] is 0\.9; allowed: 1"),
        ([U, U], [U, [NAN, 1.0]], r"q\[1, 0\] is nan; allowed: prob"),
        ([U, U], [U, U, U], r"shapes do not fit together: p \(2, 2\), q \(3, 2\)"),
        ([U, U], [[1.0], [1.0]], r"q is over 1 outcomes; allowed: 2"),
    ],
)
@each_library
def test_steps_that_are_no_distributions_are_refused(lib, p, q, message):
    with pytest.raises(ValueError, match=message):
        rao_blackwell_kl(lib(p), lib(q))


def test_libraries_are_not_mixed():
    mine, other = np.array(U), torch.tensor(U)
    both = np.array([U, U])
    message = "{} is a torch tensor and {} a NumPy array; allowed: both from one"
    for call, names in [
        (lambda: tree_kl([mine], [other]), (r"q_steps\[0\]", r"p_steps\[0\]")),
        (
            lambda: tree_kl([mine, both], [other, other]),
            (r"q_steps\[0\]", r"p_steps\[0\]"),
        ),
        (lambda: path_log_probs(mine, other), (r"later\[0\]", "first")),
        (lambda: rao_blackwell_kl(other, mine), ("p_steps", "q_steps")),
        (lambda: importance_weights(mine, other), ("log_old", "logp")),
    ]:
        with pytest.raises(ValueError, match=message.format(*names)):
            call()


def test_lists_and_two_widths_of_float_go_with_the_wider():
    assert tree_kl(P, Q) == pytest.approx(0.292745, abs=1e-6)
    assert rao_blackwell_kl([U], [U]) == 0
    for xp in (np, torch):
        p = [xp.asarray(step, dtype=xp.float32) for step in Q]
        got = tree_kl(p, [xp.asarray(step, dtype=xp.float64) for step in Q])
        assert str(got.dtype).endswith("float64")
        assert got == 0
        with pytest.raises(ValueError, match=r"q_steps\[0\] is of dtype float16"):
            tree_kl(p[:1], [xp.asarray(U, dtype=xp.float16)])


@each_library
def test_arguments_stay_as_they_were(lib):
    ones, odd = lib([1.0, 0.0]), lib([U, [NAN, 7.0]])
    log_p = [lib([0.0, -INF]), lib([[0.0, -INF], [NAN, 7.0]])]
    ratios = lib([[1.1, 0.5]])
    given = [ones, odd, *log_p, ratios]
    before = [plain(x).copy() for x in given]
    tree_kl([ones, odd], [ones, odd])
    path_log_probs(*log_p)
    rao_blackwell_kl(odd[:1], odd[:1])
    importance_weights(lib([-1.0]), lib([-2.0]))
    importance_weights(log_p[0], log_p[1][0, :1])
    path_ratio(ratios)
    for x, old in zip(given, before, strict=True):
        np.testing.assert_array_equal(plain(x), old)


def test_the_module_needs_no_torch():
    code = "import sys; from rlnb import trajectories as t; import numpy as np; "
    code += "t.chain_rule_kl([1, 0], np.eye(2), [1, 0], np.eye(2)); "
    code += "t.path_log_probs([0.0]); t.path_ratio([1.0]); "
    code += "print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"
