"""Continual counters against slow references, exact laws, the published table, and their refusals."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.mechanisms.counters.continual_counter import TreeCounter, bound_noise, prefix_sums
from privstream.mechanisms.counters.toeplitz import BufferedToeplitzCounter, UnknownHorizonCounter
from privstream.mechanisms.noise.correlated import zolotarev
from privstream.mechanisms.noise.running import plain_digits
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.privacy.accounting import counting_sigma, largest_shift
from privstream.mechanisms.privacy.noisy_counts import CountCurve
from privstream.mechanisms.privacy.units import PERSON
from scipy import linalg, stats

KINDS = [(kind, 0.0) for kind in (TreeCounter, UnknownHorizonCounter)]
KINDS += [(kind, 1e-6) for kind in (TreeCounter, BufferedToeplitzCounter, UnknownHorizonCounter)]
EACH = pytest.mark.parametrize(("kind", "delta"), KINDS, ids=lambda value: getattr(value, "__name__", value))

FALSE_ALARM = 1e-10


def many_columns(kind, delta, horizon, columns):
    """Return a counter with so many independent columns that each have the noise of a single one at epsilon 1."""
    if delta:
        return kind(epsilon=1.0, delta=delta, horizon=horizon, columns=columns, row_columns=1)
    return kind(epsilon=float(columns), horizon=horizon, columns=columns)


def noise_of(counter, seed):
    """Return the noise of a whole run, (steps, columns)."""
    zeros = np.zeros((counter.horizon if counter.horizon < 2**20 else 600, counter.columns), np.int64)
    return counter.run(counter.initial_state(), zeros, SeededNoise(seed))[1]


def inner_source(counter, noise):
    return noise.derive("continual counter", counter.parameters)


class TestRuns:
    @EACH
    @given(data=st.data())
    @settings(max_examples=15, deadline=None)
    def test_a_run_in_pieces_is_the_same_run(self, kind, delta, data):
        horizon = data.draw(st.integers(1, 200))
        columns = data.draw(st.integers(1, 3))
        counter = kind(epsilon=1.0, delta=delta, horizon=horizon, columns=columns)
        matrix = np.random.default_rng(horizon).integers(0, 9, (horizon, columns))
        noise = SeededNoise(5)
        _, whole = counter.run(counter.initial_state(), matrix, noise)
        cuts = sorted(data.draw(st.lists(st.integers(0, horizon), max_size=3)))
        state, parts = counter.initial_state(), []
        for piece in np.split(matrix, cuts):
            state, published = counter.run(counter.restore(counter.snapshot(state)), piece, noise)
            parts.append(published)
        assert np.array_equal(np.concatenate(parts), whole)
        state, single = counter.initial_state(), []
        for row in matrix[:40]:
            state, published = counter.step(state, row, noise)
            single.append(published)
        assert np.array_equal(np.array(single), whole[:40])

    @EACH
    def test_changed_data_meet_fresh_noise(self, kind, delta):
        """From the step on at which a repeated run differs, its noise differs too."""
        counter = kind(epsilon=0.01, delta=delta, horizon=256, columns=20)
        one = np.ones((256, 20), np.int64)
        other = one.copy()
        other[100] += 1
        noisy, changed = (counter.run(counter.initial_state(), matrix, SeededNoise(1))[1] for matrix in (one, other))
        noise, fresh = noisy - np.cumsum(one, axis=0), changed - np.cumsum(other, axis=0)
        assert np.array_equal(noise[:100], fresh[:100])
        assert np.mean(noise[100:] == fresh[100:]) < 0.05
        assert np.all(np.any(noise[100:] != fresh[100:], axis=1))

    @EACH
    def test_a_person_with_several_rows_is_covered_wherever_they_are(self, kind, delta):
        """What a person's rows move is at most what the noise pays for, in L1 or L2 norm, and can be as much."""
        rows, horizon, epsilon = 3, 20, 1.0
        shared = {"columns": 2, "row_columns": 1, "rows_per_unit": rows}
        counter = kind(epsilon=epsilon, delta=delta, horizon=horizon, **shared)
        matrix = moved_by_a_row(counter, horizon)
        paid = matrix_norm_paid(counter, delta)
        rng, largest = np.random.default_rng(0), 0.0
        for _ in range(800):
            change = np.zeros((horizon, 2), np.int64)
            same = rng.random() < 0.3
            steps = np.full(rows, rng.integers(horizon)) if same else rng.integers(0, horizon, rows)
            columns = np.full(rows, rng.integers(2)) if same else rng.integers(0, 2, rows)
            np.add.at(change, (steps, columns), 1)
            moved = matrix @ change
            norm = np.abs(moved).sum() if delta == 0 else np.sqrt((moved**2).sum())
            largest = max(largest, float(norm))
        assert largest <= paid * (1 + 1e-9)
        assert largest > 0.85 * paid
        single = kind(epsilon=epsilon, delta=delta, horizon=horizon, columns=2, row_columns=1)
        assert matrix_norm_paid(single, delta) < largest / 2
        assert "at most 3 rows in the whole run" in counter.guarantee.paragraph()
        assert counter.guarantee.unit == PERSON
        with pytest.raises(ValueError, match="rows_per_unit must be >= 1, got 0"):
            kind(epsilon=1.0, delta=delta, horizon=3, rows_per_unit=0)


