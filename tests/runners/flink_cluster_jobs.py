"""A cluster of processes for tests, and pipelines that are left running on it while something happens to them."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import apache_beam as beam
import flink_job_server
from apache_beam.options.pipeline_options import PipelineOptions
from listening import descendants
from paced_stream import Stream, build, window_files, windows_published
from privstream.pipelines.runners.flink import FlinkJobOptions

DEPLOY = Path(__file__).parents[2] / "deploy"
SECONDS = 240
SCRIPT = "flink_cluster"
ENDED = ("FINISHED", "CANCELED", "FAILED")
PROCESSES = {"job-manager", "task-manager-0", "task-manager-1", "worker-pool"}
CHECKPOINT_MILLISECONDS = 1000


def load(name: str) -> ModuleType:
    """Import a script of deploy/ that imports none of its neighbours."""
    spec = importlib.util.spec_from_file_location(f"deploy_{name}", DEPLOY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds; the cluster may be out of reach meanwhile."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"waited {SECONDS} s in vain for {what}")


def told_of(process: Path, what: str) -> str:
    """Return what the system tells of a process or thread; nothing if it is gone."""
    try:
        return (process / what).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@dataclass
class Jobs:
    """What one asks of the jobs of a cluster, by its REST interface."""

    run: Path
    script: ModuleType

    def rest(self, path: str) -> Any:
        return self.script.rest(self.run, path)

    def listed(self) -> list[dict]:
        return self.rest("/jobs/overview")["jobs"]

    def state(self, job: str) -> str:
        return self.rest(f"/jobs/{job}")["state"]

    def cancel(self, job: str) -> None:
        self.script.rest(self.run, f"/jobs/{job}?mode=cancel", "PATCH")

    def checkpoints(self, job: str) -> dict:
        return self.rest(f"/jobs/{job}/checkpoints")

    def trouble(self, job: str) -> str:
        """Return the stack trace of the last restart."""
        entries = self.rest(f"/jobs/{job}/exceptions")["exceptionHistory"]["entries"]
        return entries[0]["stacktrace"] if entries else ""


@dataclass
class Cluster:
    """A cluster that `deploy/flink_cluster.py` started."""

    run: Path
    rest_port: int
    told: str = field(init=False)
    """What the script said when it had started."""
    jobs: Jobs = field(init=False)

    def __post_init__(self) -> None:
        self.script = load(SCRIPT)
        self.jobs = Jobs(self.run, self.script)

    def start_again(self, name: str) -> None:
        """Start a process that has been killed, and wait until all slots are there."""
        self.script.start_process(self.run, name)
        self.script.wait_for_slots(self.run)

    @classmethod
    def start(cls, run: Path, *options: str) -> "Cluster":
        """Start one on a port that is free."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            started = cls(run, probe.getsockname()[1])
        started.told = started.call("start", f"--rest-port={started.rest_port}", *options)
        return started

    def cancel_all(self) -> None:
        """End all jobs, and wait until their slots are free."""
        for job in self.jobs.listed():
            if job["state"] not in ENDED:
                self.jobs.cancel(job["jid"])
        wait_until(lambda: all(job["state"] in ENDED for job in self.jobs.listed()), "the end of all jobs")

    def call(self, *arguments: str) -> str:
        """Run a command of the script."""
        command = [sys.executable, str(DEPLOY / "flink_cluster.py"), *arguments, f"--run={self.run}"]
        paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": paths}
        answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    def kill(self, name: str) -> None:
        """End one of the processes without warning, and wait until it is gone."""
        pid_file = self.run / f"{name}.pid"
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        wait_until(lambda: not self.script.alive(pid_file), f"the end of {name}")

    def workers(self) -> list[int]:
        """Return the Python workers of the pool, oldest first: those of a job that has ended may take a while to go."""
        pool = int((self.run / "worker-pool.pid").read_text().split()[0])
        threads = Path(f"/proc/{pool}/task").iterdir()
        children = [child for thread in threads for child in told_of(thread, "children").split()]
        states = {int(child): told_of(Path("/proc", child), "stat").rpartition(")")[2].split() for child in children}
        started = {child: int(state[19]) for child, state in states.items() if state}
        return sorted(started, key=started.__getitem__)

    def processes(self) -> list[int]:
        """Return all processes of the cluster, workers included."""
        started = [int(file.read_text().split()[0]) for file in self.run.glob("*.pid")]
        return [found for pid in started for found in descendants(pid)]

    def submit(self, stream: Stream, *extra: str, checkpoint_seconds: int = 120) -> "Job":
        """Start the pipeline of `paced_stream` and return as soon as the cluster has it.

        Args:
            extra: options of the script's command `options`.
            checkpoint_seconds: how long a checkpoint may take before the job restarts.
        """
        endpoint = flink_job_server.endpoint(f"127.0.0.1:{self.rest_port}")
        chosen = [option for option in self.call("options", "--unbounded", *extra).split() if "flink_" not in option]
        here = ["--runner=PortableRunner", f"--job_endpoint={endpoint}", "--max_bundle_time_mills=200"]
        here += [f"--checkpointing_interval={CHECKPOINT_MILLISECONDS}"]
        here += [f"--checkpoint_timeout_millis={checkpoint_seconds * 1000}"]
        options = PipelineOptions([*chosen, *here])
        options.view_as(FlinkJobOptions)  # says how they are written
        before = {job["jid"] for job in self.jobs.listed()}
        pipeline = beam.Pipeline(options=options)
        build(pipeline, stream)
        pipeline.run()
        wait_until(lambda: {job["jid"] for job in self.jobs.listed()} - before, "the job to reach the cluster")
        (job,) = {job["jid"] for job in self.jobs.listed()} - before
        return Job(self, job, stream)


