"""Continual counters of people who come and go or are in several streams: by brute force over all they may do."""

import itertools
import math

import numpy as np
import pytest
from privstream.mechanisms.cardinality.set_cardinality import SetCardinality
from privstream.mechanisms.counters.toeplitz import BufferedToeplitzCounter
from privstream.mechanisms.counters.trees import BinaryTreeCounter, KaryTreeCounter, WideTreeCounter
from privstream.mechanisms.counters.unknown_horizon import UnknownHorizonCounter
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.accounting import largest_shift
from scipy import linalg


class TestAlternatingRows:
    """People who come and go move noise by the root of their visits: by brute force over all that they may do."""

    STEPS = 8

    def counter(self, visits, people=1):
        rows = {"rows_per_unit": people * visits, "alternating": people, "neighbouring": "replace_one"}
        return BufferedToeplitzCounter(epsilon=1.0, delta=1e-6, horizon=self.STEPS, **rows)

    def longest(self, counter, visits, people=1):
        """Return the largest |R x|, of all changes x of one who comes and goes, or of the difference of two."""
        matrix = linalg.toeplitz(counter.factor.coefficients, np.zeros(self.STEPS))
        inside = np.array(list(itertools.product((0, 1), repeat=self.STEPS)))
        changes = np.diff(inside, prepend=0, axis=1)
        changes = changes[(changes > 0).sum(axis=1) <= visits]
        if people == 2:
            changes = (changes[:, None] - changes[None, :]).reshape(-1, self.STEPS)
        return float(np.linalg.norm(changes @ matrix.T, axis=1).max())

    @pytest.mark.parametrize(("visits", "people"), [(1, 1), (2, 1), (3, 1), (2, 2)])
    def test_noise_is_enough_for_all_who_come_and_go_and_that_for_fewer_visits_is_not(self, visits, people):
        counter, shift = self.counter(visits, people), largest_shift(1.0, 1e-6)
        moved = self.longest(counter, visits, people)
        assert 0.6 * shift < moved / math.ldexp(counter.law.sigma, -counter.fraction) <= shift
        fewer = math.ldexp(self.counter(1, people).law.sigma, -counter.fraction) / 2
        assert moved / fewer > shift

    def test_noise_grows_with_the_root_of_visits_and_has_a_label_of_its_own(self):
        rows = {"rows_per_unit": 16, "neighbouring": "replace_one"}
        any_rows = BufferedToeplitzCounter(epsilon=1.0, delta=1e-6, horizon=100, **rows)
        in_turns = BufferedToeplitzCounter(epsilon=1.0, delta=1e-6, horizon=100, **rows, alternating=1)
        any_sigma, sigma = (math.ldexp(each.law.sigma, -each.fraction) for each in (any_rows, in_turns))
        assert any_sigma == pytest.approx(4 * sigma, rel=0.1)
        assert b"alternating" not in any_rows.parameters
        assert any_rows.parameters != in_turns.parameters

    @pytest.mark.parametrize("wrong", [{"neighbouring": "add_remove"}, {"rows_per_unit": None}, {"columns": 2}])
    def test_refusals(self, wrong):
        given = {"neighbouring": "replace_one", "rows_per_unit": 2, "columns": 1} | wrong
        with pytest.raises(ValueError, match="alternating must be 0 but for"):
            BufferedToeplitzCounter(epsilon=1.0, delta=1e-6, horizon=4, alternating=1, **given)


class TestStreams:
    """Counters of several streams that one person has rows in: docs/proofs/counters.md, Theorem 8."""

    STEPS = TestAlternatingRows.STEPS

    @pytest.mark.parametrize("streams", [2, 5])
    def test_noise_is_enough_for_all_who_are_in_so_many_streams_and_no_more(self, streams):
        """The longest way of a person in so many streams at once, and of two who are in different ones."""
        common, shift = {"epsilon": 1.0, "delta": 1e-6, "horizon": self.STEPS}, largest_shift(1.0, 1e-6)
        for people in (1, 2):
            rows = {"rows_per_unit": 2 * people, "alternating": people, "neighbouring": "replace_one"}
            counter = BufferedToeplitzCounter(**common, **rows, streams=streams)
            sigma = math.ldexp(counter.law.sigma, -counter.fraction)
            both, one = (TestAlternatingRows().longest(counter, 2, each) for each in (people, 1))
            worst = max(streams * both**2, people * streams * one**2)
            assert 0.6 * shift < math.sqrt(worst) / sigma <= shift
            assert math.sqrt(3 * streams) * both / sigma > shift  # of three times as many it is too little

    @pytest.mark.parametrize("kind", [BinaryTreeCounter, BufferedToeplitzCounter, UnknownHorizonCounter])
    def test_the_variance_grows_with_the_streams(self, kind):
        made = [kind(epsilon=1.0, delta=1e-6, horizon=1 << 10, rows_per_unit=3, streams=many) for many in (1, 4)]
        alone, together = (counter.variance(1000) for counter in made)
        assert together == pytest.approx(4 * alone, rel=0.01)
        assert made[0].curve == made[1].curve
        assert b"streams" not in made[0].parameters
        assert made[0].parameters != made[1].parameters

    @pytest.mark.parametrize("kind", [WideTreeCounter, KaryTreeCounter])
    def test_laplace_noise_is_that_of_a_part_of_epsilon(self, kind):
        part = kind(epsilon=0.25, horizon=100, rows_per_unit=3)
        assert kind(epsilon=1.0, horizon=100, rows_per_unit=3, streams=4).law.scale == pytest.approx(part.law.scale)

    def test_the_guarantee_says_for_how_many_streams_it_is(self):
        found = BufferedToeplitzCounter(epsilon=1.0, delta=1e-6, horizon=9, rows_per_unit=3, streams=4).guarantee
        assert found.limits[-1] == "A person has rows in at most 4 streams, each with a counter of its own."
        assert found.proof == "docs/proofs/counters.md, Theorem 4, and Theorem 5, and Theorem 8"

    def test_refusals(self):
        with pytest.raises(ValueError, match="streams must be 1 without rows_per_unit, got 2"):
            BufferedToeplitzCounter(epsilon=1.0, delta=1e-6, horizon=4, streams=2)
        with pytest.raises(ValueError, match="streams must be >= 1, got 0"):
            BufferedToeplitzCounter(epsilon=1.0, delta=1e-6, horizon=4, rows_per_unit=1, streams=0)


@pytest.mark.parametrize(("delta", "own"), [(0.0, False), (1e-6, True)])
def test_noise_of_streams_together_has_a_label_that_noise_of_parts_never_had(delta: float, own: bool) -> None:
    """A job that is begun anew in place of one with parts would otherwise stand in a ledger as its repetition."""
    made = SetCardinality(
        epsilon=1.0, delta=delta, horizon=24, streams_per_person=2, visits_per_person=2, mode="counter"
    )
    noise = KeyedNoise(bytes(range(32)), "a run")
    of_parts = Mechanism._source(made, noise).words(1)
    assert np.array_equal(made._source(noise).words(1), of_parts) != own
