"""Counts with noise in common: the bound on one person exactly, the law on a grid exactly; attacks; counts of lists."""

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.keyed_counts.key_noise import SharedNoise
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.keyed_counts.shared_counts import FRACTION, SharedCounts, largest_square
from privstream.mechanisms.noise.routed import RoutedNoise, SourcesByName
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.privacy.accounting import GaussianCurve, counting_sigma, largest_shift

GIVEN = {"epsilon": 1.0, "delta": 1e-6, "horizon": 4}


def squares(cells, most, own, common):
    """Return v' S^-1 v of every person who is in so many counts at most, by the inverse of the whole matrix."""
    inverse = np.linalg.inv(own * np.eye(cells) + common)
    people = (np.array(v, float) for v in itertools.product((0, 1), repeat=cells) if 0 < sum(v) <= most)
    return [v @ inverse @ v for v in people]


@pytest.mark.parametrize(("cells", "most"), [(2, 2), (7, 7), (9, 3), (10, 6), (10, 2)])
def test_no_person_is_seen_by_more_than_the_shift(cells, most):
    counts = SharedCounts(**GIVEN, cells=cells, contributions=most)
    shift = largest_shift(1.0, 1e-6)
    found = squares(cells, most, *counts.variances)
    assert max(found) <= shift**2
    assert max(found) > 0.95 * shift**2  # nothing is wasted; persons come in whole counts
    assert max(found) <= largest_square(*counts.variances, cells, most) * (1 + 1e-9)
    own, common = counts.variances
    assert max(squares(cells, most, 0.85 * own, 0.85 * common)) > shift**2


def test_a_person_who_comes_step_by_step_is_seen_as_much():
    """What the adversary of the proof sees at each step: the shifts of independent numbers, by steps before alone."""
    counts = SharedCounts(**GIVEN, cells=6, contributions=6)
    own, common = counts.variances
    lower = np.linalg.cholesky(own * np.eye(6) + common)
    for person in itertools.product((0.0, 1.0), repeat=6):
        seen = np.linalg.solve(lower, np.array(person))
        for step in range(1, 6):
            begun = np.array([*person[:step], *[0.0] * (6 - step)])
            assert np.allclose(np.linalg.solve(lower, begun)[:step], seen[:step])
        assert seen @ seen <= largest_shift(1.0, 1e-6) ** 2


def masses(variance, reach):
    found = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    return found / found.sum()


@pytest.mark.parametrize("person", [(0, 1), (1, 1)])
def test_the_law_on_the_grid_exactly(person):
    """Two counts on a grid of whole numbers, all masses: no epsilon has a larger delta than the normal curve."""
    shift, reach = 0.4, 70
    root = math.sqrt(2)
    own, common = root * (root + 1) / (4 * shift**2), (root + 1) / (4 * shift**2)
    assert largest_square(own, common, 2, 2) == pytest.approx(shift**2)
    alone, shared = masses(own + 4, 2 * reach), masses(common, reach)
    law = np.zeros((2 * reach + 1,) * 2)
    for value, mass in zip(range(-reach, reach + 1), shared, strict=True):
        part = alone[np.arange(-reach, reach + 1) - value + 2 * reach]
        law += mass * np.outer(part, part)
    moved = np.zeros_like(law)
    moved[person[0] :, person[1] :] = law[: law.shape[0] - person[0], : law.shape[1] - person[1]]
    curve = GaussianCurve(shift=shift)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        for one, other in ((law, moved), (moved, law)):
            found = np.maximum(one - math.exp(epsilon) * other, 0.0)[5:-5, 5:-5].sum()
            assert found <= curve.delta(epsilon)
    widest = np.maximum(law - moved, 0.0).sum()
    assert widest > 0.7 * curve.delta(0.0)  # not much is given away by 4 in the variance, and by whole persons


def transcripts(counts, runs, person, seed, fresh=False):
    """Return the noisy counts of many runs of one count in each step, with a person's part: (runs, cells)."""
    found = []
    for run in range(runs):
        noise = SeededNoise(seed).derive("run", run)
        steps = []
        for step, there in enumerate(person):
            source = noise.derive("step", step) if fresh else noise
            steps.append(counts.release(b"", step, np.array([there]), source)[0])
        found.append(steps)
    return np.array(found, float)


