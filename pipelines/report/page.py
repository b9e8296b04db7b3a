"""The page: a template, its style and its script in one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from privstream.mechanisms.privacy.guarantee import NEIGHBOURING
from privstream.pipelines.report.cost import DataSetCost
from privstream.pipelines.report.result import Result
from privstream.pipelines.report.section import words_of
from privstream.pipelines.terminal import printable

PACKAGE = "privstream.pipelines.report"
NOTEBOOK_ROWS = 20
"""What a cell of a notebook shows."""


def render(
    *,
    title: str,
    date: str,
    version: str,
    sections: Sequence[dict[str, Any]],
    costs: Sequence[DataSetCost] | None,
    together: Sequence[Mapping[str, Any]],
    notes: Sequence[str] = (),
    live: str = "",
) -> str:
    """Return the page.

    The browser itself is told to load nothing, and to run nothing but the script of the page, which it knows by digest.

    Args:
        title: its heading.
        date: when it was made.
        version: of privstream.
        sections: one for each result, as `section` makes them.
        costs: of their data sets, or None without a ledger.
        together: what the results of each monitor promise together, as their guarantee file has it.
        notes: on all of it.
        live: the version of a live page, which asks its server for another one; empty without a server.
    """
    script, style = text_file("report.js") + (text_file("live.js") if live else ""), text_file("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = templates().get_template("report.html")
    return page.render(
        title=title,
        date=date,
        version=version,
        sections=sections,
        costs=costs,
        together=together,
        notes=notes,
        live=live,
        neighbouring=NEIGHBOURING,
        script=Markup(script),  # both are files of this package
        style=Markup(style),
        policy="default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'" + "; connect-src 'self'" * bool(live),
    )


def in_notebook(result: Result) -> str:
    """Return a result as a cell of a notebook shows it: its picture, its first rows, and what is guaranteed.

    It has no script, and like every page nothing exact.
    """
    one = words_of(result, None)
    image = f"data:image/png;base64,{base64.b64encode(result.chart().png()).decode()}"
    return templates().get_template("notebook.html").render(one=one, image=image, rows=one["rows"][:NOTEBOOK_ROWS])


def templates() -> Environment:
    """Return what fills templates of this package: it escapes every value.

    Characters that cannot be seen (of control, or changes of direction) are written out.
    """
    return Environment(
        loader=FunctionLoader(text_file),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def text_file(name: str) -> str:
    """Return a file of this package."""
    return (files(PACKAGE) / name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    """Write out what cannot be seen, in all texts but those that are markup."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
