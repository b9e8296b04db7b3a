"""What `NumericQuantiles` is asked with, what it promises, and how accurate it is; no Beam."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from privstream.mechanisms.accuracy import Accuracy, Limit
from privstream.mechanisms.numeric_quantiles import NumericQuantiles as Mechanism
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.views.smoothing import SmoothedWindows
from privstream.transforms.parameters import (
    USUAL_CONTRIBUTIONS,
    View,
    WindowedParameters,
    check_limits,
    limits_of,
    within,
)
from privstream.transforms.reading.fields import NUMBER, TEXT, UNREAD, EventFields
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
