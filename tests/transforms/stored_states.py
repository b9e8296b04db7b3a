"""States of running jobs as files: what each stage remembers in the middle of a run, and what it then gives.

    python tests/transforms/stored_states.py 0.2.0     # before a release: writes states/0.2.0.json.gz

A file has, for each stage with a state, the names under which a runner keeps it, the bytes that a worker finds when a
job is resumed in mid-run, and a digest of all that the stage emits from there to the end of the run.
`test_stored_states.py` gives the bytes of every version to the present code. Files of released versions are never
written anew.
"""

import base64
import gzip
import hashlib
import json
import pickle
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.userstate import StateSpec, TimerSpec
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from examples import ASKED, EXAMPLES, START, example
from privstream.transforms import LinearQuery, Measurement, MeasurementAlerts, PrivateQueries
from privstream.transforms.batches import StepKey
from privstream.transforms.events import private_transform
from privstream.transforms.queries.answering import AnswerQueries
from privstream.transforms.timing.clocked import ClockedSteps
from privstream.transforms.timing.keyed_state import Cells
from privstream.transforms.timing.on_time import StepBatches
from privstream.transforms.timing.ordered import OrderedSteps
from tiny_runner import DoFns

FOLDER = Path(__file__).with_name("states")
PEOPLE, WINDOWS, WINDOW = 40, 4, 10
LONGER = {"end": START + WINDOWS * WINDOW}
KEEP_TIME = (OrderedSteps, ClockedSteps, AnswerQueries)
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "counts that forget": ("counts", {"forget": True}),
    "counts at random": ("counts", {"selection": "random"}),
}
"""Examples that have other stages, by changes."""


@dataclass(frozen=True)
class Stored:
    """The state of one key of a stage in the middle of a run.

    Attributes:
        example: which of `EXAMPLES` runs.
        stage: name of its DoFn.
        names: of its states and timer.
        key, progress, log, waiting: what the runner keeps; no progress and no log where records wait for one step.
        emitted: digest of what is emitted until the end.
    """

    example: str
    stage: str
    names: tuple[str, ...]
    key: bytes
    progress: bytes
    log: tuple[bytes, ...]
    waiting: tuple[bytes, ...]
    emitted: str = ""


class Bag:
    """A bag or a cell of bytes."""

    def __init__(self, values: tuple[bytes, ...] = ()) -> None:
        self.values = list(values)

    def read(self) -> list[bytes]:
        return list(self.values)

    def add(self, value: bytes) -> None:
        self.values.append(value)

    def clear(self) -> None:
        self.values = []


class Cell(Bag):
    def read(self) -> bytes | None:  # type: ignore[override]
        return self.values[-1] if self.values else None

    def write(self, value: bytes) -> None:
        self.values = [value]


class Timer:
    """Goes nowhere: a test fires what it wants."""

    def set(self, *given: Any, **named: Any) -> None: ...


def restored(found: Stored) -> Cells:
    """Return what a runner hands over when it has restored a key."""
    return Cells((Bag(found.waiting),), Cell((found.progress,)), Bag(found.log), Timer())


def rest_of(stage: Any, found: Stored, new_columns: int = 0) -> str:
    """Return the digest of what a stage emits from a state to the end of the run, without so many last columns."""
    if isinstance(stage, StepBatches):
        return digest(stage.act(StepKey.from_bytes(found.key), list(found.waiting)))
    end = Timestamp(START + (WINDOWS + 5) * WINDOW)
    return digest(stage.tick(found.key, end, restored(found)), new_columns)


def digest(outputs: Iterable[Any], new_columns: int = 0) -> str:
    """Return a digest of what a stage emits, in any order; numbers have six digits, for machines round as they like."""
    shown = sorted(_shown(output, new_columns) for output in outputs)
    return hashlib.sha256("\n".join(shown).encode()).hexdigest()[:32]


def _shown(value: Any, new_columns: int = 0) -> str:
    """Return what is emitted as text, without so many last columns of rows, which must be empty or an interval."""
    while isinstance(value, TimestampedValue | TaggedOutput):
        value = value.value
    if new_columns:
        new = value[-new_columns:]
        interval = value._fields[-new_columns:] == ("lower", "upper")
        assert new == (None,) * new_columns or (interval and new[0] <= new[1]), "what nobody asks for is empty"
        value = tuple(value[:-new_columns])
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def names_of(stage: type) -> tuple[str, ...]:
    """Return the names under which a runner keeps the state of a stage: with others, it is not found again."""
    return tuple(sorted(each.name for each in vars(stage).values() if isinstance(each, StateSpec | TimerSpec)))


def longer(name: str, **changes: Any) -> beam.PTransform:
    """Return an example with windows enough to stop in the middle of them, as a job without an end runs it."""
    of, more = MORE.get(name, (name, {}))
    return example(of, **(LONGER if "window" in EXAMPLES[of][1] else {}), **more, **changes)


def stage_of(name: str, stage: str, **changes: Any) -> Any:
    """Return a DoFn of an example as a worker gets it."""
    fn = pickle.loads(pickle.dumps(_dofns(name, **changes)[stage]))
    fn.setup()
    return fn


@cache
def _dofns(name: str, **changes: Any) -> dict[str, beam.DoFn]:
    made, visitor = longer(name, **changes), DoFns()
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FlinkRunner"]))
    _ = inputs(pipeline, made, name) | made
    pipeline.visit(visitor)
    return visitor.found


