"""Many trials of an attack in one run of a pipeline, each with noise and people of its own.

A trial is a period after which everything starts afresh; or, where noise of items is independent, it is items that no
other trial has.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.audit.attacks import PERIOD, SUSPECT, Attack, Sent
from privstream.pipelines.model.question import QuestionInfo
from privstream.pipelines.runners import launch
from privstream.pipelines.runners.processes import Crew
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.sinks.writers import WriteRows
from privstream.transforms.counts.keyed_counts import CountsParameters
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.fields import NUMBER
from privstream.transforms.stages import PrivateTransform

SECONDS = 60
MICROS = 1_000_000
ROWS_PER_BATCH = 50_000
DIGITS = 7
LENGTH = SECONDS * MICROS
SCHEMA = [
    pa.schema([("user", kind), ("item", pa.string()), ("time", pa.timestamp("us", "UTC"))])
    for kind in (pa.string(), pa.int64())
]
SHARDS, DOMAIN, WINDOW = "shards", "domain", "window"

Start = Callable[[PipelineOptions, Callable[[beam.Pipeline], None]], Any]
"""Runs a pipeline with options of Beam."""


def _read_batches(path: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file: elements that stand in a pipeline itself would be compressed with it."""
    with pa.OSFile(path) as stream:
        yield from pa.ipc.open_stream(stream)


