"""Slots that come and go while a job runs: it takes them, and publishes the same rows."""

import pytest
from flink_cluster_jobs import Cluster
from paced_stream import Stream, dead, kept, run_locally
from runner_harness import require

pytestmark = [pytest.mark.slow, pytest.mark.flink, pytest.mark.xdist_group("flink"), pytest.mark.timeout(900)]

WINDOWS = 4


@pytest.fixture
def cluster(tmp_path):
    require("flink")
    started = Cluster.start(tmp_path / "run", "--adaptive", "--task-managers=1")
    yield started
    started.call("stop")


def test_a_job_takes_the_slots_that_there_are(cluster, tmp_path):
    for folder in ("expected", "stream"):
        (tmp_path / folder).mkdir()
    expected = run_locally(tmp_path / "expected", windows=WINDOWS)
    stream = Stream(tmp_path / "stream", windows=WINDOWS)
    stream.release(0)
    job = cluster.submit(stream, "--parallelism=2")

    def runs_in(slots):
        """Tell whether it runs in so many slots; what begins it, an impulse, is always one."""
        vertices = cluster.jobs.rest(f"/jobs/{job.number}")["vertices"]
        return max(each["parallelism"] for each in vertices) == slots

    stream.release(1.5)
    job.wait_for_windows(1)
    assert runs_in(1)
    assert "task-manager-1" in cluster.call("scale", "--task-managers=2")
    job.wait(lambda: runs_in(2), "the second slot")
    stream.release(2.5)
    job.wait_for_windows(2)
    assert "task-manager-1" in cluster.call("scale", "--task-managers=1")
    job.wait(lambda: runs_in(1), "a single slot")
    job.finish()
    assert dead(stream.folder) == []
    assert sorted(set(kept(stream.folder))) == expected, "some rows may come again, from the last checkpoint on"
