"""Private queries: from a data set and a stream of public linear queries to answers under one guarantee."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows, TimestampCombiner
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.caveats import ROUNDED_FLOATS, noise_caveats, people_hashed
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.mechanisms.sparse_vector.multiplicative_weights import OnlineMultiplicativeWeights
from privstream.transforms.batches import Keyed
from privstream.transforms.events.batching import SplitEvents
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.element_types import check_rows
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import ApplyDoFn, PrivateTransform
from privstream.transforms.events.shards import check_shards
from privstream.transforms.queries.answering import AnswerQueries, KeyQueries
from privstream.transforms.queries.counting import (
    ALL_TIME,
    CountRecords,
    NoRecords,
    sum_records,
    without_digest,
)
from privstream.transforms.rows import LinearQuery, QueryAnswer
from privstream.transforms.timing.on_time_markers import KeyedBatch

SELECTIONS = ("last", "first")


class PrivateQueries(PrivateTransform):
    """Answer linear queries about a data set, online and in order of event time, from a hypothesis that learns.

    Input: a dictionary of two collections. `events`: the data set, a bounded collection of pairs (user, item), rows or
    Arrow batches, as of `ShiftingHeavyHitters`; each person counts with one item. Events without a time count as of
    1970. `queries`: `LinearQuery` rows, bounded or unbounded. Output: one `QueryAnswer` row for each query; with
    `with_dead_letters()`, a `Published` pair of rows and dead letters.

    An answer comes from the public hypothesis, for free, unless a private test finds it wrong by about alpha `records`:
    then it is measured, and the hypothesis learns from it. When all `max_updates` measurements are spent, the row of
    each further query has the source `refused`; its estimate is that of the hypothesis, which has not been tested.

    No query is answered before all data has been read. Late queries are dead letters: a query whose time is before its
    timestamp in the stream, and a query that comes after a later one has been answered. In an unbounded stream, let the
    timestamp of a query be the time at which it came: the first of these rules then implies the second, also after a
    job has gone back to a checkpoint.

    Privacy:
        Unit: one person: all records of one person, of which one counts. Neighbours: `neighbouring`. (epsilon, delta)
        over all queries that are ever asked; they may depend on all earlier answers. Public: all arguments but `noise`,
        among them `records`; the queries. The guarantee covers one data set: another one needs another budget, and
        another run id of the noise.

    Accuracy:
        With probability 1 - beta, every one of the first `queries` answers that is not refused is within its
        `error_bound`. With at least `records_needed` records, and exactly `records`, none of these is refused.

    Args:
        epsilon: limit on what all answers together show about one person, > 0. A smaller value protects better and
            needs more noise.
        domain: public list of items, at least 2. Events of other items are counted and left out.
        records: public number of people, exact or estimated. A wrong number costs accuracy, not privacy.
        noise: `KeyedNoise`; the same key gives the same rows for the same input.
        alpha: part of `records` by which an answer of the hypothesis may be wrong before the hypothesis is corrected,
            in (0, 1). Without it, the value with the smallest error bound is taken.
        delta: probability with which the answers may show more than `epsilon` allows, in [0, 1). Choose it far below 1
            / (number of people).
        queries: number of queries for which the accuracy is stated.
        beta: probability with which the accuracy statement may be wrong.
        selection: which record of a person counts: the "last" or the "first"; at the same time, the item decides.
        real_weights: allow weights between 0 and 1. The noise is then floating-point noise, whose low bits may reveal
            more than the guarantee says (Mironov 2012).
        neighbouring: what makes two inputs neighbours: one person is added or removed ("add_remove"), or replaced by
            another one ("replace_one").
        shards: number of parallel parts into which people are divided. It changes no answer.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made; `events` is unbounded.

    Example:
        >>> answers = {"events": people, "queries": queries} | PrivateQueries(
        ...     epsilon=1.0, domain=Domain.from_file(path), records=1_000_000, noise=KeyedNoise.from_file(key)
        ... )  # doctest: +SKIP

    Source: Hardt and Rothblum (2010); docs/proofs/multiplicative_weights.md.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        domain: Domain,
        records: int,
        noise: NoiseSource,
        alpha: float | None = None,
        delta: float = 0.0,
        queries: int = 1000,
        beta: float = 0.05,
        selection: Literal["last", "first"] = "last",
        real_weights: bool = False,
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        shards: int = 4,
    ) -> None:
        super().__init__(noise)
        if not isinstance(domain, Domain):
            raise TypeError(f"domain must be a Domain, got {type(domain).__name__}")
        if not isinstance(real_weights, bool):
            raise TypeError(f"real_weights must be True or False, got {type(real_weights).__name__}")
        self.domain = domain
        self.noise = noise
        self.queries = checks.integer("queries", queries, minimum=1)
        self.beta = checks.probability("beta", beta)
        self.selection = checks.one_of("selection", selection, SELECTIONS)
        self.shards = check_shards(shards)
        parameters: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "domain_size": len(domain),
            "records": records,
            "integer": not real_weights,
            "neighbouring": neighbouring,
        }
        self.mechanism = (
            OnlineMultiplicativeWeights.most_accurate(queries=self.queries, beta=self.beta, **parameters)
            if alpha is None
            else OnlineMultiplicativeWeights(alpha=alpha, **parameters)
        )

    @property
    def promise(self) -> PrivacyGuarantee:
        """What one person is promised, over all queries."""
        found = self.mechanism.guarantee
        # Who is added to somebody with the same hash may replace that one's record: that moves no query by more than 1.
        hashes = (people_hashed(found.neighbouring),) if found.neighbouring == "replace_one" else ()
        return replace(
            found,
            unit=PERSON,
            limits=(
                f"Each person counts with one record, the {self.selection} one.",
                f"At most {self.mechanism.max_updates:,} answers are measured; then queries are refused.",
                "It covers one data set.",
            ),
            public=("all parameters, among them the number of records", "the queries and their number"),
            proof=f"docs/proofs/private_queries.md; {found.proof}",
            caveats=(*noise_caveats(self.mechanism.integer, ROUNDED_FLOATS), *hashes),
        )

    @property
    def accuracy(self) -> Accuracy:
        """How far answers are off, and whether queries are refused."""
        records, needed = self.mechanism.records, self.records_needed
        refused = (
            f"Some may be refused; with {needed:,} people none would be." if records < needed else "None is refused."
        )
        nothing = " With so few people, this bound is of no use." if self.error_bound >= records else ""
        return Accuracy(
            error=self.error_bound,
            failure_probability=self.beta,
            sentence=f"With probability {1 - self.beta:g}, the first {self.queries:,} answers are all within "
            f"{math.ceil(self.error_bound):,} people of the truth.{nothing} {refused}",
            numbers={
                "error_bound": self.error_bound,
                "queries": self.queries,
                "records_needed": needed,
                "max_measurements": self.mechanism.max_updates,
                "alpha": self.mechanism.alpha,
            },
        )

    @property
    def error_bound(self) -> float:
        """The error, in people, that an answer from the hypothesis has at most."""
        return self.mechanism.accuracy(self.queries, self.beta)

    @property
    def records_needed(self) -> int:
        """The number of records from which `queries` queries are answered, with probability 1 - beta."""
        return self.mechanism.records_needed(self.queries, self.beta)

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        return EventFields(timed=False)

    def build(self, inputs: Mapping[str, PCollection[Any]], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages."""
        data, queries = inputs["events"], inputs["queries"]
        if not data.is_bounded:
            raise ValueError("events must be a bounded collection: all queries are about the same data set")
        check_rows("queries", queries, LinearQuery._fields)
        size = len(self.domain)
        noise = self.noise.derive("private queries", self.domain.digest, self.selection)
        split = SplitEvents(steps=ALL_TIME, noise=noise, shards=self.shards, domain=self.domain, positions=True)
        keyed_batches = apply_dofn(gather(data, apply_dofn, self.event_fields), split, KeyedBatch)
        counts = (
            keyed_batches
            | "WithoutDigest" >> beam.Map(without_digest).with_output_types(Keyed)
            | "ByPeople" >> beam.GroupByKey()
            | "CountRecords" >> beam.ParDo(CountRecords(size, self.selection, noise)).with_output_types(Keyed)
        )
        # Without records there must be a data set, too: whether there are answers must not depend on the data. It has
        # the least time there is, so that no clock runs ahead of it.
        once = data.pipeline | "Once" >> beam.Impulse()
        none = once | "NoRecords" >> beam.ParDo(NoRecords(size)).with_output_types(Keyed)
        together = (
            (counts, none)
            | "AllCounts" >> beam.Flatten()
            | "HoldTime" >> beam.WindowInto(GlobalWindows(), timestamp_combiner=TimestampCombiner.OUTPUT_AT_EARLIEST)
            | "Together" >> beam.GroupByKey()
            | "SumRecords" >> beam.Map(sum_records).with_output_types(Keyed)
        )
        asked = apply_dofn(
            queries | "QueriesInOneWindow" >> beam.WindowInto(GlobalWindows()),
            KeyQueries(self.domain, self.mechanism.integer),
            Keyed,
        )
        answering = AnswerQueries(mechanism=self.mechanism, noise=noise, queries=self.queries, beta=self.beta)
        apart = (together, asked) | "DataAndQueries" >> beam.Flatten() | "ApartFromOthers" >> beam.Reshuffle()
        return apply_dofn(apart, answering, QueryAnswer)
