"""What a run tells: what was read and published, what that promises and costs, and the newest rows."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from privstream.pipelines.model.question import loaded
from privstream.pipelines.options import options_of
from privstream.pipelines.promise import Promise
from privstream.pipelines.show.words import LABEL, summary
from privstream.pipelines.sinks.destination import SENT
from privstream.pipelines.sinks.terminal_table import MOST_ROWS, print_rows, until_closed
from privstream.pipelines.terminal import gap, say
from privstream.transforms.counters import Counters
from rich.console import Console

HEAD = 5
"""Rows of each question that a run of several prints."""

OPTION = re.compile(r"--([a-z][a-z-]*)")
OF_COMMAND = frozenset({option.name for option in options_of(None, ("output", "account"))} | {"workers", "dry_run"})
"""Options of `privstream run`; what is said of a question names others, which are keys of the file."""


def tell(run: Any, counted: Counters, tables: Mapping[str, pa.Table]) -> str | None:
    """Say what a `Run` has read and published, with rows by question, and what that promises.

    Return why nothing that was read could be used, if so.
    """
    monitor, asked = run.monitor, run.questions
    told = summary(
        [each.facts(counted, dry_run=run.dry_run) for each in asked],
        (asked[0].promised if monitor.single else run.promised)["guarantee"],
        budget=run.budget,
        path=None if run.places.terminal else run.places.folder,
        dead_letter=monitor.output.dead_letter,
        dry_run=run.dry_run,
        views=[view.name for view in run.views],
    )
    words = str if monitor.single else _in_words_of_file
    say(words("\n".join(told.before)))
    if tables:
        with until_closed():
            for each, (name, table) in zip(asked, tables.items(), strict=True):
                gap()
                sys.stderr.flush()
                _show_rows(run, each, "" if monitor.single else name, table, counted)
                sys.stdout.flush()
        gap()
    say(words("\n".join(told.after)), LABEL)
    for each in asked if run.places.unbounded else ():
        if each.destinations:
            to = " and ".join(one.name() for one in each.destinations)
            say(f"{each.counters(counted).get(SENT, 0):,} rows sent to {to}")
    return None if told.nothing is None else words(told.nothing)


def _show_rows(run: Any, asked: Any, name: str, table: pa.Table, counted: Counters) -> None:
    """Print the newest rows of a question, or what it has in their place."""
    info, record = asked.question.info, asked.facts(counted).record
    if info.below is not None:
        rows = [asked.row_type(**row) for row in table.to_pylist()]
        for shown in loaded(info.below)(rows, Promise("", record), run.monitor):
            Console().print(shown, soft_wrap=True)
        return
    path, limit = None if run.places.terminal else asked.path, HEAD if name else MOST_ROWS
    nothing = info.why_nothing or "nothing is published"
    print_rows(table, record, name=name, path=path, limit=limit, nothing=nothing)


def _in_words_of_file(text: str) -> str:
    return OPTION.sub(lambda found: found[0] if (key := found[1].replace("-", "_")) in OF_COMMAND else key, text)
