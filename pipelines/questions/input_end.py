"""Whether what is read has an end."""

from __future__ import annotations

import argparse

from privstream.pipelines.locations import ARRIVAL, DATABASE, DUCKDB, POSTGRESQL

KAFKA = "kafka://"
KAFKA_ONLY = ((None, None), (None, "jsonl"), (ARRIVAL, None), (ARRIVAL, "jsonl"))
OF_FILES = ("watch", "watermark", "input_format", "output_format", "delimiter", "encoding", "quote")
"""Options about files and streams, which the rows of a query are not."""


def is_unbounded(arguments: argparse.Namespace) -> bool:
    """Tell whether something is read without an end; options that need that are refused without.

    Raises:
        ValueError: naming the option.
    """
    if reads_query(arguments):
        for option in OF_FILES:
            if getattr(arguments, option) is not None:
                raise ValueError(f"{option} must not be given with a query, whose rows are read once")
        return False
    kafka = arguments.input.startswith(KAFKA)
    if kafka and (arguments.watermark, arguments.input_format) not in KAFKA_ONLY:
        raise ValueError("--input of Kafka has JSON objects in order of arrival: leave out watermark and input_format")
    for option in ("delimiter", "encoding", "quote"):
        if kafka and getattr(arguments, option) is not None:
            raise ValueError(f"{option} must not be given with Kafka, whose records are JSON in UTF-8")
    if kafka or arguments.watch is not None:
        return True
    for option in ("watermark", "output_format"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"{option} must be given with --watch only")
    return False


def reads_query(arguments: argparse.Namespace) -> bool:
    """Tell whether events are the rows of a query."""
    return is_query(arguments.input, getattr(arguments, "query", None))


def is_query(input: str, query: str | None) -> bool:
    """Tell whether the input is a query; what can be one only with the other is refused without it.

    Raises:
        ValueError: naming the option.
    """
    database = input.startswith(POSTGRESQL) or input.endswith(DUCKDB)
    if query is None and database:
        raise ValueError("query must be given with an --input that is a database: the SELECT whose rows are the events")
    if query is not None and not database:
        raise ValueError(f"query must be given with an --input of {DATABASE} or a file of DuckDB ({', '.join(DUCKDB)})")
    return query is not None