def at_once(counts, runs, person, seed):
    """Return what `transcripts` does, of counts that are released in one call for all steps of a run."""
    root, steps, person = SeededNoise(seed), np.arange(len(person)), np.array(person)
    return np.array([counts.release_steps(steps, person, root.derive("run", run)) for run in range(runs)], float)


def seen(counts, person, released, runs, *, fresh=False):
    """Return how far apart the worlds are in the likelihood ratio, in deviations, and how far they may be."""
    own, common = counts.variances
    person = np.array(person)
    weights = person if fresh else np.linalg.solve(own * np.eye(counts.cells) + common, person)
    one, other = (released(counts, runs, given, seed) @ weights for seed, given in ((1, person), (2, 0 * person)))
    deviation = math.sqrt((one.var() + other.var()) / 2)
    return (one.mean() - other.mean()) / deviation, largest_shift(counts.epsilon, counts.delta)


@pytest.mark.slow
def test_an_attack_sees_what_is_claimed_and_no_more():
    counts = SharedCounts(epsilon=4.0, delta=1e-3, horizon=16, cells=16, contributions=16)
    person = [1] * 10 + [0] * 6  # the worst one: 16 / 2 + sqrt(16) / 2
    found, claimed = seen(counts, person, at_once, 2500)
    assert 0.85 * claimed < found < claimed + 6.5 * math.sqrt(2 / 2500)
    # Noise in common that is drawn anew in each step.
    broken, _ = seen(counts, [1] * 16, functools.partial(transcripts, fresh=True), 800, fresh=True)
    assert broken > claimed + 6.5 * math.sqrt(2 / 800)


def test_noise_is_as_large_as_is_said_and_in_common():
    counts = SharedCounts(**GIVEN, cells=3, contributions=3)
    drawn = transcripts(counts, 3000, (0, 0, 0), 5)
    error = 6.5 * math.sqrt(2 / 3000)
    for number in (1, 3):
        ratio = drawn[:, :number].mean(axis=1).var() / counts.stddev(number) ** 2
        assert abs(ratio - 1) < error
        assert abs(1.3**2 * ratio - 1) > error
        largest = counts.sum_tail_bound(number, 0.025)
        assert np.mean(np.abs(drawn[:, :number].sum(axis=1)) > largest) < 0.05 + 6.5 * math.sqrt(0.05 / 3000)
        assert np.mean(np.abs(drawn[:, :number].sum(axis=1)) > 0.7 * largest) > 0.08
    covariance = np.cov(drawn.T)[np.triu_indices(3, 1)].mean()
    assert covariance == pytest.approx(counts.variances[1], rel=0.25)


def test_labels():
    counts, noise, ten = SharedCounts(**GIVEN, cells=8, contributions=8), SeededNoise(3), np.array([10, 20])
    first = counts.release(b"a", 1, ten, noise)
    assert np.array_equal(counts.release(b"a", 1, ten, noise), first)
    other = counts.release(b"a", 1, ten + 1, noise) - 1  # bound to the counts
    assert not np.array_equal(other, first)
    assert not np.array_equal(counts.release(b"a", 2, ten, noise), first)
    assert not np.array_equal(counts.release(b"b", 1, ten, noise), first)
    assert not np.array_equal(replace(counts, cells=9).release(b"a", 1, ten, noise), first)


def test_labels_of_steps():
    counts, noise, ten = SharedCounts(**GIVEN, cells=8, contributions=8), SeededNoise(3), np.full(8, 10)
    steps = np.arange(1, 9)
    whole = counts.release_steps(steps, ten, noise)
    parts = [counts.release_steps(steps[part], ten[part], noise) for part in (slice(0, 3), slice(3, 8))]
    assert np.array_equal(np.concatenate(parts), whole)
    assert len(set(whole.tolist())) > 4
    more = 10**6 * (steps == 3)
    bound = counts.release_steps(steps, ten + more, noise) - more != whole
    assert np.flatnonzero(bound).tolist() == [2]
    assert not np.array_equal(replace(counts, streams=2).release_steps(steps, ten, noise), whole)


