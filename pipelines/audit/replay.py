"""Record and replay: what noise is drawn for, in two neighbouring runs, and how far their totals are apart.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from privstream.mechanisms.noise.running import CompleteTreeNoise, ToeplitzNoise
from privstream.mechanisms.noise.sources import PrfNoise
from privstream.mechanisms.privacy.accounting import GaussianCurve, PointCurve, PrivacyCurve, SlackCurve, largest_shift
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.runners import launch

LAWS = (DiscreteGaussian, DiscreteLaplace)
"""Of noise that is added to totals."""

Label = tuple[bytes, bytes, int, int]
"""The source that draws, the source that binds, and the label there."""


class Draw(NamedTuple):
    """What noise was drawn for: its law, and the totals that it is bound to, in the order of binding."""

    law: Any
    totals: tuple[int, ...]


@dataclass
class Record:
    """All noise of a run.

    Attributes:
        draws: by label, each draw once.
        unbound: labels of noise that is bound to no totals, by law.
        rows: what was published.
    """

    draws: dict[Label, list[Draw]] = field(default_factory=lambda: defaultdict(list))
    unbound: set[tuple[Any, bytes, int, int]] = field(default_factory=set)
    rows: list[Any] = field(default_factory=list)


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
        inside = getattr(drawing, "inside", False)
        if not inside:  # some laws draw digits from others
            name = _name(source)
            for label in _labels(labels):
                if label in bound:
                    (by, *low), totals = bound[label]
                    drawn, found = Draw(law, totals), record.draws[name, by, low[0], low[1]]
                    if drawn not in found:
                        found.append(drawn)
                else:
                    record.unbound.add((law, name, *label))
        drawing.inside = True
        try:
            return draw(law, source, labels)
        finally:
            drawing.inside = inside

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(PrfNoise, "bind", bind_and_keep))
        for law in LAWS:
            kept = partial(keeping, law.draw)
            stack.enter_context(mock.patch.object(law, "draw", lambda *given, kept=kept: kept(*given)))
        yield record


def _name(source: Any) -> bytes:
    """Return what tells a source from others: draws that nobody else makes."""
    while not isinstance(source, PrfNoise):
        source = source.source  # of the rows of a table
    return source.derive("recorder").words(1).tobytes()


def _labels(labels: Any) -> list[tuple[int, int]]:
    """Return labels of any form as pairs; those of the rows of a table have their row behind them."""
    if not isinstance(labels, np.ndarray):
        labels = np.arange(labels)
    if labels.ndim == 1:
        return [(high, 0) for high in labels.tolist()]
    return [(high, low) for high, low in labels[:, :2].tolist()]


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
class Shown:
    """How far one unit moves all totals of a run.

    Attributes:
        shift: in deviations of Gaussian noise, all of it together.
        epsilon: in scales of Laplace noise, the sum.
        alone: labels of one run alone: tests of what the other run does not have.
        repeated: labels that one run uses for two laws or two totals: a difference of noise would be known, or is one
            that nobody has paid for.
        unbound: noise that is bound to no totals: another run would have the same.
    """

    shift: float
    epsilon: float
    alone: int
    repeated: int
    unbound: int

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


def compare(one: Record, other: Record, noises: Sequence[Any] = ()) -> Shown:
    """Compare the totals of two runs on neighbours.

    Args:
        one, other: the runs.
        noises: that of running sums, whose totals are those since the start: what is new at each step is compared,
            after the matrix by which its noise is correlated.
    """
    squares = epsilon = 0.0
    running, sources = defaultdict[tuple[int, Any], dict[int, int]](dict), dict[bytes, int]()
    for label in (label for label in one.draws if label in other.draws):
        for here, there in zip(one.draws[label], other.draws[label], strict=False):
            moved = [a - b for a, b in zip(here.totals, there.totals, strict=True)]
            if of_law := _running(noises, here.law):
                place = sources.setdefault(label[0], len(sources))  # counts draw first, and then sums
                running[of_law[place % len(of_law)], label[:3]][label[3]] = moved[-1]
            elif isinstance(here.law, DiscreteLaplace):
                epsilon += sum(map(abs, moved)) / here.law.scale
            else:
                squares += sum(each**2 for each in moved) / here.law.sigma**2
    for (whose, _), totals in running.items():
        seen, law = _shifts(noises[whose], totals), noises[whose].law
        if isinstance(law, DiscreteLaplace):
            epsilon += float(np.abs(seen).sum()) / law.scale
        else:
            squares += float(seen @ seen) / (law.sigma / 2 ** noises[whose].fraction) ** 2
    return Shown(
        shift=math.sqrt(squares),
        epsilon=epsilon,
        alone=len(one.draws.keys() ^ other.draws.keys()),
        repeated=sum(len(draws) > 1 for run in (one, other) for draws in run.draws.values()),
        unbound=len(one.unbound | other.unbound),
    )


def running_noises(transform: Any) -> list[Any]:
    """Return the noise of running sums of a transform; none where each window has its own."""
    law = getattr(getattr(transform, "mechanism", None), "law", None)
    return [each for each in getattr(law, "noises", ()) if isinstance(each, CompleteTreeNoise | ToeplitzNoise)]


def _running(noises: Sequence[Any], law: Any) -> list[int]:
    """Return which of these draw from a law, at one of their steps."""
    found = ((number, {*map(noise.law_at, range(1, noise.horizon + 1))}) for number, noise in enumerate(noises))
    return [number for number, laws in found if law in laws]


def _shifts(noise: Any, moved: dict[int, int]) -> Floats:
    """Return what the noise of each step hides of running totals of a key that differ so much, by step."""
    totals = np.zeros(noise.horizon + 1)
    for step in range(1, len(totals)):
        totals[step] = moved.get(step, totals[step - 1])
    return np.asarray(noise.shifts(totals[1:]))


def _allowed(guarantee: PrivacyGuarantee) -> tuple[float, bool]:
    """Return the shift of Gaussian noise that is allowed, and whether delta is left for what one unit alone has."""
    curve: PrivacyCurve = guarantee.known_curve
    tests, inner = False, curve
    if isinstance(curve, SlackCurve):
        tests, inner = curve.slack > 0, curve.curve
    if isinstance(inner, GaussianCurve):
        return inner.shift, tests
    delta = inner.at_delta if isinstance(inner, PointCurve) else guarantee.delta  # what is pure has no Gaussian noise
    return (largest_shift(guarantee.epsilon, delta) if delta else 0.0), tests or delta > 0
