"""`privstream views FILE.yaml`: the views of a monitor, from what its run has published so far."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.monitor.monitor_file import VIEWS, MonitorFile, Output, Question, read_monitor
from privstream.pipelines.monitor.plan_command import shared_out
from privstream.pipelines.monitor.run_command import (
    described_views,
    destinations_of_views,
    whole_path,
    with_digests,
)
from privstream.pipelines.monitor.views import Table, View, answer_views, tables_of
from privstream.pipelines.monitor.views_file import read_views
from privstream.pipelines.promise import Promise
from privstream.pipelines.questions.arguments import settled
from privstream.pipelines.questions.input_end import is_unbounded
from privstream.pipelines.questions.input_output import send
from privstream.pipelines.questions.options import options_of
from privstream.pipelines.report.result import Result, read_result
from privstream.pipelines.sinks.destination import Destination
from privstream.pipelines.sinks.row_files import check_destination, check_new, write_json, write_row_file
from privstream.pipelines.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", metavar="FILE.yaml", help="the monitor, as it was when its run was started")
    parser.add_argument("--overwrite", action="store_true", help="replace files of views that exist")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read what has been published, and write the views into the folder of the output."""
    with tempfile.TemporaryDirectory(prefix="privstream-") as folder:
        try:
            with clock("reading what was published"):
                monitor = read_monitor(arguments.file, folder)
                views, output = read_views(monitor), monitor.output
                if not views or output is None:
                    raise monitor.document.error((), "views and output must be given")
                paths = {
                    view.name: os.path.join(output.folder, output.name(view.name, unbounded=False)) for view in views
                }
                for name, path in paths.items():
                    check_destination(path, "output.folder")
                    if not arguments.overwrite:
                        check_new(path, f"the rows of {name}")
                transforms = {each.name: each.transform for each in shared_out(monitor).questions}
                results = {each.name: _published(monitor, each, transforms[each.name]) for each in monitor.questions}
                rows = {name: result.rows for name, result in results.items()}
                dropped = {name: result.promise.maybe("limits", "dropped") for name, result in results.items()}
                tables = tables_of(monitor, transforms, rows, dropped=dropped)
                found = answer_views(views, tables)
                sent = _sent_anew(monitor, views, found, output, overwrite=arguments.overwrite)
        except (ValueError, TypeError, OSError, OverflowError) as error:
            raise UsageError(str(error)) from error
    for name, table in found.items():
        write_row_file(paths[name], table.written_type, table.rows)
    _describe(output, described_views(monitor, views, found, output, unbounded=False))
    say("\n".join(f"{name}: {len(table.rows):,} rows, {paths[name]}" for name, table in found.items()))
    for view in views:
        if note := view.note(tables | found):
            say(f"{view.name}: {note}")
    for name, to in sent.items():
        say(send(to, paths[name]))


def _sent_anew(
    monitor: MonitorFile, views: Sequence[View], found: Mapping[str, Table], output: Output, *, overwrite: bool
) -> dict[str, Destination]:
    """Return where the rows of views are sent, by name.

    Nowhere, where the input has no end: tables and topics have, and keep, what was known when each window closed.

    Raises:
        UsageError, ValueError: rows cannot be sent there.
    """
    options = monitor.questions[0].options
    if is_unbounded(options) or not output.sent_to:
        return {}
    whole = Promise.read(whole_path(output.folder))
    if whole is None:
        raise ValueError(f"output.folder must have the guarantee of its run, {whole_path(output.folder)}")
    run_id = str(whole.number("parameters", "run_id"))
    common = argparse.Namespace(run_id=run_id, overwrite=overwrite, dry_run=False)
    sent = destinations_of_views(views, found, common, options, output)
    return {name: to for name, to in sent.items() if to is not None}


def _describe(output: Output, described: Mapping[str, Mapping[str, Any]]) -> None:
    """Let the guarantee file of the whole name the files, but for views that a run goes on to publish."""
    whole = Promise.read(whole_path(output.folder))
    if whole is None:
        return
    before = whole.maybe(VIEWS) or {}
    streamed = {name: each for name, each in before.items() if each.get("output") == name}
    views = {**before, **with_digests(described, output.folder, unbounded=False), **streamed}
    write_json(whole.path, {**whole.content, VIEWS: views})


def _published(monitor: MonitorFile, question: Question, transform: Any) -> Result:
    """Return what has been published of a question.

    Raises:
        UsageError, ValueError: there are none yet, or a run with other options has published them.
    """
    assert monitor.output is not None
    name = monitor.output.name(question.name, unbounded=is_unbounded(question.options))
    result = read_result(os.path.join(monitor.output.folder, name))
    if changed := _changed(question, transform, result):
        message = f"must be as in the run that has published {result.path}: {', '.join(changed)} differs"
        raise monitor.document.error(("questions", question.name), message)
    return result


def _changed(question: Question, transform: Any, result: Result) -> list[str]:
    """Return the options that a run had otherwise, and what it promised otherwise."""
    names = [option.name for option in options_of(question.spec) if option.name not in question.shown]
    given = settled(question.spec, question.options)
    own = {name: getattr(given, name, None) for name in names} | {"item_field": getattr(given, "item_field", None)}
    own |= {name: getattr(transform.guarantee, name) for name in ("epsilon", "delta")} | transform.of_files
    theirs = {name: result.parameters.get(name) for name in own}
    theirs |= {name: getattr(result.guarantee, name) for name in ("epsilon", "delta")}
    return [name for name, value in json.loads(json.dumps(own)).items() if value != theirs[name]]


COMMAND = Command(
    description="Makes the views of a monitor from all rows that its run has published so far, at no cost: when views "
    "were added to the file, or to draw views of earlier windows of input without an end anew. It reads no events "
    "and no key, and needs the file as it was when the run was started, but for its views.",
    add_arguments=add_arguments,
    run=run,
)
