"""What Flink needs besides Beam: its options, whether the cluster suits, and the job that was submitted to it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from privstream.pipelines.command import UsageError
from privstream.pipelines.sinks.writers import LET_GO_SECONDS
from typing_extensions import override

WITH_CHECKPOINTS: Mapping[str, Any] = {
    "finish_bundle_before_checkpointing": True,  # without it output of a bundle that is cut short comes too late
    "externalized_checkpoints_enabled": True,
    "retain_externalized_checkpoints_on_cancellation": True,
    "checkpoint_timeout_millis": 120_000,  # a checkpoint that hangs restarts the job; Flink's default: ten minutes
    "min_pause_between_checkpoints": 1_000,  # without it one may refer to files of the last one that are gone, and hang
    "operator_chaining": "false",  # chained steps go by other names in a savepoint of another parallelism
    "max_bundle_time_mills": 100,  # a bundle's end passes the watermark on: Beam's own second adds up over ten steps
}
"""What makes checkpoints lose nothing, outlive their job, and fit another parallelism; and short bundles."""

FLAGS = tuple(name for name, value in WITH_CHECKPOINTS.items() if value is True)
NUMBERS = (
    *("checkpointing_interval", "shutdown_sources_after_idle_ms", "max_bundle_size"),
    *(name for name, value in WITH_CHECKPOINTS.items() if type(value) is int),
)


class FlinkJobOptions(PipelineOptions):
    """What the Flink runner takes besides `--flink_master` and `--parallelism`; other runners ignore it."""

    @classmethod
    @override
    def _add_argparse_args(cls, parser: Any) -> None:
        for name in NUMBERS:
            parser.add_argument(f"--{name}", type=int)
        for name in (*FLAGS, "allow_non_restored_state"):
            parser.add_argument(f"--{name}", default=False, action="store_true")
        parser.add_argument("--operator_chaining", choices=["true", "false"])
        parser.add_argument("--savepoint_path")


LOCAL_MASTERS = ("[local]", "[auto]")
ANSWER_SECONDS = 5
UNANSWERED = (OSError, HTTPException, ValueError, KeyError, TypeError)

FLINK = "1.19"
"""The release of Flink that is taken if none is named: the one that deployments and tests have."""


def prepare_flink(options: PipelineOptions, arguments: Sequence[str]) -> None:
    """Set what nobody has said of checkpoints and of the release: Beam takes its newest, which nothing here tests."""
    given = options.view_as(FlinkJobOptions)
    for name, value in WITH_CHECKPOINTS.items() if given.checkpointing_interval is not None else ():
        if getattr(given, name) is None or getattr(given, name) is False:
            setattr(given, name, value)
    if _on_flink(options):
        if not any(each.partition("=")[0] == "--flink_version" for each in arguments):
            options.view_as(FlinkRunnerOptions).flink_version = FLINK
        check_flink(options)


def check_flink(options: PipelineOptions) -> None:
    """Check Java, the job server's jar, and that a cluster of the right version answers; say how to get them."""
    flink, home = options.view_as(FlinkRunnerOptions), os.environ.get("JAVA_HOME")
    jar, master, version = flink.flink_job_server_jar, flink.flink_master, flink.flink_version
    if shutil.which("java") is None:
        where = f"; JAVA_HOME is {home}, put its bin folder on the PATH" if home else ""
        raise UsageError(f"Java must be installed to submit to Flink: install a Java runtime, 11 or 17{where}")
    if jar is not None and not urlsplit(jar).scheme and not Path(jar).is_file():
        rule = f"must be a file, got {jar}; deploy/get_flink_job_server.sh prints the path of one"
        raise UsageError(f"flink_job_server_jar {rule}")
    if not on_cluster(options):
        return
    try:
        runs = str(ask_cluster(master, "/config")["flink-version"])
    except UNANSWERED as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        what = "start one with deploy/flink_cluster.py start, or mend host and port"
        rule = f"must be the address of a Flink cluster, got {master} ({reason}): {what}"
        raise UsageError(f"flink_master {rule}") from None
    release = runs.rpartition(".")[0]
    if release != version:
        rule = f"that of the cluster: {master} runs Flink {runs}, got {version}"
        raise UsageError(f"flink_version must be {rule}; the job server must be made for {release} too")
    if options.view_as(PortableOptions).environment_type == "LOOPBACK":
        use = "workers would end with this command; use EXTERNAL, with a worker pool beside each task manager"
        raise UsageError(f"environment_type must not be LOOPBACK on a cluster: {use}")


