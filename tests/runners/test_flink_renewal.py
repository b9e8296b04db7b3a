"""Ten renewal periods on a cluster: the state stops growing, and nothing of a period is in the next one.

Besides them two longer periods of items that stay found, in the middle of which the job is suspended: the last windows,
what smoothing remembers, and the names go through the savepoint, and are carried into the next period. And a run with a
list of different people, who are remembered across the savepoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from flink_cluster_jobs import Cluster
from paced_stream import FOUND, FOUND_PERIOD, LASTING, LISTED, PARTS, START, WINDOW, Stream, dead, kept, run_locally
from privstream.transforms import DeadLetter

pytestmark = [pytest.mark.slow, pytest.mark.flink, pytest.mark.xdist_group("flink"), pytest.mark.timeout(600)]

PERIODS, WINDOWS = 10, 2
SIZES = {"windows": PERIODS * WINDOWS, "renewal": WINDOWS}
EARLY, LATE = 2, 9
"""Periods after which the state is measured; the next one has begun then."""

SUSPENDED = 5.5
"""Windows after which the job is suspended, with a savepoint: in the middle of the last window of a period, and in the
middle of a period of items that stay found."""


@dataclass(frozen=True)
class Run:
    """What a job on the cluster has published, and the bytes of its state by name of the monitor: early and late."""

    rows: list[tuple[str, Any]]
    dead: list[DeadLetter]
    early: dict[str, int]
    late: dict[str, int]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The rows of a run that nothing happens to, on another runner."""
    return run_locally(tmp_path_factory.mktemp("expected"), **SIZES)


@pytest.fixture(scope="module")
def on_cluster(flink_cluster, tmp_path_factory):
    """A run that is suspended, and goes on from its savepoint across the boundary of a period.

    Every batch comes twice, and some events are bad: neither may change anything.
    """
    stream = Stream(tmp_path_factory.mktemp("stream"), twice=True, poison=True, **SIZES)
    yield run_with_savepoint(flink_cluster, stream)
    flink_cluster.cancel_all()


def run_with_savepoint(cluster: Cluster, stream: Stream) -> Run:
    def sizes(job, periods: int) -> dict[str, int]:
        stream.release(periods * WINDOWS + 0.25)
        job.wait_for_windows(periods * WINDOWS)
        return job.state_bytes(stream.names)

    stream.release(0)
    job = cluster.submit(stream)
    early = sizes(job, EARLY)
    stream.release(SUSPENDED)
    job.wait_for_windows(int(SUSPENDED))
    savepoint = cluster.call("suspend", job.number).strip()
    job.wait_for_state("FINISHED")
    resumed = cluster.submit(stream, f"--resume={savepoint}")
    late = sizes(resumed, LATE)
    resumed.finish()
    return Run(kept(stream.folder), dead(stream.folder), early, late)


def test_rows_are_those_of_one_machine_across_a_savepoint(on_cluster, expected):
    assert on_cluster.rows == expected


def test_what_is_compared_depends_on_what_the_savepoint_remembers(expected):
    """Items are found after it over windows before it, which have rows then."""
    rows = [row for name, row in expected if name == FOUND]
    savepoint, period_end = (f"Timestamp({round(START + number)})" for number in (int(SUSPENDED), FOUND_PERIOD))
    late = {row.item for row in rows if row.window_start < savepoint}
    rare = {item for item in late if item.startswith("rare")}
    assert len(rare) >= 4
    assert {row.window_start for row in rows if row.item in rare} == {row.window_start for row in rows}
    carried = {row.item for row in rows if row.window_start == period_end}
    assert rare & carried, "too few have them for a single window"


def test_a_list_of_people_goes_through_the_savepoint(expected):
    """Rare items are found when it is read for the last time, by people from before the savepoint and after it."""
    rows = [row for name, row in expected if name == LISTED and row.item.startswith("rare")]
    by_list = {row.item for row in rows}
    assert len(by_list) >= 4
    assert len({row.window_start for row in rows}) > SUSPENDED


def test_each_poisoned_event_is_set_aside_once_by_each_monitor(on_cluster):
    assert len(on_cluster.dead) == PERIODS * WINDOWS * PARTS * len(on_cluster.early)
    assert {letter.reason for letter in on_cluster.dead} == {"user must be present and not empty"}


def test_state_stops_growing(on_cluster):
    for name in ("clock", "status"):
        assert on_cluster.late[name] < 1.05 * on_cluster.early[name]
    assert on_cluster.late[LASTING] > 1.15 * on_cluster.early[LASTING], "without periods, those who were charged stay"


def test_nothing_of_a_period_is_in_the_next_one(expected):
    """The regulars are charged in each period, three times in the whole run without periods."""
    begins = [f"Timestamp({round(START + period * WINDOWS * WINDOW)})" for period in range(PERIODS)]
    for name in ("clock", "status"):
        rows = [row for of, row in expected if of == name]
        favourite = sorted((row for row in rows if row.item == "favourite"), key=lambda row: row.window_start)
        assert [row.status for row in favourite] == ["started", "continues"] * PERIODS
        assert [row.since for row in favourite] == sorted(begins * 2)
        assert all(row.status == "started" for row in rows if row.window_start in begins)
    lasting = sorted(row for of, row in expected if of == LASTING and row.item == "favourite")
    assert [row.status for row in lasting] == ["started", *["continues"] * (PERIODS * WINDOWS - 1)]
