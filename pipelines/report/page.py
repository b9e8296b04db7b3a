"""The page: of each result a sentence, its picture and ten rows; the rest is folded away. It needs no network."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from privstream.mechanisms.views.rules import NO_DATA
from privstream.pipelines.promise import Promise
from privstream.pipelines.report.result import Result, read_result
from privstream.pipelines.show import words
from privstream.pipelines.show.charts import episodes
from privstream.pipelines.show.shown import INTERVAL, Shown, moments, name_of, span
from privstream.pipelines.terminal import printable

PACKAGE = "privstream.pipelines.report"
FIRST_ROWS, MOST_ROWS, IN_SENTENCE = 10, 1000, 3
"""Rows in sight, folded away, and in the sentence that comes first."""

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"


def page_of(paths: Sequence[str], *, title: str, whole: Promise | None = None, live: str = "") -> str:
    """Return the page of results.

    The browser itself is told to load nothing, and to run nothing but the script of the page, which it knows by digest.

    Args:
        whole: the guarantee file of the monitor that has made them all.
        live: the version of a live page, which asks its server for another one; empty without a server. Of what is
            wrong with one result, such as that it is not complete, it tells that there is such a one.
    """
    sections = list[dict[str, Any]]()
    for path in paths:
        try:
            sections.append(section(read_result(path, live=bool(live))))
        except Exception:  # whatever somebody has written there
            if not live:
                raise
    notes = [] if paths else ["No results yet. They appear here when a command has written them."]
    if left := len(paths) - len(sections):
        notes.append(f"Results that cannot be read now, as they are incomplete or of another version: {left:,}.")
    together = None if whole is None else whole.maybe("guarantee")
    script = text_file("report.js") + (text_file("live.js") if live else "")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        templates()
        .get_template("report.html")
        .render(
            title=title,
            made=f"Made on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by privstream {version('privstream')}.",
            sections=sections,
            together="" if together is None else words.privacy_in_words(together),
            notes=notes,
            live=live,
            script=Markup(script),  # both are files of this package
            style=Markup(text_file("report.css")),
            policy=POLICY.format(digest) + "; connect-src 'self'" * bool(live),
        )
    )


def section(result: Result) -> dict[str, Any]:
    """Return what a page says of a result."""
    record, chart = result.promise.content, result.chart()
    window, newest = record["parameters"].get("window"), Shown(result.table, record, FIRST_ROWS)
    listed = _episodes(chart.shown) if chart.kind == "timeline" else []
    return {
        "title": words.capital(newest.title),
        "file": os.path.basename(os.path.normpath(result.path)),
        "sentence": _sentence(result, newest, listed),
        "notes": result.notes,
        "list": listed[:FIRST_ROWS],
        "image": Markup(chart.img()) if chart.points else "",
        "caption": chart.caption,
        "newest": newest,
        "every": Shown(result.table, record, MOST_ROWS, every=True),
        "privacy": f"{words.capital(words.privacy_in_words(record['guarantee'], window))}.",
        "explained": result.explanation,
    }


def in_notebook(result: Result) -> str:
    """Return a result as a cell of a notebook shows it: as a section of a page, without a script."""
    one = section(result) | {"every": None}
    if one["image"]:
        image = base64.b64encode(result.chart().png()).decode()
        one["image"] = Markup(f'<img src="data:image/png;base64,{image}" width="100%">')
    return templates().get_template("section.html").render(one=one, place=0)


def _sentence(result: Result, shown: Shown, listed: Sequence[str]) -> str:
    """Say what is most worth knowing of a result, whose alerts are listed, the newest first.

    Privacy: post-processing of rows.
    """
    if not result.table.num_rows:
        return f"{words.capital(result.nothing)}. This does not mean that numbers are 0."
    if listed:
        return f"Newest of {len(listed):,}: {listed[0]}."
    if {"state", "raised"} & {*result.table.column_names}:
        return f"No {shown.title.partition(' by ')[0]}."
    what, when = shown.unit, f", {shown.newest}" if shown.windows else ""
    if what not in shown.columns:
        return f"{words.capital(shown.heading)}."
    names = [name_of(row, shown.keys) for row in shown.rows.to_pylist()]
    ends = shown.columns.get(INTERVAL, [""] * len(names))
    told = [
        f"{name}{': ' * bool(name)}{number}{f' ({between})' if between else ''}"
        for name, number, between in zip(names, shown.columns[what], ends, strict=True)
    ]
    first = "Largest " if shown.number in ("rise", "ratio") else "Most " if shown.of_items else ""
    told = told[::-1] if shown.several else told
    return f"{words.capital(first + what)}{when}: {'; '.join(told[: IN_SENTENCE if shown.keys else 1])}."


def _episodes(shown: Shown) -> list[str]:
    """Return in words when alerts, flags and reports began and ended, the newest first."""
    found = sorted(episodes(shown), key=lambda one: (-one.start, one.name))
    starts, ends = [one.start for one in found], [one.end for one in found]
    first, last = moments(starts, shown.clocks, others=ends), moments(ends, shown.clocks, others=starts, ends=True)
    return [
        f"{one.name}{', no data' * (one.state == NO_DATA)}, {span(begin, end)}"
        for one, begin, end in zip(found, first, last, strict=True)
    ]


def templates() -> Environment:
    """Return what fills templates of this package: it escapes every value, and writes out what cannot be seen."""
    return Environment(
        loader=FunctionLoader(text_file),
        autoescape=True,
        finalize=lambda value: printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def text_file(name: str) -> str:
    """Return a file of this package."""
    return (files(PACKAGE) / name).read_text(encoding="utf-8")