@dataclass
class Job:
    cluster: Cluster
    number: str
    stream: Stream

    def rows_written(self) -> int:
        """Return how many rows the sink was given so far."""
        return len(list((self.stream.folder / "rows").iterdir()))

    def wait_for_windows(self, number: int) -> None:
        """Wait until the sink was given the rows of so many windows."""
        self.wait(lambda: windows_published(self.stream) >= number, f"{number} windows")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something holds, while the job has not failed for good."""

        def holds() -> object:
            assert self.cluster.jobs.state(self.number) != "FAILED", self.describe()
            return condition()

        try:
            wait_until(holds, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.describe()}") from None

    def wait_for_checkpoint(self) -> None:
        """Wait until a checkpoint is complete that was begun after this call: the next may have been begun before."""
        already = self._newest_checkpoint()
        self.wait(lambda: self._newest_checkpoint() >= already + 2, "a checkpoint")

    def _newest_checkpoint(self) -> int:
        newest = self.cluster.jobs.checkpoints(self.number)["latest"]["completed"]
        return newest["id"] if newest else 0

    def wait_for_restart(self, since: float) -> None:
        """Wait until the job has gone back to a checkpoint, later than at a time of the system's clock."""

        def restored() -> bool:
            last = self.cluster.jobs.checkpoints(self.number)["latest"]["restored"]
            return last is not None and last["restore_timestamp"] > since * 1000

        self.wait(restored, "a restart")

    def state_bytes(self, watched: Iterable[str]) -> dict[str, int]:
        """Take a savepoint, and return the size of the state in it of what watches for each name.

        A savepoint has what is alive; a checkpoint of RocksDB also has what was deleted since it last tidied up.
        """
        jobs = self.cluster.jobs
        path = f"/jobs/{self.number}/savepoints"
        trigger = jobs.script.rest(jobs.run, path, "POST", {"cancel-job": False})["request-id"]
        self.wait(lambda: jobs.rest(f"{path}/{trigger}")["status"]["id"] == "COMPLETED", "a savepoint")
        names = {vertex["id"]: vertex["name"] for vertex in jobs.rest(f"/jobs/{self.number}")["vertices"]}
        newest = jobs.checkpoints(self.number)["latest"]["savepoint"]["id"]
        found = jobs.rest(f"/jobs/{self.number}/checkpoints/details/{newest}")["tasks"]
        sizes = [(names[vertex], task["state_size"]) for vertex, task in found.items()]
        return {name: sum(size for vertex, size in sizes if f"Watch {name}" in vertex) for name in watched}

    def finish(self) -> None:
        """Let the stream go on to its end, wait for the last window and for what goes on beside it, and end the job."""
        stream = self.stream
        stream.release()
        self.wait_for_windows(stream.windows)
        if stream.more:
            self.wait(lambda: "_END" in window_files(stream.folder), "the end of the files")
        self.wait_for_checkpoint()
        self.cluster.call("cancel", self.number)
        self.wait_for_state("CANCELED")

    def wait_for_state(self, state: str) -> None:
        wait_until(lambda: self.cluster.jobs.state(self.number) == state, f"{state}; {self.describe()}")

    def describe(self) -> str:
        """Return what is known of the job, for messages."""
        try:
            found = self.cluster.jobs.checkpoints(self.number)
            known = {"trouble": self.cluster.jobs.trouble(self.number), "rows": self.rows_written()}
            return json.dumps(known | {"checkpoints": found["counts"], "latest": found["latest"]})
        except OSError as error:
            return str(error)
