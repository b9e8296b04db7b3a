"""What `PrivateQueries` is asked with, what it promises, and how accurate it is; no Beam."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy, Limit
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.mechanisms.selection.multiplicative_weights import OnlineMultiplicativeWeights
from privstream.transforms.parameters import Parameters, distinct_texts, within
from privstream.transforms.reading.domain import Domain, Items
from privstream.transforms.reading.fields import EventFields
from typing_extensions import override

BETA = 0.05
"""Probability with which the accuracy statement may be wrong."""


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
        found = self.domain.positions(pa.array(query.items, pa.string()))
        if found.min() < 0:
            raise ValueError(f"queries must be about items of the domain, and one of query {query.name!r} is not")
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