def inputs(pipeline: beam.Pipeline, made: beam.PTransform, name: str) -> Any:
    """Return a crowd in all windows: of each person item 1 or 2, and some come and go."""
    streams = EXAMPLES[MORE.get(name, (name,))[0]][1].get("streams", ("",))
    rows = [
        beam.Row(
            user=str(1 + person) if type(made) in ASKED else f"u{person}",
            item=str(1 + (person + window) % 2),
            value=float(person % 10),
            time=Timestamp(START + window * WINDOW + person % WINDOW),
            stream=streams[person % 2 % len(streams)],
        )
        for window in range(WINDOWS)
        for person in range(PEOPLE)
        if (person + window) % 5
    ]
    if isinstance(made, MeasurementAlerts):
        rows = [Measurement("crowd", Timestamp(START + window * WINDOW), 50.0) for window in range(WINDOWS)]
    events = pipeline | "Input" >> beam.Create(rows, reshuffle=False)
    if type(made) not in ASKED:
        return events
    queries = [ASKED[type(made)]]
    if isinstance(made, PrivateQueries):
        queries = [LinearQuery(f"q{number}", Timestamp(START + number), ("1",)) for number in range(WINDOWS)]
    return {"events": events, "queries": pipeline | "Queries" >> beam.Create(queries, reshuffle=False)}


def states_of(name: str) -> list[Stored]:
    """Return the states of an example: of each stage the largest one after a first step, with something that waits."""
    made, found = longer(name), {}
    with stopped_in_the_middle(name, found):
        pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
        with patch.object(private_transform, "may_restore", return_value=True):  # they are for jobs that are restored
            _ = inputs(pipeline, made, name) | made
        pipeline.run().wait_until_finish()
    return [replace(state, emitted=rest_of(stage_of(name, state.stage), state)) for state in found.values()]


@contextmanager
def stopped_in_the_middle(name: str, found: dict[str, Stored]) -> Iterator[None]:
    """Let stages that keep time handle one step by itself, and keep their states after it; likewise what waits."""

    def keep(stage: Any, key: bytes, progress: bytes, log: list[bytes], waiting: list[bytes]) -> None:
        new = Stored(name, type(stage).__name__, names_of(type(stage)), key, progress, tuple(log), tuple(waiting))
        if waiting and (new.stage not in found or _size(new) > _size(found[new.stage])):
            found[new.stage] = new

    def parted(theirs: Any) -> Any:
        def tick(self: Any, key: bytes, time: Timestamp, cells: Cells) -> Iterator[Any]:
            waiting = [self.step_of(record) for bag in cells.waiting for record in bag.read()]
            if waiting:
                first = Timestamp(micros=min(waiting) * 1000)  # of queries
                if hasattr(self, "steps"):
                    first = self.steps.decision_time(min(waiting), self.timer_offset)
                yield from theirs(self, key, min(first, time), cells)
            left = [record for bag in cells.waiting for record in bag.read()]
            keep(self, key, cells.progress.read(), list(cells.log.read()), left)
            yield from theirs(self, key, time, cells)

        return tick

    def acting(theirs: Any) -> Any:
        def act(self: Any, key: StepKey, records: list[bytes]) -> Iterator[Any]:
            keep(self, key.to_bytes(), b"", [], records)
            yield from theirs(self, key, records)

        return act

    with ExitStack() as patches:
        for kind in KEEP_TIME:
            patches.enter_context(patch.object(kind, "tick", parted(kind.tick)))
        for kind in kinds_of(StepBatches):
            if "act" in vars(kind):
                patches.enter_context(patch.object(kind, "act", acting(vars(kind)["act"])))
        yield


def _size(found: Stored) -> int:
    return sum(map(len, found.log))


def write(version: str) -> Path:
    """Write the largest state of each stage in all examples."""
    stages: dict[str, Stored] = {}
    for name in (*EXAMPLES, *MORE):
        for found in states_of(name):
            if found.stage not in stages or _size(found) > _size(stages[found.stage]):
                stages[found.stage] = found
    data = json.dumps([_plain(vars(found)) for found in stages.values()], indent=0).encode()
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{version}.json.gz"
    path.write_bytes(gzip.compress(data, mtime=0))
    return path


def read(path: Path) -> list[Stored]:
    """Read what `write` has written."""
    return [Stored(**_bytes(found)) for found in json.loads(gzip.decompress(path.read_bytes()))]


def _plain(value: Any) -> Any:
    """Return bytes as text for JSON."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return f"base64 {base64.b64encode(value).decode()}" if isinstance(value, bytes) else value


def _bytes(value: Any) -> Any:
    """Return what `_plain` was given."""
    if isinstance(value, dict):
        return {name: _bytes(each) for name, each in value.items()}
    if isinstance(value, list):
        return tuple(_bytes(each) for each in value)
    is_bytes = isinstance(value, str) and value.startswith("base64 ")
    return base64.b64decode(value[7:]) if is_bytes else value


def kinds_of(kind: type) -> set[type]:
    """Return all classes of privstream below one, and itself."""
    return {kind}.union(*map(kinds_of, kind.__subclasses__()))


def all_stages() -> dict[str, type]:
    """Return all stages of transforms with a state, by name."""
    kinds = set().union(*map(kinds_of, (*KEEP_TIME, StepBatches)))
    ours = "privstream.transforms."
    return {kind.__name__: kind for kind in kinds if kind.__module__.startswith(ours) and names_of(kind)}


if __name__ == "__main__":
    print(write(sys.argv[1]))
