"""Attacks on tests in secret: a crowd decides each of them, and the adversary sees which were passed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.monitor.calibration import Calibration
from privstream.mechanisms.monitor.clock import ClockCurve
from privstream.mechanisms.monitor.status import StatusCurve
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.audit.attacks import EPSILON, SUSPECT, Adversary, Attack, Seen, Sent, Transcript
from privstream.pipelines.audit.fits import LESS_NOISE, TESTED
from privstream.pipelines.audit.whole_run import MINUTE, SMALL
from privstream.pipelines.model.question import QuestionInfo
from privstream.transforms.reading.domain import Domain

TESTS = 4
"""Tests of an attack, each in a window of its own: for so many one person may be charged."""

NAMES = tuple(f"item {window}" for window in range(TESTS))
LEAST = 60


class Tests(NamedTuple):
    """What is known of the tests of a transform.

    Attributes:
        calibration: the noise, and what it promises.
        hazard: of numbers of people, -ln of the chance that a test is not passed.
        field: of a row that says which item or rule has passed.
    """

    calibration: Calibration
    hazard: Callable[[Floats], Floats]
    field: str


def _of_hitters(transform: Any) -> Tests:
    """Tests whether an item has many people."""
    found = transform.monitor.calibrated
    return Tests(found, found.hazard, "item")


SPENT = {"epsilon": EPSILON, "delta": SMALL, "max_hits": TESTS, "window": MINUTE, "start": 0, "end": MINUTE * TESTS}
LISTED = {**SPENT, "domain": Domain(NAMES)}


def hidden_test_runs(spec: QuestionInfo, epsilon: float = EPSILON) -> list[Attack]:
    """Return the attacks of the audit of a question on tests that people are charged for, with so much of a budget."""
    methods = ("status", "clock") if spec.word == "heavy-hitters" else ()
    return [_attack(spec, method, {**LISTED, "epsilon": epsilon, "method": method}) for method in methods]


def _attack(spec: QuestionInfo, method: str, options: Mapping[str, Any]) -> Attack:
    made = spec.transform_class(**options, noise=KeyedNoise.random("audit"))
    tests, kind = _of_hitters(made), _of_hitters
    budget, curve = tests.calibration.budget, tests.calibration.hits_curve
    assert isinstance(curve, ClockCurve | StatusCurve)
    less = replace(curve, eta=curve.eta / LESS_NOISE).epsilon(budget.hits_delta)
    return Attack(
        name=f"a test that is nearly passed, {method}",
        text=f"each of {TESTS} windows has an item and people of its own, so few that a test is passed with a "
        f"probability of {-np.expm1(-TESTED[0]):.0%}. With D, one person more has all of these items, and is charged "
        "for each that passes. The adversary sees which do. What is measured is a crowd of such people, with whom the "
        f"probability is {-np.expm1(-TESTED[1]):.0%}. Model: a test is not passed with probability e^-H, and each "
        "person multiplies H by the same factor. The claim is that of the tests. The control has 15% less noise.",
        options=options,
        control={"epsilon": less / (1 - budget.count_share)},
        others=_others(kind),
        suspect=lambda seen: [Sent(SUSPECT, NAMES[seen.window])],
        windows=TESTS,
        transcript=Transcript(
            name=tests.field,
            items=NAMES,
            fields=(),
            counted=TESTS,
            size=TESTS * (1 + _fewest(tests)),
            sent=TESTS,
            read=_reader(tests.field),
        ),
        part=lambda transform: of_tests(transform.guarantee, kind(transform).calibration),
        told_by=tests.field,
    )


def of_tests(claim: PrivacyGuarantee, calibration: Calibration) -> PrivacyGuarantee:
    """Return the part of a guarantee that tests have of it: all of it, where nothing else is published."""
    budget = calibration.budget
    return replace(claim, epsilon=budget.hits_epsilon, delta=budget.hits_delta, curve=calibration.hits_curve)


def _fewest(tests: Tests) -> int:
    """Return how many others there are: a test is passed by them alone about as often as `TESTED` says."""
    numbers = np.arange(1.0, LEAST + tests.calibration.detection_threshold(1, 0.5))
    return int(numbers[np.argmin(np.abs(np.log(tests.hazard(numbers) / TESTED[0])))])


def _others(kind: Callable[[Any], Tests]) -> Adversary:
    """Let people have the item of a window who are in no other."""

    def send(seen: Seen) -> list[Sent]:
        number = _fewest(kind(seen.transform))
        return [Sent(1 + seen.window * number + i, NAMES[seen.window]) for i in range(number)]

    return send


def _reader(field: str) -> Callable[[Any, Sequence[Any]], Sequence[float]]:
    """Return what reads of all rows of a trial whether the test of each window was passed in it."""

    def read(transform: Any, rows: Sequence[Any]) -> list[float]:
        first, ending = transform.steps.first, transform.steps.ending
        found = {(ending(row.window_end) - first, getattr(row, field)) for row in rows}
        return [float((window, name) in found) for window, name in enumerate(NAMES)]

    return read