def moved_by_a_row(counter, steps):
    """Return how far a row of each step moves each noised number: (numbers, steps)."""
    if isinstance(counter, UnknownHorizonCounter):
        first, later = counter.epoch(0), counter.epoch(1)
        early, late = moved_by_a_row(first, first.horizon), moved_by_a_row(later, later.horizon)
        matrix = np.zeros((len(early) + len(late), first.horizon + later.horizon))
        matrix[: len(early), : first.horizon], matrix[len(early) :, first.horizon :] = early, late
        return matrix[:, :steps]
    if isinstance(counter, BufferedToeplitzCounter):
        poles, _, weights = zolotarev(counter.horizon, counter.buffers)
        column = np.array([1.0, *(float(weights @ poles**n) for n in range(steps - 1))])
        return linalg.toeplitz(column, np.zeros(steps))
    # f(t) = node(t) + f(t - u), u the largest power in t: node t holds the steps t - u + 1 .. t.
    unit = {t: max(counter.arity**h for h in range(counter.height) if t % counter.arity**h == 0) for t in range(1, 500)}
    nodes = [[t for t in range(s + 1, 500) if t - unit[t] <= s] for s in range(steps)]
    every = sorted({node for held in nodes for node in held})
    return np.array([[float(node in held) for held in nodes] for node in every])


def matrix_norm_paid(counter, delta):
    """Return the norm that the noise of a counter pays for at its epsilon."""
    if isinstance(counter, UnknownHorizonCounter):
        return max(matrix_norm_paid(counter.epoch(number), delta) for number in (0, 1))
    if delta == 0:
        return counter.law.scale * counter.epsilon
    fraction = getattr(counter, "fraction", 0)
    return math.ldexp(math.sqrt(counter.law.sigma**2 - 4), -fraction) * largest_shift(counter.epsilon, delta)


@pytest.mark.parametrize(
    ("counter", "step"),
    [
        (UnknownHorizonCounter(epsilon=1.0, columns=4, first_epoch=365), 23),
        (UnknownHorizonCounter(epsilon=1.0, columns=4), 13),  # in the second epoch
        (UnknownHorizonCounter(epsilon=1.0, delta=1e-6, columns=4), 17),
    ],
)
def test_the_error_of_one_step_is_a_quantile(counter, step):
    beta, runs = 0.2, 1000
    nothing, noise = np.zeros((step, 4), np.int64), SeededNoise(5)
    last = [counter.run(counter.initial_state(), nothing, noise.derive(run))[1][-1] for run in range(runs)]
    largest = np.abs(last).max(axis=1)
    bound = counter.spread(step, beta / counter.columns)
    assert 0.1 < (largest > bound).mean() < 0.26
    assert bound <= counter.error(step, beta)


