"""A running job goes on with another version of itself: no gap, nothing twice; and back, if its state is refused."""

import paced_stream
import pytest
from flink_cluster_jobs import wait_until
from paced_stream import Stream, dead, kept, run_locally

pytestmark = [pytest.mark.slow, pytest.mark.flink, pytest.mark.xdist_group("flink"), pytest.mark.timeout(900)]

WINDOWS = 6


def test_a_job_is_upgraded_refused_and_rolled_back(flink_cluster, tmp_path, monkeypatch):
    for folder in ("expected", "stream"):
        (tmp_path / folder).mkdir()
    expected = run_locally(tmp_path / "expected", windows=WINDOWS)
    stream = Stream(tmp_path / "stream", windows=WINDOWS)
    stream.release(0)
    job = flink_cluster.submit(stream)
    stream.release(2.5)
    job.wait_for_windows(2)

    savepoint = flink_cluster.call("suspend", job.number).strip()
    job.wait_for_state("FINISHED")
    job = flink_cluster.submit(stream, f"--resume={savepoint}")
    stream.release(4.5)
    job.wait_for_windows(4)

    savepoint = flink_cluster.call("suspend", job.number).strip()
    job.wait_for_state("FINISHED")
    rows = kept(stream.folder)
    assert len(rows) == len(set(rows)), "nothing twice"
    with monkeypatch.context() as patch:
        patch.setattr(paced_stream, "MAX_HITS", 2)
        refused = flink_cluster.submit(stream, f"--resume={savepoint}")
    stream.release(5.5)
    wait_until(lambda: "other options" in flink_cluster.jobs.trouble(refused.number), "the first step that reads state")
    assert kept(stream.folder) == rows, "nothing is published of other options"
    flink_cluster.cancel_all()
    flink_cluster.submit(stream, f"--resume={savepoint}").finish()
    assert dead(stream.folder) == []
    assert kept(stream.folder) == expected, "no gap, nothing twice, and nothing of the version that was refused"
