"""A stream that nobody asked for is ignored in every transform, whatever it is."""

from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
import runner_harness
from examples import ASKED, ONE_OF_EACH, START, example
from grids import some_quick

SECRET = "zaphod"
WITH_STREAMS = [name for name in ONE_OF_EACH if name != "measurements"]  # which say of what stream they are


class Visit(NamedTuple):
    user: str
    item: str
    time: int
    value: int = 5
    stream: Any = SECRET


def run(made, inputs):
    """Return the results of one pipeline with the transform on each of several inputs."""

    def build(pipeline):
        outputs = {}
        for name, events in inputs.items():
            given = pipeline | name >> beam.Create(events, reshuffle=False)
            if type(made) in ASKED:
                queries = pipeline | f"Ask {name}" >> beam.Create([ASKED[type(made)]])
                given = {"events": given, "queries": queries}
            published = given | f"Publish {name}" >> made.with_dead_letters()
            outputs |= {f"{name} rows": published.rows, f"{name} dead": published.dead_letters}
        return outputs

    return runner_harness.run("fn_api", build)


@some_quick("name", WITH_STREAMS, "heavy hitters", "queries")
def test_it_is_ignored(name):
    people = [{"user": str(1 + i % 60), "item": "1", "time": START, "value": 5} for i in range(60)]
    inputs: dict[str, list[Any]] = {"without": [pa.RecordBatch.from_pylist(people)]}
    for stream in (SECRET, None, 1.5):
        rows = [{**row, "stream": stream} for row in people]
        inputs |= {
            f"batch, {stream}": [pa.RecordBatch.from_pylist(rows)],
            f"rows, {stream}": [Visit(**r) for r in rows],
        }
    results = run(example(name), inputs)
    assert results.elements("without rows")
    for each in inputs:
        assert sorted(results.elements(f"{each} rows")) == sorted(results.elements("without rows"))
        assert not results.elements(f"{each} dead")
