"""What `KeyedCounts` refuses, so that its promise holds: noise that floats would round, wrong numbers of people."""

import numpy as np
import pytest
from privstream.mechanisms import KeyedCounts, KeyedStep, SeededNoise

RUN = {"epsilon": 0.2, "delta": 1e-6, "horizon": 1000, "contributions": 1000, "public_keys": True}


def step(**fields) -> KeyedStep:
    return KeyedStep(step=1, keys=np.arange(2, dtype=np.uint64), counts=np.array([5, 5]), **fields)


@pytest.mark.parametrize("fields", [{}, {"signed": True}, {"neighbouring": "replace_one"}, {"delta": 0.0}])
@pytest.mark.parametrize("over", [1000, "start"])
def test_noise_whose_sums_floats_would_round_is_refused(over, fields):
    if over == "start" and "delta" in fields:
        pytest.skip("noise in a tree is summed in whole numbers")
    largest = 2**26 if "delta" in fields else 2**40
    with pytest.raises(ValueError, match=f"max_value must be smaller for noise over 1,000 windows, got {largest:,}"):
        KeyedCounts(**(RUN | fields), over=over, max_value=largest)
    assert KeyedCounts(**(RUN | fields), over=over, max_value=2**10).law


@pytest.mark.parametrize("over", [1000, "start"])
def test_the_low_bits_of_sums_say_nothing(over):
    largest = 2**40
    while True:  # the largest value that is not refused
        try:
            mechanism = KeyedCounts(**RUN, over=over, max_value=largest)
            break
        except ValueError:
            largest //= 2
    keys = np.arange(4000, dtype=np.uint64)
    state, given = mechanism.initial_state(keys), np.full(len(keys), 5)
    for number in range(1, 4):
        came = KeyedStep(step=number, keys=keys, counts=given, sums=given)
        state, rows = mechanism.step(state, came, SeededNoise(3))
    often = np.bincount(rows.sums % 8, minlength=8)
    assert np.abs(often - 500).max() < 150  # seven standard deviations


def test_people_are_not_given_where_a_window_stands_alone():
    mechanism = KeyedCounts(epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="people must not be given for counts of one window"):
        mechanism.step(mechanism.initial_state(), step(people=np.array([0, 0])), SeededNoise(1))


def test_people_are_given_where_one_could_pass_for_many():
    often = {"epsilon": 1.0, "delta": 1e-6, "over": "start", "horizon": 9, "contributions": 9, "min_people": 3}
    mechanism = KeyedCounts(**often)
    with pytest.raises(ValueError, match="people must be given where a person may contribute to a key again"):
        mechanism.step(mechanism.initial_state(), step(), SeededNoise(1))
    once = KeyedCounts(**often, contributions_per_key=1)
    assert once.step(once.initial_state(), step(), SeededNoise(1))


def test_where_one_law_cannot_be_drawn_another_is_taken():
    """Laplace noise with a scale of 2e12, or Gaussian noise with a deviation of a tenth of that."""
    made = KeyedCounts(epsilon=1.0, delta=1e-6, contributions=1000, max_value=10**9)
    assert made.stddev(1, "sum") < 4e11
    with pytest.raises(ValueError, match="scale must be <="):
        KeyedCounts(epsilon=1.0, contributions=1000, max_value=10**9, public_keys=True)


@pytest.mark.parametrize("waiting", [False, True])
def test_sums_that_do_not_fit_are_refused_and_never_wrap(waiting):
    often = {"epsilon": 1.0, "delta": 1e-6, "over": "start", "horizon": 9, "max_value": 2**36}
    mechanism = KeyedCounts(**often, contributions_per_key=1, min_people=2**30 if waiting else 1)
    counts = np.array([2**25, 1])
    came = {"keys": np.arange(2, dtype=np.uint64), "counts": counts, "sums": counts * 2**36}
    state, _ = mechanism.step(mechanism.initial_state(), KeyedStep(step=1, **came), SeededNoise(1))
    state, _ = mechanism.step(state, KeyedStep(step=2, **came), SeededNoise(1))
    with pytest.raises(ValueError, match="a key must have at most 67,108,864 contributions"):
        mechanism.step(state, KeyedStep(step=3, **came), SeededNoise(1))
    with pytest.raises(ValueError, match="a key must have at most 67,108,864 contributions"):
        wrapped = came | {"counts": counts * 3}
        mechanism.step(mechanism.initial_state(), KeyedStep(step=1, **wrapped), SeededNoise(1))
