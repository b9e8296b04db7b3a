"""Runs a pipeline on the runner that was asked for, and reports how it goes."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import partial
from typing import Any, cast

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions, _BeamArgumentParser
from apache_beam.runners.runner import PipelineState, create_runner
from privstream import mechanisms, pipelines, transforms
from privstream.pipelines.command import CommandError, RunError, UsageError
from privstream.pipelines.console import STANDARD_ERROR, clock
from privstream.pipelines.runners.flink import (
    FlinkJobOptions,
    check_flink,
    choose_flink,
    prepare_for_checkpoints,
    submitted_job,
)
from privstream.pipelines.runners.local_runner import LOCAL_RUNNER, beam_as_needed, choose_local_runner, without_program
from privstream.pipelines.stores import reach_stores
from privstream.pipelines.terminal import printable
from privstream.transforms.counters import Counters
from privstream.transforms.reading import elements
from privstream.transforms.spill import spilled
from rich.progress import Progress

PRISM_STAGE = "ref_AppliedPTransform_"  # how Prism begins the name of a stage

GRACE_SECONDS = 5
RUNNER_LOGGERS = ("apache_beam", "PrismRunner", elements.__name__)
FRAME = re.compile(r'File "([^"]+)", line \d+, in .*\n +(.*)')
TYPE_NAME = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception): ")
WORKER = re.compile(r"apache_beam/runners/(worker|direct|common)\b")
OURS = tuple(folder for package in (mechanisms, transforms, pipelines) for folder in package.__path__)

OUT_OF_MEMORY = (
    "the run ran out of memory, and no file is half-written. What is remembered grows with items that are not found "
    "yet and with people who have reached their limits, until the run or a period of --renew_every ends: shorter ones "
    "need less, and workers of a cluster share it"
)


def parse_beam_options(arguments: list[str]) -> PipelineOptions:
    """Return Beam's options, with a runner that is named.

    Raises:
        UsageError: an option that neither this command nor Beam knows, or a way to run that gives wrong results.
    """
    known = _BeamArgumentParser(allow_abbrev=False, conflict_handler="resolve", add_help=False, exit_on_error=False)
    for group in PipelineOptions.__subclasses__():
        if group is FlinkJobOptions or group.__module__.startswith("apache_beam."):
            group._add_argparse_args(known)
    try:
        _, unknown = known.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from None
    if unknown:
        raise UsageError(f"unknown option {unknown[0]}; run with --help for the options there are")
    options = PipelineOptions(arguments)
    try:
        reach_stores(arguments, options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    choose_local_runner(options)
    choose_flink(options, arguments)
    name = options.view_as(StandardOptions).runner
    try:
        create_runner(name)
    except (ValueError, TypeError, ImportError, AttributeError):
        rule = "must be a runner that Beam knows and that is installed, such as FnApiRunner, PrismRunner or FlinkRunner"
        raise UsageError(f"--runner {rule}, got {name}") from None
    prepare_for_checkpoints(options)
    check_flink(options)
    return options


def run(
    options: PipelineOptions,
    build: Callable[[beam.Pipeline], Any],
    ends: Sequence[str] = (),
    accepted: Callable[[], None] | None = None,
    first: Callable[[], Counters] | None = None,
) -> Counters:
    """Build and run a pipeline to its end; return its counters.

    Args:
        options: Beam's options.
        build: adds the transforms.
        ends: files that the pipeline writes when all is done; a job that goes on all the same, as one with checkpoints
            does on Flink, is then cancelled, and has no counters.
        accepted: called once the pipeline is built and the runner has taken it.
        first: what is done once the pipeline is built, before it runs; it returns counters of its own, which are added.

    Raises:
        RunError: the run failed; the message is that of the error, without the runner's own words.
        KeyboardInterrupt: Ctrl-C; a job on a Flink cluster has been cancelled.
    """
    runner = options.view_as(StandardOptions).runner
    counters: Counters = {}
    try:
        with (
            clock(f"running on {runner}") as shown,
            _silence(),
            spilled() if runner == LOCAL_RUNNER else nullcontext(),
            submitted_job(options, partial(_tell, shown), ends) as job,
        ):
            pipeline = _new_pipeline(options)
            build(pipeline)
            if first is not None:
                counters = first()
            result = _started(pipeline, options)
            if accepted is not None:
                accepted()
            state = _wait(result, ends)
            if job is not None and state == PipelineState.DONE and ends:  # Beam has cancelled it, the cluster goes on
                _tell(shown, job.cancel())
    except CommandError:
        raise
    except Exception as error:
        raise RunError(without_program(error) or cause(error)) from error
    if state not in (None, PipelineState.DONE):
        raise RunError(f"the run on {runner} ended in state {state}")
    return added([counters, _counted(result)])


def check(options: PipelineOptions, build: Callable[[beam.Pipeline], Any]) -> None:
    """Build a pipeline that does not run: what is wrong with it is raised."""
    build(_new_pipeline(options))


def run_quietly(options: PipelineOptions, build: Callable[[beam.Pipeline], Any]) -> Counters:
    """Build and run a pipeline on the FnApiRunner, in a process that says nothing; return its counters."""
    logging.disable(logging.CRITICAL)
    try:
        pipeline = _new_pipeline(options)
        build(pipeline)
        result = _started(pipeline, options)
        result.wait_until_finish()
    except Exception as error:
        raise RunError(cause(error)) from None
    return _counted(result)


def _new_pipeline(options: PipelineOptions) -> beam.Pipeline:
    """Return a pipeline without its folder for Java's transforms, which a run that is killed would leave."""
    pipeline = beam.Pipeline(options=options)
    shutil.rmtree(pipeline.local_tempdir)
    return pipeline


