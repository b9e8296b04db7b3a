"""Reads what a run has published. Imports no Beam until it does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from privstream.pipelines.questions.spec import resolve

if TYPE_CHECKING:
    from privstream.pipelines.report.result import Result


def read(path: str | os.PathLike[str]) -> Result:
    """Read the output of any command, with what is guaranteed of it.

    Args:
        path: a file of rows (.avro, .parquet, .jsonl or .csv) with its guarantee file, or the folder of a run without
            an end.

    Returns:
        The result: `table` has its rows as a pyarrow.Table, with times as Arrow timestamps.

    Raises:
        ValueError: the path has no result, or a part of it is missing or damaged.

    Example:
        >>> read("counts.parquet").table.to_pandas()  # doctest: +SKIP
    """
    try:
        result: Result = resolve("privstream.pipelines.report.result.read_result")(os.fspath(path))
    except ValueError as error:
        raise ValueError(str(error).replace("RESULT", "path", 1)) from None
    return result
