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
from privstream.pipelines.promise import Promise
from privstream.pipelines.report.result import Result, read_result
from privstream.pipelines.show import words
from privstream.pipelines.show.charts import NO_DATA, episodes
from privstream.pipelines.show.shown import INTERVAL, WINDOW, Shown, moments
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
        notes.append(f"{left:,} results cannot be read now: incomplete, or of another version.")
    together = None if whole is None else whole.maybe("guarantee")
    script, style = text_file("report.js") + (text_file("live.js") if live else ""), text_file("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = templates().get_template("report.html")
    return page.render(
        title=title,
        made=f"Made on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by privstream {version('privstream')}.",
        sections=sections,
        together="" if together is None else words.privacy_in_words(together),
        notes=notes,
        live=live,
        script=Markup(script),  # both are files of this package
        style=Markup(style),
        policy=POLICY.format(digest) + "; connect-src 'self'" * bool(live),
    )


def section(result: Result) -> dict[str, Any]:
    """Return what a page says of a result."""
    record, chart = result.promise.content, result.chart()
    newest = Shown.of(result.table, record, FIRST_ROWS)
    listed = _episodes(result) if chart.kind == "timeline" else []
    made_of = ""
    if result.made_of:
        made_of = f"Made of what {' and '.join(result.made_of)} have published, at no cost of its own."
    return {
        "title": chart.title.partition(", window until ")[0],
        "file": os.path.basename(os.path.normpath(result.path)),
        "sentence": sentence(result, newest, listed),
        "notes": result.notes,
        "list": listed[:FIRST_ROWS],
        "image": Markup(chart.img(words=False)) if result.table.num_rows else "",
        "caption": chart.caption,
        "newest": _table(newest),
        "every": _table(Shown.of(result.table, record, MOST_ROWS, every=True)),
        "view": made_of,
        "privacy": words.privacy_in_words(record["guarantee"], record["parameters"].get("window")),
        "explained": result.explanation,
    }


def in_notebook(result: Result) -> str:
    """Return a result as a cell of a notebook shows it: as a section of a page, without a script."""
    one = section(result) | {"every": None}
    if one["image"]:
        image = base64.b64encode(result.chart().png()).decode()
        one["image"] = Markup(f'<img src="data:image/png;base64,{image}" width="100%">')
    return templates().get_template("section.html").render(one=one, place=0)


def _table(shown: Shown) -> dict[str, Any]:
    """Return rows as a page shows them."""
    count = f"{shown.rows.num_rows:,} of {shown.all:,} {shown.noun}" if shown.all > shown.rows.num_rows else ""
    rows = list(zip(*shown.columns.values(), strict=True))
    texts = {WINDOW, *(key.replace("_", " ") for key in shown.keys)}  # all else stays on one line
    kinds = ["" if name in texts else "number" for name in shown.columns]
    return {"heading": shown.heading, "names": list(shown.columns), "kinds": kinds, "rows": rows, "count": count}


def sentence(result: Result, shown: Shown, listed: Sequence[str]) -> str:
    """Say what is most worth knowing of a result, of which these are the alerts, the newest first.

    Privacy: post-processing of rows.
    """
    if not result.table.num_rows:
        why = f": {result.nothing}" if result.nothing else ""
        return f"No {result.title} were published{why}. That is not a picture of zeros."
    if listed:
        return f"Newest of {len(listed):,}: {listed[0]}."
    columns, when = shown.columns, f", {shown.newest}" if shown.windows else ""
    what = "rise" if "rise" in columns else shown.unit
    if what not in columns:
        return f"{shown.heading[0].upper()}{shown.heading[1:]}."
    between = columns.get(INTERVAL if what == shown.unit else f"{what} interval", [""] * shown.rows.num_rows)
    about = [columns[key.replace("_", " ")] for key in shown.keys if key.replace("_", " ") in columns]
    names = [f"{', '.join(texts)}: " for texts in zip(*about, strict=True)] or [""] * shown.rows.num_rows
    told = [
        f"{name}{number}{f' ({ends})' if ends else ''}"
        for name, number, ends in zip(names, columns[what], between, strict=True)
    ]
    told = told[::-1] if shown.several else told
    first = f"Most {what}" if shown.noun == "items" else f"{what[0].upper()}{what[1:]}"
    return f"{first}{when}: {'; '.join(told[: IN_SENTENCE if about else 1])}."


def _episodes(result: Result) -> list[str]:
    """Return in words when alerts, flags and reports began and ended, the newest first."""
    found = sorted(episodes(result.table), key=lambda one: (-one.end, one.start, one.name))
    clocks = result.promise.clocks
    starts, ends = [one.start for one in found], [one.end for one in found]
    first, last = moments(starts, clocks, others=ends), moments(ends, clocks, others=starts, ends=True)
    return [
        f"{one.name}{', no data' * (one.state == NO_DATA)}, {begin}{f' to {end}' if begin != end else ''}"
        for one, begin, end in zip(found, first, last, strict=True)
    ]


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
