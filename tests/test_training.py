"""The training run: its mathematics, and what a user of rlnb.training sees."""

import copy
import math
import sys
import time
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from libraries import quick
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from rlnb import advantages, kl
from rlnb.training import (
    TrainConfig,
    checks,
    digest,
    evaluate,
    freeze_reference,
    loop,
    plain,
    processes,
    run,
    sweep,
    train,
    warm_up,
)
from rlnb.training.evaluation import chain_rule, enumerated
from rlnb.training.policy import Policy
from rlnb.training.task import addition, strict_reward
from rlnb.trajectories import path_log_probs, tree_kl

pytestmark = pytest.mark.filterwarnings("error")
INF, NAN = math.inf, math.nan
SMALL = {
    "warmup": 0, "prompts": 8, "updates": 10, "batch": 8, "samples_per_prompt": 4,
    "evaluate_every": 5, "learning_rate": 3e-3,
}  # fmt: skip
BETAS = 0.0, 0.1, 1.0
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an NVIDIA GPU; there is none here"
)


def small(**settings):
    return TrainConfig(**{**SMALL, **settings})


@pytest.fixture(scope="module")
def start():
    """A policy that is right now and then; no test may change it."""
    policy = warm_up(small(warmup=100))
    before = digest(policy)
    yield policy
    assert digest(policy) == before


def setup(start, config):
    """A policy to train, its reference, and the prompts and answers trained on."""
    policy = copy.deepcopy(start).requires_grad_(True)
    task = addition(config.start_seed)
    index = task.groups(config.prompts)["trained"]
    known = task.prompts[index], task.answers[index]
    return policy, freeze_reference(policy), *known


def shaken(policy, size=0.05, seed=0):
    """A copy whose weights are off by random amounts."""
    other, rng = copy.deepcopy(policy), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for x in other.parameters():
            x += size * torch.randn(x.shape, generator=rng, dtype=x.dtype)
    return other


def apart(one, other):
    """The largest difference between two modules' parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def random_logs(seed, prompts=1):
    """log p, log q: (prompts, 100) each, and rewards of one right answer each."""
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.normal(0, 2, (2, prompts, 100))).log_softmax(-1)
    right = torch.from_numpy(rng.integers(100, size=prompts))
    return z[0], z[1], strict_reward(right)


def only_failure(result, word):
    """Has one check failed, and is it the one that speaks of `word`?"""
    (failed,) = [check.says for check in result.checks if not check.ok]
    return not result.ok and word in failed


class Dropped(Policy):
    """A policy with dropout inside."""

    def __init__(self, rate=0.5):
        super().__init__()
        self.trunk.append(nn.Dropout(rate))


def dropped(start):
    policy = Dropped().to(torch.float64)
    policy.load_state_dict(start.state_dict())
    return policy


# --- the task ---------------------------------------------------------------------


def test_the_task_is_every_sum_and_its_halves_are_disjoint_and_complete():
    task = addition(3)
    asked = {tuple(prompt) for prompt in task.prompts.tolist()}
    assert asked == {(a, b) for a in range(50) for b in range(50)}
    assert task.answers.tolist() == [a + b for a, b in task.prompts.tolist()]
    halves = task.train.tolist(), task.held_out.tolist()
    assert len(halves[0]) == len(halves[1]) == 1250
    assert sorted(halves[0] + halves[1]) == list(range(2500))
    assert not torch.equal(task.train, addition(4).train)
    assert torch.equal(task.train, addition(3).train)


@pytest.mark.parametrize("count", [1, 32, 1250])
def test_groups_are_what_is_trained_the_rest_of_that_half_and_the_other(count):
    task = addition()
    groups = task.groups(count)
    assert len(groups["trained"]) == count
    assert all(len(index) for index in groups.values())
    assert ("other train" in groups) == (count < 1250)
    assert sorted(torch.cat([*groups.values()]).tolist()) == list(range(2500))


def test_only_the_right_tens_and_units_are_rewarded():
    task = addition()
    rewards = strict_reward(task.answers).view(-1, 10, 10)
    for (a, b), table in zip(task.prompts.tolist(), rewards.tolist(), strict=True):
        tens, units = divmod(a + b, 10)
        assert table[tens][units] == 1
        assert sum(map(sum, table)) == 1
    assert strict_reward(task.answers, torch.float32).dtype == torch.float32


# --- the policy -------------------------------------------------------------------


def test_one_step_at_a_time_gives_what_forward_gives(start):
    prompts = addition().prompts[::97]
    tens, units = start(prompts)
    h = start.read(prompts)
    torch.testing.assert_close(start.log_tens(h), tens, rtol=0, atol=1e-14)
    for digit in range(10):
        given = torch.full((len(prompts),), digit)
        one = start.log_units(h, given)
        torch.testing.assert_close(one, units[:, digit], rtol=0, atol=1e-14)


def test_log_probs_are_those_of_the_paths_of_each_prompts_tree(start):
    prompts = addition().prompts[::211]
    got = start.log_probs(prompts)
    for row, tens, units in zip(got, *start(prompts), strict=True):
        torch.testing.assert_close(row, path_log_probs(tens, units), rtol=0, atol=1e-14)
    torch.testing.assert_close(got.exp().sum(1), torch.ones(len(prompts)).double())


def test_both_numbers_and_both_their_digits_are_read(start):
    asked = torch.tensor([[12, 34], [34, 12], [21, 34], [12, 43], [12, 35], [22, 34]])
    got = start.log_probs(asked)
    assert min(torch.pdist(got)) > 0.1


def test_a_warm_up_is_the_same_each_time_and_another_with_another_seed():
    one, two = (warm_up(small(warmup=3)) for _ in range(2))
    assert digest(one) == digest(two)
    assert len({digest(warm_up(small(warmup=n, start_seed=s)))
                for n in (0, 3) for s in (0, 1)}) == 4  # fmt: skip
    # whatever the run's own settings are
    other = small(warmup=3, dtype="float32", seed=9, beta=1.0, prompts=3)
    assert digest(warm_up(other)) == digest(one)
    rounded = torch.cat([x.reshape(-1) for x in one.parameters()]) * 2.0**20
    assert torch.equal(rounded, rounded.round())


def test_a_run_has_its_own_number_of_threads_and_leaves_torchs_alone(start):
    usual, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        for threads in (1, 2):
            config = small(updates=5, threads=threads)
            train(
                config,
                start=start,
                watch=lambda _: seen.append(torch.get_num_threads()),
            )
        assert (seen, torch.get_num_threads()) == ([1, 2], 2)
    finally:
        torch.set_num_threads(usual)


def test_a_warm_up_has_the_same_bits_with_two_threads():
    one, threads = warm_up(small(warmup=10)), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        two = warm_up(small(warmup=10))
    finally:
        torch.set_num_threads(threads)
    assert digest(one) == digest(two)


def test_a_warm_up_teaches(start):
    task = addition()
    raw = warm_up(small())
    rewards = [
        evaluate(policy, policy, task.prompts, task.answers).means(task.train)["reward"]
        for policy in (raw, start)
    ]
    assert rewards[0] == pytest.approx(0.01, abs=0.01)
    assert rewards[1] > 10 * rewards[0]


def test_a_warm_up_does_not_touch_the_users_random_numbers():
    before = torch.get_rng_state()
    warm_up(small())
    assert torch.equal(before, torch.get_rng_state())


# --- the reference, and fingerprints ------------------------------------------------


def test_a_reference_is_a_frozen_copy(start):
    policy = copy.deepcopy(start).train()
    reference = freeze_reference(policy)
    assert digest(reference) == digest(policy)
    assert policy.training
    assert not any(module.training for module in reference.modules())
    assert not any(x.requires_grad for x in reference.parameters())
    assert all(x.requires_grad for x in policy.parameters())
    kept = copy.deepcopy(reference.state_dict())
    with torch.no_grad():
        for x in policy.parameters():
            x += 1
    for name, x in reference.state_dict().items():  # case 23
        assert torch.equal(x, kept[name])


class Alone(nn.Module):
    """A module whose copy is itself, as a handle to a server may be."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def __deepcopy__(self, memo):
        return self


