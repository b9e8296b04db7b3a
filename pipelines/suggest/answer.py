"""What `privstream suggest` does, and what it says of its rows: a table, an option, a command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from privstream.mechanisms.limits.contributions import MOST_DROPPED
from privstream.pipelines.commands.plan import rounded_up
from privstream.pipelines.model.counted import Counts
from privstream.pipelines.model.monitor import TERMINAL, Monitor
from privstream.pipelines.options import options_of
from privstream.pipelines.promise import Promise
from privstream.pipelines.terminal import printable
from privstream.transforms.row_types import LimitShare
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

SIDE_BY_SIDE, FEW = 8, 100  # so many scales of the noise are plain to see; people, for which an epsilon is named

NOBODY = (
    "No limit is suggested: too few people can be seen, or a few have most. It takes some {least:,.0f} people with "
    "alike numbers; with --epsilon {epsilon:g} it would take 100."
)
MEANS = (
    "kept: share of all contributions (items in windows); {beyond} may have more than is in this table. noise: "
    "standard deviation of a count. in one, in all: people that an item needs in one window, or in each, to be found "
    "with an even chance."
)
CHOSEN = "Of the limits that drop at most {most:.0%}, it keeps most in relation to noise."
NOT_KNOWN, WIDE = "not known", 0.5  # an interval that is wider says nothing


def below(rows: Sequence[LimitShare], promise: Promise, monitor: Monitor) -> Iterator[Any]:
    """Yield what a terminal shows: the table, and the option."""
    table = Table(box=SIMPLE_HEAD)
    for name in ("limit", "people", "kept", "noise", "in one", "in all"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.limit is not None:
            people = f"{row.people:,} ({row.people_lower:,} to {row.people_upper:,})"
            kept = kept_in_words(row) or NOT_KNOWN
            numbers = (f"{row.stddev:,.3g}", f"{row.found_in_one:,}", f"{row.found_in_all:,}")
            table.add_row(f"{row.limit:,.15g}", people, kept, *numbers)
    if table.row_count:
        yield table
        rest = rows[-1]
        yield Text(MEANS.format(beyond=f"{rest.people_lower:,} to {rest.people_upper:,} people"))
    yield from suggestions(rows, promise, monitor)


def kept_in_words(row: LimitShare) -> str | None:
    """Say which share of all contributions a limit keeps; None where that is not known."""
    assert row.kept is not None and row.kept_lower is not None and row.kept_upper is not None  # the row has a limit
    if row.kept_upper - row.kept_lower > WIDE:
        return None
    return f"{row.kept:.0%} ({row.kept_lower:.0%} to {row.kept_upper:.0%})"


def suggestions(rows: Sequence[LimitShare], promise: Promise, monitor: Monitor) -> Iterator[Text]:
    """Yield what the rows suggest: the option on a line of its own, what it keeps and finds, and the command."""
    (question,), delta = monitor.questions.values(), monitor.privacy.spent_delta
    for_epsilon = float(getattr(question, "for_epsilon", 1.0))
    found = next((row for row in rows if row.suggested), None)
    if found is None:
        scale, spent = promise.number("accuracy", "noise_scale"), promise.number("parameters", "epsilon")
        least = SIDE_BY_SIDE * scale
        yield Text(NOBODY.format(least=least, epsilon=rounded_up(spent * least / FEW)))
        return
    yield Text(f"For epsilon {for_epsilon:g} and delta {delta:g}:")
    yield Text(found.suggested)
    seen, rest = max(row.limit or 0.0 for row in rows), rows[-1]
    beyond = f"{rest.people_lower:,} to {rest.people_upper:,} people may have more than {seen:,.0f}"
    kept = kept_in_words(found) or f"a share of all contributions that is not known ({beyond})"
    yield Text(
        f"  keeps {kept}; finds items of {found.found_in_one:,} people in one window, or {found.found_in_all:,} in "
        f"each of all. {CHOSEN.format(most=MOST_DROPPED)}"
    )
    yield Text(f"Then: {printable(command_line(found, monitor, for_epsilon))}")


def command_line(found: LimitShare, monitor: Monitor, epsilon: float) -> str:
    """Return the command that uses what is suggested; its rows go beside those of this one, or to the terminal."""
    words = ["privstream counts"]
    path = monitor.output.path
    folder, slash, name = path.rpartition("/")
    rows = TERMINAL if path == TERMINAL else f"{folder}{slash}counts.{name.rpartition('.')[2]}"
    budget = {"epsilon": f"{epsilon:g}", "delta": f"{monitor.privacy.spent_delta:g}"}
    for option in options_of(Counts):
        section, key = option.place[0], option.place[-1]
        if section == "questions" or key in ("people", "overwrite", "dead_letter", "run_id"):
            continue
        model = getattr(monitor, section)
        value = budget.get(key, rows if option.name == "output" else getattr(model, key))
        if value is None or value is False or value == option.field.default:
            continue
        for one in value if isinstance(value, tuple) else [value]:
            words.append(option.word if one is True else f"{option.word} {shlex.quote(_plain(one))}")
    return " ".join([*words, found.suggested.replace("max_contributions", "max-contributions")])


def _plain(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)
