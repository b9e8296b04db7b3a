"""A Flink session cluster of separate processes on this machine, on loopback only: for one machine, and for tests.

    python deploy/flink_cluster.py start                 # job manager, two task managers, a pool of Python workers
    python deploy/flink_cluster.py options [--unbounded] # the Beam options that submit a pipeline to it
    python deploy/flink_cluster.py suspend [JOB]         # end a job with a savepoint, and print where it is
    python deploy/flink_cluster.py options --resume SAVEPOINT   # go on from there, with this Python's version
    python deploy/flink_cluster.py cancel [JOB]
    python deploy/flink_cluster.py stop

Flink's jars come from the Python package apache-flink-libraries. Logs and checkpoints lie in the run folder.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FLINK_VERSION = os.environ.get("FLINK_VERSION") or (HERE / "flink_version").read_text().strip()
CACHE = HERE.parent / ".cache" / "flink"
HOST = "127.0.0.1"
SECONDS = 120
ENDED = ("FINISHED", "CANCELED", "FAILED")
MAIN = {
    "job-manager": ("JM", "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"),
    "task-manager": ("TM", "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"),
}
# In jobs of minutes Java's second compiler took two fifths of Java's CPU; the rest is what Flink asks of Java 17.
OPENED = "lang lang.reflect io net nio text time util util.concurrent util.concurrent.atomic util.concurrent.locks"
JAVA_OPTIONS = [
    "-XX:TieredStopAtLevel=1",
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED.split()),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
]
# Why: pipelines/runners/flink.py, which sets them for `privstream` commands.
CHECKPOINTS = [
    "--checkpointing_interval=10000", "--finish_bundle_before_checkpointing", "--operator_chaining=false",
    "--checkpoint_timeout_millis=120000", "--max_bundle_time_mills=100", "--min_pause_between_checkpoints=1000",
    "--externalized_checkpoints_enabled", "--retain_externalized_checkpoints_on_cancellation",
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
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary=:all:", "-d", scratch]
            subprocess.run([*pip, f"apache-flink-libraries=={FLINK_VERSION}"], check=True)
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as unpacked:
                unpacked.extractall(scratch, filter="data")
            shutil.move(Path(scratch, archive.name.removesuffix(".tar.gz"), "deps"), folder)
    return folder


def beam_libraries(jar: Path | None) -> str:
    """Return the class path of Beam's job server, without what a cluster has itself.

    Task managers have it on their own class path: otherwise each restart of a job brings it along, and after some ten
    of them the memory for classes is full. The jar's own `ServerFactory` comes before Beam's, which listens everywhere.
    """
    jar = jar or CACHE / f"job-server-{FLINK_VERSION}-beam-{version('apache-beam')}-newest" / "job-server.jar"
    if not jar.is_file():
        raise ClusterError(f"--job-server must be a jar, got {jar}; deploy/get_flink_job_server.sh gives one")
    own = ("flink-", "slf4j-", "log4j-")
    jars = [each for each in sorted((jar.resolve().parent / "lib").glob("*.jar")) if not each.name.startswith(own)]
    return os.pathsep.join(map(str, [jar.resolve(), *jars]))


def settings(run: Path, rest_port: int, slots: int) -> dict[str, object]:
    """Return Flink's settings: loopback everywhere, RocksDB state, checkpoints that survive cancellation."""
    return {
        "jobmanager.rpc.address": HOST,
        "jobmanager.rpc.port": free_port(),
        "jobmanager.bind-host": HOST,
        "jobmanager.memory.process.size": "1g",
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "rest.port": rest_port,
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        "taskmanager.memory.process.size": "3g",
        "taskmanager.memory.task.off-heap.size": "256m",  # for messages between Java and Python
        "taskmanager.numberOfTaskSlots": slots,
        "taskmanager.load-balance.mode": "SLOTS",
        "classloader.resolve-order": "parent-first",
        "state.backend.type": "rocksdb",
        "state.backend.incremental": True,
        "state.checkpoints.dir": (run / "checkpoints").as_uri(),
        "state.savepoints.dir": (run / "savepoints").as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        # Slots of a killed task manager are offered until its heartbeat times out: restart for ever, with pauses.
        "heartbeat.interval": 2000,
        "heartbeat.timeout": 10000,
        "restart-strategy.type": "exponential-delay",
        "restart-strategy.exponential-delay.initial-backoff": "1s",
        "restart-strategy.exponential-delay.max-backoff": "10s",
        "restart-strategy.exponential-delay.reset-backoff-threshold": "2min",
        "io.tmp.dirs": str(run / "tmp"),
        "env.java.opts.all": " ".join(JAVA_OPTIONS),
    }


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def start(run: Path, task_managers: int, slots: int, rest_port: int, job_server: Path | None) -> None:
    """Start the processes, or those that have died, and wait until every task manager has reported its slots."""
    if any(alive(file) for file in run.glob("*.pid")):
        if not (died := [name for name in about(run)["names"] if not alive(run / f"{name}.pid")]):
            raise ClusterError(f"a cluster runs already in {run}; stop it first")
        for name in died:
            start_process(run, name)
        return wait_for_slots(run)
    if shutil.which("java") is None:
        raise ClusterError("Java is not installed; install a Java runtime, 11 or 17")
    with socket.socket() as probe:
        if probe.connect_ex((HOST, rest_port)) == 0:
            raise ClusterError(f"port {rest_port} is taken; choose another with --rest-port")
    beam = beam_libraries(job_server)
    install()
    names = ["worker-pool", "job-manager", *(f"task-manager-{number}" for number in range(task_managers))]
    told = {"names": names, "slots": task_managers * slots, "beam": beam, "rest": rest_port, "pool": free_port()}
    (run / "conf").mkdir(parents=True, exist_ok=True)
    (run / "tmp").mkdir(exist_ok=True)
    (run / "cluster.json").write_text(json.dumps(told))
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in settings(run, rest_port, slots).items()]
    (run / "conf" / "config.yaml").write_text("".join(lines))
    (run / "conf" / "log4j.properties").write_text(LOG4J)
    try:
        for name in names:
            start_process(run, name)
        wait_for_slots(run)
    except BaseException:
        stop(run)
        raise


