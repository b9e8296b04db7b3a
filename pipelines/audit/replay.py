"""Record and replay: what noise is drawn for, in two neighbouring runs, and how far their totals are apart.

The worst pair is made by construction: one person spends all that limits allow, and more. D has everybody and that
person; D' has everybody else.

Noise is handed in, so all that data can change in what is published goes through totals that noise is added to. A
recorder in this process keeps every (law, label, totals) of a run. Two runs on neighbours are compared label by label:
how far the totals differ, in deviations or scales of their noise, must not exceed what the guarantee claims. That is
the sensitivity of the whole pipeline, measured to the last bit and without statistics (after Cebere and others,
arXiv 2602.17454). It says nothing about the laws of noise or about tests in secret: those are tested by themselves.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from privstream.mechanisms.noise.running import CompleteTreeNoise, ToeplitzNoise
from privstream.mechanisms.noise.sources import PrfNoise
from privstream.mechanisms.privacy.accounting import GaussianCurve, PointCurve, SlackCurve, largest_shift
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.runners import launch
from privstream.transforms.questions.by_counts import AlertRule
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.fields import NUMBER
from privstream.transforms.timing.steps import MICROS

LAWS = (DiscreteGaussian, DiscreteLaplace)
Label = tuple[bytes, bytes, int, int]
"""The source that draws, the source that binds, and the label there."""


class Draw(NamedTuple):
    """What noise was drawn for: its law, and the totals that it is bound to, in the order of binding."""

    law: Any
    totals: tuple[int, ...]


@dataclass
class Record:
    """All noise of a run."""

    draws: dict[Label, list[Draw]] = field(default_factory=lambda: defaultdict(list))  # each once
    unbound: set[tuple[Any, bytes, int, int]] = field(default_factory=set)  # by law: bound to no totals


@contextmanager
def recording() -> Iterator[Record]:
    """Record all noise that is drawn in this process meanwhile."""
    record, bound = Record(), dict[tuple[int, ...], tuple[tuple[bytes, int, int], tuple[int, ...]]]()
    bind, drawing = PrfNoise.bind, threading.local()

    def bind_and_keep(source: PrfNoise, labels: Any, values: Any) -> Any:
        found, whose = bind(source, labels, values), _name(source)
        for label, value, to in zip(_labels(labels), values.tolist(), found.tolist(), strict=True):
            place, before = bound.get(label, ((whose, *label), ()))
            bound[(*to,)] = place, (*before, value)
        return found

    def keeping(draw: Callable[..., Any], law: Any, source: Any, labels: Any) -> Any:
        if getattr(drawing, "inside", False):  # some laws draw digits from others
            return draw(law, source, labels)
        name = _name(source)
        for label in _labels(labels):
            if label not in bound:
                record.unbound.add((law, name, *label))
                continue
            (by, *low), totals = bound[label]
            drawn, found = Draw(law, totals), record.draws[name, by, low[0], low[1]]
            if drawn not in found:
                found.append(drawn)
        drawing.inside = True
        try:
            return draw(law, source, labels)
        finally:
            drawing.inside = False

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(PrfNoise, "bind", bind_and_keep))
        for law in LAWS:
            kept = partial(keeping, law.draw)
            stack.enter_context(mock.patch.object(law, "draw", lambda *given, kept=kept: kept(*given)))
        yield record


def _name(source: PrfNoise) -> bytes:
    """Return what tells a source from others: draws that nobody else makes."""
    return source.derive("recorder").words(1).tobytes()


def _labels(labels: Any) -> list[tuple[int, int]]:
    """Return labels of any form as pairs."""
    if not isinstance(labels, np.ndarray):
        labels = np.arange(labels)
    if labels.ndim == 1:
        return [(high, 0) for high in labels.tolist()]
    return [(high, low) for high, low in labels.tolist()]


_ROWS: list[Any] = []


def _keep(row: Any) -> None:
    _ROWS.append(row)


def publish(transform: Any, events: Sequence[pa.RecordBatch]) -> list[Any]:
    """Run a transform on events in this process, and return its rows.

    Raises:
        RunError: the run failed.
    """
    _ROWS.clear()

    def build(pipeline: beam.Pipeline) -> None:
        given = pipeline | "Events" >> beam.Create(list(events), reshuffle=False).with_output_types(pa.RecordBatch)
        _ = given | type(transform).__name__ >> transform | "Keep" >> beam.Map(_keep)

    launch.run_quietly(PipelineOptions(["--runner=FnApiRunner"]), build)
    return [*_ROWS]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far one unit moves all totals of a run."""

    shift: float  # in deviations of Gaussian noise, all of it together
    epsilon: float  # in scales of Laplace noise, the sum
    alone: int  # labels of one run alone: tests of what the other run does not have
    repeated: int  # labels that one run uses for two laws or two totals, whose difference would be known
    unbound: int  # noise that is bound to no totals: another run would have the same

    def share(self, guarantee: PrivacyGuarantee) -> float:
        """Return how much of a guarantee is used, by Gaussian and by Laplace noise together; above 1 it is broken."""
        allowed, _ = _allowed(guarantee)
        gaussian = self.shift / allowed if allowed else math.inf if self.shift else 0.0
        return gaussian + self.epsilon / guarantee.epsilon

    def faults(self, guarantee: PrivacyGuarantee) -> list[str]:
        """Return what breaks a guarantee, in words."""
        share, (_, tests) = self.share(guarantee), _allowed(guarantee)
        found = {
            f"one unit moves totals by {share:.3f} of the claim": share > 1 + 1e-9,
            f"{self.alone} draws of one run alone, for which nothing is paid": self.alone > 0 and not tests,
            f"{self.repeated} labels used for two totals": self.repeated > 0,
            f"{self.unbound} draws that are bound to no totals": self.unbound > 0,
        }
        return [text for text, broken in found.items() if broken]


