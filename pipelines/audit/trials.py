"""Many trials of an attack in one run of a pipeline, each with noise and people of its own.

A trial is a period after which everything starts afresh; or, where noise of items is independent, it is items that no
other trial has.
"""

from __future__ import annotations

import glob
import os
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
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
from privstream.pipelines.audit.attacks import PERIOD, SUSPECT, Attack, Seen, Sent, Transcript
from privstream.pipelines.command import RunError
from privstream.pipelines.model.question import QuestionInfo
from privstream.pipelines.runners import launch
from privstream.pipelines.runners.processes import Crew
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.sinks.writers import WriteRows
from privstream.transforms.counts.keyed_counts import CountsParameters
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.fields import NUMBER
from privstream.transforms.stages import PrivateTransform
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

SECONDS = 60
MICROS = 1_000_000
ROWS_PER_BATCH = 50_000
DIGITS = 7
SHARDS, DOMAIN, WINDOW = "shards", "domain", "window"
DUPLICATES, COUNTED = "duplicates", "counted"
NUMBERS = ".npz"

Start = Callable[[PipelineOptions, Callable[[beam.Pipeline], None]], Any]
"""Runs a pipeline with options of Beam."""


def _read_batches(path: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file: elements that stand in a pipeline itself would be compressed with it."""
    with pa.OSFile(path) as stream:
        yield from pa.ipc.open_stream(stream)


class KeepNumbers(beam.DoFn):
    """Writes the numbers of rows into files of a folder, with their places: trial, window and item.

    Args:
        folder: of this machine.
        wanted: which numbers.
        first: the name of the first trial.
        steps: the windows of the run.
    """

    def __init__(self, folder: str, wanted: Transcript, first: str, steps: Steps) -> None:
        self._folder, self._first, self._steps = folder, int(first), steps
        self._items = {item: place for place, item in enumerate(wanted.items)}
        self._read = attrgetter("window_start", wanted.name, *wanted.fields)
        self._kept: list[tuple[Any, ...]] = []

    @override
    def start_bundle(self) -> None:
        self._kept = []

    @override
    def process(self, row: Any) -> None:
        start, text, *numbers = self._read(row)
        name, _, item = text.partition(" ")
        place = self._items.get(item)
        if place is not None:
            self._kept.append((int(name) - self._first, start.micros, place, *numbers))

    @override
    def finish_bundle(self) -> None:
        if not self._kept:
            return
        trials, starts, items, *numbers = map(np.array, zip(*self._kept, strict=True))
        windows = self._steps.starting(starts) - (self._steps.first or 0)
        path = os.path.join(self._folder, f"{uuid.uuid4().hex}{NUMBERS}")
        np.savez(path, places=np.stack([trials, windows, items]), numbers=np.column_stack(numbers).astype(np.float64))


class Trials:
    """The trials of one attack on one transform: one in so many gets D, the others D'.

    Args:
        spec: the question.
        attack: the attack.
        options: arguments of the transform beside its windows and noise.
        number: of trials, a multiple of `one_in`.
        noise: of the whole run; trials derive theirs from it.
        people: that D has more than D': one, or a crowd of people who send the same.
        first: number of the first trial, a multiple of `one_in`: trials of several runs differ in it.
        one_in: one trial in so many gets D.

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
        people: int = 1,
        first: int = 0,
        one_in: int = 2,
    ) -> None:
        self.spec, self.attack, self.people, self.one_in = spec, attack, people, one_in
        self.names = tuple(f"{i:0{DIGITS}}" for i in range(first, first + number))
        known = spec.arguments
        self.periods = attack.told_by == PERIOD
        given: dict[str, Any] = dict(options)
        length = SECONDS * attack.windows
        if WINDOW in known and WINDOW not in options:
            given |= {WINDOW: SECONDS, "start": 0, "end": length}
        if SHARDS in known:
            given[SHARDS] = 1  # trials are parts enough
        alone: Any = self._made(given, noise)
        self.guarantee: PrivacyGuarantee = alone.guarantee
        if self.periods:
            given |= {"end": length * number, "renew_every": length}
            noise = noise.derive("trials", first)
        elif DOMAIN in options:
            items = options[DOMAIN].texts.to_pylist()
            given[DOMAIN] = Domain([f"{name} {item}" for name in self.names for item in items])
        self.transform: PrivateTransform = self._made(given, noise)
        if isinstance(self.transform, CountsParameters):  # each is as one is that has no others
            self.transform.mechanism = alone.mechanism

    def _made(self, given: Mapping[str, Any], noise: NoiseSource) -> PrivateTransform:
        """Return a transform with these arguments."""
        made: PrivateTransform = self.spec.transform_class(**given, noise=noise)
        return made if self.attack.transcript is None else made.to_finish()

    def run(self, start: Start = launch.run) -> tuple[Floats, Floats]:
        """Return the scores of the trials with D, and of those with D', float64 (trials,) each.

        Where the attack is one on the whole transcript, its numbers in place of scores: (trials, numbers).

        An adaptive attack takes a run for each window: with the same noise and the same events so far, the rows so far
        are repeated, and what comes next may depend on them.

        Args:
            start: what runs a pipeline.

        Raises:
            RunError: a run failed, or has not repeated its rows.
        """
        attack = self.attack
        seen: Callable[[Any, Sequence[Any]], float | Sequence[float]] = attack.score
        if attack.transcript is not None:
            if attack.transcript.read is None:
                events = [each for window in range(attack.windows) for each in self._batches(window, {})]
                return self._apart(self._numbers(events, attack.transcript, start))
            seen = attack.transcript.read
        batches: list[pa.RecordBatch] = []
        rows: dict[str, list[Any]] = defaultdict(list)
        rounds = [[window] for window in range(attack.windows)] if attack.adaptive else [list(range(attack.windows))]
        for windows in rounds:
            before = {name: self._decided(rows[name], windows[0]) for name in self.names}
            batches += [batch for window in windows for batch in self._batches(window, before)]
            rows = self._publish(batches, start)
            for name, found in before.items():
                if found != self._decided(rows[name], windows[0]):
                    raise RunError("a run with the same noise and the same events has not repeated its rows")
        return self._apart(np.array([seen(self.transform, rows[name]) for name in self.names], np.float64))

    def check(self) -> None:
        """Refuse inputs that are no neighbours by the guarantee, in the first window.

        Raises:
            ValueError: the message says why.
        """
        self._events(self._seen(0), with_suspect=True)

    def _apart(self, found: Floats) -> tuple[Floats, Floats]:
        """Return what was found in the trials with D, and in those with D'."""
        with_suspect = np.arange(len(self.names)) % self.one_in == 0
        return found[with_suspect], found[~with_suspect]

    def _decided(self, rows: Sequence[Any], window: int) -> list[Any]:
        """Return the rows of earlier windows: none before the first one."""
        if not window:
            return []
        return [row for row in rows if row.window_start.micros < self._start(window)]

    def _start(self, window: int) -> int:
        """Return when a window of a trial starts, of the first one, in microseconds since 1970."""
        steps = getattr(self.transform, "steps", None)
        if steps is None:
            return window * SECONDS * MICROS
        return int(steps.bounds(steps.first + window)[0].micros)

    def _batches(self, window: int, before: Mapping[str, Sequence[Any]]) -> Iterator[pa.RecordBatch]:
        """Return the events of a window, of all trials."""
        attack = self.attack
        sent: list[Sent] = []
        names: list[str] = []
        known: dict[bool, list[Sent]] = {}
        for number, name in enumerate(self.names):
            with_suspect = number % self.one_in == 0
            if attack.adaptive or with_suspect not in known:
                known[with_suspect] = self._events(self._seen(window, before.get(name, ())), with_suspect)
            sent += known[with_suspect]
            names += [name] * len(known[with_suspect])
            if len(sent) >= ROWS_PER_BATCH:
                yield self._batch(window, sent, names)
                sent, names = [], []
        if sent:
            yield self._batch(window, sent, names)

    def _seen(self, window: int, rows: Sequence[Any] = ()) -> Seen:
        """Return what the adversary knows before a window."""
        return Seen(self.transform, window, rows, self.people)

    def _events(self, seen: Seen, with_suspect: bool) -> list[Sent]:
        """Return the events of one trial in a window: those of others, and with D those of the suspect."""
        others = list(self.attack.others(seen))
        suspect = list(self.attack.suspect(seen)) if with_suspect else []
        self._check_neighbours(seen.window, others, suspect)
        apart = self.attack.options.get(DUPLICATES) != COUNTED  # else the same point once more is another event
        return others + [one._replace(user=one.user - apart * more) for more in range(self.people) for one in suspect]

    def _check_neighbours(self, window: int, others: Sequence[Sent], suspect: Sequence[Sent]) -> None:
        """Check that D and D' are neighbours by the guarantee: they differ in one person, or in one event."""
        if self.guarantee.neighbouring != "add_remove":
            raise ValueError(f"attacks add or remove one unit, and the guarantee is for {self.guarantee.neighbouring}")
        if self.guarantee.unit.what == "event":
            if len(suspect) > 1 or (suspect and window > 0):
                raise ValueError(f"{self.attack.name}: D must have one event more, in the first window, and no others")
        elif any(one.user == SUSPECT for one in others) or any(one.user != SUSPECT for one in suspect):
            raise ValueError(f"{self.attack.name}: D must have the events of one person more, and no others")

    def _batch(self, window: int, sent: Sequence[Sent], names: Sequence[str]) -> pa.RecordBatch:
        """Return events as columns, with the trial of each. Nobody is in two trials."""
        points = self.transform.event_fields.user == NUMBER
        users = [one.user if points else f"{name} {one.user}" for one, name in zip(sent, names, strict=True)]
        items = [one.item if self.periods else f"{name} {one.item}" for one, name in zip(sent, names, strict=True)]
        times = np.full(len(sent), self._start(window)) + np.arange(len(sent)) % MICROS
        if self.periods:
            times += (np.array(names, np.int64) - int(self.names[0])) * self._length
        columns = {
            "user": pa.array(users),
            "item": pa.array(items),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "value": pa.array([one.value for one in sent]),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _publish(self, batches: Sequence[pa.RecordBatch], start: Start) -> dict[str, list[Any]]:
        """Run the pipeline; return its rows by trial."""
        row_type = self.spec.row_type_of(self.transform)
        with tempfile.TemporaryDirectory(prefix="privstream-") as folder:
            path = os.path.join(folder, "rows.avro")
            self._run(batches, folder, WriteRows(path, row_type, order=self.spec.order), start)
            found: dict[str, list[Any]] = defaultdict(list)
            for row in read_row_file(path, row_type):
                name, of_trial = self._trial_of(row)
                found[name].append(of_trial)
        return found

    @property
    def _length(self) -> int:
        """How long a trial is that is a period, in microseconds."""
        return SECONDS * MICROS * self.attack.windows

    def _trial_of(self, row: Any) -> tuple[str, Any]:
        """Return the trial of a row, and the row as it were if there was no other trial."""
        if not self.periods:
            name, _, item = getattr(row, self.attack.told_by).partition(" ")
            return name, row._replace(**{self.attack.told_by: item})
        number = row.window_start.micros // self._length
        moments = {field: getattr(row, field) for field in ("window_start", "window_end")}
        earlier = {field: Timestamp(micros=at.micros - number * self._length) for field, at in moments.items()}
        return self.names[number], row._replace(**earlier)

    def _numbers(self, batches: Sequence[pa.RecordBatch], wanted: Transcript, start: Start) -> Floats:
        """Run the pipeline; return all numbers of each trial, in the order of windows and items: (trials, numbers).

        Raises:
            RunError: one of them was not published.
        """
        shape = len(self.names), self.attack.windows, len(wanted.items)
        found = np.full((*shape, len(wanted.fields)), np.nan)
        with tempfile.TemporaryDirectory(prefix="privstream-") as folder:
            made: Any = self.transform
            keep = beam.ParDo(KeepNumbers(folder, wanted, self.names[0], made.steps))
            self._run(batches, folder, keep, start)
            for path in glob.glob(os.path.join(folder, f"*{NUMBERS}")):
                with np.load(path) as kept:
                    found[tuple(kept["places"])] = kept["numbers"]
        if np.isnan(found).any():
            raise RunError("a trial lacks a number that all trials must have: fewer people were found than should be")
        return found.reshape(len(self.names), -1)

    def _run(self, batches: Sequence[pa.RecordBatch], folder: str, write: Any, start: Start) -> None:
        """Run the pipeline, with a folder for temporary files and what is done with its rows."""
        sent = os.path.join(folder, "events.arrow")
        with pa.OSFile(sent, "wb") as stream, pa.ipc.new_stream(stream, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)

        def build(pipeline: beam.Pipeline) -> None:
            """Build it."""
            events = (
                pipeline
                | "File" >> beam.Create([sent])
                | "Events" >> beam.FlatMap(_read_batches).with_output_types(pa.RecordBatch)
            )
            _ = events | type(self.transform).__name__ >> self.transform | "Write" >> write

        start(launch.parse_beam_options([]), build)


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