@pytest.mark.parametrize("streams", [2, 5])
def test_noise_for_several_streams_is_for_each_of_them(streams):
    one, many = (SharedCounts(**GIVEN, cells=9, contributions=9, streams=number) for number in (1, streams))
    assert np.array(many.variances) == pytest.approx(streams * np.array(one.variances))
    assert many.guarantee.limits == (f"A person is in at most 9 of 9 counts of each of at most {streams} streams.",)
    assert many.guarantee.curve == one.guarantee.curve


@pytest.mark.parametrize(
    ("cells", "most", "shared", "apart"),
    [(7, 7, 7.7, 11.2), (24, 24, 12.5, 20.7), (90, 90, 22.2, 40.1), (30, 8, 11.2, 12.0)],
)
def test_figures(cells, most, shared, apart):
    assert SharedCounts(**GIVEN, cells=cells, contributions=most).stddev() == pytest.approx(shared, abs=0.06)
    assert counting_sigma(1.0, 1e-6, most) == pytest.approx(apart, abs=0.06)


def test_guarantee_and_refusals():
    found = SharedCounts(**GIVEN, cells=8, contributions=3).guarantee
    assert (found.epsilon, found.delta, found.neighbouring) == (1.0, 1e-6, "add_remove")
    assert found.curve.delta(1.0) == pytest.approx(1e-6, rel=1e-6)
    assert found.curve.delta(1.0) <= 1e-6
    assert found.limits == ("A person is in at most 3 of 8 counts.",)
    good = {**GIVEN, "cells": 8, "contributions": 8}
    for name, value, message in (
        ("epsilon", 0.0, "epsilon must be"),
        ("delta", 0.0, r"delta must be in \(0, 1\), got 0"),
        ("cells", 1, "cells must be >= 2, got 1"),
        ("contributions", 9, "contributions must be <= cells 8, got 9"),
        ("contributions", 1, "contributions must be larger for noise that counts share, got 1"),
        ("horizon", 0, "horizon must be >= 1, got 0"),
        ("streams", 0, "streams must be >= 1, got 0"),
        ("streams", 2**28, "cells must be <= 4, got 8"),
        ("epsilon", 1e5, "epsilon must be smaller"),
    ):
        with pytest.raises(ValueError, match=message):
            SharedCounts(**{**good, name: value})
        assert SharedCounts.possible(**{**good, name: value}) is None
    assert SharedCounts.possible(**good) == SharedCounts(**good)
    assert 2**-FRACTION < 0.01


LIST = {"epsilon": 1.0, "delta": 1e-6, "public_keys": True}


def listed(cells, windows, most, /, **changes):
    """Return counts of a list."""
    return KeyedCounts(**(LIST | {"cells": cells, "horizon": windows, "contributions": most} | changes))


def of_windows(counts, steps, seed, keys=None):
    """Return the noise of a run without people, (windows, keys)."""
    keys = np.arange(counts.cells if keys is None else keys, dtype=np.uint64)
    state, found = counts.initial_state(keys), []
    for step in range(1, steps + 1):
        nobody = KeyedStep(step=step, keys=keys, counts=np.zeros(len(keys), np.int64))
        state, rows = counts.step(state, nobody, SeededNoise(seed))
        found.append(rows.counts)
    return np.array(found, float)


@pytest.mark.parametrize(
    ("cells", "windows", "most", "streams"), [(4, 3, 12, 1), (4, 3, 10, 1), (3, 2, 11, 2), (7, 1, 7, 1), (2, 8, 16, 1)]
)
def test_a_person_of_a_list_is_seen_by_no_more_than_the_shift(cells, windows, most, streams):
    """However the contributions are spread over windows of streams, all of which are tried."""
    counts = listed(cells, windows, most, streams=streams)
    common = counts.common_stddev**2
    own = counts.stddev(1) ** 2 - common
    covariance = own * np.eye(cells) + common
    alone = [np.ones(k) @ np.linalg.inv(covariance)[:k, :k] @ np.ones(k) for k in range(cells + 1)]
    spread = itertools.combinations_with_replacement(range(cells + 1), windows * streams)
    found = max(sum(alone[k] for k in person) for person in spread if sum(person) <= most)
    square = largest_shift(1.0, 1e-6) ** 2
    assert 0.93 * square < found <= square * (1 + 1e-9)  # persons come in whole counts
    assert found / 0.85**2 > square