def on_cluster(options: PipelineOptions) -> bool:
    """Tell whether a pipeline is to run on a Flink cluster, and not inside its job server."""
    return _on_flink(options) and options.view_as(FlinkRunnerOptions).flink_master not in LOCAL_MASTERS


def _on_flink(options: PipelineOptions) -> bool:
    return (options.view_as(StandardOptions).runner or "").rpartition(".")[2] == "FlinkRunner"


def ask_cluster(master: str, path: str, method: str = "GET") -> Any:
    """Return what a cluster's REST interface answers; one of `UNANSWERED` is raised if it does not."""
    address = master if "://" in master else f"http://{master}"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"{address}{path}", method=method)
    with direct.open(request, timeout=ANSWER_SECONDS) as answer:
        return json.loads(answer.read())


CANCEL_SECONDS, POLL_SECONDS = 60, 0.2
ENDED = ("FINISHED", "CANCELED", "FAILED")
"""States of jobs that have ended."""


@contextmanager
def submitted_job(
    options: PipelineOptions, tell: Callable[[str], None], writes: Sequence[str] = ()
) -> Iterator[Callable[[], str] | None]:
    """Give what cancels the job that is submitted to a cluster meanwhile, and do so at Ctrl-C; None elsewhere.

    *Privacy*: a job whose command is gone goes on. So a digest of what a stream writes is in its name, and while it
    runs no second one is submitted that writes the same; see `writers.alone_in`.

    A job server of `deploy/get_flink_job_server.sh` ends with this process. At Ctrl-C `tell` gets a line on what became
    of the job.
    """
    os.environ["PRIVSTREAM_JOB_SERVER_OWNER"] = str(os.getpid())
    if not on_cluster(options):
        yield None
        return
    named, master = options.view_as(GoogleCloudOptions), options.view_as(FlinkRunnerOptions).flink_master
    if writes:
        places = [path if urlsplit(path).scheme else os.path.realpath(path) for path in writes]
        output = blake2b("\n".join(places).encode(), digest_size=4).hexdigest()
        _refuse_second(master, output)
        named.job_name = f"{named.job_name} {output}"
    named.job_name = f"{named.job_name} {secrets.token_hex(4)}"
    cancel = partial(_cancel, master, named.job_name)
    try:
        yield cancel
    except BaseException as error:
        if not _interrupted(error):
            raise
        tell(cancel())
        raise KeyboardInterrupt from error


def _interrupted(error: BaseException | None) -> bool:
    """Tell whether an error is Ctrl-C, or came up while that was handled: Beam's clients raise errors of their own."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or _interrupted(error.__context__))


def _refuse_second(master: str, output: str) -> None:
    """Refuse a job while another one writes the same; one that ends is waited for."""
    deadline = time.monotonic() + LET_GO_SECONDS
    with suppress(*UNANSWERED):
        while running := _job(master, lambda job: f" {output} " in job["name"] and job["state"] not in ENDED):
            if time.monotonic() > deadline:
                rule = "end it first, for two at once would publish other answers with the same noise"
                raise UsageError(f"job {running} on {master} writes into the same folder: {rule}")
            time.sleep(POLL_SECONDS)


def _job(master: str, suits: Callable[[Any], bool]) -> str | None:
    return next((job["jid"] for job in ask_cluster(master, "/jobs/overview")["jobs"] if suits(job)), None)


def _cancel(master: str, name: str) -> str:
    """End the job of a name, wait until it has ended, and say what became of it; its last checkpoint stays."""
    try:
        job = _job(master, lambda job: bool(job["name"] == name))
    except UNANSWERED:
        return "the cluster does not answer, so that the job may go on there: cancel it on Flink's page"
    if job is None:
        return "no job has begun on the cluster"
    deadline = time.monotonic() + CANCEL_SECONDS
    while time.monotonic() < deadline:
        with suppress(*UNANSWERED):
            if ask_cluster(master, f"/jobs/{job}")["state"] in ENDED:
                return f"job {job} has ended on the cluster; its last checkpoint stays"
            ask_cluster(master, f"/jobs/{job}?mode=cancel", "PATCH")
        time.sleep(POLL_SECONDS)
    return f"the cluster has not confirmed that job {job} has ended: cancel it on Flink's page"
