"""Whatever breaks while a private pipeline runs on a cluster: no row is lost, changed, or published with other noise.

Every row that the sink was ever given counts, also those of attempts that were rolled back. Counts depend on all
charges before them: they would differ if a person's counter had lost a charge, or had one twice.
"""

import contextlib
import os
import signal

import paced_stream
import pytest
from flink_cluster_jobs import Cluster, Job, wait_until
from listening import descendants, elsewhere, listeners
from paced_stream import Stream, dead, kept, run_locally, window_files
from runner_harness import require

pytestmark = [pytest.mark.slow, pytest.mark.flink, pytest.mark.xdist_group("flink"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    require("flink")
    started = Cluster.start(tmp_path_factory.mktemp("cluster") / "run")
    yield started
    started.call("stop")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The rows of a run that nothing happens to, on another runner."""
    return run_locally(tmp_path_factory.mktemp("expected"))


@pytest.fixture(scope="module")
def expected_more(tmp_path_factory):
    """The rows of such a run that has alerts, too, and the files that it writes, one for each window."""
    folder = tmp_path_factory.mktemp("expected_more")
    rows = run_locally(folder, more=True)
    files = window_files(folder)
    assert len(files) == Stream(folder).windows + 2  # the last items end in a window of their own
    assert files.pop("_END") == b""
    assert all(len(file.splitlines()) in (2, 4) for file in files.values())
    return rows, files | {"_END": b""}


@pytest.fixture(autouse=True)
def nothing_left(request):
    """End what a test that failed has left running."""
    yield
    if "cluster" in request.fixturenames:
        jobs = request.getfixturevalue("cluster").jobs
        for job in jobs.listed():
            if job["state"] not in ("FINISHED", "CANCELED", "FAILED"):
                jobs.cancel(job["jid"])


@pytest.fixture
def stream(request, tmp_path):
    return Stream(tmp_path, **getattr(request, "param", {}))


with_more = pytest.mark.parametrize("stream", [{"more": True}], indirect=True, ids=["more"])
"""The job also has alerts, and writes a file for each window, as `privstream` does."""


@pytest.fixture
def halfway(cluster, stream) -> Job:
    """A job that has a checkpoint after six windows, and has gone on into the ninth since."""
    stream.release(6.5)
    job = cluster.submit(stream)
    job.wait_for_windows(6)
    job.wait_for_checkpoint()
    stream.release(8.5)
    job.wait_for_windows(8)
    return job


def rows_at_the_end(job: Job, stream: Stream) -> list:
    """Let the stream go on to its end; return the different rows that the sink was ever given."""
    job.finish()
    assert dead(stream.folder) == []
    return sorted(set(kept(stream.folder)))


@pytest.mark.parametrize(("name", "number"), [("clock", "count"), ("status", "count"), ("alerts", "estimate")])
def test_what_is_compared_depends_on_each_charge(expected_more, tmp_path, monkeypatch, name, number):
    rows = [row for of, row in expected_more[0] if of == name]
    assert len({row.window_start for row in rows}) >= Stream(tmp_path).windows
    monkeypatch.setattr(paced_stream, "MAX_HITS", 2)
    others = {row[:4]: getattr(row, number) for of, row in run_locally(tmp_path, more=True) if of == name}
    assert sum(others.get(row[:4]) != getattr(row, number) for row in rows) > 10


def test_nothing_happens(cluster, halfway, stream, expected):
    """Nor does anything listen to other machines: job and task managers, ZooKeeper, workers, this job server."""
    found = listeners([*cluster.processes(), *descendants(os.getpid())])
    assert sum(each.program == "java" for each in found) > 10
    assert any(each.program.startswith("python") for each in found)
    assert elsewhere(found) == []
    assert rows_at_the_end(halfway, stream) == expected
    assert kept(stream.folder) == expected, "without a fault the sink is given each row once"


@with_more
def test_a_task_manager_is_killed_in_mid_window(cluster, halfway, stream, expected_more):
    cluster.kill("task-manager-1")
    assert "task-manager-1" in cluster.call("repair")
    assert (rows_at_the_end(halfway, stream), window_files(stream.folder)) == expected_more
    assert halfway.checkpoints("restored") > 0


def test_a_python_worker_is_killed(cluster, halfway, stream, expected):
    os.kill(cluster.workers()[-1], signal.SIGKILL)
    assert rows_at_the_end(halfway, stream) == expected
    assert halfway.checkpoints("restored") > 0


def test_a_python_worker_is_killed_before_it_has_reported(cluster, stream, expected):
    before = set(cluster.workers())
    stream.release()
    job = cluster.submit(stream)
    wait_until(lambda: set(cluster.workers()) - before, "a worker to start")
    os.kill(min(set(cluster.workers()) - before), signal.SIGKILL)
    assert rows_at_the_end(job, stream) == expected


@with_more
def test_the_job_manager_is_killed_and_started_again(cluster, halfway, stream, expected_more):
    cluster.kill("job-manager")
    assert "job-manager" in cluster.call("repair")
    assert (rows_at_the_end(halfway, stream), window_files(stream.folder)) == expected_more
    assert halfway.checkpoints("restored") > 0


@with_more
def test_everything_is_killed_and_one_command_goes_on(cluster, halfway, stream, expected_more):
    for process in cluster.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert "worker-pool" in cluster.call("repair")
    assert (rows_at_the_end(halfway, stream), window_files(stream.folder)) == expected_more
    assert halfway.checkpoints("restored") > 0


def test_a_savepoint_is_resumed_with_another_parallelism(cluster, halfway, stream, expected):
    savepoint = cluster.call("suspend", halfway.number).strip()
    halfway.wait_for_state("FINISHED")
    assert halfway.rows_written() < len(expected)
    resumed = cluster.submit(stream, f"--resume={savepoint}", "--parallelism=1")
    assert rows_at_the_end(resumed, stream) == expected
    assert kept(stream.folder) == expected, "a job that was stopped with a savepoint repeats nothing"


def test_a_cancelled_job_goes_on_from_its_last_checkpoint(cluster, halfway, stream, expected):
    cluster.call("cancel", halfway.number)
    halfway.wait_for_state("CANCELED")
    checkpoint = cluster.call("checkpoint", halfway.number).strip()
    resumed = cluster.submit(stream, f"--resume={checkpoint}")
    assert rows_at_the_end(resumed, stream) == expected


def test_the_sink_is_out_of_order_for_a_while(halfway, stream, expected):
    (stream.folder / "broken").touch()
    stream.release(10.5)
    wait_until((stream.folder / "refused").exists, "a row to be refused")
    refused = (stream.folder / "refused").stat().st_size
    wait_until(lambda: (stream.folder / "refused").stat().st_size > refused, "another attempt")
    (stream.folder / "broken").unlink()
    assert rows_at_the_end(halfway, stream) == expected
    assert halfway.checkpoints("restored") > 0


def test_a_checkpoint_that_hangs_takes_the_job_back_to_the_last(cluster, stream, expected):
    stream.release(6.5)
    job = cluster.submit(stream, checkpoint_seconds=20)
    job.wait_for_windows(6)
    job.wait_for_checkpoint()
    stream.release(8.5)
    (stream.folder / "stalled").touch()
    job.wait(lambda: job.checkpoints("restored"), "a restart")
    (stream.folder / "stalled").unlink()
    assert rows_at_the_end(job, stream) == expected


def test_every_batch_is_delivered_twice(cluster, tmp_path, expected):
    stream = Stream(tmp_path, twice=True)
    stream.release()
    assert rows_at_the_end(cluster.submit(stream), stream) == expected


def test_poison_is_set_aside(cluster, tmp_path, expected):
    stream = Stream(tmp_path, poison=True)
    stream.release()
    cluster.submit(stream).finish()
    assert kept(tmp_path) == expected
    letters = dead(tmp_path)
    assert len(letters) == stream.windows * paced_stream.PARTS * len(stream.names)
    assert {letter.reason for letter in letters} == {"user must not be null"}
