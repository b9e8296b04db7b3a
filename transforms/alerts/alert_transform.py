"""What the transforms that publish alerts share: their margin, and what is true of all tests together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.alerts.count_tests import CountedAlerts
from privstream.transforms.alerts.rules import FalseAlerts, in_words
from privstream.transforms.alerts.status_tests import StatusAlerts
from privstream.transforms.alerts.threshold_tests import AlertPlan
from privstream.transforms.events.private_transform import PrivateTransform
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

BUDGETS = ("shared", "per_rule")

OF_ALL_TESTS = "each test by itself, with an alert or without"
"""The scope of bounds where the noise of a test is that of its number."""

SURE = (
    "Act on an alert whose gap lower bound is above 0: it is a false one only where that bound is wrong. Others may be "
    "noise: look at the next windows first."
)
"""What a reader may do with bounds: in a test that should give no alert, one with a bound above 0 has a wrong bound."""

LATER = 1000
"""The number of windows for which the accuracy is stated where there is no end."""


class AlertTransform(PrivateTransform):
    """What the transforms that publish alerts share: their windows, their plan, and what it promises."""

    steps: Steps
    plan: AlertPlan
    noise: NoiseSource
    counted: CountedAlerts | StatusAlerts | None = None
    tested = "measurement"

    @property
    @override
    def public(self) -> Mapping[str, Any]:
        steps, known = self.steps, [rule.given for rule in self.plan.rules]
        if steps.first is None or steps.end is None:
            return {"rules": known}
        span = [steps.bounds(steps.first)[0].micros, steps.bounds(steps.end - 1)[1].micros]
        return {"rules": known, "span": span}

    @property
    def windows(self) -> int | None:
        """Number of windows of the run; None for no end."""
        return self.steps.count

    def margin(self, windows: int | None = None, rule: str | None = None) -> float:
        """Return by how much a value must pass its threshold to be sure of an alert.

        With probability 1 - beta, in all tests of one run in so many windows (None: those of the transform) at once: a
        value that passes its threshold by more fires, while the run lasts, and what fires does not miss it by more.
        Of a rule about several windows the value is a mean over them.

        Args:
            windows: of the run.
            rule: name of a rule; None for the rules with the largest margin.
        """
        windows = self.windows if windows is None else checks.integer("windows", windows, minimum=1)
        if windows is None:
            raise ValueError("windows must be given for a run without an end")
        tests = self.plan.tests(windows)
        if self.counted is not None:
            lengths = [each.windows for each in self.plan.rules if rule in (None, each.name)]
            if not lengths:
                raise ValueError(f"rule must be the name of a rule, got {rule!r}")
            return self.counted.margin(tests, min(lengths))
        return self.plan.mechanism.accuracy(tests, self.plan.beta)

    @property
    def false_alerts(self) -> tuple[FalseAlerts, ...]:
        """The rules that noise alone meets in a run with nobody at all; none for measurements of other things."""
        return ()

    @property
    @override
    def prediction(self) -> Accuracy:
        plan, windows = self.plan, self.windows or LATER
        mechanism, margin, tests = plan.mechanism, self.margin(windows), plan.tests(windows)
        span = "" if self.windows else f" of the first {windows:,} windows"
        stated = round(margin) if mechanism.integer else math.ceil(margin)  # holds for whole numbers
        runs: dict[str, Any] = {
            "runs": len(plan.keys) * len(plan.groups),
            "min_alerts": mechanism.min_hits,
            "max_alerts": mechanism.most_hits,
            "gap_stddevs": [math.sqrt(mechanism.tests.variance(branch)) for branch in range(mechanism.branches)],
            "epsilon_per_alert": mechanism.hit_epsilon,
        }
        last = ", until the run stops" if self.counted is None else ""
        claim = (
            f"every {self.tested} that passes its threshold by more than {stated:,} gives an alert{last}, and none "
            "that misses it by more does."
        )
        if self.counted is not None:
            claim = self.counted.claim(tests)
            if isinstance(self.counted, CountedAlerts):
                claim += self.counted.not_tested(renewed=self.steps.renewal is not None)
            runs = {"gap_stddevs": self.counted.stddevs, "epsilon_per_alert": 0.0}
        if isinstance(self.counted, CountedAlerts) and any(rule.windows > 1 for rule in plan.rules):
            runs["margins"] = {rule.name: self.margin(windows, rule.name) for rule in plan.rules}
        if isinstance(self.counted, StatusAlerts):
            runs |= {"end_margin": margin, "max_hits": self.counted.monitor.max_hits}
        if false := self.false_alerts:
            runs["false_alerts"] = {each.rule.name: each.expected for each in false}
        return Accuracy(
            error=margin,
            failure_probability=plan.beta,
            claim=f"With probability {1 - plan.beta:g}, in all {tests:,} tests of a run{span} together (a test is "
            f"that of one rule in one window), {claim}"
            f"{in_words(false)}",
            numbers={"margin": margin, "tests": tests, **runs},
        )