def test_a_copy_that_is_no_copy_is_refused():
    with pytest.raises(ValueError, match=r"reference.inner.weight shares memory with "
                                         r"policy.inner.weight.*allowed: a copy"):  # fmt: skip
        freeze_reference(Alone())
    for thing in ("a name", {}, None):
        with pytest.raises(ValueError, match="policy is a .*; allowed: a torch.nn.Mod"):
            freeze_reference(thing)


def test_a_policy_is_not_trained_against_itself(start):
    policy, reference, *known = setup(start, small())
    with pytest.raises(ValueError, match="shares memory"):
        loop.Updater(policy, policy, *known, small())
    with pytest.raises(ValueError, match="reference is a NoneType; allowed"):
        loop.Updater(policy, None, *known, small())
    policy.mix.weight = nn.Parameter(reference.units.weight[:1, :].view(1, -1))
    with pytest.raises(
        ValueError, match="reference.units.weight shares memory with policy.mix.weight"
    ):
        loop.Updater(policy, reference, *known, small())


def test_a_digest_sees_one_bit_of_one_weight(start):
    right = digest(start)
    assert digest(copy.deepcopy(start)) == right
    rng = np.random.default_rng(0)
    for name, _ in start.named_parameters():
        other = copy.deepcopy(start)
        weight = other.get_parameter(name).data.view(-1).view(torch.int64)
        weight[rng.integers(len(weight))] ^= 1 << int(rng.integers(63))
        assert digest(other) != right, name


def test_a_digest_sees_names_shapes_and_dtypes():
    x = torch.arange(6).double()

    def of(**named):
        return digest(nn.ParameterDict(named))

    kinds = [
        of(a=x), of(b=x), of(a=x.view(2, 3)), of(a=x.view(3, 2)), of(a=x, b=x),
        of(a=x[:3], b=x[3:]), of(a=x.float()), of(a=x.bfloat16()), of(a=x.half()),
        of(a=x.view(torch.float32)), of(a=x.flip(0)), of(a=x[2]), of(),
    ]  # fmt: skip
    assert len(set(kinds)) == len(kinds)
    assert of(a=x) == of(a=torch.stack([x, x], 1)[:, 0])  # strides do not count
    assert len(of()) == 64


def test_a_digest_sees_buffers():
    bare, full = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    full.running_mean += 1
    assert digest(bare) != digest(full)


# --- exact evaluation ---------------------------------------------------------------


def test_evaluation_agrees_with_sums_over_answers_one_by_one(start):
    task, other = addition(), shaken(start)
    index = task.held_out[:40]
    prompts, answers = task.prompts[index], task.answers[index]
    got = evaluate(other, start, prompts, answers)
    p, q = (x.log_probs(prompts).exp().tolist() for x in (other, start))
    for n in range(len(index)):
        tens, units = divmod(sum(prompts[n].tolist()), 10)
        pairs = zip(p[n], q[n], strict=True)
        terms = [a * (math.log(a) - math.log(b)) for a, b in pairs]
        spread = -math.fsum(a * math.log(a) for a in p[n])
        assert got.reward[n].item() == pytest.approx(p[n][10 * tens + units], abs=1e-14)
        assert got.kl[n].item() == pytest.approx(math.fsum(terms), abs=1e-12)
        assert got.entropy[n].item() == pytest.approx(spread, abs=1e-12)
    p, q = (torch.tensor(x, dtype=torch.float64) for x in (p, q))
    torch.testing.assert_close(got.kl, kl.kl_divergence(p, q), rtol=0, atol=1e-12)
    torch.testing.assert_close(got.entropy, kl.entropy(p), rtol=0, atol=1e-12)
    assert (got.mass - 1).abs().max() < 1e-13
    assert got.kl.min() > 0


