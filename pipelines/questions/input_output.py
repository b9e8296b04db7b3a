"""Where events come from, where rows go, and what differs when the input has no end."""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from privstream.mechanisms.guarantee_records import guarantee_of
from privstream.pipelines.accounts.run_identity import NOT_SHAPING, VIEWS
from privstream.pipelines.command import RunError
from privstream.pipelines.locations import ARRIVAL, DEFAULT_FORMAT
from privstream.pipelines.questions.spec import QuestionSpec
from privstream.pipelines.runners.flink import on_cluster
from privstream.pipelines.runners.local_runner import LOCAL_RUNNER
from privstream.pipelines.sinks.destination import SENT, TOO_LARGE, Destination, Several, UnreachableError
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.sinks.window_files import WriteWindowFiles
from privstream.pipelines.sources.fields import DEFAULT_STREAM, DEFAULT_VALUE, AnyFields, FieldMapping
from privstream.pipelines.sources.folder_polls import END, split_pattern
from privstream.pipelines.sources.frame_files import is_query, save_rows
from privstream.pipelines.sources.readers import ReadEvents
from privstream.pipelines.sources.watch_events import WatchEvents
from privstream.pipelines.terminal import say
from privstream.transforms.events.item_columns import column_names


def input_fields(spec: QuestionSpec, arguments: argparse.Namespace) -> FieldMapping:
    """Return which fields are read; a stream only where the options ask for one, a user where it matters who it is.

    Raises:
        ValueError, TypeError: naming the option.
    """
    stream = getattr(arguments, "stream_field", None)
    if stream is None:
        stream = "" if getattr(arguments, "streams", None) is None else DEFAULT_STREAM
    unread = getattr(arguments, "unit", None) in spec.units_without_users
    if not unread and not arguments.user_field:
        raise ValueError("user_field must not be empty")
    if spec.item and not arguments.item_field:
        raise ValueError("item_field must not be empty")
    if spec.item and getattr(arguments, "separator", None) is not None and len(column_names(arguments.item_field)) > 1:
        raise ValueError("separator must not be given with several columns in item_field")
    return FieldMapping(
        user="" if unread else arguments.user_field,
        item=arguments.item_field if spec.item and _asks_for_items(spec, arguments) else "",
        time=arguments.time_field,
        stream=stream,
        value=_value_field(spec, arguments),
        whole=spec.whole_values,
        optional_value=spec.whole_values,
        value_unit=1.0 if (unit := getattr(arguments, "value_unit", None)) is None else unit,
        time_unit=arguments.time_unit,
        time_format=arguments.time_format,
        time_zone=arguments.time_zone,
        decimal=getattr(arguments, "decimal", None),
        null=tuple(arguments.null or ()),
        trim=bool(arguments.trim),
        encoding=arguments.encoding or "utf-8",
        delimiter=as_delimiter(arguments.delimiter),
        where=getattr(arguments, "where", None),
    )


def as_delimiter(given: str | None) -> str | None:
    """Return what separates fields, which an option may name by a word."""
    return "\t" if given == "tab" else given


def _asks_for_items(spec: QuestionSpec, arguments: argparse.Namespace) -> bool:
    """Tell whether options ask for the item, where a question can do without."""
    return not spec.items_with or any(getattr(arguments, name) is not None for name in spec.items_with)


def _value_field(spec: QuestionSpec, arguments: argparse.Namespace) -> str:
    """Return the field with the number, if one is read."""
    field = getattr(arguments, "value_field", None)
    if field == "":
        raise ValueError("value_field must not be empty")
    if spec.value and (not spec.values_with or getattr(arguments, spec.values_with) is not None):
        return DEFAULT_VALUE if field is None else str(field)
    for option in ("value_field", "value_unit"):  # numbers with a comma may be those of a filter
        if getattr(arguments, option, None) is not None:
            raise ValueError(f"{spec.values_with} must be given with {option}")
    return ""


KAFKA, POSTGRESQL = "kafka://", "postgresql://"


def is_sent(arguments: argparse.Namespace) -> bool:
    """Tell whether the output is no file."""
    return str(arguments.output).startswith((KAFKA, POSTGRESQL))


