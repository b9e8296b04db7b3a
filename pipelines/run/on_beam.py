"""How questions are answered by a pipeline of Beam."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.options import Execution
from privstream.pipelines.run.asked import Asked
from privstream.pipelines.run.pipeline import EventPipeline, PublishedView, letters_to, workers_of
from privstream.pipelines.run.places import Places
from privstream.pipelines.run.reading import INPUT, check_query, reader
from privstream.pipelines.run.run import shared_fields
from privstream.pipelines.run.views_stream import FollowView
from privstream.pipelines.runners import launch
from privstream.pipelines.runners.flink import name_job
from privstream.pipelines.sinks.window_files import WriteWindowFiles
from privstream.pipelines.sources.fields import FieldMapping


def options_of(monitor: Monitor, execution: Execution) -> PipelineOptions:
    """Return Beam's options.

    Raises:
        UsageError: see `launch.parse_beam_options`.
    """
    options = launch.parse_beam_options(list(execution.beam))
    word = next(iter(monitor.questions.values())).info.word if monitor.single else "run"
    to = "" if monitor.output.path == "-" else f" to {os.path.basename(os.path.normpath(monitor.output.path))}"
    name_job(options, f"{word}{to}")
    return options


def reader_of(
    monitor: Monitor,
    fields: Mapping[str, FieldMapping],
    options: PipelineOptions,
    execution: Execution,
    folder: str,
) -> tuple[Any, int]:
    """Return what reads for all questions, and how many processes may share the work.

    Raises:
        ValueError, TypeError, OSError: naming the option or the file.
    """
    check_query(monitor.data, options)
    infos = [each.info for each in monitor.questions.values()]
    if monitor.data.unbounded and not monitor.single and any(info.watched != INPUT for info in infos):
        raise ValueError("input must have an end where questions are about one data set")
    read = reader(infos[0], monitor.data, shared_fields(fields), folder)
    return read, workers_of(execution.workers, options, read)


def pipeline_of(
    monitor: Monitor,
    read: Any,
    asked: tuple[Asked, ...],
    workers: int,
    streamed: Sequence[Any],
    sent: Mapping[str, Any],
    places: Places,
) -> EventPipeline:
    """Return what reads, answers and writes."""
    views = []
    for each in streamed:
        row_types = {one.name: one.row_type for one in asked if one.name in each.tables}
        write = WriteWindowFiles(
            places.rows(each.name),
            each.table.written_type,
            places.format,
            each.table.order,
            destination=sent[each.name],
            option="output",
        )
        follow = FollowView(each, row_types)
        views.append(PublishedView(name=each.name, questions=tuple(row_types), follow=follow, write=write))
    return EventPipeline(
        unbounded=places.unbounded,
        read=read,
        fields=read.fields,
        questions=asked,
        letters=letters_to(monitor.output.dead_letter, unbounded=places.unbounded),
        workers=workers,
        views=tuple(views),
    )