def test_kl_by_enumeration_chain_rule_and_tree_agree(start):
    task, other = addition(), shaken(start, 0.2)
    prompts, answers = task.prompts[::50], task.answers[::50]
    got = evaluate(other, start, prompts, answers).kl
    by_steps = chain_rule(other, start, prompts)
    torch.testing.assert_close(got, by_steps, rtol=0, atol=1e-12)
    with torch.no_grad():
        p, q = ([x.exp() for x in policy(prompts)] for policy in (other, start))
    trees = zip(*p, *q, got, strict=True)
    for p_tens, p_units, q_tens, q_units, enumerated_kl in trees:
        right = tree_kl([p_tens, p_units], [q_tens, q_units])
        assert enumerated_kl.item() == pytest.approx(right.item(), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_kl_to_a_fresh_reference_is_exactly_0(start, dtype):  # case 24
    task, policy = addition(), copy.deepcopy(start).to(dtype)
    got = evaluate(policy, freeze_reference(policy), task.prompts, task.answers)
    assert torch.equal(got.kl, torch.zeros(2500, dtype=dtype))
    assert digest(policy) == digest(freeze_reference(policy))


def test_means_are_over_the_prompts_asked_for(start):
    task = addition()
    got = evaluate(shaken(start), start, task.prompts, task.answers)
    for index in (task.train, task.held_out[:3]):
        means = got.means(index)
        for name, mean in means.items():
            every = getattr(got, name)[index].tolist()
            assert mean == pytest.approx(math.fsum(every) / len(every), abs=1e-12)
        assert set(means) == {"reward", "kl", "entropy"}
    assert got.means()["kl"] == pytest.approx(got.kl.mean().item())


@pytest.mark.parametrize("mode", [True, False])
def test_evaluation_switches_dropout_off_and_puts_the_mode_back(start, mode):
    task, policy = addition(), dropped(start).train(mode)
    before = digest(policy)
    got = evaluate(policy, policy, task.prompts, task.answers)
    right = evaluate(start, start, task.prompts, task.answers)
    assert torch.equal(got.reward, right.reward)
    assert all(module.training == mode for module in policy.modules())
    assert digest(policy) == before
    assert not got.reward.requires_grad


def test_the_mode_is_put_back_when_evaluation_fails(start):
    policy = dropped(start).train()
    policy.log_probs = None
    with pytest.raises(TypeError):
        evaluate(policy, start, torch.tensor([[1, 2]]), torch.tensor([3]))
    assert policy.training
    assert policy.trunk[-1].training


def test_evaluation_leaves_the_mode_of_each_part_as_it_was(start):
    policy = dropped(start).train()
    policy.trunk.eval()
    evaluate(policy, start, torch.tensor([[1, 2]]), torch.tensor([3]))
    assert policy.training
    assert not policy.trunk[-1].training


two = torch.tensor([[1, 2], [3, 4]])
BAD_EVALUATIONS = [
    (two[0], [3, 7], r"prompts is of shape \(2,\); allowed: \(N, 2\)"),
    (two[:, :1], [3, 7], r"prompts is of shape \(2, 1\); allowed: \(N, 2\)"),
    (two[:0], [], r"prompts is of shape \(0, 2\); allowed: .*N at least 1"),
    (two, [3], r"answers is of shape \(1,\); allowed: \(2,\)"),
    (two, [[3], [7]], r"answers is of shape \(2, 1\); allowed: \(2,\)"),
    (two, [3, 100], "answers is from 3 to 100; allowed: integers from 0 to 99"),
    (two, [-1, 3], "answers is from -1 to 3; allowed: integers from 0 to 99"),
]


@pytest.mark.parametrize("prompts, answers, message", BAD_EVALUATIONS)
def test_what_cannot_be_evaluated_is_refused(start, prompts, answers, message):
    with pytest.raises(ValueError, match=message):
        evaluate(start, start, prompts, torch.tensor(answers, dtype=torch.long))


# --- noise and samples ----------------------------------------------------------------


def test_noise_depends_on_seed_and_update_alone():
    rows, uniforms = loop.noise(3, 5, 20, 6, 4)
    torch.manual_seed(1)
    np.random.seed(1)
    loop.noise(9, 9, 20, 6, 4)
    again = loop.noise(3, 5, 20, 6, 4)
    assert torch.equal(rows, again[0])
    assert torch.equal(uniforms, again[1])
    assert rows.shape == (6,)
    assert uniforms.shape == (6, 4)
    assert uniforms.dtype == torch.float64
    keys = [(s, k) for s in range(10) for k in range(10)]
    assert len({loop.noise(*key, 20, 6, 4)[1][0, 0].item() for key in keys}) == 100


def test_noise_is_uniform_over_prompts_and_over_0_to_1():
    rows, uniforms = loop.noise(0, 0, 5, 20_000, 3)
    assert 0 <= uniforms.min() <= uniforms.max() < 1
    shares = rows.bincount(minlength=5) / len(rows)
    assert shares.numel() == 5
    assert (shares - 0.2).abs().max() < 0.015
    tenths = (10 * uniforms).long().flatten().bincount(minlength=10) / uniforms.numel()
    assert (tenths - 0.1).abs().max() < 0.008


def test_an_answer_is_sampled_as_often_as_its_probability_says(start):
    logp = start.log_probs(addition().prompts[:3]).detach()
    n = 100_000
    grid = (torch.arange(n).double() + 0.5) / n
    rows = torch.tensor([2, 0, 1])
    got = loop.sample(logp, rows, grid.repeat(3, 1))
    for row, answers in zip(rows, got, strict=True):
        share = answers.bincount(minlength=100) / n
        assert (share - logp[row].exp()).abs().max() <= 1.001 / n


def test_the_ends_of_0_to_1_are_answers_too():
    logp = torch.full((1, 100), 0.01, dtype=torch.float32).log()
    uniforms = torch.tensor([[0.0, 1 - 2**-24, 1.0]])
    assert loop.sample(logp, torch.tensor([0]), uniforms).tolist() == [[0, 99, 99]]
    sure = torch.full((1, 100), -INF).index_fill(1, torch.tensor([7]), 0.0)
    uniforms = torch.tensor([[0.0, 0.5, 1 - 2**-24]])
    assert loop.sample(sure, torch.tensor([0]), uniforms).tolist() == [[7, 7, 7]]


def test_both_samplers_take_the_same_answers(start):
    prompts = addition().prompts[:40]
    rows, uniforms = loop.noise(0, 0, 40, 40, 25)
    logp = start.log_probs(prompts).detach()
    fast = loop.sample(logp, rows, uniforms)
    asked = prompts[rows].repeat_interleave(25, 0)
    tens, units = plain.sample(start, asked, uniforms.flatten())
    assert torch.equal(fast.flatten(), 10 * tens + units)


# --- the gradient -----------------------------------------------------------------------


@quick
@given(st.integers(0, 2**31), st.floats(0, 5), st.integers(2, 9))
def test_sampled_weights_are_the_advantages_put_where_the_answers_are(seed, beta, k):
    logp, logq, reward = random_logs(seed, prompts=5)
    rows, uniforms = loop.noise(seed, 1, 5, 7, k)
    got, mean_reward, mean_away = loop.sampled_weights(
        logp, logq, reward, beta, rows, uniforms, total=7 * k
    )
    ends = logp.exp().cumsum(1)[rows]
    answers = (uniforms[:, :, None] >= ends[:, None, :]).sum(-1).clamp(max=99)
    taken = rows[:, None], answers
    away = kl.log_ratio(logp[taken], logq[taken])
    worth = kl.shaped_reward(reward[taken], away, beta)
    advantage = advantages.leave_one_out(worth)
    right = torch.zeros(5, 100).double()
    for b in range(7):
        for s in range(k):
            right[rows[b], answers[b, s]] += advantage[b, s] / (7 * k)
    torch.testing.assert_close(got, right, rtol=0, atol=1e-13)
    assert mean_reward.item() == pytest.approx(reward[taken].mean().item())
    assert mean_away.item() == pytest.approx(away.mean().item())
    assert got.sum().item() == pytest.approx(0, abs=1e-12)


@quick
@given(st.integers(0, 2**31), st.integers(2, 12))
def test_leave_one_out_is_that_of_the_series(seed, k):
    worth = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (4, k)))
    right = advantages.leave_one_out(worth)
    torch.testing.assert_close(loop.leave_one_out(worth), right, rtol=0, atol=1e-13)


