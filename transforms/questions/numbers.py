"""Quantiles, set sizes, and queries about one data set: what they are asked with, and what they promise; no Beam."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy, Limit
from privstream.mechanisms.continual import cardinality as mechanisms
from privstream.mechanisms.continual.cardinality import BETA, TYPICAL
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.numeric_quantiles import NumericQuantiles as Mechanism
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.mechanisms.selection.multiplicative_weights import OnlineMultiplicativeWeights
from privstream.mechanisms.views.smoothing import SmoothedWindows
from privstream.transforms.parameters import (
    USUAL_CONTRIBUTIONS,
    Actions,
    Bound,
    Parameters,
    View,
    WindowedParameters,
    check_limits,
    distinct_texts,
    limits_of,
    plain,
    within,
)
from privstream.transforms.reading.domain import Domain, Items
from privstream.transforms.reading.fields import NUMBER, TEXT, UNREAD, EventFields
from privstream.transforms.timing.steps import Seconds, to_micros
from typing_extensions import override


class QuantilesParameters(WindowedParameters):
    """Publish quantiles of the numbers of each window: the median, percentiles.

    Input: as of `KeyedCounts`, with a number as `value` and no item. Output: `QuantileEstimate` rows, in every window
    one for each quantile. Args: see `Parameters` and `privstream quantiles --help`.

    Privacy:
        Unit: one person over the whole run, or one event, added or removed. (epsilon, delta):
        `guarantee`. Enforced: each person counts with at most `max_contributions` values in the whole run, random ones
        if the input ends, and with `max_per_window` random ones in a window. Public: all arguments but `noise`.

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
    def bound(self) -> Bound | None:
        """How many values per person count; None where events are protected."""
        made, windows = self.mechanism, self.steps.count
        limited = windows is None or made.contributions < windows * made.per_step
        return Bound(made.contributions, None, self.ended and limited, limited) if self._by_person else None

    @property
    @override
    def release(self) -> Mapping[str, Any]:
        return {**super().release, "bound": plain(self.bound)}

    @property
    @override
    def person_limits(self) -> tuple[Limit, ...]:
        if (bound := self.bound) is None:
            return ()
        run = bound.in_run if bound.paced else None
        return limits_of(run=run, window=self.mechanism.per_step, thing="value")

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
        With probability 95%, all estimates are within their `error_bound` of the number of people who count, in all
        windows together; with sparse_counter if they enter or leave at most `max_updates` times in all. If they do so
        more often, the estimate may stop following the set: its bound is then -1.

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
        mechanism, windows = self.mechanism, self.mechanism.horizon or TYPICAL
        error, updates = mechanism.error(windows), mechanism.max_updates or TYPICAL
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


@dataclass(frozen=True, kw_only=True)
class LinearQuery:
    """How many people have one of these items; public.

    Args:
        name: what the query is called in its answer.
        items: distinct items of the domain.
    """

    name: str = ""
    items: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError("name of a query must be a text, not empty")
        object.__setattr__(self, "items", distinct_texts(f"items of query {self.name!r}", self.items))


