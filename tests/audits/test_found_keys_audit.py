"""Exact privacy of found keys, by `FoundKeys` itself: all noise of a small law is tried, in three windows.

Key number j of a run has the j-th vector of noise, so one run gives the law of all that may be seen of one key. Delta
is the largest over neighbouring inputs, both ways; variants that are broken must show more than is promised.
"""

import functools
import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from attacks import at_least
from laws import FALSE_ALARM
from privstream.mechanisms import FoundKeys, KeyedStep, SeededNoise
from privstream.mechanisms.keyed_counts import calibration, found_keys
from privstream.mechanisms.keyed_counts.calibration import KeyLaw
from privstream.mechanisms.noise.discrete import DiscreteNoise
from privstream.mechanisms.noise.running import IndependentNoise
from privstream.mechanisms.privacy.accounting import PureDp

WINDOWS = 3  # and so blocks of 1 and 2 of them
EPSILONS = (0.8, 2.0)
DELTA = 0.0465  # delta_2: thresholds are whole numbers, which here lose little of it
OTHERS = (0, 1, 6, 12)  # people in a window beside u: none, hardly any, some that noise decides about, plenty
FEWER = (0, 1, 12)
ROUNDING = 1e-12


@dataclass(frozen=True)
class Unbound:
    """A source that leaves labels as they are, so that all noise can be tried."""

    def derive(self, *path):
        return self

    def bind(self, labels, values):
        return labels

    def words(self, labels, lanes=1):
        raise AssertionError

    hash_bytes = words


class SmallLaw:
    """A discrete Gaussian that is cut off. Label (j, t) has the number that the j-th vector of noise has at step t."""

    sigma: float = 2.0
    reach: int = 8

    @property
    def numbers(self):
        return np.arange(-self.reach, self.reach + 1)

    @property
    def masses(self):
        weights = np.exp(-((self.numbers / self.sigma) ** 2) / 2)
        return weights / weights.sum()

    @property
    def variance(self):
        return float(self.masses @ self.numbers**2)

    def vectors(self, steps):
        """Return all vectors of noise, (vectors, steps), and their probabilities."""
        axes = np.meshgrid(*[self.numbers] * steps, indexing="ij")
        weights = functools.reduce(np.multiply.outer, [self.masses] * steps)
        return np.stack([axis.ravel() for axis in axes], axis=1), weights.ravel()

    draw_bound = DiscreteNoise.draw_bound

    def draw(self, source, labels):
        vectors, _ = drawn_vectors(self)
        return vectors[labels[:, 0].astype(int), labels[:, 1].astype(int) - 1]


@functools.cache
def drawn_vectors(law):
    return law.vectors(WINDOWS)


class ExactTails(IndependentNoise):
    """Sums of the small law, of which tails are known."""

    def tail_bound(self, step, tail):
        masses, summed = self.law.masses, np.ones(1)
        for _ in range(self.windows):
            summed = np.convolve(summed, masses)
        above = 1 - np.cumsum(summed)
        return int(np.argmax(above <= tail)) - len(summed) // 2


LAW = SmallLaw()


def made(*, kind=FoundKeys, scale=None, pruned=True, **fields):
    """Return the mechanism with thresholds of its own for the small law.

    Args:
        kind: of mechanism.
        scale: in place of what makes the thresholds of one scale.
        pruned: whether keys with few contributions are left untested; without, more of delta is used up.
        fields: others.
    """
    mechanism = kind(**{"epsilon": 1.0, "delta": 1e-2, "contributions": 2, "horizon": WINDOWS} | fields)
    bounds = vars(mechanism)["bounds"] = replace(mechanism.bounds, listed=0)  # another audit is about lists
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "LENGTHS", tuple(1 << level for level in range(WINDOWS.bit_length())))
        if not pruned:
            patch.setattr(calibration, "_PRUNED", 0)
        if scale is not None:
            patch.setattr(calibration, "_scale", functools.partial(scale, calibration._scale))
        law = KeyLaw((ExactTails(LAW),), PureDp(1.0), DELTA, bounds)
        vars(mechanism)["law"] = calibration._with_tests(law)
    return mechanism


