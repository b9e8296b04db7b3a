"""What the picture of a question is, and how `plot` draws it from files: one description, for `plot` and `report`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, Protocol, TypeVar

import numpy as np
from privstream.mechanisms import checks
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.local_time import Clocks, moment
from privstream.pipelines.plot.chart import COLOURS, UTC, short
from privstream.pipelines.plot.promise import Promise, left_out, meaning, of_each_row
from privstream.pipelines.sinks.row_files import check_destination, read_rows, whole_file
from privstream.pipelines.terminal import say
from privstream.transforms.row_types import Time
from privstream.transforms.timing.calendar import Calendar

FORMATS = ("png", "svg")
MOST_RENEWALS = 100
"""Periods that are marked; of more nobody sees the lines."""


class StreamRow(Protocol):
    """A row that says which stream it is about."""

    @property
    def stream(self) -> str:
        """Its name, empty where there is but one."""
        ...


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
    except OSError as error:
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


Drawing = Callable[[BinaryIO, str], None]
"""Draws into a stream in a format."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a picture is made of.

    Attributes:
        stream: whose rows they are, empty where there is but one.
        rows: what was published about it.
        truth: the truth about it, None if it is not known.
        promise: the guarantee file of the rows, None without one.
        options: of the picture, by name.
    """

    stream: str
    rows: Sequence[Any]
    truth: Sequence[Any] | None = None
    promise: Promise | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def top(self) -> int:
        """Number of items in colour."""
        return int(self.options["top"])

    def title(self, words: str) -> str:
        """Return the title, with the name of the stream."""
        limited = f"{words}, within limits" if left_out(self.promise) else words
        return f"{limited}, {short(self.stream)}" if self.stream else limited

    @property
    def clocks(self) -> Clocks:
        """The clocks by which times are shown: those of the run."""
        return UTC if self.promise is None else self.promise.clocks

    @property
    def renewals(self) -> Sequence[int]:
        """Moments at which limits start afresh, in microseconds since 1970, as far as rows reach."""
        parameters = {} if self.promise is None else self.promise.maybe("parameters") or {}
        every, start = parameters.get("renew_every"), parameters.get("start")
        if not self.rows or not isinstance(start, str):
            return ()
        last = max(row.window_end.micros for row in self.rows)
        found: Sequence[int] = ()
        try:
            first = round(moment("start", start, self.clocks.zone) * 1e6)
            if isinstance(every, str):
                starts = Calendar.parse(every, "renew_every", self.clocks.zone).starts(first, None)
                found = starts[starts < last].tolist()[1:]
            elif isinstance(every, float) and every > 0:
                found = range(first, last, max(1, round(every * 1e6)))[1:]
        except ValueError:  # whatever somebody has written into the file
            return ()
        return found if len(found) <= MOST_RENEWALS else ()

    @property
    def of_windows(self) -> bool:
        """Whether values are about each window by itself, and not about several, or all since the start."""
        over = None if self.promise is None else self.promise.maybe("parameters", "over")
        return over in (None, "window")

    @property
    def when(self) -> str:
        """Say where points stand, if not in the middle of their windows."""
        return "" if self.of_windows else " A point stands at the end of the time that it is about."

    @property
    def bands(self) -> str:
        """What shows intervals: areas along lines, and bars where there is a single window."""
        return "Bands" if len({row.window_end for row in self.rows}) > 1 else "Bars"

    def sure(self, what: str) -> str:
        """Say what a bar or a band means, and what it leaves out, the same in all pictures; `what`: Bars, .."""
        return meaning(self.promise, what)

    def sure_of_rows(self, what: str) -> str:
        """Say the same of what `row_intervals` draws."""
        return of_each_row(self.promise, what) if has_intervals(self.rows) else self.sure(what)

    def counted(self, what: str, who_count: str = "who count") -> str:
        """Return the name of an axis that counts people or events: those within limits, where there are any."""
        return f"{what} {who_count}" if left_out(self.promise) else what

    def empty(self, text: str) -> str:
        """Say that there is nothing to see, and which limits may be why."""
        return f"{text} Limits may be why: {leave}." if (leave := left_out(self.promise)) else text


@dataclass(frozen=True, kw_only=True)
class PictureSpec:
    """The picture of a question.

    Attributes:
        description: what it shows, in sentences.
        truth: type of the rows of its truth, which `simulate` writes.
        shows: what is drawn with the truth.
        prepare: from what is given to what draws it; a ValueError names what cannot be drawn.
        top: how many items are in colour unless `--top` says otherwise; None if all of them are.
        query: whether rows answer several queries, of which `--query` chooses one.
        rising: whether `--rising` draws the items that rose most, where rows have rises.
    """

    description: str
    truth: type
    shows: str
    prepare: Callable[[Given], Drawing]
    top: int | None = None
    query: bool = False
    rising: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The options of the picture and their defaults."""
        return {"top": self.top, "query": None, "rising": False}

    def command(self, word: str, row_type: Callable[[], type]) -> Command:
        """Return the command that draws it from files."""
        return Command(
            description=self.description,
            add_arguments=partial(self._add_arguments, word),
            run=lambda arguments, others: write_picture(
                arguments.output, lambda: self.prepare(self._read(arguments, row_type()))
            ),
        )

    def _add_arguments(self, word: str, parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""
        add_plot(parser, rows=word, truth=self.shows)
        if self.query:
            parser.add_argument(
                "--query", help="which query to draw, if there are several (default: histogram, or all)"
            )
        if self.rising:
            words = "draw the items that rose most in the last window with rises; of rows of a run with --rising"
            parser.add_argument("--rising", action="store_true", help=words)
        if self.top is not None:
            words = f"items in colour, 1 to {len(COLOURS)} (default: {self.top})"
            parser.add_argument("--top", type=int, default=self.top, metavar="N", help=words)

    def _read(self, arguments: argparse.Namespace, row_type: Any) -> Given:
        """Read what is to be drawn."""
        if self.top is not None and checks.integer("top", arguments.top, minimum=1) > len(COLOURS):
            raise ValueError(f"top must be <= {len(COLOURS)}, got {arguments.top}")
        rows: list[Any] = read_rows("--input", arguments.input, row_type, Time)
        stream = ""
        if "stream" in row_type._fields:
            stream, rows = choose_stream(rows, arguments.stream)
        elif arguments.stream is not None:
            raise ValueError("stream must not be given: these rows have none")
        truth: list[Any] | None = None
        if arguments.truth is not None:
            truth = read_rows("--truth", arguments.truth, self.truth, Time)
        return Given(
            stream=stream,
            rows=rows,
            truth=None if truth is None else of_stream(truth, stream),
            promise=Promise.read(f"{arguments.input}.guarantee.json"),
            options=vars(arguments),
        )


def is_smoothed(rows: Sequence[Any]) -> bool:
    """Tell whether all rows have smoothed numbers, which are drawn then as lines."""
    return bool(rows) and all(row.smoothed is not None for row in rows)


def has_intervals(rows: Sequence[Any]) -> bool:
    """Tell whether rows have intervals of their own, beside error bounds that hold together."""
    return any(row.lower is not None for row in rows)


def row_intervals(rows: Sequence[Any]) -> np.ndarray:
    """Return the ends of rows' own intervals, or else of error bounds, float64 (2, n); NaN where there is none."""
    if has_intervals(rows):
        return np.array([[row.lower for row in rows], [row.upper for row in rows]], np.float64)
    bounds = np.array([row.error_bound if row.error_bound >= 0 else np.nan for row in rows], np.float64)
    return np.asarray(np.array([row.estimate for row in rows]) + np.outer([-1, 1], bounds))


def of_stream(rows: Sequence[Any], stream: str) -> list[Any]:
    """Return the rows about a stream; without streams all of them."""
    return [row for row in rows if getattr(row, "stream", "") == stream]
