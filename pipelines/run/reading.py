"""Where events come from, where rows go, and what differs when the input has no end."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from privstream.pipelines.command import RunError
from privstream.pipelines.locations import ARRIVAL, POSTGRESQL
from privstream.pipelines.model.data import Data
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.model.question import QuestionInfo
from privstream.pipelines.runners.flink import on_cluster
from privstream.pipelines.runners.local_runner import LOCAL_RUNNER
from privstream.pipelines.sinks.destination import SENT, TOO_LARGE, Destination, Several, UnreachableError
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.sinks.webhook import Webhook, has_alerts
from privstream.pipelines.sources.fields import AnyFields
from privstream.pipelines.sources.frame_files import save_rows
from privstream.pipelines.sources.readers import ReadEvents
from privstream.pipelines.sources.watch_events import WatchEvents
from privstream.pipelines.stores import exists, opened
from privstream.pipelines.terminal import say


def destination(
    urls: Sequence[str], monitor: Monitor, run_id: str, row_type: type, key: Sequence[str], folder: str, name: str
) -> Destination | None:
    """Return where rows are sent; None for nowhere.

    Args:
        urls: of tables and topics.
        monitor: with settings of Kafka, and whether rows are replaced.
        run_id: the public name of the run.
        row_type: of the rows.
        key: fields that no two of them have in common.
        folder: of the rows, for marks of alerts that have been posted.
        name: of the question or view.

    Raises:
        ValueError, OSError: naming the option.
    """
    found: list[Destination] = []
    for url in urls:
        if url.startswith(POSTGRESQL):
            table = _imported("postgres_table", "postgresql").PostgresTable
            found.append(table(url, run_id, row_type, key, replace=monitor.output.overwrite))
        else:
            topic = _imported("kafka_topic", "kafka").KafkaTopic
            found.append(topic(url, run_id, row_type, key, kafka_settings(monitor.data)))
    if monitor.output.notify is not None and has_alerts(row_type):
        found.append(Webhook(monitor.output.notify, run_id, row_type, key, folder, name))
    return None if not found else found[0] if len(found) == 1 else Several(found)


def send(destination: Destination, path: str) -> str:
    """Send the rows of a file when a run has written it; return a line that says so.

    Raises:
        RunError: they cannot be sent; the file stays.
    """
    rows = read_row_file(path, destination.row_type)
    try:
        left_out = destination.send(rows)
    except UnreachableError as error:
        raise RunError(f"{error}; all rows are in {path}, and the same run with --overwrite sends them again") from None
    return destination.sent_from(path, {SENT: len(rows) - left_out, TOO_LARGE: left_out})


def kafka_settings(data: Data) -> Mapping[str, str]:
    """Return the settings of librdkafka.

    Raises:
        ValueError, OSError: naming the option.
    """
    settings = {}
    for setting in data.kafka_setting:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"kafka_setting must be NAME=VALUE or NAME=@FILE, got {name}")
        settings[name] = Path(value[1:]).read_text().strip() if value.startswith("@") else value
    return settings


def _imported(module: str, extra: str) -> Any:
    """Import a module that needs an extra."""
    try:
        return importlib.import_module(f"privstream.pipelines.sinks.{module}")
    except ImportError:
        raise ValueError(f"--send of this kind needs an extra: pip install 'privstream[{extra}]'") from None


KAFKA_SECONDS = 0.5
INPUT = "input"
"""The option that is watched, where it is events that have no end."""

ROWS_OF_QUERY = "rows of the query.parquet"


def bounded_input(data: Data, fields: AnyFields, folder: str) -> tuple[str, AnyFields, str | None]:
    """Return the files to be read, what is read of them, and their format; rows of a query are saved in a folder.

    Raises:
        ValueError, TypeError, OSError: naming the option.
    """
    if data.query is None:
        return data.input, fields, data.input_format
    path = os.path.join(folder, ROWS_OF_QUERY)
    save_rows(data.input, data.query, fields, path)
    return path, fields, None


def reader(info: QuestionInfo, data: Data, fields: AnyFields, folder: str) -> Any:
    """Return what reads the input; it has an end if another option is what is watched.

    Args:
        info: of a question.
        data: where events are.
        fields: what is read of them.
        folder: for the rows of a query while the run goes on.

    Raises:
        ValueError, TypeError, OSError: naming the option or file.
    """
    if info.watched != INPUT and data.from_kafka:
        raise ValueError("input must have an end, and Kafka has none: all queries are about the same data set")
    if not data.unbounded or info.watched != INPUT:
        return ReadEvents(*bounded_input(data, fields, folder))
    if data.from_kafka:
        return _kafka(data, fields)
    return WatchEvents(
        data.input, fields, data.input_format, seconds=data.watch or KAFKA_SECONDS, watermark=data.watermark or ARRIVAL
    )


def _kafka(data: Data, fields: AnyFields) -> Any:
    """Return what reads a topic."""
    try:
        module = importlib.import_module("privstream.pipelines.sources.kafka_events")
    except ImportError:
        raise ValueError("input of Kafka needs an extra: pip install 'privstream[kafka]'") from None
    return module.ReadKafka(data.input, fields, kafka_settings(data), seconds=data.watch or KAFKA_SECONDS)


def check_query(data: Data, options: PipelineOptions) -> None:
    """Refuse a query whose rows workers could not read: these lie on this machine while the run goes on.

    Raises:
        ValueError: naming the option.
    """
    if data.query is not None and on_cluster(options):
        raise ValueError(
            "query must not be given with a cluster, whose workers could not read its rows: let the database write "
            "them as Parquet where workers can, and give that as input"
        )


def prepare(options: PipelineOptions) -> None:
    """Set what a runner needs for input without an end."""
    standard = options.view_as(StandardOptions)
    standard.streaming = True
    if standard.runner.rpartition(".")[2] == LOCAL_RUNNER:
        say(
            f"{LOCAL_RUNNER} writes windows only when the input has ended, and without --end at most the first 512 "
            "of a question that publishes every window: use PrismRunner or FlinkRunner"
        )


def check_same_promise(path: str, promised: Mapping[str, Any], option: str) -> None:
    """Refuse a folder whose files were published under another promise; a run that starts again promises the same.

    Raises:
        ValueError: naming the file.
    """
    if not exists(path):
        return
    own = json.loads(json.dumps(promised))
    try:
        with opened(path) as stream:
            found = json.load(stream)
        same = _of_run(own) == _of_run(found)
        before, given = found["parameters"], own["parameters"]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(
            f"{option} must be a folder of this run, but {path} cannot be read: use a new folder"
        ) from None
    if not same:
        differing = [name for name in {**given, **before} if given.get(name) != before.get(name)]
        raise ValueError(
            f"{option} must be a folder of this run, but {path} is of another one, which differs in "
            f"{', '.join(differing) or 'what is read or drawn'}: undo that change, or give another run_id and a new "
            "folder"
        )


def _of_run(promised: Mapping[str, Any]) -> list[Any]:
    """Return what the guarantee files of a run have in common each time that it starts."""
    return [promised["made_by"]["command"], promised["parameters"]["run_id"], promised["release"]]
