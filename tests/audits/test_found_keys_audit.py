"""Exact privacy of keys that stay found, by `FoundKeys` itself: all noise of a small law is tried, in three windows.

Key number j of a run has the j-th vector of noise, so one run gives the law of all that may be seen of one key. Delta
is the largest over neighbouring inputs, both ways; variants that are broken must show more than is promised.
"""

import functools
import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from laws import FALSE_ALARM
from privstream.mechanisms import FoundKeys, KeyedStep, SeededNoise
from privstream.mechanisms.keyed_counts import discovery, found_keys
from privstream.mechanisms.keyed_counts.calibration import KeyLaw
from privstream.mechanisms.keyed_counts.key_noise import ToeplitzNoise
from privstream.mechanisms.noise.correlated import BandedFactor
from privstream.mechanisms.privacy.accounting import PureDp
from privstream.pipelines.audit.evidence import at_least
from small_runs import Unbound

WINDOWS = 3  # and so blocks of 1 and 2 of them
EPSILONS = (0.8, 2.0)
DELTA = 0.0465  # delta_2: thresholds are whole numbers, which here lose little of it
OTHERS = (0, 1, 6, 12)  # people in a window beside u: none, hardly any, some that noise decides about, plenty
FEWER = (0, 1, 12)
ROUNDING = 1e-12


@dataclass(frozen=True)
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

    def draw(self, source, labels):
        vectors, _ = drawn_vectors(self)
        return vectors[labels[:, 0].astype(int), labels[:, 1].astype(int) - 1]


@functools.cache
def drawn_vectors(law):
    return law.vectors(WINDOWS)


class ExactTails(ToeplitzNoise):
    """Sums of the small law, of which tails are known."""

    def tail_bound(self, step, tail):
        masses, summed = self.law.masses, np.ones(1)
        for _ in range(step if self.span is None else min(step, self.span)):
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
        patch.setattr(discovery, "ToeplitzNoise", ExactTails)
        if not pruned:
            patch.setattr(discovery, "_PRUNED", 0)
        if scale is not None:
            patch.setattr(discovery, "_scale", functools.partial(scale, discovery._scale))
        noise = ExactTails(BandedFactor(1, 1), LAW, 0, 1)
        law = KeyLaw((noise,), PureDp(1.0), DELTA / bounds.contributions, bounds)
        lengths = tuple(1 << level for level in range(WINDOWS.bit_length()))
        vars(mechanism)["law"] = discovery._with_scales(law, lengths)
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
                          listed=np.zeros(len(numbers), np.int64) if mechanism.lists(step) else None)  # fmt: skip
        state, _ = mechanism.step(state, given, SeededNoise(1))
    return len(state.found), times


@pytest.mark.parametrize("fields", BARE)
def test_keys_of_one_person_are_found_as_seldom_as_stated(fields):
    """Noise and thresholds as they are, with a large delta; other windows than those of the person have nobody."""
    mechanism, keys = FoundKeys(epsilon=1.0, delta=0.1, **fields), 30_000
    found, times = found_of_one_person(mechanism, keys)
    allowed = mechanism.law.curve.slack * times / mechanism.contributions * keys
    print(f"\nfound {found}, allowed {allowed:.0f}")
    assert 0.1 * allowed < found
    assert at_least(found, keys, FALSE_ALARM) * keys < allowed


@pytest.mark.parametrize("forgotten", ["nothing", "blocks", "scales"])
def test_tests_that_are_not_paid_for_are_seen(forgotten, monkeypatch):
    """Negative controls: a contribution lies in up to four blocks of a scale, and in blocks of four scales."""
    scale, keys = discovery._scale, 200_000

    def unpaid(noise, tail, bounds, windows):
        more = {"nothing": 1, "blocks": min(windows, 4), "scales": 4}[forgotten]
        return scale(noise, tail * more, bounds, windows)

    monkeypatch.setattr(discovery, "_scale", unpaid)
    monkeypatch.setattr(discovery, "_PRUNED", 0)
    monkeypatch.setattr(found_keys, "calibrate_discovery", discovery.calibrate_discovery.__wrapped__)
    monkeypatch.setattr(discovery, "LENGTHS", (1, 2, 4, 8))
    mechanism = FoundKeys(epsilon=0.3, delta=0.01, horizon=15, unit="event")
    found, _ = found_of_one_person(mechanism, keys)
    print(f"\nbroken: {found / keys:.4f} against {mechanism.delta}")
    if forgotten == "nothing":
        assert 0.3 * mechanism.delta < found / keys < mechanism.delta
    else:
        assert at_least(found, keys, FALSE_ALARM) > mechanism.delta


