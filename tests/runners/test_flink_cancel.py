"""A command that watches a folder on a cluster takes its job with it when it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import flink_job_server
import pytest
from flink_cluster_jobs import ENDED, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.flink, pytest.mark.xdist_group("flink"), pytest.mark.timeout(600)]

RUN = "import sys; from privstream.pipelines.cli import main; sys.exit(main())"


@contextlib.contextmanager
def watching(cluster, folder: Path):
    """Run heavy hitters over a folder on the cluster, in a process of its own; give it, and what it says."""
    (folder / "key").touch(mode=0o600)
    (folder / "key").write_bytes(bytes(range(32)))
    for name in ("incoming", "rows"):
        (folder / name).mkdir()
    command = [sys.executable, "-c", RUN, "heavy-hitters", f"--input={folder / 'incoming'}", "--watch=1"]
    command += [f"--output={folder / 'rows'}", "--time_unit=s", "--window=2", "--allowed_lateness=2", "--epsilon=1"]
    command += ["--delta=1e-6", f"--start={time.time() // 2 * 2:.0f}", "--method=clock", "--max_hits=4"]
    command += [f"--key={folder / 'key'}", "--run_id=cancelled", "--renew_every=1h"]
    command += [f"--flink_job_server_jar={flink_job_server.jar()}"]
    command += cluster.call("options", "--unbounded").split()
    said = folder / "said"
    with (
        said.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True) as process,
    ):
        try:
            yield process, said
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its job server as well
            cluster.cancel_all()


def running_job(cluster, known: set[str], process: subprocess.Popen, said: Path) -> str:
    """Wait until the cluster runs the job of a command, and return it."""

    def runs() -> bool:
        assert process.poll() is None, said.read_text()
        return [each["state"] for each in cluster.jobs.listed() if each["jid"] not in known] == ["RUNNING"]

    wait_until(runs, "the job to run")
    (job,) = {each["jid"] for each in cluster.jobs.listed()} - known
    return job


@pytest.fixture
def known(flink_cluster) -> set[str]:
    """The jobs that the cluster has had before."""
    return {each["jid"] for each in flink_cluster.jobs.listed()}


def test_the_job_ends_with_its_input(flink_cluster, known, tmp_path):
    with watching(flink_cluster, tmp_path) as (process, said):
        job = running_job(flink_cluster, known, process, said)
        lines = [json.dumps({"user": f"u{user}", "item": "rain", "time": time.time()}) for user in range(500)]
        (tmp_path / "new").write_text("\n".join(lines) + "\n")
        (tmp_path / "new").rename(tmp_path / "incoming" / "1.jsonl")
        (tmp_path / "incoming" / "_END").touch()
        assert process.wait(240) == 0, said.read_text()
        assert flink_cluster.jobs.state(job) == "CANCELED"
        assert f"job {job} has ended on the cluster" in said.read_text()
        assert (tmp_path / "rows" / "_END").exists()


def test_ctrl_c_ends_the_job_and_leaves_others_alone(flink_cluster, known, tmp_path):
    with watching(flink_cluster, tmp_path) as (process, said):
        job = running_job(flink_cluster, known, process, said)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(120) == 130, said.read_text()
        assert flink_cluster.jobs.state(job) == "CANCELED"
        assert f"job {job} has ended on the cluster" in said.read_text()


def test_a_command_that_is_killed_leaves_its_job_to_the_cluster(flink_cluster, known, tmp_path):
    """As a launcher on another machine that is lost: the stream must go on, without the job server of the command."""
    with watching(flink_cluster, tmp_path) as (process, said):
        job = running_job(flink_cluster, known, process, said)
        assert group_of(process)
        process.kill()
        process.wait()
        wait_until(lambda: not group_of(process), "the job server to end")
        time.sleep(3)
        assert flink_cluster.jobs.state(job) not in ENDED


def group_of(process: subprocess.Popen) -> list[int]:
    """Return what a command has started and still runs: all of it is in the group that the command leads."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) == process.pid != int(stat.parent.name) and state != "Z":
                found.append(int(stat.parent.name))
    return found
