"""The runner on this machine: by default, and instead of Beam's switch between several, the in-process FnApiRunner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import grpc
from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    PipelineOptions,
    PortableOptions,
    PrismRunnerOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker import worker_pool_main
from apache_beam.transforms import environments
from apache_beam.utils import thread_pool_executor
from privstream.pipelines.command import UsageError
from privstream.pipelines.terminal import say
from typing_extensions import override

HOST = "127.0.0.1"
PINGS = [("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0)]


class LoopbackWorkers(worker_pool_main.BeamFnExternalWorkerPoolServicer):
    """Beam's pool of workers for environment type LOOPBACK, which by itself listens on every interface."""

    @classmethod
    @override
    def start(
        cls,
        use_process: bool = False,
        port: int = 0,
        state_cache_size: int = 0,
        data_buffer_time_limit_ms: int = -1,
        container_executable: str | None = None,
    ) -> tuple[str, grpc.Server]:
        server = grpc.server(thread_pool_executor.shared_unbounded_instance(), options=PINGS)
        bound = server.add_insecure_port(f"{HOST}:{port}")
        pool = cls(use_process, container_executable, state_cache_size, data_buffer_time_limit_ms)
        beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
        server.start()
        return f"{HOST}:{bound}", server


@contextmanager
def beam_as_needed(options: PipelineOptions) -> Iterator[None]:
    """Let pipelines that are started meanwhile do what no option of Beam says.

    Workers listen on loopback alone. Those of FnApiRunner cache no state by default: to weigh a value Beam goes through
    all modules of the process. And the folder with lists of packages to install, which Beam would leave, goes.
    """
    cache = options.view_as(WorkerOptions).max_cache_memory_usage_mb
    packages: Any = environments.python_sdk_dependencies
    with TemporaryDirectory(prefix="privstream-") as folder:
        local = options.view_as(StandardOptions).runner == LOCAL_RUNNER
        listed = (lambda options: ()) if local else partial(packages, tmp_dir=folder)
        with (
            patch.object(worker_pool_main, "BeamFnExternalWorkerPoolServicer", LoopbackWorkers),
            patch.object(worker_handlers, "STATE_CACHE_SIZE_MB", cache),
            patch.object(environments, "python_sdk_dependencies", listed),
        ):
            yield


LOCAL_RUNNER = "FnApiRunner"
SWITCHES = ("directrunner", "switchingdirectrunner")
"""Runners of Beam that take Prism or, if it cannot be had or fails at once, another one, and do not say which."""

BUILD_PRISM = "deploy/get_prism.sh builds it with Go; give its path by --prism_location"
DOWNLOADS = {
    "Unable to fetch remote prism binary": ("Prism", BUILD_PRISM),
    "Unable to fetch remote job server jar": (
        "the job server of Flink",
        "deploy/get_flink_job_server.sh makes one; give its path by --flink_job_server_jar",
    ),
}
"""What Beam says where it cannot download a program: the program, and what to do."""


def choose_local_runner(options: PipelineOptions) -> None:
    """Name the runner if it is not, and refuse ways to run that give wrong results, or open ports to everybody.

    *Privacy*: who connects to a port without a password gets the pipeline, its noise key too.
    """
    standard, direct = options.view_as(StandardOptions), options.view_as(DirectOptions)
    name = (standard.runner or LOCAL_RUNNER).rpartition(".")[2].lower()
    prism = options.view_as(PrismRunnerOptions).prism_location
    opens = "opens a port on every interface without a password"
    mode, threads = direct.direct_running_mode, direct.direct_num_workers
    if standard.runner is None or name in SWITCHES:
        if standard.runner is not None:
            say(f"{standard.runner} would choose a runner: taking {LOCAL_RUNNER}")
        standard.runner = LOCAL_RUNNER
    wrong = ""
    if name == "bundlebaseddirectrunner":
        wrong = "runner must not be BundleBasedDirectRunner: it lets time overtake timers, and would write empty files"
    elif mode != "in_memory":
        ports = f"the others {opens.replace('opens a port', 'open ports')}"
        wrong = f"direct_running_mode must be in_memory: {ports}, and charge people wrongly, got {mode}"
    elif threads != 1:
        wrong = f"direct_num_workers must be 1: several workers in one process read outdated state, got {threads}"
    elif options.view_as(PortableOptions).job_endpoint == "embed":
        wrong = f"job_endpoint must not be embed: it {opens}"
    elif options.view_as(FlinkRunnerOptions).flink_submit_uber_jar:
        wrong = f"flink_submit_uber_jar must not be given: it {opens}; use --flink_job_server_jar"
    elif name == "prismrunner" and prism is not None and not urlsplit(prism).scheme and not os.path.isfile(prism):
        wrong = f"prism_location must be a file, got {prism}; {BUILD_PRISM}"
    if wrong:
        raise UsageError(wrong)


def without_program(error: BaseException) -> str | None:
    """Say what to do if an error is that Prism, or the job server of Flink, cannot be downloaded."""
    for told, (program, instead) in DOWNLOADS.items():
        if told in str(error):
            reason = str(error).rpartition("<urlopen error")[2].partition(">")[0].strip() or "no answer"
            return f"{program}, which Beam downloads when it is first used, cannot be had ({reason}): {instead}"
    return None
