"""What a page says of one result, as plain values for its template."""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.privacy.units import in_words as in_units
from privstream.pipelines.accounts.ledger import Entry
from privstream.pipelines.plot.chart import PAGE, moment
from privstream.pipelines.plot.schemes import in_both
from privstream.pipelines.questions.nothing_known import in_words
from privstream.pipelines.questions.signature import described
from privstream.pipelines.report.by_method import method_of, of_method, rules_of
from privstream.pipelines.report.cost import Accounts
from privstream.pipelines.report.plain_words import left_out, not_covered, promise_in_words
from privstream.pipelines.report.result import Result
from privstream.pipelines.sinks.terminal_table import COSTS
from privstream.pipelines.terminal import printable

MOST_PICTURES = 12
MOST_ROWS = 1000
MOST_NOTES = 4000


def section(result: Result, accounts: Accounts | None) -> dict[str, Any]:
    """Return all that a page says of a result.

    Raises:
        ValueError: the ledger does not have its run.
    """
    streams = list(result.given())
    return words_of(result, accounts) | {
        "pictures": [picture(result, given) for given in streams[:MOST_PICTURES]],
        "other_pictures": max(0, len(streams) - MOST_PICTURES),
    }


def words_of(result: Result, accounts: Accounts | None) -> dict[str, Any]:
    """Return what a page says of a result beside its pictures.

    Raises:
        ValueError: the ledger does not have its run.
    """
    entry, method = None if accounts is None else accounts.entry(result), method_of(result)
    columns = _columns(result, method)
    return {
        "title": result.spec.title[0].upper() + result.spec.title[1:],
        "question": result.spec.by_method.get(method, result.spec.description),
        "rules": rules_of(result),
        "file": os.path.basename(os.path.normpath(result.path)),
        "kind": result.spec.title,
        "silence": result.spec.silence,
        "accuracy": result.promise.number("accuracy", "sentence"),
        "left_out": left_out(
            result.guarantee,
            result.spec,
            result.parameters,
            result.promise.maybe("accuracy", "intervals", "limits"),
            method,
        ),
        "promise": promise_in_words(result.guarantee, "window" if result.spec.has_windows else "step"),
        "guarantee": result.guarantee,
        "not_covered": not_covered(result.guarantee),
        "columns": columns,
        "truth": result.truth is not None,
        "rows": [_cells(in_words(row, result.parameters), columns) for row in result.rows[:MOST_ROWS]],
        "all_rows": len(result.rows),
        "facts": _facts(result, entry, accounts),
        "parameters": _parameters(result),
        "date": "not known without a ledger" if entry is None else entry.time,
        "dataset": None if entry is None else entry.dataset,
    }


def picture(result: Result, given: Any) -> dict[str, Any]:
    """Return the picture of a stream: an image that is in the page itself, and what its points mean."""
    drawn = io.BytesIO()
    result.picture_spec.prepare(given)(drawn, PAGE)
    found = json.loads(drawn.getvalue())
    svg = in_both(re.sub(r"<!--.*?-->", "", found.pop("svg"), flags=re.S))
    found["notes"] = [note | {"name": printable(note["name"])} for note in found["notes"]]
    notes = found["notes"][:: 1 + len(found["notes"]) // MOST_NOTES]
    names = list(dict.fromkeys(note["name"] for note in notes))
    points = [[names.index(note["name"]), note["x"], note["y"], note["text"]] for note in notes]
    image = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    return {**found, "image": image, "names": names, "points": points, "thinned": len(notes) < len(found["notes"])}


def _columns(result: Result, method: str) -> list[tuple[str, str]]:
    """Return the columns of the rows, and what they mean; not those of a budget that no row costs."""
    texts = described(result.row_type.__doc__ or "", "Attributes")
    hidden = () if any(getattr(row, COSTS[0], 0) for row in result.rows) else COSTS
    return [(name, of_method(texts.get(name, ""), method)) for name in result.row_type._fields if name not in hidden]


def _cells(row: Any, columns: list[tuple[str, str]]) -> list[str]:
    """Return the values of a row as texts."""
    return [cell(getattr(row, name)) for name, _ in columns]


def cell(value: Any) -> str:
    """Return a value of a row as a text."""
    if isinstance(value, Timestamp):
        return moment(value.micros)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _facts(result: Result, entry: Entry | None, accounts: Accounts | None) -> list[tuple[str, str]]:
    """Return where the result comes from."""
    made = result.promise.number("made_by")
    facts = [("made by", f"{made['command']}, version {made.get('version', 'unknown')}")]
    facts.append(("run id", str(result.parameters.get("run_id", "unknown"))))
    if (digest := result.promise.maybe("rows", "sha256")) is not None:
        facts.append(("rows", f"SHA-256 {digest}"))
    if entry is None or accounts is None:
        return [*facts, ("date and fingerprints", "in the ledger of the run, which was not given for this page")]
    facts += [("date of the run", entry.time), ("data set", entry.dataset)]
    facts.append(("input", accounts.input_fingerprint(entry)))
    facts.append(("noise key", f"fingerprint {entry.key}"))
    for name in result.spec.files:
        value = entry.parameters.get(name)
        if isinstance(value, list):
            facts.append((name, f"fingerprint {value[-1]} (BLAKE2b; it is public)"))
    return facts


def _parameters(result: Result) -> list[tuple[str, str]]:
    """Return the options of the run; of files their names."""
    given: Mapping[str, Any] = result.parameters
    shown = {name: value for name, value in given.items() if name != "run_id"}
    durations = {name for name, each in result.spec.signature.arguments.items() if "Seconds" in each.types}
    return [(name, _option(value, duration=name in durations)) for name, value in shown.items()]


def _option(value: Any, *, duration: bool) -> str:
    """Write the value of an option."""
    if isinstance(value, str):
        return os.path.basename(value)
    return in_units(round(value * 1e6)) if duration and isinstance(value, int | float) and value else f"{value}"
