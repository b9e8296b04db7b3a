"""`privstream plot heavy-hitters`: the timeline of heavy hitters as a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TypeVar

from apache_beam.io.filesystem import BeamIOError
from privstream.mechanisms import checks
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.event_writers import ItemHolders
from privstream.pipelines.row_files import read_row_file
from privstream.pipelines.timeline import Timeline, draw
from privstream.pipelines.truth import judge, read_detection_threshold
from privstream.pipelines.whole_files import check_destination, whole_file
from privstream.transforms.rows import HeavyHitter

FORMATS = ("png", "svg")
MOST_ITEMS = 12

Row = TypeVar("Row", HeavyHitter, ItemHolders)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--input", required=True, metavar="ROWS", help="output of heavy-hitters")
    parser.add_argument("--truth", metavar="PATH", help="true holders, from simulate: shows what was missed")
    parser.add_argument("--output", required=True, metavar="PICTURE", help=".png or .svg")
    parser.add_argument("--stream", metavar="S", help="which stream, if there are several")
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help=f"items in colour, 1 to {MOST_ITEMS} (default: 10)"
    )


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the rows, draw, and write the picture."""
    try:
        ending = arguments.output.rpartition(".")[2].lower()
        if ending not in FORMATS:
            raise ValueError(f"--output must end in .png or .svg, got {arguments.output}")
        check_destination(arguments.output)
        if checks.integer("top", arguments.top, minimum=1) > MOST_ITEMS:
            raise ValueError(f"top must be <= {MOST_ITEMS}, got {arguments.top}")
        timeline = _read(arguments)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    try:
        with whole_file(arguments.output) as stream:
            draw(timeline, stream, ending, top=arguments.top)
    except (OSError, BeamIOError) as error:
        raise RunError(f"cannot write {arguments.output}: {error}") from error
    print(f"picture: {arguments.output}", file=sys.stderr)


def _read(arguments: argparse.Namespace) -> Timeline:
    """Read what is to be drawn."""
    rows = _rows("--input", arguments.input, HeavyHitter)
    truth = None if arguments.truth is None else _rows("--truth", arguments.truth, ItemHolders)
    names = sorted({row.stream for row in rows})
    stream = arguments.stream
    if stream is None and len(names) > 1:
        raise ValueError(f"stream must be given, one of {', '.join(names)}")
    if stream is not None and rows and stream not in names:
        raise ValueError(f"stream must be one of {', '.join(map(repr, names))}, got {stream!r}")
    stream = stream if stream is not None else (names[0] if names else "")
    rows = [row for row in rows if row.stream == stream]
    truth = None if truth is None else [row for row in truth if row.stream == stream]
    threshold = read_detection_threshold(arguments.input)
    verdict = None if truth is None or threshold is None else judge(rows, truth, threshold)
    return Timeline(stream=stream, rows=rows, truth=truth or [], detection_threshold=threshold, verdict=verdict)


def _rows(option: str, path: str, row_type: type[Row]) -> Sequence[Row]:
    """Read a file of rows."""
    try:
        rows: list[Row] = read_row_file(path, row_type)
    except FileNotFoundError:
        raise ValueError(f"{option} must be a file that exists, got {path}") from None
    except OSError as error:
        raise ValueError(f"{option} must be a readable file, got {path}: {error.strerror}") from None
    except Exception as error:  # each format has its own errors
        if isinstance(error, ValueError) and "must end in" in str(error):
            raise ValueError(str(error).replace("path", option, 1)) from None
        raise ValueError(
            f"{option} must hold {row_type.__name__} rows that privstream wrote, got {path} ({type(error).__name__})"
        ) from None
    return rows


COMMAND = Command(
    description="Draws the heavy hitters of each window with error bars of two standard deviations of their noise and, "
    "given the truth, what was found and what was missed.",
    add_arguments=add_arguments,
    run=run,
)
