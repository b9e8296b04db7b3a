"""What is printed has only characters that can be seen: no text of a file or an option can steer a terminal."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from typing_extensions import override

NOTE = "NOTE: "  # how a line begins that tells what may be meant, and may be a mistake
WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False, "replace_whitespace": False}
"""Paths and commands are not broken."""

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)

LINE_END = re.compile(r"\s*[\r\n]\s*")


def printable(text: str) -> str:
    """Escape what cannot be seen, such as control characters and changes of direction; ends of lines stay."""
    return "\n".join(_shown(line) for line in text.split("\n"))


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
    """Tell the person at the terminal, whose lines end between words, and go on set in by some columns."""
    if is_quiet():
        return
    shown = printable(text)
    if sys.stderr.isatty():
        width = max(40, shutil.get_terminal_size().columns)
        folded = {"width": width, "subsequent_indent": " " * hanging, **WHOLE}
        shown = "\n".join(textwrap.fill(line, **folded) if line else line for line in shown.split("\n"))
    print(shown, file=sys.stderr)


def gap() -> None:
    """Print an empty line on a terminal, beside a table that is there, too."""
    if sys.stderr.isatty() and sys.stdout.isatty():
        say("")


def json_text(value: Any, indent: int | None = None) -> str:
    """Write JSON in which what cannot be seen is escaped by its hexadecimal code; NaN and infinity are refused."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


class PrintableFormatter(logging.Formatter):
    """Formats logs of libraries, which may quote paths and options."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _shown(line: str) -> str:
    return line if line.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in line)