def wait_for_slots(run: Path) -> None:
    """Wait until all slots are there."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if rest(run, "/overview")["slots-total"] == about(run)["slots"]:
                return
        time.sleep(0.3)
    raise ClusterError(f"waited {SECONDS} s in vain for the task managers to report; see the .out files in {run}")


def start_process(run: Path, name: str) -> None:
    """Start one process of the cluster in a session of its own; its output goes to `<name>.out`."""
    if name == "worker-pool":
        command = [sys.executable, str(HERE / "worker_pool.py"), f"--port={about(run)['pool']}"]
    else:
        short, main = MAIN[name.rstrip("-0123456789")]
        jvm, derived = memory_options(run / "conf", f"GET_{short}_RESOURCE_PARAMS")
        more = ["--executionMode", "cluster"] if short == "JM" else ["-D", f"taskmanager.resource-id={name}"]
        classes = os.pathsep.join([f"{install()}/lib/*", about(run)["beam"]])
        command = ["java", *jvm, *JAVA_OPTIONS, f"-Dlog4j.configurationFile={run}/conf/log4j.properties"]
        command += ["-cp", classes, main, "--configDir", str(run / "conf"), *derived, *more]
    with (run / f"{name}.out").open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env=os.environ | {"FLINK_PLUGINS_DIR": f"{CACHE}/flink-{FLINK_VERSION}/plugins"},
        )  # fmt: skip
    (run / f"{name}.pid").write_text(f"{process.pid} {_birth(process.pid)}\n")


def memory_options(conf: Path, what: str) -> tuple[list[str], list[str]]:
    """Ask Flink for the JVM options and the settings that its memory model derives from the configuration."""
    classes = f"{install()}/bin/bash-java-utils.jar{os.pathsep}{install()}/lib/*"
    ask = ["java", "-cp", classes, "org.apache.flink.runtime.util.bash.BashJavaUtils", what, "--configDir", str(conf)]
    answer = subprocess.run(ask, capture_output=True, text=True, check=False)
    marker = "BASH_JAVA_UTILS_EXEC_RESULT:"
    lines = [line.removeprefix(marker).split() for line in answer.stdout.splitlines() if line.startswith(marker)]
    if answer.returncode or len(lines) != 2:
        raise ClusterError(f"Flink refused its configuration in {conf}:\n{answer.stdout[-1000:]}")
    return lines[0], lines[1]


def alive(pid_file: Path) -> int | None:
    """Return the process id if the process that was started still runs: same id and same time of birth."""
    pid, _, birth = pid_file.read_text().strip().partition(" ")
    return int(pid) if birth and _birth(int(pid)) == birth else None


def _birth(pid: int) -> str:
    """Return when a process was born, in the system's own words; empty for none and for a finished one."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    return ""


def stop_process(pid_file: Path) -> bool:
    """End a process and what it started, with SIGTERM, then SIGKILL; say whether it was still running."""
    pid = alive(pid_file)
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 15
        if alive(pid_file):
            os.killpg(int(pid or 0), number)
        while alive(pid_file) and time.monotonic() < deadline:
            time.sleep(0.1)
    pid_file.unlink()
    return pid is not None


def stop(run: Path) -> None:
    """End every process of this cluster, task managers first."""
    for file in sorted(run.glob("*.pid"), reverse=True):
        print(f"{file.stem}: {'stopped' if stop_process(file) else 'was not running'}")


