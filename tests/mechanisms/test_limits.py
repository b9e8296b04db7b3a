"""Private distributions of what people contribute, and the limits that follow from them."""

import math

import numpy as np
import pytest
from laws import FALSE_ALARM
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.limits.noisy_histogram import NoisyHistogram
from privstream.mechanisms.limits.person_histograms import VALUES, WHOLE_NUMBERS, Grid, PersonHistograms, whole_numbers
from privstream.mechanisms.limits.suggested_limits import (
    HALF,
    MEAN_OF_NORMAL,
    MOVES,
    LaterRun,
    Prediction,
    best_for_sums,
    best_limit,
    best_pair,
    count_noise,
    enough_epsilon,
    left_out_shares,
    predicted_errors,
    smoothed_part,
)
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.smoothing import LocalLevel
from scipy import stats

EDGES = np.array(whole_numbers())
GRID = Grid("contributions", whole_numbers())


def histogram_of(counts, scale=1.0, edges=EDGES):
    return NoisyHistogram(edges, np.asarray(counts, np.int64), scale)


def people(mean=10.0, number=5_000, seed=1):
    """Heavy-tailed numbers: a tenth of the people have half of all."""
    rng = np.random.default_rng(seed)
    return np.maximum(1, rng.poisson(rng.gamma(0.55, mean / 0.55, number)))


def true_errors(numbers, row, epsilon=1.0):
    """Return the error of every limit from 0 to 1,000, where it is known what everybody has."""
    limits = np.arange(1_001)
    left = np.array([np.maximum(numbers - limit, 0).sum() / numbers.sum() for limit in limits])
    noise = np.array([count_noise(epsilon, 1e-6, 13, max(limit, 1)) for limit in limits])
    return predicted_errors(left, noise, row=row, windows=13)


class TestGrid:
    def test_whole_numbers_have_edges_that_grow_by_half_at_most(self):
        assert WHOLE_NUMBERS[:8] == (1, 2, 3, 4, 6, 8, 12, 16)
        assert WHOLE_NUMBERS[-1] == 65_536
        assert max(np.divide(WHOLE_NUMBERS[2:], WHOLE_NUMBERS[1:-1])) <= 1.5

    @pytest.mark.parametrize(("most", "last"), [(1, (1,)), (13, (8, 12, 13)), (16, (8, 12, 16)), (10**6, (65_536,))])
    def test_a_public_largest_number_is_the_last_edge(self, most, last):
        assert whole_numbers(most)[-len(last) :] == last

    def test_values_have_edges_on_both_sides_of_0(self):
        assert np.array_equal(np.array(VALUES), -np.array(VALUES)[::-1])
        assert 0.0 in VALUES

    def test_every_number_is_in_one_cell(self):
        numbers = np.array([0, 1, 2, 5, 6, 7, 65_536, 65_537, 10**9])
        assert GRID.tally(numbers).sum() == len(numbers)
        assert GRID.tally(numbers)[[0, 1, 4, 5, -2, -1]].tolist() == [2, 1, 2, 1, 1, 2]