class TestReferences:
    """What is published is the stated function of the noise, and of noisy numbers alone."""

    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    def test_binary_tree(self, delta):
        counter = TreeCounter(children=2, epsilon=1.0, delta=delta, horizon=100)
        noise, sums = SeededNoise(2), np.arange(1, 101)[:, None] * 3
        nodes = bound_noise(counter.law, inner_source(counter, noise), np.arange(1, 101), sums)[:, 0]
        _, published = counter.run(counter.initial_state(), np.full((100, 1), 3), noise)
        for step in range(1, 101):
            expected, end = 3 * step, step
            while end:
                expected += nodes[end - 1]
                end &= end - 1
            assert published[step - 1, 0] == expected

    @pytest.mark.parametrize(("horizon", "rows"), [(100, 1), (3000, 1), (3000, 10**6)])
    @pytest.mark.slow
    def test_buffers_round_less_than_the_noise_pays_for(self, horizon, rows):
        """Given what is published, one unit shifts the noise by no more than Theorems 4 and 5 of the proofs allow."""
        counter = BufferedToeplitzCounter(epsilon=1.0, delta=1e-6, horizon=horizon, rows_per_unit=rows)
        noise = noise_of_increments(counter, 5)
        unit, norm = rows * 2.0**counter.fraction, math.ldexp(counter.sensitivity, counter.fraction)
        poles, _, weights = zolotarev(counter.horizon, counter.buffers)
        exact = [1.0]
        exact += [float(weights @ poles**n) for n in range(horizon - 1)]
        assert np.linalg.norm(exact) * unit < norm < np.linalg.norm(exact) * unit * 1.01
        for change in (0, horizon // 3):
            shifted = noise.copy()
            shifted[change] -= unit  # what w must have been if a row had been added there
            difference = required_noise(counter, shifted) - required_noise(counter, noise)
            assert np.linalg.norm(difference) <= norm
            assert np.linalg.norm(difference) > 0.95 * norm


def noise_of_increments(counter, seed):
    """Return w, in units of the grid, of a run without data."""
    source = inner_source(counter, SeededNoise(seed))
    state = counter.initial_state()
    w = []
    for t in range(counter.horizon):
        memory, _ = counter._noise(
            type(state)(step=t, totals=state.totals, memory=state.memory), np.zeros((1, 1), np.int64), source
        )
        w.append(memory[0, 0] - state.memory[0, 0])
        state = type(state)(step=t + 1, totals=state.totals, memory=memory)
    return np.array(w)


def required_noise(counter, w):
    """Return the z for which a run would have had these w."""
    poles, _, weights = zolotarev(counter.horizon, counter.buffers)
    buffers, z = np.zeros(len(poles)), []
    for value in w:
        product = weights * buffers
        correction = product[0]
        for part in product[1:]:
            correction += part
        z.append(value + np.rint(correction))
        buffers = poles * buffers + value
    return np.array(z)


class TestPrivacy:
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
    @pytest.mark.parametrize("changes", [1, 10, 300])
    def test_discrete_gaussians_meet_the_curve(self, epsilon, changes):
        """An accountant that knows nothing of our lemmas agrees, and little is wasted."""
        sigma = counting_sigma(epsilon, 1e-6, changes)
        found = CountCurve(sigma=sigma, releases=changes).delta(epsilon)
        assert found <= 1.03e-6  # its grid rounds up
        if sigma > 3:
            assert (
                CountCurve(sigma=sigma * 0.93 if changes > 5 else sigma * 0.7, releases=changes).delta(epsilon) > 1e-6
            )


class TestAccuracy:
    @EACH
    def test_variance_is_exact(self, kind, delta):
        counter, columns = kind(epsilon=1.0, delta=delta, horizon=511), 3000
        drawn = noise_of(many_columns(kind, delta, 511, columns), 7)
        for step in (1, 2, 7, 88, 171, 300, 511):
            ratio = np.mean(drawn[step - 1].astype(float) ** 2) / counter.variance(step)
            # Kurtosis is at most 6: the relative variance of the mean is at most 5 / columns.
            assert abs(ratio - 1) < 6.5 * math.sqrt(5 / columns), step
            assert abs(1.3 * ratio - 1) > abs(ratio - 1) or ratio < 0.87

    @EACH
    def test_errors_hold_and_are_tight(self, kind, delta):
        beta, columns, steps = 0.1, 4000, 300
        counter = kind(epsilon=1.0, delta=delta, horizon=steps)
        largest = np.abs(noise_of(many_columns(kind, delta, steps, columns), 8)).max(axis=0)
        bound = counter.error(steps, beta)
        assert stats.binom.sf(np.sum(largest > bound) - 1, columns, beta) > FALSE_ALARM
        slack = {TreeCounter: 0.65}
        slack |= {UnknownHorizonCounter: 0.8}
        smaller = math.floor(bound * slack.get(kind, 0.93)) - 1
        assert stats.binom.cdf(np.sum(largest > smaller), columns, beta) > FALSE_ALARM  # no smaller bound would hold
        assert np.mean(largest > 0.7 * bound * slack.get(kind, 0.93)) > beta


class TestWideTrees:
    @pytest.mark.parametrize("base", [2, 3, 5, 16])
    def test_a_step_moves_each_level_once(self, base):
        """What a row moves, from the noise alone: published = true sums + N z, so that it moves z by N^-1 A e."""
        for steps in (1, base - 1, base, 2 * base + 1, base**2 + 3):
            levels = len(plain_digits(base, steps))
            path = np.zeros((levels, steps), np.int64)
            nodes_in, _ = prefix_sums(base, 0, np.eye(steps, dtype=np.int64), path)
            moved = np.linalg.solve(nodes_in.astype(float), np.tril(np.ones((steps, steps))))
            assert np.allclose(moved, np.rint(moved))
            assert set(np.unique(np.rint(moved))) <= {0.0, 1.0}  # each node by 1, or not at all
            assert np.rint(moved).sum(axis=0).max() == levels  # by so many a row is hidden
            assert nodes_in.sum(axis=1).tolist() == [sum(plain_digits(base, step)) for step in range(1, steps + 1)]


def weight(k, sigma):
    return mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * sigma**2))
