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
from privstream.pipelines.sinks.row_files import read_table
from privstream.pipelines.sinks.terminal_table import MOST_ROWS, print_rows, until_closed
from privstream.pipelines.terminal import gap, say
from privstream.transforms.counters import Counters
from rich.console import Console

HEAD = 5
"""Rows of each question that a run of several prints."""

OPTION = re.compile(r"--([a-z][a-z-]*)")
OF_COMMAND = frozenset({option.name for option in options_of(None, ("output", "account"))} | {"workers", "dry_run"})
"""Options of `privstream run`; what is said of a question names others, which are keys of the file."""


def tables_of(run: Any, paths: Mapping[str, str]) -> dict[str, pa.Table]:
    """Return the rows of the questions of a `Run`, of files at these paths, by name."""
    return {
        name: read_table(path, each.row_type) for each, (name, path) in zip(run.questions, paths.items(), strict=True)
    }


def tell(run: Any, counted: Counters, tables: Mapping[str, pa.Table]) -> str | None:
    """Say what was read and published, and what that promises; return why nothing of it could be used, if so."""
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
        _show_rows(run, counted, tables)
    say(words("\n".join(told.after)), LABEL)
    for each in asked if run.places.unbounded else ():
        if each.destination is not None:
            say(f"{each.counters(counted).get(SENT, 0):,} rows sent to {each.destination.name()}")
    return None if told.nothing is None else words(told.nothing)


def _show_rows(run: Any, counted: Counters, tables: Mapping[str, pa.Table]) -> None:
    """Print the newest rows of each question, or what it has in their place."""
    single = run.monitor.single
    with until_closed():
        for each, (name, table) in zip(run.questions, tables.items(), strict=True):
            gap()
            sys.stderr.flush()
            info, record = each.question.info, each.facts(counted).record
            if info.below is None:
                print_rows(
                    table,
                    record,
                    name="" if single else name,
                    path=None if run.places.terminal else each.path,
                    limit=MOST_ROWS if single else HEAD,
                    nothing=info.why_nothing or "nothing is published",
                )
            else:
                rows = [each.row_type(**row) for row in table.to_pylist()]
                for shown in loaded(info.below)(rows, Promise("", record), run.monitor):
                    Console().print(shown, soft_wrap=True)
            sys.stdout.flush()
    gap()


def _in_words_of_file(text: str) -> str:
    return OPTION.sub(lambda found: found[0] if (key := found[1].replace("-", "_")) in OF_COMMAND else key, text)
