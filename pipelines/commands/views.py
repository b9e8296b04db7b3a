"""`privstream views FILE.yaml`: the views of a monitor, from what its run has published so far."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from privstream.pipelines.command import Command
from privstream.pipelines.console import clock
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.model.question import loaded
from privstream.pipelines.options import add_layers, given_to
from privstream.pipelines.promise import Promise
from privstream.pipelines.report.result import Result, read_result
from privstream.pipelines.run.asked import parameters_of
from privstream.pipelines.run.places import Places
from privstream.pipelines.run.plan import arguments_of, fields_of, shared_out
from privstream.pipelines.run.run import described_views, with_digests
from privstream.pipelines.run.views import answer_views, tables_of, views_of
from privstream.pipelines.sinks.row_files import check_destination, check_new, write_json, write_row_file
from privstream.pipelines.terminal import say
from privstream.pipelines.yaml_file import read_document


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", metavar="FILE.yaml", help="the monitor, as it was when its run was started")
    parser.add_argument("--overwrite", action="store_true", help="replace files of views that exist")
    add_layers(parser)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read what has been published, and write the views into the folder of the output."""
    given = given_to(None, arguments, (), document=read_document(arguments.file))
    with given.errors(), clock("reading what was published"):
        monitor = given.monitor()
        if arguments.overwrite:
            output = monitor.output.model_copy(update={"overwrite": True})
            monitor = monitor.model_copy(update={"output": output})
        if not monitor.views:
            raise WrongKeyError(("views",), "must be given")
        views, unbounded = views_of(monitor), monitor.data.unbounded
        published = Places.of(monitor, unbounded=unbounded)
        places = Places(monitor=monitor, unbounded=False)
        for view in views:
            check_destination(places.rows(view.name), "output")
            if not arguments.overwrite:
                check_new(places.rows(view.name), f"the rows of {view.name}")
        fields = fields_of(monitor)
        own = {name: arguments_of(monitor, name, fields[name]) for name in monitor.questions}
        planned = shared_out(monitor, own, unbounded=unbounded)
        transforms = {each.name: each.transform for each in planned.questions}
        results = {
            name: _published(monitor, name, parameters_of(monitor, question, fields[name]), transforms[name], published)
            for name, question in monitor.questions.items()
        }
        dropped = {name: result.promise.maybe("limits", "dropped") for name, result in results.items()}
        tables = tables_of(monitor, transforms, {name: one.rows for name, one in results.items()}, dropped=dropped)
        found = answer_views(views, tables)
        whole = Promise.read(places.whole)
        sent = {} if unbounded else _destinations(monitor, found, whole)
    for name, table in found.items():
        write_row_file(places.rows(name), table.written_type, table.rows)
    if whole is not None:
        before = whole.maybe("views") or {}
        streamed = {name: each for name, each in before.items() if each.get("output") == name}
        described = with_digests(described_views(monitor, views, found, places), places)
        write_json(whole.path, {**whole.content, "views": {**before, **described, **streamed}})
    say("\n".join(f"{name}: {len(table.rows):,} rows, {places.rows(name)}" for name, table in found.items()))
    for view in views:
        if note := view.note(tables | found):
            say(f"{view.name}: {note}")
    for name, to in sent.items():
        say(loaded("run.reading.send")(to, places.rows(name)))


def _destinations(monitor: Monitor, found: Mapping[str, Any], whole: Promise | None) -> dict[str, Any]:
    """Return where the rows of views are sent, by name.

    Nowhere, where the input has no end: tables and topics have, and keep, what was known when each window closed.

    Raises:
        ValueError: rows cannot be sent there.
    """
    if not monitor.output.send:
        return {}
    if whole is None:
        raise WrongKeyError(("output", "path"), "must have the guarantee of its run")
    run_id, sent = str(whole.number("run_id")), {}
    for name, table in found.items():
        urls = [f"{address}/{name}" for address in monitor.output.send]
        sent[name] = loaded("run.reading.destination")(urls, monitor, run_id, table.written_type, table.key)
        sent[name].check(first=False)
    return sent


def _published(monitor: Monitor, name: str, parameters: Mapping[str, Any], transform: Any, places: Places) -> Result:
    """Return what has been published of a question.

    Raises:
        WrongKeyError, ValueError: there is none yet, or a run with other options has published it.
    """
    result = read_result(places.rows(name))
    own = {
        **parameters,
        **transform.of_files,
        "epsilon": transform.guarantee.epsilon,
        "delta": transform.guarantee.delta,
    }
    own = {key: value for key, value in own.items() if key not in ("public_items", "where")}
    theirs = {key: result.parameters.get(key) for key in own}
    theirs |= {key: getattr(result.guarantee, key) for key in ("epsilon", "delta")}
    if changed := [key for key, value in json.loads(json.dumps(own)).items() if value != theirs[key]]:
        rule = f"must be as in the run that has published {result.path}: {', '.join(changed)} differs"
        raise WrongKeyError(("questions", name), rule)
    return result


COMMAND = Command(
    description="Makes the views of a monitor from all rows that its run has published so far, at no cost: when views "
    "were added to the file, or to draw views of earlier windows of input without an end anew. It reads no events "
    "and no key, and needs the file as it was when the run was started, but for its views.",
    add_arguments=add_arguments,
    run=run,
)
