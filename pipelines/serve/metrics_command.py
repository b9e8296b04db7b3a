"""`privstream metrics`: exact numbers about running jobs, for Prometheus."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from privstream.pipelines.accounts.entries import Contents
from privstream.pipelines.accounts.ledger import Ledger, limit_of
from privstream.pipelines.accounts.spending import left_of
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.serve.app import (
    FAILED,
    NO_TOKEN,
    NOT_A_READ,
    NOT_FOUND,
    OK,
    WRONG_HOST,
    Access,
    Answer,
    add_port,
    listen,
    read_token,
    send,
)
from privstream.pipelines.serve.health import Health, JobHealth, Letters, add_health
from privstream.pipelines.terminal import say

HOST, PORT = "127.0.0.1", 9464
THREADS = 2
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Metric(NamedTuple):
    """A family of numbers: its name, without the `_total` of counters, its kind, what it is, and numbers by labels."""

    name: str
    kind: str
    about: str
    numbers: Sequence[tuple[Mapping[str, str], float]]

    def lines(self) -> Iterator[str]:
        """Return it in the text format of OpenMetrics."""
        yield f"# TYPE {self.name} {self.kind}"
        yield f"# HELP {self.name} {self.about}."
        for labels, number in self.numbers:
            named = ",".join(f'{name}="{value.translate(ESCAPED)}"' for name, value in labels.items())
            yield f"{self.name}{'_total' * (self.kind == 'counter')}{f'{{{named}}}' * bool(named)} {number!r}"


def page(health: Health, budget: Budget | None) -> str:
    """Return all that is known now, in the text format of OpenMetrics.

    Privacy: none; these numbers are exact. Labels are names of jobs and data sets, addresses of pages and units.
    """
    metrics = [*_of_jobs(health), *_of_letters(health.folder), *([] if budget is None else budget.metrics())]
    lines = [line for metric in metrics if metric.numbers for line in metric.lines()]
    return "\n".join([*lines, "# EOF", ""])


def _of_jobs(health: Health) -> Iterator[Metric]:
    """Yield what Flink reports of jobs."""
    jobs, silent = health.jobs()
    answered = [({"address": address}, float(address not in silent)) for address in health.addresses]
    yield Metric("privstream_page_up", "gauge", "Whether a page of Flink's metrics answers", answered)
    for name, (kind, about, number) in OF_JOBS.items():
        numbers = [({"job_name": job.name}, number(job)) for job in jobs]
        known = [(labels, value) for labels, value in numbers if value is not None]
        yield Metric(f"privstream_job_{name}", kind, about, known)


def _of_letters(folder: str | None) -> Iterator[Metric]:
    """Yield what there is of dead letters."""
    if folder is None:
        return
    try:
        found = Letters.of(folder)
    except OSError:
        return  # a metric that is absent is what alerts see
    for name, about, number in (
        ("files", "Files of dead letters", found.files),
        ("bytes", "Bytes of dead letters", found.bytes),
        ("newest_seconds", "When the last file of dead letters was written, since 1970", found.newest),
    ):
        if number is not None:
            yield Metric(f"privstream_dead_letter_{name}", "gauge", about, [({}, float(number))])


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


OF_JOBS: dict[str, tuple[str, str, Callable[[JobHealth], float | None]]] = {
    "events": (
        "counter",
        "Events that came in since the last start of the job",
        lambda job: job.counters.get("events"),
    ),
    "events_usable": (
        "counter",
        "Of these, in the windows, streams and domain",
        lambda job: job.counters.get("usable"),
    ),
    "events_unreadable": ("counter", "Records that became dead letters", lambda job: job.counters.get("unreadable")),
    "events_late": ("counter", "Events after the decision of their window", lambda job: job.counters.get("late")),
    "restarts": ("counter", "Restarts since the job was submitted", lambda job: job.restarts),
    "watermark_seconds": ("gauge", "Watermark of the slowest step, since 1970", lambda job: _seconds(job.event_time)),
    "lag_seconds": ("gauge", "From the watermark of the slowest step to now", lambda job: job.lag_seconds),
    "window_latency_seconds": (
        "gauge",
        "From the end of the last window to its file",
        lambda job: _seconds(job.latency),
    ),
}
"""Numbers of a job: their kind, what they are, and the number, None where Flink does not report it yet."""


class Budget:
    """What is left of the limits of a ledger; composed again when it has another line.

    Args:
        path: of the ledger.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, list[str]] | None = None
        self._metrics: list[Metric] = []

    def metrics(self) -> list[Metric]:
        """Return limits of data sets, and what is left; of a limit by period, of the period with the least left.

        Raises:
            ValueError, OSError: the ledger cannot be read.
        """
        contents = Ledger(self._path).contents()
        seen = len(contents.records), list(contents.heads[-1:])
        if seen != self._seen:
            self._metrics, self._seen = list(_of_limits(contents)), seen
        return self._metrics


