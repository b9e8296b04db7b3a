"""A Flink session cluster of separate processes on this machine, without Docker and on loopback only.

    python deploy/flink_cluster.py start              # ZooKeeper, job manager, two task managers, a Python worker pool
    python deploy/flink_cluster.py options            # the Beam options that submit a pipeline over files to it
    python deploy/flink_cluster.py options --unbounded   # the same for unbounded input, with checkpoints
    python deploy/flink_cluster.py status             # processes, slots, jobs, why a job was restarted
    python deploy/flink_cluster.py watch              # the same whenever it changes, and start again what has died
    python deploy/flink_cluster.py repair             # start again what has died, once
    python deploy/flink_cluster.py scale --task-managers 3   # so many from now on; after `start --adaptive` jobs follow
    python deploy/flink_cluster.py savepoint JOB      # write one and print its path; `suspend JOB` also ends the job
    python deploy/flink_cluster.py checkpoint [JOB]   # print the path of the newest retained checkpoint
    python deploy/flink_cluster.py options --resume PATH --parallelism 1   # go on from there
    python deploy/flink_cluster.py upgrade [JOB] -- COMMAND   # a savepoint, then the new version of its command goes on
    python deploy/flink_cluster.py rollback [JOB] --resume PATH -- COMMAND   # back to the old one, from that savepoint
    python deploy/flink_cluster.py cancel JOB
    python deploy/flink_cluster.py stop

Flink comes from the Python package apache-flink-libraries, which holds the distribution's jars; it is unpacked under
.cache/ and is no dependency of this project. Logs, checkpoints and pid files lie in the run folder.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import processes
from flink_distribution import (
    CACHE,
    FLINK_VERSION,
    HOST,
    JAVA_OPTIONS,
    TASK_MANAGER_MEMORY,
    ClusterError,
    cached_job_server,
    configuration,
    free_port,
    has_reporter,
    install,
    java,
    memory_options,
    reporter_options,
    write_configuration,
)
from flink_jobs import ENDED, JobError, Jobs, latest_checkpoint

START_SECONDS = 90
REST_PORT = 8081  # Flink's own default
WATCH_SECONDS = 2
CHECKPOINT_MILLISECONDS = 10_000
# Why: pipelines/runners/flink.py, which sets them for `privstream` commands.
CHECKPOINT_OPTIONS = (
    "--finish_bundle_before_checkpointing",
    "--operator_chaining=false",
    "--checkpoint_timeout_millis=120000",
    "--max_bundle_time_mills=100",
    "--min_pause_between_checkpoints=1000",
    "--externalized_checkpoints_enabled",
    "--retain_externalized_checkpoints_on_cancellation",
)
WHERE = ("--flink_master=", "--environment_config=", "--savepoint_path=")
ZOOKEEPER = "org.apache.flink.runtime.zookeeper.FlinkZooKeeperQuorumPeer"
JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"


def start(
    run: Path,
    task_managers: int,
    slots: int,
    memory: str,
    rest_port: int | None,
    job_server: Path | None = None,
    metrics_port: int | None = None,
    *,
    adaptive: bool = False,
) -> None:
    """Start the processes and wait until every task manager has reported its slots.

    Jobs of an adaptive cluster take the slots that there are, up to their own parallelism.

    Task managers have Beam's libraries, those of the job server's jar, on their own class path. Otherwise each job, and
    each restart of one, brings them along and Beam never lets go of them: after some ten restarts the memory for
    classes is full and the task manager dies. Python workers could not be kept between stages of a batch job, either.
    """
    if any(processes.alive(file) for file in run.glob("*.pid")):
        raise ClusterError(f"a cluster runs already in {run}; stop it first")
    if any(run.glob("*.pid")):
        raise ClusterError(
            f"the cluster in {run} was not stopped, but its processes are gone: `repair` starts them again and its "
            "jobs go on, `stop` forgets its jobs"
        )
    if rest_port is not None and _taken(rest_port):
        raise ClusterError(f"port {rest_port} is taken; choose another with --rest-port, or leave it out")
    java()
    for package in ("apache_beam", "privstream"):
        if not _has(package):
            raise ClusterError(f"{sys.executable} has no {package}, so its workers could run no pipeline: install it")
    job_server = job_server or cached_job_server()
    if job_server is None:
        print(
            "flink_cluster: no job server in the cache, so a task manager will end after some ten restarts of jobs: "
            "run deploy/get_flink_job_server.sh, or name one with --job-server",
            file=sys.stderr,
        )
    beam = "" if job_server is None else _beam_libraries(job_server)
    install()
    rest_port = rest_port or (free_port() if _taken(REST_PORT) else REST_PORT)
    ports = {"pool_port": free_port(), "zookeeper_port": free_port(), "rest_port": rest_port}
    settings = configuration(run, rest_port, slots, memory, ports["zookeeper_port"])
    if beam:
        settings["classloader.resolve-order"] = "parent-first"
    if adaptive:
        settings["jobmanager.scheduler"] = "adaptive"
    write_configuration(run, settings, ports["zookeeper_port"])
    size = {"task_managers": task_managers, "slots": slots, "beam": beam}
    metrics = {}
    if job_server is not None and has_reporter(job_server):
        metrics = _metrics_ports(_flinks(task_managers), metrics_port)
    elif metrics_port is not None:
        raise ClusterError("--metrics-port needs the job server that deploy/get_flink_job_server.sh puts together")
    (run / "cluster.json").write_text(json.dumps(ports | size | {"metrics": metrics}))
    try:
        repair(run)
    except BaseException:
        stop(run)
        raise


def scale(run: Path, task_managers: int) -> list[str]:
    """Let there be so many task managers: start further ones, or stop the last; return what was started or stopped."""
    if task_managers < 1:
        raise ClusterError(f"--task-managers must be >= 1, got {task_managers}")
    told = about(run)
    names, known = _flinks(task_managers), told["metrics"]
    told |= {"task_managers": task_managers}
    if known:
        told["metrics"] = {name: known.get(name) or free_port() for name in names}
    gone = [name for name in _parts(run) if name.startswith("task-manager") and name not in names]
    (run / "cluster.json").write_text(json.dumps(told))
    for name in gone:
        processes.stop(run / f"{name}.pid")
    return gone + repair(run)


def _metrics_ports(names: list[str], first: int | None) -> dict[str, int]:
    """Return a port for the metrics of each process: free ones, or from the first given one on."""
    ports = {name: free_port() if first is None else first + number for number, name in enumerate(names)}
    taken = [port for port in ports.values() if _taken(port)]
    if taken:
        raise ClusterError(f"port {taken[0]} is taken; choose another with --metrics-port, or leave it out")
    return ports


def _taken(port: int) -> bool:
    """Tell whether another program listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _has(package: str) -> bool:
    """Tell whether this Python has a package; a namespace alone, which any folder of the name makes, is not one."""
    found = importlib.util.find_spec(package)
    if found is not None and found.origin is None:
        found = importlib.util.find_spec(f"{package}.transforms")
    return found is not None


