"""What a run tells: rows on a terminal, what was read and published, what that promises and costs."""

from __future__ import annotations

from functools import partial
from typing import Any

from privstream.pipelines.local_time import Clocks
from privstream.pipelines.model.question import loaded
from privstream.pipelines.promise import Promise, in_words, shown_in_words
from privstream.pipelines.questions.asked import DRY, privacy_in_words
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.sinks.terminal_table import print_rows, until_closed
from privstream.pipelines.terminal import NOTE, WARNING, say
from privstream.transforms.counters import Counters
from rich.console import Console

HEAD = 5
"""Rows of each question that a run of several prints."""


def show_rows(run: Any, path: str, counted: Counters) -> None:
    """Print the rows of the single question of a `Run`."""
    (asked,) = run.questions
    info, promised = asked.spec, Promise("", {**asked.promised, **asked.limits(counted)})
    rows = read_row_file(path, asked.row_type)
    with until_closed():
        if info.table:
            printed = [in_words(row, asked.promised["parameters"]) for row in rows]
            note = partial(shown_in_words, asked.row_type, promised)
            print_rows(printed, asked.row_type, title=info.title, note=note, clocks=promised.clocks)
        for each in () if info.below is None else loaded(info.below)(rows, promised, run.monitor):
            Console().print(each, soft_wrap=not info.table)


def tell(run: Any, counted: Counters) -> list[str]:
    """Say what was read, what was published, and what that promises; return why nothing of it could be used."""
    lines: list[str] = []
    warnings: list[str] = []
    nothing: list[str] = []
    dry = run.execution.dry_run
    for each in run.questions:
        said, of = each.told(counted, unbounded=run.places.unbounded), f"{each.name}: " if each.name else ""
        lines += [f"{of}{line}" for line in (*said.counted, *(said.accurate if of else ()))]
        for warning in said.warnings:
            kind = next((kind for kind in (NOTE, WARNING) if warning.startswith(kind)), "")
            warnings.append(f"{kind}{of}{warning.removeprefix(kind)}")
        nothing += [] if said.nothing is None else [f"{of}{said.nothing}"]
        lines += [DRY] if dry and not of else []
        lines += [privacy_in_words(each.promised["guarantee"]), *said.accurate] if not of else []
    if not run.monitor.single:
        lines += [DRY] if dry else []
        lines.append(privacy_in_words(run.promised["guarantee"]))
    if run.views and not dry:
        lines.append(f"views, at no cost: {', '.join(view.name for view in run.views)}")
    if not dry and not run.places.terminal:
        guarantee = run.questions[0].guarantee_path if run.monitor.single else run.places.whole
        lines.append(f"rows: {run.places.folder}, guarantee: {guarantee}")
    if not dry and not run.places.terminal and not run.places.unbounded and not run.questions[0].spec.table:
        show_rows(run, run.questions[0].path, counted)
    say("\n".join([*(charge.told for charge in run.charged), *lines, *warnings]))
    if not dry and not run.monitor.single and not run.places.unbounded:
        _show_heads(run)
    return nothing


def _show_heads(run: Any) -> None:
    """Print the largest rows of each question, of its newest window where it has several."""
    for each in run.questions:
        rows = read_row_file(each.path, each.row_type)
        ends = [getattr(row, "window_end", None) for row in rows]
        last = max((end for end in ends if end is not None), default=None)
        newest: list[Any] = [row for row, end in zip(rows, ends, strict=True) if end in (None, last)]
        clocks = Clocks.of(each.promised["parameters"])
        if newest:
            print_rows(newest, each.row_type, title=each.name, limit=HEAD, clocks=clocks)
