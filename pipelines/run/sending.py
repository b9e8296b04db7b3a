"""Where rows that are in files are sent on to: tables, topics, and a page for alerts."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from privstream.pipelines.command import RunError
from privstream.pipelines.locations import POSTGRESQL
from privstream.pipelines.run.places import Places
from privstream.pipelines.sinks.destination import SENT, TOO_LARGE, Destination, Several, UnreachableError
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.sinks.webhook import Webhook, has_alerts
from privstream.pipelines.stores import exists
from privstream.pipelines.terminal import say


def destination(
    places: Places, name: str, run_id: str, row_type: type, key: Sequence[str], *, dry_run: bool
) -> Destination | None:
    """Return where the rows of a question or a view are sent, which has been checked; None for nowhere."""
    monitor, found = places.monitor, list[Destination]()
    output, single = monitor.output, monitor.single
    try:
        for address in output.send:
            url = address if single else f"{address}/{name}"
            if url.startswith(POSTGRESQL):
                table = _imported("postgres_table", "postgresql").PostgresTable
                found.append(table(url, run_id, row_type, key, replace=output.overwrite))
            else:
                topic = _imported("kafka_topic", "kafka").KafkaTopic
                found.append(topic(url, run_id, row_type, key, monitor.data.kafka_settings()))
        if output.notify is not None and has_alerts(row_type):
            folder = places.folder if places.unbounded else places.parent
            found.append(Webhook(output.notify, run_id, row_type, key, folder, name))
        if not found:
            return None
        to = found[0] if len(found) == 1 else Several(found)
        if not dry_run:  # the check makes a table that is missing
            to.check(first=not exists(places.guarantee(name) if name in monitor.questions else places.whole))
    except (ValueError, OSError) as error:
        text = str(error).replace("--output", "send", 1)
        raise ValueError(text if single else f"{text} (for {name})") from None
    return to


def _imported(module: str, extra: str) -> Any:
    """Import a module that needs an extra."""
    try:
        return importlib.import_module(f"privstream.pipelines.sinks.{module}")
    except ImportError:
        raise ValueError(f"--send of this kind needs an extra: pip install 'privstream[{extra}]'") from None


def send(to: Destination | None, path: str) -> None:
    """Send the rows of a file when a run has written it, and say so."""
    if to is None:
        return
    rows = read_row_file(path, to.row_type)
    try:
        left_out = to.send(rows)
    except UnreachableError as error:
        raise RunError(f"{error}; all rows are in {path}, and the same run with --overwrite sends them again") from None
    say(to.sent_from(path, {SENT: len(rows) - left_out, TOO_LARGE: left_out}))
