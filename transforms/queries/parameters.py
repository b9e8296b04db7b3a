"""What PrivateQueries are asked with, what they promise, and how accurate they are: without Beam."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE, TOGETHER, Accuracy, Coverage, Limit
from privstream.mechanisms.keyed_counts.answered_queries import FRACTION, AnsweredQueries
from privstream.mechanisms.keyed_counts.counted_queries import CountedQueries
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import ROUNDED_FLOATS, PrivacyGuarantee, noise_caveats, people_hashed
from privstream.mechanisms.privacy.units import PERSON
from privstream.mechanisms.sparse_vector.multiplicative_weights import OnlineMultiplicativeWeights
from privstream.transforms.events.coverage import people_who_count
from privstream.transforms.events.domain import Domain, Items
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.parameters import Parameters, check_shards
from privstream.transforms.methods import AUTO, choose_method
from typing_extensions import override

COUNTS = "counts"
ANSWERS = "answers"
SELECTIONS = ("last", "first")
WEIGHTS = "multiplicative_weights"
PROOF = "docs/proofs/private_queries.md"
USUAL_QUERIES = 1000
DIGITS = 1
"""Of an answer that is no whole number."""
REFUSING = 3.0
"""So many times better must "answers" be, which refuses queries, and has no smaller error for few items."""


class QueriesParameters(Parameters):
    """Answer linear queries about a data set, online and in order of event time.

    Input: a dictionary of two collections. `events`: the data set, a bounded collection of pairs (user, item), rows or
    Arrow batches, as of `ShiftingHeavyHitters`; each person counts with one item. Events without a time count as of
    1970. `queries`: `LinearQuery` rows, bounded or unbounded. Output: one `QueryAnswer` row for each query; with
    `with_dead_letters()`, a `Published` pair of rows and dead letters.

    By the method "counts", noise is added to the number of people of each item, once, and an answer is a sum of these
    numbers. By "answers", noise is added to each answer; its size depends on how many `queries` there are, and further
    ones are refused, with an estimate of 0. By "multiplicative_weights", an answer comes from a public hypothesis, for
    free, unless a private test finds it wrong by about alpha `records`: then it is measured, and the hypothesis learns
    from it. When all `max_updates` measurements are spent, the row of each further query has the source `refused`; its
    estimate is that of the hypothesis, which has not been tested.

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
        `error_bound`. By "counts" none is refused, and by "answers" none of these. By "multiplicative_weights" none of
        these is with at least `records_needed` records, and exactly `records`.

    Args:
        epsilon: limit on what all answers together show about one person, > 0. A smaller value protects better and
            needs more noise.
        domain: public list of items. Events of other items are counted and left out.
        noise: `KeyedNoise`; the same key gives the same rows for the same input.
        method: method that answers; "auto" takes the one with the smallest error bound for a query of all items.
            "counts" adds up noisy counts of items: errors grow with the square root of the number of items of a query.
            "answers" adds noise to each answer: errors grow with the square root of the number of queries that are
            planned (with that number itself if delta is 0), and not with the items. "auto" takes it only if that number
            is given, and its bound is a third of that of "counts": queries of few items have a smaller error by
            "counts", which refuses none.
            "multiplicative_weights" learns a hypothesis: errors grow with `records`, and hardly with the items.
        records: public number of people, exact or estimated, which "multiplicative_weights" needs. A wrong number costs
            accuracy, not privacy.
        alpha: part of `records` by which an answer of the hypothesis may be wrong before the hypothesis is corrected,
            in (0, 1). Without it, the value with the smallest error bound is taken. The method "counts" has no such
            part.
        delta: probability with which the answers may show more than `epsilon` allows, in [0, 1). Choose it far below 1
            / (number of people).
        queries: number of queries for which the accuracy is stated; 1,000 if it is not given. The method "answers"
            answers no more.
        beta: probability with which the accuracy statement may be wrong.
        selection: which record of a person counts: the "last" or the "first"; at the same time, the item decides.
        real_weights: allow weights between 0 and 1; answers are then rounded, which their error bounds include. The
            noise of "multiplicative_weights" is then floating-point noise, whose low bits may reveal more than the
            guarantee says (Mironov 2012).
        neighbouring: what makes two inputs neighbours: one person is added or removed ("add_remove"), or replaced by
            another one ("replace_one").
        shards: number of parallel parts into which people are divided. It changes no answer.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made; `events` is unbounded.

    Example:
        >>> answers = {"events": people, "queries": queries} | PrivateQueries(
        ...     epsilon=1.0, domain=Domain.from_file(path), noise=KeyedNoise.from_file(key)
        ... )  # doctest: +SKIP

    Source: Hardt and Rothblum (2010), docs/proofs/multiplicative_weights.md; docs/proofs/private_queries.md.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        domain: Items,
        noise: NoiseSource,
        method: Literal["auto", "counts", "answers", "multiplicative_weights"] = "auto",
        records: int | None = None,
        alpha: float | None = None,
        delta: float = 0.0,
        queries: int | None = None,
        beta: float = 0.05,
        selection: Literal["last", "first"] = "last",
        real_weights: bool = False,
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        shards: int = 4,
    ) -> None:
        super().__init__(noise)
        domain = Domain.of(domain)
        if not isinstance(real_weights, bool):
            raise TypeError(f"real_weights must be True or False, got {type(real_weights).__name__}")
        self.domain = domain
        self.real_weights = real_weights
        self.noise = noise
        self.queries = USUAL_QUERIES if queries is None else checks.integer("queries", queries, minimum=1)
        self.beta = checks.probability("beta", beta)
        self.selection = checks.one_of("selection", selection, SELECTIONS)
        self.shards = check_shards(shards)
        if records is not None:
            checks.integer("records", records, minimum=1)
        if alpha is not None:
            checks.probability("alpha", alpha)
        common: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "domain_size": len(domain),
            "neighbouring": neighbouring,
        }
        learning = {**common, "records": records, "integer": not real_weights}
        makers: dict[str, Callable[[], CountedQueries | AnsweredQueries | OnlineMultiplicativeWeights]] = {
            COUNTS: partial(CountedQueries, **common),
            ANSWERS: partial(self._answered, epsilon, delta, neighbouring),
            WEIGHTS: partial(self._hypotheses, alpha, learning),
        }
        if method == AUTO and queries is None:
            makers.pop(ANSWERS)
        self.method, self.mechanism = choose_method(method, makers, self._worth)

    def _answered(self, epsilon: float, delta: float, neighbouring: str) -> AnsweredQueries:
        """Return what adds noise to each answer."""
        fraction = FRACTION if self.real_weights else 0
        return AnsweredQueries(
            epsilon=epsilon, delta=delta, queries=self.queries, fraction=fraction, neighbouring=neighbouring
        )

    def _worth(self, made: CountedQueries | AnsweredQueries | OnlineMultiplicativeWeights) -> float:
        """Return the error bound by which "auto" compares, for a query of all items."""
        return made.accuracy(self.queries, self.beta) * (REFUSING if isinstance(made, AnsweredQueries) else 1)

    def _hypotheses(self, alpha: float | None, parameters: Mapping[str, Any]) -> OnlineMultiplicativeWeights:
        """Return what answers by a hypothesis."""
        if parameters["records"] is None:
            raise ValueError(f"records must be given with method {WEIGHTS}")
        if alpha is None:
            return OnlineMultiplicativeWeights.most_accurate(queries=self.queries, beta=self.beta, **parameters)
        return OnlineMultiplicativeWeights(alpha=alpha, **parameters)

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        found, limits = self.mechanism.guarantee, [f"Each person counts with one record, the {self.selection} one."]
        if isinstance(self.mechanism, AnsweredQueries):
            public, caveats = ["all parameters"], list(found.caveats)
            limits.append(f"At most {self.mechanism.queries:,} queries are answered; then they are refused.")
            hashed = found.neighbouring == "replace_one"  # as with multiplicative weights
        elif isinstance(self.mechanism, OnlineMultiplicativeWeights):
            public = ["all parameters, among them the number of records"]
            limits.append(f"At most {self.mechanism.max_updates:,} answers are measured; then queries are refused.")
            caveats = list(noise_caveats(self.mechanism.integer, ROUNDED_FLOATS))
            # Who is added to somebody with the same hash may replace that one's record: no query moves by more than 1.
            hashed = found.neighbouring == "replace_one"
        else:
            public, caveats, hashed = ["all parameters"], list(found.caveats), True
        return replace(
            found,
            unit=PERSON,
            limits=(*limits, "It covers one data set."),
            public=(*public, "the queries and their number"),
            proof=found.proof if found.proof.startswith(PROOF) else f"{PROOF}; {found.proof}",
            caveats=(*caveats, people_hashed(found.neighbouring)) if hashed else tuple(caveats),
        )

    @property
    @override
    def coverage(self) -> Coverage:
        return people_who_count([Limit.at_most("", 1, "item", "", self.selection)], TOGETHER)

    @property
    @override
    def prediction(self) -> Accuracy:
        bound, confidence = self.error_bound, f"With probability {1 - self.beta:g}, the first {self.queries:,} answers"
        numbers: dict[str, Any] = {"error_bound": bound, "queries": self.queries}
        made = self.mechanism
        if isinstance(made, CountedQueries):
            one = float(made.errors([[1.0]], queries=self.queries, beta=self.beta)[0])
            numbers["item_error_bound"] = one
            sentence = (
                f"{confidence} are all within their error bounds: {math.ceil(one):,} people for a query of one item, "
                f"{math.ceil(bound):,} for one of all {made.domain_size:,}. None is refused."
            )
        elif isinstance(made, AnsweredQueries):
            numbers["item_error_bound"] = bound
            sentence = f"{confidence} are all within {math.ceil(bound):,} people. None is refused; further ones are."
        else:
            records, needed = made.records, made.records_needed(self.queries, self.beta)
            numbers |= {"records_needed": needed, "max_measurements": made.max_updates, "alpha": made.alpha}
            refused = (
                f"Some may be refused; with {needed:,} people none would be."
                if records < needed
                else "None is refused."
            )
            nothing = " With so few people, this bound is of no use." if bound >= records else ""
            within = f"within {math.ceil(bound):,} people of the number without noise"
            sentence = f"{confidence} are all {within}.{nothing} {refused}"
        return Accuracy(error=bound, failure_probability=self.beta, claim=sentence, numbers=numbers)

    @property
    def error_bound(self) -> float:
        """The error, in people, of any answer that is not refused, at most."""
        return self._error(self.queries, self.beta)

    @property
    def spread(self) -> float:
        """The error of any one answer in 95% of all cases, at most."""
        return self._error(1, OUTSIDE)

    def _error(self, queries: int, beta: float) -> float:
        """Return how far any of so many answers is off at most, all of them with probability 1 - beta."""
        made = self.mechanism
        rounding = 0.0
        if isinstance(made, AnsweredQueries) and made.fraction:  # of the sum, and of the answer
            rounding = math.ldexp(1, -made.fraction) + 10.0**-DIGITS / 2
        return made.accuracy(queries, beta) + rounding

    @property
    @override
    def event_fields(self) -> EventFields:
        return EventFields(timed=False)
