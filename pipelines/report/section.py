"""What a report says of one result: what to look at first, its picture, its numbers, and its promise in plain words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from privstream.mechanisms.privacy.units import in_words as in_units
from privstream.mechanisms.views.rules import ALERT
from privstream.pipelines.accounts.entries import MINUTES, Entry
from privstream.pipelines.docstrings import described
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.report.cost import Accounts
from privstream.pipelines.report.result import Result
from privstream.pipelines.show.promises import not_covered, promise_in_words
from privstream.pipelines.show.words import says_nothing
from privstream.pipelines.sinks.terminal_table import INTERVAL, View
from privstream.transforms.row_types import ENDED, Alert, AlertState, CategoryFlag, is_time

UNREAD = "Records that cannot be read, or that come too late, are not counted."


def _without_options(text: str) -> str:
    """Return a description without the sentences about options, which a reader of the page has not."""
    return ". ".join(sentence for sentence in text.split(". ") if "--" not in sentence).rstrip(".") + "."


RULE_COLUMNS = ("name", "at_least", "at_most", "clear_below", "clear_above", "items")


def rules_of(result: Result) -> dict[str, Any] | None:
    """Return the public rules of a run as a table; None if it has none."""
    rules = result.promise.maybe("public", "rules")
    if not isinstance(rules, Sequence) or not all(isinstance(rule, Mapping) for rule in rules):
        return None
    names = [name for name in RULE_COLUMNS if any(name in rule for rule in rules)]
    return {"names": names, "rows": [[_shown(rule, name) for name in names] for rule in rules]}


def _shown(rule: Mapping[str, Any], name: str) -> str:
    """Write a field of a rule."""
    value = rule.get(name)
    if name == "items":
        return "any" if value is None else ", ".join(map(str, value))
    if value is None:
        return "-"
    return str(value) if isinstance(value, str) else f"{value:,}"


UTC = Clocks()
MOST_ROWS = 1000


def section(result: Result, accounts: Accounts | None) -> dict[str, Any]:
    """Return all that a page says of a result.

    Args:
        result: what was published.
        accounts: the ledger of its run, or None.

    Raises:
        ValueError: the ledger does not have its run.
    """
    return words_of(result, accounts) | picture(result)


def words_of(result: Result, accounts: Accounts | None) -> dict[str, Any]:
    """Return what a page says of a result beside its pictures; arguments as those of `section`.

    Raises:
        ValueError: the ledger does not have its run.
    """
    entry = None if accounts is None else accounts.entry(result)
    columns = _columns(result)
    return {
        "title": result.spec.title[0].upper() + result.spec.title[1:],
        "question": _without_options(result.spec.description),
        "rules": rules_of(result),
        "notes": [],
        "file": os.path.basename(os.path.normpath(result.path)),
        "kind": result.spec.title,
        "why_nothing": result.spec.why_nothing,
        "accuracy": result.promise.number("accuracy", "sentence"),
        "highlights": highlights(result),
        "found": (_standing_out(result) or newest_in_words(result))[:MOST_FOUND],
        "left_out": [*result.limits, UNREAD],
        "proof": result.guarantee.proof or "",
        "view": result.is_view,
        "promise": promise_in_words(result.guarantee, "window" if result.spec.has_windows else "step"),
        "guarantee": result.guarantee,
        "not_covered": not_covered(result.guarantee),
        "columns": columns,
        "rows": [_cells(row, columns, result) for row in result.rows[:MOST_ROWS]],
        "all_rows": len(result.rows),
        "facts": _facts(result, entry, accounts),
        "parameters": _parameters(result),
        "date": "not known without a ledger" if entry is None else f"{entry.time[:MINUTES].replace('T', ' ')} UTC",
        "dataset": None if entry is None else entry.dataset,
    }


def picture(result: Result) -> dict[str, Any]:
    """Return the picture of a result as an image that is in the page itself, with its title and caption."""
    chart = result.chart()
    return {"image": Markup(chart.img(words=False)), "heading": chart.title, "caption": chart.caption}


def _columns(result: Result) -> list[tuple[str, str]]:
    """Return the columns of the rows, and what they mean; not those of a budget that no row costs, nor empty ones."""
    texts = described(result.row_type.__doc__ or "", "Attributes")
    costs = ("epsilon_left", "stopped")  # of rows that cost nothing
    hidden = {*(() if any(getattr(row, costs[0], 0) for row in result.rows) else costs)}
    names = result.row_type._fields
    hidden |= {name for name in names if result.rows and all(getattr(row, name) in (None, "") for row in result.rows)}
    return [(name, texts.get(name, "")) for name in names if name not in hidden]


def _cells(row: Any, columns: list[tuple[str, str]], result: Result) -> list[str]:
    """Return the values of a row as texts; of a quantile of which nothing is known, that."""
    unknown = hasattr(row, "quantile") and says_nothing(row.lower, row.upper, result.parameters)
    texts = {name: cell(getattr(row, name), result.promise.clocks) for name, _ in columns}
    return ["unknown" if unknown and name == "estimate" else text for name, text in texts.items()]


def cell(value: Any, clocks: Clocks = UTC) -> str:
    """Return a value of a row as a text, a time by some clocks."""
    if is_time(value):
        return clocks.moment(value.micros)
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
    return facts


def _parameters(result: Result) -> list[tuple[str, str]]:
    """Return the options of the run; of files their names."""
    given: Mapping[str, Any] = result.parameters
    shown = {name: value for name, value in given.items() if name != "run_id"}
    return [
        (name, value if name in NO_PATHS else _option(value, duration=name in DURATIONS))
        for name, value in shown.items()
    ]


DURATIONS = ("window", "renew_every", "allowed_lateness", "timeout")
"""Options that are lengths of time."""

NO_PATHS = ("time_zone", "where")
"""Options whose texts may have a slash."""


def _option(value: Any, *, duration: bool) -> str:
    """Write the value of an option."""
    if isinstance(value, str):
        return os.path.basename(value)
    return in_units(round(value * 1e6)) if duration and isinstance(value, int | float) and value else f"{value}"


MOST_HIGHLIGHTS = 10
"""Lines of each kind; the tables have all."""


def highlights(result: Result) -> list[str]:
    """Return sentences about what is published: what limits leave out, then what stands out, the newest first.

    Privacy: post-processing of rows.
    """
    return _standing_out(result)


def _standing_out(result: Result) -> list[str]:
    """Return what stands out, none where nothing does."""
    clocks, rows = result.promise.clocks, sorted(result.rows, key=_end)
    if issubclass(result.row_type, Alert):
        return [*_alerts(rows, clocks)]
    if issubclass(result.row_type, AlertState):
        return [*_states(rows, clocks)]
    if issubclass(result.row_type, CategoryFlag):
        return [*_flags(rows, clocks)]
    if rows and (result.spec.word == "counts" or "against" in result.parameters):
        return [*_rises(rows, result, clocks)]
    return []


MOST_FOUND = 3
"""Lines about a result on top of a page of several, and numbers in a line."""


def newest_in_words(result: Result) -> list[str]:
    """Return a sentence with the first numbers of the last window, the largest ones where rows have an order."""
    view = View.of(result.table, result.promise.content, MOST_FOUND)
    columns = view.columns()
    if not result.rows or view.several or INTERVAL not in columns:
        return []
    about = zip(*(columns[key.replace("_", " ")] for key in view.keys if key in columns), strict=True)
    named = [f"{', '.join(texts)}: " for texts in about] or [""] * view.rows.num_rows
    told = [
        f"{name}{number} ({between})"
        for name, number, between in zip(named, columns[view.unit], columns[INTERVAL], strict=True)
    ]
    last = max(map(_end, result.rows))
    when = f"In the window until {result.promise.clocks.moment(last)}: " if last else ""
    return [f"{when}{'; '.join(told)}."]


def _end(row: Any) -> int:
    """Return when the window of a row ends, in microseconds since 1970; 0 without windows."""
    return int(row.window_end.micros) if hasattr(row, "window_end") else 0


def _rises(rows: Sequence[Any], result: Result, clocks: Clocks) -> Iterator[str]:
    """Yield what surely rose in the last window with rises, the largest rise first."""
    risen = [row for row in rows if getattr(row, "rise", None) is not None]
    last = max(map(_end, risen), default=0)
    surely = [row for row in risen if _end(row) == last and row.rise_lower > 0]
    back = result.parameters.get("against", result.parameters.get("rising"))
    against = f"{back} {'windows ' * isinstance(back, int)}before" if back != 1 else "the window before"
    for row in sorted(surely, key=lambda row: -row.rise)[:MOST_HIGHLIGHTS]:
        between = f"{row.rise_lower:+,.0f} to {row.rise_upper:+,.0f}"
        yield f"{row.item} rose by {row.rise:+,.0f} ({between}) until {clocks.moment(last)}, against {against}."


def _alerts(rows: Sequence[Alert], clocks: Clocks) -> Iterator[str]:
    """Yield the last alert of each rule, the newest first."""
    last = {row.rule: row for row in rows if row.status != ENDED}
    for row in sorted(last.values(), key=lambda row: -row.window_end.micros)[:MOST_HIGHLIGHTS]:
        number = "" if row.estimate is None else f", about {row.estimate:,.0f} in its last window"
        begun, last_seen = clocks.moment(row.since.micros), clocks.moment(row.window_end.micros)
        yield f"Alert {row.rule}: from {begun} to {last_seen}{number}."


def _states(rows: Sequence[AlertState], clocks: Clocks) -> Iterator[str]:
    """Yield the last alert of each item of a view, the newest first."""
    last = {row.item: row for row in rows if row.state == ALERT}
    for row in sorted(last.values(), key=_end, reverse=True)[:MOST_HIGHLIGHTS]:
        item = f" {row.item}" if row.item else ""
        yield f"Alert{item}: from {clocks.moment(row.since.micros)} to {clocks.moment(row.window_end.micros)}."


def _flags(rows: Sequence[CategoryFlag], clocks: Clocks) -> Iterator[str]:
    """Yield when flags went up, the newest first."""
    up: dict[str, int] = {}
    for row in rows:
        if row.raised:
            up.setdefault(row.category, row.window_end.micros)
    for category, micros in sorted(up.items(), key=lambda pair: -pair[1])[:MOST_HIGHLIGHTS]:
        yield f"The flag of {category} is up since {clocks.moment(micros)}."