def test_leave_one_out_of_three_right_of_eight():  # case 33
    got = loop.leave_one_out(torch.tensor([1.0] * 3 + [0.0] * 5).double())
    assert got[0].item() == pytest.approx(5 / 7)
    assert got[-1].item() == pytest.approx(-3 / 7)


@pytest.mark.parametrize("k", range(2, 12))
def test_equal_samples_leave_exactly_0(k):  # case 31
    for value in (0.1, 1 / 3, 0.937):
        worth = torch.full((2, k), value, dtype=torch.float32)
        assert loop.leave_one_out(worth).tolist() == [[0.0] * k] * 2


def test_prompts_are_compared_with_themselves_only():  # case 30
    worth = torch.tensor([[10.0, 12.0], [0.0, 2.0]])
    assert loop.leave_one_out(worth).tolist() == [[-2, 2], [-2, 2]]


@pytest.mark.parametrize("beta", [0, 0.03, 0.1, 1, 10])
@pytest.mark.parametrize("seed", range(3))
def test_sampled_weights_are_the_exact_ones_on_average(beta, seed):
    logp, logq, reward = random_logs(seed)
    sampled = checks.expected_weights(logp, logq, reward, beta)
    exact, _, _ = loop.exact_weights(logp, logq, reward, beta, total=1)
    torch.testing.assert_close(sampled, exact[0], rtol=0, atol=1e-13 * max(1, beta))
    assert exact.abs().max() > 1e-6


def test_exact_weights_are_the_gradient_in_the_log_probabilities():
    logp, logq, reward = random_logs(0, prompts=4)
    logits = logp.clone().requires_grad_()  # log_softmax of log p is log p
    p = logits.softmax(-1)
    kl.regularized_objective(p, logq.exp(), reward, 0.3).mean().backward()
    weights, got, far = loop.exact_weights(logp, logq, reward, 0.3, total=4)
    torch.testing.assert_close(weights, logits.grad, rtol=0, atol=1e-14)
    torch.testing.assert_close(got, (logp.exp() * reward).sum(-1).mean())
    torch.testing.assert_close(far, kl.kl_divergence(logp.exp(), logq.exp()).mean())


@pytest.mark.parametrize("beta", BETAS)
def test_the_exact_step_has_autograds_gradient_of_the_objective(start, beta):
    config = small(gradient="exact", beta=beta)
    policy, reference, *known = setup(start, config)
    policy = shaken(policy)
    twin = copy.deepcopy(policy)
    loop.Updater(policy, reference, *known, config).step()
    p, q = (x.log_probs(known[0]).exp() for x in (twin, reference))
    reward = strict_reward(known[1])
    objective = kl.regularized_objective(p, q, reward, beta).mean()
    right = torch.autograd.grad(objective, list(twin.parameters()))
    for x, grad in zip(policy.parameters(), right, strict=True):
        torch.testing.assert_close(-x.grad, grad, rtol=0, atol=1e-14)
    assert max(grad.abs().max() for grad in right) > 1e-4


@pytest.mark.parametrize("beta", BETAS)
def test_one_small_exact_step_raises_the_objective(start, beta):
    config = small(gradient="exact", beta=beta, learning_rate=1e-6)
    policy, reference, prompts, answers = setup(start, config)
    policy = shaken(policy, 0.02)

    def objective():
        got = evaluate(policy, reference, prompts, answers).means()
        return got["reward"] - beta * got["kl"]

    before = objective()
    loop.Updater(policy, reference, prompts, answers, config).step()
    assert objective() > before + 1e-9


def test_the_exact_gradient_lowers_the_kl_that_a_large_beta_forbids(start):
    config = small(gradient="exact", beta=100.0, updates=30, learning_rate=1e-3)
    policy, reference, *known = setup(start, config)
    with torch.no_grad():
        for x, off in zip(
            policy.parameters(), shaken(policy).parameters(), strict=True
        ):
            x.copy_(off)
    before = evaluate(policy, reference, *known).means()["kl"]
    updater = loop.Updater(policy, reference, *known, config)
    for k in range(config.updates):
        updater.update(k)
    assert evaluate(policy, reference, *known).means()["kl"] < before / 5


# --- the loop against the plain one -------------------------------------------------------


def updated(start, config):
    """(policy, figures of its batches) after the loop's updates, and nothing else."""
    policy, reference, *known = setup(start, config)
    updater = loop.Updater(policy, reference, *known, config)
    return policy, [updater.update(k) for k in range(config.updates)]


def off_plain(start, config):
    """How far the loop's policy ends from the plainly trained one."""
    policy, reference, *known = setup(start, config)
    right = list(plain.train_plainly(policy, reference, *known, config))
    mine, figures = updated(start, config)
    for pair, other in zip(figures, right, strict=True):
        assert [x.item() for x in pair] == pytest.approx(
            [x.item() for x in other], abs=1e-9
        )
    assert apart(policy, start) > 0.01
    return apart(policy, mine)


@pytest.mark.parametrize("gradient", ["sampled", "exact"])
def test_a_run_is_its_updates(start, gradient):
    """Evaluations, checks and what else a run does leave no trace in the policy."""
    config = small(gradient=gradient, evaluate_every=1)
    policy, figures = updated(start, config)
    got = train(config, start=start, watch=lambda _: None)
    assert digest(policy) == digest(got.policy)
    pairs = zip(got.history.reward, got.history.log_ratio, strict=True)
    assert [[x.item() for x in means] for means in figures] == [*map(list, pairs)]