def _of_limits(contents: Contents) -> Iterator[Metric]:
    limits = {name: limit_of(record) for name, record in contents.limits.items()}
    left: dict[tuple[str, str, str], float] = {}
    for name, limit in limits.items():
        for found in left_of(limit, [entry for entry in contents.entries if entry.dataset == name]):
            key = name, str(found.unit), found.neighbouring
            left[key] = min(found.epsilon, left.get(key, limit.epsilon))
    about = "Largest epsilon that all runs on a data set may spend together"
    numbers = [({"dataset": name}, limit.epsilon) for name, limit in limits.items()]
    yield Metric("privstream_budget_limit_epsilon", "gauge", about, numbers)
    names = ("dataset", "unit", "neighbouring")
    of_units = [(dict(zip(names, key, strict=True)), number) for key, number in left.items()]
    yield Metric("privstream_budget_left_epsilon", "gauge", "What is left of it, to each unit", of_units)


def application(health: Health, budget: Budget | None, access: Access) -> WSGIApplication:
    """Return what answers requests for `/metrics` that have the token."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not access.accepts_host(environ.get("HTTP_HOST", "")):
            found = WRONG_HOST
        elif environ.get("PATH_INFO") != "/metrics":
            found = NOT_FOUND
        elif not access.accepts(environ.get("HTTP_AUTHORIZATION", ""), operator=True):
            found = NO_TOKEN
        elif environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            found = NOT_A_READ
        else:
            found = _page_or_failure(health, budget)
        return send(found, environ, start_response, "metrics")

    return answer


def _page_or_failure(health: Health, budget: Budget | None) -> Answer:
    """Return the page; where the ledger cannot be read, why it cannot."""
    try:
        return Answer(OK, OPENMETRICS, page(health, budget))
    except (ValueError, OSError) as error:
        say(f"privstream metrics: {type(error).__name__} while the ledger was read")
        return FAILED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--token_file", metavar="PATH", required=True, help="file with a token, which Prometheus has as a password"
    )
    add_port(parser, PORT)
    add_health(parser)
    parser.add_argument("--ledger", metavar="PATH", help="file in which the runs are recorded: shows what is left")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Check the options, listen, and answer until interrupted."""
    try:
        server = _server(arguments)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    say(f"metrics for Prometheus: http://{HOST}:{server.effective_port}/metrics (Ctrl-C ends it)")
    server.run()


def _server(arguments: argparse.Namespace) -> Any:
    """Return a server that listens, on loopback alone."""
    if not (arguments.metrics or arguments.dead_letter or arguments.ledger):
        raise ValueError("metrics, dead_letter or ledger must be given: there is nothing to see without them")
    access = Access(local=True, token=None, operator_token=read_token("token_file", arguments.token_file))
    health = Health(arguments.metrics, arguments.dead_letter)
    budget = None if arguments.ledger is None else Budget(arguments.ledger)
    if budget is not None:
        budget.metrics()
    return listen(application(health, budget, access), host=HOST, port=arguments.port, threads=THREADS)


COMMAND = Command(
    description="Shows exact numbers about running jobs to Prometheus, as OpenMetrics: events, late events, dead "
    "letters, restarts, watermark, lag, latency of windows, and what is left of budgets. No guarantee covers them: it "
    "listens on loopback alone, and asks for a token.",
    add_arguments=add_arguments,
    run=run,
)
