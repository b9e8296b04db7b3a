"""What transforms that publish alerts are asked with, and what they promise; needs no Beam."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Self

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import EACH, Accuracy, Coverage
from privstream.mechanisms.free_gap.adaptive_sparse_vector import AdaptiveSparseVector
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.monitor.rule_monitor import RuleMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import PureDp
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee, people_hashed, streams_hashed
from privstream.mechanisms.privacy.units import PERSON
from privstream.transforms.alerts.methods import BY_MODEL, AlertPlan, CountedAlerts, StatusAlerts, choose_lasting
from privstream.transforms.alerts.rules import (
    AlertRule,
    FalseAlerts,
    advice_on,
    check_rules,
    describe,
    false_alerts,
    in_words,
)
from privstream.transforms.events.coverage import people_who_count, streams_of_person
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.parameters import Parameters, check_shards, check_streams
from privstream.transforms.methods import FEW_HITS
from privstream.transforms.timing.steps import Length, Moment, Steps, WindowOptions, check_moment
from typing_extensions import Unpack, override

BUDGETS = ("shared", "per_rule")

OF_ALL_TESTS = "each test by itself, with an alert or without"
"""The scope of bounds where the noise of a test is that of its number."""

SURE = (
    "Act on an alert whose gap lower bound is above 0: it is a false one only where that bound is wrong. Others may be "
    "noise: look at the next windows first."
)
"""What a reader may do with bounds: in a test that should give no alert, one with a bound above 0 has a wrong bound."""

MOST_SMOOTHED = 1 << 20
"""Tests of a run that are decided at its end, by smoothed numbers, at most."""

LATER = 1000
"""The number of windows for which the accuracy is stated where there is no end."""


class AlertParameters(Parameters):
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


class SparseVectorParameters(AlertParameters):
    """Report in which windows enough people, or few enough, meet a public rule, and by how many it is passed.

    In every window of every stream each rule is tested once, on a public clock, also where there is no event. A test
    compares the number of distinct people with the threshold of the rule, with noise. A test without an alert publishes
    nothing. With the method "status" an alert starts, continues and ends; its start and its end charge the people who
    are counted for it, and who has been charged `max_hits` times is no longer counted. With "sparse_vector" an alert
    costs budget; one that passes its threshold clearly costs less. When the budget does not suffice for another alert,
    the run stops, and its last row has the flag `stopped`. With "counts" the budget pays for all windows before, and no
    alert stops anything; there a rule may be about the mean of the numbers of several windows in a row: `AlertRule`.

    Input: as of `ShiftingHeavyHitters`. Output: `Alert` rows; with `with_dead_letters()`, a `Published` pair of rows
    and dead letters. A window is decided once, at its end plus `allowed_lateness`.

    Privacy:
        Unit: one person over the whole run and all streams. Neighbours: `neighbouring`. Pure epsilon, however long the
        run; with the method "counts" (epsilon, `delta`), for the windows up to `end`, and with "status" (epsilon,
        `delta`), however long the run. One person moves each count by at most 1, and may take part in any number of
        windows, with any number of events. Public: all arguments but `noise`.

    Accuracy:
        `margin()`: with probability 1 - beta, every count that passes its threshold by more than the margin gives an
        alert while the run lasts; with the method "status", every count of people who have not been charged `max_hits`
        times. Of a rule about n windows that is said of means over n windows, with a margin that is smaller by about
        sqrt(n). With the method "counts", of the alerts of any count at most a part beta have a wrong
        `gap_lower_bound`. With the other methods, for any one test, the probability of an alert with a wrong one is at
        most beta; among the alerts alone wrong bounds may be more frequent: of the counts far from their threshold,
        only those with large noise give an alert.

        With the method "counts" the command decides the alerts of a finished file by counts that are smoothed over all
        of its windows (`to_finish`, `finish`), which costs no privacy: a rule is met where the smoothed number passes
        its threshold. Numbers near a threshold, states that last and those that come slowly are decided better, and
        fewer alerts are noise; a single window that stands out by few standard deviations of the noise is found less
        often. Bounds then rest on a model, in which counts stay near levels that move.

    Args:
        epsilon: limit on what all rows together show about one person over the whole run, > 0. A smaller value protects
            better and needs more noise.
        rules: public rules, which are tested in this order. Their thresholds are numbers of people.
        start: start of the first window, in seconds since 1970 UTC; the others are counted from it.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        end: every window that ends at or before this moment, in seconds since 1970 UTC, is tested, also an empty one.
            `end` must be given unless the input has no end.
        period: seconds between the starts of two windows, for sliding windows; with windows of a calendar so many days,
            weeks, months or years, of which a window is a whole number. Without it windows do not overlap.
        min_alerts: number of alerts that the budget pays for in any case. An alert that passes its threshold clearly
            costs less, so that there may be more.
        branches: number of prices of an alert, 1 to 32: the full price or, if the threshold is passed clearly enough, a
            half, a quarter and so on.
        budget: "shared" gives the tests of all rules one budget together; "per_rule" gives each rule an equal part of
            epsilon. Rules of both directions (at_least and at_most) that share a budget need twice the noise on counts.
        quiet: number of windows after an alert in which its rule is not tested in its stream, so that a state that
            lasts does not use up the budget. Not for the method "status", with which such a state costs nothing.
        streams: public names of the streams in which rules are tested. They must be given if events have a stream.
        streams_per_person: number of streams in which one person counts: those in which the person appears first. Each
            stream then has a budget of its own. Without it a person counts in all streams, which share one budget.
        neighbouring: what makes two inputs neighbours: one person is added or removed ("add_remove"), or replaced by
            another one ("replace_one").
        delta: probability with which the rows may show more than `epsilon` allows, in [0, 1). The method "status" needs
            it, and it lowers the noise of "counts"; "sparse_vector" does not use it. Choose it far below 1 / (number of
            people).
        method: method that tests; "auto" takes "counts" or "status", whichever needs the smaller distance between usual
            numbers and those that are to give alerts in half of their windows, and never "sparse_vector". "status"
            reports a rule from the window in which it is met to the one in which that ends, and charges the people who
            are counted there for these two alone; it needs `delta`. No run stops, but who has been charged `max_hits`
            times no longer counts: the end of an outage charges everybody who is back, so "auto" takes it for rules
            with `at_most` only if one has an `until`. "sparse_vector" pays for alerts alone, and stops when the
            budget is spent. "counts" adds noise to every count and never stops: it pays for every rule in every window
            up to `end`, or of a period of `renew_every`; one of them must be given. `min_alerts`, `branches` and
            `budget` are for "sparse_vector" alone, `max_hits` and rules with `until` for "status" alone, and rules with
            `windows` for "counts" alone.
        max_hits: with the method "status", the number of starts and ends of alerts that one person is charged for in
            one stream, at least the number of rules. Who has been charged so often no longer counts. Without it 4, or
            the number of rules if that is larger.
        beta: probability with which the accuracy statement, or the bound of one test, may be wrong.
        shards: number of parallel parts into which people are divided. It changes no answer.
        **options: window, renew_every, allowed_lateness: see `WindowOptions`.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made.

    Example:
        >>> alerts = SparseVectorAlerts(epsilon=1.0, rules=[AlertRule(name="flu", at_least=500, items=("fever",))],
        ...                             window=3600, start=0, end=86400, noise=KeyedNoise.from_file(path))
        ... # doctest: +SKIP

    Source: Ding et al., Free gap estimates (2022), Algorithm 1; docs/proofs/free_gap.md, docs/proofs/alerts.md. The
    method "status" is derived here, docs/proofs/status_monitor.md, section 6.
    """

    tested = "number of people"

    def __init__(
        self,
        *,
        epsilon: float,
        rules: tuple[AlertRule, ...],
        start: Moment,
        noise: NoiseSource,
        end: Moment | None = None,
        period: Length | None = None,
        min_alerts: int = 10,
        branches: int = 2,
        budget: Literal["shared", "per_rule"] = "shared",
        quiet: int = 0,
        streams: tuple[str, ...] | None = None,
        streams_per_person: int | None = None,
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        delta: float = 0.0,
        method: Literal["auto", "status", "sparse_vector", "counts"] = "auto",
        max_hits: int | None = None,
        beta: float = 0.05,
        shards: int = 4,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise)
        checks.positive("epsilon", epsilon)
        checks.probability("delta", delta, zero=True)
        checks.integer("min_alerts", min_alerts, minimum=1)
        check_moment("start", start)
        rules = check_rules(rules, counts=True)
        names = check_streams(streams)
        if streams_per_person is not None:
            checks.integer("streams_per_person", streams_per_person, minimum=1)
            if streams is None:
                raise ValueError("streams must be given with streams_per_person")
        by_rule = checks.one_of("budget", budget, BUDGETS) == "per_rule"
        self.epsilon = epsilon
        self.streams = streams
        self.streams_per_person = streams_per_person
        self.shards = check_shards(shards)
        self.steps = Steps.of(
            period=period,
            start=start,
            end=end,
            **options,
        )
        one_direction = by_rule or len({rule.sign for rule in rules}) == 1
        mechanism = AdaptiveSparseVector(
            epsilon=epsilon
            / (len(rules) if by_rule else 1)
            / runs_touched(neighbouring, len(names), streams_per_person),
            min_hits=min_alerts,
            branches=branches,
            integer=True,
            monotone=one_direction and neighbouring == "add_remove",
            neighbouring=neighbouring,
        )
        tested = AlertPlan(
            rules=rules,
            streams=names,
            mechanism=mechanism,
            by_stream=streams_per_person is not None,
            by_rule=by_rule,
            quiet=checks.integer("quiet", quiet, minimum=0),
            beta=checks.probability("beta", beta),
        )
        self.plan = replace(tested, by_rule=False)  # of methods that share no budget
        self.delta = delta
        few = max(FEW_HITS, len(rules))
        self.max_hits = few if max_hits is None else checks.integer("max_hits", max_hits, minimum=1)
        self.method, self.counted = self._choose(method)
        if self.counted is None:
            self.plan = tested
        steps = (self.steps.size, self.steps.period, self.steps.first, self.steps.allowed_lateness)
        public = describe(rules, *steps, names, streams_per_person, self.plan.by_rule, quiet)
        self.noise = noise.derive("sparse vector alerts", public + self.steps.further_label.encode())

    @override
    def to_finish(self) -> Self:
        """Return this transform with noisy counts of all windows, of which `finish` makes alerts."""
        first, end, counted = self.steps.first, self.steps.end, self.counted
        if not isinstance(counted, CountedAlerts) or first is None or end is None:
            return self
        if (end - first) * len(self.plan.rules) * len(self.plan.streams) > MOST_SMOOTHED:
            return self
        made = copy.copy(self)
        made.counted = replace(counted, smoothed_over=end - first)
        return made

    def _choose(self, method: str) -> tuple[str, CountedAlerts | StatusAlerts | None]:
        """Return the method that is asked for, or one that never stops."""
        makers: dict[str, Callable[[], CountedAlerts | StatusAlerts | None]] = {
            "status": self._by_status,
            "sparse_vector": self._by_sparse_vector,
            "counts": self._counted,
        }
        if checks.one_of("method", method, ("auto", *makers)) == "auto":
            return choose_lasting(makers, self.plan)
        return method, makers[method]()

    def _by_sparse_vector(self) -> None:
        """Check that the plan's own mechanism can test the rules."""
        self._check_no_until("sparse_vector")
        self._check_single_windows("sparse_vector")

    def _check_no_until(self, method: str) -> None:
        """Refuse rules with an end of their own."""
        for rule in self.plan.rules:
            if rule.until is not None:
                raise ValueError(
                    f"until of rule {rule.name!r} must not be given with the method {method!r}: only 'status' has ends "
                    "of alerts"
                )

    def _check_single_windows(self, method: str) -> None:
        """Refuse rules about several windows."""
        for rule in self.plan.rules:
            if rule.windows > 1:
                raise ValueError(
                    f"windows of rule {rule.name!r} must be 1 with the method {method!r}, got {rule.windows}: only "
                    f"'counts' has means over several windows; put rules with windows into a run of their own, and "
                    f"the other rules can have {method!r}"
                )

    def _counted(self) -> CountedAlerts:
        """Return the method that adds noise to all counts."""
        self._check_no_until("counts")
        plan, windows = self.plan, self.windows
        if windows is None:
            raise ValueError("end or renew_every must be given for counts: they pay for every window")
        for rule in plan.rules:
            if rule.windows > windows:
                raise ValueError(
                    f"windows of rule {rule.name!r} must be <= the number of windows between start and end, or until "
                    f"everything starts afresh, {windows}, got {rule.windows}"
                )
        streams = len(plan.streams)
        in_window = len(plan.rules) * min(streams, self.streams_per_person or streams)
        counts = KeyedCounts(
            epsilon=self.epsilon,
            delta=self.delta,
            horizon=windows,
            contributions=in_window * windows,
            public_keys=True,
            neighbouring=plan.mechanism.neighbouring,
        )
        return CountedAlerts(plan=plan, counts=counts)

    def _by_status(self) -> StatusAlerts:
        """Return the method that charges people for changes."""
        plan, streams = self.plan, len(self.plan.streams)
        self._check_single_windows("status")
        if self.delta == 0:
            raise ValueError("delta must be > 0 for status")
        if plan.quiet:
            raise ValueError(f"quiet must be 0 for status, which charges nobody while an alert lasts, got {plan.quiet}")
        monitor = RuleMonitor(
            epsilon=self.epsilon,
            delta=self.delta,
            max_hits=self.max_hits,
            starts=tuple(int(rule.threshold) for rule in plan.rules),
            ends=tuple(int(rule.threshold if rule.until is None else rule.until) for rule in plan.rules),
            many=tuple(rule.sign > 0 for rule in plan.rules),
            neighbouring=plan.mechanism.neighbouring,
            streams_per_person=min(streams, self.streams_per_person or streams),
            tests=len(plan.rules) * streams * (self.windows or LATER),
            beta=plan.beta,
        )
        return StatusAlerts(plan=plan, monitor=monitor, windows=self.windows)

    @property
    @override
    def false_alerts(self) -> tuple[FalseAlerts, ...]:
        plan = self.plan
        enough = plan.enough if self.counted is None else self.counted.enough
        return false_alerts(plan.rules, enough, self._tests_of, plan.quiet)

    def _tests_of(self, rule: AlertRule) -> int:
        """Return in how many windows a rule is tested, in all streams of a run or of a period."""
        return len(self.plan.streams) * max(1, (self.windows or LATER) + 1 - rule.windows)

    @property
    @override
    def advice(self) -> str:
        several = all(rule.until is None for rule in self.plan.rules)
        return advice_on(self.false_alerts, several)

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        plan = self.plan
        caveats = [KEYED_NOISE]
        some_streams = self.streams_per_person is not None and self.streams_per_person < len(plan.streams)
        if isinstance(self.counted, StatusAlerts) or some_streams:
            # Without a limit two people who share a hash are counted once, which moves no count by more than 1.
            caveats.append(people_hashed(plan.mechanism.neighbouring))
        if some_streams:
            caveats.append(streams_hashed(plan.mechanism.neighbouring))
        limits = [
            "A person may take part in any number of windows, with any number of events.",
        ]
        if self.counted is None:
            stop = (
                f"Tests stop when alerts have cost as much as {plan.mechanism.min_hits:,} at the full price, or nearly"
            )
            limits.append(stop + (", for each rule by itself." if plan.by_rule else "."))
        elif isinstance(self.counted, CountedAlerts):
            limits.append(f"Each person counts once for a rule in each of {self.windows:,} windows of a stream.")
        else:
            limits += self.counted.monitor.guarantee.limits
        if self.streams_per_person is not None:
            most = self.streams_per_person
            limits.append(f"Each person counts in at most {most:,} stream{'s' * (most > 1)}.")
        public = ("all parameters, among them the rules" + (" and the streams" if self.streams else ""),)
        if self.counted is not None:
            return replace(
                self.counted.guarantee,
                limits=tuple(limits),
                public=public,
                proof=self.counted.proof,
                caveats=tuple(caveats),
            )
        return PrivacyGuarantee(
            unit=PERSON,
            neighbouring=plan.mechanism.neighbouring,
            epsilon=self.epsilon,
            delta=0.0,
            limits=tuple(limits),
            public=public,
            proof="docs/proofs/alerts.md, section 1 and section 2",
            caveats=tuple(caveats),
            curve=PureDp(self.epsilon),
        )

    @property
    @override
    def coverage(self) -> Coverage:
        limits, signs = streams_of_person(self.streams_per_person, self.plan.streams), {r.sign for r in self.plan.rules}
        more = "; alerts of at_least rules may be missing" * (1 in signs)
        by_status = isinstance(self.counted, StatusAlerts)
        more += "; alerts of at_most rules may be false" * (-1 in signs and (bool(limits) or not by_status))
        if isinstance(self.counted, StatusAlerts):
            return people_who_count([*limits, *self.counted.charges], EACH, self.counted.note, more)
        if self.counted is None:
            return people_who_count(limits, OF_ALL_TESTS, SURE, more)
        return people_who_count(limits, EACH, f"{SURE} {BY_MODEL}" if self.counted.smoothed_over else SURE, more)

    @property
    @override
    def event_fields(self) -> EventFields:
        return EventFields(streams=self.streams is not None)


def runs_touched(neighbouring: str, streams: int, streams_per_person: int | None) -> int:
    """Return in how many streams with runs of their own two neighbouring inputs may differ; 1 if all share a run."""
    if streams_per_person is None:
        return 1
    people = 2 if neighbouring == "replace_one" else 1  # who is replaced may have been in other streams
    return min(streams, people * streams_per_person)