def with_files(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the options with files as their output: the copy, if rows are sent.

    Raises:
        ValueError: naming the option.
    """
    if is_sent(arguments) != (arguments.copy is not None):
        raise ValueError(
            f"copy must be given with an --output of {KAFKA} or {POSTGRESQL}, and with no other: the same rows as "
            "files, with the guarantee beside them"
        )
    if arguments.kafka_setting and not any(url.startswith(KAFKA) for url in (arguments.input, arguments.output)):
        raise ValueError(f"kafka_setting must be given with an --input or --output of {KAFKA} only")
    if is_sent(arguments) and arguments.output == arguments.input:
        raise ValueError("--output must be another topic than --input")
    return argparse.Namespace(**(vars(arguments) | {"output": arguments.copy or arguments.output}))


def files_option(arguments: argparse.Namespace) -> str:
    """Return the option that names the files, for messages."""
    return "--output" if arguments.copy is None else "--copy"


def destination(
    urls: Sequence[str], arguments: argparse.Namespace, run_id: str, row_type: type, key: Sequence[str]
) -> Destination | None:
    """Return where rows are sent; None for nowhere.

    Args:
        urls: of tables and topics.
        arguments: options of the run.
        run_id: its public name.
        row_type: of the rows.
        key: fields that no two of them have in common.

    Raises:
        ValueError, OSError: naming the option.
    """
    found: list[Destination] = []
    for url in urls:
        if url.startswith(POSTGRESQL):
            table = _imported("postgres_table", "postgresql").PostgresTable
            found.append(table(url, run_id, row_type, key, replace=arguments.overwrite))
        else:
            topic = _imported("kafka_topic", "kafka").KafkaTopic
            found.append(topic(url, run_id, row_type, key, kafka_settings(arguments)))
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
    return sent(destination, {SENT: len(rows) - left_out, TOO_LARGE: left_out}, path)


def sent(destination: Destination, counters: Mapping[str, int], path: str) -> str:
    """Return a line that says how many rows have been sent from the files at a path, and how many cannot be."""
    line, left_out = f"{counters.get(SENT, 0):,} rows sent to {destination.name()}", counters.get(TOO_LARGE, 0)
    return line if not left_out else f"{line}, {left_out:,} are too large for the destination and in {path} alone"


def kafka_settings(arguments: argparse.Namespace) -> Mapping[str, str]:
    """Return the settings of librdkafka.

    Raises:
        ValueError, OSError: naming the option.
    """
    settings = {}
    for setting in arguments.kafka_setting or []:
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
        raise ValueError(f"--output of this kind needs an extra: pip install 'privstream[{extra}]'") from None


GUARANTEE = "_guarantee.json"
PROMISED = ("unit", "neighbouring", "epsilon", "delta", "horizon")
RUN_ID_NEEDED = "run_id must be given when the input has no end: only a name can distinguish such runs"
KAFKA_ONLY = ((None, None), (None, "jsonl"), (ARRIVAL, None), (ARRIVAL, "jsonl"))
KAFKA_SECONDS = 0.5
ROWS_OF_QUERY = "rows of the query.parquet"
OF_FILES = ("watch", "watermark", "input_format", "output_format", "delimiter", "encoding")
"""Options about files and streams, which the rows of a query are not."""

INPUT = "input"
"""The option that is watched, where it is events that have no end."""


def is_unbounded(arguments: argparse.Namespace) -> bool:
    """Tell whether something is read without an end; options that need that are refused without.

    Raises:
        ValueError: naming the option.
    """
    if _is_query(arguments):
        for option in OF_FILES:
            if getattr(arguments, option) is not None:
                raise ValueError(f"{option} must not be given with a query, whose rows are read once")
        return False
    kafka = arguments.input.startswith(KAFKA)
    if kafka and (arguments.watermark, arguments.input_format) not in KAFKA_ONLY:
        raise ValueError("--input of Kafka has JSON objects in order of arrival: leave out watermark and input_format")
    for option in ("delimiter", "encoding"):
        if kafka and getattr(arguments, option) is not None:
            raise ValueError(f"{option} must not be given with Kafka, whose records are JSON in UTF-8")
    if kafka or arguments.watch is not None:
        return True
    for option in ("watermark", "output_format"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"{option} must be given with --watch only")
    return False


def check_workers(arguments: argparse.Namespace, options: PipelineOptions) -> None:
    """Refuse a query whose rows workers could not read: these lie on this machine while the run goes on.

    Raises:
        ValueError: naming the option.
    """
    if getattr(arguments, "query", None) is not None and on_cluster(options):
        raise ValueError(
            "query must not be given with a cluster, whose workers could not read its rows: let the database write "
            "them as Parquet where workers can, and give that as --input"
        )


def _is_query(arguments: argparse.Namespace) -> bool:
    """Tell whether events are the rows of a query."""
    return is_query(arguments.input, getattr(arguments, "query", None))


def reader(
    spec: QuestionSpec, arguments: argparse.Namespace, fields: AnyFields | None = None, folder: str | None = None
) -> Any:
    """Return what reads the input; it has an end if another option is what is watched.

    Args:
        spec: the question.
        arguments: its options.
        fields: what is read, if that is not for this question alone.
        folder: for the rows of a query while the run goes on.

    Raises:
        ValueError, TypeError, OSError: naming the option or file.
    """
    if spec.watched != INPUT and arguments.input.startswith(KAFKA):
        raise ValueError("--input must have an end, and Kafka has none: all queries are about the same data set")
    fields = input_fields(spec, arguments) if fields is None else fields
    if folder is not None and _is_query(arguments):
        path = os.path.join(folder, ROWS_OF_QUERY)
        save_rows(arguments.input, arguments.query, fields, path)
        return ReadEvents(path, fields)
    if not is_unbounded(arguments) or spec.watched != INPUT:
        return ReadEvents(arguments.input, fields, arguments.input_format)
    if arguments.input.startswith(KAFKA):
        return _kafka(arguments, fields)
    return WatchEvents(
        arguments.input,
        fields,
        arguments.input_format,
        seconds=arguments.watch,
        watermark=arguments.watermark or ARRIVAL,
    )


def _kafka(arguments: argparse.Namespace, fields: AnyFields) -> Any:
    """Return what reads a topic."""
    try:
        module = importlib.import_module("privstream.pipelines.sources.kafka_events")
    except ImportError:
        raise ValueError("--input of Kafka needs an extra: pip install 'privstream[kafka]'") from None
    settings = kafka_settings(arguments)
    return module.ReadKafka(arguments.input, fields, settings, seconds=arguments.watch or KAFKA_SECONDS)


def window_writer(
    spec: QuestionSpec, arguments: argparse.Namespace, row_type: type, destination: Destination | None
) -> WriteWindowFiles:
    """Return what writes rows without an end.

    Raises:
        ValueError, TypeError: naming the option.
    """
    option = files_option(arguments)
    folders = {option: arguments.output}
    if not arguments.input.startswith(KAFKA):
        folders[f"--{spec.watched}"] = split_pattern(getattr(arguments, spec.watched))[0]
    if arguments.dead_letter:
        folders["--dead_letter"] = arguments.dead_letter
    taken: dict[str, str] = {}
    for option, folder in folders.items():
        other = taken.setdefault(os.path.realpath(folder), option)
        if other != option:
            raise ValueError(f"{option} must be another folder than {other}, got {folder}")
    format = arguments.output_format or DEFAULT_FORMAT
    return WriteWindowFiles(arguments.output, row_type, format, spec.order, destination=destination, option=option)


def prepare(options: PipelineOptions) -> None:
    """Set what a runner needs for input without an end."""
    standard = options.view_as(StandardOptions)
    standard.streaming = True
    if standard.runner.rpartition(".")[2] == LOCAL_RUNNER:
        say(f"{LOCAL_RUNNER} writes windows only when the input has ended: use PrismRunner or FlinkRunner")


def guarantee_path(arguments: argparse.Namespace) -> str:
    """Return where the promise goes; in a folder its name begins with `_`, so that who watches it passes over it."""
    if not is_unbounded(arguments):
        return f"{arguments.output}.guarantee.json"
    return str(FileSystems.join(arguments.output, GUARANTEE))


def check_same_promise(path: str, promised: Mapping[str, Any], option: str) -> None:
    """Refuse a folder whose files were published under another promise; a run that starts again promises the same.

    Raises:
        ValueError: naming the file.
    """
    if not FileSystems.exists(path):
        return
    try:
        with FileSystems.open(path) as stream:
            found = _shaping(json.load(stream))
    except (ValueError, TypeError, KeyError, AttributeError):
        found = []
    if found != _shaping(json.loads(json.dumps(promised))):
        raise ValueError(f"{option} must be a folder of this run, but {path} promises something else: use a new folder")


def _shaping(promised: Mapping[str, Any]) -> list[Any]:
    """Return what two promises have in common that are about one run, in the words of any version."""
    given, guarantee = promised["parameters"], guarantee_of(promised)
    kept = {name: value for name, value in given.items() if name not in NOT_SHAPING or name in ("run_id", *VIEWS)}
    if kept.get("unit") == "user":
        kept["unit"] = "person"  # as it is called now
    return [promised["made_by"]["command"], kept, [getattr(guarantee, name) for name in PROMISED]]


def end_paths(outputs: Iterable[argparse.Namespace]) -> list[str]:
    """Return the files that say of outputs that all windows have been written, where there will be some."""
    return [str(FileSystems.join(each.output, END)) for each in outputs if is_unbounded(each)]