class Trials:
    """The trials of one attack on one transform: one in so many gets D, the others D'.

    Args:
        spec: the question.
        attack: the attack.
        options: arguments of the transform beside its windows and noise.
        number: of trials, a multiple of the attack's `one_in`.
        noise: of the whole run; trials derive theirs from it.
        first: number of the first trial, a multiple of `one_in`: trials of several runs differ in it.

    Attributes:
        transform: what is attacked.
        guarantee: what it promises to one unit, who is in one trial.
    """

    def __init__(
        self,
        spec: QuestionInfo,
        attack: Attack,
        options: Mapping[str, Any],
        number: int,
        noise: NoiseSource,
        first: int = 0,
    ) -> None:
        self.spec, self.attack = spec, attack
        self.names = tuple(f"{i:0{DIGITS}}" for i in range(first, first + number))
        known = spec.arguments
        self.periods = attack.told_by == PERIOD
        given: dict[str, Any] = dict(options)
        if WINDOW in known:
            given |= {WINDOW: SECONDS, "start": 0, "end": SECONDS}
        if SHARDS in known:
            given[SHARDS] = 1  # trials are parts enough
        alone: Any = spec.transform_class(**given, noise=noise)
        self.guarantee: PrivacyGuarantee = alone.guarantee
        if self.periods:
            given |= {"end": SECONDS * number, "renew_every": SECONDS}
            noise = noise.derive("trials", first)
        elif DOMAIN in options:
            items = options[DOMAIN].texts.to_pylist()
            given[DOMAIN] = Domain([f"{name} {item}" for name in self.names for item in items])
        self.transform: PrivateTransform = spec.transform_class(**given, noise=noise)
        if isinstance(self.transform, CountsParameters):  # each is as one is that has no others
            self.transform.mechanism = alone.mechanism

    def run(self, start: Start = launch.run) -> tuple[Floats, Floats]:
        """Return the scores of the trials with D, and of those with D', float64 (trials,) each.

        Args:
            start: what runs a pipeline.

        Raises:
            RunError: a run failed.
        """
        rows = self._publish(start)
        scores = np.array([self.attack.score(self.transform, rows[name]) for name in self.names], np.float64)
        with_suspect = np.arange(len(scores)) % self.attack.one_in == 0
        return scores[with_suspect], scores[~with_suspect]

    def check(self) -> None:
        """Refuse inputs that are no neighbours by the guarantee: they differ in one person, or in one event.

        Raises:
            ValueError: the message says why.
        """
        attack, guarantee = self.attack, self.guarantee
        if guarantee.neighbouring != "add_remove":
            raise ValueError(f"attacks add or remove one unit, and the guarantee is for {guarantee.neighbouring}")
        if guarantee.unit.what == "event":
            if len(attack.suspect) != 1:
                raise ValueError(f"{attack.name}: D must have one event more, and no others")
        elif any(one.user == SUSPECT for one in attack.others(self.transform)) or any(
            one.user != SUSPECT for one in attack.suspect
        ):
            raise ValueError(f"{attack.name}: D must have the events of one person more, and no others")

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the events of all trials."""
        others = list(self.attack.others(self.transform))
        known = {True: [*others, *self.attack.suspect], False: others}
        sent, names = list[Sent](), list[str]()
        for number, name in enumerate(self.names):
            own = known[number % self.attack.one_in == 0]
            sent += own
            names += [name] * len(own)
            if len(sent) >= ROWS_PER_BATCH:
                yield self._batch(sent, names)
                sent, names = [], []
        if sent:
            yield self._batch(sent, names)

    def _batch(self, sent: Sequence[Sent], names: Sequence[str]) -> pa.RecordBatch:
        """Return events as columns, with the trial of each. Nobody is in two trials."""
        points = self.transform.event_fields.user == NUMBER
        users = [one.user if points else f"{name} {one.user}" for one, name in zip(sent, names, strict=True)]
        items = [one.item if self.periods else f"{name} {one.item}" for one, name in zip(sent, names, strict=True)]
        times = np.arange(len(sent)) % MICROS
        if self.periods:
            times += (np.array(names, np.int64) - int(self.names[0])) * LENGTH
        columns = {"user": pa.array(users), "item": pa.array(items), "time": pa.array(times, pa.timestamp("us", "UTC"))}
        return pa.RecordBatch.from_pydict(columns)

    def _publish(self, start: Start) -> dict[str, list[Any]]:
        """Run the pipeline; return its rows by trial."""
        row_type, points = self.spec.row_type_of(self.transform), self.transform.event_fields.user == NUMBER
        with tempfile.TemporaryDirectory(prefix="privstream-") as folder:
            sent, path = os.path.join(folder, "events.arrow"), os.path.join(folder, "rows.avro")
            with pa.OSFile(sent, "wb") as stream, pa.ipc.new_stream(stream, SCHEMA[points]) as writer:
                for batch in self._batches():
                    writer.write_batch(batch)

            def build(pipeline: beam.Pipeline) -> None:
                """Build it."""
                read = beam.FlatMap(_read_batches).with_output_types(pa.RecordBatch)
                events = pipeline | "File" >> beam.Create([sent]) | "Events" >> read
                rows = events | type(self.transform).__name__ >> self.transform
                _ = rows | "Write" >> WriteRows(path, row_type, order=self.spec.order)

            start(launch.parse_beam_options([]), build)
            found: dict[str, list[Any]] = defaultdict(list)
            for row in read_row_file(path, row_type):
                name, of_trial = self._trial_of(row)
                found[name].append(of_trial)
        return found

    def _trial_of(self, row: Any) -> tuple[str, Any]:
        """Return the trial of a row, and the row as it were if there was no other trial."""
        if not self.periods:
            name, _, item = getattr(row, self.attack.told_by).partition(" ")
            return name, row._replace(**{self.attack.told_by: item})
        number = row.window_start.micros // LENGTH
        moments = {field: getattr(row, field) for field in ("window_start", "window_end")}
        earlier = {field: Timestamp(micros=at.micros - number * LENGTH) for field, at in moments.items()}
        return self.names[number], row._replace(**earlier)


def run_share(task: bytes) -> list[tuple[Floats, Floats]]:
    """Run the trials of several runs, one run after the other, as a process of a crew; return what each found.

    Raises:
        RunError: one of them failed.
    """
    share: list[Trials] = pickler.loads(task)
    return [trials.run(launch.run_quietly) for trials in share]


def run_all(runs: Sequence[Trials], crew: Crew | None) -> list[tuple[Floats, Floats]]:
    """Return what each of several runs found, which the processes of a crew share, if there is one.

    Raises:
        ValueError: inputs of an attack are no neighbours by the guarantee.
        RunError: one of them failed.
    """
    for trials in runs:
        trials.check()  # here: a process says nothing of such an error
    if crew is None:
        return [trials.run() for trials in runs]
    found = crew.tell([pickler.dumps(runs[number :: crew.number]) for number in range(crew.number)])
    return [found[number % crew.number][number // crew.number] for number in range(len(runs))]