def compare(one: Record, other: Record, noises: Sequence[Any] = ()) -> Difference:
    """Compare the totals of two runs on neighbours.

    Totals of running sums, which have `noises`, are those since the start: what is new at each step is compared, after
    the matrix by which its noise is correlated.
    """
    squares = epsilon = 0.0
    running, sources = defaultdict[tuple[int, Any], dict[int, int]](dict), dict[bytes, int]()
    laws = [{*map(noise.law_at, range(1, noise.horizon + 1))} for noise in noises]  # at one of their steps
    for label in (label for label in one.draws if label in other.draws):
        for here, there in zip(one.draws[label], other.draws[label], strict=False):
            moved = [a - b for a, b in zip(here.totals, there.totals, strict=True)]
            if of_law := [number for number, some in enumerate(laws) if here.law in some]:
                place = sources.setdefault(label[0], len(sources))  # counts draw first, and then sums
                running[of_law[place % len(of_law)], label[:3]][label[3]] = moved[-1]
            elif isinstance(here.law, DiscreteLaplace):
                epsilon += sum(map(abs, moved)) / here.law.scale
            else:
                squares += sum(each**2 for each in moved) / here.law.sigma**2
    for (whose, _), moved_at in running.items():
        noise, totals = noises[whose], np.zeros(noises[whose].horizon + 1)
        for step in range(1, len(totals)):
            totals[step] = moved_at.get(step, totals[step - 1])
        seen = np.asarray(noise.shifts(totals[1:]))  # what the noise of each step hides
        if isinstance(noise.law, DiscreteLaplace):
            epsilon += float(np.abs(seen).sum()) / noise.law.scale
        else:
            squares += float(seen @ seen) / (noise.law.sigma / 2**noise.fraction) ** 2
    return Difference(
        shift=math.sqrt(squares),
        epsilon=epsilon,
        alone=len(one.draws.keys() ^ other.draws.keys()),
        repeated=sum(len(draws) > 1 for run in (one, other) for draws in run.draws.values()),
        unbound=len(one.unbound | other.unbound),
    )


def _allowed(guarantee: PrivacyGuarantee) -> tuple[float, bool]:
    """Return the shift of Gaussian noise that is allowed, and whether delta is left for what one unit alone has."""
    tests, curve = False, guarantee.known_curve
    if isinstance(curve, SlackCurve):
        tests, curve = curve.slack > 0, curve.curve
    if isinstance(curve, GaussianCurve):
        return curve.shift, tests
    delta = curve.at_delta if isinstance(curve, PointCurve) else guarantee.delta  # what is pure has no Gaussian noise
    return (largest_shift(guarantee.epsilon, delta) if delta else 0.0), tests or delta > 0


MISSING = 1e-8  # probability with which an item is not found that everybody else has
OTHERS = 30  # people in each window where nobody needs to be found
LAST = 5  # one event in this number is at the last moment of its window
SUSPECT = "suspect"


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

    def replay(self) -> tuple[Difference, list[Any]]:
        """Run both, and compare them; return also the rows of the run with the suspect."""
        found = []
        for sent in ([*self.others, *self.suspect], self.others):
            with recording() as record:
                rows = publish(self.transform, batches(self.transform, sent))
            found.append((record, rows))
        (one, rows), (other, _) = found
        law = getattr(getattr(self.transform, "mechanism", None), "law", None)
        noises = [each for each in getattr(law, "noises", ()) if isinstance(each, CompleteTreeNoise | ToeplitzNoise)]
        return compare(one, other, noises), rows


def batches(transform: Any, sent: Sequence[Sent], size: int = 1000) -> list[pa.RecordBatch]:
    """Return events as a transform reads them, from both ends of their windows."""
    steps = transform.steps
    bounds = {window: steps.bounds_micros(steps.first + window) for window in {one.window for one in sent}}
    times = [
        end - 1 if place % LAST == 0 else first + place % MICROS
        for place, (first, end) in enumerate(bounds[one.window] for one in sent)
    ]
    kind = pa.int64() if transform.event_fields.user == NUMBER else pa.string()
    columns = {
        "user": pa.array([one.user for one in sent], kind),
        "item": pa.array([one.item for one in sent]),
        "time": pa.array(times, pa.timestamp("us", "UTC")),
        "value": pa.array([one.value for one in sent]),
    }
    found: list[pa.RecordBatch] = pa.table(columns).to_batches(max_chunksize=size)
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
    others = [Sent(f"other {place}", "", 0, made.low) for place in range(OTHERS)]
    often = [0] if made.unit == "event" else [window for window in range(windows) for _ in range(2 * made.per_step)]
    return Pair(transform, others, [Sent(SUSPECT, "", window, made.high) for window in often])


def of_cardinality(transform: Any) -> Pair:
    """Let one person be there in all windows."""
    enters = (transform.actions.begin or ("in",))[0]
    return Pair(transform, crowd(OTHERS, [enters], 0), everything([enters], transform.steps.count))


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


MINUTE, SMALL = 60, 1e-6
RUN: Mapping[str, Any] = {"window": MINUTE, "start": 0, "end": 6 * MINUTE, "epsilon": 2.0, "shards": 2}
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
