"""Runs what compose.yaml describes as processes, without containers: its settings, its hosts' names, its commands.

    unshare --net --mount --pid --fork --kill-child --mount-proc python compose_processes.py FOLDER JOB_SERVER_JAR

All hosts are one here, in a network of its own that reaches nothing else; folders lie below FOLDER, windows have two
seconds where the file has an hour, and there is one task manager. Ends when a window with rows has been written, and
prints its rows.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
sys.path.insert(0, str(DEPLOY))
flink_cluster, distribution = (importlib.import_module(name) for name in ("flink_cluster", "flink_distribution"))

SECONDS = 240
HOST = "jobmanager"
RUN = "import sys; from privstream.pipelines.cli import main; sys.exit(main())"


def main(folder: Path, jar: Path) -> None:
    """Start everything, send events, and wait for rows."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()} {' '.join(compose['services'])}\n")
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
    for name in ("conf", "state", "data/events", "data/rows", "data/dead_letters", "secrets"):
        (folder / name).mkdir(parents=True)

    def here(text: str) -> str:
        places = {"/state": "state", "/data": "data", "/run/secrets": "secrets"}
        for place, name in places.items():
            text = text.replace(place, str(folder / name))
        return text

    settings = here((DEPLOY / "compose" / "flink.yaml").read_text())
    (folder / "conf" / "config.yaml").write_text(settings.replace("port: 9249", "port: 9249-9259"))
    (folder / "conf" / "log4j.properties").write_text(distribution.LOG4J)
    (folder / "conf" / "zoo.cfg").write_text(
        f"dataDir={folder / 'zookeeper'}\nclientPort=2181\nadmin.enableServer=false\ntickTime=2000\n"
    )
    (folder / "secrets" / "noise_key").touch(mode=0o600)
    (folder / "secrets" / "noise_key").write_bytes(bytes(range(32)))
    start_cluster(folder, jar)

    command = [here(word) for word in compose["services"]["launcher"]["command"]]
    changed = {"--watch=10": "--watch=0.5", "--window=3600": "--window=2", "--horizon=24": "--horizon=2000"}
    changed |= {"--parallelism=2": "--parallelism=1"}
    assert set(changed) <= set(command)
    command = [changed.get(word, word) for word in command if "job_server_jar" not in word]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    command += [f"--flink_job_server_jar={jar}", "--allowed_lateness=5", "--time_unit=s", f"--start={now}"]
    start(folder, "launcher", [sys.executable, "-c", RUN, *command])
    print(*rows(folder), sep="\n")


def start(folder: Path, name: str, command: list[str]) -> None:
    """Start a process, which ends with this one's namespace."""
    with (folder / f"{name}.out").open("wb") as output:
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def start_cluster(folder: Path, jar: Path) -> None:
    """Start what the services of these names are."""
    conf = folder / "conf"
    classes = os.pathsep.join([f"{distribution.install()}/lib/*", flink_cluster._beam_libraries(jar)])
    common = [*distribution.JAVA_OPTIONS, f"-Dlog4j.configurationFile={conf}/log4j.properties", "-cp", classes]
    os.environ["FLINK_PLUGINS_DIR"] = f"{distribution.install()}/plugins"
    quorum = [flink_cluster.ZOOKEEPER, "--zkConfigFile", str(conf / "zoo.cfg"), "--peerId", "1"]
    start(folder, "zookeeper", [distribution.java(), "-Xmx128m", *common, *quorum])
    jvm, derived = distribution.memory_options(distribution.install(), conf, "GET_JM_RESOURCE_PARAMS")
    master = [flink_cluster.JOB_MANAGER, "--configDir", str(conf), *derived, "--executionMode", "cluster"]
    start(folder, "jobmanager", [distribution.java(), *jvm, *common, *master, "--host", HOST])
    jvm, derived = distribution.memory_options(distribution.install(), conf, "GET_TM_RESOURCE_PARAMS")
    worker = [flink_cluster.TASK_MANAGER, "--configDir", str(conf), *derived]
    start(
        folder, "taskmanager-1", [distribution.java(), *jvm, *common, *worker, "-D", "taskmanager.host=taskmanager-1"]
    )
    start(folder, "worker-1", [sys.executable, str(DEPLOY / "worker_pool.py"), "--port=50000"])
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            if flink_cluster.Jobs(f"http://{HOST}:8081").rest("/overview")["slots-total"] == 1:
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise TimeoutError("no task manager has reported")


def rows(folder: Path) -> list[str]:
    """Send events until a window with rows has been written; return its rows."""
    deadline, sent = time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline:
        lines = [json.dumps({"user": f"{sent} {user}", "item": "rain", "time": time.time()}) for user in range(500)]
        (folder / "new").write_text("\n".join(lines) + "\n")
        (folder / "new").rename(folder / "data" / "events" / f"{sent}.jsonl")
        sent += 1
        for file in sorted((folder / "data" / "rows").glob("*_*.jsonl")):
            if found := file.read_text().splitlines():
                return found
        time.sleep(1)
    raise TimeoutError(f"no rows; {(folder / 'launcher.out').read_text()[-2000:]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