def states_and_rows(mechanism, counts, **known):
    """Return the state and what is seen of as many keys as there are vectors of noise, all with the same counts."""
    number = len(drawn_vectors(LAW)[0])
    state, published = mechanism.initial_state(**known), []
    for step, count in enumerate(counts, start=1):
        keys = np.arange(number if count else 0, dtype=np.uint64)
        given = KeyedStep(step=step, keys=keys, counts=np.full(len(keys), count))
        state, rows = mechanism.step(state, given, Unbound())
        published.append(rows)
    return state, published


def seen(mechanism, counts, **known):
    """Return the step at which each key is found, 0 if it is not, and what is published of it, (steps, keys)."""
    return read(states_and_rows(mechanism, counts, **known)[1])


def read(published):
    number, steps = len(drawn_vectors(LAW)[0]), len(published)
    found, values, times = np.zeros(number, int), np.zeros((steps, number), int), np.zeros(number, int)
    for rows in published:
        keys = rows.keys.astype(int)
        found[keys[found[keys] == 0]] = rows.step
        for some in (rows, *rows.earlier):
            values[some.step - 1, some.keys.astype(int)] = some.counts
            times[some.keys.astype(int)] += 1
    assert np.all(times == np.where(found > 0, steps, 0)), "each value is published once"
    return found, values


def transcripts(mechanism, counts):
    """Return the probability of everything that may be seen of a key."""
    found, values = seen(mechanism, counts)
    return law_of(found, values, drawn_vectors(LAW)[1])


def law_of(found, values, weights):
    """Return numbers for what may be seen, increasing, and how likely each is."""
    codes = found.copy()
    for row in values:
        codes = codes * 100 + np.where(found > 0, row + 50, 0)
    codes, places = np.unique(codes, return_inverse=True)
    return codes, np.bincount(places, weights)


def divergence(one, other, epsilon):
    """Return delta at epsilon, both ways."""
    factor = math.exp(epsilon)
    codes, places = np.unique(np.concatenate([one[0], other[0]]), return_inverse=True)
    p = np.bincount(places[: len(one[0])], one[1], len(codes))
    q = np.bincount(places[len(one[0]) :], other[1], len(codes))
    return float(max(np.maximum(0, p - factor * q).sum(), np.maximum(0, q - factor * p).sum()))


@functools.cache
def of_all_answers(epsilon, persons):
    """Return delta_1: that of what M publishes, u (and v) contributing at most twice."""
    ways = [np.array(way) for way in itertools.product((0, 1), repeat=WINDOWS) if sum(way) <= 2]
    moves = {tuple(u - v if persons == 2 else u) for u in ways for v in ways}
    vectors, weights = drawn_vectors(LAW)
    always = np.ones(len(vectors), int)
    return max(
        divergence(*(law_of(always, (vectors + np.array(x)).T, weights) for x in (move, [0] * WINDOWS)), epsilon)
        for move in moves
    )


def neighbours(persons, levels):
    """Return pairs of inputs of one key: what others do, and u with at most two contributions (or v instead)."""
    ways = [np.array(way) for way in itertools.product((0, 1), repeat=WINDOWS) if sum(way) <= 2]
    for others in itertools.product(levels, repeat=WINDOWS):
        for u, v in itertools.combinations(ways, 2) if persons == 2 else [(way, ways[0]) for way in ways[1:]]:
            yield tuple((others + u).tolist()), tuple((others + v).tolist())


def worst_of(transcripts_of, pairs):
    """Return the largest delta at each epsilon, and where it is."""
    cached, worst = functools.cache(transcripts_of), dict.fromkeys(EPSILONS, (0.0, None))
    for pair in pairs:
        for epsilon in EPSILONS:
            delta = divergence(*map(cached, pair), epsilon)
            worst[epsilon] = max(worst[epsilon], (delta, pair), key=lambda one: one[0])
    return worst


def promised(mechanism, epsilon):
    """Return delta_1 + delta_2."""
    return of_all_answers(epsilon, 1) + DELTA


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "levels", "visible"), [
    ({"pruned": False}, OTHERS, (0.65, 0.5)), ({}, OTHERS, (0.65, 0.35)), ({"min_people": 2}, FEWER, (0.65, 0.35)),
])  # fmt: skip
def test_what_is_seen_of_a_key_stays_within_both_deltas(fields, levels, visible):
    mechanism = made(**fields)
    found = worst_of(functools.partial(transcripts, mechanism), neighbours(1, levels))
    for (epsilon, (delta, pair)), share in zip(found.items(), visible, strict=True):
        print(f"\nepsilon {epsilon}: found {delta:.5f} of {promised(mechanism, epsilon):.5f}, {pair}")
        assert share * promised(mechanism, epsilon) < delta <= promised(mechanism, epsilon) + ROUNDING


