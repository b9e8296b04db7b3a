"""Counters per person: equal to a plain Counter, values that never change, small, and never wrapping round."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.monitor.holdings import Charges, UserCounters

people = st.integers(0, 2**64 - 1) | st.integers(0, 20)
mentions = st.lists(st.lists(people, max_size=30), max_size=30)


def ids(values):
    return np.array(values, dtype=np.uint64)


def added_up(steps):
    counters = UserCounters()
    for step in steps:
        counters = counters.add(Charges.of(ids(step)))
    return counters


@given(mentions)
def test_equals_a_plain_counter(steps):
    counters, plain = added_up(steps), Counter(person for step in steps for person in step)
    asked = [*plain, 0, 1, 2**64 - 1, *plain]
    assert counters.charged(ids(asked)).tolist() == [plain[person] for person in asked]
    compact = counters.compact()
    assert compact.keys.tolist() == sorted(plain)
    assert compact.values.tolist() == [plain[person] for person in sorted(plain)]


@given(mentions)
def test_old_values_stay_valid(steps):
    history, expected, plain = [UserCounters()], [Counter()], Counter()
    for step in steps:
        history.append(history[-1].add(Charges.of(ids(step))))
        plain = plain + Counter(step)
        expected.append(plain)
    for counters, then in zip(history, expected, strict=True):
        assert counters.charged(ids(sorted(plain))).tolist() == [then[person] for person in sorted(plain)]


@given(mentions, st.integers(1, 10))
def test_bytes_slices_and_runs_add_up_to_the_same(steps, size):
    counters = added_up(steps)
    compact = Charges.from_bytes(counters.compact().to_bytes())
    slices = [compact.slice(i, i + size) for i in range(0, len(compact), size)]
    again = UserCounters.of(Charges.from_bytes(part.to_bytes()) for part in slices)
    everybody = compact.keys
    assert np.array_equal(again.charged(everybody), counters.charged(everybody))


@given(mentions)
def test_runs_at_least_halve(steps):
    counters = added_up(steps)
    sizes = [len(run) for run in counters.runs]
    assert all(before >= 2 * after for before, after in itertools.pairwise(sizes))
    assert len(counters) == sum(sizes)
    assert 0 not in sizes
    for run in counters.runs:
        assert np.all(run.keys[1:] > run.keys[:-1])


def test_small():
    """At most 16 bytes for each person charged, in memory and in a snapshot, whatever the order of the steps."""
    rng, charged = np.random.default_rng(1), 200_000
    everybody = rng.permutation(rng.integers(0, 2**64, charged, dtype=np.uint64))
    counters = UserCounters()
    for step in np.array_split(everybody, 300):
        counters = counters.add(Charges.of(step))
    held = sum(run.keys.nbytes + run.values.nbytes for run in counters.runs)
    assert held <= 16 * charged
    assert len(counters.compact().to_bytes()) <= 10 * charged + 1000


def test_repeated_charges_cost_no_more_than_twice():
    """A person has entries in several runs; runs that halve hold at most twice as many entries as people."""
    people, counters = np.arange(1 << 12, dtype=np.uint64), UserCounters()
    rng = np.random.default_rng(2)
    for _ in range(500):
        counters = counters.add(Charges.of(rng.choice(people, 200, replace=False)))
    assert len(counters) <= 2 * len(people)


def test_counts_beyond_two_bytes_do_not_wrap_round():
    counters = UserCounters().add(Charges(ids([1, 2]), np.array([65_535, 5], np.uint16)))
    counters = counters.add(Charges.of(ids([1]))).add(Charges.of(ids([1])))
    assert counters.charged(ids([1, 2])).tolist() == [65_537, 5]
    merged = counters.add(Charges.of(ids([1, 2, 3])))
    assert len(merged.runs) == 1
    assert merged.charged(ids([1, 2, 3])).tolist() == [65_538, 6, 1]
    assert Charges.from_bytes(merged.compact().to_bytes()).values.tolist() == [65_538, 6, 1]
    assert Charges.of(np.full(70_000, 9, np.uint64)).values.tolist() == [70_000]


def test_nobody():
    counters = UserCounters().add(Charges.none()).add(Charges.of(ids([])))
    assert len(counters) == 0
    assert counters.charged(ids([1, 2])).tolist() == [0, 0]
    assert len(Charges.from_bytes(counters.compact().to_bytes())) == 0
    assert counters.charged(ids([])).shape == (0,)


def test_damaged_bytes_are_refused():
    data = Charges.of(ids([1, 2, 3])).to_bytes()
    for bad in (data[:-1], b"", data[:-1] + b"x"):
        with pytest.raises(SnapshotError):
            Charges.from_bytes(bad)
