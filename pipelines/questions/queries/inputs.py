"""Where `queries` takes its queries from, and how many of them its accuracy is about."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from privstream.pipelines.questions.queries.queries_file import ReadQueries
from privstream.pipelines.questions.queries.question import WATCHED
from privstream.pipelines.questions.queries.watch_queries import WatchQueries
from privstream.pipelines.sources.folder_polls import ARRIVAL, split_pattern


def prepare(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return for how many queries accuracy is stated."""
    return {"queries": given["planned"]}


def inputs(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what reads the queries.

    Raises:
        ValueError, TypeError: naming the option.
    """
    if arguments.watch is None:
        return {WATCHED: ReadQueries(arguments.queries)}
    folder = split_pattern(arguments.queries, "--queries")[0]
    if os.path.realpath(os.path.dirname(arguments.input)) == os.path.realpath(folder):
        raise ValueError(f"--queries must be another folder than that of --input, got {folder}")
    return {WATCHED: WatchQueries(arguments.queries, arguments.watch, arguments.watermark or ARRIVAL)}