def _beam_libraries(job_server: Path) -> str:
    """Return the class path of a job server, without what a cluster has itself.

    The job server's own jar comes first: its `ServerFactory` stands in front of Beam's, which listens on every
    interface.
    """
    if not job_server.is_file():
        raise ClusterError(f"--job-server must be a jar, got {job_server}; deploy/get_flink_job_server.sh gives one")
    folder = job_server.resolve().parent / "lib"
    own = ("flink-", "slf4j-", "log4j-")
    jars = [jar for jar in sorted(folder.glob("*.jar")) if not jar.name.startswith(own)]
    return os.pathsep.join(map(str, [job_server.resolve(), *jars]))


def repair(run: Path) -> list[str]:
    """Start what does not run, wait until every slot is there, and return the names of what was started.

    What was killed a moment ago may still be seen to run, and to have ended only later.
    """
    slots = about(run)["task_managers"] * about(run)["slots"]
    started: list[str] = []
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for name in _parts(run):
            if not _runs(run, name):
                if name in started:
                    raise ClusterError(f"{name} ended at once; see {run}/{name}.out")
                start_process(run, name)
                started.append(name)
        with contextlib.suppress(urllib.error.URLError, ConnectionError, KeyError):
            if jobs(run).rest("/overview")["slots-total"] == slots:
                return started
        time.sleep(0.3)
    raise ClusterError(f"waited {START_SECONDS} s in vain for the task managers to report; see the .out files in {run}")


