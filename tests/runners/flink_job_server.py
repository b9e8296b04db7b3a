"""Beam's job server for Flink: one for all tests of a process, started when the first asks, ended with the process."""

import atexit
import os
import re
import shutil
import subprocess
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import apache_beam
import grpc
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

REPOSITORY = Path(__file__).parents[2]
FLINK_VERSION = os.environ.get("FLINK_VERSION") or (REPOSITORY / "deploy" / "flink_version").read_text().strip()
FLINK_LINE = FLINK_VERSION.rpartition(".")[0]  # what Beam calls the version
START_SECONDS = 240
STOP_SECONDS = 10
INSIDE = "[local]"
"""In the place of a cluster's address: each job gets a cluster of its own, inside the job server."""
BUFFERS = "taskmanager.memory.network.min: 256mb\ntaskmanager.memory.network.max: 256mb\n"
"""Of a cluster inside the job server: with its usual 64 MB the jobs with most tests do not always run."""
RUNNING = {beam_job_api_pb2.JobState.STARTING, beam_job_api_pb2.JobState.RUNNING}
OVER = {beam_job_api_pb2.JobState.DONE, beam_job_api_pb2.JobState.FAILED}
SENDS_NOTHING = """package org.apache.beam.sdk.util.construction.resources;

public class ClasspathScanningResourcesDetector implements PipelineResourcesDetector {
  public ClasspathScanningResourcesDetector(io.github.classgraph.ClassGraph unused) {}

  public java.util.List<String> detect(ClassLoader unused) {
    return new java.util.ArrayList<>();
  }
}
"""
"""Stands in front of Beam's class of this name, by which a job server sends its libraries, 120 MB, along with each job.

The clusters of `deploy/flink_cluster.py` have them. To send, keep and fetch them takes longer than the rest of a job.
"""


def jar() -> Path:
    """Return where `deploy/get_flink_job_server.sh` puts the jar, unless FLINK_JOB_SERVER_JAR says otherwise."""
    folder = f"job-server-{FLINK_VERSION}-beam-{apache_beam.__version__}-newest"
    return Path(os.environ.get("FLINK_JOB_SERVER_JAR") or REPOSITORY / ".cache" / "flink" / folder / "job-server.jar")


@dataclass(frozen=True)
class Server:
    """A job server that runs."""

    endpoint: str
    process: subprocess.Popen
    folder: Path


_servers: dict[str, Server] = {}


def endpoint(flink_master: str = INSIDE) -> str:
    """Return the address of this process's job server for a cluster; by default each job gets its own.

    A cluster must have Beam's libraries: they are not sent to it.
    """
    if flink_master not in _servers:
        _servers[flink_master] = _start(flink_master)
    return _servers[flink_master].endpoint


def end_jobs() -> list[str]:
    """End what runs inside the job server of this process, and return the names of the jobs that were not over.

    A job that is cancelled goes on there: Beam only looks at it no longer. So such a job server is ended, and the next
    who asks for one starts another.
    """
    if INSIDE not in _servers:
        return []
    with grpc.insecure_channel(_servers[INSIDE].endpoint) as channel:
        server = beam_job_api_pb2_grpc.JobServiceStub(channel)
        jobs = server.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=START_SECONDS).job_info
    if not all(job.state in OVER for job in jobs):
        _servers[INSIDE].process.kill()
        _stop(_servers.pop(INSIDE))
    return [job.job_name for job in jobs if job.state in RUNNING]


def _start(flink_master: str) -> Server:
    folder = Path(tempfile.mkdtemp(prefix="flink-job-server-"))
    output = folder / "output"
    (folder / "flink-conf.yaml").write_text(BUFFERS)
    java = ["java", "-jar", str(jar())] if flink_master == INSIDE else _without_libraries(folder / "classes")
    folders = [f"--artifacts-dir={folder / 'artifacts'}", f"--flink-conf-dir={folder}"]
    command = [*java, f"--flink-master={flink_master}", *folders]
    ports = [f"--{service}-port=0" for service in ("job", "artifact", "expansion")]
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [*command, *ports],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PRIVSTREAM_JOB_SERVER_OWNER": str(os.getpid())},
        )
    atexit.register(_stop, Server("", process, folder))
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        started = re.search(r"JobService started on (\S+)", output.read_text(errors="replace"))
        if started:
            return Server(started[1], process, folder)
        time.sleep(0.1)
    raise RuntimeError(f"the Flink job server did not start:\n{output.read_text(errors='replace')[-2000:]}")


def _without_libraries(classes: Path) -> list[str]:
    """Return what starts the job server such that it sends nothing of its own along with a job."""
    classes.mkdir()
    source = classes / "ClasspathScanningResourcesDetector.java"
    source.write_text(SENDS_NOTHING)
    subprocess.run(["javac", "-nowarn", "-proc:none", "-cp", str(jar()), "-d", str(classes), str(source)], check=True)
    with zipfile.ZipFile(jar()) as archive:
        manifest = archive.read("META-INF/MANIFEST.MF").decode().replace("\r\n ", "")
    told = dict(line.split(": ", 1) for line in manifest.splitlines() if line)
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in told.get("Add-Opens", "").split()]
    return ["java", *opened, "-cp", f"{classes}{os.pathsep}{jar()}", told["Main-Class"]]


def _stop(server: Server) -> None:
    server.process.terminate()
    try:
        server.process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.process.kill()
    shutil.rmtree(server.folder, ignore_errors=True)
