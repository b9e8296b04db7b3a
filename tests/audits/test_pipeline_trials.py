"""Whole pipelines whose noise is not only added to numbers: many trials of two neighbours in one run.

A trial is a category that no other trial has, or a budget period. A control with a larger budget must be caught.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
from attacks import falls, stands
from privstream.mechanisms import SeededNoise
from privstream.pipelines.audit.replay import MINUTE, Sent, batches, publish
from privstream.pipelines.model.catalogue import question
from privstream.transforms import Domain
from privstream.transforms.reading.fields import NUMBER
from privstream.transforms.timing.steps import MICROS


class Attack(NamedTuple):
    """Both worlds have some events; one world has another one. The number of a row tells them apart."""

    options: dict[str, Any]
    events: int
    number: str
    trials: int
    visible: float


ATTACKS = {
    "histogram": Attack({"epsilon": 2.0, "largest": 1}, 20, "estimate", 20_000, 0.3),
    "flags": Attack({"epsilon": 2.0, "thresholds": 20}, 19, "raised", 40_000, 0.1),
    "ranges": Attack({"epsilon": 2.0, "universe": 1, "queries": ((1, 1),)}, 0, "estimate", 4_000, 0.2),
}


def outcomes(word, options):
    """Return the numbers that are published in trials with one event more, and in those without."""
    attack = ATTACKS[word]
    names = [f"{place:07}" for place in range(attack.trials)]
    given = {**options, "window": MINUTE, "start": 0, "noise": SeededNoise(5)}
    in_periods = "queries" in options
    given |= {"end": MINUTE * attack.trials, "renew_every": MINUTE} if in_periods else {"end": MINUTE}
    given |= {} if in_periods else {"domain": Domain(names)}
    transform = question(word).transform_class(**given)
    points = transform.event_fields.user == NUMBER
    sent = [
        Sent(1, "in", place) if points else Sent(f"{name} {number}", name, 0)
        for place, name in enumerate(names)
        for number in range(attack.events + (place % 2 == 0))
    ]
    found = np.zeros(attack.trials, int)
    for row in publish(transform, batches(transform, sent, 50_000)):
        place = row.window_start.micros // (MINUTE * MICROS) if points else int(row.category)
        found[place] = getattr(row, attack.number) or 0
    return found[::2], found[1::2]


@pytest.mark.slow
@pytest.mark.parametrize("word", ATTACKS)
def test_one_event_shows_what_is_claimed_at_most_and_a_larger_budget_is_caught(word):
    attack = ATTACKS[word]
    claimed = attack.options["epsilon"]
    stands(outcomes(word, attack.options), claimed, visible=attack.visible)
    falls(outcomes(word, {**attack.options, "epsilon": 4 * claimed}), claimed)
