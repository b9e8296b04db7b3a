"""The health of jobs, for operators: what Flink's metrics say, and the dead letters. These numbers are exact."""

from __future__ import annotations

import math
import os
import re
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from typing import NamedTuple
from urllib.parse import urlsplit

ANSWER_SECONDS = 2.0
MOST_BYTES = 16 << 20
LINE = re.compile(r"^(flink_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
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
WATERMARK, RESTARTS = f"{STEP}currentOutputWatermark", f"{JOB}numRestarts"


class Sample(NamedTuple):
    """One number that Flink reports: a metric, the job that it is about, and the number."""

    metric: str
    job: str
    value: float


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

    def look(self) -> dict[str, object]:
        """Return what there is to say now."""
        with ThreadPoolExecutor(max(1, len(self.addresses))) as threads:
            pages = list(threads.map(_ask, self.addresses))
        found = [sample for page in pages if page is not None for sample in samples(page)]
        silent = [address for address, page in zip(self.addresses, pages, strict=True) if page is None]
        jobs = [_job(name, found) for name in sorted({sample.job for sample in found})]
        return {"asked": bool(self.addresses), "jobs": jobs, "silent": silent, "letters": _letters(self.folder)}


def samples(page: str) -> Iterator[Sample]:
    """Return the numbers of a page of metrics that are about jobs."""
    for metric, labels, value in LINE.findall(page):
        job = dict(LABEL.findall(labels)).get("job_name", "")
        if job:
            yield Sample(metric, re.sub(r"\\(.)", r"\1", job), float(value))


def _job(name: str, found: Iterable[Sample]) -> dict[str, str]:
    """Return what is known of one job, in words."""
    own = [sample for sample in found if sample.job == name]
    words = {"job": name, "lag": _lag([sample.value for sample in own if sample.metric == WATERMARK])}
    for word, metric in COUNTERS.items():
        values = [sample.value for sample in own if sample.metric == f"{STEP}{metric}"]
        words[word] = f"{math.fsum(values):,.0f}" if values else "none yet"
    restarts = [sample.value for sample in own if sample.metric == RESTARTS]
    return words | {"restarts": f"{max(restarts):,.0f}" if restarts else "unknown"}


def _lag(watermarks: Sequence[float]) -> str:
    """Say how far the slowest step is behind the clock."""
    if not watermarks:
        return "unknown"
    slowest = min(watermarks)
    if slowest <= NEVER:
        return "not all steps have seen an event"
    if slowest >= ENDED:
        return "none: the input has ended"
    return about(time.time() - slowest / 1000)


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
        with os.scandir(folder) as entries:
            found = [entry.stat() for entry in entries if entry.name[0] not in "._" and entry.is_file()]
    except OSError:
        return {"files": "unknown: the folder cannot be read", "bytes": "unknown", "age": "unknown"}
    return {
        "files": f"{len(found):,}",
        "bytes": f"{sum(one.st_size for one in found):,}",
        "age": f"{about(time.time() - max(one.st_mtime for one in found))} ago" if found else "never",
    }


def _ask(address: str) -> str | None:
    """Return a page of metrics, None if there is no answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(address, timeout=ANSWER_SECONDS) as answer:
            content: bytes = answer.read(MOST_BYTES)
            return content.decode(errors="replace")
    except (OSError, HTTPException, ValueError):
        return None