PLAIN = [
    {}, {"samples_per_prompt": 2}, {"prompts": 20, "batch": 6}, {"prompts": 1},
    {"prompts": 3, "batch": 30}, {"prompts": 20, "batch": 1, "samples_per_prompt": 30},
]  # fmt: skip


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("settings", PLAIN, ids=str)
def test_the_loop_makes_the_plain_loops_updates(start, beta, settings):
    config = small(updates=25, beta=beta, seed=1, learning_rate=1e-3, **settings)
    assert off_plain(start, config) < 1e-9


def test_the_loop_makes_the_plain_loops_updates_for_long(start):
    assert off_plain(start, small(updates=120, beta=0.3, samples_per_prompt=8)) < 1e-9


def test_a_reference_that_is_the_policy_makes_every_beta_0(start):
    """The famous slip: the penalty is there, and is 0 at every sample."""
    ends = {}
    for aliased in (True, False):
        for beta in BETAS:
            config = small(beta=beta, updates=15)
            policy, reference, *known = setup(start, config)
            reference = policy if aliased else reference
            figures = list(plain.train_plainly(policy, reference, *known, config))
            ends[aliased, beta] = digest(policy)
            if aliased:
                assert all(away == 0 for _, away in figures)
    assert len({ends[True, beta] for beta in BETAS}) == 1
    assert len({ends[False, beta] for beta in BETAS}) == len(BETAS)
    assert ends[True, 1.0] == ends[False, 0.0]


