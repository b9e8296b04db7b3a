"""Runs a pipeline on the runner that was asked for, and reports how it goes."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch
from urllib.parse import urlsplit

import apache_beam as beam
import grpc
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    PipelineOptions,
    PortableOptions,
    PrismRunnerOptions,
    StandardOptions,
    _BeamArgumentParser,
)
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.runner import PipelineState, create_runner
from apache_beam.runners.worker import worker_pool_main
from apache_beam.transforms import environments
from apache_beam.utils import thread_pool_executor
from privstream import mechanisms, pipelines, transforms
from privstream.pipelines.command import CommandError, RunError, UsageError
from privstream.pipelines.runners.flink import FlinkJobOptions, prepare_flink, submitted_job
from privstream.pipelines.stores import reach_stores
from privstream.pipelines.terminal import muted_stderr, printable, spinner
from privstream.transforms.counters import Counters
from privstream.transforms.reading import elements
from privstream.transforms.spill import spilled
from rich.progress import Progress
from typing_extensions import override

HOST = "127.0.0.1"
PINGS = [("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0)]


class LoopbackWorkers(worker_pool_main.BeamFnExternalWorkerPoolServicer):
    """Beam's pool of workers for environment type LOOPBACK, which by itself listens on every interface."""

    @classmethod
    @override
    def start(
        cls, use_process: bool = False, port: int = 0, state_cache_size: int = 0,
        data_buffer_time_limit_ms: int = -1, container_executable: str | None = None,
    ) -> tuple[str, grpc.Server]:  # fmt: skip
        server = grpc.server(thread_pool_executor.shared_unbounded_instance(), options=PINGS)
        bound = server.add_insecure_port(f"{HOST}:{port}")
        pool = cls(use_process, container_executable, state_cache_size, data_buffer_time_limit_ms)
        beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
        server.start()
        return f"{HOST}:{bound}", server


def _started(pipeline: beam.Pipeline) -> Any:
    """Start a pipeline whose workers listen on loopback alone, and whose list of packages to install goes."""
    with TemporaryDirectory(prefix="privstream-") as folder:
        packages = partial(environments.python_sdk_dependencies, tmp_dir=folder)
        with (
            patch.object(worker_pool_main, "BeamFnExternalWorkerPoolServicer", LoopbackWorkers),
            patch.object(environments, "python_sdk_dependencies", packages),
        ):
            return pipeline.run()


LOCAL_RUNNER = "FnApiRunner"


def choose_local_runner(options: PipelineOptions) -> None:
    """Name the runner if it is not, and refuse ways to run that give wrong results, or open ports to everybody.

    *Privacy*: who connects to a port without a password gets the pipeline, its noise key too.
    """
    standard, direct = options.view_as(StandardOptions), options.view_as(DirectOptions)
    name = (standard.runner or LOCAL_RUNNER).rpartition(".")[2].lower()
    prism = options.view_as(PrismRunnerOptions).prism_location
    opens = "opens a port on every interface without a password"
    mode, threads = direct.direct_running_mode, direct.direct_num_workers
    if standard.runner is None or name in ("directrunner", "switchingdirectrunner"):  # which take the one they can have
        standard.runner = LOCAL_RUNNER
    wrong = ""
    if name == "bundlebaseddirectrunner":
        wrong = "runner must not be BundleBasedDirectRunner: it lets time overtake timers, and would write empty files"
    elif mode != "in_memory":
        wrong = f"direct_running_mode must be in_memory: another one {opens}, and charges people wrongly, got {mode}"
    elif threads != 1:
        wrong = f"direct_num_workers must be 1: several workers in one process read outdated state, got {threads}"
    elif options.view_as(PortableOptions).job_endpoint == "embed":
        wrong = f"job_endpoint must not be embed: it {opens}"
    elif options.view_as(FlinkRunnerOptions).flink_submit_uber_jar:
        wrong = f"flink_submit_uber_jar must not be given: it {opens}; use --flink_job_server_jar"
    elif name == "prismrunner" and prism is not None and not urlsplit(prism).scheme and not os.path.isfile(prism):
        wrong = f"prism_location must be a file, got {prism}; deploy/get_prism.sh builds one with Go"
    if wrong:
        raise UsageError(wrong)


PRISM_STAGE = "ref_AppliedPTransform_"  # how Prism begins the name of a stage
GRACE_SECONDS = 5
RUNNER_LOGGERS = ("apache_beam", "PrismRunner", elements.__name__)
FRAME = re.compile(r'File "([^"]+)", line \d+, in .*\n +(.*)')
TYPE_NAME = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception): ")
REPORTED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt))\b", re.MULTILINE)  # by workers, as text
WORKER = re.compile(r"apache_beam/runners/(worker|direct|common)\b")
OURS = tuple(folder for package in (mechanisms, transforms, pipelines) for folder in package.__path__)