def _started(pipeline: beam.Pipeline, options: PipelineOptions) -> Any:
    with beam_as_needed(options):
        return pipeline.run()


def _counted(result: Any) -> Counters:
    """Return what a pipeline has counted."""
    return added(
        {(str(counter.key.step).removeprefix(PRISM_STAGE), counter.key.metric.name): counter.committed or 0}
        for counter in result.metrics().query().get("counters", [])
        if counter.key.metric.namespace == "privstream"
    )


def added(parts: Iterable[Counters]) -> Counters:
    """Add up counters of the same stage and name."""
    found: Counters = {}
    for part in parts:
        for place, number in part.items():
            found[place] = found.get(place, 0) + number
    return found


def _wait(result: Any, ends: Sequence[str]) -> str | None:
    """Wait for the end of a run, and return its state; a job that was cancelled at its end is done."""
    if not ends:
        return cast(str | None, result.wait_until_finish())
    threading.Thread(target=_cancel_after, args=(result, ends), daemon=True).start()
    try:
        state = cast(str | None, result.wait_until_finish())
    except Exception:
        if result.state != PipelineState.CANCELLED:
            raise
        state = PipelineState.CANCELLED
    return PipelineState.DONE if state == PipelineState.CANCELLED and all(map(FileSystems.exists, ends)) else state


def _cancel_after(result: Any, ends: Sequence[str]) -> None:
    """Cancel a job that does not end by itself when it has written its last files."""
    while not all(map(FileSystems.exists, ends)):
        time.sleep(1)
    time.sleep(GRACE_SECONDS)
    if not PipelineState.is_terminal(result.state):
        result.cancel()


def _tell(shown: Progress, line: str) -> None:
    """Print a line while the clock runs."""
    shown.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep runners, and workers that start meanwhile, from printing tracebacks, which may quote records.

    Their loggers, and that of dead letters, stay silent after the run: workers in other threads have last words.
    """
    logging.disable(logging.CRITICAL)
    sys.stderr.flush()
    kept = os.dup(STANDARD_ERROR)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            os.dup2(nowhere.fileno(), STANDARD_ERROR)
            yield
    finally:
        os.dup2(kept, STANDARD_ERROR)
        os.close(kept)
        for name in RUNNER_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        logging.disable(logging.NOTSET)


def cause(error: BaseException, *, reading: bool = False) -> str:
    """Return the message of an error, if it is our own, or from before workers started or this process was `reading`.

    Others may quote records.
    """
    message = (str(error).strip().splitlines() or [""])[-1].split(" [while running")[0]
    message = TYPE_NAME.sub("", message)
    text = "".join(traceback.format_exception(error))
    path, source = (FRAME.findall(text) or [("", "")])[-1]
    ours = source.startswith("raise ") and path.startswith(OURS)
    if message and (ours or not (reading or WORKER.search(text))):
        return message
    if _kind(error).endswith("MemoryError"):
        return OUT_OF_MEMORY
    where = f" at `{source}`" if path else ""
    return f"the run failed with {_kind(error)}{where}; --traceback shows more, and may show records"


def _kind(error: BaseException) -> str:
    """Return the name of an error's type, also of one that a worker reported as text."""
    reported = re.findall(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt))\b", str(error), re.MULTILINE)
    return str(reported[-1]) if reported else type(error).__name__
