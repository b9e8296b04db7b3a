"""The worst pair of neighbours of a run, by construction: one person spends all that limits allow, and more.

D has everybody and that person; D' has everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from privstream.pipelines.audit.replay import Shown, compare, publish, recording, running_noises
from privstream.transforms.questions.by_counts import AlertRule
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.fields import NUMBER

MISSING = 1e-8
"""Probability with which an item is not found that everybody else has."""

OTHERS = 30
"""People in each window where nobody needs to be found."""

LAST = 5
"""One event in so many is at the last moment of its window."""

SUSPECT = "suspect"
SECOND = 1_000_000


class Sent(NamedTuple):
    """An event: the person, the item, the number of the window, the value."""

    user: Any
    item: str
    window: int
    value: float = 0.0


class Pair(NamedTuple):
    """Two neighbouring inputs of a transform."""

    transform: Any
    others: Sequence[Sent]
    suspect: Sequence[Sent]

    def replay(self) -> tuple[Shown, list[Any]]:
        """Run both, and compare them; return also the rows of the run with the suspect."""
        records = []
        for sent in ([*self.others, *self.suspect], self.others):
            with recording() as record:
                record.rows = publish(self.transform, batches(self.transform, sent))
            records.append(record)
        one, other = records
        return compare(one, other, running_noises(self.transform)), one.rows


def batches(transform: Any, sent: Sequence[Sent], size: int = 1000) -> list[pa.RecordBatch]:
    """Return events as a transform reads them, from both ends of their windows."""
    steps, found = transform.steps, []
    windows = {one.window for one in sent}
    bounds = {window: [end.micros for end in steps.bounds(steps.first + window)] for window in windows}
    for start in range(0, len(sent), size):
        some = sent[start : start + size]
        times = []
        for place, one in enumerate(some):
            first, end = bounds[one.window]
            times.append(end - 1 if place % LAST == 0 else first + place % SECOND)
        kind = pa.int64() if transform.event_fields.user == NUMBER else pa.string()
        columns = {
            "user": pa.array([one.user for one in some], kind),
            "item": pa.array([one.item for one in some]),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "value": pa.array([one.value for one in some]),
        }
        found.append(pa.RecordBatch.from_pydict(columns))
    return found


def everything(items: Sequence[str], windows: int, value: float = 0.0) -> list[Sent]:
    """Return what a person sends who has all items in all windows, each twice."""
    return [Sent(SUSPECT, item, window, value) for window in range(windows) for item in items for _ in range(2)]


def crowd(people: int, items: Sequence[str], window: int) -> list[Sent]:
    """Return people of one window who have all items, and come in no other."""
    return [Sent(f"other {window} {number}", item, window) for number in range(people) for item in items]


def of_counts(transform: Any) -> Pair:
    """Let one person have more items in each window than may count in all; others have them, so that they are found."""
    counts = getattr(transform, "counts", transform)
    made, windows = counts.mechanism, transform.steps.count
    most = made.contributions
    items = most if made.over == "start" else -(-most // windows) + 1
    public = counts.domain
    names = [f"item {place}" for place in range(items)] if public is None else public.texts.to_pylist()
    people = OTHERS if public is not None else max(made.detection(1, MISSING), made.min_people)
    lasting = public is not None or counts.remembers
    others = [each for window in range(1 if lasting else windows) for each in crowd(people, names, window)]
    value = float(made.max_value or 0)
    if made.unit == "event":
        return Pair(transform, others, [Sent(SUSPECT, names[0], 0, value)])
    return Pair(transform, others, everything(names, windows, value))


def of_quantiles(transform: Any) -> Pair:
    """Let one person have the largest value more often than may count, in each window."""
    made, windows = transform.mechanism, transform.steps.count
    often = range(2 * made.per_step)
    others = [Sent(f"other {place}", "", 0, made.low) for place in range(OTHERS)]
    if made.unit == "event":
        return Pair(transform, others, [Sent(SUSPECT, "", 0, made.high)])
    return Pair(transform, others, [Sent(SUSPECT, "", window, made.high) for window in range(windows) for _ in often])


def of_cardinality(transform: Any) -> Pair:
    """Let one person be there in all windows."""
    enters = (transform.actions.begin or ("in",))[0]
    others = [Sent(f"other {place}", enters, 0) for place in range(OTHERS)]
    windows = range(transform.steps.count)
    return Pair(transform, others, [Sent(SUSPECT, enters, window) for window in windows for _ in range(LAST)])


def of_rules(transform: Any) -> Pair:
    """Let one person meet all rules in all windows."""
    windows = transform.steps.count
    items = tuple(dict.fromkeys((rule.items or ("a",))[0] for rule in transform.rules))
    others = [each for window in range(windows) for each in crowd(OTHERS, items, window)]
    return Pair(transform, others, everything(items, windows))


WORST: Mapping[str, Callable[[Any], Pair]] = {
    "counts": of_counts,
    "heavy-hitters": of_counts,
    "top-k": of_counts,
    "alerts": of_rules,
    "quantiles": of_quantiles,
    "cardinality": of_cardinality,
}
"""By question: what makes the worst pair, where noise is added to numbers."""


def worst_pair(word: str, transform: Any) -> Pair:
    """Return the worst pair of a transform.

    Raises:
        ValueError: there is none; the message says why.
    """
    if word not in WORST or getattr(transform, "method", "counts") != "counts":
        raise ValueError(
            f"question must be one of {', '.join(WORST)}, by counts, got {word}: in others noise is not only added to "
            "numbers"
        )
    if transform.steps.count is None:
        raise ValueError("end must be given: a replay is of all windows of a run")
    return WORST[word](transform)


WINDOWS, MINUTE = 6, 60
EPSILON, SMALL = 2.0, 1e-6
RUN: Mapping[str, Any] = {"window": MINUTE, "start": 0, "end": WINDOWS * MINUTE, "epsilon": EPSILON, "shards": 2}
LISTED = Domain(("a", "b", "c"))
MANY = Domain(tuple(f"item {place}" for place in range(16)))
NUMBERS = {"low": 0, "high": 100, "resolution": 16}

RUNS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "counts": {
        "public items, Laplace noise": {"domain": LISTED, "max_contributions": 5, "delta": 0.0},
        "public items": {"domain": LISTED, "max_contributions": 16, "delta": SMALL},
        "discovered items": {"max_contributions": 10, "delta": SMALL},
        "since the start": {"domain": MANY, "max_contributions": 14, "delta": SMALL, "over": "start"},
        "sums of values": {"domain": LISTED, "max_contributions": 8, "delta": SMALL, "max_value": 5},
        "events": {"domain": LISTED, "delta": SMALL, "unit": "event"},
    },
    "heavy-hitters": {"by counts": {"max_contributions": 10, "delta": SMALL}},
    "top-k": {"by counts": {"domain": LISTED, "max_contributions": 16, "delta": SMALL, "top": 2}},
    "alerts": {
        "by counts": {"max_contributions": 4, "delta": SMALL, "rules": (AlertRule(name="people", at_least=50),)}
    },
    "quantiles": {
        "Laplace noise": {**NUMBERS, "max_contributions": 4, "delta": 0.0},
        "Gaussian noise": {**NUMBERS, "max_contributions": 11, "max_per_window": 2, "delta": 1e-2},
    },
    "cardinality": {"by counts": {"max_contributions": 5, "delta": 1e-2, "leave_values": ("out",)}},
}
"""By question: runs whose worst pair is replayed, by name."""