class TestPersonHistograms:
    def test_epsilon_is_shared_out_by_weights(self):
        made = PersonHistograms(epsilon=0.5, grids=(Grid("a", (1.0,), 3), Grid("b", (1.0,), 1)))
        assert 1 / made.scale("a") + 1 / made.scale("b") == pytest.approx(0.5, rel=1e-9)
        assert 1 / made.scale("a") + 1 / made.scale("b") <= 0.5
        assert made.scale("b") == pytest.approx(3 * made.scale("a"))

    def test_a_replaced_person_costs_twice_the_noise(self):
        one, other = (
            PersonHistograms(epsilon=0.5, grids=(GRID,), neighbouring=each).scale(GRID.name)
            for each in ("add_remove", "replace_one")
        )
        assert other == pytest.approx(2 * one)

    def test_the_guarantee_is_of_a_person_without_delta(self):
        found = PersonHistograms(epsilon=0.5, grids=(GRID,)).guarantee
        assert (found.epsilon, found.delta, found.unit.what) == (0.5, 0.0, "person")
        assert found.limits[0] == "Each person counts once in each distribution."

    def test_the_same_counts_have_the_same_noise_and_others_have_others(self):
        made = PersonHistograms(epsilon=0.5, grids=(GRID,))
        counts = GRID.tally(people())
        one, again = (made.release({GRID.name: counts}, SeededNoise(1))[GRID.name] for _ in range(2))
        assert np.array_equal(one, again)
        more = made.release({GRID.name: counts + 1}, SeededNoise(1))[GRID.name]
        assert len(set((more - one).tolist())) > 5

    def test_noise_has_the_stated_law_and_not_a_wider_one(self):
        made = PersonHistograms(epsilon=0.4, grids=(Grid("a", tuple(map(float, range(1, 4_000)))),))
        noise = made.release({"a": np.zeros(4_000, np.int64)}, SeededNoise(3))["a"]
        law = DiscreteLaplace(made.scale("a"))
        for scaled, accepted in ((1.0, True), (1.3, False)):
            edges = np.array([-5, -2, 0, 1, 3, 6])
            masses = np.diff(
                [0, *np.cumsum(DiscreteLaplace(law.scale * scaled).pmf(np.arange(-400, 401)))[edges + 400], 1]
            )
            seen = np.bincount(np.searchsorted(edges, noise), minlength=len(masses))
            probability = stats.chisquare(seen, masses * len(noise)).pvalue
            assert bool(probability > FALSE_ALARM) is accepted

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"epsilon": 0.0}, "epsilon must be finite and > 0, got 0.0"),
            ({"epsilon": math.nan}, "epsilon must be finite and > 0, got nan"),
            ({"grids": ()}, "grids must have at least one grid, and names of their own"),
            ({"grids": (GRID, GRID)}, "grids must have at least one grid, and names of their own"),
            ({"grids": (Grid("a", (2.0, 1.0)),)}, "edges must increase, got those of a"),
            ({"grids": (Grid("a", (1.0,), 0),)}, "weight must be >= 1, got 0"),
            ({"neighbouring": "x"}, "neighbouring must be one of add_remove, replace_one, got 'x'"),
        ],
    )
    def test_mistakes_are_named(self, given, message):
        with pytest.raises(ValueError, match=message):
            PersonHistograms(**{"epsilon": 1.0, "grids": (GRID,)} | given)

    def test_all_distributions_must_be_given(self):
        with pytest.raises(ValueError, match="counts must be those of contributions, got other"):
            PersonHistograms(epsilon=1.0, grids=(GRID,)).release({"other": np.zeros(3, np.int64)}, SeededNoise(1))


