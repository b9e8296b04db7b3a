"""Exact answers, without privacy, by plain Beam and by DuckDB: python _peer_engines.py ENGINE QUESTION EVENTS OUTPUT

Rows are a window, an item and a number, as CSV without a header.
"""

import sys
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from _peer_workload import LEAST_PEOPLE, QUANTILES, START, TOP, WINDOW

MICROS = "epoch_us(time)"
STEP = f"({MICROS} // 1000000 - {START}) // {WINDOW}"
COLUMNS = {"histogram": ["category"], "quantiles": ["value"], "cardinality": ["user", "move"]}


# Plain Beam, after its own examples: rows as dictionaries, event time, fixed windows.


def _values(row: dict[str, Any], columns: list[str]) -> Any:
    from apache_beam.transforms.window import TimestampedValue  # noqa: PLC0415

    found = tuple(row[column] for column in columns)
    return TimestampedValue(found if len(found) > 1 else found[0], row["time"].timestamp())


def _enough(counted: tuple[str, int]) -> bool:
    return counted[1] >= LEAST_PEOPLE


def _picked(quantiles: list[float]) -> Iterator[tuple[str, float]]:
    for quantile in QUANTILES:
        yield str(quantile), quantiles[round(100 * quantile)]


def _is_in(last: tuple[str, str]) -> bool:
    return last[1] == "in"


def plain_beam(question: str, events: str, output: str) -> None:
    """Answer with what Beam has: `Distinct`, `Count`, `Top`, `ApproximateQuantiles` and `Latest` in windows."""
    import apache_beam as beam  # noqa: PLC0415
    from apache_beam.transforms.combiners import Count, Latest, Top  # noqa: PLC0415
    from apache_beam.transforms.stats import ApproximateQuantiles  # noqa: PLC0415
    from apache_beam.transforms.window import FixedWindows  # noqa: PLC0415

    def line(found: tuple[str, float], window: Any = beam.DoFn.WindowParam) -> str:
        return f"{(int(window.start) - START) // WINDOW},{found[0]},{found[1]}"

    columns = COLUMNS.get(question, ["user", "item"])
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        found = (
            pipeline
            | "Read" >> beam.io.ReadFromParquet(events, columns=[*columns, "time"])
            | "EventTime" >> beam.Map(_values, columns)
            | "Window" >> beam.WindowInto(FixedWindows(WINDOW))
        )
        if question in ("counts", "heavy-hitters", "top-k"):
            found = found | beam.Distinct() | "Items" >> beam.Map(itemgetter(1)) | Count.PerElement()
        if question == "heavy-hitters":
            found |= beam.Filter(_enough)
        elif question == "top-k":
            found |= Top.Of(TOP, key=itemgetter(1)).without_defaults()
            found |= "Each" >> beam.FlatMap(lambda best: best)
        elif question == "histogram":
            found |= Count.PerElement()
        elif question == "quantiles":
            found = found | beam.WithKeys("all") | ApproximateQuantiles.PerKey(101) | beam.Values()
            found |= "Pick" >> beam.FlatMap(_picked)
        elif question == "cardinality":
            found = found | Latest.PerKey() | "In" >> beam.Filter(_is_in) | Count.Globally().without_defaults()
            found |= "Name" >> beam.Map(lambda size: ("", size))
        _ = found | "Line" >> beam.Map(line) | beam.io.WriteToText(output, num_shards=1, shard_name_template="")


# DuckDB, on one thread.

PEOPLE = f"SELECT {STEP} AS step, item, count(DISTINCT user) AS people FROM events GROUP BY step, item"
QUERIES = {
    "counts": PEOPLE,
    "heavy-hitters": f"{PEOPLE} HAVING people >= {LEAST_PEOPLE}",
    "top-k": f"SELECT * FROM ({PEOPLE}) QUALIFY row_number() OVER (PARTITION BY step ORDER BY people DESC) <= {TOP}",
    "histogram": f"""
        SELECT step, category, sum(found) OVER (PARTITION BY category ORDER BY step)
        FROM (SELECT {STEP} AS step, category, count(*) AS found FROM events GROUP BY step, category)""",
    "quantiles": f"""
        SELECT step, unnest({list(QUANTILES)}::DOUBLE[]), unnest(found)
        FROM (SELECT {STEP} AS step, quantile_cont(value, {list(QUANTILES)}) AS found FROM events GROUP BY step)""",
    "cardinality": f"""
        SELECT step, '', count(*) FILTER (move = 'in')
        FROM (SELECT {STEP} AS step, arg_max(move, time) AS move FROM events GROUP BY step, user) GROUP BY step""",
    "last item": f"""
        SELECT step, item, count(*)
        FROM (SELECT {STEP} AS step, arg_max(item, time) AS item FROM events GROUP BY step, user)
        GROUP BY step, item""",
}


def duck_db(question: str, events: str, output: str) -> None:
    """Answer by SQL over the file."""
    import duckdb  # noqa: PLC0415

    engine = duckdb.connect(config={"threads": 1, "preserve_insertion_order": False})
    engine.execute(f"CREATE VIEW events AS FROM read_parquet('{events}')")
    engine.execute(f"COPY ({QUERIES[question]}) TO '{output}' (FORMAT csv, HEADER false)")


ENGINES: dict[str, Callable[[str, str, str], None]] = {"beam": plain_beam, "duckdb": duck_db}

if __name__ == "__main__":
    ENGINES[sys.argv[1]](*sys.argv[2:])
