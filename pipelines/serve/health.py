"""The health of jobs: exact numbers from Flink's pages of metrics, and of a folder of dead letters."""

from __future__ import annotations

import argparse
import os
import re
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from typing import NamedTuple
from urllib.parse import urlsplit

MOST_BYTES = 16 << 20
"""Of one page."""

ANSWER_SECONDS = 2.0
LINE = re.compile(r"^(flink_[\w:]+)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
NEVER, ENDED = -(2.0**63), 2.0**63 - 1
"""The watermark of a step before its first event, and after its last."""

JOB, STEP = "flink_jobmanager_job_", "flink_taskmanager_job_task_operator_"
COUNTERS = {
    "events": "privstream_events",
    "usable": "privstream_events_usable",
    "unreadable": "privstream_events_malformed",
    "late": "privstream_events_late",
}
OF_QUESTION = re.compile(rf"{STEP}privstream_(\w+):_|_\d+_+(\w+?):_")
"""What begins the name of a counter, or of a step, that is about one question of a monitor."""

WATERMARK, LATENCY = f"{STEP}currentOutputWatermark", f"{STEP}privstream_window_latency_ms"
RESTARTS = f"{JOB}numRestarts"


class Sample(NamedTuple):
    """One number that Flink reports: a metric, the job that it is about, its question in a monitor, and the number."""

    metric: str
    job: str
    question: str
    value: float


@dataclass(frozen=True, kw_only=True)
class JobHealth:
    """What Flink reports of one job; None, or no entry, for what it does not report yet.

    Attributes:
        name: of the job.
        counters: events by what became of them, as in `COUNTERS`, since the job was last started; what each question of
            a monitor counts for itself, of the one that has most.
        watermark: of the slowest step, in milliseconds since 1970; `NEVER` before a step has seen an event, `ENDED`
            after the last one.
        latency: milliseconds from the end of the window that was written last to its file, the longest of all workers.
        restarts: since the job was submitted.
    """

    name: str
    counters: Mapping[str, float]
    watermark: float | None
    latency: float | None
    restarts: float | None

    @classmethod
    def of(cls, name: str, found: Sequence[Sample]) -> JobHealth:
        """Return what samples say of a job."""
        own: dict[str, list[float]] = {}
        questions: dict[str, dict[str, float]] = {}
        for sample in found:
            if sample.job == name:
                own.setdefault(sample.metric, []).append(sample.value)
                counted = questions.setdefault(sample.metric, {})
                counted[sample.question] = counted.get(sample.question, 0.0) + sample.value
        return cls(
            name=name,
            counters={
                word: _most(questions[f"{STEP}{metric}"])
                for word, metric in COUNTERS.items()
                if f"{STEP}{metric}" in questions
            },
            watermark=min(own.get(WATERMARK, ()), default=None),
            latency=max(own.get(LATENCY, ()), default=None),
            restarts=max(own.get(RESTARTS, ()), default=None),
        )

    @property
    def event_time(self) -> float | None:
        """The watermark, None before the first event and after the last."""
        return self.watermark if self.watermark is not None and NEVER < self.watermark < ENDED else None

    @property
    def lag_seconds(self) -> float | None:
        """How far the slowest step is behind the clock; None if that cannot be told."""
        return None if self.event_time is None else time.time() - self.event_time / 1000

    def in_words(self) -> dict[str, str]:
        """Return it for people."""
        counts = {word: f"{self.counters[word]:,.0f}" if word in self.counters else "none yet" for word in COUNTERS}
        restarts = "unknown" if self.restarts is None else f"{self.restarts:,.0f}"
        return {"job": self.name, "lag": self._lag()} | counts | {"restarts": restarts}

    def _lag(self) -> str:
        if self.watermark is None:
            return "unknown"
        if self.lag_seconds is None:
            ended = self.watermark >= ENDED
            return "none: the input has ended" if ended else "not all steps have seen an event"
        return about(self.lag_seconds)


class Letters(NamedTuple):
    """The dead letters in a folder: files, bytes, and when the last one was written, in seconds since 1970, if any."""

    files: int
    bytes: int
    newest: float | None

    @classmethod
    def of(cls, folder: str) -> Letters:
        """Look at a folder.

        Raises:
            OSError: it cannot be read.
        """
        with os.scandir(folder) as entries:
            found = [entry.stat() for entry in entries if entry.name[0] not in "._" and entry.is_file()]
        newest = max((one.st_mtime for one in found), default=None)
        return cls(len(found), sum(one.st_size for one in found), newest)


@dataclass(frozen=True)
class Health:
    """Where the health of jobs is found.

    Attributes:
        addresses: pages of Flink's Prometheus reporter, as `flink_cluster.py status` prints them.
        folder: of dead letters, or None.
    """

    addresses: Sequence[str]
    folder: str | None

    def __post_init__(self) -> None:
        """Check what was given.

        Raises:
            ValueError: naming the option.
        """
        for address in self.addresses:
            if urlsplit(address).scheme not in ("http", "https"):
                raise ValueError(f"metrics must be addresses such as http://127.0.0.1:9249/metrics, got {address}")
        if self.folder is not None and not os.path.isdir(self.folder):
            raise ValueError(f"dead_letter must be a folder that exists, got {self.folder}")

    def jobs(self) -> tuple[list[JobHealth], list[str]]:
        """Return what Flink reports of each job, and the addresses that have not answered."""
        with ThreadPoolExecutor(max(1, len(self.addresses))) as threads:
            pages = list(threads.map(_ask, self.addresses))
        found = [sample for page in pages if page is not None for sample in samples(page)]
        silent = [address for address, page in zip(self.addresses, pages, strict=True) if page is None]
        return [JobHealth.of(name, found) for name in sorted({sample.job for sample in found})], silent

    def look(self) -> dict[str, object]:
        """Return what there is to say now."""
        jobs, silent = self.jobs()
        words = [job.in_words() for job in jobs]
        return {"asked": bool(self.addresses), "jobs": words, "silent": silent, "letters": _letters(self.folder)}


def _most(counted: Mapping[str, float]) -> float:
    """Return what is counted for all questions of a monitor, and what the question that has most counts for itself."""
    return counted.get("", 0.0) + max((number for question, number in counted.items() if question), default=0.0)


def samples(page: str) -> Iterator[Sample]:
    """Return the numbers of a page of metrics that are about jobs."""
    for metric, text, value in LINE.findall(page):
        labels = dict(LABEL.findall(text))
        if job := labels.get("job_name", ""):
            of = OF_QUESTION.match(metric) or OF_QUESTION.match(labels.get("operator_name", ""))
            question = of[1] or of[2] if of else ""
            whole = metric.replace(f"{question}:_", "", 1)
            yield Sample(whole, re.sub(r"\\(.)", _unescaped, job), question, float(value))


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def about(seconds: float) -> str:
    """Return a duration in the largest unit of which there are two, rounded down.

    >>> about(-1), about(119), about(7_199), about(1e6)
    ('0 seconds', '119 seconds', '119 minutes', '11 days')
    """
    number, unit = max(0, int(seconds)), "second"
    for larger, length in (("minute", 60), ("hour", 3600), ("day", 86_400)):
        if seconds >= 2 * length:
            number, unit = int(seconds // length), larger
    return f"{number:,} {unit}{'s' * (number != 1)}"


def _letters(folder: str | None) -> dict[str, str] | None:
    """Return how many dead letters there are, and from when; None if nobody has asked."""
    if folder is None:
        return None
    try:
        found = Letters.of(folder)
    except OSError:
        return {"files": "unknown: the folder cannot be read", "bytes": "unknown", "age": "unknown"}
    age = "never" if found.newest is None else f"{about(time.time() - found.newest)} ago"
    return {"files": f"{found.files:,}", "bytes": f"{found.bytes:,}", "age": age}


def _ask(address: str) -> str | None:
    """Return a page of metrics, None if there is no answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(address, timeout=ANSWER_SECONDS) as answer:
            content: bytes = answer.read(MOST_BYTES)
            return content.decode(errors="replace")
    except (OSError, HTTPException, ValueError):
        return None


def add_health(parser: argparse._ActionsContainer) -> None:
    """Add the options that say where `Health` is found, of all commands that show it."""
    words = "Flink's pages of metrics, such as http://127.0.0.1:9249/metrics: shows lag, late events and restarts"
    parser.add_argument("--metrics", nargs="+", default=[], metavar="URL", help=words)
    parser.add_argument("--dead_letter", metavar="FOLDER", help="of dead letters: shows how many, and from when")