class TestNoisyHistogram:
    def test_noise_alone_shows_nobody(self):
        scale, noisy = 25.0, []
        for seed in range(300):
            noise = DiscreteLaplace(scale).draw(SeededNoise(seed), GRID.cells)
            noisy.append(len(histogram_of(noise, scale).seen) > 0)
        assert sum(noisy) <= 8  # each with 0.001 at most: more have a probability below 1e-9

    def test_people_are_seen_up_to_the_last_cell_with_many(self):
        counts = GRID.tally(np.repeat([1, 5, 100], 500))
        assert histogram_of(counts, 20.0).seen == range(EDGES.tolist().index(128) + 1)

    def test_people_spread_over_cells_are_seen_together(self):
        counts = np.zeros(GRID.cells, np.int64)
        counts[10:14] = 6  # one by one as much as noise of scale 1 may be
        assert histogram_of(counts[:11] * 0).seen == range(0)
        assert histogram_of(counts).seen[-1] == 13

    def test_of_values_cells_at_either_end_are_left_out(self):
        counts = np.zeros(len(VALUES) + 1, np.int64)
        counts[50:53] = 1_000
        assert histogram_of(counts, 5.0, np.array(VALUES)).seen == range(50, 53)

    def test_estimated_people_are_those_there_are_without_noise(self):
        counts = GRID.tally(people())
        found = histogram_of(counts, 1e-3)
        assert np.allclose(found.people, counts)

    def test_estimated_people_are_never_fewer_than_none(self):
        counts = GRID.tally(people(number=300)) + DiscreteLaplace(20.0).draw(SeededNoise(2), GRID.cells)
        assert (histogram_of(counts, 20.0).people >= 0).all()

    def test_shares_without_noise_are_exact_where_cells_have_one_number(self):
        numbers = np.repeat([1, 2, 3, 4], [40, 30, 20, 10])
        found = histogram_of(GRID.tally(numbers), 1e-3)
        for cell, limit in enumerate([1, 2, 3, 4]):
            assert found.within(cell).share == pytest.approx((numbers <= limit).mean())
            kept = found.kept(cell)
            assert kept.share == pytest.approx(np.minimum(numbers, limit).sum() / numbers.sum())
            assert kept.upper - kept.lower < 1e-6

    def test_what_is_left_out_and_kept_add_up(self):
        found = histogram_of(GRID.tally(people()), 1e-3)
        for cell in found.seen[:-1]:
            assert 1 - found.left_out(EDGES[cell]) / found.total == pytest.approx(found.kept(cell).share, abs=0.02)

    @pytest.mark.parametrize("beta", [0.05, pytest.param(0.2, marks=pytest.mark.slow)])
    def test_intervals_hold_as_often_as_they_say(self, beta):
        numbers, scale, held, runs = people(number=3_000), 20.0, np.zeros(3), 250
        true = GRID.tally(numbers)
        cell = EDGES.tolist().index(24)
        for seed in range(runs):
            noise = DiscreteLaplace(scale).draw(SeededNoise(seed), GRID.cells)
            found = NoisyHistogram(EDGES, true + noise, scale, beta)
            most = EDGES[found.seen[-1]]
            near = numbers[numbers <= most]
            truths = (
                (near <= 24).mean(),
                np.minimum(near, 24).sum() / near.sum(),
                (numbers > most).sum(),
            )
            ends = found.within(cell), found.kept(cell), found.in_cells(range(found.seen.stop, GRID.cells))
            held += [end.lower <= truth <= end.upper for end, truth in zip(ends, truths, strict=True)]
        assert (stats.binom.cdf(held, runs, 1 - beta - 0.015) > FALSE_ALARM).all()
        assert held[0] < runs  # an interval that always holds says too little

    def test_negative_limits_keep_nothing(self):
        numbers = np.random.default_rng(1).choice([-3.0, 5.0, 7.0], 900)
        found = histogram_of(Grid("values", VALUES).tally(numbers), 1e-3, np.array(VALUES))
        kept = [found.kept(cell) for cell in found.seen if VALUES[cell] <= 0]
        assert kept
        assert all(0 <= part.lower <= part.share <= part.upper <= 0.01 for part in kept)

    def test_share_of_nobody_is_anything(self):
        assert histogram_of(np.zeros(GRID.cells)).within(3) == (0.0, 0.0, 1.0)

    def test_the_first_limit_that_most_people_do_not_pass(self):
        found = histogram_of(GRID.tally(np.repeat([1, 2, 3], [700, 260, 40])), 1e-3)
        assert [found.reached(share) for share in (0.5, 0.95, 0.99)] == [0, 1, 2]
        assert histogram_of(np.zeros(GRID.cells)).reached(0.5) is None


