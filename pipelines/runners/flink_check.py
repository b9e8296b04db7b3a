"""Looks, before a pipeline goes to Flink, whether what it needs is there, and says what to do if it is not."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions, PortableOptions, StandardOptions
from privstream.pipelines.command import UsageError

LOCAL_MASTERS = ("[local]", "[auto]")
ANSWER_SECONDS = 5


def check_flink(options: PipelineOptions) -> None:
    """Check Java, the job server's jar, and that a cluster of the right version answers.

    Raises:
        UsageError: what is missing, and how to get it.
    """
    if not _on_flink(options):
        return
    flink = options.view_as(FlinkRunnerOptions)
    _check_job_server(flink.flink_job_server_jar)
    if not on_cluster(options):
        return
    _check_version(flink.flink_master, flink.flink_version)
    if options.view_as(PortableOptions).environment_type == "LOOPBACK":
        raise UsageError(
            "environment_type must not be LOOPBACK on a cluster: workers would end with this command; use EXTERNAL, "
            "with a worker pool beside each task manager"
        )


def on_cluster(options: PipelineOptions) -> bool:
    """Tell whether a pipeline is to run on a Flink cluster, and not inside its job server."""
    return _on_flink(options) and options.view_as(FlinkRunnerOptions).flink_master not in LOCAL_MASTERS


def _on_flink(options: PipelineOptions) -> bool:
    return (options.view_as(StandardOptions).runner or "").rpartition(".")[2] == "FlinkRunner"


def ask_cluster(master: str, path: str) -> Any:
    """Return what a cluster's REST interface answers.

    Raises:
        OSError, HTTPException, ValueError: there is no answer.
    """
    address = master if "://" in master else f"http://{master}"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"{address}{path}", timeout=ANSWER_SECONDS) as answer:
        return json.loads(answer.read())


def _check_job_server(jar: str | None) -> None:
    """Check that Beam's job server can be started."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None:
        where = f"; JAVA_HOME is {home}, put its bin folder on the PATH" if home else ""
        raise UsageError(f"Java must be installed to submit to Flink: install a Java runtime, 11 or 17{where}")
    if jar is not None and not urlsplit(jar).scheme and not Path(jar).is_file():
        raise UsageError(
            f"flink_job_server_jar must be a file, got {jar}; deploy/get_flink_job_server.sh prints the path of one"
        )


def _check_version(master: str, version: str) -> None:
    """Check that a cluster of this version answers."""
    try:
        runs = str(ask_cluster(master, "/config")["flink-version"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise UsageError(
            f"flink_master must be the address of a Flink cluster, got {master} ({reason}): start one with "
            "deploy/flink_cluster.py start, or mend host and port"
        ) from None
    if runs.rpartition(".")[0] != version:
        raise UsageError(
            f"flink_version must be that of the cluster: {master} runs Flink {runs}, got {version}; the job server "
            f"must be made for {runs.rpartition('.')[0]} too"
        )