OUT_OF_MEMORY = (
    "the run ran out of memory, and no file is half-written. Items and people are remembered until the run or a period "
    "of --renew-every ends: shorter ones need less, and workers of a cluster share it"
)


def parse_beam_options(arguments: list[str]) -> PipelineOptions:
    """Return Beam's options, with a runner that is named; refuse unknown ones, and what gives wrong results."""
    known = _BeamArgumentParser(allow_abbrev=False, conflict_handler="resolve", add_help=False, exit_on_error=False)
    for group in PipelineOptions.__subclasses__():
        if group is FlinkJobOptions or group.__module__.startswith("apache_beam."):
            group._add_argparse_args(known)
    try:
        _, unknown = known.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from None
    if unknown:
        raise UsageError(f"unknown option {unknown[0]}")
    options = PipelineOptions(arguments)
    try:
        reach_stores(arguments, options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    choose_local_runner(options)
    name = options.view_as(StandardOptions).runner
    try:
        create_runner(name)
    except (ValueError, TypeError, ImportError, AttributeError):
        rule = "must be a runner that Beam knows and that is installed, such as FnApiRunner, PrismRunner or FlinkRunner"
        raise UsageError(f"--runner {rule}, got {name}") from None
    prepare_flink(options, arguments)
    return options


def run(
    options: PipelineOptions,
    build: Callable[[beam.Pipeline], Any],
    ends: Sequence[str] = (),
) -> Counters:
    """Build and run a pipeline to its end; return its counters.

    A `RunError` has no words of the runner; at Ctrl-C a job on a Flink cluster has been cancelled.

    Args:
        ends: files that are written when all is done; a job that goes on all the same, as one with checkpoints does on
            Flink, is then cancelled, and has no counters.
    """
    runner = options.view_as(StandardOptions).runner
    try:
        with (
            spinner(f"running on {runner}") as shown,
            _silence(),
            spilled() if runner == LOCAL_RUNNER else nullcontext(),
            submitted_job(options, partial(_tell, shown), ends) as cancel,
        ):
            pipeline = new_pipeline(options)
            build(pipeline)
            result = _started(pipeline)
            state = _wait(result, ends)
            if cancel is not None and state == PipelineState.DONE and ends:  # Beam has, and the cluster goes on
                _tell(shown, cancel())
    except CommandError:
        raise
    except Exception as error:
        raise RunError(cause(error)) from error
    if state not in (None, PipelineState.DONE):
        raise RunError(f"the run on {runner} ended in state {state}")
    return _counted(result)


def run_quietly(options: PipelineOptions, build: Callable[[beam.Pipeline], Any]) -> Counters:
    """Build and run a pipeline on the FnApiRunner, in a process that says nothing; return its counters."""
    logging.disable(logging.CRITICAL)
    try:
        pipeline = new_pipeline(options)
        build(pipeline)
        result = _started(pipeline)
        result.wait_until_finish()
    except Exception as error:
        raise RunError(cause(error)) from None
    return _counted(result)


def new_pipeline(options: PipelineOptions) -> beam.Pipeline:
    """Return a pipeline without its folder for Java's transforms, which a run that is killed would leave."""
    pipeline = beam.Pipeline(options=options)
    shutil.rmtree(pipeline.local_tempdir)
    return pipeline


def _counted(result: Any) -> Counters:
    return added(
        {(str(counter.key.step).removeprefix(PRISM_STAGE), counter.key.metric.name): counter.committed or 0}
        for counter in result.metrics().query().get("counters", [])
        if counter.key.metric.namespace == "privstream"
    )


def added(parts: Iterable[Counters]) -> Counters:
    """Add up counters of the same stage and name."""
    return dict(sum(map(Counter, parts), Counter[tuple[str, str]]()))


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
    shown.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep runners, and workers that start meanwhile, from printing tracebacks, which may quote records.

    Their loggers, and that of dead letters, stay silent after the run: worker threads may still log after the run.
    """
    logging.disable(logging.CRITICAL)
    try:
        with muted_stderr():
            yield
    finally:
        for name in RUNNER_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        logging.disable(logging.NOTSET)


def cause(error: BaseException) -> str:
    """Return the message of an error, if it is our own, or from before workers started: others may quote records."""
    message = (str(error).strip().splitlines() or [""])[-1].split(" [while running")[0]
    message = TYPE_NAME.sub("", message) if re.search(r"\w", message) else ""
    text = "".join(traceback.format_exception(error))
    path, source = (FRAME.findall(text) or [("", "")])[-1]
    ours = source.startswith("raise ") and path.startswith(OURS)
    if message and (ours or not WORKER.search(text)):
        return message
    kind = [type(error).__name__, *REPORTED.findall(str(error))][-1]
    if kind.endswith("MemoryError"):
        return OUT_OF_MEMORY
    where = f" at `{source}`" if path else ""
    return f"the run failed with {kind}{where}; --traceback shows more, and may show records"
