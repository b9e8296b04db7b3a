"""Tells, while a command waits for its job on a Flink cluster, how often Flink has restarted it, and why."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException

from apache_beam.options.pipeline_options import FlinkRunnerOptions, GoogleCloudOptions, PipelineOptions
from privstream.pipelines.runners.flink_check import ask_cluster, on_cluster
from privstream.pipelines.runners.restart_causes import restart_cause

SECONDS = 5.0
UNANSWERED = (OSError, HTTPException, ValueError, KeyError, TypeError)


def name_job(options: PipelineOptions, name: str) -> None:
    """Give a job a name by which people know it on Flink's page, unless `--job_name` has given one."""
    named = options.view_as(GoogleCloudOptions)
    named.job_name = named.job_name or name


@contextmanager
def restarts_told(options: PipelineOptions, tell: Callable[[str], None], seconds: float = SECONDS) -> Iterator[None]:
    """Tell of restarts of the job that is submitted meanwhile; nothing on runners other than a Flink cluster.

    Args:
        options: those of the job, which has a name.
        tell: is called with a line for people: at first, when the reason is another one, and when the number of
            restarts has doubled. It comes from another thread.
        seconds: between two questions to the cluster, which may have no answer.
    """
    if not on_cluster(options):
        yield
        return
    over = threading.Event()
    master, name = options.view_as(FlinkRunnerOptions).flink_master, options.view_as(GoogleCloudOptions).job_name
    watch = _Restarts(master, name, tell)
    thread = threading.Thread(target=watch.until, args=(over, seconds), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


class _Restarts:
    """The restarts of one job: the first one of a name that appears from now on."""

    def __init__(self, master: str, name: str, tell: Callable[[str], None]) -> None:
        self._master, self._name, self._tell = master, name, tell
        self._others = set(self._listed())
        self._count = self._newest = 0
        self._cause = ""

    def until(self, over: threading.Event, seconds: float) -> None:
        """Look until it is over."""
        job = None
        while not over.wait(seconds):
            job = job or next((one for one in self._listed() if one not in self._others), None)
            if job is not None:
                self._look(job)

    def _listed(self) -> list[str]:
        """Return the jobs of the name; none if there is no answer."""
        try:
            jobs = ask_cluster(self._master, "/jobs/overview")["jobs"]
            return [job["jid"] for job in jobs if job["name"] == self._name]
        except UNANSWERED:
            return []

    def _look(self, job: str) -> None:
        """Tell of restarts since the last look, oldest first."""
        try:
            entries = ask_cluster(self._master, f"/jobs/{job}/exceptions")["exceptionHistory"]["entries"]
            found = sorted((entry["timestamp"], entry["stacktrace"]) for entry in entries)
        except UNANSWERED:
            return
        for at, trace in found:
            if at > self._newest:
                self._newest = at
                self._add(restart_cause(trace))

    def _add(self, cause: str) -> None:
        """Count a restart, and tell of it if that is news."""
        self._count += 1
        doubled = self._count & (self._count - 1) == 0
        if doubled or cause != self._cause:
            self._cause = cause
            self._tell(f"Flink restarts the job, {self._count} time{'s' * (self._count > 1)} so far: {cause}")