class QueriesParameters(Parameters):
    """Answer counting queries about a data set, one after the other, in the order of their list.

    Input: the data set, a bounded collection of pairs (user, item), rows or Arrow batches, as of `KeyedCounts`; each
    person counts with one item. Events without a time count as of 1970. Output: one `QueryAnswer` row for each query.
    Args: see `Parameters` and `privstream queries --help`; `queries` are `LinearQuery`s.

    An answer comes from a public hypothesis, for free, unless a private test finds it wrong by about alpha `records`:
    then it is measured, and the hypothesis learns from it. When all measurements are spent, the row of each further
    query has the source `refused`; its estimate is that of the hypothesis, which has not been tested.

    Privacy:
        Unit: one person, added or removed: all records of one person, of which one counts. (epsilon, delta):
        `guarantee`, over all queries of a run. Public: all arguments but `noise`, among them `records`; the queries.

    Accuracy:
        With probability 95%, every answer that is not refused is within its `error_bound`. None is refused with at
        least `records_needed` records, and exactly `records`.

    Example:
        >>> answers = people | PrivateQueries(
        ...     epsilon=1.0, domain=Domain(["0-9", "10-19", "20-29"]), records=10_000,
        ...     queries=[LinearQuery(name="young", items=("0-9", "10-19"))],
        ...     noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Hardt and Rothblum (2010), docs/proofs/multiplicative_weights.md.
    """

    mechanism: OnlineMultiplicativeWeights

    def __init__(
        self,
        *,
        epsilon: float,
        domain: Items,
        noise: NoiseSource,
        records: int,
        queries: Sequence[LinearQuery],
        alpha: float | None = None,
        delta: float = 0.0,
        shards: int = 4,
    ) -> None:
        super().__init__(noise, shards)
        self.domain = Domain.of(domain)
        if len(self.domain) < 2:
            raise ValueError("domain must have at least two items, got 1")
        if not isinstance(queries, Collection) or not all(isinstance(query, LinearQuery) for query in queries):
            raise TypeError("queries must be a sequence of LinearQuery")
        if not queries or len({query.name for query in queries}) < len(queries):
            raise ValueError("queries must have distinct names, and there must be at least one")
        self.queries = tuple(queries)
        self.positions = tuple(map(self._positions, self.queries))
        parameters: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "domain_size": len(self.domain)}
        parameters["records"] = checks.integer("records", records, minimum=1)
        if alpha is None:
            made = OnlineMultiplicativeWeights.most_accurate(queries=len(queries), beta=BETA, **parameters)
        else:
            made = OnlineMultiplicativeWeights(alpha=checks.probability("alpha", alpha), **parameters)
        self.mechanism = made
        asked = [[query.name, *places] for query, places in zip(self.queries, self.positions, strict=True)]
        self.noise = noise.derive("private queries", self.domain.digest, json.dumps(asked))

    def _positions(self, query: LinearQuery) -> tuple[int, ...]:
        """Return the places in the domain that a query adds up."""
        found = self.domain.codes(pa.record_batch({"item": pa.array(query.items, pa.string())}))
        if found.min() < 0:
            other = query.items[int(found.argmin())]
            rule = f"queries must be about items of the domain{self.domain.read_as}"
            raise ValueError(f"{rule}, and {other!r} of query {query.name!r} is none")
        return tuple(sorted(found.tolist()))

    @property
    @override
    def person_limits(self) -> tuple[Limit, ...]:
        return (Limit("", 1, "item"),)

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        # Who is added to somebody with the same hash may replace that one's record: no query moves by more than 1.
        measured = f"At most {self.mechanism.max_updates:,} answers are measured; then queries are refused."
        found = within(self.mechanism.guarantee, self.person_limits, measured, "It covers one data set.", hashed=False)
        public = ("all arguments but the noise, among them the number of records", "the queries")
        return replace(found, unit=PERSON, public=public)

    @property
    @override
    def accuracy(self) -> Accuracy:
        made, bound = self.mechanism, self.error_bound
        records, needed = made.records, made.records_needed(len(self.queries), BETA)
        refused = "None is refused."
        if records < needed:
            refused = f"Some may be refused; with {needed:,} people none would be."
        nothing = " With so few people, this bound is of no use." if bound >= records else ""
        return Accuracy(
            error=bound,
            failure_probability=BETA,
            claim=f"With probability {1 - BETA:g}, all answers are within "
            f"{math.ceil(bound):,} people of the number without noise.{nothing} {refused}",
            numbers={
                "error_bound": bound,
                "queries": len(self.queries),
                "records_needed": needed,
                "max_measurements": made.max_updates,
                "alpha": made.alpha,
            },
            limits=self.person_limits,
        )

    @property
    def error_bound(self) -> float:
        """The error, in people, of any answer that is not refused, at most."""
        return self.mechanism.accuracy(len(self.queries), BETA)

    @property
    @override
    def event_fields(self) -> EventFields:
        return EventFields(timed=False)
