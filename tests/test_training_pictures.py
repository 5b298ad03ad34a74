"""Lesson 07's pictures show a run's own numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from libraries import quick

from rlnb.pictures import training_run as pictures
from rlnb.show import Line
from rlnb.training import TrainConfig, sweep, train, warm_up
from rlnb.training.loop import sample
from rlnb.training.run import History

CONFIG = TrainConfig(warmup=20, prompts=8, updates=6, evaluate_every=2)


@pytest.fixture(scope="module")
def start():
    return warm_up(CONFIG)


@pytest.fixture(scope="module")
def result(start):
    return train(CONFIG, start=start)


@pytest.fixture(scope="module")
def runs(start):
    return sweep(CONFIG, [0, 1], [0, 1, 2], start=start)


def readouts(picture):
    return {r.name: r.value for r in picture.readouts}


def test_curves_end_where_the_run_ended(result):
    picture = pictures.curves(result.history, 6)
    for panel, measure in zip(picture.panels, ("reward", "kl"), strict=True):
        assert [line.name for line in panel.items] == list(result.groups)
        for line in panel.items:
            mean = getattr(result.after, measure)[result.groups[line.name]].mean()
            assert line.x[-1] == 6
            assert line.y[-1] == pytest.approx(mean.item(), abs=1e-12)
            assert panel.ylim[0] <= line.y.min() <= line.y.max() <= panel.ylim[1]
    assert (
        readouts(picture)["KL, held out"] == result.history.exact["held out"]["kl"][-1]
    )


def test_curves_before_a_run_have_no_points_and_every_group():
    picture = pictures.curves(History(), 6)
    assert all(len(line.x) == 0 for panel in picture.panels for line in panel.items)
    assert [line.name for line in picture.panels[0].items] == list(pictures.LOOKS)


def test_curves_of_a_run_on_the_whole_half_leave_the_empty_group_out(start):
    run = train(TrainConfig(warmup=20, prompts=1250, updates=1), start=start)
    (first, _) = pictures.curves(run.history, 1).panels
    assert [line.name for line in first.items] == ["trained", "held out"]


@quick
@given(st.floats(0, 0.999999))
def test_the_answer_drawn_is_the_one_the_loop_samples(result, u):
    with torch.no_grad():
        logp = result.policy.log_probs(torch.tensor([[22, 34]]))
    one = torch.tensor([[u]], dtype=torch.float64)
    got = sample(logp, torch.tensor([0]), one).item()
    shown = readouts(pictures.drawn(logp[0].exp(), 56)(u))
    assert shown["sampled answer"] == got
    assert shown["its p"] == pytest.approx(logp[0, got].exp().item())


@quick
@given(st.lists(st.floats(0, 1), min_size=1))
def test_a_histogram_counts_every_prompt(values):
    shares = pictures.histogram(values)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] * len(values) == pytest.approx(sum(v < 0.1 for v in values))


@quick
@given(st.floats(0, 1e6))
def test_an_axis_ends_a_little_above_the_highest_point(top):
    assert 1.02 * top < pictures._above(top) <= max(2.2 * top, 0.16)


def test_prompts_apart_says_how_many_were_lost(result):
    index = result.groups["held out"]
    after = result.after.reward.numpy()
    picture = pictures.prompts_apart(result.before.reward.numpy(), after, result.groups)
    lost = np.mean([r < 0.1 for r in after[index]])
    assert f"{lost:.1%} have after" in picture.says


def test_error_bars_reach_one_standard_deviation_up_and_down(runs):
    picture = pictures.by_beta(runs)
    lines = [item for item in picture.panels[0].items if isinstance(item, Line)]
    mean, bars = lines[2:]  # of the prompts held out
    ends = bars.y.reshape(-1, 3)
    each = runs.exact["held out"]["reward"]
    assert np.isnan(ends[:, 2]).all()
    np.testing.assert_allclose(mean.y, each.sum(1) / 3)
    np.testing.assert_allclose(ends[:, :2].mean(1), mean.y)
    spread = np.sqrt(((each - mean.y[:, None]) ** 2).sum(1) / 2)
    np.testing.assert_allclose((ends[:, 1] - ends[:, 0]) / 2, spread)


def test_the_ends_of_a_beta_are_those_of_its_runs(runs):
    end = pictures.ends({"first": runs})
    picture = end(beta=1, setting="first")
    (_, after) = picture.panels[1].items
    index = runs.groups["held out"]
    each = [
        pictures.histogram(runs.evaluations[1, s].reward[index].numpy())
        for s in range(3)
    ]
    np.testing.assert_allclose(after.y, np.mean(each, axis=0))
    assert readouts(picture)["KL, held out"] == runs.exact["held out"]["kl"][1].mean()


def test_estimated_shows_every_batch_and_every_exact_value(result):
    batches, exact, _ = pictures.estimated(result.history).panels[0].items
    np.testing.assert_array_equal(batches.y, result.history.log_ratio)
    np.testing.assert_array_equal(exact.x, [0, 2, 4, 6])
    np.testing.assert_array_equal(exact.y, result.history.exact["trained"]["kl"])


def test_noise_free_shows_each_run(result):
    picture = pictures.noise_free([result.history] * 2, result.history, 6)
    for panel, name in zip(picture.panels, ("trained", "held out"), strict=True):
        for line in panel.items:
            expected = result.history.exact[name]["reward"]
            np.testing.assert_array_equal(line.y, expected)
