"""Rows that go to a table or a topic: they are written into files first, and sent from there."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privstream.pipelines.command import RunError
from privstream.pipelines.questions.spec import QuestionSpec
from privstream.pipelines.sinks.destination import SENT, TOO_LARGE, Destination, UnreachableError
from privstream.pipelines.sinks.row_files import read_row_file

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


def destination(spec: QuestionSpec, arguments: argparse.Namespace, run_id: str, row_type: type) -> Destination | None:
    """Return where rows are sent, if they are.

    Raises:
        ValueError, OSError: naming the option.
    """
    if not is_sent(arguments):
        return None
    if arguments.output.startswith(POSTGRESQL):
        table = _imported("postgres_table", "postgresql").PostgresTable
        found: Destination = table(arguments.output, run_id, row_type, spec.key, replace=arguments.overwrite)
        return found
    topic = _imported("kafka_topic", "kafka").KafkaTopic
    found = topic(arguments.output, run_id, row_type, spec.key, kafka_settings(arguments))
    return found


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