@pytest.mark.parametrize("gradient", ["sampled", "exact"])
@pytest.mark.parametrize("prompts, batch", [(7, 9), (7, 3), (5, 5)])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_shares_of_several_processes_add_up(
    start, monkeypatch, gradient, prompts, batch, count
):
    config = small(prompts=prompts, batch=batch, gradient=gradient, beta=0.5)
    drawn = loop.noise(0, 0, prompts, batch, config.samples_per_prompt)
    drawn = drawn if gradient == "sampled" else ()
    parts = []
    monkeypatch.setattr(
        processes, "add", lambda tensors: parts.append([x.clone() for x in tensors])
    )

    def part():
        policy, reference, *known = setup(start, config)
        policy = shaken(policy)
        loop.Updater(policy, reference, *known, config).step(*drawn)
        return parts.pop()

    whole = part()
    monkeypatch.setattr(processes, "count", lambda: count)
    each = []
    for rank in range(count):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        each.append(part())
    for right, shares in zip(whole, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(sum(shares), right, rtol=0, atol=1e-14)


def test_more_processes_than_prompts_are_refused(start, monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: 9)
    with pytest.raises(ValueError, match="processes is 9; allowed: at most 8"):
        loop.Updater(*setup(start, small()), small())


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_shares_are_a_partition(monkeypatch, n):
    for count in (1, 2, 3, 5):
        monkeypatch.setattr(processes, "count", lambda count=count: count)
        seen = []
        for rank in range(count):
            monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
            seen += range(n)[processes.share(n)]
        assert seen == list(range(n))


# --- the step does not wait for the device -------------------------------------------------


def without_data(start, config):
    """One step on tensors that have shapes and no numbers: asking them is an error."""
    updater = loop.Updater(*setup(start, config), config)
    drawn = updater.drawn(0) if config.gradient == "sampled" else ()
    with FakeTensorMode(allow_non_fake_inputs=True):
        return updater.step(*drawn)


@pytest.mark.parametrize("gradient", ["sampled", "exact"])
@pytest.mark.parametrize("batch", [8, 4])
def test_a_step_never_asks_the_device_for_a_number(start, gradient, batch):
    means = without_data(start, small(gradient=gradient, batch=batch))
    assert [x.shape for x in means] == [(), ()]


def test_asking_would_be_noticed(start, monkeypatch):
    def asking(worth):
        assert worth.sum().item() is not None
        return worth

    for curious in (asking, advantages.leave_one_out):
        monkeypatch.setattr(loop, "leave_one_out", curious)
        with pytest.raises((DataDependentOutputException, RuntimeError)):
            without_data(start, small())


# --- deliberate faults ------------------------------------------------------------------------


def gap(start, beta=0.5):
    policy, reference, *known = setup(start, small(prompts=3))
    return checks.estimator_gap(shaken(policy), reference, *known, beta)


def test_the_sampled_and_the_direct_gradient_agree(start):
    for beta in BETAS:
        off, size = gap(start, beta)
        assert off < 1e-13
        assert size > 1e-3


def wrong_sign(monkeypatch):
    right = loop.sampled_weights

    def wrong(logp, logq, reward, beta, *rest, **total):
        return right(logp, logq, reward, -beta, *rest, **total)

    monkeypatch.setattr(loop, "sampled_weights", wrong)
    monkeypatch.setattr(checks, "sampled_weights", wrong)


def self_mean(monkeypatch):
    def wrong(worth):
        return worth - worth.mean(-1, keepdim=True)

    monkeypatch.setattr(loop, "leave_one_out", wrong)


def divided_by_the_spread(monkeypatch):
    def wrong(worth):
        return (worth - worth.mean(-1, keepdim=True)) / (
            worth.std(-1)[..., None] + 1e-4
        )

    monkeypatch.setattr(loop, "leave_one_out", wrong)


def penalty_left_out(monkeypatch):
    right = loop.sampled_weights

    def wrong(logp, logq, reward, beta, *rest, **total):
        return right(logp, logp, reward, beta, *rest, **total)

    monkeypatch.setattr(loop, "sampled_weights", wrong)
    monkeypatch.setattr(checks, "sampled_weights", wrong)


def last_write_wins(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "scatter_add_", torch.Tensor.scatter_)


def moving_reference(monkeypatch):
    right = loop.Updater.step

    def wrong(self, *drawn):
        with torch.no_grad():
            self.logq = self.policy.log_probs(self.prompts)
        return right(self, *drawn)

    monkeypatch.setattr(loop.Updater, "step", wrong)


@pytest.mark.parametrize(
    "fault", [wrong_sign, self_mean, divided_by_the_spread, penalty_left_out]
)
def test_a_wrong_estimator_is_noticed_by_the_runs_own_check(start, monkeypatch, fault):
    fault(monkeypatch)
    off, size = gap(start)
    assert off > 0.01 * size
    got = train(small(beta=0.5), start=start)
    assert not got.ok
    assert only_failure(got, "gradient")


@pytest.mark.parametrize(
    "fault", [wrong_sign, self_mean, last_write_wins, moving_reference]
)
def test_a_wrong_loop_does_not_end_where_the_plain_one_does(start, monkeypatch, fault):
    fault(monkeypatch)
    config = small(beta=0.5)
    policy, reference, *known = setup(start, config)
    list(plain.train_plainly(policy, reference, *known, config))
    assert apart(policy, train(config, start=start).policy) > 1e-5


# --- a sweep ----------------------------------------------------------------------------------


SWEEPS = [{}, {"prompts": 20, "batch": 6}, {"gradient": "exact"}, {"prompts": 1}]


@pytest.mark.parametrize("settings", SWEEPS, ids=str)
def test_a_member_of_a_sweep_ends_where_it_would_alone(start, settings):
    config, betas, seeds = small(**settings), [0.0, 0.1, 1.0], [3, 5]
    got = sweep(config, betas, seeds, start=start)
    task = addition()
    for i, beta in enumerate(betas):
        for j, seed in enumerate(seeds):
            alone, _ = updated(start, replace(config, beta=beta, seed=seed))
            assert apart(alone, got.policies[beta, seed]) < 1e-9
            right = evaluate(alone, start, task.prompts, task.answers)
            for group, index in got.groups.items():
                for measure, mean in right.means(index).items():
                    each = got.exact[group][measure]
                    assert each.shape == (3, 2)
                    assert each[i, j] == pytest.approx(mean, abs=1e-8)
            kl_of_each = got.evaluations[beta, seed].kl
            torch.testing.assert_close(kl_of_each, right.kl, rtol=0, atol=1e-7)
    ends = {digest(policy) for policy in got.policies.values()}
    assert len(ends) == (3 if config.gradient == "exact" else 6)


def test_a_sweeps_start_figures_are_those_of_its_start(start):
    got = sweep(small(updates=1), [0.1], [0], start=start)
    task = addition()
    right = evaluate(start, start, task.prompts, task.answers)
    for group, index in got.groups.items():
        assert got.start[group] == pytest.approx(right.means(index))
        assert got.start[group]["kl"] == 0
    assert torch.equal(got.before.reward, right.reward)


def test_a_sweep_begins_with_a_warm_up_and_tells_how_far_it_is():
    config, seen = small(warmup=2, updates=5, evaluate_every=2), []
    got = sweep(config, [0.1], [0], watch=lambda *at: seen.append(at))
    assert seen == [(2, 5), (4, 5)]
    assert apart(got.policies[0.1, 0], train(config).policy) < 1e-9


@pytest.mark.parametrize(
    "betas, seeds, message",
    [
        ([], [0], r"betas is \[\]; allowed: one value or more, all different"),
        ([0.1], [], r"seeds is \[\]; allowed: one value or more"),
        ([0.1, 0.1], [0], r"betas is \[0.1, 0.1\]; allowed: .*all different"),
        ([0.1], [1, 1], r"seeds is \[1, 1\]; allowed: .*all different"),
        ([0.1, -1.0], [0], r"beta is -1.0; allowed: a number >= 0"),
        ([0.1], [0, -1], r"seed is -1; allowed: a whole number from 0"),
    ],
)
def test_impossible_sweeps_are_refused_before_any_work(
    monkeypatch, betas, seeds, message
):
    monkeypatch.setattr(sys.modules["rlnb.training.sweep"], "warm_up", no_work)
    with pytest.raises(ValueError, match=message):
        sweep(small(), betas, seeds)


def test_a_sweep_refuses_a_start_with_dropout_on(start):  # case 27
    with pytest.raises(ValueError, match="dropout"):
        sweep(small(), [0.1], [0], start=dropped(start).train())


def test_a_sweep_that_breaks_down_says_so(start):
    config = small(dtype="float32", learning_rate=1e20)
    with pytest.raises(FloatingPointError, match="not finite"):
        sweep(config, [0.1], [0], start=start)


# --- a run ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "updates, at", [(10, [0, 4, 8, 10]), (8, [0, 4, 8]), (3, [0, 3])]
)
def test_a_runs_history_is_as_long_as_the_run(start, updates, at):
    got = train(small(updates=updates, evaluate_every=4), start=start)
    assert got.history.at == at
    assert len(got.history.reward) == len(got.history.log_ratio) == updates
    assert set(got.history.exact) == set(got.groups) == {
        "trained", "other train", "held out"
    }  # fmt: skip
    for each in got.history.exact.values():
        assert {m: len(v) for m, v in each.items()} == dict.fromkeys(
            run.MEASURES, len(at)
        )
        assert each["kl"][0] == 0
    assert got.updates == updates
    assert not got.stopped
    assert got.seconds > 0


def test_a_runs_figures_are_those_of_evaluate(start):
    got = train(small(), start=start)
    task = got.task
    right = evaluate(got.policy, got.reference, task.prompts, task.answers)
    first = evaluate(start, start, task.prompts, task.answers)
    for end, exact in ((-1, right), (0, first)):
        for group, index in got.groups.items():
            for measure, value in exact.means(index).items():
                kept = got.history.exact[group][measure][end]
                assert kept == pytest.approx(value, abs=1e-12)
    torch.testing.assert_close(got.after.kl, right.kl, rtol=0, atol=1e-12)
    assert torch.equal(got.before.reward, first.reward)
    assert torch.equal(got.before.kl, torch.zeros(2500).double())
    assert got.groups["trained"].tolist() == task.train[:8].tolist()


def test_a_runs_digests_are_of_its_start_and_end(start):
    got = train(small(), start=start)
    assert got.digests == {
        "policy before": digest(start), "reference before": digest(start),
        "policy after": digest(got.policy), "reference after": digest(start),
    }  # fmt: skip
    assert digest(got.reference) == digest(start) != digest(got.policy)  # case 25
    assert not any(x.requires_grad for x in got.reference.parameters())


@pytest.mark.parametrize("beta", [0.0, 0.1, 1.0, 1000.0])
@pytest.mark.parametrize("gradient", ["sampled", "exact"])
def test_every_check_of_a_run_holds(start, beta, gradient):
    got = train(small(beta=beta, gradient=gradient), start=start)
    assert len(got.checks) >= 7
    assert [c for c in got.checks if not c.ok] == []
    assert got.ok


