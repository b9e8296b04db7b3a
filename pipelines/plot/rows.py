"""What every `privstream plot` does: read rows and perhaps their truth, choose a stream, write a picture."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import BinaryIO, Protocol, TypeVar

from apache_beam.io.filesystem import BeamIOError
from privstream.pipelines.clock import clock
from privstream.pipelines.command import RunError, UsageError
from privstream.pipelines.sinks.row_files import MissingColumnsError, read_row_file
from privstream.pipelines.sinks.whole_files import check_destination, whole_file
from privstream.pipelines.terminal import say

FORMATS = ("png", "svg")


class StreamRow(Protocol):
    """A row that says which stream it is about."""

    @property
    def stream(self) -> str:
        """Its name, empty where there is but one."""
        ...


AnyRow = TypeVar("AnyRow")
Row = TypeVar("Row", bound=StreamRow)


def add_plot(parser: argparse.ArgumentParser, *, rows: str, truth: str | None) -> None:
    """Add the options of a plot: which command wrote the `rows`, and what the `truth` is good for, if there is any."""
    parser.add_argument("--input", required=True, metavar="ROWS", help=f"output of {rows}")
    if truth is not None:
        parser.add_argument("--truth", metavar="PATH", help=f"the truth, from simulate: {truth}")
    parser.add_argument("--output", required=True, metavar="PICTURE", help=".png or .svg")
    parser.add_argument("--stream", metavar="S", help="which stream, if there are several")


def write_picture(path: str, prepare: Callable[[], Callable[[BinaryIO, str], None]]) -> None:
    """Prepare what is to be drawn, then draw it into a file that appears whole or not at all.

    Args:
        path: the picture; ends in .png or .svg.
        prepare: reads and checks, and returns a function that draws into a stream in a format.

    Raises:
        UsageError: `prepare` raised a ValueError or TypeError, or the picture cannot be written there.
    """
    try:
        ending = check_picture(path)
        with clock("reading rows"):
            draw = prepare()
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    try:
        with clock("drawing"), whole_file(path) as stream:
            draw(stream, ending)
    except (OSError, BeamIOError) as error:
        raise RunError(f"cannot write {path}: {error}") from error
    say(f"picture: {path}")


def check_picture(path: str, option: str = "--output") -> str:
    """Check that a picture can be written; return its format.

    Raises:
        ValueError: naming the option and the path.
    """
    ending = path.rpartition(".")[2].lower()
    if ending not in FORMATS:
        raise ValueError(f"{option} must end in .png or .svg, got {path}")
    check_destination(path, option)
    return ending


def read_rows(option: str, path: str, row_type: type[AnyRow]) -> list[AnyRow]:
    """Read a file of rows.

    Raises:
        ValueError: naming the option, the path and the rule.
    """
    try:
        rows: list[AnyRow] = read_row_file(path, row_type)
    except FileNotFoundError:
        raise ValueError(f"{option} must be a file that exists, got {path}") from None
    except OSError as error:
        raise ValueError(f"{option} must be a readable file, got {path}: {error.strerror}") from None
    except Exception as error:  # each format has its own errors
        if isinstance(error, ValueError) and "must end in" in str(error):
            raise ValueError(str(error).replace("path", option, 1)) from None
        reason = f" {error}" if isinstance(error, MissingColumnsError) else f" ({type(error).__name__})"
        raise ValueError(
            f"{option} must have {row_type.__name__} rows that privstream wrote, got {path}{reason}"
        ) from None
    return rows


def choose_stream(rows: Sequence[Row], stream: str | None) -> tuple[str, list[Row]]:
    """Return the stream to draw and its rows; it must be named if there are several.

    Raises:
        ValueError: it is not named, or not there.
    """
    names = sorted({row.stream for row in rows})
    if stream is None and len(names) > 1:
        raise ValueError(f"stream must be given, one of {', '.join(names)}")
    if stream is not None and rows and stream not in names:
        raise ValueError(f"stream must be one of {', '.join(map(repr, names))}, got {stream!r}")
    chosen = stream if stream is not None else (names[0] if names else "")
    return chosen, [row for row in rows if row.stream == chosen]