class TestSuggestedLimits:
    def test_the_error_is_what_is_left_out_and_noise_of_what_is_kept(self):
        found = predicted_errors(np.array([0.5, 0.0, 1.0]), np.array([5.0, 10.0, 1.0]), row=100.0)
        assert found.tolist() == [math.hypot(0.5, 0.1), 0.1, math.inf]

    @pytest.mark.parametrize(("windows", "noise"), [(13, 0.15), (13, 0.6), (53, 0.3), (200, 1.0)])
    def test_smoothing_leaves_about_such_a_part_of_the_noise(self, windows, noise):
        chance = np.random.default_rng(windows)
        level = 1000 * np.exp(np.cumsum(chance.normal(0, MOVES, (windows, 100)), axis=0))
        stddev = noise * float(level.mean())
        smoothed = LocalLevel(stddev).smooth(level + chance.normal(0, stddev, level.shape)).estimates
        remains = np.sqrt(np.mean(np.square(smoothed - level))) / stddev
        predicted = float(smoothed_part(np.array([noise * MEAN_OF_NORMAL]), windows)[0])
        assert 0.75 < remains / predicted < 1.5
        assert smoothed_part(np.array([0.5 * MOVES]), windows)[0] > predicted
        assert smoothed_part(np.array([noise]), 1)[0] == 1

    @pytest.mark.slow
    def test_more_noise_suggests_a_smaller_limit(self):
        found = histogram_of(GRID.tally(people()), 1e-3)
        row = HALF * found.total / 130
        limits = [best_limit(found, LaterRun(e, 1e-6, 13, 10), row=row).limits[0][0] for e in (0.1, 1.0, 8.0)]
        assert limits == sorted(limits)
        assert limits[0] < limits[-1]

    @pytest.mark.slow
    def test_the_limit_is_the_best_one_on_the_grid(self):
        numbers = people()
        found, row = histogram_of(GRID.tally(numbers), 1e-3), numbers.sum() / 260
        errors = true_errors(numbers, row)
        chosen = best_limit(found, LaterRun(1.0, 1e-6, 13, 10), row=row)
        best = chosen.limits[0][0]
        assert errors[best] <= 1.03 * errors.min()
        assert chosen.prediction.error == pytest.approx(errors[best], rel=0.1)

    def test_predictions_are_those_of_the_mechanism(self):
        run, row = LaterRun(0.5, 1e-6, 13, 10), 194.0
        limits, left = np.array([8.0, 24.0, 53.0]), np.array([0.53, 0.17, 0.02])
        sizes = 10 * row / np.arange(1, 11) / (1 / np.arange(1, 11)).sum()  # Zipf's law, and the mean of a row
        both = zip(run.predict(limits, left, row), run.predict(limits, left, row, by_list=False), strict=True)
        for limit, out, (found, by_blocks) in zip(limits, left, both, strict=True):
            made = FoundKeys(epsilon=0.5, delta=1e-6, horizon=13, contributions=int(limit), full_share=0.05)
            noise = 0.798 * made.stddev(1) / (row * (1 - out))
            remains = math.sqrt(1 / 13 + MOVES * 0.798 / (2 * noise))
            assert found.error == by_blocks.error == pytest.approx(math.hypot(out, noise * remains), rel=0.01)
            made = made.for_end()
            plain = (sizes * (1 - out) >= made.people_needed(13)).mean()
            assert by_blocks.found == pytest.approx(plain, abs=0.1)
            on_list = sizes * np.interp(made.listed, [0, *limits], [0, *(1 - left)])
            listed = (on_list >= made.people_needed(13, others=True)).mean()
            assert found.found == pytest.approx(max(plain, listed), abs=0.1)

    def test_a_smaller_limit_is_worth_more_where_more_is_found_with_it(self):
        run, limits, left = LaterRun(0.5, 1e-6, 13, 10), np.array([16.0, 64.0]), np.array([0.35, 0.05])
        few, many = run.predict(limits, left, 150.0, by_list=False)
        assert few.found > 1.2 * many.found
        assert few.error > many.error
        assert few.worth > many.worth
        assert not few.enough

    @pytest.mark.slow
    def test_heavy_tails_do_not_suggest_a_limit_that_leaves_out_nearly_everything(self):
        """Half of what people with numbers by Pareto's law have is that of one in a hundred."""
        numbers = 1 + np.floor(np.random.default_rng(11).pareto(1.1, 5_000)).clip(0, 500).astype(np.int64)
        found, row = histogram_of(GRID.tally(numbers), 1e-3), 63.0
        errors = true_errors(numbers, row)
        chosen = best_limit(found, LaterRun(1.0, 1e-6, 13, 10), row=row)
        assert errors[2] > 2 * errors.min()
        assert errors[chosen.limits[0][0]] < 1.25 * errors.min(), "larger limits find fewer items"
        assert chosen.prediction.found > 0.8
        assert chosen.prediction.found > 0.6

    @pytest.mark.slow
    def test_the_epsilon_that_is_enough(self):
        found = histogram_of(GRID.tally(people()), 1e-3)

        def predicted(epsilon):
            return [best_limit(found, LaterRun(epsilon, 1e-6, 13, 10), row=HALF * found.total / 130).prediction]

        least = enough_epsilon(predicted, 0.1)
        assert all(one.enough for one in predicted(least))
        assert not predicted(0.85 * least)[0].enough
        assert enough_epsilon(lambda epsilon: None, 0.1) is None
        assert enough_epsilon(predicted, 100.0) is None

    def test_the_least_epsilon_is_rounded_up(self):
        for least in np.geomspace(0.1, 50, 37):
            found = enough_epsilon(lambda epsilon, least=least: [Prediction(0.0, float(epsilon >= least))], 0.05)
            assert least <= found <= 1.16 * least
            assert found == float(f"{found:.2g}")

    def test_beyond_the_public_grid_noise_grows_by_the_root_of_the_limit(self):
        last = float(WHOLE_NUMBERS[-1])
        one, other = LaterRun(1.0, 1e-6, 13, 10).predict(np.array([last, 4 * last]), np.zeros(2), 1e5)
        assert other.error == pytest.approx(2 * one.error, rel=1e-9)

    def test_sums_of_large_values_take_smaller_limits(self):
        contributions, cells = histogram_of(GRID.tally(people()), 1e-3), np.array(VALUES)
        values = np.random.default_rng(1).lognormal(3.0, 1.5, 5_000)
        found = histogram_of(Grid("values", VALUES).tally(values), 1e-3, cells)
        row = HALF * contributions.total / 130
        few, many = (
            best_for_sums(contributions, found, LaterRun(epsilon, 1e-6, 13, 10, "sums"), row=row)
            for epsilon in (0.3, 8.0)
        )
        assert few.value[0] < many.value[0]
        assert few.contributions[0] < many.contributions[0]
        assert few.sums.error > many.sums.error
        assert few.sums.error > few.counts.error
        nobody = histogram_of(np.zeros(GRID.cells))
        assert best_for_sums(nobody, found, LaterRun(1.0, 1e-6, 13, 10, "sums"), row=1.0) is None

    @pytest.mark.parametrize("epsilon", [0.05, 0.033])
    def test_the_default_epsilon_is_enough_for_5000_people(self, epsilon):
        numbers = people()
        made = PersonHistograms(epsilon=epsilon, grids=(GRID,))
        row = HALF * numbers.sum() / 130
        errors = true_errors(numbers, row)
        good = []
        for seed in range(60):
            noisy = made.release({GRID.name: GRID.tally(numbers)}, SeededNoise(seed))[GRID.name]
            found = histogram_of(noisy, made.scale(GRID.name))
            best = best_limit(found, LaterRun(1.0, 1e-6, 13, 10), row=HALF * found.total / 130)
            good.append(best is not None and errors[best.limits[0][0]] <= 1.1 * errors.min())
        assert stats.binom.cdf(sum(good), len(good), 0.85) > 1e-6

    def test_nobody_suggests_nothing(self):
        nobody = histogram_of(np.zeros(GRID.cells))
        assert best_limit(nobody, LaterRun(1.0, 1e-6, 13, 10), row=1.0) is None
        assert best_pair(nobody, nobody, LaterRun(1.0, 1e-6, 13, 10), row=1.0) is None
        assert left_out_shares(nobody)[0] == []

    def test_values_below_1_suggest_no_limit(self):
        counts = np.zeros(len(VALUES) + 1, np.int64)
        counts[VALUES.index(0.5)] = 500
        assert best_limit(histogram_of(counts, 1.0, np.array(VALUES)), LaterRun(1.0, 1e-6, 13, 10), row=1.0) is None

    def test_two_limits_are_chosen_together(self):
        first = histogram_of(GRID.tally(np.repeat([1, 16], [990, 10])), 1e-3)
        second = histogram_of(GRID.tally(np.repeat([8], 1_000)), 1e-3)
        few, many = (
            best_pair(first, second, LaterRun(epsilon, 1e-6, 13, 10), row=100.0).limits for epsilon in (30.0, 0.5)
        )
        assert best_pair(first, second, LaterRun(1.0, 1e-6, 13, 10), row=0.0) is None, "all would be equally good"
        assert few[0] in ((14, 7), (16, 7))
        assert few[1] in ((7, 5), (8, 5))
        assert many[0][0] * many[1][0] < few[0][0] * few[1][0]