def about(run: Path) -> Any:
    """Return what the start wrote down about the cluster."""
    try:
        return json.loads((run / "cluster.json").read_text())
    except FileNotFoundError:
        raise ClusterError(f"no cluster in {run}; start one first") from None


def rest(run: Path, path: str, method: str = "GET", body: dict[str, Any] | None = None) -> Any:
    """Call the REST interface of the job manager."""
    data = None if body is None else json.dumps(body).encode()
    address = f"http://{HOST}:{about(run)['rest']}{path}"
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        return json.loads(answer.read() or b"{}")


def options(run: Path, parallelism: int | None, *, unbounded: bool, resume: str | None) -> list[str]:
    """Return the Beam options that submit a Python pipeline; one over bounded input takes no checkpoints."""
    told = about(run)
    chosen = ["--runner=FlinkRunner", f"--flink_version={FLINK_VERSION.rpartition('.')[0]}"]
    chosen += [f"--flink_master={HOST}:{told['rest']}", "--environment_type=EXTERNAL"]
    chosen += [f"--environment_config={HOST}:{told['pool']}", f"--parallelism={parallelism or told['slots']}"]
    chosen += ["--max_parallelism=128", "--streaming", *(CHECKPOINTS if unbounded or resume else [])]
    if resume is not None and not Path(resume, "_metadata").is_file():
        raise ClusterError(f"--resume must be the folder of a savepoint or checkpoint, got {resume}")
    return chosen if resume is None else [*chosen, f"--savepoint_path={Path(resume).resolve()}"]


def running(run: Path) -> list[str]:
    """Return the jobs that have not ended."""
    return [job["jid"] for job in rest(run, "/jobs/overview")["jobs"] if job["state"] not in ENDED]


def suspend(run: Path, job: str) -> str:
    """End a job with a savepoint, and return its folder; without another job, workers are this Python's from now on."""
    if (state := rest(run, f"/jobs/{job}")["state"]) != "RUNNING":
        raise ClusterError(f"the job is {state.lower()}: resume from its last checkpoint, in {run}/checkpoints/{job}")
    trigger = rest(run, f"/jobs/{job}/stop", "POST", {"drain": False})["request-id"]
    deadline = time.monotonic() + SECONDS
    while (answer := rest(run, f"/jobs/{job}/savepoints/{trigger}"))["status"]["id"] != "COMPLETED":
        if time.monotonic() > deadline:
            raise ClusterError(f"no savepoint after {SECONDS} s; is the job busy? See {run}")
        time.sleep(0.2)
    while job in running(run) and time.monotonic() < deadline:
        time.sleep(0.2)
    if "location" not in answer["operation"]:
        raise ClusterError("no savepoint was written: try again when the job runs without restarts")
    if not running(run):
        stop_process(run / "worker-pool.pid")
        start_process(run, "worker-pool")
    return str(answer["operation"]["location"]).removeprefix("file:")


def run_command(run: Path, given: argparse.Namespace) -> None:
    """Run one command."""
    if given.command == "start":
        start(run, given.task_managers, given.slots, given.rest_port, given.job_server)
        print(f"Flink's page: http://{HOST}:{given.rest_port}; logs and state: {run}")
    elif given.command == "options":
        print(*options(run, given.parallelism, unbounded=given.unbounded, resume=given.resume))
    elif given.command == "stop":
        stop(run)
    elif given.command in ("suspend", "cancel"):
        jobs = [given.job] if given.job else running(run)
        if len(jobs) != 1:
            raise ClusterError(f"{given.command} needs the job's id, which Flink's page lists")
        if given.command == "suspend":
            print(suspend(run, jobs[0]))
        else:
            rest(run, f"/jobs/{jobs[0]}?mode=cancel", "PATCH")


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["start", "options", "suspend", "cancel", "stop"])
    parser.add_argument("job", nargs="?", help="the job's id; needed only if several have not ended")
    parser.add_argument("--run", type=Path, default=CACHE / "cluster", help="run folder (%(default)s)")
    parser.add_argument("--task-managers", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1, help="of each task manager")
    parser.add_argument("--rest-port", type=int, default=8081, help="of Flink's page (%(default)s)")
    parser.add_argument("--job-server", type=Path, help="Beam's job server (default: the one in the cache)")
    parser.add_argument("--parallelism", type=int, help="for options; all slots by default")
    parser.add_argument("--unbounded", action="store_true", help="for options: take checkpoints")
    parser.add_argument("--resume", help="for options: folder of the savepoint or checkpoint to go on from")
    given = parser.parse_args()
    try:
        run_command(given.run.resolve(), given)
    except urllib.error.URLError as error:
        sys.exit(f"flink_cluster: no answer from the cluster ({error}); is it started? logs are in {given.run}")
    except ClusterError as error:
        sys.exit(f"flink_cluster: {error}")


if __name__ == "__main__":
    main()
