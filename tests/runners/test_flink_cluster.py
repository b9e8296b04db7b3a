"""The cluster script ends only what it started, says what is missing, and brings up a real Flink cluster."""

import importlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from types import SimpleNamespace

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from flink_cluster_jobs import DEPLOY, PROCESSES, load
from privstream.pipelines.runners.flink import FlinkJobOptions, prepare_for_checkpoints

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def processes():
    return load("processes")


@pytest.fixture
def flink_jobs():
    return load("flink_jobs")


@pytest.fixture
def cluster(tmp_path):
    def call(*arguments, **environment):
        command = [sys.executable, str(DEPLOY / "flink_cluster.py"), *arguments, "--run", str(tmp_path / "run")]
        return subprocess.run(command, capture_output=True, text=True, check=False, **environment)

    yield call
    call("stop")


def test_a_started_process_is_alive_until_stopped(processes, tmp_path):
    processes.start(tmp_path, "sleeper", SLEEP)
    assert processes.alive(tmp_path / "sleeper.pid")
    assert processes.stop(tmp_path / "sleeper.pid")
    assert not (tmp_path / "sleeper.pid").exists()


def test_a_process_that_ended_is_not_alive(processes, tmp_path):
    processes.start(tmp_path, "brief", [sys.executable, "-c", "print('said')"])
    pid_file = tmp_path / "brief.pid"
    while processes.alive(pid_file):
        pass
    assert (tmp_path / "brief.out").read_text() == "said\n"
    assert not processes.stop(pid_file)


def test_a_process_that_took_over_the_number_is_left_alone(processes, tmp_path):
    with subprocess.Popen(SLEEP) as stranger:
        (tmp_path / "old.pid").write_text(f"{stranger.pid} 12345\n")
        assert not processes.stop(tmp_path / "old.pid")
        assert stranger.poll() is None
        stranger.kill()


def test_missing_java_is_named_and_nothing_is_left_behind(cluster, tmp_path):
    answer = cluster("start", env={"PATH": "", "JAVA_HOME": ""})
    assert answer.returncode == 1
    assert "Java is not installed" in answer.stderr
    assert not list(tmp_path.glob("run/*.pid"))


def test_a_python_without_the_package_is_named(tmp_path):
    """Its workers could run nothing, and the job would restart for ever."""
    bare = [sys.executable, "-S", str(DEPLOY / "flink_cluster.py"), "start", f"--run={tmp_path / 'run'}"]
    answer = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "has no apache_beam, so its workers could run no pipeline: install it" in answer.stderr


def test_a_missing_job_server_is_named(cluster):
    answer = cluster("start", "--job-server=/no/such.jar")
    assert "--job-server must be a jar, got /no/such.jar; deploy/get_flink_job_server.sh gives one" in answer.stderr


def test_a_given_port_that_is_taken_is_named(cluster):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        answer = cluster("start", f"--rest-port={port}")
    assert f"port {port} is taken; choose another with --rest-port, or leave it out" in answer.stderr