def start_process(run: Path, name: str) -> None:
    """Start one process of the cluster."""
    conf = run / "conf"
    match name.rstrip("-0123456789"):
        case "worker-pool":
            pool = Path(__file__).with_name("worker_pool.py")
            processes.start(run, name, [sys.executable, str(pool), f"--port={about(run)['pool_port']}"])
        case "zookeeper":
            _start_java(run, name, ZOOKEEPER, ["-Xmx128m"], ["--zkConfigFile", str(conf / "zoo.cfg"), "--peerId", "1"])
        case "job-manager":
            jvm, derived = memory_options(install(), conf, "GET_JM_RESOURCE_PARAMS")
            arguments = ["--configDir", str(conf), *derived, "--executionMode", "cluster", "--host", HOST]
            _start_java(run, name, JOB_MANAGER, jvm, arguments)
        case _:
            jvm, derived = memory_options(install(), conf, "GET_TM_RESOURCE_PARAMS")
            resource = ["-D", f"taskmanager.resource-id={name}"]
            _start_java(run, name, TASK_MANAGER, jvm, ["--configDir", str(conf), *derived, *resource])


def _parts(run: Path) -> list[str]:
    """Return the names of all processes, in the order in which they start."""
    return ["worker-pool", "zookeeper", *_flinks(about(run)["task_managers"])]


def _flinks(task_managers: int) -> list[str]:
    """Return the names of Flink's own processes."""
    return ["job-manager", *(f"task-manager-{number}" for number in range(task_managers))]


def _runs(run: Path, name: str) -> int | None:
    """Return the process id of one of the processes if it runs."""
    file = run / f"{name}.pid"
    return processes.alive(file) if file.exists() else None


def _start_java(run: Path, name: str, main: str, jvm: list[str], arguments: list[str]) -> None:
    port = about(run)["metrics"].get(name)
    more, settings = reporter_options(port) if port else ([], [])
    logging = f"-Dlog4j.configurationFile={run}/conf/log4j.properties"
    classes = os.pathsep.join(filter(None, [f"{install()}/lib/*", about(run)["beam"]]))
    command = [java(), *jvm, *JAVA_OPTIONS, *more, logging, "-cp", classes, main, *arguments, *settings]
    processes.start(run, name, command, {"FLINK_PLUGINS_DIR": f"{install()}/plugins"})


def about(run: Path) -> dict:
    """Return what the start wrote down about the cluster."""
    try:
        return json.loads((run / "cluster.json").read_text())
    except FileNotFoundError:
        raise ClusterError(f"no cluster in {run}; start one first") from None


def jobs(run: Path) -> Jobs:
    """Return the cluster's jobs."""
    return Jobs(f"http://{HOST}:{about(run)['rest_port']}")


def options(
    run: Path, parallelism: int | None = None, *, unbounded: bool = False, resume: str | None = None
) -> list[str]:
    """Return the Beam options that submit a Python pipeline to this cluster.

    A run over bounded input takes no checkpoints: it would not end, and can as well start over.
    """
    chosen = [
        "--runner=FlinkRunner",
        f"--flink_version={FLINK_VERSION.rpartition('.')[0]}",
        f"--flink_master={HOST}:{about(run)['rest_port']}",
        "--environment_type=EXTERNAL",
        f"--environment_config={HOST}:{about(run)['pool_port']}",
        f"--parallelism={parallelism or about(run)['task_managers'] * about(run)['slots']}",
        "--max_parallelism=128",
        "--streaming",
    ]
    if unbounded or resume is not None:
        chosen += [f"--checkpointing_interval={CHECKPOINT_MILLISECONDS}", *CHECKPOINT_OPTIONS]
    if resume is not None:
        if not Path(resume, "_metadata").is_file():
            raise ClusterError(f"--resume must be the folder of a savepoint or checkpoint, got {resume}")
        chosen.append(f"--savepoint_path={Path(resume).resolve()}")
    return chosen


def upgrade(run: Path, job: str, command: list[str]) -> None:
    """Suspend a job, let workers be of this Python, and go on with another version of what submitted it."""
    savepoint = _with_workers_of_its_own(run, job, command).savepoint(job, suspend=True)
    print(f"suspended {job}, savepoint: {savepoint}", flush=True)
    _go_on(run, savepoint, command)


