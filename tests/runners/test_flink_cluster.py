"""The cluster script ends only what it started, says what is missing, and brings up a real Flink cluster."""

import json
import os
import pickle
import subprocess
import sys
import time

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from flink_cluster_jobs import DEPLOY, load
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.runners.flink_options import FlinkJobOptions, prepare_for_checkpoints

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
    answer = subprocess.run([*bare, "--rest-port=18086"], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "has no apache_beam, so its workers could run no pipeline: install it" in answer.stderr


def test_a_missing_job_server_is_named(cluster):
    answer = cluster("start", "--rest-port=18086", "--job-server=/no/such.jar")
    assert "--job-server must be a jar, got /no/such.jar; deploy/get_flink_job_server.sh gives one" in answer.stderr


def test_options_take_checkpoints_where_the_input_has_no_end(cluster, tmp_path):
    (tmp_path / "run").mkdir()
    about = {"rest_port": 1, "pool_port": 2, "zookeeper_port": 3, "task_managers": 2, "slots": 3, "beam": ""}
    (tmp_path / "run" / "cluster.json").write_text(json.dumps(about))
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


def failure(what) -> str:
    """Return what Python says when something fails in a worker, as Beam passes it on."""
    code = f"import pickle; pickle.loads({what!r})" if isinstance(what, bytes) else what
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    return f"java.lang.RuntimeException: Error received from SDK harness for instruction 4: {told}"


@pytest.mark.slow
def test_a_restart_is_explained(flink_jobs, tmp_path):
    key = tmp_path / "noise.key"
    key.write_bytes(bytes(range(1, 33)))
    key.chmod(0o600)
    noise = pickle.dumps(KeyedNoise.from_file(key))
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    assert "worker has another noise key than the launch" in flink_jobs._first_cause(failure(noise))
    key.unlink()
    assert "worker cannot read the noise key" in flink_jobs._first_cause(failure(noise))
    missing = flink_jobs._first_cause(failure("import no_such_package"))
    assert "workers' Python has no module no_such_package: install the package there" in missing
    expired = "org.apache.flink.util.FlinkRuntimeException: Exceeded checkpoint tolerable failure threshold. The latest"
    assert flink_jobs._first_cause(expired).startswith("a checkpoint took longer than --checkpoint_timeout_millis")


def test_a_restart_is_explained_without_quoting_records(flink_jobs):
    told = flink_jobs._first_cause(failure("raise ValueError('the diary of user 7')"))
    assert told == "ValueError"
    lost = "org.apache.flink.runtime.io.network.netty.exception.RemoteTransportException: of task-manager-1"
    assert flink_jobs._first_cause(lost) == "RemoteTransportException"


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


@pytest.mark.slow
@pytest.mark.flink
@pytest.mark.xdist_group("flink")
def test_a_cluster_comes_up_with_all_slots_and_goes_away(cluster, processes, tmp_path):
    started = cluster("start", "--task-managers", "2", "--rest-port", "18081")
    assert started.returncode == 0, started.stderr
    assert "slots            2 of 2 free" in started.stdout
    names = {file.stem for file in tmp_path.glob("run/*.pid")}
    assert names == {"job-manager", "task-manager-0", "task-manager-1", "worker-pool", "zookeeper"}
    assert "nothing, everything runs" in cluster("repair").stdout
    pool = json.loads((tmp_path / "run" / "cluster.json").read_text())["pool_port"]
    assert f"--environment_config=127.0.0.1:{pool}" in cluster("options").stdout
    refused = cluster("start", "--rest-port", "18082")
    assert "runs already" in refused.stderr
    assert cluster("stop").stdout.count(": stopped") == 5
    assert "no answer from the cluster" in cluster("status").stderr
