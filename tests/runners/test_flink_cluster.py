"""The cluster script ends only what it started, says what is missing, and brings up a real Flink cluster."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def processes():
    spec = importlib.util.spec_from_file_location("deploy_processes", DEPLOY / "processes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_commands_without_a_cluster_say_so(cluster):
    for command in ("status", "options"):
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
    assert names == {"job-manager", "task-manager-0", "task-manager-1", "worker-pool"}
    pool = json.loads((tmp_path / "run" / "cluster.json").read_text())["pool_port"]
    assert f"--environment_config=127.0.0.1:{pool}" in cluster("options").stdout
    refused = cluster("start", "--rest-port", "18082")
    assert "runs already" in refused.stderr
    assert cluster("stop").stdout.count(": stopped") == 4
    assert "no answer from the cluster" in cluster("status").stderr