def rollback(run: Path, job: str | None, savepoint: str | None, command: list[str]) -> None:
    """End what runs, if anything does, and go on with the old version from the savepoint before the upgrade.

    The windows since then are published again, with the same rows.
    """
    if savepoint is None:
        raise ClusterError("rollback needs --resume, the savepoint that upgrade has printed")
    options(run, resume=savepoint)  # checks that it is there
    if job is not None:
        _with_workers_of_its_own(run, job, command).cancel(job)
    _go_on(run, savepoint, command)


def _with_workers_of_its_own(run: Path, job: str, command: list[str]) -> Jobs:
    """Check that a job may get workers of another version."""
    if not command:
        raise ClusterError("the command that submits the job must be given, after --")
    others = [each["jid"] for each in jobs(run).listed() if each["state"] not in ENDED and each["jid"] != job]
    if others:
        raise ClusterError(f"all jobs share the workers, whose version changes: suspend {', '.join(others)} first")
    return jobs(run)


def _go_on(run: Path, savepoint: str, command: list[str]) -> None:
    """Start workers of this Python, and a command that submits a job from a savepoint; see that the job goes on."""
    deadline = time.monotonic() + START_SECONDS
    while any(job["state"] not in ENDED for job in jobs(run).listed()):
        if time.monotonic() > deadline:
            raise ClusterError(f"the job has not ended within {START_SECONDS} s; status shows it")
        time.sleep(0.2)
    processes.stop(run / "worker-pool.pid")
    start_process(run, "worker-pool")

    def submit() -> None:
        with (run / "launcher.out").open("wb") as output:
            subprocess.Popen(
                [*command, *_further(command, options(run, unbounded=True, resume=savepoint))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    try:
        job = jobs(run).resume(submit, savepoint)
    except JobError as error:
        raise JobError(f"the new job does not go on: {error}. Go back with rollback --resume {savepoint}") from error
    print(f"goes on: {job}, from {savepoint}")


def _further(command: list[str], chosen: list[str]) -> list[str]:
    """Return the options that a command has not chosen itself, and those that say where its job goes on."""
    own = {each.partition("=")[0] for each in command}
    return [each for each in chosen if each.startswith(WHERE) or each.partition("=")[0] not in own]


def status(run: Path) -> str:
    """Return processes, slots and jobs as text."""
    shown = {name: f"metrics: http://{HOST}:{port}/metrics" for name, port in about(run)["metrics"].items()}
    shown["job-manager"] = f"page: {jobs(run).address}  {shown.get('job-manager', '')}"
    lines = [f"{name:16} {_runs(run, name) or 'dead':<8} {shown.get(name, '')}".rstrip() for name in _parts(run)]
    totals = jobs(run).rest("/overview")
    lines.append(f"slots            {totals['slots-available']} of {totals['slots-total']} free")
    for job in jobs(run).listed():
        lines.append(f"job {job['jid']} {job['state']:10} {job['name']}")
        trouble = jobs(run).trouble(job["jid"])
        if trouble and job["state"] not in ("FINISHED", "CANCELED"):
            times = max(1, jobs(run).restarts(job["jid"]))  # which Flink counts some seconds later
            lines.append(f"    restarted {times} time{'s' * (times > 1)}; the last fault: {trouble}")
    return "\n".join(lines)


def watch(run: Path) -> None:
    """Print the status whenever it changes and start again what has died, until interrupted."""
    shown = ""
    while True:
        dead = [name for name in _parts(run) if not _runs(run, name)]
        if dead:
            print(f"{time.strftime('%H:%M:%S')} starting again: {', '.join(dead)}", flush=True)
            repair(run)
        try:
            now = status(run)
        except (urllib.error.URLError, ConnectionError):
            now = "no answer from the job manager"
        if now != shown:
            shown = now
            print(f"{time.strftime('%H:%M:%S')}\n{now}", flush=True)
        time.sleep(WATCH_SECONDS)


def stop(run: Path) -> None:
    """End every process of this cluster, the job manager and ZooKeeper last; what they knew of jobs is forgotten."""
    order = ["task-manager", "worker-pool", "job-manager", "zookeeper"]
    for file in sorted(run.glob("*.pid"), key=lambda file: order.index(file.stem.rstrip("-0123456789"))):
        print(f"{file.stem}: {'stopped' if processes.stop(file) else 'was not running'}")
    for folder in ("ha", "zookeeper"):
        shutil.rmtree(run / folder, ignore_errors=True)


def _one_job(run: Path, job: str | None, command: str) -> str:
    """Return the job that was named, or the only one that has not ended."""
    running = [found["jid"] for found in jobs(run).listed() if found["state"] not in ENDED]
    if job is None and len(running) == 1:
        return running[0]
    if job is None:
        raise ClusterError(f"{command} needs the job's id; status lists them")
    return job


def run_command(run: Path, arguments: argparse.Namespace) -> None:
    """Run one command."""
    match arguments.command:
        case "start":
            size = arguments.task_managers, arguments.slots, arguments.task_manager_memory
            more = arguments.rest_port, arguments.job_server, arguments.metrics_port
            start(run, *size, *more, adaptive=arguments.adaptive)
            print(status(run))
        case "status":
            print(status(run))
        case "watch":
            watch(run)
        case "repair":
            print(f"started again: {', '.join(repair(run)) or 'nothing, everything runs'}")
        case "scale":
            print(f"started or stopped: {', '.join(scale(run, arguments.task_managers)) or 'nothing'}")
        case "options":
            print(*options(run, arguments.parallelism, unbounded=arguments.unbounded, resume=arguments.resume))
        case "checkpoint":
            print(latest_checkpoint(run / "checkpoints", arguments.job))
        case "savepoint" | "suspend" as command:
            print(jobs(run).savepoint(_one_job(run, arguments.job, command), suspend=command == "suspend"))
        case "upgrade":
            upgrade(run, _one_job(run, arguments.job, "upgrade"), arguments.submit)
        case "rollback":
            running = [job["jid"] for job in jobs(run).listed() if job["state"] not in ENDED]
            job = _one_job(run, arguments.job, "rollback") if running else None
            rollback(run, job, arguments.resume, arguments.submit)
        case "cancel":
            jobs(run).cancel(_one_job(run, arguments.job, "cancel"))
        case "stop":
            stop(run)


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = "start options status watch repair scale savepoint suspend checkpoint upgrade rollback cancel stop"
    parser.add_argument("command", choices=commands.split())
    parser.add_argument("job", nargs="?", help="the job's id; may be left out if only one has not ended")
    parser.add_argument("--run", type=Path, default=CACHE / "cluster", help="run folder (%(default)s)")
    parser.add_argument("--task-managers", type=int, default=2, help="for start, scale: their number (%(default)s)")
    parser.add_argument("--slots", type=int, default=1, help="slots of each task manager")
    parser.add_argument(
        "--task-manager-memory",
        default=TASK_MANAGER_MEMORY,
        metavar="SIZE",
        help="for start: of each, as Flink writes sizes (%(default)s). Over files that are not in order of time all "
        "windows come due at the end, and their output has to fit",
    )
    parser.add_argument(
        "--rest-port", type=int, help=f"for start: of Flink's page (default: {REST_PORT}, or a free one if it is taken)"
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        help="for start: of the job manager's metrics for Prometheus; the next ones are those of the task managers "
        "(default: free ones)",
    )
    parser.add_argument(
        "--adaptive",
        action="store_true",
        help="for start: a job takes the slots that there are, up to its --parallelism, and goes on from its last "
        "checkpoint with more or fewer when they change",
    )
    parser.add_argument("--job-server", type=Path, help="for start: Beam's job server (default: the one in the cache)")
    parser.add_argument("--parallelism", type=int, help="for options; all slots by default")
    parser.add_argument("--unbounded", action="store_true", help="for options: input has no end; take checkpoints")
    parser.add_argument("--resume", help="for options, rollback: folder of the savepoint or checkpoint to go on from")
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    arguments = parser.parse_args(given[:end])
    arguments.submit = given[end + 1 :]
    run = arguments.run.resolve()
    try:
        run_command(run, arguments)
    except KeyboardInterrupt:
        sys.exit(130)
    except urllib.error.HTTPError as error:
        sys.exit(f"flink_cluster: the cluster refused: {json.loads(error.read())['errors'][0].splitlines()[0]}")
    except urllib.error.URLError as error:
        sys.exit(f"flink_cluster: no answer from the cluster ({error.reason}); is it started? logs are in {run}")
    except (ClusterError, JobError) as error:
        sys.exit(f"flink_cluster: {error}")


if __name__ == "__main__":
    main()