class NoNoiseWithoutPeople(FoundKeys):
    """Windows in which a key has nobody have no noise."""

    def _noise_of_steps(self, keys, true, first, source, answer, last=None):
        return np.where(true > 0, super()._noise_of_steps(keys, true, first, source, answer, last), 0)


def test_noise_that_windows_without_people_do_not_have_is_missed():
    """Negative control: in tests and in what is published."""
    mechanism = made(kind=NoNoiseWithoutPeople)
    broken(mechanism, functools.partial(transcripts, mechanism), [((1, 0, 12), (0, 0, 12))], 0.8, beyond=4)


def with_other_noise(mechanism, counts, *, published):
    """Return the law of what is seen if noise is drawn anew for windows before a key is found, or for all of them.

    Args:
        mechanism: finds keys.
        counts: of a key.
        published: whether also the count of the window in which the key is found is not the one that was tested.
    """
    found, values = seen(mechanism, counts)
    vectors, weights = drawn_vectors(LAW)
    parts = [(np.zeros(1, int), np.zeros((WINDOWS, 1), int), weights[found == 0].sum(keepdims=True))]
    for step in range(1, WINDOWS + 1):
        fresh, times = vectors + counts, weights * weights[found == step].sum()
        if not published:  # the number of this window is the one that was tested
            tested = np.bincount(values[step - 1] + 50, weights * (found == step), 100)
            times = weights / LAW.masses[vectors[:, step - 1] + LAW.reach] * tested[fresh[:, step - 1] + 50]
        parts.append((np.full(len(fresh), step), fresh.T, times))
    return law_of(*(np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)))


@pytest.mark.parametrize(("published", "beyond"), [(False, 1.05), (True, 1.15)])
def test_noise_that_is_not_the_one_that_was_tested_is_missed(published, beyond):
    """Negative control: that a key is found, and when, says more about its counts than what is published of it."""
    law_of_counts = functools.partial(with_other_noise, made(pruned=False), published=published)
    broken(made(pruned=False), law_of_counts, [((5, 5, 12), (4, 4, 12))], 0.8, beyond)


# Two keys, and a person who contributes where it is best, by what was seen.

LEVELS = 40  # values of a published count, from -10 on
PEOPLE = (0, 12)


def in_two_windows(mechanism, counts, **known):
    """Return the law of what is seen of a key after two windows: not found, found at the first, or at the second.

    Shapes: (), (y_1, y_2), (y_1, y_2).
    """
    found, values = seen(mechanism, counts, **known)
    places = (found * LEVELS + values[0] + 10) * LEVELS + values[1] + 10
    table = np.bincount(places, drawn_vectors(LAW)[1], 3 * LEVELS**2).reshape(3, LEVELS, LEVELS)
    return table[0].sum(), table[1], table[2]


class AfterOneWindow:
    """What is seen of a key, without and with u, split by what is seen after the first window."""

    def __init__(self, laws, first, second, with_u):
        pair = [laws(tuple(x)) for x in (np.array((first, second)), np.array((first, second)) + with_u)]
        hidden = np.stack([np.append(law[2].ravel(), law[0]) for law in pair])
        self.hidden = hidden[:, hidden.any(axis=0)]
        self.shown = np.stack([law[1] for law in pair], axis=1)  # (y_1, world, y_2)

    def __getitem__(self, seen):
        return self.hidden if seen is None else self.shown[seen]


