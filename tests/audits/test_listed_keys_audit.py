"""Keys that a list of different people finds beside blocks: one person alone is found as seldom as stated."""

import numpy as np
import pytest
from attacks import at_least
from laws import FALSE_ALARM
from privstream.mechanisms import FoundKeys, KeyedStep, SeededNoise
from privstream.mechanisms.keyed_counts import calibration, found_keys
from privstream.mechanisms.keyed_counts.calibration import DiscoveryLaw, Scale

TESTS = 8


class Redrawn(FoundKeys):
    """Each test has all of the probability, as if it were the only one."""

    def _found_on_list(self, listed, found_at, step, names, source):
        people = self.law.people
        if step not in people.steps:
            return np.zeros(0, np.int64)
        test = people.steps.index(step)
        tested = np.flatnonzero((listed > 0) & (found_at == -1))
        noise = people.noises[test]
        drawn = noise.law.draw_bound(source.derive("again"), names[tested], step, listed[tested])
        tail = self.law.slack / (len(self.law.scales) + 1) / self.listed
        return tested[listed[tested] + drawn >= 2 + noise.tail_bound(1, tail)]


def found_of_one_person(mechanism, keys):
    """Return how many of so many keys are found that one person alone has, once, in the first window.

    Blocks are left out: of these another audit says how often they find keys of one person.
    """
    vars(mechanism)["law"] = without_blocks(mechanism.law)
    state = mechanism.initial_state()
    for step in range(1, TESTS + 1):
        numbers = np.arange(keys if step == 1 else 0, dtype=np.uint64)
        ones = np.ones(len(numbers), np.int64)
        state, _ = mechanism.step(state, KeyedStep(step=step, keys=numbers, counts=ones, listed=ones), SeededNoise(1))
    return len(state.found)


def without_blocks(law):
    return DiscoveryLaw(
        law.noises, law.curve, law.slack, law.bounds,
        tuple(Scale(scale.windows, scale.stride, 1 << 30, 1 << 30) for scale in law.scales), law.people,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [FoundKeys, Redrawn])
def test_keys_of_one_person_are_listed_as_seldom_as_stated(kind, monkeypatch):
    """Noise and thresholds as they are, with a large delta; `Redrawn` is a negative control."""
    monkeypatch.setattr(calibration, "list_steps", lambda horizon: tuple(range(1, TESTS + 1)))
    monkeypatch.setattr(calibration, "_PRUNED", 0)
    monkeypatch.setattr(found_keys, "calibrate_discovery", calibration.calibrate_discovery.__wrapped__)
    mechanism, keys = kind(epsilon=1.0, delta=0.1, contributions=40, horizon=TESTS), 60_000
    share = mechanism.law.slack / (len(mechanism.law.scales) + 1) / mechanism.listed
    found = found_of_one_person(mechanism, keys)
    print(f"\n{kind.__name__}: {found / keys:.5f} of {share:.5f}")
    if kind is Redrawn:
        assert at_least(found, keys, FALSE_ALARM) > 3 * share
    else:
        assert 0.1 * share * keys < found
        assert at_least(found, keys, FALSE_ALARM) < share