def test_a_list_shares_noise_where_that_is_worth_it():
    counts, apart = listed(10, 13, 130), listed(10, 13, 130, cells=None)
    assert (round(counts.stddev(5), 1), round(counts.common_stddev, 1), round(apart.stddev(5), 1)) == (31.7, 15.5, 48.2)
    assert counts.guarantee.proof.endswith("Theorem 8") and counts.guarantee.curve == apart.guarantee.curve
    assert "have a part of their noise in common, with a standard deviation of 15.5" in counts.accuracy.claim
    assert counts.accuracy.numbers["common_stddev"] == counts.common_stddev
    least = replace(counts, max_value=10)
    assert least.common_stddev > counts.common_stddev and least.stddev(1, "sum") == replace(apart, max_value=10).stddev(
        1, "sum"
    )
    told = replace(counts, full_share=0.19)
    assert told.stddev(1) == pytest.approx(counts.stddev(1) / 0.9, rel=1e-3)
    assert told.left_out.stddevs == replace(apart, full_share=0.19).left_out.stddevs


@pytest.mark.parametrize(
    "changes",
    [
        {"neighbouring": "replace_one"},
        {"delta": 0.0},
        {"horizon": None},
        {"contributions": 13},
        {"cells": 1, "contributions": 13},
        {"cells": None},
        {"streams": 13},
        {"over": "start", "contributions_per_key": 1},
        {"over": 3},
        {"horizon": 1, "contributions": 2, "cells": 2, "epsilon": 3.0},  # Laplace noise
        {"unit": "event", "contributions": 1},
        {"epsilon": 3000.0},  # finer than the grid
        {"epsilon": 1e-9, "delta": 1e-12},  # no normal noise is wide enough
    ],
    ids=str,
)
def test_elsewhere_noise_and_labels_of_a_list_are_as_they_were(changes):
    counts = listed(10, 13, 130, **changes)
    before = replace(counts, cells=None, streams=1)
    assert counts.common_stddev == 0 and not any(isinstance(noise, SharedNoise) for noise in counts.law.noises)
    assert counts.parameters == before.parameters
    assert counts.law.noises == before.law.noises
    assert "in common" not in counts.accuracy.claim and "common_stddev" not in counts.accuracy.numbers


def test_cells_and_streams_are_checked():
    with pytest.raises(ValueError, match="cells must be None unless the list of items is public, got 3"):
        listed(3, 2, 6, public_keys=False)
    for name in ("cells", "streams"):
        with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
            listed(3, 2, 6, **{name: 0})


def test_more_keys_than_cells_are_refused():
    """The mean of those in which a person is not would be the noise in common, which could be subtracted."""
    counts = listed(30, 1, 30)
    assert len(of_windows(counts, 1, 1, keys=30)[0]) == 30
    with pytest.raises(ValueError, match="keys must be at most 30 of a stream, as cells says, got 31"):
        of_windows(counts, 1, 1, keys=31)


def test_noise_of_a_list_is_as_large_as_is_said_and_in_common_in_each_window():
    counts = listed(5, 1000, 5000)
    drawn = of_windows(counts, 1000, 3)
    noise, error = counts.law.noises[0], 6.5 * math.sqrt(2 / 1000)
    for weights in (np.eye(5)[0], np.ones(5), np.array([1.0, -1.0, 0, 0, 0]), np.array([0.5, -1.0, 0.3, 1.0, 0.0])):
        norms, total = np.linalg.norm(weights, keepdims=True), np.abs(weights).sum(keepdims=True)
        own = counts.stddev(1) ** 2 - counts.common_stddev**2
        ratio = (drawn @ weights).var() / (own * norms[0] ** 2 + (counts.common_stddev * weights.sum()) ** 2)
        assert abs(ratio - 1) < error
        assert abs(1.3**2 * ratio - 1) > error
        bound = noise.sums_tail_bound(1, 0.025, norms, total)[0]
        assert np.mean(np.abs(drawn @ weights) > bound) < 0.05 + 6.5 * math.sqrt(0.05 / 1000)
    outside = np.mean(np.abs(drawn) > noise.tail_bound(1, 0.025))
    assert 0.03 < outside < 0.07
    of_four = drawn.reshape(-1, 4, 5).sum(axis=1)
    four = counts._summed_noise("count", 4)
    assert of_four.var() == pytest.approx(four.variance(4), rel=0.2)
    assert np.mean(np.abs(of_four) > four.tail_bound(4, 0.025)) < 0.08
    assert np.mean(np.abs(of_four) > 0.7 * four.tail_bound(4, 0.025)) > 0.1
    assert four.largest_step(9) == 4 and four.tail_bound(2, 0.01) < four.tail_bound(4, 0.01) == four.tail_bound(9, 0.01)


