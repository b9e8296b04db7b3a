"""A running job goes on with another version of itself: no gap, nothing twice; and back, if its state is refused."""

import re
import sys

import flink_job_server
import pytest
from flink_cluster_jobs import Job, wait_until
from paced_stream import Stream, dead, kept, run_locally

pytestmark = [pytest.mark.slow, pytest.mark.flink, pytest.mark.xdist_group("flink"), pytest.mark.timeout(900)]

WINDOWS = 8
SUBMIT = """
import sys
from pathlib import Path
import apache_beam as beam
import paced_stream
from apache_beam.options.pipeline_options import PipelineOptions
from privstream.pipelines.runners.flink import FlinkJobOptions
folder, windows, max_hits, endpoint, *chosen = sys.argv[1:]
paced_stream.MAX_HITS = int(max_hits)
chosen = [option for option in chosen if "flink_" not in option]
more = ["--runner=PortableRunner", f"--job_endpoint={endpoint}", "--checkpointing_interval=1000"]
options = PipelineOptions([*chosen, *more])
options.view_as(FlinkJobOptions)
pipeline = beam.Pipeline(options=options)
paced_stream.build(pipeline, paced_stream.Stream(Path(folder), windows=int(windows)))
pipeline.run()
"""


def call(cluster, stream, command, *arguments, max_hits=3):
    """Run a command of the script, which submits the stream's pipeline; perhaps with another limit."""
    endpoint = flink_job_server.endpoint(f"127.0.0.1:{cluster.rest_port}")
    submit = [sys.executable, "-c", SUBMIT, str(stream.folder), str(WINDOWS), str(max_hits), endpoint]
    return cluster.call(command, *arguments, own=["--", *submit])


def test_a_job_is_upgraded_refused_and_rolled_back(flink_cluster, tmp_path):
    for folder in ("expected", "stream"):
        (tmp_path / folder).mkdir()
    expected = run_locally(tmp_path / "expected", windows=WINDOWS)
    stream = Stream(tmp_path / "stream", windows=WINDOWS)
    stream.release(0)
    job = flink_cluster.submit(stream)
    stream.release(2.5)
    job.wait_for_windows(2)

    told = call(flink_cluster, stream, "upgrade", job.number)
    savepoint, number = re.search(r"savepoint: (\S+)\ngoes on: (\w+), from \1\n", told).groups()
    assert flink_cluster.jobs.state(job.number) == "FINISHED"
    upgraded = Job(flink_cluster, number, stream)
    stream.release(4.5)
    upgraded.wait_for_windows(4)
    rows = kept(stream.folder)
    assert len(rows) == len(set(rows)), "nothing twice"

    told = call(flink_cluster, stream, "upgrade", number, max_hits=2)
    savepoint, other = re.search(r"savepoint: (\S+)\ngoes on: (\w+)", told).groups()
    stream.release(5.5)
    wait_until(lambda: "other options" in flink_cluster.jobs.trouble(other), "the first step that reads its state")
    assert kept(stream.folder) == rows, "nothing is published of other options"
    told = call(flink_cluster, stream, "rollback", other, "--resume", savepoint)
    back = Job(flink_cluster, re.search(r"goes on: (\w+)", told)[1], stream)
    back.finish()
    assert dead(stream.folder) == []
    assert kept(stream.folder) == expected, "no gap, nothing twice, and nothing of the version that was refused"