def adaptive(laws, epsilon, first, *, adaptively):
    """Return the largest divergence that is reached from `first`: of each key, people, and whether u is among them.

    `laws`: of each key. Both ways.
    What others and u do in the second window is chosen for every outcome of the first, or once.
    """
    left = 2 - sum(u for _, u in first)
    choices = [
        ((a, u), (b, v)) for a, b in itertools.product(PEOPLE, repeat=2) for u, v in ((0, 0), (0, 1), (1, 0), (1, 1))
        if u + v <= left
    ]  # fmt: skip
    shown = [None, *range(LEVELS)]
    factor = math.exp(epsilon)
    gains = []
    for choice in choices:
        keys = [AfterOneWindow(law, a, b, (u, v)) for law, (a, u), (b, v) in zip(laws, first, choice, strict=True)]
        gain = np.zeros((2, len(shown), len(shown)))
        for i, j in itertools.product(range(len(shown)), repeat=2):
            one, other = keys[0][shown[i]], keys[1][shown[j]]
            if one.any() and other.any():
                without, with_u = (np.multiply.outer(one[world], other[world]) for world in (0, 1))
                gain[0, i, j] = np.maximum(0, with_u - factor * without).sum()
                gain[1, i, j] = np.maximum(0, without - factor * with_u).sum()
        gains.append(gain)
    if adaptively:
        return float(np.max(gains, axis=0).sum(axis=(1, 2)).max())
    return float(np.sum(gains, axis=(2, 3)).max())


FIRST = [((0, 1), (0, 0)), ((4, 0), (0, 1)), ((12, 0), (0, 1)), ((12, 1), (0, 0)), ((0, 1), (0, 1)), ((4, 1), (4, 0))]


def test_a_person_who_contributes_by_what_was_seen_of_two_keys_stays_within_both_deltas():
    mechanism = made(pruned=False)
    laws = functools.cache(functools.partial(in_two_windows, mechanism))
    for epsilon in EPSILONS:
        found = {f: adaptive((laws, laws), epsilon, f, adaptively=True) for f in FIRST}
        fixed = {f: adaptive((laws, laws), epsilon, f, adaptively=False) for f in FIRST}
        most = max(found.values()), max(fixed.values())
        print(f"\nepsilon {epsilon}: found {most[0]:.5f}, fixed {most[1]:.5f}, of {promised(mechanism, epsilon):.5f}")
        assert max(found.values()) <= promised(mechanism, epsilon)
        assert all(fixed[f] <= found[f] + ROUNDING for f in FIRST)
        assert max(found.values()) > 0.5 * promised(mechanism, epsilon)


# A public list beside keys that are found.


def on_list(mechanism):
    """Return how many keys are public where all of them are."""
    return {"public": len(drawn_vectors(LAW)[0])}


def test_a_key_of_a_public_list_costs_no_delta_for_being_found():
    """All that is seen of it is what M gives, also of a key that nobody else has."""
    mechanism = made(pruned=False)

    def transcripts_of(counts):
        return law_of(*seen(mechanism, counts, **on_list(mechanism)), drawn_vectors(LAW)[1])

    for epsilon, (delta, pair) in worst_of(transcripts_of, neighbours(1, FEWER)).items():
        print(f"\nepsilon {epsilon}: {delta:.5f} of {of_all_answers(epsilon, 1):.5f}, {pair}")
        assert delta == pytest.approx(of_all_answers(epsilon, 1), abs=ROUNDING)


def test_a_person_who_contributes_by_what_was_seen_of_a_public_key_stays_within_both_deltas():
    """The first key is on the list, and its noise is seen at once; the other one is to be found."""
    mechanism = made(pruned=False)
    laws = [
        functools.cache(functools.partial(in_two_windows, mechanism, **known)) for known in (on_list(mechanism), {})
    ]
    for epsilon in EPSILONS:
        found = max(adaptive(laws, epsilon, first, adaptively=True) for first in FIRST)
        print(f"\nepsilon {epsilon}: {found:.5f} of {promised(mechanism, epsilon):.5f}")
        assert 0.5 * promised(mechanism, epsilon) < found <= promised(mechanism, epsilon)


def test_noise_of_a_public_key_must_not_be_that_of_a_run_in_which_it_is_tested():
    """Negative control: one run has published the noise of keys that nobody had; in another, without the list, u
    contributes to the key that had most in the window before.
    """
    mechanism = made(pruned=False, contributions=1)
    _, published = seen(mechanism, (0, 0, 0), **on_list(mechanism))
    vectors, weights = drawn_vectors(LAW)
    assert np.array_equal(published, vectors.T), "all of its noise is seen"
    found, _ = seen(mechanism, (0, 1, 0))
    chances = np.bincount(published[0] + LAW.reach, weights * (found > 0)) / LAW.masses
    known, claimed = largest_of(KEYS) @ chances, of_all_answers(2.0, 1) + DELTA
    print(f"\nseen {known:.5f}, claimed {claimed:.5f}")
    assert known > 1.5 * claimed