def test_shards_of_a_list_have_the_noise_of_the_whole_and_streams_one_each():
    counts, steps = listed(4, 2, 16, streams=2), np.array([0, 1, 2, 3] * 2, np.uint64)
    codes, sources = np.repeat([0, 1], 4), SourcesByName(lambda name: SeededNoise(5).derive(name))

    def noise_of(rows):
        source = RoutedNoise(sources, ["s", "t"], codes[rows], steps[rows])
        keys = np.arange(len(rows), dtype=np.uint64)
        there = KeyedStep(step=1, keys=keys, counts=np.full(len(rows), 7))
        return counts.step(counts.initial_state(keys), there, source)[1].counts

    whole = noise_of(np.arange(8))
    for rows in (np.array([0, 5]), np.array([7, 2, 3]), np.array([4])):
        assert np.array_equal(noise_of(rows), whole[rows])
    alone = counts.step(
        counts.initial_state(steps[:4]), KeyedStep(step=1, keys=steps[:4], counts=np.full(4, 7)), sources["s"]
    )
    assert np.array_equal(alone[1].counts, whole[:4])
    assert len(set(whole.tolist())) > 4


def test_labels_and_state_of_a_list_are_its_own():
    counts = listed(4, 3, 12)
    apart, ten = replace(counts, cells=None), np.full(4, 10)
    keys = np.arange(4, dtype=np.uint64)
    with pytest.raises(SnapshotError):
        counts.restore(apart.snapshot(apart.initial_state(keys)))
    assert counts.restore(counts.snapshot(counts.initial_state(keys))).step == 0

    def first(mechanism, there, seed=1):
        given = KeyedStep(step=1, keys=keys, counts=there)
        return mechanism.step(mechanism.initial_state(keys), given, SeededNoise(seed))[1].counts

    found = first(counts, ten)
    assert np.array_equal(first(counts, ten), found)
    other = first(counts, ten + np.array([0, 1, 0, 0])) - np.array([0, 1, 0, 0])
    assert np.flatnonzero(other != found).tolist() == [1]  # bound to its count
    assert not np.array_equal(first(apart, ten), found)


def test_golden_counts_of_a_list():
    """Whoever changes these numbers changes noise: the label needs another version then."""
    assert of_windows(listed(4, 2, 8), 2, 7).astype(int).tolist() == [[-16, -2, -17, -20], [-4, -1, -5, -8]]


@pytest.mark.slow
def test_an_attack_on_a_list_sees_what_is_claimed_and_no_more(monkeypatch):
    counts = listed(6, 2, 12, epsilon=4.0, delta=1e-3)
    person = np.repeat([1.0, 0.0], [4, 2])  # of each window, as many as are hidden least
    common = counts.common_stddev**2
    weights = np.linalg.solve((counts.stddev(1) ** 2 - common) * np.eye(6) + common, person)

    def seen(runs=2000):
        scores = np.array([(of_windows(counts, 2, run) @ weights).sum() for run in range(runs)])
        return 2 * person @ weights / scores.std(), largest_shift(4.0, 1e-3)

    found, claimed = seen()
    error = 6.5 * math.sqrt(1 / (2 * 2000))
    assert (0.9 - error) * claimed < found < (1 + error) * claimed
    real = SharedNoise.advance

    def fresh(noise, memory, step, keys, facts, source):
        """Draw what should be in common for each count by itself."""
        each = [real(noise, memory, step, keys[[i]], [facts[0][[i]]], source.derive(i)) for i in range(len(keys))]
        return np.concatenate(each)

    monkeypatch.setattr(SharedNoise, "advance", fresh)
    weights = person
    broken, _ = seen()
    assert broken > (1 + error) * claimed
