"""What `ShiftingHeavyHitters` is asked with, and what it promises; no Beam."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import RUN, Accuracy, Limit
from privstream.mechanisms.monitor.monitor import ThresholdMonitor
from privstream.mechanisms.privacy.guarantee import ITEMS_HASHED, PrivacyGuarantee
from privstream.mechanisms.views.trending import trending
from privstream.transforms.counts.counted import CountedParameters
from privstream.transforms.parameters import limits_of, within
from privstream.transforms.reading.domain import Domain, Items
from privstream.transforms.row_types import HeavyHitter
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
