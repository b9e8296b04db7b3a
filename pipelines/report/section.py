"""What a report says of one result: what to look at first, its picture, its numbers, and its promise in plain words."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from privstream.mechanisms.privacy.guarantee import NEIGHBOURING, PrivacyGuarantee
from privstream.mechanisms.privacy.units import in_words as in_units
from privstream.mechanisms.views.rules import ALERT
from privstream.pipelines.accounts.entries import MINUTES, Entry
from privstream.pipelines.docstrings import described
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.promise import in_words
from privstream.pipelines.questions.risers import before, cells, newest, risers, window_of
from privstream.pipelines.report.cost import Accounts
from privstream.pipelines.report.result import Result
from privstream.pipelines.sinks.terminal_table import COSTS, SAME_LINE, View
from privstream.transforms.row_types import ENDED, Alert, AlertState, CategoryFlag, is_time

LARGEST_FACTOR = 1000.0
NOT_COVERED = (
    "Only the published rows are private. Logs, metrics, dead letters and checkpoints of the run are exact.",
    "Whoever has the noise key can remove the noise.",
    "A person with several ids in the data counts as several people, and is protected less.",
    "What others publish about the same people is not covered; what this ledger records is added up below.",
)
UNREAD = "Records that cannot be read, or that come too late, are not counted."
EVENTS_ALONE = "One event is protected, not a person: somebody who sends many events is protected far less."


def promise_in_words(guarantee: PrivacyGuarantee, step: str = "step") -> list[str]:
    """Return sentences on what is protected, against what comparison, and how far conclusions can go.

    Args:
        guarantee: what is promised.
        step: what its steps are called.
    """
    odds = math.exp(guarantee.epsilon)
    factor = f"{odds:,.3g}" if odds <= LARGEST_FACTOR else f"e^{guarantee.epsilon:g} (more than {LARGEST_FACTOR:,.0f})"
    plus = f", plus delta = {guarantee.delta:g}" if guarantee.delta else ""
    right = 100 * (1 - (1 - guarantee.delta) / (1 + odds))
    return [
        f"Protected is {guarantee.unit}.",
        "Compare what is published here with what would have been published from neighbouring data, which differ by "
        f"{NEIGHBOURING[guarantee.neighbouring].replace('the unit', f'that unit ({guarantee.unit})', 1)}.",
        "Whatever anybody sees or concludes is nearly as probable in one case as in the other: its probability is at "
        f"most {factor} times that in the other case (e to the power of epsilon = {guarantee.epsilon:g}){plus}.",
        "For example: who thinks that both cases are equally likely, and guesses from all that is published which of "
        f"them it is, guesses right with a probability of at most {_rounded_up(right)}%; 50% would be a mere guess.",
        *guarantee.lasting(step),
        guarantee.adaptivity.replace("step", step),
    ]


def _without_options(text: str) -> str:
    """Return a description without the sentences about options, which a reader of the page has not."""
    return ". ".join(sentence for sentence in text.split(". ") if "--" not in sentence).rstrip(".") + "."


def not_covered(guarantee: PrivacyGuarantee) -> list[str]:
    """Return what the guarantee rests on, and what it says nothing about."""
    alone = [EVENTS_ALONE] if guarantee.unit.what in ("event", "row") else []
    return [*alone, *guarantee.caveats, *NOT_COVERED]


def _rounded_up(percent: float) -> str:
    """Return a percentage with one digit, never less than it is."""
    return f"{min(100.0, math.ceil(10 * percent) / 10):g}"


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
    columns, clocks = _columns(result), result.promise.clocks
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
        "rows": [_cells(in_words(row, result.parameters), columns, clocks) for row in result.rows[:MOST_ROWS]],
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
    hidden = {*(() if any(getattr(row, COSTS[0], 0) for row in result.rows) else COSTS)}
    names = result.row_type._fields
    hidden |= {name for name in names if result.rows and all(getattr(row, name) in (None, "") for row in result.rows)}
    return [(name, texts.get(name, "")) for name in names if name not in hidden]


def _cells(row: Any, columns: list[tuple[str, str]], clocks: Clocks) -> list[str]:
    """Return the values of a row as texts."""
    return [cell(getattr(row, name), clocks) for name, _ in columns]


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
"""Lines of each kind and stream; the tables have all."""


def highlights(result: Result) -> list[str]:
    """Return sentences about what is published: what limits leave out, then what stands out, the newest first.

    Privacy: post-processing of rows.
    """
    return _standing_out(result)


def _standing_out(result: Result) -> list[str]:
    """Return what stands out, none where nothing does."""
    clocks, found = result.promise.clocks, list[str]()
    for stream in sorted({getattr(row, "stream", "") for row in result.rows}):
        rows = [row for row in sorted(result.rows, key=_end) if getattr(row, "stream", "") == stream]
        of = f"{stream}: " if stream else ""
        if issubclass(result.row_type, Alert):
            found += [of + text for text in _alerts(rows, clocks)]
        elif issubclass(result.row_type, AlertState):
            found += [of + text for text in _states(rows, clocks)]
        elif issubclass(result.row_type, CategoryFlag):
            found += [of + text for text in _flags(rows, clocks)]
        elif result.spec.word == "counts" or "against" in result.parameters:
            found += [of + text for text in _rises(rows, result, clocks)]
    return found


MOST_FOUND = 3
"""Lines about a result on top of a page of several, and numbers in a line."""


def newest_in_words(result: Result) -> list[str]:
    """Return a sentence with the first numbers of the last window, the largest ones where rows have an order."""
    clocks = result.promise.clocks
    named = {*result.row_type._fields}
    if not result.rows or named.isdisjoint(("count", "estimate")) or "rule" in named:
        return []
    view = View.of(result.rows, result.row_type, clocks)
    if not view.number:
        return []
    last = max(map(_end, result.rows))
    rows = view.sorted([row for row in result.rows if _end(row) == last])
    told = [f"{_about(row)}{_rounded(view.number_of(row))} (between {view.interval(row)})" for row in rows[:MOST_FOUND]]
    when = f"In the window until {clocks.moment(last)}: " if last else ""
    return [f"{when}{'; '.join(told)}."] if told else []


def _about(row: Any) -> str:
    """Return what a number is about, before it."""
    values = {name: getattr(row, name) for name in SAME_LINE if getattr(row, name, "") != ""}
    texts = [cell(value) if isinstance(value, str) else f"{name} {cell(value)}" for name, value in values.items()]
    return f"{', '.join(texts)}: " if texts else ""


def _rounded(number: float | None) -> str:
    """Return a number without digits that nobody reads."""
    return "-" if number is None else f"{number:,.0f}" if abs(number) >= 100 else f"{number:.4g}"


def _end(row: Any) -> int:
    """Return when the window of a row ends, in microseconds since 1970; 0 without windows."""
    return int(row.window_end.micros) if hasattr(row, "window_end") else 0


def _rises(rows: Sequence[Any], result: Result, clocks: Clocks) -> Iterator[str]:
    """Yield what surely rose in the last window."""
    last = newest(rows)
    against = f"{result.parameters['against']} before" if result.is_view else before(result.parameters.get("rising"))
    for row in risers(last, MOST_HIGHLIGHTS):
        rise, between = cells(row)
        yield f"{row.item} rose by {rise} ({between}) {window_of(last, clocks)}, against {against}."


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