def broken(mechanism, transcripts_of, pairs, epsilon, beyond=1.0):
    """Check that some of the pairs show more than is promised."""
    delta = max(divergence(*map(transcripts_of, pair), epsilon) for pair in pairs)
    print(f"\nbroken: {delta:.5f} against {promised(mechanism, epsilon):.5f}")
    assert delta > beyond * promised(mechanism, epsilon)


BARE = [
    {"contributions": 1, "horizon": 15}, {"contributions": 8, "horizon": 15}, {"contributions": 40, "horizon": 7},
]  # fmt: skip


def found_of_one_person(mechanism, keys):
    """Return how many of so many keys are found; one person alone has each, as often as may be, from window 8 on."""
    steps = mechanism.horizon
    first = steps // 2 + 1
    state, times = mechanism.initial_state(), min(mechanism.contributions, steps - first + 1)
    for step in range(1, steps + 1):
        numbers = np.arange(keys if first <= step < first + times else 0, dtype=np.uint64)
        given = KeyedStep(step=step, keys=numbers, counts=np.ones(len(numbers), np.int64),
                          listed=np.zeros(len(numbers), np.int64) if mechanism.listed else None)  # fmt: skip
        state, _ = mechanism.step(state, given, SeededNoise(1))
    return len(state.found), times


@pytest.mark.parametrize("fields", BARE)
def test_keys_of_one_person_are_found_as_seldom_as_stated(fields):
    """Noise and thresholds as they are, with a large delta; other windows than those of the person have nobody."""
    mechanism, keys = FoundKeys(epsilon=1.0, delta=0.1, **fields), 30_000
    found, times = found_of_one_person(mechanism, keys)
    allowed = mechanism.law.slack * times / mechanism.contributions * keys
    print(f"\nfound {found}, allowed {allowed:.0f}")
    assert 0.1 * allowed < found
    assert at_least(found, keys, FALSE_ALARM) * keys < allowed


@pytest.mark.parametrize("forgotten", ["nothing", "blocks", "scales"])
def test_tests_that_are_not_paid_for_are_seen(forgotten, monkeypatch):
    """Negative controls: a contribution lies in up to four blocks of a scale, and in blocks of four scales."""
    scale, keys = calibration._scale, 200_000

    def unpaid(noise, tail, bounds, windows):
        more = {"nothing": 1, "blocks": min(windows, 4), "scales": 4}[forgotten]
        return scale(noise, tail * more, bounds, windows)

    monkeypatch.setattr(calibration, "_scale", unpaid)
    monkeypatch.setattr(calibration, "_PRUNED", 0)
    monkeypatch.setattr(found_keys, "calibrate_discovery", calibration.calibrate_discovery.__wrapped__)
    monkeypatch.setattr(calibration, "LENGTHS", (1, 2, 4, 8))
    mechanism = FoundKeys(epsilon=0.3, delta=0.01, horizon=15, unit="event")
    found, _ = found_of_one_person(mechanism, keys)
    print(f"\nbroken: {found / keys:.4f} against {mechanism.delta}")
    if forgotten == "nothing":
        assert 0.3 * mechanism.delta < found / keys < mechanism.delta
    else:
        assert at_least(found, keys, FALSE_ALARM) > mechanism.delta


class NoNoiseWithoutPeople(FoundKeys):
    """Windows in which a key has nobody have no noise."""

    def _noisy(self, keys, true, first, names, source):
        return np.where(true > 0, super()._noisy(keys, true, first, names, source), 0)


def test_noise_that_windows_without_people_do_not_have_is_missed():
    """Negative control: in tests and in what is published."""
    mechanism = made(kind=NoNoiseWithoutPeople)
    broken(mechanism, functools.partial(transcripts, mechanism), [((1, 0, 12), (0, 0, 12))], 0.8, beyond=4)
