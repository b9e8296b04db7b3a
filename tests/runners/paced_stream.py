"""A stream that a test lets go on step by step, the private pipeline over it, and a sink that keeps all it was given.

Workers import this module: what they run must not hang on the test that started it.
"""

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.sinks.writers import WriteWindowFiles
from privstream.pipelines.sources.readers import Polled, PolledSource, poll_parts
from privstream.transforms import (
    Alert,
    AlertRule,
    DeadLetter,
    Domain,
    HeavyHitter,
    KeyCount,
    KeyedCounts,
    ShiftingHeavyHitters,
    SparseVectorAlerts,
)
from privstream.transforms.stages import PrivateTransform

START = 1_700_000_000  # event time in seconds
WINDOW = 1.0
PARTS = 4  # batches of a window
USERS = 3000
PEOPLE = 375  # of a batch
MAX_HITS = 3
METHODS = ("clock", "status", "counts")
PUBLIC = "nobody's"
"""An item on the public list of those that stay found."""

ALERTS, LASTING, FOUND, LISTED = "alerts", "lasting", "found", "listed"
KINDS = {ALERTS: Alert, FOUND: KeyCount, LISTED: KeyCount}
"""What rows of some monitors are; those of the others are heavy hitters."""

FOUND_PERIOD = 10  # windows
REGULARS = 75  # in each batch
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Stream:
    """What the source is to do; it sends batches up to the number in the file `released`.

    Attributes:
        folder: where it looks, and where rows are kept.
        windows: how many there are.
        twice: whether every batch is sent twice.
        poison: whether there are events that cannot be used.
        more: whether there are alerts by status, too, and a file for each window.
        renewal: number of windows after which everything starts afresh. Other people come then, and beside them
            regulars, who have one favourite in all windows.
    """

    folder: Path
    windows: int = 12
    twice: bool = False
    poison: bool = False
    more: bool = False
    renewal: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What the monitors are called."""
        return (*METHODS[:2], LASTING, FOUND, LISTED) if self.renewal else (*METHODS, ALERTS) if self.more else METHODS

    def monitors(self) -> dict[str, PrivateTransform]:
        """Return what watches the events, by name: heavy hitters and alerts; with renewal, also one without it.

        Items that stay found have longer periods: rare ones are found late in them, over several windows. Where a list
        of different people stands beside them, there are none: it is read after half of the windows.
        """
        noise = KeyedNoise(b"a key for tests, known to all...", "faults")
        common = {"delta": 1e-4, "window": WINDOW, "start": START, "noise": noise}
        end = START + self.windows * WINDOW
        hitters = partial(ShiftingHeavyHitters, **common, epsilon=8, end=end)
        charging = partial(hitters, max_hits=MAX_HITS)
        if self.renewal is not None:
            every = self.renewal * WINDOW
            renewed = {method: charging(method=method, renew_every=every) for method in METHODS[:2]}
            counts = partial(KeyedCounts, **common, end=end)
            found = counts(
                epsilon=1,
                max_contributions=FOUND_PERIOD,
                renew_every=FOUND_PERIOD * WINDOW,
                public_items=Domain([PUBLIC]),
            )
            listed = counts(epsilon=1.5, max_contributions=80)
            return renewed | {LASTING: charging(method="status"), FOUND: found, LISTED: listed}
        made = {method: charging(method=method) for method in METHODS[:2]}
        made[METHODS[2]] = hitters(method="counts", max_contributions=3 * MAX_HITS, threshold=100)
        if not self.more:
            return made
        rules = tuple(
            AlertRule(
                name=name, at_least=150, items=tuple(f"trend {window}" for window in range(first, self.windows, 2))
            )
            for first, name in enumerate(("even windows", "odd windows"))
        )
        alerts = SparseVectorAlerts(**common, epsilon=8, rules=rules, method="status", max_hits=MAX_HITS, end=end)
        return made | {ALERTS: alerts}

    def release(self, windows: float | None = None) -> None:
        """Let the source go on to so many windows, or to its end."""
        new = self.folder / "released.new"
        new.write_text(str(round((self.windows if windows is None else windows) * PARTS)))
        new.replace(self.folder / "released")

    def released(self) -> int:
        """Return how many batches may be sent."""
        return int((self.folder / "released").read_text())


def begin(number: float) -> int:
    """Return the microseconds at which the events of a batch begin."""
    return round((START + number * WINDOW / PARTS) * 1e6)


def batch(number: int, renewal: int | None = None) -> pa.RecordBatch:
    """Return the events of a quarter of a window: two trends that hundreds hold, rare items, and a favourite."""
    rng = np.random.default_rng(number)
    people = rng.choice(USERS, PEOPLE, replace=False)
    kind = rng.random(len(people))
    items = np.char.add("rare ", (people % 50).astype(str)).astype("U20")
    items[kind < 0.4] = f"trend {number // PARTS}"
    items[kind < 0.2] = f"other trend {number // PARTS}"
    users, what = [f"user {person}" for person in people], items.tolist()
    if renewal is not None:
        regulars = [f"regular {number % PARTS} {person}" for person in range(REGULARS)]
        users = [f"{user} of {number // PARTS // renewal}" for user in users] + regulars
        what += ["favourite"] * REGULARS
    columns = [pa.array(users), pa.array(what), pa.array([begin(number + 0.5)] * len(users), pa.timestamp("us"))]
    return pa.RecordBatch.from_arrays(columns, ["user", "item", "time"])


class Paced(PolledSource):
    """Sends the batches that are released, and moves the watermark to their end."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(POLL_SECONDS)
        self.stream = stream

    def poll(self, part: bytes, position: bytes | None, watermark: int) -> Polled:
        """Send what has been released since the last time; answer nothing while there is a file `stalled`."""
        while (self.stream.folder / "stalled").exists():
            time.sleep(0.1)
        number, last = int(position or b"0"), self.stream.windows * PARTS
        released = min(self.stream.released(), last)
        return Polled(self._elements(number, released), b"%d" % released, begin(released) if released < last else None)

    def _elements(self, start: int, end: int) -> Iterator[tuple[Any, int]]:
        for number in range(start, end):
            for _ in range(2 if self.stream.twice else 1):
                yield batch(number, self.stream.renewal), begin(number)
            if self.stream.poison:
                yield (None, "an item of nobody"), begin(number)