# What is carried over, and noise that has been seen.


def after_a_period(mechanism, counts, carried_of):
    """Return the law of what is seen of a key in a period, and whether it is on the list that is carried over."""
    state, published = states_and_rows(mechanism, counts)
    listed = np.zeros(len(drawn_vectors(LAW)[0]), int)
    listed[carried_of(state)] = 1
    found, values = read(published)
    return law_of(found * 2 + listed, values, drawn_vectors(LAW)[1]), (found, values, listed)


def held(state):
    """Return keys that somebody had, or that are found: what must not be carried over."""
    return np.unique(np.concatenate([state.found, *(window.keys for window in state.windows)]))


def test_the_list_that_is_carried_over_says_nothing_more():
    mechanism = made()
    for pair in [((1, 1, 12), (0, 0, 12)), ((4, 5, 0), (4, 4, 0)), ((1, 0, 0), (0, 0, 0))]:
        laws = []
        for counts in pair:
            law, (found, values, listed) = after_a_period(mechanism, counts, mechanism.lasting)
            rows = [tuple(row) for row in np.vstack([found, values, listed]).T.tolist()]
            assert len({row[:-1] for row in rows}) == len(set(rows))
            laws.append(law)
        assert divergence(*laws, 0.8) == pytest.approx(divergence(*(transcripts(mechanism, x) for x in pair), 0.8))


def test_a_list_of_keys_that_were_not_published_is_seen():
    """Negative control: keys that somebody had are carried over."""
    broken(made(), lambda counts: after_a_period(made(), counts, held)[0], [((1, 0, 0), (0, 0, 0))], 0.8, beyond=5)


KEYS = 30  # of which some noise has been seen


def largest_of(number):
    """Return the law of the largest of so many numbers."""
    below = np.cumsum(LAW.masses)
    return np.diff(below**number, prepend=0.0)


def found_given(mechanism, counts, place, step):
    """Return how likely a key is found at a step or later, for each number that its noise may have at `place`."""
    found, _ = seen(mechanism, counts)
    vectors, weights = drawn_vectors(LAW)
    number = vectors[:, place - 1] + LAW.reach
    return np.bincount(number, weights * (found >= step)) / LAW.masses


def test_a_replay_with_other_data_is_seen_where_noise_was_seen_before():
    """Negative control: others made keys known at window 2, so noise of window 1 was published; now u is alone.

    u contributes, at window 2, to the key with the largest noise there, which lies in the block of windows 1 and 2.
    """
    mechanism = made(pruned=False, contributions=1)
    assert np.all(seen(mechanism, (0, 30, 0))[0] > 0)
    chances = found_given(mechanism, (0, 1, 0), 1, 1)
    unknown, known = LAW.masses @ chances, largest_of(KEYS) @ chances
    claimed = of_all_answers(2.0, 1) + DELTA
    print(f"\nfresh noise {unknown:.5f}, seen {known:.5f}, claimed {claimed:.5f}")
    assert 0.2 * claimed < unknown <= DELTA
    assert known > 1.5 * claimed


class Forgetful(FoundKeys):
    """After window 2 the keys that were found are to be found again, with the noise that they have."""

    def step(self, state, given, noise):
        after, rows = super().step(state, given, noise)
        if given.step == 2:
            after.found_at[:] = -1
        return after, rows


def test_keys_that_are_tested_again_with_noise_that_was_seen_are_missed():
    """Negative control: others made a key known at window 1; u alone contributes at window 3, noise of 2 was seen."""
    mechanism = made(pruned=False, contributions=1, kind=Forgetful)
    _, published = states_and_rows(mechanism, (30, 0, 1))
    again = np.zeros(len(drawn_vectors(LAW)[0]), bool)
    again[published[2].keys.astype(int)] = True
    vectors, weights = drawn_vectors(LAW)
    chances = np.bincount(vectors[:, 1] + LAW.reach, weights * again) / LAW.masses
    known, claimed = largest_of(KEYS) @ chances, of_all_answers(2.0, 1) + DELTA
    assert not len(states_and_rows(mechanism, (30, 0, 0))[1][2].keys)
    print(f"\nseen {known:.5f}, claimed {claimed:.5f}")
    assert known > 1.5 * claimed
