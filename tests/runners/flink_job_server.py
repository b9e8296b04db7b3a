"""Beam's job server for Flink: one for all tests of a process, started when the first asks, ended with the process."""

import atexit
import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path

import apache_beam

REPOSITORY = Path(__file__).parents[2]
FLINK_VERSION = os.environ.get("FLINK_VERSION") or (REPOSITORY / "deploy" / "flink_version").read_text().strip()
FLINK_LINE = FLINK_VERSION.rpartition(".")[0]  # what Beam calls the version
START_SECONDS = 60
STOP_SECONDS = 10
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
    folder = f"job-server-{FLINK_VERSION}-beam-{apache_beam.__version__}"
    return Path(os.environ.get("FLINK_JOB_SERVER_JAR") or REPOSITORY / ".cache" / "flink" / folder / "job-server.jar")


@functools.cache
def endpoint(flink_master: str = "[local]") -> str:
    """Return the address of this process's job server for a cluster; by default each job gets its own.

    A cluster must have Beam's libraries: they are not sent to it.
    """
    folder = Path(tempfile.mkdtemp(prefix="flink-job-server-"))
    output = folder / "output"
    java = ["java", "-jar", str(jar())] if flink_master == "[local]" else _without_libraries(folder / "classes")
    command = [*java, f"--flink-master={flink_master}", f"--artifacts-dir={folder / 'artifacts'}"]
    ports = [f"--{service}-port=0" for service in ("job", "artifact", "expansion")]
    with output.open("wb") as stream:
        server = subprocess.Popen(
            [*command, *ports],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    atexit.register(_stop, server, folder)
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        started = re.search(r"JobService started on (\S+)", output.read_text(errors="replace"))
        if started:
            return started[1]
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


def _stop(server: subprocess.Popen, folder: Path) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
    shutil.rmtree(folder, ignore_errors=True)
