"""Threshold monitors with one classic mistake each, which the audits must find."""

from dataclasses import replace

from privstream.mechanisms.mechanism import NOBODY
from privstream.mechanisms.monitor.monitor import ThresholdMonitor
from privstream.mechanisms.noise.discrete import DiscreteGaussian


class OnlyPresentItems(ThresholdMonitor):
    """Tests the items that somebody holds with noise made for a public domain: being tested at all shows."""

    def _hits(self, step, tally, source):
        return tally.items[tally.totals >= self._thresholds(step, tally.items, source)]


class NobodyCharged(ThresholdMonitor):
    """Forgets to charge, so that nobody is ever dropped: neither from tests nor from noisy counts."""

    def decide(self, *given):
        hits, _, up = super().decide(*given)
        return hits, NOBODY, up


class NoGates(ThresholdMonitor):
    """Lets a person with one charge left into all tests of a step."""

    def decide(self, counters, holdings, noise):
        return super().decide(counters, replace(holdings, ranks=None), noise)

    def _check(self, holdings):
        pass


class LittleNoise(ThresholdMonitor):
    """Has noise of two thirds of the scale that the budget asks for."""

    @property
    def calibrated(self):
        right = super().calibrated
        return replace(right, eta=1.5 * right.eta)


class LittleCountNoise(ThresholdMonitor):
    """Has half the noise on counts that the budget asks for."""

    @property
    def calibrated(self):
        return replace(super().calibrated, count_sigma=super().calibrated.count_sigma / 2)


class UnboundCounts(ThresholdMonitor):
    """Draws the noise of a count by item and step alone: two counts of one test show their exact difference."""

    def _noisy(self, step, items, counts, source):
        return counts + DiscreteGaussian(self.calibrated.count_sigma).draw(source.derive("count", step), items)
