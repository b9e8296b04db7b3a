"""What is printed has only characters that can be seen: no text of a file or an option can steer a terminal."""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from contextvars import ContextVar
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from typing_extensions import override

STANDARD_ERROR = 2
NOTE = "NOTE: "  # how a line begins that tells what may be meant, and may be a mistake
WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False, "replace_whitespace": False}
"""Paths and commands are not broken."""

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)

LINE_END = re.compile(r"\s*[\r\n]\s*")


def printable(text: str) -> str:
    """Escape what cannot be seen, such as control characters and changes of direction; ends of lines stay."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def one_line(text: str) -> str:
    """Return a text as one line that is printable."""
    return printable(LINE_END.sub(" ", text.strip()))


@contextmanager
def quietly(*, on: bool) -> Iterator[None]:
    """Say nothing in the block, if `on`: only errors are printed, by the caller."""
    token = _QUIET.set(on)
    try:
        yield
    finally:
        _QUIET.reset(token)


def is_quiet() -> bool:
    """Tell whether nothing but errors is to be printed."""
    return _QUIET.get()


def say(text: str, hanging: int = 0) -> None:
    """Print to standard error; on a terminal wrap between words and indent by `hanging` columns."""
    if is_quiet():
        return
    shown = printable(text)
    if sys.stderr.isatty():
        width = max(40, shutil.get_terminal_size().columns)
        folded = {"width": width, "subsequent_indent": " " * hanging, **WHOLE}
        shown = "\n".join(textwrap.fill(line, **folded) if line else line for line in shown.split("\n"))
    print(shown, file=sys.stderr)


@contextmanager
def spinner(text: str) -> Iterator[Progress]:
    """Show what is going on, and since when, while the block runs; then the line vanishes.

    Nothing is shown where standard error is no terminal. The text is a fixed one: it never quotes what is read.
    """
    with os.fdopen(os.dup(STANDARD_ERROR), "w") as stream:  # workers lose theirs
        console = Console(file=stream)
        with Progress(
            *(SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()),
            console=console,
            transient=True,
            redirect_stdout=False,  # runs redirect these themselves
            redirect_stderr=False,
            disable=is_quiet() or not console.is_terminal,
        ) as shown:
            shown.add_task(printable(text), total=None)
            yield shown


@contextmanager
def muted_stderr() -> Iterator[None]:
    """Let nothing reach standard error in the block, from libraries and from processes that start in it."""
    sys.stderr.flush()
    kept = os.dup(STANDARD_ERROR)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            os.dup2(nowhere.fileno(), STANDARD_ERROR)
            yield
    finally:
        os.dup2(kept, STANDARD_ERROR)
        os.close(kept)


def show(title: str, table: Table, sentences: Iterable[str]) -> None:
    """Print a page."""
    console = Console(highlight=False)
    for part in (Text(printable(title), style="bold"), table, *(Text(printable(text)) for text in sentences)):
        console.print(part)


def gap() -> None:
    """Print an empty line if standard output and standard error are terminals."""
    if sys.stderr.isatty() and sys.stdout.isatty():
        say("")


def json_text(value: Any, indent: int | None = None) -> str:
    """Write JSON in which what cannot be seen is escaped by its hexadecimal code; NaN and infinity are refused."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def did_you_mean(key: Any, known: Iterable[str]) -> str:
    """Return what somebody meant who wrote a name that is not known, if something is near."""
    names = {name.lstrip("-").replace("-", "_"): name for name in known}
    near = difflib.get_close_matches(str(key).lstrip("-").replace("-", "_"), names, 1)
    return f"; did you mean `{names[near[0]]}`?" if near else ""


class PrintableFormatter(logging.Formatter):
    """Formats logs of libraries, which may quote paths and options."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
