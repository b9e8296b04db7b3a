"""What differs when the input has no end: where events come from, where rows go, and what is promised."""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Mapping
from typing import Any

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from privstream.mechanisms.guarantee_records import guarantee_of
from privstream.pipelines.accounts.run_identity import NOT_SHAPING, VIEWS
from privstream.pipelines.file_formats import DEFAULT_FORMAT
from privstream.pipelines.questions.input_fields import input_fields
from privstream.pipelines.questions.sending import KAFKA, files_option, kafka_settings
from privstream.pipelines.questions.spec import QuestionSpec
from privstream.pipelines.runners.local_runner import LOCAL_RUNNER
from privstream.pipelines.sinks.dead_letter_files import WriteDeadLetterFiles
from privstream.pipelines.sinks.destination import Destination
from privstream.pipelines.sinks.window_files import WriteWindowFiles
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.folder_polls import ARRIVAL, END, split_pattern
from privstream.pipelines.sources.readers import ReadEvents
from privstream.pipelines.sources.watch_events import WatchEvents
from privstream.pipelines.terminal import say

GUARANTEE = "_guarantee.json"
PROMISED = ("unit", "neighbouring", "epsilon", "delta", "horizon")
RUN_ID_NEEDED = "run_id must be given when the input has no end: only a name can distinguish such runs"
KAFKA_ONLY = ((None, None), (None, "jsonl"), (ARRIVAL, None), (ARRIVAL, "jsonl"))
KAFKA_SECONDS = 0.5
INPUT = "input"
"""The option that is watched, where it is events that have no end."""


def is_endless(arguments: argparse.Namespace) -> bool:
    """Tell whether something is read without an end; options that need that are refused without.

    Raises:
        ValueError: naming the option.
    """
    kafka = arguments.input.startswith(KAFKA)
    if kafka and (arguments.watermark, arguments.input_format) not in KAFKA_ONLY:
        raise ValueError("--input of Kafka has JSON objects in order of arrival: leave out watermark and input_format")
    if kafka or arguments.watch is not None:
        return True
    for option in ("watermark", "output_format"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"{option} must be given with --watch only")
    return False


def reader(spec: QuestionSpec, arguments: argparse.Namespace) -> Any:
    """Return what reads the input; it has an end if another option is what is watched.

    Raises:
        ValueError, TypeError, OSError: naming the option or file.
    """
    if spec.watched != INPUT and arguments.input.startswith(KAFKA):
        raise ValueError("--input must have an end, and Kafka has none: all queries are about the same data set")
    fields = input_fields(spec, arguments)
    if not is_endless(arguments) or spec.watched != INPUT:
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


def _kafka(arguments: argparse.Namespace, fields: FieldMapping) -> Any:
    """Return what reads a topic."""
    try:
        module = importlib.import_module("privstream.pipelines.sources.kafka_events")
    except ImportError:
        raise ValueError("--input of Kafka needs an extra: pip install 'privstream[kafka]'") from None
    settings = kafka_settings(arguments)
    return module.ReadKafka(arguments.input, fields, settings, seconds=arguments.watch or KAFKA_SECONDS)


def writers(
    spec: QuestionSpec, arguments: argparse.Namespace, row_type: type, destination: Destination | None
) -> tuple[WriteWindowFiles, WriteDeadLetterFiles | None]:
    """Return what writes rows and dead letters without an end.

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
    rows = WriteWindowFiles(arguments.output, row_type, format, spec.order, destination=destination, option=option)
    return rows, WriteDeadLetterFiles(arguments.dead_letter) if arguments.dead_letter else None


def prepare(options: PipelineOptions) -> None:
    """Set what a runner needs for input without an end."""
    standard = options.view_as(StandardOptions)
    standard.streaming = True
    if standard.runner.rpartition(".")[2] == LOCAL_RUNNER:
        say(f"{LOCAL_RUNNER} writes windows only when the input has ended: use PrismRunner or FlinkRunner")


def guarantee_path(arguments: argparse.Namespace) -> str:
    """Return where the promise goes; in a folder its name begins with `_`, so that who watches it passes over it."""
    if not is_endless(arguments):
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
    return [promised["made_by"]["command"], kept, [getattr(guarantee, name) for name in PROMISED]]


def end_path(arguments: argparse.Namespace) -> str | None:
    """Return the file that says that all windows have been written, if there will be one."""
    return str(FileSystems.join(arguments.output, END)) if is_endless(arguments) else None