@pytest.mark.parametrize("beta", [1e5, 1e7, 1e20])
def test_a_large_beta_fails_no_check(start, beta):
    got = train(small(beta=beta, updates=2), start=start)
    assert [c for c in got.checks if not c.ok] == []


def test_a_check_of_nan_has_failed():
    assert not checks.Check("something", NAN, 1.0).ok
    assert checks.Check("something", 1.0, 1.0).ok
    assert not checks.Check("something", 1.1, 1.0).ok
    assert checks.Check("it", 1.1, 1.0).plain() == {
        "says": "it", "value": 1.1, "limit": 1.0, "ok": False,
    }  # fmt: skip


def test_a_reference_that_moves_during_the_run_fails_its_check(start, monkeypatch):
    kept, right = [], run.freeze_reference

    def keep(policy):
        kept.append(right(policy))
        return kept[-1]

    def tamper(progress):
        with torch.no_grad():
            kept[0].tens.bias[3] += 2**-40

    monkeypatch.setattr(run, "freeze_reference", keep)
    got = train(small(), start=start, watch=tamper)
    assert not got.ok
    assert only_failure(got, "reference")


def test_a_run_that_trains_nothing_fails_its_check(start, monkeypatch):
    monkeypatch.setattr(torch.optim.Adam, "step", lambda *_: None)
    got = train(small(), start=start)
    assert only_failure(got, "policy")


def test_processes_that_end_apart_fail_their_check(start, monkeypatch):
    monkeypatch.setattr(processes, "everywhere", lambda value: [value, "another"])
    got = train(small(), start=start)
    assert only_failure(got, "processes")


def test_an_evaluation_that_is_off_fails_its_check(start, monkeypatch):
    def wrong(logp, logq, answers):  # KL(q||p) for KL(p||q)
        right = enumerated(logp, logq, answers)
        return replace(right, kl=(logq.exp() * (logq - logp)).sum(-1))

    monkeypatch.setattr(run, "enumerated", wrong)
    got = train(small(), start=start)
    assert only_failure(got, "chain rule")


def test_dropout_in_the_start_is_refused_before_the_first_update(start, monkeypatch):
    policy = dropped(start).train()  # case 27
    monkeypatch.setattr(loop.Updater, "update", no_work)
    message = (
        r"p/o of the first batch is off 1 by up to .*; allowed: exactly 1 .*dropout"
    )
    with pytest.raises(ValueError, match=message):
        train(small(), start=policy)


def test_dropout_that_is_off_does_not_matter(start):
    got = train(small(), start=dropped(start).eval())
    assert got.ok
    assert digest(got.policy) == digest(train(small(), start=start).policy)


CHANGES = [
    {"seed": 1}, {"beta": 0.2}, {"samples_per_prompt": 5}, {"prompts": 9}, {"batch": 9},
    {"learning_rate": 1e-4}, {"gradient": "exact"}, {"dtype": "float32"},
    {"updates": 4}, {"warmup": 41}, {"start_seed": 1},
]  # fmt: skip


def test_every_setting_that_should_matter_does():
    base = small(warmup=40, updates=3, samples_per_prompt=8)
    kinds = [base, *(replace(base, **change) for change in CHANGES)]
    ends = [
        digest(updated(warm_up(c).to(c.torch_dtype), c)[0]) for c in kinds
    ]  # fmt: skip
    assert len(set(ends)) == len(ends)
    changed = {name for change in CHANGES for name in change}
    free = {"evaluate_every", "device", "threads", "cuda_graph"}
    assert {f.name for f in fields(TrainConfig)} == changed | free


def test_a_longer_run_begins_as_the_shorter_one(start):
    short, long = (train(small(updates=n), start=start).history for n in (5, 10))
    assert long.reward[:5] == short.reward
    assert long.log_ratio[:5] == short.log_ratio
    for group, each in short.exact.items():
        assert long.exact[group]["kl"][:2] == each["kl"]


def test_the_users_random_numbers_do_not_matter_and_are_left_alone(start):
    ends = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        ends.append(digest(train(small(), start=start).policy))
        assert torch.equal(before, torch.get_rng_state())
    assert ends[0] == ends[1]


def test_a_run_may_begin_where_another_ended(start):
    first = train(small(), start=start)
    end = digest(first.policy)
    second = train(small(), start=first.policy)
    assert second.digests["policy before"] == second.digests["reference before"] == end
    assert digest(first.policy) == end
    assert second.ok
    assert second.history.exact["trained"]["kl"][0] == 0
    swept = sweep(small(), [0.1], [0], start=first.policy).policies[0.1, 0]
    assert apart(swept, second.policy) < 1e-9


@pytest.mark.parametrize("gradient", ["sampled", "exact"])
def test_a_run_in_float32_is_near_that_in_float64(start, gradient):
    one, two = (
        train(small(dtype=dtype, gradient=gradient, updates=5), start=start)
        for dtype in ("float32", "float64")
    )
    assert one.ok
    assert {x.dtype for x in one.policy.parameters()} == {torch.float32}
    assert one.after.kl.dtype == torch.float32
    for group in one.groups:
        for measure in run.MEASURES:
            a, b = (r.history.exact[group][measure][-1] for r in (one, two))
            assert a == pytest.approx(b, abs=1e-2)


@pytest.mark.parametrize("gradient", ["sampled", "exact"])
def test_training_raises_the_objective_on_what_is_trained(start, gradient):
    config = small(beta=0.1, updates=60, samples_per_prompt=16, gradient=gradient)
    exact = train(config, start=start).history.exact["trained"]
    pairs = zip(exact["reward"], exact["kl"], strict=True)
    objective = [reward - 0.1 * kl for reward, kl in pairs]
    assert objective[-1] > objective[0] + 0.3
    assert exact["reward"][-1] > 0.6


def test_watch_is_told_at_each_evaluation_how_long_it_will_take(start):
    seen = []
    got = train(small(updates=11), start=start, watch=lambda p: seen.append(
        (p.done, p.updates, p.seconds_left, list(p.history.at)))
    )  # fmt: skip
    assert [row[:2] for row in seen] == [(5, 11), (10, 11)]
    assert [row[3] for row in seen] == [[0, 5], [0, 5, 10]]
    assert all(0 < row[2] < 60 for row in seen)
    assert seen[0][2] <= got.seconds * 11


# --- settings that are refused ------------------------------------------------------------------