def test_a_start_leaves_alone_what_was_killed_and_not_stopped(cluster, tmp_path):
    """Its jobs would come back, and wait for ever for workers at the port of before."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "zookeeper.pid").write_text("1 of another birth\n")
    answer = cluster("start")
    assert answer.returncode == 1
    assert "`repair` starts them again and its jobs go on, `stop` forgets its jobs" in answer.stderr


def test_options_take_checkpoints_where_the_input_has_no_end(cluster, tmp_path):
    (tmp_path / "run").mkdir()
    about = {
        "rest_port": 1,
        "pool_port": 2,
        "zookeeper_port": 3,
        "task_managers": 2,
        "slots": 3,
        "beam": "",
        "metrics": {},
    }
    (tmp_path / "run" / "cluster.json").write_text(json.dumps(about | {"metrics": {}}))
    bounded = cluster("options").stdout.split()
    assert "--parallelism=6" in bounded
    assert not [option for option in bounded if "checkpoint" in option]
    ours = PipelineOptions(["--checkpointing_interval=10000"])
    prepare_for_checkpoints(ours)
    assert checkpoint_options(cluster("options", "--unbounded").stdout.split()) == checkpoint_options(ours)
    savepoint = tmp_path / "savepoint"
    savepoint.mkdir()
    assert "--resume must be the folder of a savepoint" in cluster("options", f"--resume={savepoint}").stderr
    (savepoint / "_metadata").touch()
    resumed = cluster("options", f"--resume={savepoint}", "--parallelism=1").stdout.split()
    assert {f"--savepoint_path={savepoint}", "--parallelism=1", "--operator_chaining=false"} <= set(resumed)


def test_an_upgrade_leaves_what_its_command_has_chosen(monkeypatch):
    """A job of two slots stays one, whatever the cluster has; only where it goes on is as the cluster says."""
    monkeypatch.syspath_prepend(DEPLOY)
    command = ["privstream", "counts", "--parallelism=2", "--max_parallelism", "64", "--savepoint_path=first"]
    chosen = ["--parallelism=4", "--max_parallelism=128", "--streaming", "--savepoint_path=second"]
    assert load("flink_cluster")._further(command, chosen) == ["--streaming", "--savepoint_path=second"]


@pytest.mark.parametrize(("counted", "told"), [(0, "1 time;"), (7, "7 times;")])
def test_status_tells_of_a_fault_that_flink_has_not_counted_yet(counted, told, monkeypatch):
    monkeypatch.syspath_prepend(DEPLOY)
    script = load("flink_cluster")
    job = {"jid": "1", "state": "RESTARTING", "name": "counts"}
    answers = {"rest": lambda path: {"slots-available": 0, "slots-total": 2}, "listed": lambda: [job]}
    answers |= {"trouble": lambda job: "too few slots", "restarts": lambda job: counted}
    monkeypatch.setattr(script, "jobs", lambda run: SimpleNamespace(address="here", **answers))
    monkeypatch.setattr(script, "about", lambda run: {"metrics": {}, "task_managers": 1})
    monkeypatch.setattr(script, "_runs", lambda run, name: 1)
    assert f"restarted {told} the last fault: too few slots" in script.status("run")


def checkpoint_options(given) -> dict:
    options = given if isinstance(given, PipelineOptions) else PipelineOptions(given)
    return {
        name: getattr(options.view_as(FlinkJobOptions), name) for name in vars(FlinkJobOptions([])._visible_options)
    }


def test_the_newest_checkpoint_is_found(flink_jobs, tmp_path):
    with pytest.raises(flink_jobs.JobError, match=r"was the job started with --checkpointing_interval\?"):
        flink_jobs.latest_checkpoint(tmp_path)
    for age, place in enumerate(("a/chk-9", "b/chk-2", "b/chk-10")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "_metadata").touch()
        os.utime(tmp_path / place / "_metadata", (age, age))
    (tmp_path / "b" / "chk-11").mkdir()  # not complete
    assert flink_jobs.latest_checkpoint(tmp_path) == tmp_path / "b" / "chk-10"
    assert flink_jobs.latest_checkpoint(tmp_path, "a") == tmp_path / "a" / "chk-9"


def test_a_worker_that_dies_young_starts_again(tmp_path):
    pool = load("worker_pool")
    births = tmp_path / "births"
    code = f"open({str(births)!r}, 'a').write('x'); import sys; sys.exit(open({str(births)!r}).read() != 'xxx')"
    pool.Worker("a worker", [sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not births.exists() or births.read_text() != "xxx"):
        time.sleep(0.05)
    time.sleep(0.5)
    assert births.read_text() == "xxx"


def test_a_worker_that_was_stopped_stays_so(tmp_path):
    pool = load("worker_pool")
    births = tmp_path / "births"
    worker = pool.Worker(
        "a worker", [sys.executable, "-c", f"open({str(births)!r}, 'a').write('x'); import time; time.sleep(60)"]
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not births.exists():
        time.sleep(0.05)
    worker.stop()
    time.sleep(0.5)
    assert births.read_text() in ("", "x")


def test_commands_without_a_cluster_say_so(cluster):
    for command in ("status", "options", "repair", "savepoint", "cancel"):
        answer = cluster(command)
        assert answer.returncode == 1
        assert "start one first" in answer.stderr


def test_an_upgrade_ends_none_of_several_jobs_that_have_begun(flink_jobs, monkeypatch):
    jobs, listed, asked = flink_jobs.Jobs("http://127.0.0.1:1"), [], []

    def rest(path, method="GET", body=None):
        asked.append(method)
        return {"jobs": listed}

    monkeypatch.setattr(jobs, "rest", rest)
    begun = [{"jid": job, "start-time": 1} for job in ("theirs", "ours")]
    with pytest.raises(flink_jobs.JobError, match="several jobs have begun, so that none was cancelled: ours, theirs"):
        jobs.resume(lambda: listed.extend(begun), "/savepoints/one")
    assert set(asked) == {"GET"}


def _repaired(monkeypatch, run, dies, survives):
    """Repair a cluster of which `dies` is still seen to run twice; return the names of what was started, in order."""
    monkeypatch.syspath_prepend(str(DEPLOY))
    script = importlib.import_module("flink_cluster")
    size = {"task_managers": 2, "slots": 1, "rest_port": 1}
    run.mkdir()
    (run / "cluster.json").write_text(json.dumps(size))
    running, seen, started = {"zookeeper", "job-manager", "task-manager-0", dies}, [], []

    def runs(_, name):
        if name == dies and not started.count(name):
            seen.append(name)
            return len(seen) <= 2
        return name in running

    def start(_, name):
        started.append(name)
        running.discard(name)
        if name in survives:
            running.add(name)

    def jobs(_):
        if dies not in started:
            raise ConnectionError("the job manager waits for it")
        return SimpleNamespace(rest=lambda _: {"slots-total": 2})

    for name, fake in {"_runs": runs, "start_process": start, "jobs": jobs}.items():
        monkeypatch.setattr(script, name, fake)
    monkeypatch.setattr(script.time, "sleep", lambda _: None)
    try:
        assert script.repair(run) == started
    except script.ClusterError as error:
        return str(error)
    return started


def test_what_dies_while_it_is_looked_at_is_started_again(monkeypatch, tmp_path):
    survives = {"worker-pool", "task-manager-1"}
    assert _repaired(monkeypatch, tmp_path / "run", "task-manager-1", survives) == ["worker-pool", "task-manager-1"]


def test_what_ends_at_once_is_not_started_for_ever(monkeypatch, tmp_path):
    told = _repaired(monkeypatch, tmp_path / "run", "task-manager-1", {"task-manager-1"})
    assert told == f"worker-pool ended at once; see {tmp_path}/run/worker-pool.out"


@pytest.mark.parametrize(
    ("number", "changed"), [(1, "task-manager-1"), (2, "nothing"), (4, "task-manager-2, task-manager-3")]
)
def test_a_cluster_is_scaled(number, changed, monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(DEPLOY))
    script = importlib.import_module("flink_cluster")
    running = {"worker-pool", "zookeeper", "job-manager", "task-manager-0", "task-manager-1"}
    metrics = {"job-manager": 1, "task-manager-0": 2, "task-manager-1": 3}
    told = {"task_managers": 2, "slots": 3, "metrics": metrics}
    (tmp_path / "cluster.json").write_text(json.dumps(told))
    fakes = {"_runs": lambda _, name: name in running, "start_process": lambda _, name: running.add(name)}
    fakes["jobs"] = lambda _: SimpleNamespace(rest=lambda _: {"slots-total": 3 * (len(running) - 3)})
    for name, fake in fakes.items():
        monkeypatch.setattr(script, name, fake)
    monkeypatch.setattr(script.processes, "stop", lambda file: running.discard(file.stem))
    monkeypatch.setattr(sys, "argv", ["flink_cluster", "scale", f"--run={tmp_path}", f"--task-managers={number}"])
    script.main()
    assert capsys.readouterr().out == f"started or stopped: {changed}\n"
    found = script.about(tmp_path)
    assert (found["task_managers"], len(found["metrics"])) == (number, number + 1)
    assert len(running) == number + 3 and metrics.items() <= (found["metrics"] | metrics).items()


def test_a_cluster_without_task_managers_is_refused(cluster, tmp_path):
    answer = cluster("scale", "--task-managers=0")
    assert answer.stderr == "flink_cluster: --task-managers must be >= 1, got 0\n"


@pytest.mark.slow
@pytest.mark.flink
@pytest.mark.xdist_group("flink")
def test_a_cluster_comes_up_with_all_slots(flink_cluster):
    """That it goes away is seen at the end of the tests, where it is stopped."""
    assert "slots            2 of 2 free" in flink_cluster.told
    assert {file.stem for file in flink_cluster.run.glob("*.pid")} == PROCESSES
    assert "nothing, everything runs" in flink_cluster.call("repair")
    pages = re.findall(r"metrics: (\S+/metrics)", flink_cluster.told)
    assert [b"flink_" in urllib.request.urlopen(page).read() for page in pages] == [True] * 3
    pool = json.loads((flink_cluster.run / "cluster.json").read_text())["pool_port"]
    assert f"--environment_config=127.0.0.1:{pool}" in flink_cluster.call("options")
    with pytest.raises(AssertionError, match="runs already"):
        flink_cluster.call("start")
