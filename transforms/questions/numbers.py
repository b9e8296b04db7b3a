"""Quantiles and set sizes: what they are asked with, what they promise, and how accurate they are; no Beam."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy, Limit
from privstream.mechanisms.continual import cardinality as mechanisms
from privstream.mechanisms.continual.cardinality import BETA
from privstream.mechanisms.numeric_quantiles import NumericQuantiles as Mechanism
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.views.smoothing import SmoothedWindows
from privstream.transforms.parameters import (
    USUAL_CONTRIBUTIONS,
    Actions,
    View,
    WindowedParameters,
    check_limits,
    limits_of,
    within,
)
from privstream.transforms.reading.fields import NUMBER, TEXT, UNREAD, EventFields
from privstream.transforms.timing.steps import Seconds, to_micros
from typing_extensions import override


class QuantilesParameters(WindowedParameters):
    """Publish quantiles of the numbers of each window: the median, percentiles.

    Input: as of `KeyedCounts`, with a number as `value` and no item. Output: `QuantileEstimate` rows, in every window
    one for each quantile. Args: see `Parameters` and `privstream quantiles --help`.

    Privacy:
        Unit: one person over the whole run, or one event, added or removed. (epsilon, delta):
        `guarantee`. Enforced: each person counts with at most `max_contributions` values in the whole run, and with
        `max_per_window` random ones in a window. Public: all arguments but `noise`.

    Accuracy:
        Each interval contains the quantile of the values that count, each clipped to [low, high], with probability
        95%. Where a window has few values or none, intervals reach from `low` to `high`.

    Source: derived here, docs/proofs/numeric_quantiles.md.
    """

    mechanism: Mechanism

    def __init__(
        self,
        *,
        low: float,
        high: float,
        quantiles: tuple[float, ...] = (0.5,),
        scale: Literal["linear", "log"] = "linear",
        resolution: int = 1000,
        max_contributions: int | None = None,
        max_per_window: int | None = None,
        unit: Literal["person", "event"] = "person",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_limits(unit, max_contributions=max_contributions, max_per_window=max_per_window)
        most = USUAL_CONTRIBUTIONS if max_contributions is None else max_contributions
        in_window = min(max_per_window or 1, most)
        if self.steps.count is not None:
            most = min(most, in_window * self.steps.count)
        self.mechanism = Mechanism(
            **self.budget,
            low=low,
            high=high,
            resolution=resolution,
            scale=scale,
            quantiles=quantiles,
            horizon=self.steps.count,
            contributions=1 if unit == "event" else most,
            per_step=1 if unit == "event" else in_window,
            unit=unit,
        )

    @property
    @override
    def view(self) -> View:
        made = self.mechanism
        view = SmoothedWindows("value", "quantile", made.scale == "log", self.steps.size, (made.low, made.high))
        return lambda table, _: view(table)

    @property
    @override
    def person_limits(self) -> tuple[Limit, ...]:
        made, windows = self.mechanism, self.steps.count
        if not self._by_person:
            return ()
        limited = windows is None or made.contributions < windows * made.per_step
        return limits_of(run=made.contributions if limited else None, window=made.per_step, thing="value")

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        found = self.mechanism.guarantee
        return within(found, self.person_limits, *(() if self._by_person else found.limits), hashed=self._by_person)

    @property
    @override
    def accuracy(self) -> Accuracy:
        return replace(self.mechanism.accuracy, limits=self.person_limits)

    @property
    @override
    def event_fields(self) -> EventFields:
        user = TEXT if self._by_person else UNREAD
        return EventFields(user=user, item=False, value=NUMBER)

    @property
    def _by_person(self) -> bool:
        return self.mechanism.unit == "person"


METHODS = {"counts": "counts", "sparse_counter": "sparse"}
"""Which mode of the mechanism each method is."""
FOR_EVER = 65_535  # steps, where there is no time-out


class CardinalityParameters(WindowedParameters):
    """Publish how many people are in a set now: in the building, subscribed, online; at the end of every window.

    The item says whether a person enters (`enter_values`) or leaves (`leave_values`); with `timeout` a person has also
    left when they have sent no event for that time. Without `enter_values` every event whose item is not one of
    `leave_values` means that the person is present. A person counts if their last event before the end of the window
    means that they are present then; of events at one time, leaving comes last. Entering twice, and leaving without
    being present, change nothing. At `start` nobody is present, whatever came before.

    Input: as of `KeyedCounts`. Output: a `CardinalityEstimate` row for each window, also an empty one. Args: see
    `Parameters` and `privstream cardinality --help`.

    Privacy:
        Unit: all that one person does over the whole run, added or removed. (epsilon, delta): `guarantee`. Enforced: a
        person counts as one or as none at the end of each window, and with the method counts in at most
        `max_contributions` windows. Public: all arguments but `noise`. `max_updates` is a guess that must not be taken
        from the data; it is not enforced, since that would let one person decide whose later moves count.

    Accuracy:
        With probability 95%, all estimates are within their `error_bound` of the number of people who
        count, in all windows together; with sparse_counter if they enter or leave at most `max_updates` times in
        all. If people enter or leave more often than that, the bounds may be wrong,
        and the estimate may stop following the set: its bound is then -1.

    Source: Henzinger, Sricharan, Steiner (2023), section 5; docs/proofs/cardinality.md.
    """

    def __init__(
        self,
        *,
        enter_values: tuple[str, ...] | None = None,
        leave_values: tuple[str, ...] | None = None,
        timeout: Seconds | None = None,
        max_updates: int | None = None,
        max_contributions: int | None = None,
        method: Literal["counts", "sparse_counter"] = "counts",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.actions = Actions.of(enter_values=enter_values, leave_values=leave_values)
        self.timeout = None if timeout is None else to_micros("timeout", timeout)
        if leave_values is None and timeout is None:
            raise ValueError("leave_values or timeout must be given: nobody would ever leave")
        if self.timeout is not None and self.timeout // self.steps.size >= FOR_EVER - 1:
            raise ValueError(f"timeout must be < {FOR_EVER - 1} windows, got {timeout} seconds")
        mode = METHODS[checks.one_of("method", method, tuple(METHODS))]
        if max_contributions is not None:
            if method != "counts":
                raise ValueError(f"max_contributions must not be given with method {method}")
            check_limits("person", max_contributions=max_contributions)
        elif method == "counts" and self.steps.count is None:
            raise ValueError("max_contributions must be given where the run has no end")
        limited = self.steps.count is None or max_contributions is None or max_contributions < self.steps.count
        self.method, self.max_contributions = method, max_contributions if limited else None
        self.mechanism = mechanisms.SetCardinality(
            **self.budget,
            horizon=self.steps.count,
            contributions=self.max_contributions,
            max_updates=max_updates,
            mode=mode,
        )

    @property
    @override
    def view(self) -> View | None:
        view = SmoothedWindows("people", length=self.steps.size)
        return (lambda table, _: view(table)) if self.method == "counts" else None

    @property
    @override
    def person_limits(self) -> tuple[Limit, ...]:
        return limits_of(run=self.max_contributions, thing="window")

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        one = "A person counts as one or as none at the end of each window, by their last event."
        return within(self.mechanism.guarantee, self.person_limits, one)

    @property
    @override
    def accuracy(self) -> Accuracy:
        mechanism, windows = self.mechanism, self.mechanism.expected_steps
        error, updates = mechanism.error(windows), mechanism.expected_updates
        span = "" if mechanism.horizon else f" in the first {windows:,} windows"
        counted = self.method != "counts"
        condition = f", while people enter or leave it at most {updates:,} times in all" if counted else ""
        return Accuracy(
            error=error,
            failure_probability=BETA,
            claim=f"With probability {1 - BETA:g}, all estimates{span} are within {error:,} "
            f"of the number without noise{condition} (method {self.method}; each row has an error bound of its own).",
            numbers={"method": self.method, "error_bound": error, "windows": windows, "updates": updates},
            limits=self.person_limits,
        )

    @property
    @override
    def event_fields(self) -> EventFields:
        return EventFields(item=self.actions != Actions(None, None))