def no_work(*_, **__):
    pytest.fail("work was done before the refusal")


WHOLE = (
    "seed", "start_seed", "prompts", "samples_per_prompt", "updates", "batch", "warmup",
    "evaluate_every",
)  # fmt: skip
REFUSED = [
    ("samples_per_prompt", 1, "1; allowed: a whole number from 2 "),  # case 29
    ("samples_per_prompt", 0, "0; allowed: a whole number from 2 "),
    ("beta", -0.1, "-0.1; allowed: a number >= 0"),  # case 13
    ("beta", NAN, "nan; allowed: a number >= 0"),
    ("beta", INF, "inf; allowed: a number >= 0, below 1e30"),
    ("beta", "0.1", "'0.1'; allowed: a number >= 0"),
    ("beta", None, "None; allowed: a number >= 0"),
    ("beta", True, "True; allowed: a number >= 0"),
    ("prompts", 0, "0; allowed: a whole number from 1 to 1250"),
    ("prompts", 1251, "1251; allowed: a whole number from 1 to 1250"),
    ("updates", 0, "0; allowed: a whole number from 1 "),
    ("batch", 0, "0; allowed: a whole number from 1 "),
    ("warmup", -1, "-1; allowed: a whole number from 0 "),
    ("seed", -1, "-1; allowed: a whole number from 0 "),
    ("seed", 2**32, f"{2**32}; allowed: a whole number from 0 to {2**32 - 1}"),
    ("start_seed", 2**32, f"{2**32}; allowed: a whole number from 0 to {2**32 - 1}"),
    ("evaluate_every", 0, "0; allowed: a whole number from 1 "),
    ("learning_rate", 0, "0; allowed: a number > 0"),
    ("learning_rate", -1e-3, "-0.001; allowed: a number > 0"),
    ("learning_rate", NAN, "nan; allowed: a number > 0"),
    ("learning_rate", INF, "inf; allowed: a number > 0, below 1e30"),
    ("dtype", "bfloat16", "'bfloat16'; allowed: float64, float32"),  # case 45
    ("dtype", torch.float32, "torch.float32; allowed: float64, float32"),
    ("gradient", "k4", "'k4'; allowed: sampled, exact"),  # case 14
    ("gradient", ["exact"], r"['exact']; allowed: sampled, exact"),
    ("device", "tpu", "'tpu'; allowed: auto, cpu, cuda, mps"),
    ("device", "cuda:7", "'cuda:7'; allowed: auto, cpu, cuda, mps"),
    ("device", None, "None; allowed: auto, cpu, cuda, mps"),
    ("cuda_graph", 1, "1; allowed: True or False"),
    ("cuda_graph", True, "True; allowed: False on device 'cpu'"),
    *(
        (name, bad, f"{bad!r}; allowed: a whole number from ")
        for name in WHOLE for bad in (True, 2.0, "2", None, [2])
    ),
]  # fmt: skip


@pytest.mark.parametrize("name, value, message", REFUSED, ids=str)
def test_impossible_settings_are_refused_by_name(name, value, message):
    with pytest.raises(ValueError) as refusal:
        TrainConfig(**{name: value})
    assert str(refusal.value).startswith(f"{name} is {message}")


def test_the_smallest_and_largest_settings_are_allowed():
    TrainConfig(samples_per_prompt=2, prompts=1, updates=1, batch=1, warmup=0, beta=0)
    TrainConfig(prompts=1250, seed=2**32 - 1, start_seed=2**32 - 1, beta=1e29)
    train(small(seed=2**32 - 1, start_seed=2**32 - 1, updates=1, warmup=1))


def test_settings_may_be_numpys():
    got = TrainConfig(seed=np.int64(3), beta=np.float32(0.5), updates=np.int32(7))
    assert got == TrainConfig(seed=3, beta=0.5, updates=7)
    assert [type(x) for x in (got.seed, got.beta, got.updates)] == [int, float, int]


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name in ("cuda", "mps"):
        message = f"device is '{name}'; allowed: on this machine: 'cpu'"
        with pytest.raises(ValueError, match=message):
            TrainConfig(device=name, dtype="float32")
    assert TrainConfig(device="auto").torch_device == torch.device("cpu")


def test_mps_has_no_float64(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = "dtype is 'float64'; allowed: 'float32' on device 'mps'"
    with pytest.raises(ValueError, match=message):
        TrainConfig(device="mps")
    assert TrainConfig(device="mps", dtype="float32").torch_device.type == "mps"
    assert TrainConfig(device="auto", dtype="float32").torch_device.type == "mps"
    assert TrainConfig(device="auto").torch_device.type == "cpu"


def test_what_is_no_config_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(run, "warm_up", no_work)
    for thing in (None, {"beta": 1.0}, TrainConfig):
        with pytest.raises(ValueError, match="config is .*; allowed: a TrainConfig"):
            train(thing)


def test_refusals_take_no_time():
    begun = time.perf_counter()
    with pytest.raises(ValueError, match="beta"):
        TrainConfig(beta=-1, warmup=10**9)
    assert time.perf_counter() - begun < 0.1


# --- on a GPU ---------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("settings", [{}, {"prompts": 20, "batch": 6}], ids=str)
def test_a_run_on_a_gpu_shows_the_same_digits(start, settings):
    on = [train(small(device=d, **settings), start=start) for d in ("cpu", "cuda")]
    assert all(got.ok for got in on)
    for group in on[0].groups:
        for measure in run.MEASURES:
            a, b = (got.history.exact[group][measure] for got in on)
            assert a == pytest.approx(b, abs=1e-9)


@needs_cuda
@pytest.mark.parametrize("gradient", ["sampled", "exact"])
def test_a_recorded_step_is_the_step(start, gradient):
    one, two = (
        train(small(device="cuda", cuda_graph=on, gradient=gradient), start=start)
        for on in (False, True)
    )
    assert apart(one.policy, two.policy) < 1e-12
    assert one.history.reward == pytest.approx(two.history.reward, abs=1e-12)


@needs_cuda
def test_an_update_does_not_wait_for_the_gpu(start):
    config = small(device="cuda")
    policy, _, *known = setup(start, config)
    policy, known = policy.cuda(), [x.cuda() for x in known]
    updater = loop.Updater(policy, freeze_reference(policy), *known, config)
    updater.update(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for k in range(1, 4):
            updater.update(k)
    finally:
        torch.cuda.set_sync_debug_mode("default")
