"""Private queries: a data set and a stream of public linear queries in, answers under one guarantee out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows, TimestampCombiner
from privstream.mechanisms import checks
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.caveats import ROUNDED_FLOATS, noise_caveats, people_hashed
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.sparse_vector.multiplicative_weights import OnlineMultiplicativeWeights
from privstream.transforms.batches import Keyed
from privstream.transforms.events.batching import SplitEvents
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.element_types import check_rows
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import PrivateTransform, Stage
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
from privstream.transforms.timing.receipts import Parcel

SELECTIONS = ("last", "first")


class PrivateQueries(PrivateTransform):
    """Answer linear queries about a data set, online and in order of event time, from a hypothesis that learns.

    Input: a dictionary of two collections. `events`: the data set, a bounded collection of pairs (user, item), rows or
    Arrow batches, as of `ShiftingHeavyHitters`; each person counts with one item. Events without a time count as of
    1970. `queries`: `LinearQuery` rows, bounded or unbounded. Output: one `QueryAnswer` row for each query; with
    `with_dead_letters()`, a `Published` pair of rows and dead letters.

    An answer comes from the public hypothesis, for free, unless a private test finds it wrong by about alpha `records`:
    then it is measured, and the hypothesis learns from it. When all `max_updates` measurements are spent, the row of
    each further query says `refused`; its estimate is what the hypothesis says, untested.

    No query is answered before all data has been read. Late queries are dead letters: those whose time is before their
    timestamp in the stream, and those that come when a later one has been answered. Stamp an unbounded stream with when
    queries came; the first of these rules then implies the second, and holds if a job goes back to a checkpoint.

    Privacy:
        Unit: one person: all records of one person, of which one counts. Neighbours: `neighbouring`. (epsilon, delta)
        over all queries that are ever asked; they may depend on all earlier answers. Public: all arguments but `noise`,
        among them `records`; the queries. The guarantee covers one data set: another one needs another budget, and
        another run id of the noise.

    Accuracy:
        `accuracy()`: with probability 1 - beta, every one of the first `queries` answers that is not refused is within
        its `error_bound`. With at least `records_needed()` records, and exactly `records`, none of these is refused.

    Args:
        epsilon: finite and > 0, for all queries together.
        delta: in [0, 1).
        domain: public list of items, at least 2; events of other items are counted and left out.
        records: public number of people, exact or estimated; a wrong one costs accuracy, not privacy.
        alpha: error, as a part of `records`, from which the hypothesis is corrected, in (0, 1).
        noise: `KeyedNoise`; the same key gives the same rows for the same input.
        queries: number of queries for which the accuracy is stated.
        beta: failure probability of the accuracy statement.
        selection: which of a person's records counts: the "last" or the "first"; ties by item.
        real_weights: whether weights may lie between 0 and 1. The noise is then floating-point noise, whose low bits
            may betray more than the guarantee says (Mironov 2012).
        neighbouring: "add_remove" or "replace_one".
        shards: parallel shards of people. Changes no answer.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made; `events` is unbounded.

    Example:
        >>> answers = {"events": people, "queries": queries} | PrivateQueries(
        ...     epsilon=1.0, domain=Domain.from_file(path), records=1_000_000, alpha=0.05,
        ...     noise=KeyedNoise.from_file(key))  # doctest: +SKIP

    Source: Hardt and Rothblum (2010); docs/proofs/multiplicative_weights.md.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        domain: Domain,
        records: int,
        alpha: float,
        noise: NoiseSource,
        delta: float = 0.0,
        queries: int = 1000,
        beta: float = 0.05,
        selection: str = "last",
        real_weights: bool = False,
        neighbouring: str = "add_remove",
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
        self.mechanism = OnlineMultiplicativeWeights(
            epsilon=epsilon,
            delta=delta,
            domain_size=len(domain),
            records=records,
            alpha=alpha,
            integer=not real_weights,
            neighbouring=neighbouring,
        )

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What one person is promised, over all queries."""
        found = self.mechanism.guarantee
        # Who is added to somebody with the same hash may replace that one's record: that moves no query by more than 1.
        hashes = (people_hashed(found.neighbouring),) if found.neighbouring == "replace_one" else ()
        return PrivacyGuarantee(
            unit="one person over the whole run",
            neighbouring=found.neighbouring,
            epsilon=found.epsilon,
            delta=found.delta,
            limits=(
                f"Each person counts with one record, the {self.selection} one.",
                f"At most {self.mechanism.max_updates:,} answers are measured; then queries are refused.",
                "It covers one data set.",
            ),
            public=("all parameters, among them the number of records", "the queries and their number"),
            adaptivity="Queries may depend on all earlier answers.",
            caveats=(*noise_caveats(self.mechanism.integer, ROUNDED_FLOATS), *hashes),
            curve=found.curve,
        )

    def accuracy(self) -> float:
        """Return the error, in people, that an answer from the hypothesis has at most."""
        return self.mechanism.accuracy(self.queries, self.beta)

    def records_needed(self) -> int:
        """Return from how many records on `queries` queries are answered, with probability 1 - beta.

        Any number is enough if there are no more queries than measurements.
        """
        if self.queries <= self.mechanism.max_updates:
            return 1
        return self.mechanism.records_needed(self.queries, self.beta)

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        return EventFields(timed=False)

    def build(self, inputs: Mapping[str, PCollection[Any]], stage: Stage) -> PCollection[Any]:
        """Build the stages."""
        data, queries = inputs["events"], inputs["queries"]
        if not data.is_bounded:
            raise ValueError("events must be a bounded collection: all queries are about the same data set")
        check_rows("queries", queries, LinearQuery._fields)
        size = len(self.domain)
        noise = self.noise.derive("private queries", self.domain.digest, self.selection)
        split = SplitEvents(steps=ALL_TIME, noise=noise, shards=self.shards, domain=self.domain, positions=True)
        parcels = stage(gather(data, stage, self.event_fields), split, Parcel)
        counts = (
            parcels
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
        asked = stage(
            queries | "QueriesInOneWindow" >> beam.WindowInto(GlobalWindows()),
            KeyQueries(self.domain, self.mechanism.integer),
            Keyed,
        )
        answering = AnswerQueries(mechanism=self.mechanism, noise=noise, queries=self.queries, beta=self.beta)
        apart = (together, asked) | "DataAndQueries" >> beam.Flatten() | "ApartFromOthers" >> beam.Reshuffle()
        return stage(apart, answering, QueryAnswer)
