"""Heavy hitters, top-k and alerts: what they are asked with, and what they promise; no Beam."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE, RUN, Accuracy, Limit
from privstream.mechanisms.monitor.monitor import ThresholdMonitor
from privstream.mechanisms.privacy.guarantee import ITEMS_HASHED, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.mechanisms.selection.sparse_vector import GAPS, SparseVector
from privstream.mechanisms.selection.top_k import MeasuredTopK
from privstream.mechanisms.views.counts import ranked
from privstream.mechanisms.views.rules import Condition, alerts, trending
from privstream.transforms.counts.keyed_counts import CountedParameters, counted_items
from privstream.transforms.parameters import USUAL_CONTRIBUTIONS, distinct_texts, limits_of, within
from privstream.transforms.reading.domain import Domain, Items
from privstream.transforms.row_types import Alert, HeavyHitter, RankedItem
from typing_extensions import override

MONITORS = ("clock", "status")
MAX_HITS = 4


class HeavyHittersParameters(CountedParameters):
    """Report the items that many people have in each window; one guarantee protects each person over the whole run.

    A row says since when its item has been reported. By counts, an item is reported in each window in which its number
    of people, as `KeyedCounts` publishes it with the same limits, is surely above `threshold`.

    Input: as of `KeyedCounts`. Output: `HeavyHitter` rows. Args: see `Parameters`, `privstream heavy-hitters --help`.

    Privacy:
        Unit: one person over the whole run, or, with `renew_every`, one period. (epsilon, delta): `guarantee`.
        Enforced: by counts, the limits of `KeyedCounts`; by the other methods, each person counts with at most
        `max_per_window` items in a window, and is charged at most `max_hits` times. Public: all arguments but `noise`.

    Accuracy:
        By counts, that of `KeyedCounts`; of rows reported by mistake there is at most one in a hundred, as far as the
        intervals of counts hold. By the other methods, an item is reported that at least
        `monitor.detection_threshold` people have, none of them charged `max_hits` times before, with probability 95%
        in all tests together.

    Source: docs/proofs/keyed_counts.md; for "clock" and "status" Kaplan, Mansour, Stemmer (2020), docs/proofs/clock.md,
    docs/proofs/status_monitor.md.
    """

    row_type, counter = HeavyHitter, "hits_published"
    of_methods = MappingProxyType(
        dict.fromkeys(("threshold", "max_contributions", "public_items"), ("counts",)) | {"max_hits": tuple(MONITORS)}
    )

    def __init__(
        self,
        *,
        delta: float,
        threshold: int | None = None,
        max_contributions: int | None = None,
        max_per_window: int | None = None,
        domain: Items | None = None,
        public_items: Items | None = None,
        method: Literal["counts", "clock", "status"] = "counts",
        max_hits: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(delta=delta, **options)
        self._check_method(method, "counts", *MONITORS)
        least = 0 if threshold is None else checks.integer("threshold", threshold, minimum=0)
        self.domain = None if domain is None else Domain.of(domain)
        if method == "counts":
            checks.probability("delta", delta)
            self._by_counts(noise=self.noise)
            self.follow = partial(trending, windows=self.steps, threshold=least)
            return
        steps = self.steps
        if steps.count is None:
            raise ValueError(f"end or renew_every must be given with the method {method}")
        self.max_per_window = 1 if max_per_window is None else max_per_window
        self.mechanism = self.monitor = ThresholdMonitor(
            calibration=method,
            **self.budget,
            max_hits=MAX_HITS if max_hits is None else max_hits,
            domain_size=None if self.domain is None else len(self.domain),
            horizon=steps.count,
            first_step=steps.first,
            items_per_step=checks.integer("max_per_window", self.max_per_window, minimum=1),
            label=f"{steps.label} {'' if self.domain is None else self.domain.digest}",
        )
        if self.monitor.max_hits < self.max_per_window:
            raise ValueError(f"max_hits must be >= max_per_window, got {self.monitor.max_hits} < {self.max_per_window}")

    @property
    @override
    def person_limits(self) -> tuple[Limit, ...]:
        cuts = self.domain is None or self.max_per_window < len(self.domain)
        charged = Limit("max_hits", self.monitor.max_hits, "charge", RUN)
        return (*limits_of(window=self.max_per_window if cuts else None), charged)

    @property
    @override
    def _other_promise(self) -> PrivacyGuarantee:
        found = within(self.monitor.guarantee, (), *self.monitor.guarantee.limits)
        return found if self.domain is not None else replace(found, caveats=(*found.caveats, ITEMS_HASHED))

    @property
    @override
    def _other_accuracy(self) -> Accuracy:
        monitor = self.monitor
        found, tests = monitor.detection_threshold, monitor.calibrated.budget.tests
        return Accuracy(
            error=found,
            failure_probability=monitor.beta,
            claim=f"With probability {1 - monitor.beta:g}, in {tests:,} tests together, every item is reported that at "
            f"least {found:,} people have in a window.",
            numbers={
                "detection_threshold": found,
                "threshold": monitor.calibrated.threshold,
                "stddev": monitor.count_stddev,
                "tests": tests,
            },
            limits=self.person_limits,
        )


USUAL_TOP, USUAL_ITEMS = 10, 4


class TopKParameters(CountedParameters):
    """Publish, window by window, the `top` items that most people have, and by how much each is ahead of the next one.

    By counts, items are ranked by the number of people that `KeyedCounts` publishes for them, with the same limits.
    With a `domain` all its items are ranked; without one, those that are found.

    Input: as of `KeyedCounts`. Output: `RankedItem` rows. Args: see `Parameters` and `privstream top-k --help`.

    Privacy:
        Unit: one person over the whole run, or, with `renew_every`, one period. (epsilon, delta): `guarantee`.
        Enforced: the limits of `KeyedCounts`; with the method "gaps" each person counts with at most `max_per_window`
        items in a window, in at most `max_contributions` / `max_per_window` windows, the first ones. Public: all
        arguments but `noise`.

    Accuracy:
        By counts, that of `KeyedCounts`. By "gaps", in each window, with probability 95%, no item that is not published
        belongs to over `selection_error` more people than one that is. Items on top are more often too high than too
        low.

    Source: docs/proofs/keyed_counts.md; for "gaps" Ding et al., Free gap estimates (2022), Algorithm 3,
    docs/proofs/top_k_windows.md.
    """

    row_type, counter = RankedItem, "ranks_published"
    of_methods = MappingProxyType({"public_items": ("counts",)})

    def __init__(
        self,
        *,
        top: int | None = None,
        max_contributions: int | None = None,
        max_per_window: int | None = None,
        domain: Items | None = None,
        public_items: Items | None = None,
        method: Literal["counts", "gaps"] = "counts",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._check_method(method, "counts", "gaps")
        self.domain = None if domain is None else Domain.of(domain)
        if self.domain is not None and len(self.domain) < 2:
            raise ValueError("domain must have at least two items, of which one is ranked first, got 1")
        if top is None:
            top = USUAL_TOP if self.domain is None else min(USUAL_TOP, len(self.domain) - 1)
        self.top = checks.integer("top", top, minimum=1)
        if self.domain is not None and top >= len(self.domain):
            raise ValueError(f"top must be < {len(self.domain)}, the number of items in domain, got {top}")
        if method == "counts":
            self._by_counts(noise=self.noise, top=None)
            self.follow = lambda counts, _: ranked(counts, top)
            return
        if self.domain is None:
            raise ValueError("domain must be given with the method gaps")
        if self.steps.count is None:
            raise ValueError("end or renew_every must be given with the method gaps")
        most = USUAL_CONTRIBUTIONS if max_contributions is None else max_contributions
        usual = min(USUAL_ITEMS, len(self.domain), checks.integer("max_contributions", most, minimum=1))
        self.max_per_window = usual if max_per_window is None else max_per_window
        if checks.integer("max_per_window", self.max_per_window, minimum=1) > most:
            raise ValueError(f"max_per_window must be <= max_contributions, got {self.max_per_window} > {most}")
        self.windows_of_person = min(self.steps.count, most // self.max_per_window)
        self.mechanism = MeasuredTopK(
            **self.budget,
            top=top,
            releases=self.windows_of_person,
            items_per_release=self.max_per_window,
        )

    @property
    @override
    def person_limits(self) -> tuple[Limit, ...]:
        limited = self.windows_of_person < (self.steps.count or 0)
        return limits_of(
            run=self.windows_of_person if limited else None, window=self.max_per_window, thing="item", whole="window"
        )

    @property
    @override
    def _other_promise(self) -> PrivacyGuarantee:
        found = within(self.mechanism.guarantee, self.person_limits)
        adaptivity = "The events of each window may depend on everything published before it."
        return replace(found, adaptivity=adaptivity)

    @property
    @override
    def _other_accuracy(self) -> Accuracy:
        assert self.domain is not None
        error = self.mechanism.selection.accuracy(len(self.domain), OUTSIDE)
        return Accuracy(
            error=error,
            failure_probability=OUTSIDE,
            claim=f"With probability {1 - OUTSIDE:g}, no item that is not published in a window belongs to over "
            f"{error:,.0f} more people than an item that is published.",
            numbers={"selection_error": error, "stddev": self.mechanism.estimate_variance**0.5},
            limits=self.person_limits,
        )


LARGEST = 2**53
"""Whole numbers up to this are exact as floating-point numbers."""


SIDES = {1: ("at_least", "clear_below", "clear_above"), -1: ("at_most", "clear_above", "clear_below")}
"""What makes a rule fire above its threshold, or below it; what then says where it ends, and what does not."""


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """A condition that is tested in every window: at least, or at most, a number of people.

    Args:
        name: what the alert is called; rules of one run have distinct names.
        at_least: the rule is met when at least this number of people meet it, a whole number, or
        at_most: when at most this number do; one of both must be given.
        items: what is counted are the people with an event of one of these items; None for people with any event.
        clear_below: of a rule with at_least, a number, not above it, below which an alert ends; without it `at_least`.
        clear_above: of a rule with at_most, a number, not below it, above which an alert ends.
    """

    name: str = ""
    at_least: int | None = None
    at_most: int | None = None
    items: tuple[str, ...] | None = None
    clear_below: int | None = None
    clear_above: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError("name of a rule must be a text, not empty")
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"rule {self.name!r} must have one of at_least and at_most")
        condition = self.condition
        begins, ends, other = SIDES[condition.sign]
        for key in (begins, ends):
            if getattr(self, key) is not None:
                checks.integer(f"{key} of rule {self.name!r}", getattr(self, key), minimum=0, maximum=LARGEST)
        if getattr(self, other) is not None:
            raise ValueError(f"{other} of rule {self.name!r} must not be given with {begins}")
        if condition.ends_early:
            beyond = "<=" if condition.sign > 0 else ">="
            raise ValueError(f"{ends} of rule {self.name!r} must be {beyond} {begins}, got {condition.ends_at}")
        if self.items is not None:
            object.__setattr__(self, "items", distinct_texts(f"items of rule {self.name!r}", self.items))

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are given, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def condition(self) -> Condition:
        """When an alert begins and ends."""
        found = Condition.of(self.at_least, self.at_most, self.clear_below, self.clear_above, reaching=True)
        assert found is not None  # it has one of the first two
        return found


FEW_HITS, MIN_ALERTS = 4, 10
LATER = 1000
"""The number of windows for which accuracy is stated where there is no end."""


class AlertsParameters(CountedParameters):
    """Report in which windows enough people, or few enough, meet a public rule.

    In every window each rule is tested once, on a public clock, also where there is no event. A rule is about the
    number of distinct people with an event of one of its items. By counts, a rule is met where that number, as
    `KeyedCounts` publishes it for the list of rules with the same limits, reaches its threshold.

    Input: as of `KeyedCounts`. Output: `Alert` rows. Args: see `Parameters` and `privstream alerts --help`.

    Privacy:
        Unit: one person over the whole run, or, with `renew_every`, one period. (epsilon, delta): `guarantee`.
        Enforced: by counts, the limits of `KeyedCounts`, for which a rule is an item. With the other methods a person
        may take part in any number of windows, with any number of events: "sparse_vector" promises pure epsilon;
        "status" takes rules with `at_least` alone.
        Public: all arguments but `noise`.

    Accuracy:
        By counts, that of `KeyedCounts`. By the other methods, with probability 95% in all tests together, every number
        of people that passes its threshold by more than `margin` gives an alert while the run lasts, and none that
        misses it by more does; with "status", every number of people who have not been charged `max_hits` times.

    Source: docs/proofs/keyed_counts.md; for "sparse_vector" Ding et al., Free gap estimates (2022), Algorithm 1,
    docs/proofs/free_gap.md, docs/proofs/alerts.md; for "status" docs/proofs/status_monitor.md, section 5.
    """

    row_type, counter = Alert, "alerts_published"

    of_methods = MappingProxyType(
        {
            "max_contributions": ("counts",),
            "max_per_window": ("counts",),
            "min_alerts": ("sparse_vector",),
            "max_hits": ("status",),
        }
    )

    def __init__(
        self,
        *,
        rules: tuple[AlertRule, ...],
        max_contributions: int | None = None,
        max_per_window: int | None = None,
        method: Literal["counts", "sparse_vector", "status"] = "counts",
        min_alerts: int | None = None,
        max_hits: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._check_method(method, "counts", "sparse_vector", "status")
        if not isinstance(rules, Collection) or not all(isinstance(rule, AlertRule) for rule in rules):
            raise TypeError("rules must be a sequence of AlertRule")
        if not rules or len({rule.name for rule in rules}) < len(rules):
            raise ValueError("rules must have distinct names, and there must be at least one")
        self.rules = tuple(rules)
        conditions = {rule.name: rule.condition for rule in self.rules}
        self.sparse_vector: SparseVector | None = None
        self.monitor: ThresholdMonitor | None = None
        if method == "counts":
            listed = Domain([rule.name for rule in self.rules])
            self._by_counts(noise=self.noise.derive("rules", json.dumps(counted_items(self.rules))), domain=listed)
            assert self.counts is not None
            self.counts.rules = tuple(sorted(self.rules, key=lambda rule: rule.name))  # as the list of names is
            self.follow = partial(alerts, windows=self.steps, rules=conditions)
            return
        if method == "status":
            if few := [name for name, each in conditions.items() if each.sign < 0]:
                raise ValueError(f"at_most of rule {few[0]!r} must not be given with the method status")
            self.mechanism = self.monitor = ThresholdMonitor(
                calibration="status",
                **self.budget,
                max_hits=max(FEW_HITS, len(self.rules)) if max_hits is None else max_hits,
                starts=tuple(int(each.threshold) for each in conditions.values()),
                ends=tuple(int(each.ends_at) for each in conditions.values()),
                tests=self._tests,
            )
        else:
            if longer := [(name, each.sign) for name, each in conditions.items() if each.ends_at != each.threshold]:
                name, sign = longer[0]
                raise ValueError(f"{SIDES[sign][1]} of rule {name!r} must not be given with the method sparse_vector")
            self.mechanism = self.sparse_vector = SparseVector(
                epsilon=self.budget["epsilon"],
                max_hits=MIN_ALERTS if min_alerts is None else min_alerts,
                publish=GAPS,
                branches=2,
                monotone=len({each.sign for each in conditions.values()}) == 1,
            )
        known = json.dumps([rule.given for rule in self.rules])
        self.noise = self.noise.derive("alerts", known, self.steps.label)

    @property
    def _tests(self) -> int:
        """Tests for which the accuracy is stated."""
        return len(self.rules) * (self.steps.count or LATER)

    @property
    @override
    def public(self) -> Mapping[str, Any]:
        return {"rules": [rule.given for rule in self.rules]}

    @property
    def margin(self) -> float:
        """By how much a value must pass its threshold to be sure of an alert, by the other methods than counts."""
        if self.monitor is not None:
            return float(self.monitor.detection_threshold)
        assert self.sparse_vector is not None
        return self.sparse_vector.accuracy(self._tests, OUTSIDE)

    @property
    @override
    def person_limits(self) -> tuple[Limit, ...]:
        return () if self.monitor is None else (Limit("max_hits", self.monitor.max_hits, "charge", RUN),)

    @property
    @override
    def _other_accuracy(self) -> Accuracy:
        margin, last = self.margin, "" if self.sparse_vector is None else ", until the run stops"
        numbers: dict[str, Any] = {"start_margin": margin, "tests": self._tests}
        if self.sparse_vector is not None:
            numbers |= {"min_alerts": self.sparse_vector.max_hits, "max_alerts": self.sparse_vector.most_hits}
        return Accuracy(
            error=margin,
            failure_probability=OUTSIDE,
            claim=f"With probability {1 - OUTSIDE:g}, in all {self._tests:,} tests together (a test is that of one "
            f"rule in one window), every number of people that passes its threshold by more than {round(margin):,} "
            f"gives an alert{last}, and none that misses it by more does.",
            numbers=numbers,
            limits=self.person_limits,
        )

    @property
    @override
    def _other_promise(self) -> PrivacyGuarantee:
        any_number = "A person may take part in any number of windows, with any number of events."
        adaptivity = "The events of each window may depend on everything published before it."
        if self.monitor is not None:
            found = replace(self.monitor.guarantee, proof="docs/proofs/status_monitor.md, section 5")
            return replace(within(found, (), any_number, *found.limits), adaptivity=adaptivity)
        made = self.sparse_vector
        assert made is not None
        found = replace(made.guarantee, unit=PERSON, proof="docs/proofs/alerts.md", adaptivity=adaptivity)
        stops = f"Tests stop when alerts have cost as much as {made.max_hits:,} at the full price, or nearly."
        return within(found, (), any_number, stops, hashed=False)
