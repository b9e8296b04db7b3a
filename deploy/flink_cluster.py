"""A Flink session cluster of separate processes on this machine, without Docker and on loopback only.

    python deploy/flink_cluster.py start      # one job manager, two task managers, a Python worker pool
    python deploy/flink_cluster.py status     # processes, slots, jobs
    python deploy/flink_cluster.py options    # the Beam options that submit a pipeline to it
    python deploy/flink_cluster.py cancel JOB
    python deploy/flink_cluster.py stop

Flink comes from the Python package apache-flink-libraries, which holds the distribution's jars; it is unpacked under
.cache/ and is no dependency of this project. Logs, checkpoints and pid files lie in the run folder.
"""

import argparse
import json
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import processes
from flink_distribution import (
    CACHE,
    FLINK_VERSION,
    HOST,
    JAVA_OPTIONS,
    LOG4J,
    ClusterError,
    configuration,
    free_port,
    install,
    java,
    memory_options,
)

START_SECONDS = 90
JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"


def start(run: Path, task_managers: int, slots: int, rest_port: int) -> None:
    """Start the processes and wait until every task manager has reported its slots."""
    if any(processes.alive(file) for file in run.glob("*.pid")):
        raise ClusterError(f"a cluster runs already in {run}; stop it first")
    with socket.socket() as probe:
        if probe.connect_ex((HOST, rest_port)) == 0:
            raise ClusterError(f"port {rest_port} is taken; choose another with --rest-port")
    java()
    install()
    conf = run / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (run / "tmp").mkdir(exist_ok=True)
    settings = configuration(run, rest_port, slots)
    (conf / "config.yaml").write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items()))
    (conf / "log4j.properties").write_text(LOG4J)
    pool_port = free_port()
    about = {"rest_port": rest_port, "pool_port": pool_port, "task_managers": task_managers, "slots": slots}
    (run / "cluster.json").write_text(json.dumps(about))
    try:
        pool = [sys.executable, str(Path(__file__).with_name("worker_pool.py")), f"--port={pool_port}"]
        processes.start(run, "worker-pool", pool)
        start_job_manager(run)
        for number in range(task_managers):
            start_task_manager(run, number)
        wait_for(run, lambda: overview(run)["slots-total"] == task_managers * slots, "the task managers to report")
    except BaseException:
        stop(run)
        raise


def start_job_manager(run: Path) -> None:
    """Start the job manager."""
    _start_java(run, "job-manager", JOB_MANAGER, "GET_JM_RESOURCE_PARAMS", ["--executionMode", "cluster"])


def start_task_manager(run: Path, number: int) -> None:
    """Start one task manager."""
    resource = ["-D", f"taskmanager.resource-id=task-manager-{number}"]
    _start_java(run, f"task-manager-{number}", TASK_MANAGER, "GET_TM_RESOURCE_PARAMS", resource)


def _start_java(run: Path, name: str, main: str, memory: str, arguments: list[str]) -> None:
    flink, conf = install(), run / "conf"
    jvm, derived = memory_options(flink, conf, memory)
    logging = [f"-Dlog4j.configurationFile={conf}/log4j.properties"]
    command = [
        java(),
        *jvm,
        *JAVA_OPTIONS,
        *logging,
        "-cp",
        f"{flink}/lib/*",
        main,
        "--configDir",
        str(conf),
        *derived,
        *arguments,
    ]
    processes.start(run, name, command)


def wait_for(run: Path, condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition on the REST answers holds; stop early when a process of ours has died."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except (urllib.error.URLError, ConnectionError, KeyError):
            pass
        dead = [file.stem for file in run.glob("*.pid") if not processes.alive(file)]
        if dead:
            raise ClusterError(f"{', '.join(dead)} ended at once; see {run}/{dead[0]}.out")
        time.sleep(0.3)
    raise ClusterError(f"waited {START_SECONDS} s in vain for {what}; see the .out files in {run}")


def about(run: Path) -> dict:
    """Return what the start wrote down about the cluster."""
    try:
        return json.loads((run / "cluster.json").read_text())
    except FileNotFoundError:
        raise ClusterError(f"no cluster in {run}; start one first") from None


def rest(run: Path, path: str, method: str = "GET", body: dict | None = None) -> dict:
    """Call Flink's REST interface."""
    data = None if body is None else json.dumps(body).encode()
    url = f"http://{HOST}:{about(run)['rest_port']}{path}"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        return json.loads(answer.read() or b"{}")


def overview(run: Path) -> dict:
    """Return slots and task managers."""
    return rest(run, "/overview")


def options(run: Path) -> list[str]:
    """Return the Beam options that submit a Python pipeline to this cluster."""
    return [
        "--runner=FlinkRunner",
        f"--flink_version={FLINK_VERSION.rpartition('.')[0]}",
        f"--flink_master={HOST}:{about(run)['rest_port']}",
        "--environment_type=EXTERNAL",
        f"--environment_config={HOST}:{about(run)['pool_port']}",
        f"--parallelism={about(run)['task_managers'] * about(run)['slots']}",
    ]


def status(run: Path) -> None:
    """Print processes, slots and jobs."""
    for file in sorted(run.glob("*.pid")):
        print(f"{file.stem:16} {processes.alive(file) or 'dead'}")
    totals = overview(run)
    print(f"slots            {totals['slots-available']} of {totals['slots-total']} free")
    for job in rest(run, "/jobs/overview")["jobs"]:
        print(f"job {job['jid']} {job['state']:10} {job['name']}")


def stop(run: Path) -> None:
    """End every process of this cluster, the job manager last."""
    for file in sorted(run.glob("*.pid"), reverse=True):
        print(f"{file.stem}: {'stopped' if processes.stop(file) else 'was not running'}")


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["start", "status", "options", "cancel", "stop"])
    parser.add_argument("job", nargs="?", help="the job's id, for cancel")
    parser.add_argument("--run", type=Path, default=CACHE / "cluster", help="run folder (%(default)s)")
    parser.add_argument("--task-managers", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1, help="slots of each task manager")
    parser.add_argument("--rest-port", type=int, default=8081)
    arguments = parser.parse_args()
    run = arguments.run.resolve()
    try:
        if arguments.command == "start":
            start(run, arguments.task_managers, arguments.slots, arguments.rest_port)
            status(run)
        elif arguments.command == "status":
            status(run)
        elif arguments.command == "options":
            print(" ".join(options(run)))
        elif arguments.command == "cancel":
            if not arguments.job:
                raise ClusterError("cancel needs the job's id; status lists them")
            rest(run, f"/jobs/{arguments.job}?mode=cancel", "PATCH")
        else:
            stop(run)
    except urllib.error.HTTPError as error:
        sys.exit(f"flink_cluster: the cluster refused: {json.loads(error.read())['errors'][0].splitlines()[0]}")
    except urllib.error.URLError as error:
        sys.exit(f"flink_cluster: no answer from the cluster ({error.reason}); is it started? logs are in {run}")
    except ClusterError as error:
        sys.exit(f"flink_cluster: {error}")


if __name__ == "__main__":
    main()
