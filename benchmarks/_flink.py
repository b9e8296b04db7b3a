"""The cluster of deploy/flink_cluster.py, for benchmarks: started, asked, and measured by what its processes spend."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).parents[1] / "deploy"
TICKS = os.sysconf("SC_CLK_TCK")


def call(*arguments: str) -> str:
    """Run a command of the script, perhaps with more in its environment; its own words go to the terminal."""
    command = [sys.executable, str(DEPLOY / "flink_cluster.py"), *arguments]
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])  # workers import from here
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


@contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Work in a thread of its own, until the event that it is given is set, which is at the end."""
    ended = threading.Event()
    worker = threading.Thread(target=work, args=(ended,))
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()


@contextmanager
def cluster(folder: Path, jar: str, *options: str) -> Iterator["RunningCluster"]:
    """Run a cluster with two task managers of one slot each, which have the libraries of Beam's job server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    call("start", f"--run={folder}", f"--rest-port={port}", f"--job-server={jar}", *options)
    try:
        with job_server(jar, port, folder) as endpoint:
            yield RunningCluster(folder, port, endpoint)
    finally:
        call("stop", f"--run={folder}")


@contextmanager
def job_server(jar: str, port: int, folder: Path) -> Iterator[str]:
    """Run Beam's job server for a cluster; give its address."""
    output = folder / "job-server.out"
    command = ["java", "-jar", jar, f"--flink-master=127.0.0.1:{port}", f"--artifacts-dir={folder / 'artifacts'}"]
    command += [f"--{service}-port=0" for service in ("job", "artifact", "expansion")]
    with output.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as server:
        try:
            while not (started := re.search(r"JobService started on (\S+)", output.read_text(errors="replace"))):
                if server.poll() is not None:
                    raise RuntimeError(f"the job server ended; see {output}")
                time.sleep(0.2)
            yield started[1]
        finally:
            server.terminate()


class RunningCluster:
    """A cluster that runs.

    Args:
        folder: its run folder.
        port: of its REST interface.
        endpoint: of Beam's job server.
    """

    def __init__(self, folder: Path, port: int, endpoint: str) -> None:
        self.folder, self.port, self.endpoint = folder, port, endpoint

    def options(self, *extra: str) -> list[str]:
        """Return the options that submit a pipeline to it."""
        given = call("options", f"--run={self.folder}", *extra).split()
        own = [option for option in given if not option.startswith(("--runner", "--flink_"))]
        return ["--runner=PortableRunner", f"--job_endpoint={self.endpoint}", *own]

    def rest(self, path: str) -> Any:
        """Ask the job manager."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def newest_job(self) -> dict[str, Any]:
        """Return the overview of the job that began last."""
        return max(self.rest("/jobs/overview")["jobs"], key=lambda job: job["start-time"])

    def cancel(self, job: str) -> None:
        """End a job, and wait until its slots are free again."""
        call("cancel", job, f"--run={self.folder}")
        while self.rest("/overview")["slots-available"] < self.rest("/overview")["slots-total"]:
            time.sleep(0.2)

    def processes(self) -> Iterator[tuple[int, bool, list[str]]]:
        """Return all its processes: whether each leads its session, and the fields of its state after the name."""
        leaders = {int(file.read_text().split()[0]) for file in self.folder.glob("*.pid")}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                process, fields = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) in leaders:  # the session that a leader opened
                yield process, process in leaders, fields

    def cpu_seconds(self) -> float:
        """Return what all its processes, and workers that have ended, have spent so far."""
        total = 0
        for _, leads, fields in self.processes():
            total += sum(map(int, fields[11:15] if leads else fields[11:13]))
        return total / TICKS


def job_server_jar() -> str:
    """Return the path of Beam's job server."""
    environment = os.environ | {"PYTHON": sys.executable}
    command = [str(DEPLOY / "get_flink_job_server.sh")]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.strip()