class Keep(beam.DoFn):
    """Writes each row to a file of its own, under a name; fails while there is a file `broken` in the folder above."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def process(self, element: Any) -> None:
        if (self.folder.parent / "broken").exists():
            with (self.folder.parent / "refused").open("a") as file:
                file.write("refused\n")
            raise OSError("the sink is out of order")
        (self.folder / f"{self.name} {uuid.uuid4().hex}").write_text(json.dumps([str(field) for field in element]))


def build(pipeline: beam.Pipeline, stream: Stream) -> None:
    """Add the pipeline, which writes to the folders `rows` and `dead` (letters), and with `more` to `windows`."""
    rows, dead_letters, windows = stream.folder / "rows", stream.folder / "dead", stream.folder / "windows"
    for folder in (rows, dead_letters, windows):
        folder.mkdir(parents=True, exist_ok=True)
    events = poll_parts(pipeline, [b"stream"], Paced(stream), Any)
    for name, monitor in stream.monitors().items():
        published = events | f"Watch {name}" >> monitor.with_dead_letters()
        _ = published.rows | f"KeepRows {name}" >> beam.ParDo(Keep(rows, name))
        _ = published.dead_letters | f"KeepDead {name}" >> beam.ParDo(Keep(dead_letters, name))
        if stream.more and name == "status":
            _ = published.rows | "WriteWindows" >> WriteWindowFiles(str(windows), HeavyHitter, "jsonl", ["-people"])


def run_locally(folder: Path, **options: Any) -> list[tuple[str, Any]]:
    """Return the rows of a run that nothing happens to, on another runner."""
    stream = Stream(folder, **options)
    stream.release()
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        build(pipeline, stream)
    assert dead(folder) == []
    return kept(folder)


def kept(folder: Path) -> list[tuple[str, Any]]:
    """Return all rows that the sink was ever given, with the names of their monitors, sorted; fields are text."""
    return _kept(folder / "rows", HeavyHitter)


def dead(folder: Path) -> list[DeadLetter]:
    """Return the dead letters of all monitors."""
    return [letter for _, letter in _kept(folder / "dead", DeadLetter)]


def windows_published(stream: Stream) -> int:
    """Return of how many windows the sink was given rows of each monitor; there are none of later windows before."""
    found: dict[str, set[str]] = {name: set() for name in stream.names}
    for name, row in kept(stream.folder):
        found[name].add(row.window_start)
    return len(set.intersection(*found.values()))


def window_files(folder: Path) -> dict[str, bytes]:
    """Return what is in the files of the windows, by their names; there is one more at the end."""
    return {file.name: file.read_bytes() for file in (folder / "windows").iterdir()}


def _kept(folder: Path, kind: type) -> list[tuple[str, Any]]:
    files = [file for file in folder.iterdir() if file.stat().st_size]
    named = ((file.name.split()[0], _row(file)) for file in files)
    return sorted((name, (KINDS.get(name, kind) if kind is HeavyHitter else kind)(*row)) for name, row in named)


@cache
def _row(file: Path) -> list[str]:
    found: list[str] = json.loads(file.read_text())
    return found
