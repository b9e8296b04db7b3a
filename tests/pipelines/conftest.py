"""Reads event files through Beam and gives back what came out."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apache_beam as beam
import pyarrow as pa
import pytest
from privstream.pipelines.sinks.row_files import COMPLETE, read_row_file
from privstream.pipelines.sinks.writers import WriteRows
from privstream.pipelines.sources.readers import ReadEvents
from privstream.transforms.reading.fields import DeadLetter
from raw_rows import read_events, readings


class Outcome(NamedTuple):
    """Rows on the wire (in any order, sorted here), dead letters by position, and the counters of the reader."""

    rows: list[dict[str, str | int]]
    letters: list[DeadLetter]
    counters: dict[str, int]


class Found(NamedTuple):
    """Rows and dead letters, in the order of the file."""

    rows: list[dict[str, str | int]]
    letters: list[DeadLetter]


class SaveBatch(beam.DoFn):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process(self, element: pa.RecordBatch) -> None:
        path = Path(self.folder, f"{len(list(Path(self.folder).iterdir()))}.arrow")
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, element.schema) as writer:
            writer.write_batch(element)


@pytest.fixture
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcome]:
    """Return a function that reads a pattern under a field mapping."""

    def read(pattern: object, format: str | None = None, **fields: object) -> Outcome:
        folder = tmp_path_factory.mktemp("outcome")
        batches, letters = folder / "batches", folder / "letters.jsonl"
        batches.mkdir()
        pipeline = beam.Pipeline(runner="FnApiRunner")
        events = pipeline | ReadEvents(str(pattern), readings(**fields), format)
        events.events | "Save" >> beam.ParDo(SaveBatch(str(batches)))
        events.dead_letters | "Save letters" >> WriteRows(str(letters), DeadLetter, order=("source", "position"))
        result = pipeline.run()
        result.wait_until_finish()
        counters = {
            counter.key.metric.name: counter.committed
            for counter in result.metrics().query()["counters"]
            if counter.key.metric.namespace == "privstream"
            and counter.committed
            and counter.key.metric.name != COMPLETE
        }
        tables = [pa.ipc.open_file(pa.OSFile(str(path))).read_all() for path in batches.iterdir()]
        rows = [row for table in tables for row in table.to_pylist()]
        rows.sort(key=lambda row: (row["time"], row["user"], row["item"]))
        return Outcome(rows, read_row_file(str(letters), DeadLetter), counters)

    return read


@pytest.fixture(scope="session")
def read_all() -> Callable[..., Found]:
    """Return a function that reads a pattern under a field mapping without a pipeline, so that many can be read."""

    def read_all(pattern: object, **fields: object) -> Found:
        found = list(read_events(pattern, readings(**fields)))
        batches = [each for each in found if isinstance(each, pa.RecordBatch)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        return Found(rows, [each for each in found if isinstance(each, DeadLetter)])

    return read_all
